# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# docs/guide/renewing.md, under load, with the machines of two-nodes.

# served MACHINE: the fingerprint of the certificate that clients get.
served() {
    openssl s_client -connect "${ADDRESS[$1]}:443" -servername www.example.org </dev/null 2>/dev/null |
        openssl x509 -noout -fingerprint -sha256
}
serves() { [[ $(served "$1") == "$2" ]]; }

# renew MACHINE: what an ACME client does: a new key, a new certificate, then its deploy hook.
renew() {
    local live=$LAB/$1/root/etc/letsencrypt/live/www.example.org fingerprint
    issue renewed
    mkdir -p "$live"
    install -m 0600 "$LAB/renewed.key" "$live/privkey.pem"
    install -m 0644 "$LAB/renewed.crt" "$live/fullchain.pem"
    fingerprint=$(openssl x509 -in "$LAB/renewed.crt" -noout -fingerprint -sha256)
    ! serves "$1" "$fingerprint" || fail "the renewed certificate is served before the renewal"
    on "$1" renewal-try
    poll "the renewed certificate is served" serves "$1" "$fingerprint"
}

on gateway-1 renewal-hook
if [[ $INIT != systemd ]]; then
    # The file's own comment.
    run gateway-1 'sed -i "s/^RELOAD=.*/RELOAD=\"pkill -USR2 -o haproxy\"/" /etc/millrace/renewal/www.example.org.conf'
fi
load_start gateway-1
for count in 1 2 3; do
    renew gateway-1
    load_more 100
done
load_stop "three renewals"
on gateway-1 renewal-request
run gateway-1 'openssl req -in www.csr -noout -verify'
