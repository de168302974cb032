// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: an `openssl.cnf` that includes itself. Reading it ends, and a value is no longer than the file that it is
//! from.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_hostfs::openssl_cnf::{Cnf, DEFAULT};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let cnf = Cnf::parse(&text, |file| {
        assert!(!file.is_empty() && (text.contains(file) || text.contains('\\')));
        vec![text.clone().into_owned()]
    });
    for name in ["openssl_conf", "providers", "millrace", "activate"] {
        if let Some(value) = cnf.value(DEFAULT, name) {
            assert!(value.len() <= text.len());
        }
    }
});
