# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# docs/guide/upgrading.md, removal.

fresh_machine gateway-1 21
on gateway-1 haproxy-key
place gateway-1 haproxy-lines /etc/haproxy/haproxy.cfg
answer_ok gateway-1
if [[ $INIT == systemd ]]; then
    on gateway-1 haproxy-restart
    on gateway-1 uninstall-haproxy
else
    stop_node gateway-1
fi
on gateway-1 uninstall "$SOURCE"
run gateway-1 'find /usr /etc/systemd -xdev -not -path "/usr/src/*" -name "*millrace*" -not -path "*/millrace.service.d*"; pgrep -x millrace || true'
[[ -z $OUTPUT ]] || fail "make uninstall leaves: $OUTPUT"
run gateway-1 'ls /etc/millrace/kek /var/lib/millrace'
run gateway-1 "cd $SOURCE && make uninstall PURGE=yes"
# A mount point in HAProxy's chroot is systemd's, or the administrator's.
run gateway-1 'find /usr /etc /var /run -xdev -not -path "/usr/src/*" -not -path "/var/lib/haproxy/*" -name "*millrace*" -not -path "*/millrace.service.d*"'
[[ -z $OUTPUT ]] || fail "make uninstall PURGE=yes leaves: $OUTPUT"
if [[ $INIT == systemd ]]; then handshakes gateway-1 50 "HAProxy without Millrace"; fi
machine_stop gateway-1
