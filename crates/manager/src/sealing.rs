// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Keys on their way from a manager to one registration of one node: HPKE (RFC 9180) in base mode, with X25519,
//! HKDF-SHA256 and AES-256-GCM, in rustls.
//!
//! ```text
//!  node    pair of keys, new in each process ── public half ──► Registration
//!  manager bundle ── seal(public half, context) ──► SealedKey in the answer to a heartbeat
//!  node    SealedKey ── open(private half, its own context) ──► bundle
//! ```
//!
//! The context is authenticated with the bundle: node, fence, key, version, tenants, and the revision of the answer. A
//! sealed key thus opens at one node, under one lease, in one answer. That it is from a manager follows from TLS.
//!
//! The private half is in memory alone. A new process registers with a new public half and gets its keys again where it
//! lacks them, so that a stolen disk opens no recorded answer.

use std::collections::BTreeSet;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millrace_service::store::FormatError;
use millrace_service::store::bundle::{KeyBundle, MAX_BUNDLE_LEN};
use rustls::crypto::aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_256 as SUITE;
use rustls::crypto::hpke::{EncapsulatedSecret, Hpke, HpkePrivateKey, HpkePublicKey};
use zeroize::Zeroizing;

use crate::model::holder::SealedKey;
use crate::model::name::{KeyName, NodeName, TenantName};

/// Separates this use of HPKE from all others.
const INFO: &[u8] = b"millrace key in transit v1";

/// Length of an X25519 public key, which is also that of an encapsulated secret.
const PUBLIC_LEN: usize = 32;

/// Length of an AES-GCM tag.
const TAG_LEN: usize = 16;

/// Bound on [`SealedKey::ciphertext`].
const MAX_CIPHERTEXT_LEN: usize = (MAX_BUNDLE_LEN + TAG_LEN).div_ceil(3) * 4;

/// Why a key is not sealed or does not open. Never with the key, nor with the bytes that were sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealingError {
    /// The text is not an X25519 public key.
    #[error("the sealing key of the node is not an X25519 key of 64 hexadecimal digits")]
    PublicKey,
    /// HPKE failed: the system has no random numbers, or the public key is none.
    #[error("a key cannot be sealed to the node")]
    Seal,
    /// The sealed key is not base64, or longer than a key can be.
    #[error("the sealed key is damaged")]
    Damaged,
    /// The key was sealed to another node, lease or answer, or was changed.
    #[error(
        "the sealed key does not open: it is for another node, lease or answer, or was changed"
    )]
    Open,
    /// The content has another form.
    #[error(transparent)]
    Form(#[from] FormatError),
}

/// Additional authenticated data of a key in transit.
#[derive(Clone, Copy, Debug)]
pub struct TransitContext<'a> {
    /// Node that the key is for.
    pub node: &'a NodeName,
    /// Fence of its lease.
    pub fence: u64,
    /// Revision of the answer.
    pub revision: u64,
    /// Name of the key.
    pub key: &'a KeyName,
    /// Version of the key.
    pub version: u64,
    /// Tenants that may use the key.
    pub tenants: &'a BTreeSet<TenantName>,
}

impl TransitContext<'_> {
    /// Numbers in 8 bytes, texts after their length in 8 bytes, in this order.
    fn encode(&self) -> Vec<u8> {
        let Self { node, fence, revision, key, version, tenants } = self;
        let mut out = Vec::with_capacity(256);
        let number = |out: &mut Vec<u8>, value: u64| out.extend_from_slice(&value.to_be_bytes());
        for value in [*fence, *revision, *version, tenants.len() as u64] {
            number(&mut out, value);
        }
        let texts = [node.as_str(), key.as_str()].into_iter();
        for text in texts.chain(tenants.iter().map(TenantName::as_str)) {
            number(&mut out, text.len() as u64);
            out.extend_from_slice(text.as_bytes());
        }
        out
    }
}

/// The key pair to which managers seal the keys of this process.
pub struct SealingPair {
    public: HpkePublicKey,
    private: HpkePrivateKey,
}

impl fmt::Debug for SealingPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealingPair({})", self.public_text())
    }
}

impl SealingPair {
    /// A new pair.
    ///
    /// # Errors
    /// [`SealingError::Seal`]: the system has no random numbers.
    pub fn generate() -> Result<Self, SealingError> {
        let (public, private) = SUITE.generate_key_pair().map_err(|_| SealingError::Seal)?;
        Ok(Self { public, private })
    }

