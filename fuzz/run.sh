#!/bin/sh
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Fuzzes every target, or those that are named, for some seconds each.
#
#   fuzz/run.sh [SECONDS] [TARGET...]        default: 60 seconds, every target of fuzz/Cargo.toml
#
# SECONDS and TARGET may also come as SECS and TARGET from the environment.
#
# Needs the stable toolchain and a C++ compiler, no cargo-fuzz: the compiler's own coverage pass is
# switched on with the flags that cargo-fuzz uses, and libfuzzer-sys brings the engine.
#
#   FUZZ_ASAN=1    also with AddressSanitizer, for targets that reach unsafe code. It asks the stable
#                  compiler for an unstable flag (RUSTC_BOOTSTRAP=1).
#   FUZZ_JOBS=n    processes per target, default 1.
#
# The corpus of a target is fuzz/corpus/TARGET: files seed-* are kept in the repository, what the fuzzer
# finds is not. Targets that read private keys start from those of crates/testkit, too. A crash is kept in
# fuzz/artifacts/TARGET, and the command that repeats it is printed.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
secs=${1:-${SECS:-60}}
case $secs in
    '' | *[!0-9]*) echo "usage: fuzz/run.sh [SECONDS] [TARGET...]" >&2; exit 2 ;;
esac
[ $# -eq 0 ] || shift
all=$(sed -n '/^\[\[bin\]\]/,/^path/s/^name = "\(.*\)"$/\1/p' "$here/Cargo.toml")
# shellcheck disable=SC2086 # words are meant
[ $# -gt 0 ] || set -- ${TARGET:-$all}

host=$(rustc -vV | sed -n 's/^host: //p')
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
if [ "${FUZZ_ASAN:-0}" = 1 ]; then
    export RUSTC_BOOTSTRAP=1
    flags="$flags -Zsanitizer=address"
fi
# shellcheck disable=SC2086 # words are meant
flags=$(echo $flags)

bins=
for target in "$@"; do
    # shellcheck disable=SC2086,SC2116 # joins the lines
    case " $(echo $all) " in
        *" $target "*) bins="$bins --bin $target" ;;
        *) echo "fuzz: no target \"$target\"; there are: $(echo $all)" >&2; exit 2 ;;
    esac
done
# --target keeps the flags away from build scripts and procedural macros.
# shellcheck disable=SC2086 # words are meant
RUSTFLAGS="$flags" cargo build --release --manifest-path "$here/Cargo.toml" \
    --target-dir "$here/target" --target "$host" $bins

# Some targets write files, in every run.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
export TMPDIR="$scratch"

failed=
for target in "$@"; do
    corpus=$here/corpus/$target
    artifacts=$here/artifacts/$target
    program=$here/target/$host/release/$target
    mkdir -p "$corpus" "$artifacts"
    seeds=
    case $target in
        pem_private_key | pkcs8_open_key) seeds=$here/../crates/testkit/keys ;;
    esac
    case $target in
        # Decided before the target's first line: take every stream, verify each output.
        compression_calls) export MILLRACE_GZIP=any MILLRACE_GZIP_VERIFY=all ;;
        *) unset MILLRACE_GZIP MILLRACE_GZIP_VERIFY ;;
    esac
    log=$artifacts/log
    options="-max_total_time=$secs -max_len=70000 -timeout=10 -rss_limit_mb=2048
        -print_final_stats=1 -verbosity=1 -artifact_prefix=$artifacts/"
    [ "${FUZZ_JOBS:-1}" = 1 ] || options="$options -fork=$FUZZ_JOBS"
    echo "fuzz: $target for $secs s"
    # shellcheck disable=SC2086 # words are meant
    if "$program" $options "$corpus" ${seeds:+"$seeds"} >"$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        cover=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
        echo "fuzz: $target: no crash (${runs:-?} runs, ${cover:-?} edges covered)"
    else
        failed="$failed $target"
        tail -n 40 "$log" >&2
        input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
        echo "fuzz: $target: CRASH. Repeat with: $program ${input:-INPUT}" >&2
    fi
done
[ -z "$failed" ] || { echo "fuzz: failed:$failed" >&2; exit 1; }
