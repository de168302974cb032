#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Builds OpenSSL's test program evp_test, which runs the recipes of its test suite through whatever provider a
# configuration names, against a libcrypto that is already there: scripts/evp-test.sh [ROOT] takes that of the release
# unpacked in ROOT, without an argument that of this machine. Prints the folder: the program is in evp_test, the
# recipes are in recipes/, default.cnf names OpenSSL's own provider alone. The source is that of the same Debian release; nothing of it is built but the program,
# and it is linked with a counters.c of ours, which writes down what Millrace's provider has computed.
set -euo pipefail
cd "$(dirname "$0")/.."

if (($# > 0)); then
    suite=trixie
    libraries=$1/usr/lib
else
    suite=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    libraries=/usr/lib
fi
library=$(find "$libraries/$(uname -m)-linux-gnu" -maxdepth 1 -name 'libcrypto.so.3' -print -quit)
[[ -n $library ]] || { echo "evp-test: no libcrypto in $libraries" >&2; exit 1; }
root=$PWD/target/openssl-$suite
scripts/unpack-debian.sh "$suite" "$root" --source openssl

source=$root/usr/src/openssl
built=$root/built
program=$built/evp_test
# Two tests may want it at once.
exec 9>"$root.lock"
flock 9
if [[ ! -x $program || $program -ot tests/clients/evp_counters.c || $program -ot $source ]]; then
    rm -rf "$built"
    mkdir -p "$built"
    log=$built/log
    {
        # Only the headers that are generated, and not among the sources: openssl-release.sh takes those for another
        # release.
        mkdir "$built/headers"
        (cd "$built/headers" && perl "$source/Configure" "linux-$(uname -m)" no-tests && make build_generated)
        compile=(cc -w -O1 -DNO_LEGACY_MODULE -DOPENSSL_SUPPRESS_DEPRECATED
            "-I$built/headers/include" "-I$source/include" "-I$source/apps/include" "-I$source")
        (cd "$built" && "${compile[@]}" -c "$source"/test/testutil/*.c "$source/apps/lib/opt.c")
        # A library: a program takes what it does not define itself.
        ar rc "$built/testutil.a" "$built"/*.o
        "${compile[@]}" -o "$built/new" "$source/test/evp_test.c" tests/clients/evp_counters.c \
            "$built/testutil.a" "$library" -Wl,--allow-shlib-undefined
    } >"$log" 2>&1 9>&- || { tail -n 20 "$log" >&2; exit 1; }
    ln -s "$source/test/recipes/30-test_evp_data" "$built/recipes"
    ln -s "$source/test/default.cnf" "$built/"
    mv "$built/new" "$program"
fi
printf '%s\n' "$built"
