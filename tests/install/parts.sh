# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The parts of the walk, in order.

SOURCE=/usr/src/millrace

new_authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=lab authority" \
        -keyout "$LAB/ca.key" -out "$LAB/ca.pem" 2>/dev/null
}

# issue OUT: a key OUT.key (RSA-2048) and its certificate OUT.crt.
issue() {
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=www.example.org \
        -addext subjectAltName=DNS:www.example.org,DNS:localhost -addext basicConstraints=critical,CA:FALSE \
        -CA "$LAB/ca.pem" -CAkey "$LAB/ca.key" -keyout "$1.key" -out "$1.crt" 2>/dev/null
}

# Raising the limit on locked memory takes CAP_SYS_RESOURCE, which containers often lack: the unit then runs
# without --lock-memory, and otherwise as it is.
allow_unlocked_memory() {
    if (ulimit -l unlimited) 2>/dev/null || [[ $INIT != systemd ]]; then return; fi
    step "$1: this machine may not lock memory: millrace.service runs without --lock-memory"
    run "$1" '
        mkdir -p /etc/systemd/system/millrace.service.d
        { printf "[Service]\nExecStart=\n"; sed -n "s/ --lock-memory//p" /usr/local/lib/systemd/system/millrace.service; } \
            >/etc/systemd/system/millrace.service.d/unlocked.conf
        systemctl daemon-reload'
}

new_authority
machine_start gateway-1 21
issue "$LAB/www"
root=$LAB/gateway-1/root
install -m 0640 "$LAB/www.key" "$root/etc/ssl/private/www.pem"
install -m 0644 "$LAB/www.crt" "$root/etc/ssl/certs/www.crt"

on gateway-1 install "$SOURCE"
allow_unlocked_memory gateway-1
on gateway-1 start-node
on gateway-1 own-haproxy
echo "$OUTPUT"
place gateway-1 own-haproxy-lines /etc/haproxy/haproxy.cfg
on gateway-1 own-haproxy-check
echo "$OUTPUT"
all_used
