// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA keys of a backend whose device computes only `x^d mod n` and does not blind. The software backend parses and
//! checks a key.
//!
//! **Blinding.** The host blinds every operation: the device exponentiates `input·r^e`, and the host multiplies the
//! result by `1/r` (ADR 23 has the cost). A pair is squared after each use, and belongs to one request at a time.

use std::sync::Mutex;

use millrace_engine::BackendError;
use millrace_operation::sync::lock;
use millrace_operation::{KeyError, KeyInfo};
use zeroize::Zeroizing;

use crate::raw_rsa::secret;
use crate::software::keys::{self, LoadedKey, Secret};
use crate::software::sys::{self as numbers, Factor, Modulus, Number};

/// Uses of a blinding pair, squared after each. A new pair costs a public operation and an inversion.
const BLINDING_USES: u32 = 64;

/// Most idle pairs that a key keeps: more than the devices of usual machines have in flight.
const MAX_BLINDINGS: usize = 256;

/// Attempts to draw a random number below the modulus. Each succeeds with probability one half or more.
const MAX_DRAWS: usize = 128;

/// An RSA key for raw operations on a device.
pub(crate) struct BlindedRsa {
    /// The AWS-LC key, which verifies results and has the key of implicit rejection.
    pub(crate) software: LoadedKey,
    modulus: Modulus,
    blindings: Mutex<Vec<Blinding>>,
}

/// A blinding pair: r^e and 1/r.
pub(crate) struct Blinding {
    factor: Factor,
    inverse: Factor,
    uses: u32,
}

impl BlindedRsa {
    /// Parses and checks an RSA key.
    pub(crate) fn load(pkcs8: &[u8]) -> Result<Self, KeyError> {
        Self::of(keys::load(pkcs8)?)
    }

    /// Prepares an RSA key that is checked.
    pub(crate) fn of(software: LoadedKey) -> Result<Self, KeyError> {
        let modulus = match &software.secret {
            Secret::Rsa(rsa) => Number::from_bytes(&rsa.modulus),
            _ => return Err(KeyError::NotOffered),
        };
        let modulus = modulus.and_then(|modulus| Modulus::new(&modulus));
        Ok(Self {
            software,
            modulus: modulus.ok_or(KeyError::NotOffered)?,
            blindings: Mutex::default(),
        })
    }

    pub(crate) fn info(&self) -> &KeyInfo {
        &self.software.info
    }

    /// Length of the modulus, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.software.info.key_type.modulus_len()
    }

    /// Blinds the input of a request, with a pair that the request owns from here on.
    pub(crate) fn blind(
        &self,
        input: &[u8],
    ) -> Result<(Zeroizing<Vec<u8>>, Blinding), BackendError> {
        let idle = lock(&self.blindings).pop();
        let blinding = idle.map_or_else(|| self.new_blinding(), Ok)?;
        let blinded = self.multiply(input, &blinding.factor)?;
        Ok((blinded, blinding))
    }

    /// Takes the blinding out of the device's result, and checks by a public operation that it is the root of
    /// `input`. The pair is kept for later if it is.
    ///
    /// # Errors
    /// `Fault` if it is not.
    pub(crate) fn unblind(
        &self,
        input: &[u8],
        result: &[u8],
        blinding: Blinding,
    ) -> Result<Zeroizing<Vec<u8>>, BackendError> {
        let root = self.open(result, &blinding)?;
        self.verify(input, &root)?;
        self.keep(blinding);
        Ok(root)
    }

    /// Takes the blinding out of the device's result, which is not verified yet.
    ///
    /// # Errors
    /// `Fault` if it is not a result.
    pub(crate) fn open(
        &self,
        result: &[u8],
        blinding: &Blinding,
    ) -> Result<Zeroizing<Vec<u8>>, BackendError> {
        self.multiply(result, &blinding.inverse).map_err(|_| BackendError::Fault)
    }

    /// Checks by a public operation of AWS-LC that a number is the root of `input`.
    ///
    /// # Errors
    /// `Fault` if it is not.
    pub(crate) fn verify(&self, input: &[u8], root: &[u8]) -> Result<(), BackendError> {
        use subtle::ConstantTimeEq;
        let mut undone = Zeroizing::new(vec![0; root.len()]);
        let computed = secret(&self.software)?.key.public(root, &mut undone);
        let is_root = computed.is_ok() && bool::from(undone.ct_eq(input));
        is_root.then_some(()).ok_or(BackendError::Fault)
    }

    /// Keeps the pair of a result that was verified.
    pub(crate) fn keep(&self, blinding: Blinding) {
        let Blinding { factor, inverse, uses } = blinding;
        if uses <= 1 {
            return;
        }
        let squares = (self.modulus.square(&factor), self.modulus.square(&inverse));
        let mut idle = lock(&self.blindings);
        if let (Some(factor), Some(inverse)) = squares
            && idle.len() < MAX_BLINDINGS
        {
            idle.push(Blinding { factor, inverse, uses: uses - 1 });
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
            if let Some(factor) = self.modulus.factor(&power)
                && let Some(inverse) = inverse.and_then(|number| self.modulus.factor(&number))
            {
                return Ok(Blinding { factor, inverse, uses: BLINDING_USES });
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

    /// Answer of a device: the private operation on its input.
    fn device(key: &BlindedRsa, blinded: &[u8]) -> Vec<u8> {
        let mut root = vec![0; key.len()];
        let rsa = secret(&key.software).expect("an RSA key");
        rsa.key.private(blinded, &mut root).expect("a root");
        root
    }

    #[test]
    fn blinded_answer_of_the_device_is_unblinded_to_the_root() {
        for der in [keys::rsa_2048(), keys::rsa_3072(), keys::rsa_4096(), keys::rsa_8192()] {
            let key = BlindedRsa::load(der.der).expect("a key");
            let mut input = vec![0x5a; key.len()];
            input[0] = 0;
            let expected = device(&key, &input);
            let mut seen = Vec::new();
            let mut time = std::time::Duration::ZERO;
            for _ in 0..10 {
                let start = Instant::now();
                let (blinded, blinding) = key.blind(&input).expect("blinded");
                time += start.elapsed();
                assert!(*blinded != input && !seen.contains(&*blinded));
                let answer = device(&key, &blinded);
                let start = Instant::now();
                let root = key.unblind(&input, &answer, blinding).expect("the root");
                time += start.elapsed();
                assert_eq!(*root, expected);
                seen.push(blinded.to_vec());
            }
            println!("{} bytes: blinding and verification {:?}", key.len(), time / 10);
        }
    }

    #[test]
    fn wrong_answer_of_the_device_is_a_fault_and_its_blinding_is_not_used_again() {
        let key = BlindedRsa::load(keys::rsa_2048().der).expect("a key");
        let mut input = vec![1; key.len()];
        input[0] = 0;
        let (blinded, blinding) = key.blind(&input).expect("blinded");
        let mut answer = device(&key, &blinded);
        answer[100] ^= 1;
        let error = key.unblind(&input, &answer, blinding).expect_err("a fault");
        assert_eq!(error, BackendError::Fault);
        assert!(lock(&key.blindings).is_empty());
    }
}
