// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA keys: parsed and checked by the software backend, then prepared for the lanes.
//!
//! A key is held twice: as AWS-LC has it, for operations that run alone, and as digits with the Montgomery
//! constants of its primes and its modulus, for the lanes. The rare key whose primes are of unlike length
//! has no second half, and all its operations run on AWS-LC.
//!
//! **Blinding.** Every operation is blinded: `input·r^e` is exponentiated and the result multiplied by
//! `1/r`. Fresh pairs come from lanes too (`1/r` is r^(p−2) and r^(q−2), put together), and each is squared
//! after use, so that no value serves twice. A pair belongs to one request at a time: it is taken out of
//! the key's store and comes back when the result has been verified, at most [`BLINDING_USES`] times.

use std::sync::{Mutex, PoisonError};

use millrace_engine::{KeyError, KeyInfo, KeyType};
use zeroize::Zeroizing;

use super::capabilities::MAX_RSA_BITS;
use super::montgomery::BLOCK;
use super::numbers::{self, Digits};
#[cfg(test)]
use crate::software::keys::Secret;
use crate::software::keys::{self, LoadedKey};

/// How often a blinding pair is used, each time squared. Libraries take 32; a fresh pair costs as much
/// here as an operation, and at 64 that is 1.6 %.
const BLINDING_USES: u32 = 64;

/// How many pairs a key keeps: more than any number of workers have in flight on usual machines; what
/// is above is dropped and made anew. One takes 0.7 to 1.3 KiB.
const MAX_BLINDINGS: usize = 64;

/// Bits of an exponent that one multiplication takes in. With 5 there are fewer multiplications, but twice
/// as large a table to scan; both were measured to take the same time for 2048 bits, where 5 gains most,
/// and the smaller table leaves more of the first cache to others.
pub(super) const WINDOW: usize = 4;

/// What depends on the length of a key.
#[derive(Debug)]
pub(super) struct Size {
    /// The longest modulus, in bits.
    bits: usize,
    /// The longest prime, in bits: also the bits of an exponent, whatever its value.
    half_bits: usize,
    /// Blocks of digits of a prime; the modulus takes twice as many.
    pub(super) blocks: usize,
    /// Position in [`SIZES`].
    pub(super) index: usize,
}

/// The sizes of lanes.
pub(super) static SIZES: [Size; 3] = [
    Size {
        bits: 2048,
        half_bits: 1024,
        blocks: 4,
        index: 0,
    },
    Size {
        bits: 3072,
        half_bits: 1536,
        blocks: 6,
        index: 1,
    },
    Size {
        bits: 4096,
        half_bits: 2048,
        blocks: 8,
        index: 2,
    },
];

/// A key that is ready for use.
pub(super) struct SimdKey {
    /// The key as AWS-LC uses it.
    pub(super) software: LoadedKey,
    /// The key as the lanes use it.
    pub(super) lanes: Option<LaneKey>,
}

/// A key as digits.
pub(super) struct LaneKey {
    pub(super) size: &'static Size,
    pub(super) primes: [PrimeKey; 2],
    pub(super) modulus: Digits,
    /// −1/n mod 2^52.
    pub(super) negative_inverse: u64,
    /// R² mod n.
    pub(super) square: Digits,
    /// For each prime the multiple of R mod n that is R modulo it and 0 modulo the other.
    pub(super) recombine: [Digits; 2],
    /// The public exponent.
    pub(super) public_exponent: u64,
    blindings: Mutex<Vec<Blinding>>,
}

/// One prime p with what exponentiating modulo it takes.
pub(super) struct PrimeKey {
    pub(super) prime: Digits,
    /// −1/p mod 2^52.
    pub(super) negative_inverse: u64,
    /// R mod p.
    pub(super) one: Digits,
    /// R² mod p.
    pub(super) square: Digits,
    /// R³ mod p.
    pub(super) cube: Digits,
    /// d mod p−1, in windows.
    pub(super) exponent: Zeroizing<Vec<u8>>,
    /// p−2, in windows: the exponent that inverts.
    pub(super) inverting_exponent: Zeroizing<Vec<u8>>,
}

