# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# docs/guide/pool.md, cluster.md and tenants.md: a pool in one process, the same in processes of their own with its keys,
# and tenants of a node alone.

fresh_gateway node-1 11
on node-1 pool-one
printed "The only node serves"
printed "acme"
machine_stop node-1

fresh_gateway node-1 11
on node-1 pool-processes
printed "The only node serves"
on node-1 pool-changes
printed "would change"
printed "entries, whole"
on node-1 cluster-keys
printed "www"
run node-1 'openssl x509 -in /etc/ssl/certs/www.crt -noout -pubkey | openssl pkey -pubin -outform DER | sha256sum'
run node-1 'grep -q "BEGIN MILLRACE" /etc/haproxy/www.pem.key && cp -p /etc/haproxy/www.pem.key former.key'
issue renewed
install -m 0600 "$LAB/renewed.key" "$LAB/node-1/root/root/renewed.pem"
on node-1 cluster-renewal
run node-1 '! cmp -s former.key /etc/haproxy/www.pem.key'
machine_stop node-1

fresh_machine gateway-1 21
place gateway-1 tenants-toml /etc/millrace/node.toml
if [[ $INIT == systemd ]]; then run gateway-1 'systemctl reload millrace'; else run gateway-1 'pkill -HUP -x millrace'; fi
on gateway-1 tenants-key
has_tenants() { run gateway-1 'millrace status --json' && [[ $OUTPUT == *'"acme"'* && $OUTPUT == *'"batch"'* ]]; }
poll "the node has the tenants" has_tenants
run gateway-1 'millrace key show www'
printed "tenant:acme"
machine_stop gateway-1
