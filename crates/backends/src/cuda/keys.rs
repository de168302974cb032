// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA keys. The software backend parses and checks a key; this module copies it to the memory of the device.
//!
//! A key is held twice: as an AWS-LC object, for tasks that do not go to the device, and as an image of
//! digits in a slot of the device. The slot and the key's blinding pairs are overwritten when the key is
//! closed and its last task has ended. A key has no slot if all slots are taken or if its primes differ in
//! length; all its tasks run on AWS-LC.
//!
//! **Blinding.** Each running task owns a pair (f, g = f^−d): the device exponentiates `input·f` and
//! multiplies the result by g. The device makes pairs from a random number of the host. Pairs never leave the
//! device; the host knows only their positions. After each use the device squares both halves. After
//! [`BLINDING_USES`] uses the pair is made again. A pair whose task failed is not used again.

use std::sync::{Arc, Mutex};

use millrace_engine::BackendError;
use millrace_operation::sync::lock;
use millrace_operation::{KeyError, KeyInfo, KeyType};
use zeroize::Zeroizing;

use super::DeviceHealth;
use super::capabilities::MAX_RSA_BITS;
use super::device::{CudaDevice, CudaStore, DeviceError};
use super::variants::{Arithmetic, SIZES, Variant};
use crate::simd::numbers::{self, Digits};
use crate::software::keys::{self as software_keys, LoadedKey, Secret};
use crate::software::sys;

/// Uses of a blinding pair, squared after each. A new pair costs as much as one operation, so this adds 1.6 %.
const BLINDING_USES: u32 = 64;

/// Slots for keys of one size. A slot takes 4 KiB for RSA-2048 and 8 KiB for RSA-4096, so 128 MiB at most.
/// The device of a node has tens of gigabytes, but need not hold every key that was ever opened.
const SLOTS: u32 = 16_384;

/// Blinding pairs for keys of one size, at most 1.3 KiB each: four times the tasks that can be in flight.
const PAIRS: u32 = 32_768;

/// Bits of a digit in the host's own arithmetic.
const HOST_DIGIT_BITS: usize = 52;

/// Attempts to draw a random number below the modulus. Each succeeds with probability one half or more.
const MAX_DRAWS: usize = 128;

pub(super) struct CudaKey {
    /// The AWS-LC key, for tasks that do not go to the device.
    pub(super) software: LoadedKey,
    /// The key's slot on the device; `None` if all its tasks run on AWS-LC.
    pub(super) resident: Option<Resident>,
}

impl CudaKey {
    pub(super) fn info(&self) -> &KeyInfo {
        &self.software.info
    }

    /// Draws a random number below the modulus, for a blinding pair.
    pub(super) fn draw(&self) -> Result<Zeroizing<Vec<u8>>, BackendError> {
        let Secret::Rsa(rsa) = &self.software.secret else {
            return Err(BackendError::Failed);
        };
        let unused = numbers::bits(&rsa.modulus).next_multiple_of(8) - numbers::bits(&rsa.modulus);
        let mut number = Zeroizing::new(vec![0; rsa.modulus.len()]);
        for _ in 0..MAX_DRAWS {
            sys::random(&mut number)?;
            number[0] &= 0xff >> unused;
            // The comparison may leak a rejected number: it reveals nothing about the next one.
            if number.as_slice() < rsa.modulus.as_slice() {
                return Ok(number);
            }
        }
        Err(BackendError::Failed)
    }
}

/// Parses and checks a key for AWS-LC.
pub(super) fn load(pkcs8: &[u8]) -> Result<LoadedKey, KeyError> {
    let software = software_keys::load(pkcs8)?;
    match software.info.key_type {
        KeyType::Rsa { bits } if bits <= MAX_RSA_BITS => Ok(software),
        _ => Err(KeyError::NotOffered),
    }
}

