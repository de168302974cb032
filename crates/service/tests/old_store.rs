// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! This version loads key files of earlier versions, and refuses files of later versions with the advice to
//! upgrade.
//!
//! `data/store-version-1` is a store written by Millrace 0.1.0 with `millrace key import NAME - --allow-uid
//! 33` from keys that `openssl genpkey` made for this test. Its policies list every operation, including
//! those that do not fit the type of the key.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use millrace_operation::OperationKind;
use millrace_service::policy::KeyPolicy;
use millrace_service::store::{KekSource, KeyStore};
use tempfile::TempDir;

/// Offset of the last byte of the operations, from the end of the metadata.
const OPERATIONS_END: usize = 5;

/// A copy of the old store, with the required modes.
fn old_store() -> (TempDir, KeyStore) {
    let folder = TempDir::new().unwrap();
    let keys = folder.path().join("keys");
    fs::create_dir(&keys).unwrap();
    fs::set_permissions(&keys, Permissions::from_mode(0o700)).unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/store-version-1");
    for entry in fs::read_dir(data).unwrap() {
        let from = entry.unwrap().path();
        let name = from.file_name().unwrap().to_owned();
        let key = from.extension().is_some_and(|extension| extension == "key");
        let to = if key { keys.join(name) } else { folder.path().join(name) };
        fs::copy(&from, &to).unwrap();
        fs::set_permissions(&to, Permissions::from_mode(0o600)).unwrap();
    }
    let kek = KekSource::File { path: folder.path().join("kek"), create: false };
    let store = KeyStore::open(keys, &kek).unwrap();
    (folder, store)
}

#[test]
fn keys_of_version_0_1_0_load_with_their_policy() {
    let (_folder, store) = old_store();
    for (name, operation) in [
        ("ed25519", OperationKind::Ed25519Sign),
        ("p256", OperationKind::EcdsaSign),
        ("rsa2048", OperationKind::RsaPssSign),
        ("x25519", OperationKind::X25519),
    ] {
        let (_, meta) = store.load(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(meta.policy.identities, ["uid:33"], "{name}");
        assert!(meta.policy.operations.contains(operation), "{name}");
    }
}

#[test]
fn rewritten_policy_lists_only_operations_that_fit_the_key() {
    let (_folder, store) = old_store();
    let (_, before) = store.load("ed25519").unwrap();
    assert!(before.policy.operations.contains(OperationKind::RsaPssSign), "as it was written");
    let policy = KeyPolicy { identities: vec!["uid:34".to_owned()], ..before.policy };
    store.set_policy("ed25519", policy).unwrap();
    let (_, meta) = store.load("ed25519").unwrap();
    let operations: Vec<_> = meta.policy.operations.iter().collect();
    assert_eq!(operations, [OperationKind::Ed25519Sign]);
}

/// The file's own seal tells a later version from an edit: the tests of the store have one with a genuine seal.
#[test]
fn later_version_asks_for_an_upgrade_and_edited_bits_and_types_do_not() {
    let (folder, store) = old_store();
    let path = folder.path().join("keys/p256.key");
    let bytes = fs::read(&path).unwrap();
    let metadata = 19..19 + usize::from(u16::from_be_bytes([bytes[17], bytes[18]]));
    let type_code = metadata.start + 2 + "p256".len() + 8;
    let top_operations = metadata.end - OPERATIONS_END - 3;
    let top_hashes = metadata.end - 4;
    let upgrade = &["version 2", "upgrade millrace"][..];
    let edited = &["p256.key", "was changed after it was sealed"][..];
    for (offset, value, parts) in [
        (8, 2, upgrade),
        (type_code, 0x7f, edited),
        (top_operations, 0x80, edited),
        (top_hashes, 0x80, edited),
    ] {
        let mut later = bytes.clone();
        later[offset] = value;
        fs::write(&path, &later).unwrap();
        let error = store.load("p256").unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{part} in {error}");
        }
        assert!(!error.contains("damaged ("), "{error}");
    }
}
