// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The key store of real nodes: on a full disk, as `make install` sets it up, shared by two nodes, and while keys
//! in it are renewed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use millrace_tests::artifacts::artifacts;
use millrace_tests::drive::Tls;
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::{Server, Site};
use millrace_tests::node::{Node, NodeOptions};
use millrace_tests::pki::{Identity, KeyKind};
use millrace_tests::process::{run, succeed, text_of};
use millrace_tests::world::World;
use millrace_tests::{is_root, wait};

/// The script runs in a separate mount namespace, so that the small disk disappears with the shell. It
/// imports a key, fills the disk, imports another, inspects the first, makes room, and imports the other
/// again.
const SCRIPT: &str = r#"
set -eu
millrace=$1 disk=$2 first=$3 second=$4
mount -t tmpfs -o size=64k tmpfs "$disk"
key() { verb=$1; shift; "$millrace" key "$verb" "$@" --state "$disk/state"; }
key import first "$first" --allow-all
dd if=/dev/zero of="$disk/filler" bs=1k 2>/dev/null || true
if key import second "$second" --allow-all; then echo "imported on a full disk"; exit 1; fi
echo "== after the failure"
key list
key show first
find "$disk/state/keys" -type f
rm "$disk/filler"
key import second "$second" --allow-all
key show second
"#;

#[test]
fn full_disk_at_import_loses_no_key() {
    if !is_root() {
        millrace_testkit::skip!("only root mounts in a namespace of its own");
    }
    let world = World::new();
    let (first, second) = (world.identity(KeyKind::P256), world.identity(KeyKind::Rsa2048));
    let disk = world.dir().join("disk");
    fs::create_dir(&disk).expect("mount point");
    let unshare = |script: &[&str]| {
        let mut command = Command::new(millrace_tests::process::program("unshare"));
        command.args(["--mount", "sh", "-c"]).args(script);
        command
    };
    if !run(unshare(&["mount -t tmpfs tmpfs \"$0\""]).arg(&disk)).status.success() {
        millrace_testkit::skip!("only root mounts in a namespace of its own");
    }
    let mut command = unshare(&[SCRIPT, "sh"]);
    command.arg(&artifacts().millrace).arg(&disk).arg(&first.key_file).arg(&second.key_file);
    let output = run(&mut command);
    let said = text_of(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("o space left"), "the failure names its reason: {said}");
    let out = String::from_utf8_lossy(&output.stdout);
    let after = out.split("== after the failure").nth(1).expect("the script went on");
    let mut files: Vec<&str> = after
        .lines()
        .filter_map(|line| line.split_once("/state/keys/").map(|(_, name)| name))
        .collect();
    files.sort_unstable();
    assert_eq!(files, ["audit.jsonl", "first.key"], "half a key is not a file: {after}");
}

/// `make install` and the unit on this machine's files, in a mount namespace that ends with the shell: root owns the
/// key-encryption key, systemd would pass it to the node's user as a credential, and that user owns the store.
const INSTALLED: &str = r#"
set -eu
mount -t tmpfs tmpfs /mnt
cp -a /etc /mnt/etc
mkdir -p /mnt/etc/millrace
mount --bind /mnt/etc /etc
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /run
install -m 0755 "$1" /mnt/millrace
install -m 0600 "$2" /mnt/www.pem
install -m 0600 "$3" /mnt/renewed.pem
millrace=/mnt/millrace
printf 'name = "installed"\n[unix]\nmode = "0666"\n[metrics]\naddress = "127.0.0.1:0"\n[store]\nkek = "credential"\n' \
    >/etc/millrace/node.toml