/// The numbers of a key that [`load`] has accepted, big-endian.
pub(super) struct Parts<'a> {
    modulus: &'a [u8],
    exponent: &'a [u8],
    primes: [&'a [u8]; 2],
    private: [&'a [u8]; 2],
    coefficient: &'a [u8],
}

impl<'a> Parts<'a> {
    pub(super) fn parse(pkcs8: &'a [u8]) -> Result<Self, KeyError> {
        let [modulus, exponent, _, p, q, dp, dq, coefficient] = software_keys::rsa_numbers(pkcs8)?;
        Ok(Self { modulus, exponent, primes: [p, q], private: [dp, dq], coefficient })
    }

    /// Index of the key's size in [`SIZES`]; `None` if no kernel supports the size.
    pub(super) fn size(&self) -> Option<usize> {
        let longest = self.primes.map(numbers::bits).into_iter().max()?;
        let needed = longest.max(numbers::bits(self.modulus).div_ceil(2));
        SIZES.iter().position(|half_bits| needed <= *half_bits)
    }

    pub(super) fn public_exponent(&self) -> u64 {
        // At most 33 bits: the software backend checked it.
        self.exponent.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// A fixed number below the modulus, for measurements.
    pub(super) fn some_input(&self) -> Vec<u8> {
        let mut input = vec![0x5a; self.modulus.len()];
        input[0] = 0;
        input
    }

    /// Lays out the numbers of the key in the form that a kernel reads.
    pub(super) fn image(&self, variant: &Variant) -> Zeroizing<Vec<u8>> {
        Image::new(variant).fill(self)
    }
}

/// Builds the image of a key.
struct Image<'a> {
    variant: &'a Variant,
    bytes: Zeroizing<Vec<u8>>,
}

impl<'a> Image<'a> {
    fn new(variant: &'a Variant) -> Self {
        Self { variant, bytes: Zeroizing::new(vec![0; variant.key_bytes()]) }
    }

    fn fill(mut self, parts: &Parts<'_>) -> Zeroizing<Vec<u8>> {
        let layout = self.variant.layout();
        let half = self.variant.half();
        let whole = 2 * self.variant.half();
        let half_digits = (half * self.variant.digit_bits() + 1).div_ceil(HOST_DIGIT_BITS);
        let whole_digits = (whole * self.variant.digit_bits() + 1).div_ceil(HOST_DIGIT_BITS);
        for (side, (prime, private)) in parts.primes.iter().zip(parts.private).enumerate() {
            let prime = numbers::from_bytes(prime, half_digits);
            let at = side * layout.half;
            self.powers(at, half, &prime, 3);
            self.inverse(layout.inverses + side, &prime);
            let private = numbers::from_bytes(private, half_digits);
            // −d modulo p − 1; d is not zero.
            let negative = numbers::subtract(&numbers::subtract(&prime, &[1]), &private);
            let exponents = layout.exponents + 2 * side * layout.exponent;
            self.windows(exponents, &private);
            self.windows(exponents + layout.exponent, &negative);
        }
        let modulus = numbers::from_bytes(parts.modulus, whole_digits);
        self.powers(layout.whole, whole, &modulus, 2);
        self.inverse(layout.inverses + 2, &modulus);

        // b = q·(1/q mod p) is 1 modulo p and 0 modulo q; n+1−b is 0 modulo p and 1 modulo q.
        let mut basis = numbers::multiply(
            &numbers::from_bytes(parts.primes[1], half_digits),
            &numbers::from_bytes(parts.coefficient, half_digits),
        );
        basis.resize(whole_digits, 0);
        let complement = numbers::subtract(&modulus, &numbers::subtract(&basis, &[1]));
        for (side, mut number) in [basis, complement].into_iter().enumerate() {
            numbers::double_often(&mut number, self.radix(whole), &modulus);
            self.number(layout.whole + (3 + side) * whole, whole, &number);
        }
        self.bytes
    }

    /// Bits of R, for numbers of `digits` digits.
    fn radix(&self, digits: usize) -> usize {
        digits * self.variant.digit_bits()
    }

    /// Writes a modulus, then R, R², … up to R^`count` modulo it.
    fn powers(&mut self, at: usize, digits: usize, modulus: &Digits, count: usize) {
        self.number(at, digits, modulus);
        let mut power = Zeroizing::new(vec![0; modulus.len()]);
        power[0] = 1;
        for step in 1..=count {
            numbers::double_often(&mut power, self.radix(digits), modulus);
            self.number(at + step * digits, digits, &power);
        }
    }

    /// Writes a number as `digits` digits of the kernel.
    fn number(&mut self, at: usize, digits: usize, number: &[u64]) {
        for digit in 0..digits {
            let bits = self.variant.digit_bits();
            let value = bits_at(number, digit * bits, bits);
            match self.variant.arithmetic {
                Arithmetic::Integer => self.scalar(at + digit, value),
                Arithmetic::Fp52 => self.scalar(at + digit, real_bits(value)),
            }
        }
    }

    /// Writes −1/n modulo 2^(bits of a digit).
    fn inverse(&mut self, at: usize, modulus: &[u64]) {
        let inverse = numbers::negative_inverse(modulus);
        self.scalar(at, bits_at(&[inverse], 0, self.variant.digit_bits()));
    }

    /// Writes an exponent: eight windows of four bits per digit.
    fn windows(&mut self, at: usize, exponent: &[u64]) {
        for digit in 0..self.variant.layout().exponent {
            self.scalar(at + digit, bits_at(exponent, 32 * digit, 32));
        }
    }

    /// Writes an integer where the kernel reads a digit.
    fn scalar(&mut self, at: usize, value: u64) {
        let size = self.variant.digit_bytes();
        self.bytes[at * size..][..size].copy_from_slice(&value.to_ne_bytes()[..size]);
    }
}

/// Returns `count` bits (at most 52) of a number, from bit `position` up.
fn bits_at(number: &[u64], position: usize, count: usize) -> u64 {
    let digit = position / HOST_DIGIT_BITS;
    let bit = position % HOST_DIGIT_BITS;
    let low = number.get(digit).copied().unwrap_or(0) >> bit;
    let high = number.get(digit + 1).copied().unwrap_or(0) << (HOST_DIGIT_BITS - bit);
    (low | high) & ((1 << count) - 1)
}

/// Returns the bit pattern of the double with the value of an integer below 2^52.
fn real_bits(value: u64) -> u64 {
    // The mantissa of 2^52 + value is the value. A conversion instruction might take a varying time.
    (f64::from_bits(0x433 << 52 | value) - f64::from_bits(0x433 << 52)).to_bits()
}

/// The device memory for keys of one size.
pub(super) struct Size {
    pub(super) variant: &'static Variant,
    /// Fewest tasks for which a launch is cheaper than AWS-LC.
    pub(super) device_from: usize,
    pub(super) store: Box<dyn CudaStore>,
    slots: Mutex<Places>,
    pairs: Mutex<Places>,
    health: Arc<DeviceHealth>,
}

/// Free positions: those given back, and those never used.
struct Places {
    back: Vec<u32>,
    next: u32,
    limit: u32,
}

impl Places {
    /// Position 0 stays reserved for the spare groups of a launch.
    fn new(limit: u32) -> Mutex<Self> {
        Mutex::new(Self { back: Vec::new(), next: 1, limit })
    }

    fn take(&mut self) -> Option<u32> {
        self.back.pop().or_else(|| {
            let place = (self.next < self.limit).then_some(self.next)?;
            self.next += 1;
            Some(place)
        })
    }
}

impl Size {
    pub(super) fn new(
        device: &dyn CudaDevice,
        variant: &'static Variant,
        device_from: usize,
        health: Arc<DeviceHealth>,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            variant,
            device_from,
            store: device.open_store(variant, SLOTS, PAIRS)?,
            slots: Places::new(SLOTS),
            pairs: Places::new(PAIRS),
            health,
        })
    }

    /// Copies a key to the device; `None` if there is no room.
    pub(super) fn admit(
        self: &Arc<Self>,
        parts: &Parts<'_>,
    ) -> Result<Option<Resident>, DeviceError> {
        let Some(slot) = lock(&self.slots).take() else {
            return Ok(None);
        };
        let resident = Resident {
            size: Arc::clone(self),
            slot,
            exponent: parts.public_exponent(),
            idle: Mutex::default(),
            owned: Mutex::default(),
        };
        self.store.write_key(slot, &parts.image(self.variant))?;
        Ok(Some(resident))
    }
}

