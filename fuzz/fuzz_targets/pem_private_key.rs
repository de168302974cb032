// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a file with a private key in PEM. What is found is DER of a bounded size, which every
//! later reader takes as it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_operation::MAX_PRIVATE_KEY_LEN;
use millrace_service::store::pem::{MAX_PEM_LEN, read_private_key};

fuzz_target!(|data: &[u8]| {
    let Ok(key) = read_private_key(data) else {
        return;
    };
    let der = key.dangerous_pkcs8();
    assert!(data.len() <= MAX_PEM_LEN);
    assert!((1..=MAX_PRIVATE_KEY_LEN).contains(&der.len()));
    assert_eq!(der[0], 0x30);
});
