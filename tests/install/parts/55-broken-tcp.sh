# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# What may be wrong between a gateway and nodes over TCP, with the machines of two-nodes.

certs=/etc/millrace/gateway-1
broken_cases gateway-1 haproxy <<CASES
certificate files closed|chmod 0700 $certs|chmod 0750 $certs|^FAILURE +node +tcp:node-1:7400: .*Permission denied
certificate of another authority|cp -rp $certs /var/tmp/certs && millrace cert client gateway-1 --state /var/tmp/other -o /var/tmp/others && cp /var/tmp/others/* $certs/|cp /var/tmp/certs/* $certs/|^FAILURE +node +tcp:node-1:7400: .*(authority|certificate)
wrong address|$(edit /etc/millrace/openssl.cnf s/node-2:7400/node-2:7401/)|$(back /etc/millrace/openssl.cnf)|^FAILURE +node +tcp:node-2:7401: .*refused
CASES
if [[ $INIT == systemd ]]; then
    broken gateway-1 haproxy "certificates not in the chroot" no-BindReadOnlyPaths true \
        '^FAILURE +node +tcp:node-1:7400: .*gateway-1'
fi
restart_server gateway-1 haproxy
run gateway-1 'millrace gateway check haproxy'
pooled_and_asynchronous
