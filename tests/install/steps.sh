# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The words in which the walk is written.

step() { printf '%4s s  %s\n' "$SECONDS" "$*"; }

fail() {
    printf 'test-install: FAILED: %s\n' "$*" >&2
    local name
    for name in "${!LEADER[@]}"; do
        [[ $INIT == systemd ]] || continue
        printf -- '--- last lines of the journal of %s\n' "$name" >&2
        machine_exec "$name" root 'journalctl --no-pager --lines 25' >&2 || true
    done
    exit 1
}

# on MACHINE NAME [FOLDER]: runs the fence of the guides there, as its user, in the user's home or in the folder.
# What it prints is in $OUTPUT.
OUTPUT=
on() {
    local machine=$1 name=$2 folder=${3:-.} user status=0
    user=$(guide_user "$name")
    [[ -n $user ]] || fail "the guides have no fence $name"
    printf '%s\n' "$name" >>"$USED"
    step "$machine: $name"
    guide_text "$name" >"$LAB/$machine/root/var/tmp/$name.sh"
    execute "$machine" "$user" "cd $folder && bash -e /var/tmp/$name.sh" "$name" || status=$?
    ((status == 0)) || fail "$name on $machine: status $status"
}

# run MACHINE SHELL-TEXT: runs something that no guide says, as root.
run() {
    local status=0
    execute "$1" root "$2" "$2" || status=$?
    ((status == 0)) || fail "on $1: $2: status $status"
}

# execute MACHINE USER SHELL-TEXT WHAT: output to $OUTPUT. To a file first: programs that the text leaves in
# the background keep it open.
execute() {
    local log=$LAB/$1/output status=0
    timeout --kill-after 5 180 bash -c '
        . tests/install/machines.sh
        LEADER[$1]=$5
        machine_exec "$1" "$2" "$3"' bash "$1" "$2" "$3" "$4" "${LEADER[$1]}" </dev/null >"$log" 2>&1 || status=$?
    OUTPUT=$(<"$log")
    if ((status != 0)); then
        printf -- '--- %s on %s printed:\n%s\n---\n' "$4" "$1" "$OUTPUT" >&2
    fi
    return "$status"
}

# place MACHINE NAME FILE: appends the fence to a configuration file there.
place() {
    printf '%s\n' "$2" >>"$USED"
    guide_text "$2" >"$LAB/text"
    [[ -s $LAB/text ]] || fail "the guides have no fence $2"
    cat "$LAB/text" >>"$LAB/$1/root$3"
}

# printed TEXT: what ran last printed it.
printed() { [[ $OUTPUT == *"$1"* ]] || fail "'$1' is not in what was printed: $OUTPUT"; }

# all_used: every fence that counts in a walk of this kind was used.
all_used() {
    local left
    left=$(comm -13 <(sort -u "$USED") <(guide_due "$INIT" "debian$RELEASE"))
    [[ -z $left ]] || fail "fences of the guides that the walk does not use: ${left//$'\n'/, }"
}
