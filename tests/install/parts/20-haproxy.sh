# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# docs/guide/haproxy.md, and the folder of keys in docs/guide/nodes.md

fresh_machine gateway-1 21
on gateway-1 haproxy-key
place gateway-1 haproxy-lines /etc/haproxy/haproxy.cfg
answer_ok gateway-1
on gateway-1 haproxy-shell
if [[ $INIT == systemd ]]; then on gateway-1 haproxy-restart; else on gateway-1 haproxy-by-hand; fi
pooled_and_asynchronous
handshakes gateway-1 50 "HAProxy"
on gateway-1 many-keys
handshakes gateway-1 10 "HAProxy, after its folder of keys was imported"
machine_stop gateway-1
