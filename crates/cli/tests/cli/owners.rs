// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Owners of the key store: root manages the store of a node that runs as another user, and a node refuses a
//! store that it does not own.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use crate::support::{Place, p256_key};

const OTHER_USER: u32 = 65_534;

/// A place whose state belongs to another user, or the reason for which this process cannot create one.
fn foreign() -> Result<Place, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root can change the owner of files".to_owned());
    }
    let place = Place::new();
    let state = place.path("state");
    fs::create_dir(&state).unwrap();
    set_mode(&state, 0o700);
    // The other user must be able to traverse the folder above.
    set_mode(state.parent().unwrap(), 0o711);
    if let Err(error) = chown(&state, Some(OTHER_USER), Some(OTHER_USER)) {
        return Err(format!("this root may not change the owner of files: {error}"));
    }
    Ok(place)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn kek_may_belong_to_root_and_the_store_to_the_node() {
    let place = match foreign() {
        Ok(place) => place,
        Err(reason) => millrace_testkit::skip!("{reason}"),
    };
    let kek = place.write("kek", &"k".repeat(32));
    set_mode(&kek, 0o600);
    let pem = place.write("key.pem", &p256_key());
    let (kek, pem) = (kek.to_str().unwrap(), pem.to_str().unwrap());
    let run = |args: &[&str]| {
        let outcome = place.run(&[args, &["--kek-file", kek]].concat());
        outcome.done();
    };
    run(&["key", "import", "www", pem]);
    for file in ["state/keys", "state/keys/www.key"] {
        assert_eq!(fs::metadata(place.path(file)).unwrap().uid(), OTHER_USER, "{file}");
    }
    run(&["key", "show", "www"]);
    run(&["key", "policy", "www", "--allow-uid", "33"]);
}

#[test]
fn node_refuses_a_store_of_another_user() {
    let place = match foreign() {
        Ok(place) => place,
        Err(reason) => millrace_testkit::skip!("{reason}"),
    };
    let pem = place.write("key.pem", &p256_key());
    place.run(&["key", "import", "www", pem.to_str().unwrap()]).done();
    // The address belongs to no machine: a node that passes the check fails, too, but with another error.
    let up = || place.run(&["up", "--listen-tcp", "192.0.2.1:1"]);
    up().failed(1, &["belongs to uid 65534", "run millrace as its owner"]);
    for folder in ["state", "state/keys"] {
        chown(place.path(folder), Some(0), Some(0)).unwrap();
    }
    // The check covers the key-encryption key as well.
    up().failed(1, &["kek belongs to uid 65534"]);
    chown(place.path("state/kek"), Some(0), Some(0)).unwrap();
    drop(place.up(&[]));
}
