// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Security associations, as `ip -s xfrm state list nokeys` prints them.

/// A security association, without its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityAssociation {
    /// Source address.
    pub source: String,
    /// Destination address.
    pub destination: String,
    /// The kernel's name of its algorithm.
    pub algorithm: String,
    /// The card to which it is offloaded.
    pub offload: Option<String>,
}

/// Reads the list. Associations without an algorithm (policies of other kinds) are left out.
#[must_use]
pub fn security_associations(text: &str) -> Vec<SecurityAssociation> {
    let mut found: Vec<SecurityAssociation> = Vec::new();
    let mut integrity = None;
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        let mut word = || words.next().unwrap_or_default().to_owned();
        if line.starts_with("src ") {
            let source = word();
            let _ = word();
            let destination = word();
            found.push(SecurityAssociation {
                source,
                destination,
                ..SecurityAssociation::default()
            });
            integrity = None;
        }
        let Some(state) = found.last_mut() else {
            continue;
        };
        match first {
            "aead" => state.algorithm = word(),
            // The integrity precedes the cipher.
            "auth" | "auth-trunc" => integrity = Some(word()),
            "enc" => {
                let cipher = word();
                state.algorithm = match integrity.take() {
                    Some(integrity) => format!("authenc({integrity},{cipher})"),
                    None => cipher,
                };
            }
            "crypto" => {
                state.offload = words.skip_while(|word| *word != "dev").nth(1).map(str::to_owned)
            }
            _ => {}
        }
    }
    found.retain(|state| !state.algorithm.is_empty());
    found
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
        assert_eq!(states[0].offload, None);
        assert_eq!(states[1].algorithm, "rfc4106(gcm(aes))");
        assert_eq!(states[1].offload.as_deref(), Some("eth1"));
        assert_eq!(
            (states[1].source.as_str(), states[1].destination.as_str()),
            ("10.0.0.2", "10.0.0.1")
        );
    }

    #[test]
    fn lines_that_are_not_associations_are_skipped() {
        for text in ["", "src", "src a dst b\n", "enc cbc(aes)\nauth\n\0", "src src src\naead\n"] {
            assert!(
                security_associations(text).iter().all(|state| !state.algorithm.is_empty()),
                "{text:?}"
            );
        }
    }
}
