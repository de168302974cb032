// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Key stubs: files and URIs that name a key in the pool in place of a private key.
//!
//! A stub is a PEM block that an application loads like a private key. It has the name of the key and
//! its public half, so that loading it needs no connection; there is no secret in it.
//!
//! ```text
//! Millrace key stub: …
//! -----BEGIN MILLRACE KEY-----
//! base64 of DER: SEQUENCE {
//!   description  UTF8String,      -- "Millrace Key 1"
//!   uri          UTF8String,      -- "millrace:name"
//!   spki         OCTET STRING }   -- DER SubjectPublicKeyInfo
//! -----END MILLRACE KEY-----
//! ```
//!
//! The text before the block is for readers of the file. Readers of PEM pass over it (RFC 7468 section 2).
//!
//! Pure: no I/O, no cryptography. The parser accepts what [`Stub::to_pem`] writes and little more.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use crate::der::{DerReader, element, tag};
use crate::key::MAX_KEY_NAME_LEN;

/// The text before the PEM block: programs say of a stub which they cannot read only that it is no key.
const ABOUT: &str = "Millrace key stub: names a key in a pool and holds no secret. Only OpenSSL 3 with Millrace's \
                     provider (OPENSSL_CONF) reads it.";

/// U+FEFF in UTF-8. OpenSSL passes over it at the start of a PEM text.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// First line of the PEM block of a stub.
pub const BEGIN: &str = "-----BEGIN MILLRACE KEY-----";

/// Last line of the PEM block of a stub.
const END: &str = "-----END MILLRACE KEY-----";

/// First field of a stub: format and version.
pub const DESCRIPTION: &str = "Millrace Key 1";

/// Scheme of a key URI.
pub const SCHEME: &str = "millrace";

/// Bound on the DER of a stub, in bytes: RSA-8192 and DH-8192 public halves take 1.1 and 2.2 KiB.
pub const MAX_STUB_LEN: usize = 8 * 1024;

/// Bound on the PEM of a stub: base64 of [`MAX_STUB_LEN`], line ends and labels.
pub const MAX_PEM_LEN: usize = 12 * 1024;

/// Bytes per line of base64, as RFC 7468 has it.
const LINE: usize = 64;

/// The name of a key in the pool and its public half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stub {
    /// Name of the key in the pool.
    pub name: String,
    /// DER `SubjectPublicKeyInfo`.
    pub spki: Vec<u8>,
}

/// A parsed key URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUri {
    /// The name of the key in the pool.
    pub name: String,
    /// DER `SubjectPublicKeyInfo`, if the URI has it.
    pub spki: Option<Vec<u8>>,
}

impl Stub {
    /// A stub for the key `name`. `None` if the name cannot stand in a URI or the public half is too
    /// long.
    #[must_use]
    pub fn new(name: &str, spki: &[u8]) -> Option<Self> {
        let stub = Self { name: name.to_owned(), spki: spki.to_vec() };
        let fits = is_valid_name(name) && !spki.is_empty() && stub.to_der().len() <= MAX_STUB_LEN;
        fits.then_some(stub)
    }

    /// The PEM block below a line that says what it is, with a line end.
    #[must_use]
    pub fn to_pem(&self) -> String {
        let encoded = STANDARD.encode(self.to_der());
        let mut pem = format!("{ABOUT}\n{BEGIN}\n");
        let mut rest = encoded.as_str();
        while !rest.is_empty() {
            let (line, more) = rest.split_at(rest.len().min(LINE));
            pem.push_str(line);
            pem.push('\n');
            rest = more;
        }
        pem.push_str(END);
        pem.push('\n');
        pem
    }

    /// The URI with the public half, which is opened without a node: `millrace:name?spki=BASE64URL`.
    #[must_use]
    pub fn to_uri(&self) -> String {
        format!("{SCHEME}:{}?spki={}", self.name, URL_SAFE_NO_PAD.encode(&self.spki))
    }

    /// The DER in the PEM block.
    #[must_use]
    pub fn to_der(&self) -> Vec<u8> {
        let body = [
            element(tag::UTF8_STRING, DESCRIPTION.as_bytes()),
            element(tag::UTF8_STRING, format!("{SCHEME}:{}", self.name).as_bytes()),
            element(tag::OCTET_STRING, &self.spki),
        ];
        element(tag::SEQUENCE, &body.concat())
    }

    /// The stub in `der`; `None` if it is anything else.
    #[must_use]
    pub fn from_der(der: &[u8]) -> Option<Self> {
        if der.len() > MAX_STUB_LEN {
            return None;
        }
        let mut outer = DerReader::new(der);
        let mut body = DerReader::new(outer.take(tag::SEQUENCE)?);
        let description = body.take(tag::UTF8_STRING)?;
        let uri = body.take(tag::UTF8_STRING)?;
        let spki = body.take(tag::OCTET_STRING)?;
        if description != DESCRIPTION.as_bytes() || !outer.is_empty() || !body.is_empty() {
            return None;
        }
        let uri = parse_uri(std::str::from_utf8(uri).ok()?)?;
        if uri.spki.is_some() || spki.is_empty() {
            return None;
        }
        Some(Self { name: uri.name, spki: spki.to_vec() })
    }

    /// The first stub in a PEM text that may have more, such as certificates; `None` if there is none.
    #[must_use]
    pub fn find(text: &str) -> Option<Self> {
        let text = &text[text.find(BEGIN)?..];
        Self::from_pem(&text[..text.find(END)? + END.len()])
    }

