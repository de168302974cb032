// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA private operations of up to four requests at once, each with its own key.
//!
//! Request k has lanes 2k and 2k+1. Modulo the primes they do different work: p in the even lane, q in the
//! odd one. Modulo n both do the same. That costs nothing, and lets each lane check the other.
//!
//! ```text
//!              even lane                        odd lane
//! blind        b = input·rᵉ mod n               the same
//! reduce       b mod p                          b mod q
//! exponentiate bᵈ mod p                         bᵈ mod q
//! recombine    s = Σ of both lanes, each times its basis, mod n
//! unblind      y = s/r mod n                    the same
//! verify       sᵉ = b?                          yᵉ = input?           and y equal in both?
//! ```
//!
//! So one public operation verifies two numbers. The even lane verifies the blinded result before it is used;
//! this stops attacks with faulty CRT results. The odd lane verifies the result that the caller gets; this
//! also catches an error in unblinding or in a stored blinding pair. A result that fails is zeroised, and the
//! other requests of the batch are not affected.
//!
//! **Constant time.** The sequence of instructions and addresses depends on the size of the keys, their
//! public exponents, the number of requests, and whether a blinding pair was in the store. Windows of
//! exponents are only compared with table positions, and all positions are read.

use millrace_engine::BackendError;
use zeroize::{Zeroize, Zeroizing};

use super::keys::{Blinding, LaneKey, PrimeKey, Size, WINDOW};
use super::lanes::{LANES, Lanes, Octet};
use super::montgomery::{
    Add, BLOCK, Block, Difference, FromDigits, Lookup, Modulus, Multiply, Reduce, Square, TakeOdd,
    TakeWhere, ToDigits,
};
use super::numbers::{self, Digits};
use crate::software::sys;

/// Requests per batch.
pub(super) const REQUESTS: usize = LANES / 2;

/// The public exponent that nearly all keys have: 2^16 + 1.
const F4: u64 = 0x1_0001;

/// Bytes of stack that are overwritten after a batch: more than the frames of all kernels together. Their
/// spilled registers may hold secrets.
const STACK_TO_WIPE: usize = 16 * 1024;

/// One request of a batch.
pub(super) struct RsaRequest<'a> {
    pub(super) key: &'a LaneKey,
    pub(super) blinding: Blinding,
    /// Input: a number below the modulus, big-endian, as long as the modulus. Output: its d-th power, or
    /// zeros.
    pub(super) block: &'a mut [u8],
}

/// Moduli of the lanes with their constants, and scratch for numbers of that length.
struct Constants {
    modulus: Vec<Block>,
    negative_inverse: Octet,
    /// R² mod n.
    square: Vec<Block>,
    quotients: Vec<Block>,
}

impl Constants {
    fn new(blocks: usize) -> Self {
        Self {
            modulus: room(blocks),
            negative_inverse: Octet::default(),
            square: room(blocks),
            quotients: room(blocks),
        }
    }

    fn multiply<L: Lanes>(&mut self, l: L, value: &mut [Block], factor: &[Block]) {
        l.run(Multiply {
            value,
            factor,
            modulus: Modulus { digits: &self.modulus, negative_inverse: &self.negative_inverse },
            quotients: &mut self.quotients,
        });
    }

    fn square<L: Lanes>(&mut self, l: L, value: &mut [Block]) {
        l.run(Square {
            value,
            modulus: Modulus { digits: &self.modulus, negative_inverse: &self.negative_inverse },
            quotients: &mut self.quotients,
        });
    }

    /// Converts a value to Montgomery form.
    fn enter<L: Lanes>(&mut self, l: L, value: &mut [Block]) {
        let square = std::mem::take(&mut self.square);
        self.multiply(l, value, &square);
        self.square = square;
    }

    fn reduce<L: Lanes>(&mut self, l: L, value: &mut [Block]) {
        l.run(Reduce {
            value,
            modulus: Modulus { digits: &self.modulus, negative_inverse: &self.negative_inverse },
            room: &mut self.quotients,
        });
    }

    fn wipe(&mut self) {
        let Self { modulus, negative_inverse, square, quotients } = self;
        negative_inverse.zeroize();
        for numbers in [modulus, square, quotients] {
            numbers.as_flattened_mut().zeroize();
        }
    }
}

