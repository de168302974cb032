# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# docs/guide/openssl.md

fresh_machine gateway-1 21
on gateway-1 openssl-key
on gateway-1 openssl-provider
printed "default"
printed "millrace"
on gateway-1 openssl-uri
printed "BEGIN PUBLIC KEY"
printed "ssl_certificate_key store:millrace:www?spki="
on gateway-1 openssl-try
printed "rsa-pss-sign"
if [[ $RELEASE != 12 ]]; then
    on gateway-1 openssl-ml-dsa
    run gateway-1 '
        millrace key policy ml-dsa --add-uid root
        export OPENSSL_CONF=/etc/millrace/openssl.cnf
        openssl s_server -accept 127.0.0.1:4434 -cert ml-dsa.crt -key ml-dsa.key -www &
        until openssl s_client -tls1_3 -sigalgs mldsa65 -connect 127.0.0.1:4434 </dev/null >client 2>&1; do sleep 0.1; done
        cat client'
    printed "Peer signature type: mldsa65"
fi
on gateway-1 admin-socket
if [[ $INIT == systemd ]]; then on gateway-1 doctor-timer; fi
machine_stop gateway-1
