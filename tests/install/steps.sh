# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The words in which the walk is written.

step() { printf '%4s s  %s\n' "$SECONDS" "$*"; }

fail() {
    local name
    for name in "${!LEADER[@]}"; do
        [[ $INIT == systemd ]] || continue
        printf -- '--- last lines of the journal of %s\n' "$name" >&2
        machine_exec "$name" root 'journalctl --no-pager --lines 200' |
            grep -Ev ' (su|sudo|sshd)\[|"GET / HTTP' | tail -n 25 >&2 || true
    done
    printf 'test-install: FAILED: %s\n' "$*" >&2
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

# leave MACHINE NAME: runs a fence whose command goes on until it is ended, and leaves it in the background.
leave() {
    printf '%s\n' "$2" >>"$USED"
    step "$1: $2, in the background"
    guide_text "$2" >"$LAB/$1/root/var/tmp/$2.sh"
    execute "$1" "$(guide_user "$2")" "nohup bash -e /var/tmp/$2.sh >/var/tmp/$2.log 2>&1 &" "$2" || fail "$2 on $1"
}

# run MACHINE SHELL-TEXT: runs something that no guide says, as root.
run() {
    local status=0
    execute "$1" root "$2" "$2" || status=$?
    ((status == 0)) || fail "on $1: $2: status $status"
}

# execute MACHINE USER SHELL-TEXT WHAT: output to $OUTPUT. To a file first: programs that the text leaves in
# the background keep it open, so each call has its own.
execute() {
    local log status=0
    log=$(mktemp "$LAB/$1/output.XXXXXX")
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

# prepend MACHINE NAME FILE: puts the fence at the top of a configuration file there.
prepend() {
    local file=$LAB/$1/root$3
    cp "$file" "$LAB/rest"
    : >"$file"
    place "$@"
    cat "$LAB/rest" >>"$file"
}

# look MACHINE NAME: runs a fence of commands that only report: they may end with "something was found".
look() {
    local user
    user=$(guide_user "$2")
    printf '%s\n' "$2" >>"$USED"
    step "$1: $2"
    guide_text "$2" >"$LAB/$1/root/var/tmp/$2.sh"
    execute "$1" "$user" "bash /var/tmp/$2.sh; true" "$2" || fail "$2 on $1"
    ! grep -E '^error:|panicked' <<<"$OUTPUT" || fail "$2 on $1: $(grep -E '^error:|panicked' <<<"$OUTPUT")"
}

# printed TEXT: what ran last printed it.
printed() { [[ $OUTPUT == *"$1"* ]] || fail "'$1' is not in what was printed: $OUTPUT"; }

# all_used: every fence that counts in a walk of this kind was used.
all_used() {
    local left
    left=$(comm -13 <(sort -u "$USED") <(guide_due "$INIT" "debian$RELEASE"))
    [[ -z $left ]] || fail "fences of the guides that the walk does not use: ${left//$'\n'/, }"
}

# --- machines of the guides

SOURCE=/usr/src/millrace

# fresh_gateway NAME NUMBER: a machine on which Millrace is installed, with a site's key and certificate where the
# guides expect them.
fresh_gateway() {
    local root=$LAB/$1/root
    machine_start "$1" "$2"
    install -m 0640 "$LAB/www.key" "$root/etc/ssl/private/www.pem"
    install -m 0644 "$LAB/www.crt" "$root/etc/ssl/certs/www.crt"
    # What the load expects as an answer.
    printf ok >"$root/var/www/html/index.html"
    on "$1" install "$SOURCE"
}

# fresh_machine NAME NUMBER: the same, with a running node.
fresh_machine() {
    fresh_gateway "$@"
    if [[ $INIT == systemd ]]; then
        allow_unlocked_memory "$1"
        on "$1" start-node
    else
        start_by_hand "$1"
    fi
}

start_by_hand() {
    on "$1" start-node-by-hand
    poll "the node's socket" test -S "/proc/${LEADER[$1]}/root/run/millrace/node.sock"
}

# Raising the limit on locked memory takes CAP_SYS_RESOURCE, which containers often lack: the unit then runs
# without --lock-memory, and otherwise as it is.
allow_unlocked_memory() {
    if (ulimit -l unlimited) 2>/dev/null; then return; fi
    step "$1: memory cannot be locked here: millrace.service runs without --lock-memory"
    run "$1" '
        mkdir -p /etc/systemd/system/millrace.service.d
        { printf "[Service]\nExecStart=\n"; sed -n "s/ --lock-memory//p" /usr/local/lib/systemd/system/millrace.service; } \
            >/etc/systemd/system/millrace.service.d/unlocked.conf
        systemctl daemon-reload'
}

# new_authority: one that clients of the sites trust, in $LAB/ca.pem.
new_authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=lab authority" \
        -keyout "$LAB/ca.key" -out "$LAB/ca.pem" 2>/dev/null
}

# issue NAME: a site's key $LAB/NAME.key (RSA-2048) and its certificate $LAB/NAME.crt.
issue() {
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=www.example.org \
        -addext subjectAltName=DNS:www.example.org,DNS:localhost -addext basicConstraints=critical,CA:FALSE \
        -CA "$LAB/ca.pem" -CAkey "$LAB/ca.key" -keyout "$LAB/$1.key" -out "$LAB/$1.crt" 2>/dev/null
}

# plain_site MACHINE: nginx serves the site with the key that lies on the gateway.
plain_site() {
    printf '%s\n' 'server {' '    listen 443 ssl;' '    ssl_certificate /etc/ssl/certs/www.crt;' \
        '    ssl_certificate_key /etc/ssl/private/www.pem;' '    root /var/www/html;' '}' \
        >"$LAB/$1/root/etc/nginx/conf.d/www.conf"
}

# answer_ok MACHINE: the frontend at the end of haproxy.cfg answers as the load expects.
answer_ok() {
    printf '    http-request return status 200 content-type text/plain string ok\n' \
        >>"$LAB/$1/root/etc/haproxy/haproxy.cfg"
}

# pooled_and_asynchronous: the check that ran last says so of all of its handshakes.
pooled_and_asynchronous() {
    grep -Eq '^ok +pooled +(yes|([0-9]+) of \2 )' <<<"$OUTPUT" || fail "not all pooled: $OUTPUT"
    grep -Eq '^ok +asynchronous +(yes|([0-9]+) of \2 )' <<<"$OUTPUT" || fail "not all asynchronous: $OUTPUT"
}

# --- full handshakes from outside, under way while something else happens

# load_start MACHINE
load_start() {
    coproc LOAD { "$HANDSHAKES" "$LAB/ca.pem" "${ADDRESS[$1]}:443" 2; }
    LOAD_PID=$!
    load_more 20
}

# load_count: reads the counts so far into COMPLETED, FAILED.
load_count() {
    local line
    echo >&"${LOAD[1]}"
    read -r -t 60 line <&"${LOAD[0]}" || fail "the load says nothing"
    COMPLETED=$(sed 's/.*"completed":\([0-9]*\).*/\1/' <<<"$line")
    FAILED=$(sed 's/.*"failed":\([0-9]*\).*/\1/' <<<"$line")
}

# load_more COUNT: waits for COUNT further handshakes.
load_more() {
    load_count
    local goal=$((COMPLETED + $1))
    poll "$1 more handshakes" load_reached "$goal"
}
load_reached() { load_count && ((COMPLETED >= $1)); }

# load_stop WHAT: ends the load; every handshake must have succeeded.
load_stop() {
    local line
    exec {LOAD[1]}>&-
    read -r -t 90 line <&"${LOAD[0]}" || fail "the load does not end"
    wait "$LOAD_PID" || fail "the load failed"
    step "$1: $line"
    [[ $line == *'"failed":0'* ]] || fail "$1: handshakes failed: $line"
}

# handshakes MACHINE COUNT WHAT
handshakes() {
    load_start "$1"
    load_more "$2"
    load_stop "$3"
}
