// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Classifies a key file: a stub that names a key in the pool, or a private key. Of a private key the module
//! parses only the PEM label, and it wipes the buffer.

use std::io::Read;
use std::path::Path;

use millrace_hostfs::{ReadResult, Root, Unavailable};
use millrace_operation::stub::Stub;
use zeroize::Zeroizing;

use super::pool::KeyStub;
use super::utf8;

/// Bound on a key file, in bytes: a bundle with a long chain has 20 KiB.
const MAX_FILE: u64 = 256 * 1024;

/// The content of a key file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyFile {
    /// A stub of a key in the pool.
    Stub(KeyStub),
    /// A private key.
    Plain,
    /// No private key in PEM: a certificate, or no PEM at all.
    Other,
    /// The file cannot be read.
    Unreadable(Unavailable),
}

/// Reads a key file.
#[must_use]
pub(super) fn look(root: &Root, path: &Path) -> KeyFile {
    match read(root, path) {
        Ok(bytes) => classify(&String::from_utf8_lossy(&bytes)),
        Err(reason) => KeyFile::Unreadable(reason),
    }
}

/// The bytes of a file in one allocation: a buffer that grows leaves copies behind.
fn read(root: &Root, path: &Path) -> ReadResult<Zeroizing<Vec<u8>>> {
    let failed = |error: std::io::Error| Unavailable::unreadable(error.to_string());
    let file = root.open_file(utf8(path))?;
    let length = file.metadata().map_err(failed)?.len().min(MAX_FILE);
    let capacity = usize::try_from(length).unwrap_or(0).saturating_add(1);
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
    let _ = file.take(length).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn classify(text: &str) -> KeyFile {
    if let Some(Stub { name, spki }) = Stub::find(text) {
        return KeyFile::Stub(KeyStub { name, spki });
    }
    let private = text
        .lines()
        .any(|line| line.starts_with("-----BEGIN ") && line.contains("PRIVATE KEY-----"));
    if private { KeyFile::Plain } else { KeyFile::Other }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stub_is_recognised_alone_and_behind_a_certificate() {
        let stub = Stub::new("www", &[7; 91]).expect("a stub").to_pem();
        let named = KeyFile::Stub(KeyStub { name: "www".to_owned(), spki: vec![7; 91] });
        let certificate = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
        assert_eq!(classify(&stub), named);
        assert_eq!(classify(&format!("{certificate}{stub}")), named);
        assert_eq!(classify(&stub.replace("-----END", "!!-----END")), KeyFile::Other);
    }

    #[test]
    fn private_keys_are_recognised_by_their_label() {
        for label in ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "ENCRYPTED PRIVATE KEY"] {
            assert_eq!(classify(&format!("-----BEGIN {label}-----\nAA==\n")), KeyFile::Plain);
        }
        assert_eq!(classify("-----BEGIN CERTIFICATE-----\n"), KeyFile::Other);
    }
}