/// A key in a slot of the device. Dropping it overwrites the slot and its pairs.
pub(super) struct Resident {
    pub(super) size: Arc<Size>,
    pub(super) slot: u32,
    pub(super) exponent: u64,
    /// Pairs that no task uses now.
    idle: Mutex<Vec<Pair>>,
    /// Positions of all pairs of this key.
    owned: Mutex<Vec<u32>>,
}

/// A blinding pair on the device, named by its position.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) place: u32,
    /// Uses left; with 0 the device must make the pair again first.
    pub(super) uses: u32,
}

/// End of the task for which a pair was taken.
#[derive(Clone, Copy)]
pub(super) enum PairUse {
    /// The result was right.
    Verified,
    /// The result was wrong, or there is none.
    Failed,
}

impl Resident {
    /// Takes a pair for one task, if there is an idle one or room for one more.
    pub(super) fn take_pair(&self) -> Option<Pair> {
        if let Some(pair) = lock(&self.idle).pop() {
            return Some(pair);
        }
        let place = lock(&self.size.pairs).take()?;
        lock(&self.owned).push(place);
        Some(Pair { place, uses: 0 })
    }

    /// Gives a pair back. After a failed task it is made again before its next use.
    pub(super) fn return_pair(&self, mut pair: Pair, pair_use: PairUse) {
        pair.uses = match (pair_use, pair.uses) {
            (PairUse::Verified, 0) => BLINDING_USES - 1,
            (PairUse::Verified, uses) => uses - 1,
            (PairUse::Failed, _) => 0,
        };
        lock(&self.idle).push(pair);
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        let owned = std::mem::take(&mut *lock(&self.owned));
        match self.size.store.clear(self.slot, &owned) {
            Ok(()) => {
                lock(&self.size.slots).back.push(self.slot);
                lock(&self.size.pairs).back.extend(owned);
            }
            // Positions that could not be overwritten are not used again.
            Err(error) => self.size.health.note(&error),
        }
    }
}
