// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Proposals of IKE and ESP: `aes256gcm16-prfsha384-ecp384`, in strongSwan's keywords.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A cipher of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpsecCipher {
    /// AES-128-GCM with a tag of 16 bytes.
    Aes128Gcm,
    /// AES-256-GCM with a tag of 16 bytes.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
    /// AES-128-CBC, with a hash.
    Aes128Cbc,
    /// AES-256-CBC, with a hash.
    Aes256Cbc,
}

/// A hash: of integrity with a CBC cipher, of key derivation in IKE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpsecHash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

/// A group of a key exchange, by its number in IKE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IkeGroup {
    /// 14: 2048 bits.
    Modp2048,
    /// 15: 3072 bits.
    Modp3072,
    /// 16: 4096 bits.
    Modp4096,
    /// 19: P-256.
    Ecp256,
    /// 20: P-384.
    Ecp384,
    /// 21: P-521.
    Ecp521,
    /// 31: X25519.
    Curve25519,
    /// 32: X448.
    Curve448,
}

/// Ciphers: strongSwan's keyword, VyOS's name, and other spellings of strongSwan.
const CIPHERS: &[(IpsecCipher, &str, &str, &[&str])] = &[
    (IpsecCipher::Aes128Gcm, "aes128gcm16", "aes128gcm128", &["aes128gcm128", "aes128gcm"]),
    (IpsecCipher::Aes256Gcm, "aes256gcm16", "aes256gcm128", &["aes256gcm128", "aes256gcm"]),
    (IpsecCipher::ChaCha20Poly1305, "chacha20poly1305", "chacha20poly1305", &[]),
    (IpsecCipher::Aes128Cbc, "aes128", "aes128", &[]),
    (IpsecCipher::Aes256Cbc, "aes256", "aes256", &[]),
];

/// Hashes: keyword and name of VyOS; with `prf` in front as a function that derives keys.
const HASHES: &[(IpsecHash, &str)] =
    &[(IpsecHash::Sha256, "sha256"), (IpsecHash::Sha384, "sha384"), (IpsecHash::Sha512, "sha512")];

/// Groups: strongSwan's keyword, the number in IKE, which is VyOS's name.
const GROUPS: &[(IkeGroup, &str, &str)] = &[
    (IkeGroup::Modp2048, "modp2048", "14"),
    (IkeGroup::Modp3072, "modp3072", "15"),
    (IkeGroup::Modp4096, "modp4096", "16"),
    (IkeGroup::Ecp256, "ecp256", "19"),
    (IkeGroup::Ecp384, "ecp384", "20"),
    (IkeGroup::Ecp521, "ecp521", "21"),
    (IkeGroup::Curve25519, "curve25519", "31"),
    (IkeGroup::Curve448, "curve448", "32"),
];

/// Algorithms that old configurations have, in strongSwan's and VyOS's names, and why a link has none of them.
const REFUSED: &[(&str, &str)] = &[
    ("3des", "has blocks of 64 bits, which repeat after some gigabytes (SWEET32)"),
    ("des", "is broken"),
    ("blowfish", "has blocks of 64 bits, which repeat after some gigabytes (SWEET32)"),
    ("cast", "has blocks of 64 bits, which repeat after some gigabytes (SWEET32)"),
    ("null", "does not encrypt"),
    ("md5", "is broken"),
    ("sha1", "is deprecated (RFC 8247 allows it for old peers only)"),
    ("modp768", "is broken"),
    ("modp1024", "is within reach of states (Logjam)"),
    ("modp1536", "is too short"),
];

/// A proposal of IKE: cipher, hash of integrity and key derivation, group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IkeProposal {
    /// Cipher of IKE messages.
    pub cipher: IpsecCipher,
    /// Derives keys; with a CBC cipher it also protects.
    pub hash: IpsecHash,
    /// Group of the key exchange.
    pub group: IkeGroup,
}

/// A proposal of ESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspProposal {
    /// Cipher of ESP packets.
    pub cipher: IpsecCipher,
    /// Integrity of a CBC cipher; `None` for the others, which have it.
    pub hash: Option<IpsecHash>,
    /// Group of the key exchange at each rekeying (perfect forward secrecy); `None` for a rekeying without one.
    pub group: Option<IkeGroup>,
}

impl IpsecCipher {
    /// Whether the cipher includes integrity.
    #[must_use]
    pub fn is_aead(self) -> bool {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm | Self::ChaCha20Poly1305 => true,
            Self::Aes128Cbc | Self::Aes256Cbc => false,
        }
    }

    fn row(self) -> &'static (Self, &'static str, &'static str, &'static [&'static str]) {
        let row = CIPHERS.iter().find(|row| row.0 == self);
        row.expect("the table has each cipher")
    }

    /// VyOS's name.
    #[must_use]
    pub fn vyos(self) -> &'static str {
        self.row().2
    }

    /// The cipher with a name of VyOS.
    pub fn of_vyos(name: &str) -> Result<Self, ProposalError> {
        let row = CIPHERS.iter().find(|row| row.2 == name);
        row.map(|row| row.0).ok_or_else(|| no_such(name))
    }
}

