# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# docs/guide/compression.md: nginx without a node and without the provider.

fresh_gateway gateway-1 21
# A page that is worth compressing.
seq --format 'line %g of a page' 1 5000 >"$LAB/gateway-1/root/var/www/html/index.html"
cp "$LAB/gateway-1/root/var/www/html/index.html" "$LAB/page"
on gateway-1 compression-files
prepend gateway-1 nginx-include /etc/nginx/nginx.conf
place gateway-1 compression-types /etc/nginx/conf.d/compression.conf
if [[ $INIT == systemd ]]; then on gateway-1 compression-restart; else on gateway-1 compression-by-hand; fi
on gateway-1 compression-seen
grep -Eq '^ok +compression +1 responses, .*ISA-L 100 %' <<<"$OUTPUT" || fail "not compressed by ISA-L: $OUTPUT"
sent=$(sed -n 's/ bytes sent$//p' <<<"$OUTPUT")
((sent * 3 < $(stat --format %s "$LAB/page"))) || fail "$sent bytes were sent: $OUTPUT"
run gateway-1 'cat page.html'
[[ $OUTPUT == "$(<"$LAB/page")" ]] || fail "the page that curl decompressed is another one"

on gateway-1 compression-static
run gateway-1 'gzip --decompress --stdout /var/www/html/index.html.gz'
[[ $OUTPUT == "$(<"$LAB/page")" ]] || fail "index.html.gz is another page"
machine_stop gateway-1