(umask 077 && head -c 32 /dev/urandom >/etc/millrace/kek)
install -d -o 65534 -g 65534 -m 0700 /var/lib/millrace /mnt/credentials
install -d -o 65534 -g 65534 -m 0755 /run/millrace
install -o 65534 -m 0400 /etc/millrace/kek /mnt/credentials/millrace-kek
as_node() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
# Not as_node: in the background a function is a shell of its own, and the node would outlive the end of that shell.
setpriv --reuid 65534 --regid 65534 --clear-groups env CREDENTIALS_DIRECTORY=/mnt/credentials \
    "$millrace" up --config /etc/millrace/node.toml 2>/mnt/node.log &
node=$!
trap 'kill $node; wait $node || true' EXIT
tries=0
until "$millrace" status --json >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || { cat /mnt/node.log; exit 1; }
    sleep 0.1
done
"$millrace" key import www /mnt/www.pem --allow-uid 65534
"$millrace" key import www /mnt/renewed.pem --replace
[ ! -e /var/lib/millrace/kek ] || { echo "made a second key-encryption key"; exit 1; }
echo "== status"
"$millrace" status --json
echo "== list"
"$millrace" key list
as_node "$millrace" key list
as_node "$millrace" key stub www
echo "== another key-encryption key"
(umask 077 && head -c 32 /dev/urandom >/mnt/other)
if "$millrace" key import more /mnt/www.pem --kek-file /mnt/other; then echo "sealed under another"; exit 1; fi
"$millrace" key remove www
if "$millrace" key import more /mnt/www.pem --kek-file /mnt/other; then echo "sealed under another"; exit 1; fi
"#;

/// A node whose whole state is on a mounted file system, and changes made on it and, under FUSE, in the folder that it
/// shows, as another host makes them: the kernel reports those to no watcher of the mounted folder.
const MOUNTED: &str = r#"
set -eu
millrace=$1 kind=$2 place=$3 first=$4 second=$5
mount -t tmpfs tmpfs "$place"
mkdir "$place/lower" "$place/upper" "$place/work" "$place/mounted" "$place/pem"
layers=lowerdir=$place/lower,upperdir=$place/upper,workdir=$place/work
case $kind in
    overlay) mount -t overlay -o "$layers" overlay "$place/mounted" ;;
    fuse-overlayfs) fuse-overlayfs -o "$layers" "$place/mounted" ;;
    bindfs) bindfs "$place/lower" "$place/mounted" ;;
esac
state=$place/mounted/state socket=$place/node.sock
export MILLRACE_SOCKET=$socket
key() { verb=$1; shift; "$millrace" key "$verb" "$@" --state "$state"; }
up() {
    "$millrace" up --state "$state" 2>"$place/node.log" &
    node=$!
    within_a_minute "$millrace" status --json
}
within_a_minute() { # COMMAND...
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { echo "no success: $*"; cat "$place/node.log"; exit 1; }
        sleep 0.1
    done
}
trap 'kill $node; wait $node || true; umount -l "$place/mounted"' EXIT
up
key import www "$first" --allow-all
if key import www "$second" --allow-all; then echo "imported twice"; exit 1; fi
key import www "$second" --replace
key policy www --add-cert gateway-1
cp "$first" "$place/pem/one.pem"
cp "$second" "$place/pem/two.pem"
key import --from-dir "$place/pem" --allow-all
key remove one
"$millrace" cert client gateway-1 --state "$state" -o "$place/certificates"
echo "== list"
key list
echo "== files"
ls -A "$state/keys"
if [ "$kind" = bindfs ]; then
    # As another host does. The layers of an overlay may not be changed beside it.
    "$millrace" key import beside "$first" --allow-all --state "$place/lower/state" --socket "$place/none.sock"
    within_a_minute grep -q 'key="beside"' "$place/node.log"
fi
kill $node
wait $node || true
up
key show www
"#;

/// A key and its renewal, each with a file of its own.
fn two_identities(world: &World) -> [Identity; 2] {
    ["old", "new"].map(|name| {
        let mut identity = world.identity(KeyKind::P256);
        let file = world.dir().join(format!("{name}.pem"));
        fs::rename(&identity.key_file, &file).expect("renamed");
        identity.key_file = file;
        identity
    })
}

