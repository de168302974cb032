#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Other people's test suites without and with Millrace, on Debian 12 and 13; fails unless all their tests end in the same
# way, or tests/judges/differences.tsv says why not:
#
#   scripts/judges.sh [SUITE...] [--release bookworm|trixie] [--modes local,pool,stubs,both] [--only TESTS]
#       [--json FILE] [--write] [--jobs N]
#
# The suites are those of the releases' packages and of their sources, unpacked into target/judges-RELEASE the first time
# (1 GB each). docs/judges.md says which there are. MILLRACE_ARTIFACTS names another folder than target/debug.
set -euo pipefail
cd "$(dirname "$0")/.."

unpack() {
    local release=$1 python=$2 ruby=$3
    scripts/unpack-debian.sh "$release" "target/judges-$release" bash coreutils curl dash grep haproxy \
        libio-socket-ssl-perl libnet-ssleay-perl "libpython$python-testsuite" libtest-exception-perl \
        libtest-nowarnings-perl libtest-warn-perl nodejs openssl perl procps python3 "ruby" sed socat varnish \
        --source haproxy libio-socket-ssl-perl libnet-ssleay-perl nodejs "ruby$ruby"
}
unpack bookworm 3.11 3.1
unpack trixie 3.13 3.3
exec python3 -B tests/judges/judges.py "$@"