/// The memory of a batch, reused for the next one and zeroised after each.
pub(super) struct Workspace {
    size: &'static Size,
    half: Constants,
    whole: Constants,
    /// R mod p and R³ mod p.
    half_one: Vec<Block>,
    half_cube: Vec<Block>,
    /// The number 1, not in Montgomery form.
    unit: Vec<Block>,
    /// The bases of the CRT recombination.
    recombine: Vec<Block>,
    public_exponents: [u64; LANES],
    /// Windows of the exponents, most significant first.
    windows: Vec<Octet>,
    table: Vec<Block>,
    /// Blocks of the length of a prime.
    power: Vec<Block>,
    entry: Vec<Block>,
    /// Blocks of the length of the modulus.
    input: Vec<Block>,
    blinded: Vec<Block>,
    factor: Vec<Block>,
    inverse: Vec<Block>,
    result: Vec<Block>,
    check: Vec<Block>,
    base: Vec<Block>,
    last: Vec<Block>,
    #[cfg(test)]
    pub(super) strike: Option<tests::Strike>,
}

fn room(blocks: usize) -> Vec<Block> {
    vec![Block::default(); blocks]
}

/// Writes a number to one lane.
fn put(blocks: &mut [Block], lane: usize, digits: &[u64]) {
    for (octet, digit) in blocks.as_flattened_mut().iter_mut().zip(digits) {
        octet.0[lane] = *digit;
    }
}

/// Reads a number from one lane.
fn take(blocks: &[Block], lane: usize) -> Digits {
    let octets = blocks.as_flattened().iter();
    Zeroizing::new(octets.map(|octet| octet.0[lane]).collect())
}

/// The private exponent, or p−2 and q−2 for inversion.
#[derive(Clone, Copy)]
enum Exponent {
    Private,
    Inverting,
}

impl Exponent {
    fn of(self, prime: &PrimeKey) -> &[u8] {
        match self {
            Self::Private => &prime.exponent,
            Self::Inverting => &prime.inverting_exponent,
        }
    }
}

/// The points at which a number is complete and a test may flip one of its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RsaStep {
    Modulus,
    Prime,
    Recombination,
    Input,
    Factor,
    Inverse,
    Blinded,
    Table,
    Power,
    Recombined,
    Unblinded,
    Verifying,
    Target,
}

impl RsaStep {
    /// The points after loading numbers of the key, the request and its blinding.
    const LOADED: [Self; 6] =
        [Self::Modulus, Self::Prime, Self::Recombination, Self::Input, Self::Factor, Self::Inverse];
}

impl Workspace {
    /// Allocates memory for batches of one size of key.
    pub(super) fn new(size: &'static Size) -> Self {
        let (half, whole) = (size.blocks, 2 * size.blocks);
        Self {
            size,
            half: Constants::new(half),
            whole: Constants::new(whole),
            half_one: room(half),
            half_cube: room(half),
            unit: room(half),
            recombine: room(whole),
            public_exponents: [0; LANES],
            windows: Vec::new(),
            table: room(half << WINDOW),
            power: room(half),
            entry: room(half),
            input: room(whole),
            blinded: room(whole),
            factor: room(whole),
            inverse: room(whole),
            result: room(whole),
            check: room(whole),
            base: room(whole),
            last: room(whole),
            #[cfg(test)]
            strike: None,
        }
    }

    /// Runs the private operation for each request. After an error the block is zeroised and the blinding
    /// pair must be dropped; otherwise the pair is ready for its next use.
    ///
    /// # Panics
    /// If there are more than four requests, or keys of another size.
    pub(super) fn private<L: Lanes>(
        &mut self,
        l: L,
        requests: Vec<RsaRequest<'_>>,
    ) -> Vec<Result<(), BackendError>> {
        self.load(l, requests.iter().map(|request| request.key), Exponent::Private);
        for (request, at) in requests.iter().zip(0..) {
            let digits = 2 * self.size.blocks * BLOCK;
            let input = numbers::from_bytes(request.block, digits);
            for lane in [2 * at, 2 * at + 1] {
                put(&mut self.input, lane, &input);
                put(&mut self.factor, lane, &request.blinding.factor);
                put(&mut self.inverse, lane, &request.blinding.inverse);
            }
        }
        for numbers in [&mut self.input, &mut self.factor, &mut self.inverse] {
            l.run(ToDigits(numbers));
        }
        for step in RsaStep::LOADED {
            self.hit(l, step);
        }

        self.blinded.copy_from_slice(&self.input);
        self.whole.multiply(l, &mut self.blinded, &self.factor);
        self.hit(l, RsaStep::Blinded);
        self.result.copy_from_slice(&self.blinded);
        self.exponentiate(l);
        self.hit(l, RsaStep::Recombined);
        let differences = self.unblind_and_verify(l);

        // Computes the next pair: r^e squared in the even lanes, 1/r squared in the odd ones.
        let (value, other) = (&mut self.factor, &self.inverse);
        l.run(TakeOdd { value, other });
        self.whole.square(l, &mut self.factor);

        l.run(FromDigits(&mut self.base));
        l.run(FromDigits(&mut self.factor));
        let results = requests
            .into_iter()
            .zip(0..)
            .map(|(request, at)| self.finish(request, at, &differences))
            .collect();
        self.wipe();
        results
    }