impl IpsecHash {
    /// The name that strongSwan and VyOS use.
    #[must_use]
    pub fn name(self) -> &'static str {
        let row = HASHES.iter().find(|row| row.0 == self);
        row.expect("the table has each hash").1
    }

    /// The hash with this name.
    pub fn from_name(name: &str) -> Result<Self, ProposalError> {
        let row = HASHES.iter().find(|row| row.1 == name);
        row.map(|row| row.0).ok_or_else(|| no_such(name))
    }
}

impl IkeGroup {
    fn row(self) -> &'static (Self, &'static str, &'static str) {
        let row = GROUPS.iter().find(|row| row.0 == self);
        row.expect("the table has each group")
    }

    /// The number in IKE, which is VyOS's name.
    #[must_use]
    pub fn number(self) -> &'static str {
        self.row().2
    }

    /// The group with a number.
    pub fn of_number(number: &str) -> Result<Self, ProposalError> {
        let old = [("1", "modp768"), ("2", "modp1024"), ("5", "modp1536")];
        if let Some((_, name)) = old.iter().find(|(old, _)| *old == number) {
            return Err(no_such(name));
        }
        let row = GROUPS.iter().find(|row| row.2 == number);
        row.map(|row| row.0).ok_or_else(|| no_such(&format!("group {number}")))
    }
}

/// Why a proposal, or a part of one, is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProposalError {
    /// The algorithm is weak.
    #[error("{name} {why}")]
    Weak {
        /// The refused word.
        name: String,
        /// Its weakness.
        why: &'static str,
    },
    /// The algorithm is in no table.
    #[error("{0} is not known")]
    Unknown(String),
    /// The proposal has a second cipher, hash or group.
    #[error("{0} is one too many of its kind: write a list of proposals")]
    Repeated(String),
    /// The proposal has no cipher.
    #[error("names no cipher")]
    NoCipher,
    /// The proposal of IKE has no hash.
    #[error("names no hash: add -prfsha256")]
    NoHash,
    /// The proposal of ESP has a CBC cipher and no hash.
    #[error("names no hash, which a CBC cipher needs: add -sha256")]
    NoIntegrity,
    /// The hashes of integrity and key derivation differ.
    #[error("has two hashes: write one")]
    TwoHashes,
    /// The proposal of IKE has no group.
    #[error("names no group: add -curve25519")]
    NoGroup,
    /// The proposal of ESP has a function that derives keys.
    #[error("has a prf, which only IKE has")]
    Prf,
}

fn no_such(name: &str) -> ProposalError {
    let name = name.to_owned();
    match REFUSED.iter().find(|(refused, _)| name.starts_with(refused)) {
        Some((_, why)) => ProposalError::Weak { name, why },
        None => ProposalError::Unknown(name),
    }
}

/// The parts of a proposal, each at most once.
#[derive(Default)]
struct Parts {
    cipher: Option<IpsecCipher>,
    integrity: Option<IpsecHash>,
    derivation: Option<IpsecHash>,
    group: Option<IkeGroup>,
}

fn parts(text: &str) -> Result<Parts, ProposalError> {
    fn put<T>(place: &mut Option<T>, value: T, word: &str) -> Result<(), ProposalError> {
        match place.replace(value) {
            None => Ok(()),
            Some(_) => Err(ProposalError::Repeated(word.to_owned())),
        }
    }
    let mut parts = Parts::default();
    for word in text.split('-') {
        let cipher = CIPHERS
            .iter()
            .find(|(_, keyword, _, others)| *keyword == word || others.contains(&word));
        let group = GROUPS.iter().find(|(_, keyword, _)| *keyword == word);
        if let Some((cipher, ..)) = cipher {
            put(&mut parts.cipher, *cipher, word)?;
        } else if let Some((group, ..)) = group {
            put(&mut parts.group, *group, word)?;
        } else if let Some(hash) = word.strip_prefix("prf") {
            put(&mut parts.derivation, IpsecHash::from_name(hash)?, word)?;
        } else {
            put(&mut parts.integrity, IpsecHash::from_name(word)?, word)?;
        }
    }
    Ok(parts)
}

impl FromStr for IkeProposal {
    type Err = ProposalError;

    fn from_str(text: &str) -> Result<Self, ProposalError> {
        let Parts { cipher, integrity, derivation, group } = parts(text)?;
        let cipher = cipher.ok_or(ProposalError::NoCipher)?;
        let hash = match (integrity, derivation) {
            (Some(one), Some(other)) if one != other => {
                return Err(ProposalError::TwoHashes);
            }
            (_, Some(hash)) | (Some(hash), None) => hash,
            (None, None) => return Err(ProposalError::NoHash),
        };
        let group = group.ok_or(ProposalError::NoGroup)?;
        Ok(Self { cipher, hash, group })
    }
}

impl FromStr for EspProposal {
    type Err = ProposalError;

