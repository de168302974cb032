# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# `millrace gateway check` names the cause of everything that an administrator may get wrong.

fresh_machine gateway-1 21
on gateway-1 haproxy-key
place gateway-1 haproxy-lines /etc/haproxy/haproxy.cfg
answer_ok gateway-1
if [[ $INIT == systemd ]]; then on gateway-1 haproxy-restart; else on gateway-1 haproxy-by-hand; fi

haproxy_cfg=/etc/haproxy/haproxy.cfg
haproxy_key=/etc/haproxy/www.pem.key
cnf=/etc/millrace/openssl.cnf
broken_cases gateway-1 haproxy <<CASES
good|true|true|^ok +pooled
no preload library|no-LD_PRELOAD|true|^warning +preload
plain key|$(plain $haproxy_key)|$(back $haproxy_key)|^FAILURE +keys +plain keys
node down|true|true|^FAILURE +(socket|node) .*(is not there|no node answers)
socket closed|chmod 0600 /run/millrace/node.sock|chmod 0666 /run/millrace/node.sock|^FAILURE +socket .*mode 0600
no ssl-mode-async|$(edit $haproxy_cfg /ssl-mode-async/d)|$(back $haproxy_cfg)|^FAILURE +waiting
mode = sync|$(edit $cnf '/^pool = /i mode = sync')|$(back $cnf)|^(FAILURE|warning) +(waiting|openssl.cnf|asynchronous)
mode = off|$(edit $cnf '/^pool = /i mode = off')|$(back $cnf)|^FAILURE +openssl.cnf .*mode = off
unknown setting|$(edit $cnf '/^pool = /i modde = off')|$(back $cnf)|modde
no insecure-fork-wanted|$(edit $haproxy_cfg /insecure-fork-wanted/d)|$(back $haproxy_cfg)|^FAILURE +threads
policy|millrace key policy www --remove-uid haproxy|millrace key policy www --add-uid haproxy|^FAILURE +policy .*does not let
wrong module path|$(edit $cnf 's/millrace.so/missing.so/')|$(back $cnf)|^FAILURE +provider .*missing.so
CASES
machine_stop gateway-1

fresh_machine gateway-1 21
on gateway-1 nginx-key
prepend gateway-1 nginx-include /etc/nginx/nginx.conf
place gateway-1 nginx-server /etc/nginx/conf.d/www.conf
if [[ $INIT == systemd ]]; then on gateway-1 nginx-restart; else on gateway-1 nginx-by-hand; fi

nginx_key=/etc/nginx/www.key
broken_cases gateway-1 nginx <<CASES
good|true|true|^ok +pooled
no preload library|no-LD_PRELOAD|true|^FAILURE +waiting
plain key|$(plain $nginx_key)|$(back $nginx_key)|^FAILURE +keys +plain keys
plain key and no OPENSSL_CONF|no-OPENSSL_CONF $(plain $nginx_key)|$(back $nginx_key)|^FAILURE +(environment|provider)
plain key and wrong module path|$(edit $cnf 's/millrace.so/missing.so/') && cp $nginx_key /var/tmp/stub && cp /etc/ssl/private/www.pem $nginx_key|$(back $cnf) && cp /var/tmp/stub $nginx_key|^FAILURE +provider .*missing.so
wrong module path|$(edit $cnf 's/millrace.so/missing.so/')|$(back $cnf)|^FAILURE +provider .*missing.so
node down|true|true|^FAILURE +(socket|node) .*(is not there|no node answers)
socket closed|chmod 0600 /run/millrace/node.sock|chmod 0666 /run/millrace/node.sock|^FAILURE +socket .*mode 0600
mode = sync|$(edit $cnf '/^pool = /i mode = sync')|$(back $cnf)|^(FAILURE|warning) +(waiting|openssl.cnf|asynchronous)
policy|millrace key policy www --remove-uid www-data|millrace key policy www --add-uid www-data|^FAILURE +policy .*does not let
CASES
machine_stop gateway-1
