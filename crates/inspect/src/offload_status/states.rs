// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Security associations, as `ip -s xfrm state list nokeys` prints them.

use schemars::JsonSchema;
use serde::Serialize;

/// Bound on security associations.
const MAX_STATES: usize = 1024;

/// A security association, without its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SecurityAssociation {
    /// Source address
    pub source: String,
    /// Destination address
    pub destination: String,
    /// The kernel's name of its algorithm
    pub algorithm: String,
    /// The card to which it is offloaded
    pub offload: Option<String>,
    /// Bytes since its creation
    pub bytes: Option<u64>,
}

/// Reads the list. Associations without an algorithm (policies of other kinds) are left out.
#[must_use]
pub fn security_associations(text: &str) -> Vec<SecurityAssociation> {
    let mut found = Vec::new();
    let mut state = Raw::default();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("src ") {
            found.extend(std::mem::take(&mut state).finish());
            let mut words = rest.split_ascii_whitespace();
            state.source = words.next().unwrap_or_default().to_owned();
            state.destination = words.nth(1).unwrap_or_default().to_owned();
        } else {
            state.line(line.trim());
        }
    }
    found.extend(state.finish());
    found.truncate(MAX_STATES);
    found
}

#[derive(Default)]
struct Raw {
    source: String,
    destination: String,
    aead: Option<String>,
    cipher: Option<String>,
    integrity: Option<String>,
    offload: Option<String>,
    bytes: Option<u64>,
}

impl Raw {
    fn line(&mut self, line: &str) {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("aead") => self.aead = words.next().map(str::to_owned),
            Some("enc") => self.cipher = words.next().map(str::to_owned),
            Some("auth" | "auth-trunc") => self.integrity = words.next().map(str::to_owned),
            Some("crypto") if line.starts_with("crypto offload") => {
                let mut words = words.skip_while(|word| *word != "dev");
                self.offload = words.nth(1).map(str::to_owned);
            }
            Some(first) if self.bytes.is_none() => {
                let number = first.strip_suffix("(bytes),");
                self.bytes = number.and_then(|number| number.parse().ok());
            }
            _ => {}
        }
    }

    fn finish(self) -> Option<SecurityAssociation> {
        let algorithm = match (self.aead, self.cipher, self.integrity) {
            (Some(aead), ..) => aead,
            (None, Some(cipher), Some(integrity)) => format!("authenc({integrity},{cipher})"),
            (None, Some(cipher), None) => cipher,
            _ => return None,
        };
        Some(SecurityAssociation {
            source: self.source,
            destination: self.destination,
            algorithm,
            offload: self.offload,
            bytes: self.bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
src 10.0.0.1 dst 10.0.0.2
\tproto esp spi 0xc0000001(3221225473) reqid 1(0x00000001) mode tunnel
\treplay-window 32 seq 0x00000000 flag af-unspec (0x00100000)
\tauth-trunc hmac(sha256) <<Keys hidden>> 128
\tenc cbc(aes) <<Keys hidden>>
\tlifetime current:
\t  123456(bytes), 1200(packets)
src 10.0.0.2 dst 10.0.0.1
\tproto esp spi 0xc0000002(3221225474) reqid 1(0x00000001) mode tunnel
\taead rfc4106(gcm(aes)) <<Keys hidden>> 128
\tcrypto offload parameters: dev eth1 dir in mode crypto
";

    #[test]
    fn associations_are_read_without_keys() {
        let states = security_associations(TEXT);
        assert_eq!(states.len(), 2);
        assert_eq!(states[0].algorithm, "authenc(hmac(sha256),cbc(aes))");
        assert_eq!(
            (states[0].bytes, states[0].offload.as_deref()),
            (Some(123_456), None)
        );
        assert_eq!(states[1].algorithm, "rfc4106(gcm(aes))");
        assert_eq!(states[1].offload.as_deref(), Some("eth1"));
        assert_eq!(
            (states[1].source.as_str(), states[1].destination.as_str()),
            ("10.0.0.2", "10.0.0.1")
        );
    }

    #[test]
    fn nonsense_is_left_out() {
        for text in [
            "",
            "src",
            "src a dst b\n",
            "enc cbc(aes)\nauth\n\0",
            "src src src\naead\n",
        ] {
            assert!(
                security_associations(text)
                    .iter()
                    .all(|state| !state.algorithm.is_empty()),
                "{text:?}"
            );
        }
        let many = "src a dst b\n aead x\n".repeat(2 * MAX_STATES);
        assert_eq!(security_associations(&many).len(), MAX_STATES);
    }
}
