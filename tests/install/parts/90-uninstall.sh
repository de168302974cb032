# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# docs/guide/upgrading.md, removal.

fresh_machine gateway-1 21
run gateway-1 'find / -xdev -newer /var/tmp/install.sh -type f -not -path "/proc/*" -not -path "/var/log/*" -not -path "/run/*" -path "*millrace*"'
on gateway-1 uninstall "$SOURCE"
run gateway-1 'find /usr /etc/systemd -xdev -not -path "/usr/src/*" -name "*millrace*" -not -path "*/millrace.service.d*"; pgrep -x millrace || true'
[[ -z $OUTPUT ]] || fail "make uninstall leaves: $OUTPUT"
run gateway-1 'ls /etc/millrace/kek /var/lib/millrace'
run gateway-1 "cd $SOURCE && make uninstall PURGE=yes"
run gateway-1 'find /usr /etc /var /run -xdev -not -path "/usr/src/*" -name "*millrace*" -not -path "*/millrace.service.d*"'
[[ -z $OUTPUT ]] || fail "make uninstall PURGE=yes leaves: $OUTPUT"
machine_stop gateway-1
