#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Boots stock Debian kernels under an emulated QEMU with a device of `millrace virtio run`, and compares what the guest
# computed with OpenSSL: tests/vm/run.sh [--demo] [MILLRACE]. The device process is killed while the guest signs, and
# HW_READY is cleared and set. The backend kernel passes its tests in the guest, and a node with it signs for OpenSSL and
# for an nginx; another nginx in the guest has its key in a node of the host. Needs no root and no KVM. About two minutes
# per kernel.
# KERNEL='6.12*' boots these kernels alone, VERBOSE=1 shows what the guest prints.
# --demo boots the newest kernel only, with a node behind the device, and shows what the guest, the device and the node
# say.
set -euo pipefail
cd "$(dirname "$0")/../.."

demo=
if [[ ${1:-} == --demo ]]; then
    demo=1
    shift
fi
millrace=$(realpath "${1:-target/debug/millrace}")
root=$(realpath target/vm)
work=$(mktemp -d "${TMPDIR:-/tmp}/millrace-vm.XXXXXX")
device=
node=
cleanup() {
    [[ -n $node ]] && kill "$node" 2>/dev/null && wait "$node" 2>/dev/null
    # Twice: the second signal ends it although a machine may still be connected.
    [[ -n $device ]] && kill "$device" 2>/dev/null && kill "$device" 2>/dev/null && wait "$device" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
failures=0
complain() {
    printf 'vm: %s\n' "$*" >&2
    failures=$((failures + 1))
}

# Keys, digests and ciphertexts, and what OpenSSL makes of them.
keys=$work/keys
mkdir -p "$keys"
printf 'a message of the host' >"$keys/message"
head -c 32 /dev/urandom >"$keys/aes"
for hash in sha1 sha256 sha512; do openssl dgst "-$hash" -binary "$keys/message" >"$keys/$hash"; done
for bits in 1024 2048 4096; do
    openssl genpkey -quiet -algorithm RSA -pkeyopt "rsa_keygen_bits:$bits" -out "$keys/$bits.pem" 2>/dev/null ||
        openssl genrsa -out "$keys/$bits.pem" "$bits" 2>/dev/null
    openssl pkcs8 -topk8 -nocrypt -in "$keys/$bits.pem" -outform DER -out "$keys/$bits.pk8"
    openssl pkeyutl -encrypt -inkey "$keys/$bits.pem" -in "$keys/message" -out "$keys/$bits.sealed"
done
digits() { od -An -v -tx1 | tr -d ' \n'; }
gcc -O2 -static -Wall -o "$work/alg" tests/vm/alg.c

# Programs of this machine for the guest, with their libraries but the C library, which is the guest's.
programs=$work/programs
mkdir -p "$programs"/{bin,lib}
collect_programs() {
    local tests
    tests=$(cargo test -q -p millrace-backends --test kernel --no-run --message-format=json | python3 -c '
import json, sys
print(*[line["executable"] for line in map(json.loads, sys.stdin) if line.get("executable")])')
    strip -o "$programs/bin/kernel-tests" "$tests"
    strip -o "$programs/bin/millrace" "$millrace"
    strip -o "$programs/lib/millrace.so" "$(dirname "$millrace")/libmillrace_provider.so"
    cp "$(command -v openssl)" "$(PATH=$PATH:/usr/sbin command -v nginx)" "$programs/bin/"
    ldd "$programs"/bin/* "$programs"/lib/*.so | awk '/=> \// { print $3 }' | sort -u |
        grep -Ev '/(libc|libm|libdl|libpthread|librt)\.so' | xargs -I{} cp -L {} "$programs/lib/"
    openssl_conf "pool = unix:/run/node.sock" >"$programs/lib/openssl.cnf"
    openssl_conf "pool = tcp:10.0.2.2:$port" "tls_server_name = host" "tls_ca = /keys/certs/ca.pem" \
        "tls_cert = /keys/certs/cert.pem" "tls_key = /keys/certs/key.pem" >"$keys/host.cnf"
    cp tests/vm/nginx.conf "$keys/"
    openssl req -x509 -new -key "$keys/2048.pem" -subj /CN=www -days 2 -out "$keys/www.crt"
}
openssl_conf() { # SETTING...
    printf '%s\n' "openssl_conf = init" "[init]" "providers = providers" "[providers]" "default = own" \
        "millrace = millrace" "[own]" "activate = 1" "[millrace]" "activate = 1" \
        "module = /usr/lib/x86_64-linux-gnu/millrace.so" "$@"
}
# A node of the host, which guests reach over TCP by the emulator's network.
start_host_node() {
    export MILLRACE_STATE=$work/node MILLRACE_SOCKET=$work/node.sock
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    "$millrace" up --name host --listen-tcp "127.0.0.1:$port" >"$work/node.log" 2>&1 &
    node=$!
    for _ in $(seq 200); do "$millrace" status >/dev/null 2>&1 && break; sleep 0.1; done
    "$millrace" key import www "$keys/2048.pem" --allow-cert guest
    "$millrace" key stub www >"$keys/host-stub.pem"
    "$millrace" cert client guest -o "$keys/certs"
}
if [[ -z $demo ]]; then
    start_host_node
    collect_programs
fi

# The initial memory disk of one kernel, with its modules in the order of their dependencies.
ORDER=(virtio_ring virtio_pci_modern_dev virtio_pci_legacy_dev virtio virtio_pci pkcs8_key_parser af_alg
    algif_skcipher sha512_generic crypto_engine virtio_crypto failover net_failover virtio_net)
memory_disk() {
    local kernel=$1 disk=$work/disk-$1 module file
    mkdir -p "$disk"/{bin,usr/bin,modules,keys,lib64}
    for module in "${ORDER[@]}"; do
        file=$(find "$root/usr/lib/modules/$kernel" "$root/lib/modules/$kernel" -name "$module.ko*" 2>/dev/null | head -n 1)
        [[ -n $file ]] || continue # built in
        case $file in
            *.xz) xz -dc "$file" >"$disk/modules/$module.ko" ;;
            *) cp "$file" "$disk/modules/$module.ko" ;;
        esac
        printf '%s\n' "$module" >>"$disk/modules/order"
    done
    cp "$root/usr/bin/busybox" "$disk/bin/busybox"
    cp "$root/usr/bin/keyctl" "$disk/usr/bin/keyctl"
    # keyctl has its request-key configuration beside it and three libraries.
    mkdir -p "$disk/usr/lib/x86_64-linux-gnu"
    cp -L "$root"/usr/lib/x86_64-linux-gnu/{libkeyutils.so.1,libc.so.6,libm.so.6} "$disk/usr/lib/x86_64-linux-gnu/"
    ln -s usr/lib "$disk/lib"
    if [[ -z $demo ]]; then
        cp -r "$programs/bin" "$disk/"
        cp -r "$programs/lib/." "$disk/usr/lib/x86_64-linux-gnu/"
        # The suite looks for its vectors where it was built.
        mkdir -p "$disk$PWD/crates/testkit"
        cp -r vectors "$disk$PWD/"
    fi
    cp -L "$root/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" "$disk/lib64/"
    cp "$work/alg" "$disk/bin/alg"
    cp -r "$keys"/* "$disk/keys/"
    # nginx changes to a user by name.
    mkdir -p "$disk/etc"
    echo root:x:0:0:root:/:/bin/sh >"$disk/etc/passwd"
    echo root:x:0: >"$disk/etc/group"
    cp tests/vm/init "$disk/init"
    cp tests/vm/checks "$disk/checks"
    chmod +x "$disk/init"
    pack_disk "$disk" "$work/$kernel.cpio"
}

. tests/vm/emulator.sh

socket=$work/vm.sock
options=()
if [[ $demo ]]; then
    MILLRACE_STATE=$work/node "$millrace" up --socket "$work/node.sock" >"$work/node.log" 2>&1 &
    node=$!
    options=(--pool "unix:$work/node.sock")
fi
"$millrace" virtio run --socket-path "$socket" --identity vm "${options[@]}" >"$work/device.log" 2>&1 &
device=$!
status() { "$millrace" virtio status --socket-path "$socket" --json 2>/dev/null; }
for _ in $(seq 200); do
    status >/dev/null && break
    sleep 0.1
done
status >/dev/null || { cat "$work/device.log" >&2; exit 1; }

# Waits for a line of the guest.
guest_says() {
    for _ in $(seq 9000); do
        grep -q "^$1 " "$log" && return
        sleep 0.1
    done
    return 1
}
# Disturbs the guest where it says so.
disturb() {
    guest_says LOOP-START && kill -KILL "$(status | python3 -c 'import json, sys
print(json.load(sys.stdin)[0]["device-process"])')"
    guest_says DRAIN-START && "$millrace" virtio drain --socket-path "$socket"
    guest_says UNDRAIN-START && "$millrace" virtio drain --undo --socket-path "$socket"
}

expect() { # NAME VALUE
    local got
    got=$(sed -n "s/^$1 //p" "$log" | head -n 1)
    [[ $got == "$2" ]] || complain "$kernel: $1 is '${got:0:80}', wanted '${2:0:80}'"
}

# What the node in the guest says of the backend kernel in a line "NAME STATUS": whether it serves, and whether it has
# served a signature.
node_says() { # NAME WANTED
    local got
    got=$(sed -n "s/^$1 //p" "$log" | python3 -c '
import json, sys
status = json.load(sys.stdin)
kernel = next(row for row in status["backends"] if row["backend"] == "kernel")
served = any(row["backend"] == "kernel" and row["completed"] for row in status["operations"])
print(("serving" if kernel["devices"][0]["serving"] else "away") + ("-served" if served else ""))')
    [[ $got == "$2" ]] || complain "$kernel: $1: the backend is '$got', wanted '$2'"
}

# Number of operations that a node's status on standard input shows; those of one backend, if it is named.
completed() { # [BACKEND]
    python3 -c '
import json, sys
operations = json.load(sys.stdin)["operations"]
print(sum(row["completed"] for row in operations if sys.argv[1] in ("", row["backend"])))' "${1:-}"
}
of_guest() { sed -n "s/^$1 //p" "$log" | completed kernel; }

images=("$root"/boot/vmlinuz-${KERNEL:-*})
[[ $demo ]] && images=("${images[-1]}")
for image in "${images[@]}"; do
    kernel=${image##*/vmlinuz-}
    log=$work/$kernel.log
    : >"$log"
    memory_disk "$kernel"
    [[ $demo ]] || before=$("$millrace" status --json | completed)
    disturb &
    disturber=$!
    timeout 900 bash -c "$(declare -f emulator); root='$root'; emulator \"\$@\"" emulator \
        -machine q35,memory-backend=m -accel tcg -cpu max -smp 1 -m 1G \
        -object memory-backend-memfd,id=m,size=1G,share=on \
        -nodefaults -no-user-config -display none -no-reboot -serial stdio \
        -chardev "socket,id=c,path=$socket" \
        -netdev user,id=n -device virtio-net-pci,netdev=n,romfile= \
        -device vhost-user-test-device-pci,chardev=c,virtio-id=20,num_vqs=2,config_size=56,vq_size=1024 \
        -kernel "$image" -initrd "$work/$kernel.cpio" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check random.trust_cpu=on" \
        </dev/null 2>&1 | stdbuf -o0 tr -d '\r' >"$log" || complain "$kernel: the machine ended badly"
    kill "$disturber" 2>/dev/null || true
    wait "$disturber" 2>/dev/null || true
    [[ ${VERBOSE:-} ]] && cat "$log"
    expect DONE 0
    expect DRAINED 0
    expect SIGN-DRAINED 0
    grep -q '^UNDRAINED [1-9]' "$log" || complain "$kernel: the device did not come back"
    grep -q 'alg: .* failed' "$log" && complain "$kernel: $(grep -m 1 'alg: .* failed' "$log")"
    message=$(digits <"$keys/message")
    for bits in 1024 2048 4096; do
        for hash in sha1 sha256 sha512; do
            signature=$(openssl pkeyutl -sign -inkey "$keys/$bits.pem" -in "$keys/$hash" \
                -pkeyopt "digest:$hash" | digits)
            expect "SIGN-$bits-$hash" "$signature"
            expect "VERIFY-$bits-$hash" 0
        done
        # Some kernels leave PKCS#1 v1.5 decryption to the device, which has none for keys below 2048 bits.
        ((bits == 1024)) && continue
        expect "DECRYPT-$bits" "$message"
        expect "ENCRYPT-$bits" "$message"
    done
    for length in 16 32; do
        key=$(head -c "$length" "$keys/aes" | digits)
        sealed=$(head -c 4096 /dev/zero | openssl enc "-aes-$((length * 8))-cbc" -nopad -K "$key" \
            -iv 000102030405060708090a0b0c0d0e0f | digits)
        # Newer kernels hide ciphers of devices from programs.
        ((${kernel%%.*} >= 7)) && sealed="bind: No such file or directory"
        expect "AES-$length" "$sealed"
    done
    if [[ -z $demo ]]; then
        expect BACKEND 0
        expect NODE-SIGN "$(openssl pkeyutl -sign -inkey "$keys/2048.pem" -in "$keys/sha256" -pkeyopt digest:sha256 |
            digits)"
        node_says NODE-UP serving-served
        expect TLS-KERNEL 10
        expect TLS-HOST 10
        (($(of_guest NODE-TLS) - $(of_guest NODE-UP) >= 10)) || complain "$kernel: the kernel signed no ten handshakes"
        (($("$millrace" status --json | completed) - before >= 10)) || complain "$kernel: the host signed no ten handshakes"
        node_says NODE-DRAINED away-served
        node_says NODE-UNDRAINED serving-served
        grep '^RATE ' "$log" | sed "s/^/vm: $kernel: backend kernel, emulated: /"
    fi
    grep -q LOOP-FAILED "$log" && complain "$kernel: a signature of the loop failed"
    # "Signing works" proves nothing: without the device the guest signs in software.
    served=$(status | python3 -c '
import json, sys
counters = json.load(sys.stdin)[0]["statistics"]
names = ["asym-decrypt-ops", "asym-sign-ops", "asym-encrypt-ops", "asym-verify-ops", "sym-encrypt-ops"]
print(*[counters[name] for name in names], counters["failed"], counters["sessions-refused"])')
    read -r decrypted signed encrypted verified ciphered failed refused <<<"$served"
    # The counters begin again with the device process, which was killed in the loop of 100.
    ((decrypted + signed >= 40)) ||
        complain "$kernel: the device did $((decrypted + signed)) private operations: the guest worked alone"
    printf 'vm: %s: %s; %s; so far %s\n' "$kernel" "$(grep -m 1 ^REGISTERED "$log")" \
        "$(grep -m 1 '^LOOP [0-9]' "$log")" \
        "$decrypted raw, $signed signed, $encrypted encrypted, $verified verified, $ciphered ciphers, $failed failed, $refused refused"
done
restarts=$(status | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["restarts"])')
((restarts == ${#images[@]})) || complain "the device process was killed ${#images[@]} times and started again $restarts times"
if [[ $demo ]]; then
    printf '\nIn the guest (%s), which knows nothing of Millrace:\n' "$kernel"
    grep -E '^(KERNEL|REGISTERED|LOOP [0-9]|DRAINED|UNDRAINED)' "$log"
    printf '\nThe device, since its process was killed in the loop:\n'
    "$millrace" virtio status --socket-path "$socket"
    printf '\nThe node behind it:\n'
    "$millrace" status --socket "$work/node.sock"
    ((failures)) || exit 0
fi
if ((failures)); then
    tail -n 40 "$work/device.log" >&2
    cp "$work"/*.log "${LOGS:-/tmp}" 2>/dev/null || true
    exit 1
fi
echo "vm: every answer is that of OpenSSL"
