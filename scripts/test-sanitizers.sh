#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The compression library under AddressSanitizer: the tests of its two crates; zlib's own test programs, built with
# the address and the undefined-behaviour sanitizer, over the library; and nginx with it, across a reload. Rust and
# libdeflate are instrumented; ISA-L and nginx are not, their calls of libc are watched. The stable compiler has the
# sanitizer's runtime and takes the flag with RUSTC_BOOTSTRAP. Arguments go to cargo (CI: --locked).
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== sanitizers: %s\n' "$*"; }
skip() {
    printf '\n== sanitizers: SKIPPED: %s\n' "$1" >&2
    if [[ ${CI:-} == true ]]; then exit 1; fi
    printf 'sanitizers: %s\tall (scripts/test-sanitizers.sh)\n' "$1" >>"${MILLRACE_SKIPPED:-/dev/null}"
    exit 0
}

host=$(rustc -vV | sed -n 's/^host: //p')
runtime=$(find "$(rustc --print sysroot)/lib/rustlib/$host/lib" -name 'librustc-*_rt.asan.a' -print -quit)
[[ -n $runtime ]] || skip "this compiler has no runtime of AddressSanitizer"
asan=$(realpath "$(gcc -print-file-name=libasan.so)")
[[ -f $asan ]] || skip "gcc has no libasan"
examples=/usr/share/doc/zlib1g-dev/examples
[[ -f $examples/minigzip.c ]] || skip "no source of zlib's test programs"

export RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$PWD/target/sanitizers
export CARGO_ENCODED_RUSTFLAGS=-Zsanitizer=address
export "CFLAGS_${host//-/_}=-fsanitize=address"
# zlib and the servers leave memory to the end of the process; the tests look for leaks by themselves.
# gcc gives a constant of libdeflate that two files include two registrations under one name.
export ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0:abort_on_error=1 UBSAN_OPTIONS=halt_on_error=1

step "tests of the crates"
cargo test --lib --tests --target "$host" -p millrace-deflate -p millrace-zlib "$@"
cargo build --target "$host" -p millrace-zlib "$@"
library=$CARGO_TARGET_DIR/$host/debug/libmillrace_zlib.so
symbols=$(nm -D "$library")
[[ $symbols == *__asan_init* ]] || { echo "$library is not instrumented" >&2; exit 1; }

work=$(mktemp -d)
nginx=
cleanup() {
    if [[ -n $nginx ]]; then kill "$nginx" 2>/dev/null || true; wait "$nginx" 2>/dev/null || true; fi
    rm -rf "$work"
}
trap cleanup EXIT
loaded=(env LD_PRELOAD="$asan:$library" MILLRACE_GZIP_VERIFY=all)

step "zlib's test programs"
for program in example minigzip; do
    gcc -w -O1 -g -fsanitize=address,undefined -o "$work/$program" "$examples/$program.c" -lz
done
(cd "$work" && "${loaded[@]}" MILLRACE_GZIP=any ./example >example.out)
grep -q 'inflate with dictionary: hello, hello!' "$work/example.out"
pages=$work/pages
mkdir "$pages"
# Text, bytes that do not compress, and the ends of the lengths at which the library changes its ways.
cat crates/*/src/*.rs >"$work/text"
gzip -9 <"$work/text" >"$work/packed"
for kind in text packed; do
    for length in 1 1024 8192 32768 131072 400000; do
        head -c "$length" "$work/$kind" >"$pages/$kind-$length.html"
    done
done
for page in "$pages"/*; do
    for level in 1 2 6 9; do
        "${loaded[@]}" MILLRACE_GZIP=any "$work/minigzip" "-$level" -c "$page" | gzip -d | cmp - "$page"
    done
done

step "nginx"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
{
    if ((EUID == 0)); then echo 'user root root;'; fi
    printf 'daemon off; worker_processes 2; pid nginx.pid; error_log error.log;\nevents {}\nhttp { access_log off;
        types { text/html html; } gzip on; gzip_min_length 0; server { listen 127.0.0.1:%s;\n' "$port"
    for level in 1 2 6 9; do
        printf 'location /%s/ { gzip_comp_level %s; alias %s/; }\n' "$level" "$level" "$pages"
    done
    echo '} }'
} >"$work/server.conf"
"${loaded[@]}" nginx -p "$work" -e error.log -c server.conf &
nginx=$!
curl --silent --retry 60 --retry-delay 1 --retry-connrefused -o /dev/null "http://127.0.0.1:$port/1/text-1.html"
for round in before after; do
    for page in "$pages"/*; do
        for level in 1 2 6 9; do
            url=http://127.0.0.1:$port/$level/$(basename "$page")
            curl --silent --fail --max-time 60 -H 'Accept-Encoding: gzip' "$url" | gzip -d | cmp - "$page"
        done
    done
    if [[ $round == before ]]; then kill -HUP "$nginx"; fi
done
grep -qs libmillrace_zlib "/proc/$nginx/maps"
kill -QUIT "$nginx"
wait "$nginx"
nginx=
if grep -E 'alert|emerg|Sanitizer|signal' "$work/error.log"; then exit 1; fi
printf '\n== sanitizers: passed\n'
