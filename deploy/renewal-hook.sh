#!/bin/sh
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Deploy hook for certbot (and for other ACME clients that set RENEWED_LINEAGE): the renewed key goes to the nodes,
# its stub and its certificate to the server, and the server reloads. No handshake fails: nodes serve the former key
# to workers that still have its stub. docs/guide/renewing.md says how to set it up. Each certificate has its settings
# in /etc/millrace/renewal/NAME.conf, where NAME is the last part of RENEWED_LINEAGE; others are left alone:
#
#   KEY=www                           name of the key in the pool
#   NODES="node-1 node-2"             hosts of the nodes, reached with ssh; empty: the node of this host
#   CERTIFICATE=/etc/haproxy/www.pem  the file in which the server expects the certificate chain
#   STUB=/etc/haproxy/www.pem.key     the file in which it expects the key
#   RELOAD="haproxy -c -q -f /etc/haproxy/haproxy.cfg && systemctl reload haproxy"    a line for sh
#
# A symbolic link stays one: the file that it leads to is replaced.
set -eu

fail() {
    printf 'renewal-hook: %s\n' "$1" >&2
    exit 1
}

settings=${MILLRACE_RENEWAL:-/etc/millrace/renewal}/$(basename "${RENEWED_LINEAGE:?set by the ACME client}").conf
[ -e "$settings" ] || exit 0
NODES=
. "$settings"
: "${KEY:?missing in $settings}" "${CERTIFICATE:?missing in $settings}"
: "${STUB:?missing in $settings}" "${RELOAD:?missing in $settings}"
private=$RENEWED_LINEAGE/privkey.pem

# What cannot be done at the end is refused before the key is exchanged.
sh -n -c "$RELOAD" || fail "RELOAD in $settings is no line for sh: $RELOAD"
# The end of a chain of symbolic links; its folder must be there.
place() {
    target=$(readlink -f -- "$1") && [ ! -d "$target" ] && [ -w "$(dirname -- "$target")" ] ||
        fail "$1, named in $settings, cannot be replaced: its folder is missing or closed, or it is a folder"
    printf '%s\n' "$target"
}
stub=$(place "$STUB")
# certbot's own files: a stub in place of its key could not be taken back.
for file in "$stub" "$(readlink -f -- "$CERTIFICATE")"; do
    for own in privkey cert chain fullchain; do
        [ "$file" != "$(readlink -f -- "$RENEWED_LINEAGE/$own.pem")" ] ||
            fail "$file, named in $settings, is certbot's own: name another file there and in the server's configuration"
    done
done
certificate=$(place "$CERTIFICATE")
[ -r "$RENEWED_LINEAGE/fullchain.pem" ] || fail "$RENEWED_LINEAGE/fullchain.pem cannot be read"

# Every node first: afterwards a worker may present either certificate.
first=
for node in $NODES; do
    ssh "root@$node" millrace key import "$KEY" - --replace <"$private"
    first=${first:-$node}
done
if [ -z "$first" ]; then
    millrace key import "$KEY" "$private" --replace
fi

# A node serves a new key within a second.
sleep 2

# Both files are complete before the server looks at them.
umask 022
if [ -n "$first" ]; then
    ssh "root@$first" millrace key stub "$KEY" >"$stub.new"
else
    millrace key stub "$KEY" >"$stub.new"
fi
cp "$RENEWED_LINEAGE/fullchain.pem" "$certificate.new"
mv "$stub.new" "$stub"
mv "$certificate.new" "$certificate"
# certbot's installers write its own key into a server's files: the key leaves the pool without an error.
lines=$(grep -rsnF -e "$private" ${MILLRACE_SERVERS:-/etc/nginx /etc/apache2 /etc/haproxy} || :)
[ -z "$lines" ] || printf 'renewal-hook: the key is not used from the pool here: name %s instead\n%s\n' "$STUB" "$lines" >&2
sh -c "$RELOAD"
