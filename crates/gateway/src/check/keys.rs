// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What a key file holds: a stub that names the pool, or a private key. Keys are looked at no closer
//! than their label, and what was read of them is wiped.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::proc;

/// Bound on a key file, in bytes: a bundle with a long chain has 20 KiB.
const MAX_FILE: u64 = 256 * 1024;

const STUB_BEGIN: &str = "-----BEGIN MILLRACE KEY-----";
const STUB_END: &str = "-----END MILLRACE KEY-----";

/// What a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// The stub of the pool's key of this name.
    Stub(String),
    /// A private key.
    Plain,
    /// Neither.
    Nothing,
    /// It cannot be read, for this reason.
    Unreadable(String),
}

/// Looks into a file.
#[must_use]
pub(super) fn look(path: &Path) -> Held {
    match read(path) {
        Ok(bytes) => classify(&String::from_utf8_lossy(&bytes)),
        Err(error) => Held::Unreadable(error.to_string()),
    }
}

/// The bytes of a file, in memory that is not moved while it fills.
fn read(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let file = proc::open(path)?;
    let length = fs::metadata(path)?.len().min(MAX_FILE);
    let capacity = usize::try_from(length).unwrap_or(0).saturating_add(1);
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
    let _ = file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Looks at the text of a file.
#[must_use]
pub(super) fn classify(text: &str) -> Held {
    if let Some(name) = stub_name(text) {
        return Held::Stub(name);
    }
    let private = text
        .lines()
        .any(|line| line.starts_with("-----BEGIN ") && line.contains("PRIVATE KEY-----"));
    if private { Held::Plain } else { Held::Nothing }
}

/// The name in a stub: a DER UTF8String `millrace:NAME`.
fn stub_name(text: &str) -> Option<String> {
    const URI: &[u8] = b"millrace:";
    let (_, rest) = text.split_once(STUB_BEGIN)?;
    let (body, _) = rest.split_once(STUB_END)?;
    let body: String = body.split_whitespace().collect();
    let der = STANDARD.decode(body).ok()?;
    let at = der.windows(URI.len()).position(|window| window == URI)?;
    // Names have at most 100 bytes, so the length has one.
    let length = usize::from(*der.get(at.checked_sub(1)?)?);
    let uri = der.get(at..at.checked_add(length)?)?;
    let name = std::str::from_utf8(uri.get(URI.len()..)?).ok()?;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stubs_are_told_from_keys() {
        let mut der = vec![0x30, 0x20, 0x0c, 0x0e];
        der.extend_from_slice(b"Millrace Key 1\x0c\x0cmillrace:www\x04\x01x");
        let stub = format!("{STUB_BEGIN}\n{}\n{STUB_END}\n", STANDARD.encode(der));
        assert_eq!(classify(&stub), Held::Stub("www".to_owned()));
        let bundle =
            format!("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n{stub}");
        assert_eq!(classify(&bundle), Held::Stub("www".to_owned()));
        for label in [
            "PRIVATE KEY",
            "RSA PRIVATE KEY",
            "EC PRIVATE KEY",
            "ENCRYPTED PRIVATE KEY",
        ] {
            assert_eq!(
                classify(&format!("-----BEGIN {label}-----\nAA==\n")),
                Held::Plain
            );
        }
        assert_eq!(classify("-----BEGIN CERTIFICATE-----\n"), Held::Nothing);
        assert_eq!(
            classify(&format!("{STUB_BEGIN}\n!!\n{STUB_END}")),
            Held::Nothing
        );
        let short = format!(
            "{STUB_BEGIN}\n{}\n{STUB_END}",
            STANDARD.encode(b"\x7fmillrace:w")
        );
        assert_eq!(classify(&short), Held::Nothing);
    }
}
