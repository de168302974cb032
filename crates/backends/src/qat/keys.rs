// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA keys. The software backend parses and checks a key; this module copies its parts to device memory.
//!
//! A key is held three times: as an AWS-LC object, to verify results; as bytes in this process; and as bytes in
//! device memory, copied at the first request after each start of the card. That copy is zeroised when the key
//! is closed and its last request has been answered, or the card has stopped.
//!
//! **Blinding.** The card does not blind, so the host does, for every operation: the card exponentiates
//! `input·r^e`, and the host multiplies the result by `1/r` (ADR 23 has the cost). A pair is squared after each
//! use, and belongs to one request at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_engine::{BackendError, KeyError, KeyInfo, KeyType};
use zeroize::Zeroizing;

use super::capabilities::SIZES;
use super::sys::{KeyParts, Library};
use crate::software::keys::{self, LoadedKey, RsaSecret, Secret};
use crate::software::sys::{self as numbers, Factor, Modulus, Number};

/// Uses of a blinding pair, squared after each. A new pair costs a public operation and an inversion.
const BLINDING_USES: u32 = 64;

/// Most idle pairs that a key keeps: more than the cards of usual machines have in flight.
const MAX_BLINDINGS: usize = 256;

/// Attempts to draw a random number below the modulus. Each succeeds with probability one half or more.
const MAX_DRAWS: usize = 128;

pub(super) struct QatKey {
    /// The AWS-LC key, which verifies results and has the key of implicit rejection.
    pub(super) software: LoadedKey,
    modulus: Modulus,
    /// p, q, dp, dq and 1/q mod p, each half as long as the modulus; none if they are not, which is rare: the
    /// card's function takes no other primes, and all operations of the key run on AWS-LC.
    parts: Option<Zeroizing<Vec<u8>>>,
    /// The copy in device memory, with the number of the start for which it was made.
    on_card: Mutex<Option<(u64, Arc<KeyParts>)>>,
    blindings: Mutex<Vec<Blinding>>,
}

