// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The files of the TCP listener: who else may read the key.

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use common::tls::{Papers, issue, setup};
use common::{Setup, engine};
use millrace_backends::Software;
use millrace_server::Node;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn key(setup: &Setup) -> &Path {
    &setup.config.tcp.as_ref().unwrap().tls.key
}

#[tokio::test]
async fn a_key_that_others_can_read_is_refused_at_the_start() {
    let setup = setup();
    set_mode(key(&setup), 0o644);
    let bind = || {
        let engine = engine(Arc::new(Software::new()));
        Node::bind(setup.config.clone(), engine, setup.store()).map(drop)
    };
    let error = bind().unwrap_err().to_string();
    for part in ["node.key", "0644", "chmod 0600"] {
        assert!(error.contains(part), "{error}");
    }
    // The group of Debian's ssl-cert is root's to choose.
    set_mode(key(&setup), 0o640);
    let root = rustix::process::geteuid().is_root();
    assert_eq!(bind().is_ok(), root);
    set_mode(key(&setup), 0o400);
    assert!(bind().is_ok());
}

#[test]
fn a_key_that_others_can_read_is_not_reloaded() {
    let node = setup().start();
    let papers = Papers::of(&issue(&node, "gateway-1"));
    set_mode(key(&node.setup), 0o604);
    let error = node.handle.reload().unwrap_err().to_string();
    assert!(error.contains("0604"), "{error}");
    assert!(!papers.refused_by(&node), "what was in force stays so");
    set_mode(key(&node.setup), 0o600);
    node.handle.reload().unwrap();
}