    /// The public half, for [`Registration::sealing_key`](crate::model::node::Registration::sealing_key).
    #[must_use]
    pub fn public_text(&self) -> String {
        hex::encode(&self.public.0)
    }

    /// Opens a key of an answer with this fence and revision.
    pub fn open(
        &self,
        node: &NodeName,
        fence: u64,
        revision: u64,
        sealed: &SealedKey,
    ) -> Result<KeyBundle, SealingError> {
        if sealed.ciphertext.len() > MAX_CIPHERTEXT_LEN {
            return Err(SealingError::Damaged);
        }
        let decode = |text: &str| STANDARD.decode(text).map_err(|_| SealingError::Damaged);
        let encapsulated = decode(&sealed.encapsulated)?;
        if encapsulated.len() != PUBLIC_LEN {
            return Err(SealingError::Damaged);
        }
        let ciphertext = decode(&sealed.ciphertext)?;
        let context = TransitContext {
            node,
            fence,
            revision,
            key: &sealed.name,
            version: sealed.version,
            tenants: &sealed.tenants,
        };
        let opened = SUITE.open(
            &EncapsulatedSecret(encapsulated),
            INFO,
            &context.encode(),
            &ciphertext,
            &self.private,
        );
        let opened = Zeroizing::new(opened.map_err(|_| SealingError::Open)?);
        Ok(KeyBundle::parse(&opened)?)
    }
}

fn public_of(text: &str) -> Result<HpkePublicKey, SealingError> {
    let bytes = hex::decode(text).map_err(|_| SealingError::PublicKey)?;
    if bytes.len() != PUBLIC_LEN {
        return Err(SealingError::PublicKey);
    }
    Ok(HpkePublicKey(bytes))
}

/// Seals a key to the node with this public half.
pub fn seal(
    public: &str,
    context: TransitContext<'_>,
    bundle: &KeyBundle,
) -> Result<SealedKey, SealingError> {
    let plain = bundle.encode()?;
    let sealed = SUITE.seal(INFO, &context.encode(), &plain, &public_of(public)?);
    let (encapsulated, ciphertext) = sealed.map_err(|_| SealingError::Seal)?;
    Ok(SealedKey {
        name: context.key.clone(),
        version: context.version,
        tenants: context.tenants.clone(),
        encapsulated: STANDARD.encode(&encapsulated.0),
        ciphertext: STANDARD.encode(&ciphertext),
    })
}

#[cfg(test)]
mod tests {
    use millrace_operation::PrivateKey;
    use millrace_service::policy::KeyPolicy;
    use proptest::prelude::*;

    use super::*;

    const SECRET: &[u8] = b"the private half, which no text may show";

    fn bundle() -> KeyBundle {
        let policy = KeyPolicy::signing([]);
        let key = PrivateKey::from_pkcs8(Zeroizing::new(SECRET.to_vec()));
        KeyBundle { operations: policy.operations, hashes: policy.hashes, versions: vec![key] }
    }

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    /// A key that is sealed to `pair` at node `a`, fence 3, revision 9.
    fn sealed(pair: &SealingPair) -> SealedKey {
        let context = TransitContext {
            node: &node("a"),
            fence: 3,
            revision: 9,
            key: &"www".parse().unwrap(),
            version: 5,
            tenants: &["acme".parse().unwrap()].into(),
        };
        seal(&pair.public_text(), context, &bundle()).unwrap()
    }

    #[test]
    fn key_opens_at_its_node_under_its_lease_in_its_answer_alone() {
        let pair = SealingPair::generate().unwrap();
        let sealed = sealed(&pair);
        let opened = pair.open(&node("a"), 3, 9, &sealed).unwrap();
        assert_eq!(opened.versions[0].dangerous_pkcs8(), SECRET);
        assert_eq!(opened.operations, bundle().operations);
        let refused = |pair: &SealingPair, name, fence, revision, sealed: &SealedKey| {
            let error = pair.open(&node(name), fence, revision, sealed).unwrap_err();
            assert_eq!(error, SealingError::Open, "{name} {fence} {revision}");
        };
        let other = SealingPair::generate().unwrap();
        refused(&other, "a", 3, 9, &sealed);
        refused(&pair, "b", 3, 9, &sealed);
        refused(&pair, "a", 4, 9, &sealed);
        refused(&pair, "a", 3, 10, &sealed);
        let mut changed = sealed.clone();
        changed.version = 6;
        refused(&pair, "a", 3, 9, &changed);
        let mut changed = sealed.clone();
        changed.name = "api".parse().unwrap();
        refused(&pair, "a", 3, 9, &changed);
        let mut changed = sealed;
        changed.tenants.insert("other".parse().unwrap());
        refused(&pair, "a", 3, 9, &changed);
    }