/// A blinding pair: r^e and 1/r.
pub(super) struct Blinding {
    factor: Factor,
    inverse: Factor,
    uses: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Parses, checks and prepares a key.
pub(super) fn load(pkcs8: &[u8]) -> Result<QatKey, KeyError> {
    let software = keys::load(pkcs8)?;
    match software.info.key_type {
        KeyType::Rsa { bits } if SIZES.contains(&bits) => {}
        _ => return Err(KeyError::NotOffered),
    }
    let [modulus, _, _, numbers @ ..] = keys::rsa_numbers(pkcs8)?;
    let half = secret(&software)
        .map_err(|_| KeyError::NotOffered)?
        .modulus
        .len()
        / 2;
    let modulus = Number::from_bytes(modulus).and_then(|modulus| Modulus::new(&modulus));
    Ok(QatKey {
        software,
        modulus: modulus.ok_or(KeyError::NotOffered)?,
        parts: parts(&numbers, half),
        on_card: Mutex::default(),
        blindings: Mutex::default(),
    })
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

fn secret(key: &LoadedKey) -> Result<&RsaSecret, BackendError> {
    match &key.secret {
        Secret::Rsa(rsa) => Ok(rsa),
        _ => Err(BackendError::NotOffered),
    }
}

impl QatKey {
    pub(super) fn info(&self) -> &KeyInfo {
        &self.software.info
    }

    /// Whether the card computes with this key.
    pub(super) fn is_for_card(&self) -> bool {
        self.parts.is_some()
    }

    /// Length of the modulus, in bytes.
    pub(super) fn len(&self) -> usize {
        usize::from(self.software.info.key_type.bits() / 8)
    }

    /// The copy in device memory for this start of the card, made if there is none.
    pub(super) fn on_card(&self, library: &Arc<Library>, start: u64) -> Option<Arc<KeyParts>> {
        let mut on_card = lock(&self.on_card);
        if let Some((made_for, parts)) = &*on_card
            && *made_for == start
        {
            return Some(Arc::clone(parts));
        }
        let (half, parts) = (self.len() / 2, self.parts.as_ref()?);
        let part = |index: usize| &parts[index * half..(index + 1) * half];
        let parts = KeyParts::copy(library, [0, 1, 2, 3, 4].map(part))?;
        let parts = Arc::new(parts);
        *on_card = Some((start, Arc::clone(&parts)));
        Some(parts)
    }

    /// Blinds the input of a request, with a pair that the request owns from here on.
    pub(super) fn blind(
        &self,
        input: &[u8],
    ) -> Result<(Zeroizing<Vec<u8>>, Blinding), BackendError> {
        let idle = lock(&self.blindings).pop();
        let blinding = idle.map_or_else(|| self.new_blinding(), Ok)?;
        let blinded = self.multiply(input, &blinding.factor)?;
        Ok((blinded, blinding))
    }

    /// Takes the blinding out of the card's result, and checks by a public operation that it is the root of
    /// `input`. The pair is kept for later if it is.
    ///
    /// # Errors
    /// `Fault` if it is not.
    pub(super) fn unblind(
        &self,
        input: &[u8],
        result: &[u8],
        blinding: Blinding,
    ) -> Result<Zeroizing<Vec<u8>>, BackendError> {
        use subtle::ConstantTimeEq;
        let root = self
            .multiply(result, &blinding.inverse)
            .map_err(|_| BackendError::Fault)?;
        let mut undone = Zeroizing::new(vec![0; root.len()]);
        let computed = secret(&self.software)?.key.public(&root, &mut undone);
        if computed.is_err() || !bool::from(undone.ct_eq(input)) {
            return Err(BackendError::Fault);
        }
        self.keep(blinding);
        Ok(root)
    }

    fn keep(&self, blinding: Blinding) {
        let Blinding {
            factor,
            inverse,
            uses,
        } = blinding;
        if uses <= 1 {
            return;
        }
        let squares = (self.modulus.square(&factor), self.modulus.square(&inverse));
        let mut idle = lock(&self.blindings);
        if let (Some(factor), Some(inverse)) = squares
            && idle.len() < MAX_BLINDINGS
        {
            idle.push(Blinding {
                factor,
                inverse,
                uses: uses - 1,
            });
        }
    }

    fn multiply(&self, number: &[u8], factor: &Factor) -> Result<Zeroizing<Vec<u8>>, BackendError> {
        let number = Number::from_bytes(number).ok_or(BackendError::Failed)?;
        let product = self.modulus.multiply(&number, factor);
        let mut bytes = Zeroizing::new(vec![0; self.len()]);
        let written = product.is_some_and(|product| product.write_padded(&mut bytes));
        written.then_some(bytes).ok_or(BackendError::Failed)
    }

    fn new_blinding(&self) -> Result<Blinding, BackendError> {
        let rsa = secret(&self.software)?;
        let mut bytes = Zeroizing::new(vec![0; self.len()]);
        for _ in 0..MAX_DRAWS {
            numbers::random(&mut bytes)?;
            // The comparison may leak a rejected number: it reveals nothing about the next one.
            if bytes.as_slice() >= rsa.modulus.as_slice() {
                continue;
            }
            let mut power = Zeroizing::new(vec![0; bytes.len()]);
            rsa.key.public(&bytes, &mut power)?;
            let (Some(random), Some(power)) =
                (Number::from_bytes(&bytes), Number::from_bytes(&power))
            else {
                break;
            };
            let inverse = self.modulus.inverse(&random);
            let inverse = inverse.and_then(|inverse| self.modulus.factor(&inverse));
            if let (Some(factor), Some(inverse)) = (self.modulus.factor(&power), inverse) {
                return Ok(Blinding {
                    factor,
                    inverse,
                    uses: BLINDING_USES,
                });
            }
        }
        Err(BackendError::Failed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use millrace_testkit::keys;

    use super::*;

    /// Answer of a card: the private operation on its input.
    fn card(key: &QatKey, blinded: &[u8]) -> Vec<u8> {
        let mut root = vec![0; key.len()];
        let rsa = secret(&key.software).expect("an RSA key");
        rsa.key.private(blinded, &mut root).expect("a root");
        root
    }

    #[test]
    fn blinded_answer_of_the_card_is_unblinded_to_the_root() {
        for der in [
            keys::rsa_2048(),
            keys::rsa_3072(),
            keys::rsa_4096(),
            keys::rsa_8192(),
        ] {
            let key = load(der.der).expect("a key");
            let mut input = vec![0x5a; key.len()];
            input[0] = 0;
            let expected = card(&key, &input);
            let (mut seen, mut time) = (Vec::new(), std::time::Duration::ZERO);
            for _ in 0..10 {
                let start = Instant::now();
                let (blinded, blinding) = key.blind(&input).expect("blinded");
                time += start.elapsed();
                assert!(*blinded != input && !seen.contains(&*blinded));
                let answer = card(&key, &blinded);
                let start = Instant::now();
                let root = key.unblind(&input, &answer, blinding).expect("the root");
                time += start.elapsed();
                assert_eq!(*root, expected);
                seen.push(blinded.to_vec());
            }
            println!(
                "{} bytes: blinding and verification {:?}",
                key.len(),
                time / 10
            );
        }
    }

    #[test]
    fn wrong_answer_of_the_card_is_a_fault_and_its_blinding_is_not_used_again() {
        let key = load(keys::rsa_2048().der).expect("a key");
        let mut input = vec![1; key.len()];
        input[0] = 0;
        let (blinded, blinding) = key.blind(&input).expect("blinded");
        let mut answer = card(&key, &blinded);
        answer[100] ^= 1;
        let error = key.unblind(&input, &answer, blinding).expect_err("a fault");
        assert_eq!(error, BackendError::Fault);
        assert!(lock(&key.blindings).is_empty());
    }
}
