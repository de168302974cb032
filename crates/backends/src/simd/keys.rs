// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA keys. The software backend parses and checks a key; this module prepares it for the lanes.
//!
//! A key is held twice: as an AWS-LC object, for operations that run singly, and as digits with the Montgomery
//! constants of its primes and its modulus, for the lanes. A key whose primes differ in length is rare; it
//! has no lane form, and all its operations run on AWS-LC.
//!
//! **Blinding.** Every operation is blinded: the lanes exponentiate `input·r^e` and multiply the result by
//! `1/r`. They also compute fresh pairs (`1/r` is r^(p−2) and r^(q−2), recombined). A pair is squared after
//! each use, so that no value is used twice. A pair belongs to one request at a time: the request takes it
//! out of the key's store and returns it after the result is verified. A pair is used at most
//! [`BLINDING_USES`] times.

use std::sync::Mutex;

use millrace_operation::sync::lock;
use millrace_operation::{KeyError, KeyInfo, KeyType};
use zeroize::Zeroizing;

use super::capabilities::MAX_RSA_BITS;
use super::montgomery::BLOCK;
use super::numbers::{self, Digits};
#[cfg(test)]
use crate::software::keys::Secret;
use crate::software::keys::{self, LoadedKey};

/// Uses of a blinding pair, squared after each. Libraries use 32. A fresh pair costs as much as one operation
/// here, so 64 uses add 1.6 %.
const BLINDING_USES: u32 = 64;

/// Most idle pairs that a key keeps: more than the workers of usual machines have in flight. Further pairs
/// are dropped and made again. One pair takes 0.7 to 1.3 KiB.
const MAX_BLINDINGS: usize = 64;

/// Bits of an exponent per window; each window costs one multiplication. A width of 5 needs fewer
/// multiplications but scans a table twice as large. Both took the same time for 2048 bits, where 5 gains
/// most, and the smaller table leaves more of the L1 cache to other code.
pub(super) const WINDOW: usize = 4;

/// Parameters of the lanes for one length of key.
#[derive(Debug)]
pub(super) struct Size {
    /// Longest modulus, in bits.
    pub(super) bits: usize,
    /// Longest prime, in bits. Every exponent is processed with this number of bits, so its value does not
    /// show.
    half_bits: usize,
    /// Blocks of digits of a prime; the modulus has twice as many.
    pub(super) blocks: usize,
    /// Position in [`SIZES`].
    pub(super) index: usize,
}

/// The supported sizes, the smallest first.
#[rustfmt::skip]
pub(super) static SIZES: [Size; 3] = [
    Size { bits: 2048, half_bits: 1024, blocks: 4, index: 0 },
    Size { bits: 3072, half_bits: 1536, blocks: 6, index: 1 },
    Size { bits: 4096, half_bits: 2048, blocks: 8, index: 2 },
];

pub(super) struct SimdKey {
    /// The AWS-LC key, for operations that run singly.
    pub(super) software: LoadedKey,
    /// The key for the lanes; `None` if all its operations run on AWS-LC.
    pub(super) lanes: Option<LaneKey>,
}

/// A key as digits, with its Montgomery constants.
pub(super) struct LaneKey {
    pub(super) size: &'static Size,
    pub(super) primes: [PrimeKey; 2],
    pub(super) modulus: Digits,
    /// −1/n mod 2^52.
    pub(super) negative_inverse: u64,
    /// R² mod n.
    pub(super) square: Digits,
    /// The number modulo n that is R modulo one prime and 0 modulo the other, for each prime.
    pub(super) recombine: [Digits; 2],
    pub(super) public_exponent: u64,
    blindings: Mutex<Vec<Blinding>>,
}

/// One prime p with the constants for exponentiation modulo p.
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
    /// Uses left.
    uses: u32,
}

impl Blinding {
    pub(super) fn new(factor: Digits, inverse: Digits) -> Self {
        Self { factor, inverse, uses: BLINDING_USES }
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
    pub(super) fn info(&self) -> &KeyInfo {
        &self.software.info
    }

    /// The modulus, big-endian.
    #[cfg(test)]
    pub(super) fn modulus(&self) -> &[u8] {
        match &self.software.secret {
            Secret::Rsa(rsa) => &rsa.modulus,
            _ => &[],
        }
    }
}

impl LaneKey {
    /// Builds the lane form from the numbers of a checked key; `None` if no size of lanes fits them.
    fn new([n, e, _, p, q, dp, dq, qinv]: [&[u8]; 8]) -> Option<Self> {
        let bits = numbers::bits(n);
        let longest = numbers::bits(p).max(numbers::bits(q));
        let size = SIZES.iter().find(|size| bits <= size.bits && longest <= size.half_bits)?;
        let half = size.blocks * BLOCK;
        let modulus = numbers::from_bytes(n, 2 * half);
        let negative_inverse = numbers::negative_inverse(&modulus);
        let (_, square) = numbers::montgomery_constants(&modulus, bits);

        // b = q·(1/q mod p) is 1 modulo p and 0 modulo q; n+1−b is 0 modulo p and 1 modulo q.
        let basis =
            numbers::multiply(&numbers::from_bytes(q, half), &numbers::from_bytes(qinv, half));
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

    /// Takes a blinding pair out of the store; `None` if the store is empty.
    pub(super) fn take_blinding(&self) -> Option<Blinding> {
        lock(&self.blindings).pop()
    }

    /// Returns a pair after its result was verified. The caller has squared the pair.
    pub(super) fn return_blinding(&self, mut blinding: Blinding) {
        blinding.uses -= 1;
        let mut store = lock(&self.blindings);
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