    /// Unblinds the recombined result into `base` and verifies it. Returns the differences per lane: zero in
    /// both lanes of a request if its result is right.
    fn unblind_and_verify<L: Lanes>(&mut self, l: L) -> Octet {
        self.base.copy_from_slice(&self.result);
        self.whole.multiply(l, &mut self.base, &self.inverse);
        self.whole.reduce(l, &mut self.base);
        self.hit(l, RsaStep::Unblinded);
        let unequal = l.run(Difference { value: &self.base, other: None });

        // Even lanes hold the blinded result, odd ones the unblinded one.
        l.run(TakeOdd { value: &mut self.result, other: &self.base });
        self.last.copy_from_slice(&self.result);
        self.whole.enter(l, &mut self.result);
        self.public_power(l);
        self.whole.reduce(l, &mut self.check);
        self.hit(l, RsaStep::Verifying);
        self.whole.reduce(l, &mut self.blinded);
        l.run(TakeOdd { value: &mut self.blinded, other: &self.input });
        self.hit(l, RsaStep::Target);
        let wrong = l.run(Difference { value: &self.check, other: Some(&self.blinded) });
        let mut differences = Octet::default();
        for (lane, difference) in differences.0.iter_mut().enumerate() {
            *difference = unequal.0[lane] | wrong.0[lane];
        }
        declare_public(&mut differences);
        differences
    }

    /// Writes one result to its block if it is right.
    fn finish(
        &self,
        request: RsaRequest<'_>,
        at: usize,
        differences: &Octet,
    ) -> Result<(), BackendError> {
        let RsaRequest { key, mut blinding, block } = request;
        // Each lane is a separate verification.
        if differences.0[2 * at] | differences.0[2 * at + 1] != 0 {
            block.zeroize();
            return Err(BackendError::Fault);
        }
        numbers::to_bytes(&take(&self.base, 2 * at + 1), block);
        blinding.factor = take(&self.factor, 2 * at);
        blinding.inverse = take(&self.factor, 2 * at + 1);
        key.return_blinding(blinding);
        Ok(())
    }

    /// Computes a fresh blinding pair for each key. A key may occur several times.
    ///
    /// # Errors
    /// Per key: `Failed` without randomness, `Fault` if the pair does not verify.
    pub(super) fn blind<L: Lanes>(
        &mut self,
        l: L,
        keys: &[&LaneKey],
    ) -> Vec<Result<Blinding, BackendError>> {
        self.load(l, keys.iter().copied(), Exponent::Inverting);
        let digits = 2 * self.size.blocks * BLOCK;
        for at in 0..keys.len() {
            // A random number below R is uniform modulo n up to one part in 2^32 or less.
            let mut bytes = Zeroizing::new(vec![0; digits * super::lanes::DIGIT_BITS / 8]);
            if let Err(error) = sys::random(&mut bytes) {
                self.wipe();
                return keys.iter().map(|_| Err(error)).collect();
            }
            let number = numbers::from_bytes(&bytes, digits);
            for lane in [2 * at, 2 * at + 1] {
                put(&mut self.input, lane, &number);
            }
        }
        l.run(ToDigits(&mut self.input));
        self.whole.enter(l, &mut self.input);

        // 1/r
        self.result.copy_from_slice(&self.input);
        self.leave_whole(l);
        self.exponentiate(l);
        self.inverse.copy_from_slice(&self.result);
        // 1/r · r must be 1.
        self.whole.multiply(l, &mut self.result, &self.input);
        self.whole.reduce(l, &mut self.result);
        self.last.fill(Block::default());
        self.last[..self.unit.len()].copy_from_slice(&self.unit);
        let wrong = l.run(Difference { value: &self.result, other: Some(&self.last) });
        // r^e
        self.result.copy_from_slice(&self.input);
        self.last.copy_from_slice(&self.input);
        self.public_power(l);

        self.whole.enter(l, &mut self.inverse);
        l.run(FromDigits(&mut self.check));
        l.run(FromDigits(&mut self.inverse));
        let pairs = (0..keys.len())
            .map(|at| {
                if wrong.0[2 * at] | wrong.0[2 * at + 1] == 0 {
                    let (factor, inverse) =
                        (take(&self.check, 2 * at), take(&self.inverse, 2 * at));
                    Ok(Blinding::new(factor, inverse))
                } else {
                    Err(BackendError::Fault)
                }
            })
            .collect();
        self.wipe();
        pairs
    }

