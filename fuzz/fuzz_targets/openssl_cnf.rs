// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: an `openssl.cnf`. Reading it ends, and a value is no longer than the file that it is from.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_hostfs::openssl_cnf::{Cnf, DEFAULT};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let cnf = Cnf::parse(&text);
    for name in ["openssl_conf", "providers", "millrace", "activate"] {
        if let Some(value) = cnf.value(DEFAULT, name) {
            assert!(value.len() <= text.len());
        }
    }
    assert!(
        cnf.includes
            .iter()
            .all(|file| !file.is_empty() && text.contains(file.as_str()) || text.contains('\\'))
    );
});
