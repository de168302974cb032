# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# docs/guide/nginx.md

fresh_machine gateway-1 21
on gateway-1 nginx-key
prepend gateway-1 nginx-include /etc/nginx/nginx.conf
place gateway-1 nginx-server /etc/nginx/conf.d/www.conf
on gateway-1 nginx-shell
if [[ $INIT == systemd ]]; then on gateway-1 nginx-restart; else on gateway-1 nginx-by-hand; fi
pooled_and_asynchronous
handshakes gateway-1 50 "nginx"
machine_stop gateway-1