#[test]
fn installed_node_serves_the_keys_that_root_imports() {
    if !is_root() {
        millrace_testkit::skip!("only root mounts in a namespace of its own");
    }
    let world = World::new();
    let keys = two_identities(&world).map(|identity| identity.key_file);
    let unshare = |script: &str| {
        let mut command = Command::new(millrace_tests::process::program("unshare"));
        command.args(["--mount", "sh", "-c", script, "sh"]);
        command
    };
    if !run(&mut unshare("mount -t tmpfs tmpfs /mnt")).status.success() {
        millrace_testkit::skip!("only root mounts in a namespace of its own");
    }
    let mut command = unshare(INSTALLED);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MILLRACE_") {
            command.env_remove(name);
        }
    }
    let output = run(command.arg(&artifacts().millrace).args(&keys));
    let said = text_of(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("the node installed serves it"), "{said}");
    let out = String::from_utf8_lossy(&output.stdout);
    let status = out.split("== status").nth(1).expect("a status");
    let (status, rest) = status.split_once("== list").expect("a list");
    let status: serde_json::Value = serde_json::from_str(status).expect("JSON");
    assert_eq!((&status["keys"], &status["keys_broken"]), (&1.into(), &0.into()), "{said}");
    for part in ["uid:65534", "ok", "former, replaced", "BEGIN MILLRACE KEY"] {
        assert!(rest.contains(part), "no {part} in {said}");
    }
    for part in ["www in /var/lib/millrace/keys is sealed", "the node installed unseals"] {
        assert!(said.contains(part), "no {part} in {said}");
    }
}

#[test]
fn store_and_state_of_a_node_work_on_overlayfs_and_fuse() {
    if !is_root() {
        millrace_testkit::skip!("only root mounts in a namespace of its own");
    }
    let world = World::new();
    let (first, second) = (world.identity(KeyKind::P256), world.identity(KeyKind::Rsa2048));
    let mut tried = 0;
    for kind in ["overlay", "bindfs", "fuse-overlayfs"] {
        let place = world.dir().join(kind);
        fs::create_dir(&place).expect("mount point");
        let unshare = |script: &[&str]| {
            let mut command = Command::new(millrace_tests::process::program("unshare"));
            command.args(["--mount", "sh", "-c"]).args(script).arg("sh");
            command.arg(&artifacts().millrace).arg(kind).arg(&place);
            command.arg(&first.key_file).arg(&second.key_file);
            command
        };
        // The mounts alone: not every container permits them, and not every machine has the programs.
        let mounts = MOUNTED.split("state=$place").next().expect("the mounts");
        let output = run(&mut unshare(&[mounts]));
        if !output.status.success() {
            eprintln!("{kind} is left out: {}", text_of(&output));
            continue;
        }
        tried += 1;
        let output = run(&mut unshare(&[MOUNTED]));
        let said = text_of(&output);
        assert!(output.status.success(), "{kind}: {said}");
        let files = said.split("== files").nth(1).expect("the files");
        let files: Vec<&str> = files.lines().filter(|line| line.contains('.')).collect();
        assert!(files.iter().all(|file| !file.starts_with('.')), "{kind}: {said}");
        assert!(files.contains(&"two.key") && !files.contains(&"one.key"), "{kind}: {said}");
    }
    if tried == 0 {
        millrace_testkit::skip!("only root mounts in a namespace of its own");
    }
}

