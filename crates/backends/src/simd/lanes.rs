// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Eight numbers at once: the vector operations that the kernels use, as a trait, and a portable twin with
//! the same results on every processor.
//!
//! A big number is a row of 52-bit digits, least significant first; an [`Octet`] holds one digit of
//! eight unrelated numbers, one per *lane*. Lanes never mix, but for
//! [`Lanes::swap_pairs`], which exchanges the two primes of one request.
//!
//! ```text
//!            lane 0   lane 1   lane 2  …  lane 7
//! digit 0    p₀       q₀       p₀'     …            one Octet, one register
//! digit 1    p₁       q₁       p₁'     …
//! ```
//!
//! Memory holds digits in the form that the implementation multiplies: integers, or doubles that
//! hold integers. [`Lanes::to_digit`] and [`Lanes::word_of`] convert.
//!
//! No branch and no address here depends on a value.

use std::hint::black_box;

use zeroize::DefaultIsZeroes;

/// Numbers per register.
pub(super) const LANES: usize = 8;

/// Bits of a digit.
pub(super) const DIGIT_BITS: usize = 52;

/// The largest digit; also the mask of a digit.
pub(super) const DIGIT_MASK: u64 = (1 << DIGIT_BITS) - 1;

/// One 64-bit word in each lane, as it lies in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub(super) struct Octet(pub(super) [u64; LANES]);

impl DefaultIsZeroes for Octet {}

/// The vector operations of a kernel. A value of an implementing type is a token: it exists only on
/// processors with the instructions.
///
/// Words are 64 bits and wrap. A *digit* is a word below 2^52, converted by [`Self::to_digit`].
pub(super) trait Lanes: Copy + Send + 'static {
    /// Eight words in a register.
    type Word: Copy;
    /// Eight truth values in a register.
    type Mask: Copy;

    /// Bias that [`Self::multiply_add`] adds to `low` with each product; a multiple of 2^52.
    const LOW_BIAS: u64;
    /// Bias that [`Self::multiply_add`] adds to `high` with each product; a multiple of 2^52.
    const HIGH_BIAS: u64;
    /// Whether low and high halves of products have separate sums. This is faster where an addition takes
    /// several cycles: each sum then has half as many additions that wait for each other.
    const APART: bool;

    /// Runs a kernel, compiled for these instructions.
    fn run<K: LaneKernel>(self, kernel: K) -> K::Output;

    /// A word that is `value` in each lane.
    fn splat(self, value: u64) -> Self::Word;
    fn load(self, from: &Octet) -> Self::Word;
    fn store(self, to: &mut Octet, word: Self::Word);

    /// Multiplies two digits. Returns `low` plus the low 52 bits of the product plus [`Self::LOW_BIAS`], and
    /// `high` plus the higher bits plus [`Self::HIGH_BIAS`].
    fn multiply_add(
        self,
        low: Self::Word,
        high: Self::Word,
        a: Self::Word,
        b: Self::Word,
    ) -> (Self::Word, Self::Word);
    /// The low 52 bits of the product of the low 52 bits of two words (not digits).
    fn multiply_low(self, a: Self::Word, b: Self::Word) -> Self::Word;
    /// Converts a word below 2^52 to a digit.
    fn to_digit(self, word: Self::Word) -> Self::Word;
    /// Converts a digit to its word.
    fn word_of(self, digit: Self::Word) -> Self::Word;

    fn add(self, a: Self::Word, b: Self::Word) -> Self::Word;
    fn subtract(self, a: Self::Word, b: Self::Word) -> Self::Word;
    fn xor(self, a: Self::Word, b: Self::Word) -> Self::Word;
    fn or(self, a: Self::Word, b: Self::Word) -> Self::Word;
    fn and(self, a: Self::Word, b: Self::Word) -> Self::Word;
    /// The word shifted left by `BITS` bits.
    fn shift_left<const BITS: u32>(self, word: Self::Word) -> Self::Word;
    /// The word shifted right by `BITS` bits, unsigned.
    fn shift_right<const BITS: u32>(self, word: Self::Word) -> Self::Word;
    /// The low 52 bits.
    fn low_digit(self, word: Self::Word) -> Self::Word;
    /// The word shifted right by 52 bits, unsigned.
    fn carry(self, word: Self::Word) -> Self::Word;
    /// The word shifted right by 52 bits with its sign: -1 for a word that went below zero.
    fn borrow(self, word: Self::Word) -> Self::Word;
    /// Exchanges the words of lanes 2k and 2k+1.
    fn swap_pairs(self, word: Self::Word) -> Self::Word;

    /// Mask of the lanes in which two words are equal.
    fn equal(self, a: Self::Word, b: Self::Word) -> Self::Mask;
    /// `yes` in the lanes of the mask, `no` in the others.
    fn select(self, mask: Self::Mask, yes: Self::Word, no: Self::Word) -> Self::Word;

    /// Zero in each lane.
    fn zero(self) -> Self::Word {
        self.splat(0)
    }
}

