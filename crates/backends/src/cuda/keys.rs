// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA keys: parsed and checked by the software backend, then put into the memory of the device.
//!
//! A key is held twice: as AWS-LC has it, for tasks that do not go to the device, and as an image of digits
//! in a slot there. The slot and the key's blinding pairs are overwritten when the key is closed and its last
//! task has ended. A key that finds no slot, or whose primes are of unlike length, has no second half, and
//! all its tasks run on AWS-LC.
//!
//! **Blinding.** Every task has a pair (f, g = f^−d) of its own while it runs: `input·f` is exponentiated and the
//! result multiplied by g. Pairs are made on the device from a random number of the host, and never leave it;
//! the host knows only their places. After each use the device squares both halves, and after
//! [`BLINDING_USES`] uses the pair is made anew. A pair whose task failed is not used again.

use std::sync::{Arc, Mutex, PoisonError};

use millrace_engine::{BackendError, KeyError, KeyInfo, KeyType};
use zeroize::Zeroizing;

use super::Health;
use super::capabilities::MAX_RSA_BITS;
use super::device::{DeviceError, Store};
use super::variants::{Arithmetic, SIZES, Variant};
use crate::simd::numbers::{self, Digits};
use crate::software::keys::{self as software_keys, LoadedKey, Secret};
use crate::software::sys;

/// How often a blinding pair is used, each time squared. To make one costs as much as an operation: 1.6 %.
const BLINDING_USES: u32 = 64;

/// Slots for keys of one size. Those of RSA-2048 take 4 KiB, of RSA-4096 8 KiB, so 128 MiB at most; the device of
/// a node has tens of gigabytes, but need not hold every key that was ever opened.
const SLOTS: u32 = 16_384;

/// Blinding pairs for keys of one size, at most 1.3 KiB each: as many as tasks can be in flight, four times over.
const PAIRS: u32 = 32_768;

/// Digits that the host's own arithmetic uses.
const HOST_DIGIT_BITS: usize = 52;

/// Random numbers that are drawn for a pair before giving up; each is below the modulus with a chance of half
/// or more.
const MAX_DRAWS: usize = 128;

/// A key that is ready for use.
pub(super) struct CudaKey {
    /// The key as AWS-LC uses it.
    pub(super) software: LoadedKey,
    /// The key on the device.
    pub(super) resident: Option<Resident>,
}

impl CudaKey {
    /// Its type and public half.
    pub(super) fn info(&self) -> &KeyInfo {
        &self.software.info
    }

