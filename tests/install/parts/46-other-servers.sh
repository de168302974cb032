# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# docs/guide/other-servers.md, where the servers are in the root: the provider's configuration, and curl.

fresh_machine gateway-1 21
on gateway-1 openssl-key
on gateway-1 other-servers-provider
printed "millrace"

# A site that asks for a client certificate and says whose it got.
root=$LAB/gateway-1/root
printf '127.0.0.1 api.example\n' >>"$root/etc/hosts"
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=api.example -addext subjectAltName=DNS:api.example \
    -addext basicConstraints=critical,CA:FALSE -CA "$LAB/ca.pem" -CAkey "$LAB/ca.key" \
    -keyout "$root/etc/ssl/private/api.pem" -out "$root/etc/ssl/certs/api.crt" 2>/dev/null
cat >"$root/etc/nginx/conf.d/api.conf" <<'CONF'
server {
    listen 443 ssl;
    ssl_certificate /etc/ssl/certs/api.crt;
    ssl_certificate_key /etc/ssl/private/api.pem;
    ssl_verify_client optional_no_ca;
    location / { return 200 "client $ssl_client_s_dn\n"; }
}
CONF
if [[ $INIT == systemd ]]; then run gateway-1 'systemctl restart nginx'; else run gateway-1 'nginx'; fi
cp "$LAB/ca.pem" "$root/root/ca.pem"
cp "$LAB/www.crt" "$root/root/www.crt"
printf 'cacert = /root/ca.pem\n' >"$root/root/.curlrc"
on gateway-1 other-servers-curl
printed "client CN=www.example.org"
run gateway-1 'millrace status --json'
grep -Eq '"(completed|served)": [1-9]' <<<"$OUTPUT" || fail "the node signed nothing: $OUTPUT"
machine_stop gateway-1
