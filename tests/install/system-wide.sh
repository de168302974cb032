#!/bin/bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# What scripts/test-system-wide.sh runs on its machine: system-wide.sh none|local|dead-node. Every step has to succeed, in
# each of them.
set -u

mode=$1
cnf=/etc/ssl/openssl.cnf
module=/usr/lib/x86_64-linux-gnu/ossl-modules/millrace.so
case $mode in
    none) ;;
    local) settings=$'mode = off\nalgorithms = none\nlocal = all' properties='?millrace.local=yes' ;;
    dead-node) settings=$'pool = unix:/run/millrace/dead.sock\nlocal = all' properties='?provider=millrace,?millrace.pool=yes' ;;
    *) exit 2 ;;
esac
if [[ $mode != none ]]; then
    cat >$cnf <<EOF
openssl_conf = init
config_diagnostics = 1
[init]
providers = providers
alg_section = algorithms
[providers]
default = default_sect
millrace = millrace_sect
[default_sect]
activate = 1
[millrace_sect]
module = $module
activate = 1
$settings
[algorithms]
default_properties = $properties
EOF
fi
unset OPENSSL_CONF

passed=0 failed=0
step() {
    local name=$1 said
    shift
    if said=$(timeout 60 "$@" 2>&1); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED, %s: %s: %s\n' "$mode" "$name" "$(tail -n 2 <<<"$said")"
    fi
}
grep -q localhost /etc/hosts 2>/dev/null || echo '127.0.0.1 localhost' >>/etc/hosts

work=$(mktemp -d)
chmod 755 "$work"
cd "$work" || exit 2
mkdir -p /run/sshd /home/admin/.ssh
for kind in rsa ecdsa ed25519; do
    ssh-keygen -q -t $kind -N '' -f host-$kind
    ssh-keygen -q -t $kind -N '' -f user-$kind
done
cat user-*.pub >/home/admin/.ssh/authorized_keys
chown -R admin /home/admin/.ssh
chmod 700 /home/admin/.ssh
chmod 600 /home/admin/.ssh/authorized_keys
usermod -p '*' admin
kex=$(ssh -Q kex | grep -v sha1 | paste -sd,)
cat >sshd.conf <<EOF
Port 32222
ListenAddress 127.0.0.1
HostKey $work/host-rsa
HostKey $work/host-ecdsa
HostKey $work/host-ed25519
KexAlgorithms $kex
UsePAM no
PidFile none
EOF
/usr/sbin/sshd -D -e -f sshd.conf 2>sshd.log &
sshd=$!
for _ in {1..300}; do
    grep -q 'listening on' sshd.log && break
    sleep 0.1
done
maps=0
[[ $mode == none ]] || maps=1
step "sshd maps the provider" sh -c "[ \$(grep -c millrace.so /proc/$sshd/maps | sed 's/^[1-9].*/1/') = $maps ]"
# login USER-KEY OPTION...
login() {
    local key=$1
    shift
    step "login with $key $*" ssh -p 32222 -i "user-$key" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
        -o BatchMode=yes -o IdentitiesOnly=yes -o LogLevel=ERROR "$@" admin@127.0.0.1 true
}
for name in ${kex//,/ }; do login ed25519 -o "KexAlgorithms=$name"; done
for host in ssh-ed25519 ecdsa-sha2-nistp256 rsa-sha2-256 rsa-sha2-512; do
    for key in rsa ecdsa ed25519; do login $key -o "HostKeyAlgorithms=$host"; done
done
for cipher in $(ssh -Q cipher | grep -vE '3des|cbc'); do login ed25519 -c "$cipher"; done
kill $sshd
wait $sshd 2>/dev/null
step "no child of sshd was killed" sh -c '! grep -iE "fatal|crash|killed by|seccomp|unexpected" sshd.log'

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out certificate.pem -days 2 \
    -subj /CN=localhost -addext subjectAltName=DNS:localhost 2>/dev/null
mkdir -p www/repository
echo hello >www/file
: >www/repository/Packages
sum=$(sha256sum www/repository/Packages | cut -d' ' -f1)
printf 'Origin: t\nSuite: t\nDate: %s\nArchitectures: amd64\nComponents: main\nSHA256:\n %s 0 Packages\n' \
    "$(date -Ru)" "$sum" >www/repository/Release
cat >nginx.conf <<EOF
pid $work/nginx.pid;
error_log $work/nginx.log;
events {}
http {
    access_log off;
    server {
        listen 127.0.0.1:32443 ssl;
        ssl_certificate $work/certificate.pem;
        ssl_certificate_key $work/key.pem;
        root $work/www;
    }
}
EOF
step "nginx starts" nginx -c "$work/nginx.conf"
url=https://localhost:32443
for options in --tlsv1.3 '--tls-max 1.2' '--curves X25519' '--curves P-256' '--curves X25519MLKEM768'; do
    # shellcheck disable=SC2086
    step "curl $options" curl -sSf --cacert certificate.pem $options $url/file
done
echo "deb [trusted=yes] $url/repository/ ./" >sources.list
# As root, whose process drops to the user _apt for the transfer.
step "apt update" apt-get -o Acquire::https::CAInfo="$work/certificate.pem" -o Dir::Etc::SourceList="$work/sources.list" \
    -o Dir::Etc::SourceParts=- -o APT::Update::Error-Mode=any update
kill "$(cat nginx.pid)"
step "su and sudo" su admin -s /bin/sh -c 'sudo -n true'
step "openssl as root by sudo" su admin -s /bin/sh -c 'sudo -n openssl list -providers'
step "openssl dgst" openssl dgst -sha256 certificate.pem
printf '%s: %d steps passed, %d failed\n' "$mode" "$passed" "$failed"
((failed == 0))
