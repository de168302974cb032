# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# docs/guide/upgrading.md, under load, with the machines of two-nodes, and with a node of its own.

upgrade() {
    if [[ $INIT == systemd ]]; then on "$1" upgrade-node; else on "$1" upgrade-node-by-hand; fi
    on "$1" upgrade-wait
}

load_start gateway-1
for round in 1 2 3; do
    for node in node-1 node-2; do
        upgrade "$node"
        load_more 20
    done
done
load_stop "two nodes, upgraded one after the other, three times"

# The gateway itself.
load_start gateway-1
run gateway-1 "cd $SOURCE && make install"
if [[ $INIT == systemd ]]; then run gateway-1 'systemctl reload haproxy'; else run gateway-1 'pkill -USR2 -o haproxy'; fi
load_more 100
load_stop "HAProxy, reloaded with a new provider"
# A reload takes effect after the command: the workers before it go on until they have served their connections.
has_new_provider() { run gateway-1 'millrace gateway check haproxy || true' && [[ $OUTPUT != *"was replaced"* ]]; }
poll "HAProxy has the new provider" has_new_provider
run gateway-1 'millrace gateway check haproxy'
pooled_and_asynchronous

# Last, because no handshake works afterwards: both nodes refuse the gateway's certificate, and the check says so.
on node-1 two-nodes-revoke
broken gateway-1 haproxy "revoked certificate" true true \
    '^FAILURE +node +tcp:node-1:7400: .*revoked' '^FAILURE +node +tcp:node-2:7400: .*revoked'
for machine in gateway-1 node-1 node-2; do machine_stop "$machine"; done

# One node for a gateway on its own host.
fresh_machine gateway-1 21
on gateway-1 haproxy-key
place gateway-1 haproxy-lines /etc/haproxy/haproxy.cfg
answer_ok gateway-1
if [[ $INIT == systemd ]]; then on gateway-1 haproxy-restart; else on gateway-1 haproxy-by-hand; fi
load_start gateway-1
for round in 1 2 3; do
    upgrade gateway-1
    load_more 20
done
load_stop "the only node, upgraded three times"

# A backup on this host, restored on another.
on gateway-1 backup
fresh_gateway node-2 12
cp "$LAB/gateway-1/root/root/millrace-backup.tar" "$LAB/node-2/root/root/"
on node-2 restore
if [[ $INIT == systemd ]]; then
    allow_unlocked_memory node-2
    on node-2 start-node
else
    start_by_hand node-2
fi
on node-2 upgrade-wait
run node-2 'millrace status --json'
printed '"keys": 1'
for machine in gateway-1 node-2; do machine_stop "$machine"; done
