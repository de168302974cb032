// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The key store on a full disk.

use std::process::Command;

use millrace_tests::artifacts::artifacts;
use millrace_tests::is_root;
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{run, text_of};
use millrace_tests::world::World;

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
        eprintln!("SKIPPED: only root mounts a small disk");
        return;
    }
    let world = World::new();
    let (first, second) = (
        world.identity(KeyKind::P256),
        world.identity(KeyKind::Rsa2048),
    );
    let disk = world.dir().join("disk");
    std::fs::create_dir(&disk).expect("mount point");
    let unshare = |script: &[&str]| {
        let mut command = Command::new(millrace_tests::process::program("unshare"));
        command.args(["--mount", "sh", "-c"]).args(script);
        command
    };
    if !run(unshare(&["mount -t tmpfs tmpfs \"$0\""]).arg(&disk))
        .status
        .success()
    {
        eprintln!("SKIPPED: this machine lets even root not mount");
        return;
    }
    let mut command = unshare(&[SCRIPT, "sh"]);
    command
        .arg(&artifacts().millrace)
        .arg(&disk)
        .arg(&first.key_file)
        .arg(&second.key_file);
    let output = run(&mut command);
    let said = text_of(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("o space left"),
        "the failure names its reason: {said}"
    );
    let out = String::from_utf8_lossy(&output.stdout);
    let after = out
        .split("== after the failure")
        .nth(1)
        .expect("the script went on");
    let mut files: Vec<&str> = after
        .lines()
        .filter_map(|line| line.split_once("/state/keys/").map(|(_, name)| name))
        .collect();
    files.sort_unstable();
    assert_eq!(
        files,
        ["audit.jsonl", "first.key"],
        "half a key is no file: {after}"
    );
}
