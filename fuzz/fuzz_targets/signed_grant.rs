// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a signed grant, as a gateway presents it or a manager sends it. It is refused, or it is well-formed, and
//! then no other bytes say the same; the signature of the one good grant verifies, and no other.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use millrace_service::grant::{GrantKeys, GrantSigner, SignedGrant};

/// Signed with a key that only the seed's author had.
const GOOD: &[u8] = include_bytes!("../corpus/signed_grant/seed-good");

static KEYS: LazyLock<GrantKeys> = LazyLock::new(|| {
    let key = "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    key.parse().expect("a key")
});
static SIGNER: LazyLock<GrantSigner> =
    LazyLock::new(|| GrantSigner::generate().expect("random numbers").0);

fuzz_target!(|bytes: &[u8]| {
    let Ok(read) = SignedGrant::from_bytes(bytes) else {
        return;
    };
    assert_eq!(read.as_bytes(), bytes);
    assert_eq!(read.verify(&KEYS).is_ok(), bytes == GOOD);
    // What can be read can be written, and is the same but for key and signature.
    let again = SIGNER.sign(read.dangerous_unverified().clone()).expect("within the bounds");
    let body = bytes.len() - 8 - 64;
    assert_eq!(again.as_bytes()[..body], bytes[..body]);
});
