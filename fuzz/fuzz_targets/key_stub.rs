// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a byte that chooses the form (PEM, DER, URI, a line of a file), then the bytes. A stub that
//! was understood is written and understood again, and a name always fits the protocol.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_operation::stub::{self, MAX_STUB_LEN, Stub};

fuzz_target!(|data: &[u8]| {
    let Some((&form, data)) = data.split_first() else {
        return;
    };
    let text = std::str::from_utf8(data);
    match (form % 4, text) {
        (0, Ok(pem)) => {
            let der = stub::pem_to_der(pem);
            let stub = Stub::from_pem(pem);
            // A text before the block is passed over.
            if let Some(der) = der {
                assert_eq!(Stub::from_der(&der), stub);
            }
            stub.iter().for_each(check);
        }
        (1, _) => Stub::from_der(data).iter().for_each(check),
        (2, Ok(uri)) => {
            let Some(uri) = stub::parse_uri(uri) else {
                return;
            };
            check_name(&uri.name);
            assert!(uri.spki.is_none_or(|spki| !spki.is_empty()));
        }
        _ => {
            let _ = stub::is_begin(data);
        }
    }
});

fn check(stub: &Stub) {
    check_name(&stub.name);
    let der = stub.to_der();
    assert!(der.len() <= MAX_STUB_LEN);
    assert_eq!(Stub::from_der(&der).as_ref(), Some(stub));
    assert_eq!(Stub::from_pem(&stub.to_pem()).as_ref(), Some(stub));
    assert_eq!(Stub::new(&stub.name, &stub.spki).as_ref(), Some(stub));
}

fn check_name(name: &str) {
    assert!((1..=millrace_operation::MAX_KEY_NAME_LEN).contains(&name.len()));
    assert!(!name.contains(char::is_control));
}