    /// The stub in a PEM text that has no other block; `None` if it is anything else.
    #[must_use]
    pub fn from_pem(pem: &str) -> Option<Self> {
        let (about, block) = pem.split_at(pem.find(BEGIN)?);
        Self::from_der(&pem_to_der(block)?).filter(|_| !about.contains("-----"))
    }
}

/// Whether a line begins the PEM block of a stub.
#[must_use]
pub fn is_begin(line: &[u8]) -> bool {
    line.trim_ascii_end() == BEGIN.as_bytes()
}

/// The bytes in the PEM block of a stub. Blanks and NUL bytes may follow the last line: a text of a configuration
/// has no line end there, and its end is what the application stores behind it.
#[must_use]
pub fn pem_to_der(pem: &str) -> Option<Vec<u8>> {
    if pem.len() > MAX_PEM_LEN {
        return None;
    }
    let text = pem.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    let text = text.strip_prefix(BEGIN)?.strip_suffix(END)?;
    let encoded: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    STANDARD.decode(encoded).ok()
}

/// Parses `millrace:name` or `millrace:name?spki=BASE64URL`; `None` if it is anything else.
#[must_use]
pub fn parse_uri(uri: &str) -> Option<KeyUri> {
    let (scheme, rest) = uri.split_once(':')?;
    if !scheme.eq_ignore_ascii_case(SCHEME) {
        return None;
    }
    let (name, query) = match rest.split_once('?') {
        Some((name, query)) => (name, Some(query)),
        None => (rest, None),
    };
    if !is_valid_name(name) {
        return None;
    }
    let spki = match query {
        None => None,
        Some(query) if query.len() <= MAX_PEM_LEN => {
            let encoded = query.strip_prefix("spki=")?.trim_end_matches('=');
            let spki = URL_SAFE_NO_PAD.decode(encoded).ok()?;
            Some(spki).filter(|spki| !spki.is_empty())
        }
        Some(_) => return None,
    };
    if query.is_some() && spki.is_none() {
        return None;
    }
    Some(KeyUri { name: name.to_owned(), spki })
}

/// Whether a name can stand in a URI as it is, and the protocol can carry it.
fn is_valid_name(name: &str) -> bool {
    let mut characters = name.chars();
    (1..=MAX_KEY_NAME_LEN).contains(&name.len())
        && !characters.any(|c| c.is_control() || c.is_whitespace() || matches!(c, '?' | '#' | '%'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stub_survives_its_pem() {
        for len in [1, 91, 127, 128, 255, 256, 294, 2200] {
            let stub = Stub::new("www.example.org/rsa", &vec![7; len]).expect("stub");
            let pem = stub.to_pem();
            assert_eq!(Stub::from_pem(&pem).as_ref(), Some(&stub), "{len}");
            let bundle = format!(
                "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n{pem}more\n"
            );
            assert_eq!(Stub::find(&bundle).as_ref(), Some(&stub), "{len}");
            assert_eq!(Stub::from_pem(&bundle), None, "{len}");
            let (about, block) = pem.split_once('\n').expect("lines");
            assert_eq!(about, ABOUT);
            assert!(block.lines().all(|line| line.len() <= LINE));
            assert!(block.lines().next().is_some_and(|line| is_begin(line.as_bytes())));
            for end in ["", "\0", "\r\n \0\0"] {
                let variant = format!("{}{end}", pem.trim_end());
                assert_eq!(Stub::from_pem(&variant).as_ref(), Some(&stub), "{len} {end:?}");
            }
            assert_eq!(Stub::from_pem(&format!("{}x", pem.trim_end())), None, "{len}");
        }
    }

    #[test]
    fn name_that_a_uri_cannot_carry_is_refused() {
        for name in ["", "a b", "a?b", "a#b", "a%20b", "a\nb", &"x".repeat(MAX_KEY_NAME_LEN + 1)] {
            assert_eq!(Stub::new(name, &[1]), None, "{name}");
        }
        assert_eq!(Stub::new("a", &vec![0; MAX_STUB_LEN]), None);
        assert_eq!(Stub::new("a", &[]), None);
    }

    #[test]
    fn damaged_byte_is_refused_or_changes_the_content() {
        let stub = Stub::new("key", &[9; 40]).expect("stub");
        let der = stub.to_der();
        for index in 0..der.len() {
            let mut damaged = der.clone();
            damaged[index] ^= 0x80;
            assert_ne!(Stub::from_der(&damaged), Some(stub.clone()), "byte {index}");
            assert_eq!(Stub::from_der(&der[..index]), None, "cut at {index}");
        }
        let mut longer = der;
        longer.push(0);
        assert_eq!(Stub::from_der(&longer), None);
    }

    #[test]
    fn uri_is_parsed_into_name_and_public_key() {
        let plain = parse_uri("millrace:web").expect("uri");
        assert_eq!((plain.name.as_str(), plain.spki), ("web", None));
        let full = parse_uri("millrace:web?spki=AQID").expect("uri");
        assert_eq!(full.spki.as_deref(), Some(&[1, 2, 3][..]));
        let stub = Stub::new("web", &[0xff; 91]).expect("stub");
        let read = parse_uri(&stub.to_uri()).expect("its own URI");
        assert_eq!((read.name, read.spki), (stub.name, Some(stub.spki)));
        for bad in [
            "millrace:",
            "pkcs11:web",
            "web",
            "millrace:w?spki=",
            "millrace:w?x=1",
            "millrace:w?spki=*",
        ] {
            assert_eq!(parse_uri(bad), None, "{bad}");
        }
    }
}
