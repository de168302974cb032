// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The PEM stub: what an application is given in place of a private key. It holds the name and the
//! public half of a key of the pool, and no secret. The provider's decoder understands it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millrace_server::store::KeyMeta;

/// The label of the PEM section.
const LABEL: &str = "MILLRACE KEY";
/// Characters of base64 per line (RFC 7468 section 2).
const LINE: usize = 64;

const SEQUENCE: u8 = 0x30;
const UTF8_STRING: u8 = 0x0c;

/// The stub of a key.
pub(super) fn pem(meta: &KeyMeta) -> String {
    let mut body = Vec::new();
    push(&mut body, UTF8_STRING, meta.name.as_bytes());
    body.extend_from_slice(&meta.info.spki);
    let mut der = Vec::new();
    push(&mut der, SEQUENCE, &body);
    let text = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {LABEL}-----\n");
    for (index, character) in text.chars().enumerate() {
        if index > 0 && index % LINE == 0 {
            pem.push('\n');
        }
        pem.push(character);
    }
    pem.push_str(&format!("\n-----END {LABEL}-----\n"));
    pem
}

/// Tag, length and contents of a DER value below 64 KiB: names and public keys are.
fn push(out: &mut Vec<u8>, tag: u8, contents: &[u8]) {
    out.push(tag);
    let [.., high, low] = contents.len().to_be_bytes();
    match contents.len() {
        0..=0x7f => out.push(low),
        0x80..=0xff => out.extend([0x81, low]),
        _ => out.extend([0x82, high, low]),
    }
    out.extend_from_slice(contents);
}
