// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect`: pages, JSON, other trees, bundles.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::support::{Place, repository};

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
