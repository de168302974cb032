// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Keys of the card.
//!
//! An RSA key is held three times: as an AWS-LC object, to verify results; as bytes in this process; and as bytes in
//! device memory, copied at the first request after each start of the card. That copy is zeroised when the key
//! is closed and its last request has been answered, or the card has stopped. A key for agreements is not copied to
//! device memory: each request has a share of it (`agreement`).

use std::sync::{Arc, Mutex};

use millrace_operation::sync::lock;
use millrace_operation::{KeyError, KeyInfo, KeyType};
use millrace_qat::QatLibrary;
use zeroize::Zeroizing;

use super::agreement::AgreementKey;
use super::capabilities::SIZES;
use super::sys::KeyParts;
use crate::blinding::BlindedRsa;
use crate::simd::RootKey;
use crate::software::keys::{self, LoadedKey, Secret};

pub(super) enum QatKey {
    Rsa(RsaKey),
    Agreement(AgreementKey),
}

pub(super) struct RsaKey {
    pub(super) blinded: BlindedRsa,
    /// The public key, to verify several results at once. `None` if it does not fit the lanes.
    pub(super) lanes: Option<RootKey>,
    /// p, q, dp, dq and 1/q mod p, each half as long as the modulus. `None` for a key with a longer number, which is
    /// rare: the card's function does not take it, and all operations of the key run on AWS-LC.
    parts: Option<Zeroizing<Vec<u8>>>,
    /// The copy in device memory, with the number of the start for which it was made.
    on_card: Mutex<Option<(u64, Arc<KeyParts>)>>,
}

/// Parses, checks and prepares a key.
pub(super) fn load(pkcs8: &[u8]) -> Result<QatKey, KeyError> {
    let software = keys::load(pkcs8)?;
    match (&software.secret, software.info.key_type) {
        (Secret::Rsa(_), KeyType::Rsa { bits }) if SIZES.contains(&bits) => {
            let blinded = BlindedRsa::of(software)?;
            let [modulus, exponent, _, numbers @ ..] = keys::rsa_numbers(pkcs8)?;
            let parts = parts(&numbers, blinded.len() / 2);
            let lanes = RootKey::new(modulus, exponent);
            Ok(QatKey::Rsa(RsaKey { parts, blinded, lanes, on_card: Mutex::default() }))
        }
        (Secret::Ec(_) | Secret::X25519(_) | Secret::Dh(_), _) => {
            AgreementKey::new(software).map(QatKey::Agreement).ok_or(KeyError::NotOffered)
        }
        _ => Err(KeyError::NotOffered),
    }
}

/// The numbers, each padded to `half` bytes.
fn parts(numbers: &[&[u8]; 5], half: usize) -> Option<Zeroizing<Vec<u8>>> {
    let mut parts = Zeroizing::new(Vec::with_capacity(5 * half));
    for number in numbers {
        let zeros = number.iter().take_while(|byte| **byte == 0).count();
        let number = &number[zeros..];
        parts.extend(std::iter::repeat_n(0, half.checked_sub(number.len())?));
        parts.extend_from_slice(number);
    }
    Some(parts)
}

impl QatKey {
    /// The key as AWS-LC has it.
    pub(super) fn software(&self) -> &LoadedKey {
        match self {
            Self::Rsa(rsa) => &rsa.blinded.software,
            Self::Agreement(agreement) => &agreement.software,
        }
    }

    pub(super) fn info(&self) -> &KeyInfo {
        &self.software().info
    }
}

impl RsaKey {
    /// Whether the card computes with this key.
    pub(super) fn is_for_card(&self) -> bool {
        self.parts.is_some()
    }

    /// The copy in device memory for this start of the card, made if there is none.
    pub(super) fn on_card(&self, library: &Arc<QatLibrary>, start: u64) -> Option<Arc<KeyParts>> {
        let mut on_card = lock(&self.on_card);
        if let Some((made_for, parts)) = &*on_card
            && *made_for == start
        {
            return Some(Arc::clone(parts));
        }
        let half = self.blinded.len() / 2;
        let parts = self.parts.as_ref()?;
        let numbers = [0, 1, 2, 3, 4].map(|index| &parts[index * half..(index + 1) * half]);
        let copied = Arc::new(KeyParts::copy(library, numbers)?);
        *on_card = Some((start, Arc::clone(&copied)));
        Some(copied)
    }
}
