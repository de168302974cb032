// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a byte, then either a whole key file, or changes to a good one (pairs of a place and what is
//! XORed there; then the byte says how much is cut off). What parses is within its bounds, and only the
//! good file opens.
#![no_main]

use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use millrace_operation::MAX_PRIVATE_KEY_LEN;
use millrace_service::store::{KEK_LEN, MAX_IDENTITIES, MAX_SPKI_LEN, NONCE_LEN, parse, valid_identity, valid_name, KekSource, KeyStore};

/// Sealed under a key-encryption key of [`KEK_BYTE`]s, under the name [`NAME`].
const GOOD: &[u8] = include_bytes!("../corpus/key_store_file/seed-sealed");
const KEK_BYTE: u8 = 0x4b;
const NAME: &str = "www";

struct Fixture {
    store: KeyStore,
    path: PathBuf,
}

static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| {
    let directory = std::env::temp_dir().join(format!("millrace-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("the temporary directory can be written to");
    let kek = directory.join("kek");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).mode(0o600).open(&kek).expect("a new file");
    std::io::Write::write_all(&mut file, &[KEK_BYTE; KEK_LEN]).expect("room for 32 bytes");
    let source = KekSource::File { path: kek, create: false };
    let store = KeyStore::open(directory.join("keys"), &source).expect("a store");
    let path = store.directory().join(format!("{NAME}.key"));
    Fixture { store, path }
});

fuzz_target!(|data: &[u8]| {
    let Some((&control, rest)) = data.split_first() else {
        return;
    };
    let file = match control {
        // The first byte of the magic: the input is the file.
        b'M' => data.to_vec(),
        cut => changed(cut, rest),
    };
    check_parsed(&file);
    std::fs::write(&FIXTURE.path, &file).expect("the temporary directory can be written to");
    let loaded = FIXTURE.store.load(NAME);
    assert_eq!(loaded.is_ok(), file == GOOD, "a forged file was opened, or a good one was not");
    let listed = FIXTURE.store.list().expect("the directory can be read");
    assert_eq!(listed.len(), 1);
});

fn changed(cut: u8, changes: &[u8]) -> Vec<u8> {
    let mut file = GOOD[..GOOD.len() - usize::from(cut).min(GOOD.len())].to_vec();
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_be_bytes([change[0], change[1]]));
        match file.get_mut(at) {
            Some(byte) => *byte ^= change[2],
            None => file.push(change[2]),
        }
    }
    file
}

fn check_parsed(bytes: &[u8]) {
    let Ok(file) = parse(bytes) else { return };
    assert!(valid_name(&file.metadata.name));
    assert!((1..=MAX_SPKI_LEN).contains(&file.metadata.info.spki.len()));
    let identities = &file.metadata.policy.identities;
    assert!(identities.len() <= MAX_IDENTITIES);
    assert!(identities.iter().all(|identity| valid_identity(identity)));
    assert!(file.sealed.len() <= MAX_PRIVATE_KEY_LEN + 16);
    // Nothing lies between the parts, and nothing behind them.
    let length = u32::try_from(file.sealed.len()).expect("bounded").to_be_bytes();
    let again = [file.aad, &file.nonce[..], &length, file.sealed].concat();
    assert_eq!(again.len(), file.aad.len() + NONCE_LEN + 4 + file.sealed.len());
    assert_eq!(again, bytes);
}
