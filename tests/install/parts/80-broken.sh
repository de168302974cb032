# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# `millrace gateway check` names the cause of everything that an administrator may get wrong.

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
    local start="haproxy -D -f /etc/haproxy/haproxy.cfg"
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
    case $break in
        no-*) variable=${break#no-} break=true ;;
    esac
    run "$machine" "$break"
    restart_server "$machine" "$server" "$variable"
    if [[ $what == "node down" ]]; then stop_node "$machine"; fi
    local check="millrace gateway check $server"
    if [[ $INIT != systemd && $server == nginx && $variable != OPENSSL_CONF ]]; then
        check+=" --openssl-conf /etc/millrace/openssl.cnf"
    fi
    execute "$machine" root "$check || true" "$check" || fail "$check does not end"
    for expected in "$@"; do
        grep -Eq "$expected" <<<"$OUTPUT" || fail "broken: $server: $what: no line '$expected': $OUTPUT"
    done
    run "$machine" "$mend"
    if [[ $what == "node down" ]]; then start_node "$machine"; fi
}

stop_node() {
    if [[ $INIT == systemd ]]; then
        run "$1" 'systemctl stop millrace.socket millrace.service'
    else
        run "$1" 'pkill -x millrace; while pgrep -x millrace; do sleep 0.05; done'
    fi
}
start_node() {
    if [[ $INIT == systemd ]]; then run "$1" 'systemctl start millrace.socket millrace.service'; else on "$1" start-node-by-hand; fi
}

fresh_machine gateway-1 21
on gateway-1 haproxy-key
place gateway-1 haproxy-lines /etc/haproxy/haproxy.cfg
answer_ok gateway-1
if [[ $INIT == systemd ]]; then on gateway-1 haproxy-restart; else on gateway-1 haproxy-by-hand; fi

haproxy_cfg=/etc/haproxy/haproxy.cfg
haproxy_key=/etc/haproxy/www.pem.key
cnf=/etc/millrace/openssl.cnf
# edit FILE SED-EXPRESSION, and back.
edit() { printf 'cp -p %s /var/tmp/saved && sed -i "%s" %s' "$1" "$2" "$1"; }
back() { printf 'cp -p /var/tmp/saved %s' "$1"; }
plain() { printf 'cp -p %s /var/tmp/saved && cp /etc/ssl/private/www.pem %s' "$1" "$1"; }

while IFS='|' read -r what break mend expected; do
    broken gateway-1 haproxy "$what" "$break" "$mend" "$expected"
done <<CASES
good|true|true|^ok +pooled
no preload library|no-LD_PRELOAD|true|^warning +preload
plain key|$(plain $haproxy_key)|$(back $haproxy_key)|^FAILURE +keys +plain keys
node down|true|true|^FAILURE +(socket|node) .*(is not there|no node answers)
socket closed|chmod 0600 /run/millrace/node.sock|chmod 0666 /run/millrace/node.sock|^FAILURE +socket .*mode 0600
no ssl-mode-async|$(edit $haproxy_cfg /ssl-mode-async/d)|$(back $haproxy_cfg)|^FAILURE +waiting
mode = sync|$(edit $cnf '/^pool = /i mode = sync')|$(back $cnf)|^(FAILURE|warning) +(waiting|openssl.cnf|asynchronous)
mode = off|$(edit $cnf '/^pool = /i mode = off')|$(back $cnf)|^FAILURE +openssl.cnf .*mode = off
unknown setting|$(edit $cnf '/^pool = /i modde = off')|$(back $cnf)|modde
no insecure-fork-wanted|$(edit $haproxy_cfg /insecure-fork-wanted/d)|$(back $haproxy_cfg)|^FAILURE +threads
policy|millrace key policy www --remove-uid haproxy|millrace key policy www --add-uid haproxy|^FAILURE +policy .*does not let
wrong module path|$(edit $cnf 's/millrace.so/missing.so/')|$(back $cnf)|^FAILURE +provider .*missing.so
CASES