/// Code that [`Lanes::run`] compiles for an implementation. `run` and everything that it calls must be
/// inlined.
pub(super) trait LaneKernel {
    type Output;
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// The twin without special instructions. The other implementations must equal it bit for bit. It is slower
/// than any library and meant for tests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

/// Applies a function to each lane.
#[inline(always)]
fn map2(a: [u64; LANES], b: [u64; LANES], f: impl Fn(u64, u64) -> u64) -> [u64; LANES] {
    let mut out = [0; LANES];
    for lane in 0..LANES {
        out[lane] = f(a[lane], b[lane]);
    }
    out
}

impl Lanes for Portable {
    type Word = [u64; LANES];
    type Mask = [u64; LANES];

    const LOW_BIAS: u64 = 0;
    const HIGH_BIAS: u64 = 0;
    const APART: bool = false;

    fn run<K: LaneKernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, value: u64) -> Self::Word {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, from: &Octet) -> Self::Word {
        from.0
    }

    #[inline(always)]
    fn store(self, to: &mut Octet, word: Self::Word) {
        to.0 = word;
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "both halves fit 52 bits")]
    fn multiply_add(
        self,
        mut low: Self::Word,
        mut high: Self::Word,
        a: Self::Word,
        b: Self::Word,
    ) -> (Self::Word, Self::Word) {
        for lane in 0..LANES {
            let product = u128::from(a[lane] & DIGIT_MASK) * u128::from(b[lane] & DIGIT_MASK);
            low[lane] = low[lane].wrapping_add(product as u64 & DIGIT_MASK);
            high[lane] = high[lane].wrapping_add((product >> DIGIT_BITS) as u64);
        }
        (low, high)
    }

    #[inline(always)]
    fn multiply_low(self, a: Self::Word, b: Self::Word) -> Self::Word {
        map2(a, b, |a, b| a.wrapping_mul(b) & DIGIT_MASK)
    }

    #[inline(always)]
    fn to_digit(self, word: Self::Word) -> Self::Word {
        word
    }

    #[inline(always)]
    fn word_of(self, digit: Self::Word) -> Self::Word {
        digit
    }

    #[inline(always)]
    fn add(self, a: Self::Word, b: Self::Word) -> Self::Word {
        map2(a, b, u64::wrapping_add)
    }

    #[inline(always)]
    fn subtract(self, a: Self::Word, b: Self::Word) -> Self::Word {
        map2(a, b, u64::wrapping_sub)
    }

    #[inline(always)]
    fn xor(self, a: Self::Word, b: Self::Word) -> Self::Word {
        map2(a, b, |a, b| a ^ b)
    }

    #[inline(always)]
    fn or(self, a: Self::Word, b: Self::Word) -> Self::Word {
        map2(a, b, |a, b| a | b)
    }

    #[inline(always)]
    fn and(self, a: Self::Word, b: Self::Word) -> Self::Word {
        map2(a, b, |a, b| a & b)
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self, word: Self::Word) -> Self::Word {
        word.map(|word| word << BITS)
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self, word: Self::Word) -> Self::Word {
        word.map(|word| word >> BITS)
    }

    #[inline(always)]
    fn low_digit(self, word: Self::Word) -> Self::Word {
        word.map(|word| word & DIGIT_MASK)
    }

    #[inline(always)]
    fn carry(self, word: Self::Word) -> Self::Word {
        word.map(|word| word >> DIGIT_BITS)
    }

    #[inline(always)]
    fn borrow(self, word: Self::Word) -> Self::Word {
        word.map(|word| (word.cast_signed() >> DIGIT_BITS).cast_unsigned())
    }

    #[inline(always)]
    fn swap_pairs(self, word: Self::Word) -> Self::Word {
        let [a, b, c, d, e, f, g, h] = word;
        [b, a, d, c, f, e, h, g]
    }

    #[inline(always)]
    fn equal(self, a: Self::Word, b: Self::Word) -> Self::Mask {
        // All ones exactly if the difference is zero, without a comparison. The black box hides from the
        // optimizer that only two values occur; without it the optimizer did branch on them.
        black_box(map2(a, b, |a, b| {
            let differ = a ^ b;
            ((differ | differ.wrapping_neg()) >> 63).wrapping_sub(1)
        }))
    }

    #[inline(always)]
    fn select(self, mask: Self::Mask, yes: Self::Word, no: Self::Word) -> Self::Word {
        let mut out = no;
        for lane in 0..LANES {
            out[lane] ^= mask[lane] & (yes[lane] ^ no[lane]);
        }
        out
    }
}
