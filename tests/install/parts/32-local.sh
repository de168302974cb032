# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# docs/guide/local.md: nginx with a key of its own, without a node, there and back again.

fresh_gateway gateway-1 21
plain_site gateway-1
on gateway-1 local-files
prepend gateway-1 nginx-include /etc/nginx/nginx.conf
if [[ $INIT == systemd ]]; then on gateway-1 local-restart; else on gateway-1 local-by-hand; fi
printed X25519MLKEM768
printed TLS13-KDF
! grep -q '^FAILURE' <<<"$OUTPUT" || fail "the check fails: $OUTPUT"
handshakes gateway-1 50 "nginx with local primitives"

on gateway-1 local-remove
run gateway-1 'ls /etc/millrace/openssl.cnf /etc/nginx/millrace.conf /etc/nginx/conf.d/millrace-pq.conf 2>/dev/null || true'
[[ -z $OUTPUT ]] || fail "--remove leaves: $OUTPUT"
if [[ $INIT == systemd ]]; then
    on gateway-1 local-removed
    run gateway-1 'tr "\\0" "\\n" <"/proc/$(pgrep --oldest -x nginx)/environ"; pgrep -x nginx >/dev/null'
    ! grep -q millrace <<<"$OUTPUT" || fail "nginx still has: $OUTPUT"
    handshakes gateway-1 50 "nginx without Millrace"
fi
machine_stop gateway-1