    #[test]
    fn longest_key_is_sealed_and_a_longer_text_is_refused_before_it_is_decoded() {
        let pair = SealingPair::generate().unwrap();
        let key = |_| PrivateKey::from_pkcs8(Zeroizing::new(vec![1; 8 * 1024]));
        let most = KeyBundle { versions: (0..5).map(key).collect(), ..bundle() };
        let mut one = sealed(&pair);
        let context = TransitContext {
            node: &node("a"),
            fence: 3,
            revision: 9,
            key: &one.name.clone(),
            version: one.version,
            tenants: &one.tenants.clone(),
        };
        let sealed = seal(&pair.public_text(), context, &most).unwrap();
        assert_eq!(pair.open(&node("a"), 3, 9, &sealed).unwrap().versions.len(), 5);
        one.ciphertext = "A".repeat(MAX_CIPHERTEXT_LEN + 1);
        let refused = pair.open(&node("a"), 3, 9, &one).unwrap_err();
        assert_eq!(refused, SealingError::Damaged);
    }

    #[test]
    fn public_half_of_another_form_is_refused() {
        for wrong in ["", "00", &"zz".repeat(32), &"00".repeat(33)] {
            assert!(public_of(wrong).is_err(), "{wrong}");
        }
        // The point of order 1 would give a shared secret of zeros, which HPKE refuses (RFC 9180 section 7.1.4).
        let context = TransitContext {
            node: &node("a"),
            fence: 3,
            revision: 9,
            key: &"www".parse().unwrap(),
            version: 5,
            tenants: &BTreeSet::new(),
        };
        let refused = seal(&"00".repeat(32), context, &bundle()).unwrap_err();
        assert_eq!(refused, SealingError::Seal);
    }

    #[test]
    fn no_debug_text_and_no_answer_shows_the_key() {
        let pair = SealingPair::generate().unwrap();
        let sealed = sealed(&pair);
        let texts = [
            format!("{pair:?} {:?}", bundle()),
            format!("{sealed:?}"),
            serde_json::to_string(&sealed).unwrap(),
        ];
        let marks = [
            String::from_utf8_lossy(&SECRET[..11]).into_owned(),
            STANDARD.encode(&SECRET[..12]),
            hex::encode(&SECRET[..8]),
            format!("{:?}", &SECRET[..6]).replace(']', ""),
            hex::encode(pair.private.secret_bytes()),
        ];
        for text in texts {
            for mark in &marks {
                assert!(!text.contains(mark.as_str()), "{text}");
            }
        }
    }

    proptest! {
        #[test]
        fn changed_sealed_key_never_opens(at in any::<prop::sample::Index>(), flip in 1_u8.., which in any::<bool>()) {
            let pair = SealingPair::generate().unwrap();
            let mut changed = sealed(&pair);
            let text = if which { &mut changed.ciphertext } else { &mut changed.encapsulated };
            let mut bytes = STANDARD.decode(&text).unwrap();
            let at = at.index(bytes.len());
            // X25519 ignores the highest bit of a point (RFC 7748 section 5), but HPKE hashes it.
            bytes[at] ^= flip;
            *text = STANDARD.encode(bytes);
            prop_assert!(pair.open(&node("a"), 3, 9, &changed).is_err());
        }

        #[test]
        fn any_text_in_the_place_of_a_sealed_key_is_refused(encapsulated in ".{0,80}", ciphertext in ".{0,200}") {
            let pair = SealingPair::generate().unwrap();
            let foreign = SealedKey { encapsulated, ciphertext, ..sealed(&pair) };
            prop_assert!(pair.open(&node("a"), 3, 9, &foreign).is_err());
        }
    }
}
