# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# README: the quick start, on one machine.

fresh_machine gateway-1 21
run gateway-1 "cd $SOURCE && make"
printed "make test-install"

on gateway-1 own-haproxy
place gateway-1 own-haproxy-lines /etc/haproxy/haproxy.cfg
answer_ok gateway-1
if [[ $INIT == systemd ]]; then on gateway-1 own-haproxy-check; else on gateway-1 haproxy-by-hand; fi
pooled_and_asynchronous

# With something to sample for `inspect ceiling`.
load_start gateway-1
look gateway-1 inspect
load_stop "README's HAProxy"
machine_stop gateway-1
