// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect`: pages, JSON, other trees, bundles.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::support::{Outcome, Place, repository};

fn fixture(name: &str) -> String {
    let path: PathBuf = repository().join("crates/inspect/fixtures").join(name);
    path.to_str().unwrap().to_owned()
}

#[test]
fn slow_openssl_of_a_firmware_is_reported() {
    let place = Place::new();
    let root = fixture("arm-a15-router");
    let page = place.run(&["inspect", "openssl", "--root", &root]).done().data.clone();
    for words in ["OpenSSL", "arm hard-float", "none", "-Os", "without assembly", "openvpn (1)"] {
        assert!(page.contains(words), "{words} is not in\n{page}");
    }
    let whole = place.run(&["inspect", "--root", &root]).done().data.clone();
    for words in ["Netgear R9000", "Cortex-A15", "is slower than necessary"] {
        assert!(whole.contains(words), "{words} is not in\n{whole}");
    }
    assert!(!whole.contains('\x1b'), "colours are for terminals");
}

#[test]
fn json_of_a_part_equals_that_of_the_whole() {
    let place = Place::new();
    let root = fixture("aes-ni-vm");
    let json = |args: &[&str]| -> Value {
        let args = [&["inspect"], args, &["--json", "--root", &root]].concat();
        serde_json::from_str(&place.run(&args).done().data).unwrap()
    };
    let (whole, cpu, openssl) = (json(&[]), json(&["cpu"]), json(&["openssl"]));
    assert_eq!(whole["format"], 1);
    assert_eq!(whole["live"], false);
    assert_eq!(whole["cpu"], cpu["cpu"]);
    assert_eq!(whole["libcrypto"], openssl["libcrypto"]);
    let schema = repository().join("docs/reference/inspect.schema.json");
    let schema: Value = serde_json::from_str(&fs::read_to_string(schema).unwrap()).unwrap();
    let declared = schema["properties"].as_object().unwrap();
    for part in whole.as_object().unwrap().keys() {
        assert!(declared.contains_key(part), "{part} is not in the schema");
    }
}

#[test]
fn inspect_examines_this_machine() {
    let place = Place::new();
    let outcome = place.run(&["inspect", "--json"]);
    let report: Value = serde_json::from_str(&outcome.done().data).unwrap();
    assert_eq!(report["live"], true);
    assert!(report["cpu"]["known"]["processors"].as_u64().unwrap() > 0);
}

#[test]
fn bundle_is_listed_and_readable_and_overwrites_no_file() {
    let place = Place::new();
    let root = fixture("aes-ni-vm");
    let bundle = place.path("bundle.tar.gz");
    let bundle = bundle.to_str().unwrap();
    let listed = place.run(&["inspect", "--root", &root, "--bundle", bundle]).done().data.clone();
    assert!(listed.contains("proc/cpuinfo"), "{listed}");
    let page = |root: &str| place.run(&["inspect", "--root", root]).done().data.clone();
    assert_eq!(page(bundle), page(&root));
    let again = place.run(&["inspect", "--root", &root, "--bundle", bundle]);
    assert_eq!(again.code, 1);
    assert!(again.talk.contains("name a new file"), "{}", again.talk);
}

#[test]
fn unusable_roots_are_usage_errors() {
    let place = Place::new();
    let text = place.write("text", "not a bundle");
    for root in [text.to_str().unwrap(), "/none/at/all", "/dev/null"] {
        let outcome = place.run(&["inspect", "--root", root]);
        assert_eq!(outcome.code, 2, "{}", outcome.talk);
        assert!(outcome.talk.contains("bundle"), "{}", outcome.talk);
    }
}

#[test]
fn control_characters_of_files_do_not_reach_the_terminal() {
    let place = Place::new();
    let root = place.path("root");
    fs::create_dir_all(root.join("proc")).unwrap();
    fs::create_dir_all(root.join("etc")).unwrap();
    let evil = "processor: 0\nvendor_id: x\nmodel name: \x1b]0;owned\x07\x1b[2J\nflags: lm aes\n";
    fs::write(root.join("proc/cpuinfo"), evil).unwrap();
    fs::write(root.join("etc/os-release"), "PRETTY_NAME=\"\x1b[31mred\"\n").unwrap();
    let page = place.run(&["inspect", "--root", root.to_str().unwrap()]).done().data.clone();
    assert!(page.contains("owned") && page.contains("red"), "{page}");
    assert!(!page.contains(['\x1b', '\x07']), "{page:?}");
}

/// Folders and files of the tree that are closed to a user are denied, not absent.
#[test]
fn what_is_denied_is_not_called_absent() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    let place = Place::new();
    let open = |path: &std::path::Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    open(&place.path(""), 0o755);
    let tree = place.path("tree");
    for (path, text) in [
        ("proc/crypto", "name : a\ndriver : b\n"),
        ("proc/modules", "wireguard 1 0 - Live 0x0\nalgif_hash 1 0 - Live 0x0\n"),
        ("proc/net/tls_stat", "TlsTxSw 1\n"),
        ("dev/crypto", ""),
        ("sys/bus/pci/devices/0000:00:00.0/vendor", "0x10de\n"),
        ("sys/module/wireguard/x", ""),
    ] {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let page = || {
        let mut command = place.command(["inspect", "--root", tree.to_str().unwrap()]);
        if rustix::process::geteuid().is_root() {
            command.uid(65_534).gid(65_534);
        }
        match command.output() {
            Ok(output) => Outcome::of(output).done().data.clone(),
            Err(error) => panic!("the unprivileged user cannot run the test: {error}"),
        }
    };
    let facts = ["GPUs", "/dev/crypto", "kernel TLS", "WireGuard", "OpenVPN DCO", "AF_ALG has"];
    let values = |page: &str| -> Vec<String> {
        let line = |name: &&str| page.lines().find_map(|line| line.trim_start().strip_prefix(name));
        facts.iter().map(|name| line(name).unwrap_or("none").trim().to_owned()).collect()
    };
    let seen = values(&page());
    assert!(!seen.iter().any(|value| value == "denied"), "{seen:?}");
    let closed = ["proc/modules", "proc/net/tls_stat", "dev", "sys/bus/pci/devices", "sys/module"];
    closed.iter().for_each(|path| open(&tree.join(path), 0o000));
    let seen = values(&page());
    closed.iter().for_each(|path| open(&tree.join(path), 0o755));
    assert_eq!(seen, vec!["denied"; facts.len()]);
}
