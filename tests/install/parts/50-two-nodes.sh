# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# docs/guide/two-nodes.md; the parts renewing and upgrading go on with its machines.

# restart_node NODE: a start as systemd or an administrator does it.
restart_node() {
    if [[ $INIT == systemd ]]; then
        on "$1" two-nodes-start
    else
        run "$1" 'pkill -x millrace; while pgrep -x millrace >/dev/null; do sleep 0.05; done'
        on "$1" start-node-by-hand
    fi
    on "$1" upgrade-wait
}

two_nodes() {
    local node
    fresh_machine node-1 11
    fresh_machine node-2 12
    fresh_gateway gateway-1 21
    for node in node-1 node-2; do place "$node" two-nodes-toml /etc/millrace/node.toml; done
    on node-1 two-nodes-certificates
    for node in node-1 node-2; do restart_node "$node"; done
    on node-1 two-nodes-key
    on gateway-1 two-nodes-gateway
    place gateway-1 haproxy-lines /etc/haproxy/haproxy.cfg
    answer_ok gateway-1
    if [[ $INIT == systemd ]]; then
        on gateway-1 two-nodes-gateway-restart
    else
        on gateway-1 two-nodes-gateway-by-hand
    fi
}

two_nodes
pooled_and_asynchronous
printed "node-1"
printed "node-2"

load_start gateway-1
for node in node-1 node-2; do
    run "$node" 'pkill -KILL -x millrace'
    load_more 50
    if [[ $INIT != systemd ]]; then on "$node" start-node-by-hand; fi
    on "$node" upgrade-wait
    load_more 50
done
load_stop "two nodes, each killed once"
