# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Situations that an administrator may get into, and what `millrace gateway check` says about them.

# restart_server MACHINE SERVER [VARIABLE]: as the guides say, without the variable in its environment. A server
# that refuses to start is a case, too.
restart_server() {
    local without=${3:-none} dropin=/etc/systemd/system/$2.service.d/millrace.conf
    if [[ $INIT == systemd ]]; then
        run "$1" "
            cp $dropin /var/tmp/dropin
            sed -i '/$without/d' $dropin
            systemctl daemon-reload
            systemctl reset-failed $2
            systemctl restart $2 || true
            cp /var/tmp/dropin $dropin"
        return
    fi
    local start="haproxy -W -D -p /run/haproxy.pid -f /etc/haproxy/haproxy.cfg"
    if [[ $2 == nginx ]]; then start=nginx; fi
    run "$1" "
        pkill -x $2
        while pgrep -x $2; do sleep 0.05; done
        export OPENSSL_CONF=/etc/millrace/openssl.cnf LD_PRELOAD=/usr/local/lib/millrace/libmillrace_preload.so
        unset $without
        $start || true"
}

# broken MACHINE SERVER WHAT BREAK MEND EXPECTED...: the check prints each of the regular expressions.
broken() {
    local machine=$1 server=$2 what=$3 break=$4 mend=$5 expected variable=none
    shift 5
    step "broken: $server: $what"
    # "no-VARIABLE [COMMAND]": the server starts without that variable.
    if [[ $break == no-* ]]; then
        read -r variable break <<<"${break#no-} "
        : "${break:=true}"
    fi
    run "$machine" "$break"
    restart_server "$machine" "$server" "$variable"
    if [[ $what == "node down" ]]; then stop_node "$machine"; fi
    local check="millrace gateway check $server"
    # Without systemd the check knows the file of a server that does not run, and of nginx, only from its user.
    if [[ $INIT != systemd && $variable != OPENSSL_CONF ]]; then
        check+=" --openssl-conf /etc/millrace/openssl.cnf"
    fi
    execute "$machine" root "$check || true" "$check" || fail "$check does not end"
    for expected in "$@"; do
        grep -Eq "$expected" <<<"$OUTPUT" || fail "broken: $server: $what: no line '$expected': $OUTPUT"
    done
    run "$machine" "$mend"
    if [[ $what == "node down" ]]; then start_node "$machine"; fi
}

# broken_cases MACHINE SERVER: a situation for each line of the input: what|break|mend|expected.
broken_cases() {
    local what break mend expected
    while IFS='|' read -r what break mend expected; do
        broken "$1" "$2" "$what" "$break" "$mend" "$expected"
    done
}

stop_node() {
    if [[ $INIT == systemd ]]; then
        run "$1" 'systemctl stop millrace.socket millrace.service'
    else
        run "$1" 'pkill -x millrace; while pgrep -x millrace; do sleep 0.05; done'
    fi
}
start_node() {
    if [[ $INIT == systemd ]]; then run "$1" 'systemctl start millrace.socket millrace.service'; else start_by_hand "$1"; fi
}

# edit FILE SED-EXPRESSION, and back.
edit() { printf 'cp -p %s /var/tmp/saved && sed -i "%s" %s' "$1" "$2" "$1"; }
back() { printf 'cp -p /var/tmp/saved %s' "$1"; }
plain() { printf 'cp -p %s /var/tmp/saved && cp /etc/ssl/private/www.pem %s' "$1" "$1"; }
