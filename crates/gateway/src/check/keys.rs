// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Classifies a key file: a stub that names a key in the pool, or a private key. Of a private key the module
//! parses only the PEM label, and it wipes the buffer.

use std::io::Read;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millrace_hostfs::{ReadResult, Root, Unavailable};
use zeroize::Zeroizing;

use super::pool::KeyStub;
use super::utf8;

/// Bound on a key file, in bytes: a bundle with a long chain has 20 KiB.
const MAX_FILE: u64 = 256 * 1024;

const STUB_BEGIN: &str = "-----BEGIN MILLRACE KEY-----";
const STUB_END: &str = "-----END MILLRACE KEY-----";
/// First field of a stub: format and version.
const STUB_DESCRIPTION: &[u8] = b"Millrace Key 1";

const SEQUENCE: u8 = 0x30;
const UTF8_STRING: u8 = 0x0c;
const OCTET_STRING: u8 = 0x04;

/// The content of a key file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyFile {
    /// A stub of a key in the pool.
    Stub(KeyStub),
    /// A private key.
    Plain,
    /// Neither.
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
    if let Some(stub) = stub(text) {
        return KeyFile::Stub(stub);
    }
    let private = text
        .lines()
        .any(|line| line.starts_with("-----BEGIN ") && line.contains("PRIVATE KEY-----"));
    if private {
        KeyFile::Plain
    } else {
        KeyFile::Other
    }
}

/// A stub, as `SEQUENCE { UTF8String description, UTF8String uri, OCTET STRING spki }`.
fn stub(text: &str) -> Option<KeyStub> {
    let (_, rest) = text.split_once(STUB_BEGIN)?;
    let (body, _) = rest.split_once(STUB_END)?;
    let body: String = body.split_whitespace().collect();
    let der = STANDARD.decode(body).ok()?;
    let (fields, after) = element(&der, SEQUENCE)?;
    let (description, fields) = element(fields, UTF8_STRING)?;
    let (uri, fields) = element(fields, UTF8_STRING)?;
    let (spki, end) = element(fields, OCTET_STRING)?;
    if description != STUB_DESCRIPTION || !end.is_empty() || !after.is_empty() {
        return None;
    }
    let name = std::str::from_utf8(uri).ok()?.strip_prefix("millrace:")?;
    Some(KeyStub {
        name: name.to_owned(),
        spki: spki.to_vec(),
    })
}

/// The content of a DER element with this tag at the start of `der`, and the bytes after it. A length has at
/// most two bytes: a stub has at most 8 KiB.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (length, rest) = match der.strip_prefix(&[tag])? {
        [length @ 0..=0x7f, rest @ ..] => (usize::from(*length), rest),
        [0x81, length @ 0x80..=0xff, rest @ ..] => (usize::from(*length), rest),
        [0x82, high @ 1..=0xff, low, rest @ ..] => {
            (usize::from(u16::from_be_bytes([*high, *low])), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use millrace_client::stub::Stub as Written;

    use super::*;

    fn named(name: &str, spki: &[u8]) -> KeyFile {
        KeyFile::Stub(KeyStub {
            name: name.to_owned(),
            spki: spki.to_vec(),
        })
    }

    #[test]
    fn stubs_of_the_client_are_recognised() {
        let name = "a".repeat(100);
        for (name, spki) in [("www", 1), ("www", 91), (&name, 200), ("www", 2000)] {
            let spki = vec![7; spki];
            let stub = Written::new(name, &spki).expect("a stub").to_pem();
            assert_eq!(classify(&stub), named(name, &spki));
            let certificate = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
            assert_eq!(
                classify(&format!("{certificate}{stub}")),
                named(name, &spki)
            );
        }
    }

    #[test]
    fn private_keys_are_recognised_by_their_label() {
        for label in [
            "PRIVATE KEY",
            "RSA PRIVATE KEY",
            "EC PRIVATE KEY",
            "ENCRYPTED PRIVATE KEY",
        ] {
            assert_eq!(
                classify(&format!("-----BEGIN {label}-----\nAA==\n")),
                KeyFile::Plain
            );
        }
        assert_eq!(classify("-----BEGIN CERTIFICATE-----\n"), KeyFile::Other);
    }

    #[test]
    fn damaged_stubs_are_not_stubs() {
        let good = Written::new("www", &[7; 91]).expect("a stub").to_der();
        let armour = |der: &[u8]| format!("{STUB_BEGIN}\n{}\n{STUB_END}\n", STANDARD.encode(der));
        assert_eq!(classify(&armour(&good)), named("www", &[7; 91]));
        for length in 0..good.len() {
            assert_eq!(
                classify(&armour(&good[..length])),
                KeyFile::Other,
                "{length} bytes"
            );
        }
        let longer = [&good[..], b"x"].concat();
        // The bytes contain the name, but not in its field.
        let misplaced = Written::new("other", b"\x0c\x0cmillrace:www")
            .expect("a stub")
            .to_der();
        assert_eq!(classify(&armour(&longer)), KeyFile::Other);
        assert_eq!(
            classify(&armour(&misplaced)),
            named("other", b"\x0c\x0cmillrace:www")
        );
        assert_eq!(
            classify(&format!("{STUB_BEGIN}\n!!\n{STUB_END}")),
            KeyFile::Other
        );
    }
}