/// A blinding pair, in Montgomery form and below 2n.
pub(super) struct Blinding {
    /// r^e
    pub(super) factor: Digits,
    /// 1/r
    pub(super) inverse: Digits,
    /// How often it may still be used.
    uses: u32,
}

impl Blinding {
    /// A fresh pair.
    pub(super) fn new(factor: Digits, inverse: Digits) -> Self {
        Self {
            factor,
            inverse,
            uses: BLINDING_USES,
        }
    }
}

/// Parses, checks and prepares a key.
pub(super) fn load(pkcs8: &[u8]) -> Result<SimdKey, KeyError> {
    let software = keys::load(pkcs8)?;
    match software.info.key_type {
        KeyType::Rsa { bits } if bits <= MAX_RSA_BITS => {}
        _ => return Err(KeyError::NotOffered),
    }
    let lanes = LaneKey::new(keys::rsa_numbers(pkcs8)?);
    Ok(SimdKey { software, lanes })
}

impl SimdKey {
    /// Its type and public half.
    pub(super) fn info(&self) -> &KeyInfo {
        &self.software.info
    }

    /// Its modulus, big-endian.
    #[cfg(test)]
    pub(super) fn modulus(&self) -> &[u8] {
        match &self.software.secret {
            Secret::Rsa(rsa) => &rsa.modulus,
            _ => &[],
        }
    }
}

impl LaneKey {
    /// From the numbers of a checked key; `None` if they do not fit any lanes.
    fn new([n, e, _, p, q, dp, dq, qinv]: [&[u8]; 8]) -> Option<Self> {
        let bits = numbers::bits(n);
        let longest = numbers::bits(p).max(numbers::bits(q));
        let size = SIZES
            .iter()
            .find(|size| bits <= size.bits && longest <= size.half_bits)?;
        let half = size.blocks * BLOCK;
        let modulus = numbers::from_bytes(n, 2 * half);
        let negative_inverse = numbers::negative_inverse(&modulus);
        let (_, square) = numbers::montgomery_constants(&modulus, bits);

        // q·(1/q mod p) is 1 modulo p and 0 modulo q; what is missing to n+1 is the other way round.
        let basis = numbers::multiply(
            &numbers::from_bytes(q, half),
            &numbers::from_bytes(qinv, half),
        );
        let complement = numbers::subtract(&modulus, &numbers::subtract(&basis, &[1]));
        let recombine = [basis, complement]
            .map(|number| numbers::montgomery(&number, &square, &modulus, negative_inverse));

        let exponent = numbers::from_bytes(e, 1);
        Some(Self {
            size,
            primes: [PrimeKey::new(size, p, dp), PrimeKey::new(size, q, dq)],
            modulus,
            negative_inverse,
            square,
            recombine,
            public_exponent: exponent[0],
            blindings: Mutex::default(),
        })
    }

    /// A blinding pair for one operation, if there is one at hand.
    pub(super) fn take_blinding(&self) -> Option<Blinding> {
        self.blindings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
    }

    /// Gives a pair back after an operation whose result was right; the pair has been squared.
    pub(super) fn return_blinding(&self, mut blinding: Blinding) {
        blinding.uses -= 1;
        let mut store = self
            .blindings
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if blinding.uses > 0 && store.len() < MAX_BLINDINGS {
            store.push(blinding);
        }
    }
}

impl PrimeKey {
    fn new(size: &Size, prime: &[u8], exponent: &[u8]) -> Self {
        let digits = size.blocks * BLOCK;
        let bits = numbers::bits(prime);
        let prime = numbers::from_bytes(prime, digits);
        let negative_inverse = numbers::negative_inverse(&prime);
        let (one, square) = numbers::montgomery_constants(&prime, bits);
        let cube = numbers::montgomery(&square, &square, &prime, negative_inverse);
        let windows = |exponent: &[u64]| numbers::windows(exponent, size.half_bits, WINDOW);
        Self {
            exponent: windows(&numbers::from_bytes(exponent, digits)),
            inverting_exponent: windows(&numbers::subtract(&prime, &[2])),
            prime,
            negative_inverse,
            one,
            square,
            cube,
        }
    }
}