    /// A random number below the modulus, to make a blinding pair of.
    pub(super) fn draw(&self) -> Result<Zeroizing<Vec<u8>>, BackendError> {
        let Secret::Rsa(rsa) = &self.software.secret else {
            return Err(BackendError::Failed);
        };
        let unused = numbers::bits(&rsa.modulus).next_multiple_of(8) - numbers::bits(&rsa.modulus);
        let mut number = Zeroizing::new(vec![0; rsa.modulus.len()]);
        for _ in 0..MAX_DRAWS {
            sys::random(&mut number)?;
            number[0] &= 0xff >> unused;
            // A number that is thrown away says nothing of the next.
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

/// The numbers of a checked key, big-endian.
pub(super) struct Parts<'a> {
    modulus: &'a [u8],
    exponent: &'a [u8],
    primes: [&'a [u8]; 2],
    private: [&'a [u8]; 2],
    coefficient: &'a [u8],
}

impl<'a> Parts<'a> {
    /// Of a key that [`load`] has accepted.
    pub(super) fn parse(pkcs8: &'a [u8]) -> Result<Self, KeyError> {
        let [modulus, exponent, _, p, q, dp, dq, coefficient] = software_keys::rsa_numbers(pkcs8)?;
        Ok(Self {
            modulus,
            exponent,
            primes: [p, q],
            private: [dp, dq],
            coefficient,
        })
    }

    /// The position of its size in [`SIZES`], if kernels have it.
    pub(super) fn size(&self) -> Option<usize> {
        let longest = self.primes.map(numbers::bits).into_iter().max()?;
        let needed = longest.max(numbers::bits(self.modulus).div_ceil(2));
        SIZES.iter().position(|half_bits| needed <= *half_bits)
    }

    /// The public exponent.
    pub(super) fn public_exponent(&self) -> u64 {
        // At most 33 bits, as the software backend checked.
        self.exponent
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// A number below the modulus that is as good as any to measure with.
    pub(super) fn some_input(&self) -> Vec<u8> {
        let mut input = vec![0x5a; self.modulus.len()];
        input[0] = 0;
        input
    }

    /// The image of the key for a kernel.
    pub(super) fn image(&self, variant: &Variant) -> Zeroizing<Vec<u8>> {
        Image::new(variant).fill(self)
    }
}

/// An image in the making.
struct Image<'a> {
    variant: &'a Variant,
    bytes: Zeroizing<Vec<u8>>,
}

impl<'a> Image<'a> {
    fn new(variant: &'a Variant) -> Self {
        Self {
            variant,
            bytes: Zeroizing::new(vec![0; variant.key_bytes()]),
        }
    }

    fn fill(mut self, parts: &Parts<'_>) -> Zeroizing<Vec<u8>> {
        let layout = self.variant.layout();
        let (half, whole) = (self.variant.half(), 2 * self.variant.half());
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

        // q·(1/q mod p) is 1 modulo p and 0 modulo q; what is missing to n+1 is the other way round.
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

    /// Bits of R for numbers of this number of digits.
    fn radix(&self, digits: usize) -> usize {
        digits * self.variant.digit_bits()
    }

    /// A modulus, and the powers of R modulo it from the first up to `count`.
    fn powers(&mut self, at: usize, digits: usize, modulus: &Digits, count: usize) {
        self.number(at, digits, modulus);
        let mut power = Zeroizing::new(vec![0; modulus.len()]);
        power[0] = 1;
        for step in 1..=count {
            numbers::double_often(&mut power, self.radix(digits), modulus);
            self.number(at + step * digits, digits, &power);
        }
    }

    /// Puts a number into this number of digits of the kernel.
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

    /// −1/n modulo a digit.
    fn inverse(&mut self, at: usize, modulus: &[u64]) {
        let inverse = numbers::negative_inverse(modulus);
        self.scalar(at, bits_at(&[inverse], 0, self.variant.digit_bits()));
    }

    /// An exponent, eight windows of four bits to a digit.
    fn windows(&mut self, at: usize, exponent: &[u64]) {
        for digit in 0..self.variant.layout().exponent {
            self.scalar(at + digit, bits_at(exponent, 32 * digit, 32));
        }
    }

    /// An integer in the place of a digit.
    fn scalar(&mut self, at: usize, value: u64) {
        let size = self.variant.digit_bytes();
        self.bytes[at * size..][..size].copy_from_slice(&value.to_ne_bytes()[..size]);
    }
}

/// `count` bits (at most 52) of a number from a position on.
fn bits_at(number: &[u64], position: usize, count: usize) -> u64 {
    let (digit, bit) = (position / HOST_DIGIT_BITS, position % HOST_DIGIT_BITS);
    let low = number.get(digit).copied().unwrap_or(0) >> bit;
    let high = number.get(digit + 1).copied().unwrap_or(0) << (HOST_DIGIT_BITS - bit);
    (low | high) & ((1 << count) - 1)
}

/// The bits of an integer below 2^52 as a double.
fn real_bits(value: u64) -> u64 {
    // 2^52 + value has the value for its mantissa, without a conversion that might take a varying time.
    (f64::from_bits(0x433 << 52 | value) - f64::from_bits(0x433 << 52)).to_bits()
}

/// Keys of one size on the device.
pub(super) struct Size {
    pub(super) variant: &'static Variant,
    /// From how many tasks on the device is used.
    pub(super) device_from: usize,
    pub(super) store: Box<dyn Store>,
    slots: Mutex<Places>,
    pairs: Mutex<Places>,
    health: Arc<Health>,
}

/// Places that are free: those given back, and those that were never used.
struct Places {
    back: Vec<u32>,
    next: u32,
    limit: u32,
}

impl Places {
    /// The first place is for spare groups of a launch.
    fn new(limit: u32) -> Mutex<Self> {
        Mutex::new(Self {
            back: Vec::new(),
            next: 1,
            limit,
        })
    }

    fn take(&mut self) -> Option<u32> {
        self.back.pop().or_else(|| {
            let place = (self.next < self.limit).then_some(self.next)?;
            self.next += 1;
            Some(place)
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Size {
    /// Memory on a device.
    pub(super) fn new(
        device: &dyn super::device::Device,
        variant: &'static Variant,
        device_from: usize,
        health: Arc<Health>,
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

    /// Puts a key onto the device; `None` if there is no room.
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
    /// Pairs that no task has.
    idle: Mutex<Vec<Pair>>,
    /// The places of all pairs.
    owned: Mutex<Vec<u32>>,
}

/// A blinding pair on the device, by its place.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) place: u32,
    /// Uses that are left; with none it has to be made.
    pub(super) uses: u32,
}

impl Resident {
    /// A pair for one task, if there is room for one more.
    pub(super) fn take_pair(&self) -> Option<Pair> {
        if let Some(pair) = lock(&self.idle).pop() {
            return Some(pair);
        }
        let place = lock(&self.size.pairs).take()?;
        lock(&self.owned).push(place);
        Some(Pair { place, uses: 0 })
    }

    /// Gives a pair back. One whose task went wrong is made anew before it is used.
    pub(super) fn return_pair(&self, mut pair: Pair, right: bool) {
        pair.uses = match (right, pair.uses) {
            (true, 0) => BLINDING_USES - 1,
            (true, uses) => uses - 1,
            (false, _) => 0,
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
            // Places that could not be overwritten are not used again.
            Err(error) => self.size.health.note(&error),
        }
    }
}