#[test]
fn renewed_key_fails_no_handshake_of_a_gateway_with_the_former_stub() {
    for server in [Server::HaproxyMaster, Server::Nginx] {
        let world = World::new();
        let node = world.node("one");
        let identities = two_identities(&world);
        let [old, new] = &identities;
        let stub = node.import("www", old);
        let edge = || EdgeOptions::to(node.endpoint());
        let gateway = world.gateway(server, edge(), &[Site::with_stub(old, &stub)]);
        let address = gateway.address(KeyKind::P256);
        let load = world.client.load(address, Tls::V13, 4);
        load.wait_for_more(20);
        // No option names an identity: the policy stays.
        let renewed = node.import_with("www", new, &["--replace"]);
        assert_ne!(stub, renewed);
        load.wait_for_more(50);
        // New processes open the key of the former stub again.
        gateway.reload();
        load.wait_for_more(50);
        let second = world.gateway(server, edge(), &[Site::with_stub(new, &renewed)]);
        world.client.handshakes(second.address(KeyKind::P256), Tls::V13, 5);
        load.wait_for_more(20);
        assert_eq!(load.stop().failures, BTreeMap::new(), "{server}");

        let _ = succeed(&mut node.command(&["key", "remove", "www", "--former"]));
        wait::until("the former version is out of service", || {
            world.client.handshake(address, Tls::V13).is_err()
        });
        world.client.handshakes(second.address(KeyKind::P256), Tls::V13, 5);
    }
}

/// Two nodes whose stores have one key-encryption key; `share` makes the second store from the state of the first.
fn pair(world: &World, share: impl FnOnce(&Path, &Path)) -> [Node; 2] {
    let mut nodes =
        ["one", "two"].map(|name| Node::prepare(world.dir(), name, &NodeOptions::default()));
    nodes[0].up();
    let state = ["one", "two"].map(|name| world.dir().join(format!("node-{name}/state")));
    share(&state[0], &state[1]);
    nodes[1].up();
    nodes
}

#[test]
fn nodes_on_one_store_serve_each_change_of_a_key() {
    let world = World::new();
    let nodes = pair(&world, |one, two| symlink(one, two).expect("a link"));
    let identities = two_identities(&world);
    let gateway = |index: usize, stub: &str| {
        let site = Site::with_stub(&identities[index], stub);
        world.gateway(Server::Nginx, EdgeOptions::to(nodes[1].endpoint()), &[site])
    };
    let stub = nodes[0].import("www", &identities[0]);
    nodes[1].wait_for_store();
    let first = gateway(0, &stub);
    world.client.handshakes(first.address(KeyKind::P256), Tls::V13, 3);
    let stub = nodes[0].import_with("www", &identities[1], &["--replace"]);
    let second = gateway(1, &stub);
    for gateway in [&first, &second] {
        let address = gateway.address(KeyKind::P256);
        wait::until("the second node serves both versions", || {
            world.client.handshake(address, Tls::V13).is_ok()
        });
    }
    nodes[0].remove("www");
    nodes[1].wait_for_store();
}

#[test]
fn sealed_file_copied_to_a_node_with_the_same_kek_is_served() {
    let world = World::new();
    let nodes = pair(&world, |one, two| {
        fs::create_dir(two).expect("a folder");
        // Keeps the mode.
        let _ = fs::copy(one.join("kek"), two.join("kek")).expect("a copy");
    });
    let identity = world.identity(KeyKind::P256);
    let stub = nodes[0].import("www", &identity);
    let keys = ["one", "two"].map(|name| world.dir().join(format!("node-{name}/state/keys")));
    // As rsync does: complete under a name that the node ignores, then renamed.
    let arriving = keys[1].join(".www.key.Xf3Qa1");
    let _ = fs::copy(keys[0].join("www.key"), &arriving).expect("a copy");
    fs::rename(&arriving, keys[1].join("www.key")).expect("renamed");
    nodes[1].wait_for_store();
    let site = Site::with_stub(&identity, &stub);
    let edge = EdgeOptions::to(nodes[1].endpoint());
    let gateway = world.gateway(Server::Nginx, edge, &[site]);
    world.client.handshakes(gateway.address(KeyKind::P256), Tls::V13, 3);
    assert!(nodes[1].served().total() >= 3);
}