    fn from_str(text: &str) -> Result<Self, ProposalError> {
        let Parts { cipher, integrity, derivation, group } = parts(text)?;
        let cipher = cipher.ok_or(ProposalError::NoCipher)?;
        if derivation.is_some() {
            return Err(ProposalError::Prf);
        }
        if !cipher.is_aead() && integrity.is_none() {
            return Err(ProposalError::NoIntegrity);
        }
        Ok(Self { cipher, hash: integrity.filter(|_| !cipher.is_aead()), group })
    }
}

/// Proposals of a swanctl.conf, in their order: one that offers several groups becomes one for each. Those with an
/// additional key exchange (ML-KEM), which link.toml does not have, are left out.
#[must_use]
pub fn expand<T: FromStr + PartialEq>(list: &str) -> Vec<T> {
    let is_group = |word: &&str| GROUPS.iter().any(|(_, keyword, _)| keyword == word);
    let mut proposals: Vec<T> = Vec::new();
    for proposal in list.split(',').map(str::trim) {
        if proposal.contains("-ke1_") {
            continue;
        }
        let words = proposal.split('-').filter(|word| !word.ends_with("esn"));
        let (groups, rest): (Vec<&str>, Vec<&str>) = words.partition(is_group);
        for group in groups {
            let one: Option<T> = format!("{}-{group}", rest.join("-")).parse().ok();
            let new = one.filter(|one| !proposals.contains(one));
            proposals.extend(new);
        }
    }
    proposals
}

impl fmt::Display for IkeProposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cipher, hash, group } = self;
        let prefix = if cipher.is_aead() { "prf" } else { "" };
        let cipher = cipher.row().1;
        let group = group.row().1;
        write!(f, "{cipher}-{prefix}{}-{group}", hash.name())
    }
}

impl fmt::Display for EspProposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.cipher.row().1)?;
        if let Some(hash) = self.hash {
            write!(f, "-{}", hash.name())?;
        }
        match self.group {
            Some(group) => write!(f, "-{}", group.row().1),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proposals_are_read_in_each_spelling_and_written_in_one() {
        for (text, expected) in [
            ("aes256gcm128-sha256-ecp256", "aes256gcm16-prfsha256-ecp256"),
            ("aes256gcm16-prfsha384-ecp384", "aes256gcm16-prfsha384-ecp384"),
            ("aes256gcm-prfsha512-curve25519", "aes256gcm16-prfsha512-curve25519"),
            ("chacha20poly1305-prfsha256-modp3072", "chacha20poly1305-prfsha256-modp3072"),
            ("aes128-sha256-modp2048", "aes128-sha256-modp2048"),
        ] {
            let read: IkeProposal = text.parse().expect("a proposal");
            assert_eq!(read.to_string(), expected);
            assert_eq!(expected.parse(), Ok(read));
        }
        for (text, expected) in [
            ("aes256gcm16", "aes256gcm16"),
            ("aes256gcm16-sha256-ecp384", "aes256gcm16-ecp384"),
            ("aes256-sha512", "aes256-sha512"),
        ] {
            let read: EspProposal = text.parse().expect("a proposal");
            assert_eq!(read.to_string(), expected);
        }
    }

    #[test]
    fn proposal_with_several_groups_becomes_one_for_each() {
        let list = "aes256gcm16-prfsha384-curve25519-ke1_mlkem768, aes256gcm16-prfsha384-ecp384-curve25519, \
                    chacha20poly1305-prfsha384-ecp384, rot13-prfsha384-ecp384";
        let text = |all: Vec<IkeProposal>| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            text(expand(list)),
            [
                "aes256gcm16-prfsha384-ecp384",
                "aes256gcm16-prfsha384-curve25519",
                "chacha20poly1305-prfsha384-ecp384"
            ]
        );
        let esp: Vec<EspProposal> =
            expand("aes256-sha256-ecp384-esn-noesn, aes256gcm16-ecp384-esn");
        let esp: Vec<String> = esp.iter().map(ToString::to_string).collect();
        assert_eq!(esp, ["aes256-sha256-ecp384", "aes256gcm16-ecp384"]);
    }

    #[test]
    fn weak_and_incomplete_proposals_are_refused_with_the_reason() {
        for (text, expected) in [
            ("3des-sha256-modp2048", "SWEET32"),
            ("aes256-md5-modp2048", "is broken"),
            ("aes256-sha1-modp2048", "deprecated"),
            ("aes256-sha256-modp1024", "Logjam"),
            ("aes256gcm16-ecp256", "names no hash"),
            ("aes256gcm16-prfsha256", "names no group"),
            ("prfsha256-ecp256", "names no cipher"),
            ("aes256-aes128-sha256-ecp256", "one too many"),
            ("rot13-sha256-ecp256", "rot13 is not known"),
            ("", "is not known"),
        ] {
            let error = text.parse::<IkeProposal>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert_eq!("aes256".parse::<EspProposal>(), Err(ProposalError::NoIntegrity));
        assert_eq!("aes256gcm16-prfsha256".parse::<EspProposal>(), Err(ProposalError::Prf));
        assert!(IkeGroup::of_number("2").is_err_and(|why| why.to_string().contains("Logjam")));
    }
}