    /// Loads keys into the lanes. Lanes without a key are zero and stay zero.
    fn load<'k, L: Lanes>(
        &mut self,
        l: L,
        keys: impl Iterator<Item = &'k LaneKey>,
        exponent: Exponent,
    ) {
        for (key, at) in keys.zip(0..) {
            assert!(at < REQUESTS && key.size.index == self.size.index);
            for (prime, side) in key.primes.iter().zip(0..) {
                let lane = 2 * at + side;
                put(&mut self.half.modulus, lane, &prime.prime);
                put(&mut self.half.square, lane, &prime.square);
                put(&mut self.half_one, lane, &prime.one);
                put(&mut self.half_cube, lane, &prime.cube);
                self.half.negative_inverse.0[lane] = prime.negative_inverse;
                put(&mut self.whole.modulus, lane, &key.modulus);
                put(&mut self.whole.square, lane, &key.square);
                put(&mut self.recombine, lane, &key.recombine[side]);
                self.whole.negative_inverse.0[lane] = key.negative_inverse;
                self.public_exponents[lane] = key.public_exponent;
                let windows = exponent.of(prime);
                self.windows.resize(windows.len(), Octet::default());
                for (octet, window) in self.windows.iter_mut().zip(windows) {
                    octet.0[lane] = u64::from(*window);
                }
            }
        }
        self.unit[0][0] = Octet([1; LANES]);
        for numbers in [
            &mut self.half.modulus,
            &mut self.half.square,
            &mut self.half_one,
            &mut self.half_cube,
            &mut self.whole.modulus,
            &mut self.whole.square,
            &mut self.recombine,
            &mut self.unit,
        ] {
            l.run(ToDigits(numbers));
        }
    }

    /// `result ← result^exponent mod n`: in below 2n, out below 4n.
    fn exponentiate<L: Lanes>(&mut self, l: L) {
        let blocks = self.size.blocks;
        // With result = high·R + low, result·R mod p is low·R²/R + high·R³/R.
        let (low, high) = self.result.split_at(blocks);
        self.power.copy_from_slice(low);
        self.entry.copy_from_slice(high);
        self.half.enter(l, &mut self.power);
        self.half.multiply(l, &mut self.entry, &self.half_cube);
        let (value, other) = (&mut self.power, Some(&self.entry[..]));
        l.run(Add { value, other });
        self.fill_table(l);
        self.hit(l, RsaStep::Table);

        let mut windows = std::mem::take(&mut self.windows);
        for (at, index) in windows.iter().enumerate() {
            if at == 0 {
                self.look_up(l, index);
                self.power.copy_from_slice(&self.entry);
                continue;
            }
            for _ in 0..WINDOW {
                self.half.square(l, &mut self.power);
            }
            self.look_up(l, index);
            self.half.multiply(l, &mut self.power, &self.entry);
        }
        windows.zeroize();
        self.windows = windows;
        self.half.multiply(l, &mut self.power, &self.unit);
        self.hit(l, RsaStep::Power);

        let (low, high) = self.result.split_at_mut(blocks);
        low.copy_from_slice(&self.power);
        high.fill(Block::default());
        self.whole.multiply(l, &mut self.result, &self.recombine);
        let (value, other) = (&mut self.result, None);
        l.run(Add { value, other });
    }

    /// Fills the table with the powers 0, 1, 2, … of `power`.
    fn fill_table<L: Lanes>(&mut self, l: L) {
        let blocks = self.size.blocks;
        self.table[..blocks].copy_from_slice(&self.half_one);
        self.table[blocks..2 * blocks].copy_from_slice(&self.power);
        for exponent in 2..1 << WINDOW {
            let (below, place) = self.table.split_at_mut(exponent * blocks);
            let place = &mut place[..blocks];
            // A square is cheaper than a product.
            let from = if exponent % 2 == 0 { exponent / 2 } else { exponent - 1 };
            place.copy_from_slice(&below[from * blocks..][..blocks]);
            if exponent % 2 == 0 {
                self.half.square(l, place);
            } else {
                self.half.multiply(l, place, &self.power);
            }
        }
    }

    fn look_up<L: Lanes>(&mut self, l: L, index: &Octet) {
        l.run(Lookup { table: &self.table, index, out: &mut self.entry });
    }

    /// `check ← result^(e−1) · last`, where `result` is in Montgomery form. `check` is in that form if `last`
    /// is.
    fn public_power<L: Lanes>(&mut self, l: L) {
        self.check.copy_from_slice(&self.result);
        // 0: no request.
        if self.public_exponents.iter().all(|e| [0, F4].contains(e)) {
            for _ in 0..16 {
                self.whole.square(l, &mut self.check);
            }
        } else {
            self.any_public_power(l);
        }
        self.whole.multiply(l, &mut self.check, &self.last);
    }

    /// `check ← result^(e−1)` for exponents that differ between lanes, bit by bit. They are public and odd.
    fn any_public_power<L: Lanes>(&mut self, l: L) {
        let longest = self.public_exponents.iter().max().copied().unwrap_or(0);
        let bits = u64::BITS - longest.leading_zeros();
        // R mod n, the number 1 in Montgomery form.
        let mut product = self.whole.square.clone();
        std::mem::swap(&mut self.check, &mut product);
        self.leave_check(l);
        for bit in (1..bits).rev() {
            self.whole.square(l, &mut self.check);
            product.copy_from_slice(&self.check);
            self.whole.multiply(l, &mut product, &self.result);
            let lanes = Octet(self.public_exponents.map(|e| (e >> bit) & 1));
            l.run(TakeWhere { value: &mut self.check, other: &product, lanes: &lanes });
        }
        self.whole.square(l, &mut self.check);
        product.as_flattened_mut().zeroize();
    }

    /// Converts `check` out of Montgomery form.
    fn leave_check<L: Lanes>(&mut self, l: L) {
        let mut unit = room(2 * self.size.blocks);
        unit[..self.unit.len()].copy_from_slice(&self.unit);
        self.whole.multiply(l, &mut self.check, &unit);
    }

    /// Converts `result` out of Montgomery form.
    fn leave_whole<L: Lanes>(&mut self, l: L) {
        let mut unit = room(2 * self.size.blocks);
        unit[..self.unit.len()].copy_from_slice(&self.unit);
        self.whole.multiply(l, &mut self.result, &unit);
    }

    /// Zeroises everything, and the stack that the kernels used.
    fn wipe(&mut self) {
        let Self {
            size: _,
            half,
            whole,
            half_one,
            half_cube,
            unit,
            recombine,
            public_exponents,
            windows,
            table,
            power,
            entry,
            input,
            blinded,
            factor,
            inverse,
            result,
            check,
            base,
            last,
            #[cfg(test)]
                strike: _,
        } = self;
        half.wipe();
        whole.wipe();
        public_exponents.zeroize();
        windows.as_mut_slice().zeroize();
        for numbers in [
            half_one, half_cube, unit, recombine, table, power, entry, input, blinded, factor,
            inverse, result, check, base, last,
        ] {
            numbers.as_flattened_mut().zeroize();
        }
        wipe_stack();
    }

    /// Does nothing. In tests, flips a bit at this point.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, clippy::needless_pass_by_ref_mut, reason = "has a body in tests")]
    fn hit<L: Lanes>(&mut self, _: L, _: RsaStep) {}
}

impl Drop for Workspace {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// Declares public whether results are right: the caller sees it, because it gets a result or an error.
#[cfg_attr(
    not(all(test, target_arch = "x86_64")),
    expect(clippy::needless_pass_by_ref_mut, reason = "tests change how it is seen")
)]
fn declare_public(differences: &mut Octet) {
    #[cfg(all(test, target_arch = "x86_64"))]
    super::sys::memcheck_mark_defined(&mut differences.0);
    #[cfg(not(all(test, target_arch = "x86_64")))]
    let _ = differences;
}

/// Overwrites the stack below the caller's frame.
#[inline(never)]
fn wipe_stack() {
    let mut stack = [0_u64; STACK_TO_WIPE / 8];
    stack.zeroize();
}

pub(super) mod verify;

#[cfg(test)]
pub(super) mod tests;
#[cfg(all(test, target_arch = "x86_64"))]
mod timing_tests;
