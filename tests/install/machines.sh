# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Machines for the walk: containers on one bridge, each with a private copy of a clean Debian root.
# They are systemd-nspawn containers: booted (systemd is process 1) or with a stub as process 1, like a
# container without an init system. All belong to the namespaces that test-install.sh made, on a
# temporary file system of their own, and end with them.

# Reads LAB (a temporary file system), BASE (the clean root), ARTIFACTS, INIT (systemd or no-systemd).
declare -A LEADER SUPERVISOR ADDRESS
BRIDGE=millrace0
NETWORK=10.77.0

# Before the first machine: a hierarchy of control groups for nspawn, and the bridge.
lab_open() {
    # systemd of Debian 13 knows version 2 only; the namespace is ours, so this changes nothing outside.
    if [[ $(stat --file-system --format %T /sys/fs/cgroup) != cgroup2fs ]]; then
        umount --recursive /sys/fs/cgroup 2>/dev/null || umount --lazy /sys/fs/cgroup
        mount -t cgroup2 none /sys/fs/cgroup
    fi
    CONTROL=/sys/fs/cgroup/millrace-install.$$.$RANDOM
    mkdir "$CONTROL"
    mkdir -p /run/netns
    mount -t tmpfs none /run/netns
    ip link set lo up
    ip link add name "$BRIDGE" type bridge
    ip address add "$NETWORK.1/24" dev "$BRIDGE"
    ip link set "$BRIDGE" up
    ssh-keygen -q -t ed25519 -N '' -C lab -f "$LAB/ssh"
}

lab_close() {
    local name
    for name in "${!SUPERVISOR[@]}"; do machine_stop "$name"; done
    rmdir "$CONTROL" || true
}

# machine_start NAME NUMBER: starts a machine, with the last byte of its address.
machine_start() {
    local name=$1 number=$2 dir=$LAB/$1
    ADDRESS[$name]=$NETWORK.$number
    mkdir -p "$dir"/{upper,work,root}
    mount -t overlay "$name" -o "lowerdir=$BASE,upperdir=$dir/upper,workdir=$dir/work" "$dir/root"
    machine_files "$name"

    ip netns add "$name"
    ip link add name "veth$number" type veth peer name eth0 netns "$name"
    ip link set "veth$number" master "$BRIDGE" up
    ip -n "$name" link set lo up
    ip -n "$name" address add "$NETWORK.$number/24" dev eth0
    ip -n "$name" link set eth0 up

    mkdir "$CONTROL/$name"
    local start=(systemd-nspawn --quiet --register=no --keep-unit --console=pipe --resolv-conf=off
        --timezone=off --machine="$name" --directory="$dir/root" --network-namespace-path="/run/netns/$name"
        --capability=CAP_PERFMON --system-call-filter=perf_event_open
        --bind-ro="$PWD:/usr/src/millrace" --bind-ro="$ARTIFACTS:/usr/src/millrace/target/release")
    # For the tunnels of vpn.md.
    if [[ -e /dev/net/tun ]]; then start+=(--bind=/dev/net/tun --capability=CAP_NET_ADMIN); fi
    if [[ $INIT == systemd ]]; then start+=(--boot); else start+=(--as-pid2 sleep infinity); fi
    (
        echo "$BASHPID" >"$CONTROL/$name/cgroup.procs"
        # /proc/sys/net of a machine is its own: vpn.md sets how flows are spread.
        SYSTEMD_NSPAWN_API_VFS_WRITABLE=network exec "${start[@]}"
    ) </dev/null >"$dir/console" 2>&1 &
    SUPERVISOR[$name]=$!
    poll "machine $name starts" machine_leader "$name"
    poll "machine $name is up" machine_is_up "$name"
    if [[ $INIT != systemd ]]; then
        machine_exec "$name" root 'mkdir -p /run/sshd && /usr/sbin/sshd'
    fi
    poll "ssh of $name" ssh_answers "$name"
}

# What a fresh machine has beyond the root: names of the others, and ssh keys.
machine_files() {
    local root=$LAB/$1/root
    cat >"$root/etc/hosts" <<HOSTS
127.0.0.1 localhost
$NETWORK.11 node-1
$NETWORK.12 node-2
$NETWORK.21 gateway-1 www.example.org
HOSTS
    printf '%s\n' "$1" >"$root/etc/hostname"
    install -d -m 0700 "$root/root/.ssh"
    install -m 0600 "$LAB/ssh" "$root/root/.ssh/id_ed25519"
    install -m 0600 "$LAB/ssh.pub" "$root/root/.ssh/authorized_keys"
    printf 'StrictHostKeyChecking accept-new\nLogLevel ERROR\n' >"$root/root/.ssh/config"
}

# The machine's process 1: the only child of its supervisor.
machine_leader() {
    local supervisor=${SUPERVISOR[$1]} child
    [[ -d /proc/$supervisor ]] || fail "machine $1 ended: $(tail -n 5 "$LAB/$1/console")"
    child=$(<"/proc/$supervisor/task/$supervisor/children")
    child=${child%% *}
    [[ -n $child && $(<"/proc/$child/comm") != systemd-nspawn ]] || return 1
    LEADER[$1]=$child
}

machine_is_up() {
    [[ $INIT == systemd ]] || return 0
    local state
    state=$(machine_exec "$1" root 'systemctl is-system-running' 2>/dev/null) || true
    [[ $state == running || $state == degraded ]]
}

ssh_answers() { (exec 3<>"/dev/tcp/${ADDRESS[$1]}/22") 2>/dev/null; }

# machine_exec NAME USER SHELL-TEXT: a login shell of the user in the machine.
machine_exec() {
    nsenter --target "${LEADER[$1]}" --mount --uts --ipc --net --pid --cgroup --root --wd=/ -- \
        /usr/bin/env -i TERM=dumb LANG=C.UTF-8 /bin/su --login "$2" --command "$3"
}

machine_stop() {
    [[ -n ${SUPERVISOR[$1]:-} ]] || return 0
    kill -KILL "${LEADER[$1]:-${SUPERVISOR[$1]}}" 2>/dev/null || true
    wait "${SUPERVISOR[$1]}" 2>/dev/null || true
    unset "SUPERVISOR[$1]" "LEADER[$1]"
    umount --lazy "$LAB/$1/root" 2>/dev/null || true
    ip netns delete "$1" 2>/dev/null || true
    find "$CONTROL/$1" -depth -type d -exec rmdir {} \;
    rm -rf "${LAB:?}/$1"
}

# poll WHAT COMMAND...: until the command succeeds, for a minute at most.
poll() {
    local what=$1 end=$((SECONDS + 60))
    shift
    until "$@"; do
        ((SECONDS < end)) || fail "$what: not within a minute"
        sleep 0.1
    done
}
