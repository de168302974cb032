#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Builds the provider and the preload library for 64-bit Arm, and beside the libcrypto of Debian 12 or 13 one of the
# same version without assembly, as firmwares of routers ship it, for tests under user emulation: scripts/arm.sh
# bookworm|trixie. Prints the folder, which MILLRACE_TEST_ARM names to the tests:
#
#   millrace.so   the provider of this tree
#   preload.so    the preload library of this tree
#   fast/  slow/  the libraries: the release's, and with the slow libcrypto in place of the release's
#   openssl       the program of the release
#   run           run PROGRAM [ARGUMENT...]: a program for Arm, `openssl` that of the release, on the libraries in fast/
#                 or in the folder that ARM_LIBRARIES names
#   cc            the compiler, with the headers and libraries of OpenSSL 3.0
#
# Nothing is installed: compilers for both processors, Rust's standard library for Arm and the emulator come from
# Debian unstable into target/arm. That takes 2 GB; the first run some ten minutes of two processors.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=${1:-bookworm}
case $suite in
    bookworm) libraries=(libssl3:arm64) ;;
    trixie) libraries=(libssl3t64:arm64 zlib1g:arm64 libzstd1:arm64) ;;
    *) echo "usage: scripts/arm.sh bookworm|trixie" >&2; exit 2 ;;
esac
TRIPLE=aarch64-linux-gnu
tools=target/arm/tools
headers=$PWD/target/arm/headers
release=$PWD/target/arm/$suite
out=$PWD/target/arm/built/$suite

scripts/unpack-debian.sh sid "$tools" rustc cargo gcc libc6-dev make perl qemu-user dash sed grep gawk coreutils \
    gcc-$TRIPLE libc6-dev-arm64-cross --alone libstd-rust-dev:arm64
scripts/unpack-debian.sh bookworm "$headers" --alone libssl3:arm64 libssl-dev:arm64
scripts/unpack-debian.sh "$suite" "$release" --alone openssl:arm64 "${libraries[@]}"

# Cargo's variables spell the target in two ways; build scripts run on this machine, by the root's own compiler.
cargo=${CARGO_HOME:-$HOME/.cargo}
export MILLRACE_ROOT_BINDS=$cargo
# With this machine's cargo, whose registry it shares: the root has no certificates.
cargo fetch --locked --quiet
env -u RUSTUP_TOOLCHAIN -u RUSTFLAGS PATH=/usr/bin:/usr/sbin:/bin:/sbin CARGO_HOME="$cargo" \
    CARGO_TARGET_DIR="$PWD/target/arm/cargo" CC=gcc CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=gcc \
    CC_aarch64_unknown_linux_gnu=$TRIPLE-gcc AR_aarch64_unknown_linux_gnu=$TRIPLE-ar \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$TRIPLE-gcc \
    AARCH64_UNKNOWN_LINUX_GNU_OPENSSL_INCLUDE_DIR="$headers/usr/include" \
    AARCH64_UNKNOWN_LINUX_GNU_OPENSSL_LIB_DIR="$headers/usr/lib/$TRIPLE" \
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG=false \
    scripts/in-root.sh "$tools" cargo build --quiet --release --locked --offline \
    --target aarch64-unknown-linux-gnu -p millrace-provider -p millrace-preload >&2
slow=$(scripts/slow-openssl.sh "$suite" "$tools")

mkdir -p "$out/fast" "$out/slow"
install -m 755 target/arm/cargo/aarch64-unknown-linux-gnu/release/libmillrace_provider.so "$out/millrace.so"
install -m 755 target/arm/cargo/aarch64-unknown-linux-gnu/release/libmillrace_preload.so "$out/preload.so"
ln -sf "$release/usr/bin/openssl" "$out/openssl"
for library in "$release/usr/lib/$TRIPLE"/lib*.so.*; do
    ln -sf "$library" "$out/fast/"
    ln -sf "$library" "$out/slow/"
done
ln -sf "$slow/libcrypto.so.3" "$out/slow/"
cat >"$out/run" <<RUN
#!/bin/sh
# Cargo's own, for programs of this machine.
unset LD_LIBRARY_PATH
libraries=\${ARM_LIBRARIES:-$out/fast}
export OPENSSL_CONF="\${OPENSSL_CONF:-$release/etc/ssl/openssl.cnf}"
[ "\$1" != openssl ] || { shift; set -- "$release/usr/bin/openssl" "\$@"; }
exec "$PWD/scripts/in-root.sh" "$PWD/$tools" qemu-aarch64 -E LD_LIBRARY_PATH="\$libraries" -L /usr/$TRIPLE "\$@"
RUN
cat >"$out/cc" <<CC
#!/bin/sh
exec "$PWD/scripts/in-root.sh" "$PWD/$tools" $TRIPLE-gcc -I"$headers/usr/include" \\
    -I"$headers/usr/include/$TRIPLE" "\$@" -L"$headers/usr/lib/$TRIPLE"
CC
chmod +x "$out/run" "$out/cc"
printf '%s\n' "$out"
