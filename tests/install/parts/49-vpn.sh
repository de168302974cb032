# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# docs/guide/vpn.md: a link of four tunnels between two machines, by hand and at boot.

# crossed: what end b sends to the inner address of end a arrives there.
crossed() {
    execute node-2 root 'ssh -o ConnectTimeout=5 root@10.97.0.1 hostname' "ssh through the link" 2>/dev/null &&
        [[ $OUTPUT == *node-1* ]]
}

if [[ ! -e /dev/net/tun ]]; then
    step "no /dev/net/tun: vpn.md is not walked"
    printf '%s\n' vpn-link vpn-toml vpn-up vpn-restart vpn-boot vpn-down >>"$USED"
    return
fi

fresh_gateway node-1 11
fresh_gateway node-2 12
for node in node-1 node-2; do
    place "$node" vpn-toml /root/declared.toml
    sed -i "s/198\.51\.100\.1/${ADDRESS[node-1]}/; s/203\.0\.113\.1/${ADDRESS[node-2]}/" "$LAB/$node/root/root/declared.toml"
    # The administrator's editor writes what the guide shows.
    printf 'export EDITOR="cp declared.toml"\n' >>"$LAB/$node/root/root/.profile"
    mkdir -p "$LAB/$node/root/etc/millrace/vpn"
done
on node-1 vpn-link
cp -r "$LAB/node-1/root/root/keys/a" "$LAB/node-1/root/etc/millrace/vpn/branch"
cp -r "$LAB/node-1/root/root/keys/b" "$LAB/node-2/root/etc/millrace/vpn/branch"
cp "$LAB/node-1/root/root/link.toml" "$LAB/node-2/root/root/"
# Each end waits for the other.
leave node-1 vpn-up
on node-2 vpn-up
printed "up"
poll "a connection through the link" crossed
on node-1 vpn-restart
crossed || fail "nothing crosses the link after the restart"
for node in node-1 node-2; do on "$node" vpn-down; done
! crossed || fail "the link is there after vpn down"

if [[ $INIT == systemd ]]; then
    for node in node-1 node-2; do cp "$LAB/$node/root/root/link.toml" "$LAB/$node/root/etc/millrace/vpn/branch/"; done
    for node in node-1 node-2; do on "$node" vpn-boot; done
    poll "a connection through the link of the unit" crossed
    run node-1 'systemctl is-active millrace-vpn@branch'
    for node in node-1 node-2; do run "$node" 'systemctl stop millrace-vpn@branch'; done
    ! crossed || fail "the link is there after the unit has stopped"
fi
for node in node-1 node-2; do machine_stop "$node"; done
