#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Other people's test suites without and with Millrace, on Debian 12 and 13; fails unless all their tests end in the
# same way, or tests/judges/differences.tsv says why not:
#
#   scripts/judges.sh [SUITE...] [--release bookworm|trixie] [--modes local,pool,stubs,both,async] [--only TESTS]
#       [--json FILE] [--write] [--jobs N]
#
#   scripts/judges.sh --quick    a part of Python's on this machine, in seconds
#
# The suites are those of the releases' packages and of their sources, unpacked into target/judges-RELEASE the first
# time (1 GB each). docs/judges.md says which there are. NGINX_TESTS names a folder with a copy of nginx's tests, which no
# registry has; they run only then. MILLRACE_ARTIFACTS names another folder than target/debug.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:-} == --quick ]]; then
    python=$(/usr/bin/python3 -c 'import sys; print("%s.%s" % sys.version_info[:2])')
    release=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    scripts/unpack-debian.sh "$release" target/judges-machine --alone "libpython$python-testsuite" \
        "libpython$python-stdlib" || {
        [[ ${CI:-} != true ]] || exit 1
        reason="no package with Python's tests"
        printf 'judges: SKIPPED: %s\n' "$reason" >&2
        printf '%s\ta part of them without and with Millrace (scripts/judges.sh)\n' "$reason" \
            >>"${MILLRACE_SKIPPED:-/dev/null}"
        exit 0
    }
    exec python3 -B tests/judges/judges.py python --release machine --modes local,both --jobs 3 \
        --json target/judges/quick.json \
        --only '*test_hmac*,*ContextTests*,*ThreadedTests.test_echo,*ThreadedTests.test_tls1_3'
fi
unpack() {
    local release=$1 python=$2 ruby=$3
    scripts/unpack-debian.sh "$release" "target/judges-$release" bash coreutils curl dash grep haproxy \
        libc-bin libio-socket-ssl-perl libnet-ssleay-perl libnginx-mod-mail libnginx-mod-stream \
        "libpython$python-testsuite" libtest-exception-perl libtest-nowarnings-perl libtest-warn-perl nginx nodejs \
        openssl perl procps python3 ruby sed socat varnish \
        --source haproxy libio-socket-ssl-perl libnet-ssleay-perl nodejs "ruby$ruby"
}
unpack bookworm 3.11 3.1
unpack trixie 3.13 3.3
exec python3 -B tests/judges/judges.py "$@"
