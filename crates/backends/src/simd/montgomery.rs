// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Arithmetic modulo eight odd numbers at once.
//!
//! **Almost Montgomery.** Each modulus is at least 16 bits shorter than R = 2^(52·digits). So a product
//! `a·b/R mod n` of two inputs below 128n, or of one below R and one below n, is below 2n without a final
//! subtraction. Nothing is compared or subtracted until [`Reduce`] makes the result canonical.
//!
//! **Tiles.** Digits come in [`Block`]s of five. The product of two blocks, a *tile*, needs ten loads for
//! twenty-five digit products and adds to ten neighbouring columns. Columns are computed from the lowest up:
//! all tiles of five columns one after another. The sums stay in registers; no intermediate sum is written to
//! memory. Multiplication and reduction alternate, because the tiles of a column need quotient digits that
//! come from the columns below.
//!
//! ```text
//!  columns 0–4   a₀b₀                        → quotient q₀, column sums become multiples of 2^52
//!  columns 5–9   a₀b₁ a₁b₀ q₀n₁              → q₁
//!  …
//!  upper half    a₁b₃ a₂b₂ a₃b₁ q₁n₃ q₂n₂ …  → digits of the result
//! ```
//!
//! A squaring computes each pair of different blocks once and doubles the sums: 610 digit products
//! instead of 800 for 20 digits.
//!
//! The sequence of instructions depends only on the number of digits.

use super::lanes::{DIGIT_MASK, LaneKernel, Lanes, Octet};

/// Digits per block. Five divides the number of digits of every size of key (20, 30, 40, and twice those),
/// and the 18 sums and 5 digits of a tile fit into 32 registers.
pub(super) const BLOCK: usize = 5;

/// Five digits of eight numbers.
pub(super) type Block = [Octet; BLOCK];

/// Eight moduli with the constants for reduction.
#[derive(Clone, Copy)]
pub(super) struct Modulus<'a> {
    /// The moduli, as digits.
    pub(super) digits: &'a [Block],
    /// −1/n mod 2^52, as words.
    pub(super) negative_inverse: &'a Octet,
}

/// Repeats statements for each digit of a block, with its position as a constant. Written out rather
/// than left to the optimizer, because an array of sums that is indexed in a loop ends up in memory
/// when the loop is not unrolled early.
macro_rules! each_digit {
    ($i:ident => $body:block) => {{
        {
            const $i: usize = 0;
            $body
        }
        {
            const $i: usize = 1;
            $body
        }
        {
            const $i: usize = 2;
            $body
        }
        {
            const $i: usize = 3;
            $body
        }
        {
            const $i: usize = 4;
            $body
        }
    }};
}

/// The sums of ten columns. Where [`Lanes::APART`] holds, the high halves of products have sums of their own:
/// `high[k]` belongs to the same column as `low[k]`.
#[derive(Clone, Copy)]
struct Sums<W> {
    low: [W; 2 * BLOCK],
    high: [W; 2 * BLOCK],
}

impl<W: Copy> Sums<W> {
    #[inline(always)]
    fn zero<L: Lanes<Word = W>>(l: L) -> Self {
        Self { low: [l.zero(); 2 * BLOCK], high: [l.zero(); 2 * BLOCK] }
    }

    /// Adds one digit product, whose low half belongs to the given column.
    #[inline(always)]
    fn accumulate<L: Lanes<Word = W>>(&mut self, l: L, column: usize, a: W, b: W) {
        if L::APART {
            (self.low[column], self.high[column + 1]) =
                l.multiply_add(self.low[column], self.high[column + 1], a, b);
        } else {
            (self.low[column], self.low[column + 1]) =
                l.multiply_add(self.low[column], self.low[column + 1], a, b);
        }
    }

    /// Adds the high half of one digit product to the given column.
    #[inline(always)]
    fn accumulate_high<L: Lanes<Word = W>>(&mut self, l: L, column: usize, a: W, b: W) {
        let sums = if L::APART { &mut self.high } else { &mut self.low };
        sums[column + 1] = l.multiply_add(l.zero(), sums[column + 1], a, b).1;
    }

    /// The total sum of a column.
    #[inline(always)]
    fn total<L: Lanes<Word = W>>(&self, l: L, column: usize) -> W {
        if L::APART { l.add(self.low[column], self.high[column]) } else { self.low[column] }
    }

    /// Adds all products of two blocks.
    #[inline(always)]
    fn tile<L: Lanes<Word = W>>(&mut self, l: L, a: &Block, b: &Block) {
        let a = load(l, a);
        each_digit!(J => {
            let b = l.load(&b[J]);
            each_digit!(I => {
                self.accumulate(l, I + J, a[I], b);
            });
        });
    }

    /// Adds the products of different digits of one block, each pair once.
    #[inline(always)]
    fn triangle<L: Lanes<Word = W>>(&mut self, l: L, a: &Block) {
        let [a, b, c, d, e] = load(l, a);
        self.accumulate(l, 1, a, b);
        self.accumulate(l, 2, a, c);
        self.accumulate(l, 3, a, d);
        self.accumulate(l, 4, a, e);
        self.accumulate(l, 3, b, c);
        self.accumulate(l, 4, b, d);
        self.accumulate(l, 5, b, e);
        self.accumulate(l, 5, c, d);
        self.accumulate(l, 6, c, e);
        self.accumulate(l, 7, d, e);
    }

    /// Adds the squares of the digits of one block.
    #[inline(always)]
    fn diagonal<L: Lanes<Word = W>>(&mut self, l: L, a: &Block) {
        each_digit!(I => {
            let digit = l.load(&a[I]);
            self.accumulate(l, 2 * I, digit, digit);
        });
    }

    /// Doubles the sums.
    #[inline(always)]
    fn double<L: Lanes<Word = W>>(&mut self, l: L) {
        each_digit!(I => {
            self.low[I] = l.add(self.low[I], self.low[I]);
            self.low[BLOCK + I] = l.add(self.low[BLOCK + I], self.low[BLOCK + I]);
            if L::APART {
                self.high[I] = l.add(self.high[I], self.high[I]);
                self.high[BLOCK + I] = l.add(self.high[BLOCK + I], self.high[BLOCK + I]);
            }
        });
    }

    /// Moves the sums of the upper five columns to the lower five, for the next block of columns.
    #[inline(always)]
    fn upper<L: Lanes<Word = W>>(&self, l: L) -> [W; BLOCK] {
        let mut upper = [l.zero(); BLOCK];
        each_digit!(I => {
            upper[I] = self.total(l, BLOCK + I);
        });
        upper
    }

    /// Adds the sums of a previous block to the lower five columns.
    #[inline(always)]
    fn add_lower<L: Lanes<Word = W>>(&mut self, l: L, lower: [W; BLOCK]) {
        each_digit!(I => {
            self.low[I] = l.add(self.low[I], lower[I]);
        });
    }
}

#[inline(always)]
fn load<L: Lanes>(l: L, block: &Block) -> [L::Word; BLOCK] {
    let [a, b, c, d, e] = block;
    [l.load(a), l.load(b), l.load(c), l.load(d), l.load(e)]
}

/// The correction that removes the biases of all products from the sum of a column, for numbers of `digits`
/// digits.
#[inline(always)]
fn without_bias<L: Lanes>(column: usize, digits: usize) -> u64 {
    // The number of digit pairs whose positions add up to `sum`, doubled: the reduction has as many products
    // as the multiplication, and doubling a sum also doubles its biases.
    let products = |sum: usize| 2 * (sum + 1).min((2 * digits - 1).saturating_sub(sum)) as u64;
    let low = products(column).wrapping_mul(L::LOW_BIAS);
    let high = match column {
        0 => 0,
        _ => products(column - 1).wrapping_mul(L::HIGH_BIAS),
    };
    0_u64.wrapping_sub(low.wrapping_add(high))
}

/// State that carries over from one block of columns to the next.
struct Columns<L: Lanes> {
    carry: L::Word,
    next: usize,
    digits: usize,
}

impl<L: Lanes> Columns<L> {
    #[inline(always)]
    fn new(l: L, digits: usize) -> Self {
        Self { carry: l.zero(), next: 0, digits }
    }

    /// Turns the biased sum of the next column into its true sum, including the carry.
    #[inline(always)]
    fn propagate_carry(&mut self, l: L, sum: L::Word) -> L::Word {
        let mut sum = l.add(sum, self.carry);
        if L::LOW_BIAS != 0 {
            sum = l.add(sum, l.splat(without_bias::<L>(self.next, self.digits)));
        }
        self.next += 1;
        self.carry = l.carry(sum);
        sum
    }

    /// Finds the five quotient digits that make the lower five columns multiples of 2^52, and adds their
    /// products with the lowest block of the modulus.
    #[inline(always)]
    fn eliminate(
        &mut self,
        l: L,
        sums: &mut Sums<L::Word>,
        quotients: &mut Block,
        modulus: Modulus<'_>,
    ) {
        let n = load(l, &modulus.digits[0]);
        let negative_inverse = l.load(modulus.negative_inverse);
        // Adding the low half of q·n₀ always takes the sum up to the next multiple of 2^52. So the half is
        // not computed; only its bias is added.
        let missing = l.splat(DIGIT_MASK.wrapping_add(L::LOW_BIAS));
        each_digit!(I => {
            // A bias is a multiple of 2^52, so it does not change the low digit.
            let sum = l.add(sums.total(l, I), self.carry);
            let q = l.to_digit(l.multiply_low(sum, negative_inverse));
            l.store(&mut quotients[I], q);
            self.propagate_carry(l, l.add(sums.total(l, I), missing));
            sums.accumulate_high(l, I, n[0], q);
            sums.accumulate(l, I + 1, n[1], q);
            sums.accumulate(l, I + 2, n[2], q);
            sums.accumulate(l, I + 3, n[3], q);
            sums.accumulate(l, I + 4, n[4], q);
        });
    }

    /// Writes five digits of the result from the lower five columns.
    #[inline(always)]
    fn emit(&mut self, l: L, sums: &Sums<L::Word>, out: &mut Block) {
        each_digit!(I => {
            let sum = self.propagate_carry(l, sums.total(l, I));
            l.store(&mut out[I], l.to_digit(l.low_digit(sum)));
        });
    }
}

/// `value ← value·factor/R mod n`, below 2n.
pub(super) struct Multiply<'a> {
    pub(super) value: &'a mut [Block],
    pub(super) factor: &'a [Block],
    pub(super) modulus: Modulus<'a>,
    /// Room for as many blocks; left with what must be zeroised.
    pub(super) quotients: &'a mut [Block],
}

impl LaneKernel for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let blocks = self.value.len();
        let (a, b) = (&mut self.value[..blocks], &self.factor[..blocks]);
        let n = &self.modulus.digits[..blocks];
        let quotients = &mut self.quotients[..blocks];
        let mut columns = Columns::new(l, blocks * BLOCK);
        let mut lower = [l.zero(); BLOCK];
        for block in 0..2 * blocks {
            // Blocks i and j with i + j = block.
            let first = (block + 1).saturating_sub(blocks);
            // Starting from zero instead of from `lower` means that the products need not wait for it.
            let mut sums = Sums::zero(l);
            for i in first..blocks.min(block + 1) {
                sums.tile(l, &a[i], &b[block - i]);
            }
            sums.add_lower(l, lower);
            for i in first..blocks.min(block) {
                sums.tile(l, &quotients[i], &n[block - i]);
            }
            if block < blocks {
                columns.eliminate(l, &mut sums, &mut quotients[block], self.modulus);
            } else {
                // The digits of `a` and `b` up to this block are no longer needed.
                columns.emit(l, &sums, &mut a[block - blocks]);
            }
            lower = sums.upper(l);
        }
    }
}

/// `value ← value²/R mod n`, below 2n.
pub(super) struct Square<'a> {
    pub(super) value: &'a mut [Block],
    pub(super) modulus: Modulus<'a>,
    /// Room for as many blocks; left with what must be zeroised.
    pub(super) quotients: &'a mut [Block],
}

impl LaneKernel for Square<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let blocks = self.value.len();
        let a = &mut self.value[..blocks];
        let n = &self.modulus.digits[..blocks];
        let quotients = &mut self.quotients[..blocks];
        let mut columns = Columns::new(l, blocks * BLOCK);
        let mut lower = [l.zero(); BLOCK];
        for block in 0..2 * blocks {
            // Blocks i and j with i + j = block.
            let first = (block + 1).saturating_sub(blocks);
            let mut sums = Sums::zero(l);
            for i in first..block.div_ceil(2) {
                sums.tile(l, &a[i], &a[block - i]);
            }
            let middle = block / 2;
            if block % 2 == 0 {
                sums.triangle(l, &a[middle]);
            }
            sums.double(l);
            sums.add_lower(l, lower);
            if block % 2 == 0 {
                sums.diagonal(l, &a[middle]);
            }
            for i in first..blocks.min(block) {
                sums.tile(l, &quotients[i], &n[block - i]);
            }
            if block < blocks {
                columns.eliminate(l, &mut sums, &mut quotients[block], self.modulus);
            } else {
                columns.emit(l, &sums, &mut a[block - blocks]);
            }
            lower = sums.upper(l);
        }
    }
}
/// Converts words to digits in place.
pub(super) struct ToDigits<'a>(pub(super) &'a mut [Block]);

impl LaneKernel for ToDigits<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for octet in self.0.as_flattened_mut() {
            let word = l.load(octet);
            l.store(octet, l.to_digit(word));
        }
    }
}

/// Converts digits to words in place.
pub(super) struct FromDigits<'a>(pub(super) &'a mut [Block]);

impl LaneKernel for FromDigits<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for octet in self.0.as_flattened_mut() {
            let digit = l.load(octet);
            l.store(octet, l.word_of(digit));
        }
    }
}

/// `value ← value + other`. Without `other`, adds the value of the other lane of the pair. The sum must fit
/// the digits.
pub(super) struct Add<'a> {
    pub(super) value: &'a mut [Block],
    pub(super) other: Option<&'a [Block]>,
}

impl LaneKernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let value = self.value.as_flattened_mut();
        let other = self.other.map(<[Block]>::as_flattened);
        let mut carry = l.zero();
        for (at, octet) in value.iter_mut().enumerate() {
            let mine = l.load(octet);
            let theirs = match other {
                Some(other) => l.load(&other[at]),
                None => l.swap_pairs(mine),
            };
            let sum = l.add(l.word_of(mine), l.word_of(theirs));
            let sum = l.add(sum, carry);
            carry = l.carry(sum);
            l.store(octet, l.to_digit(l.low_digit(sum)));
        }
    }
}

/// `value ← value mod n` for a value below 2n.
pub(super) struct Reduce<'a> {
    pub(super) value: &'a mut [Block],
    pub(super) modulus: Modulus<'a>,
    /// Scratch with as many blocks as `value`. It holds secrets afterwards; the caller zeroises it.
    pub(super) room: &'a mut [Block],
}

impl LaneKernel for Reduce<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let value = self.value.as_flattened_mut();
        let n = self.modulus.digits.as_flattened();
        let differences = &mut self.room.as_flattened_mut()[..value.len()];
        let mut borrow = l.zero();
        for ((octet, n), difference) in value.iter().zip(n).zip(differences.iter_mut()) {
            let (value, n) = (l.word_of(l.load(octet)), l.word_of(l.load(n)));
            let raw = l.add(l.subtract(value, n), borrow);
            borrow = l.borrow(raw);
            l.store(difference, l.to_digit(l.low_digit(raw)));
        }
        let not_below = l.equal(borrow, l.zero());
        for (octet, difference) in value.iter_mut().zip(differences.iter()) {
            let reduced = l.select(not_below, l.load(difference), l.load(octet));
            l.store(octet, reduced);
        }
    }
}

/// Copies entry `index` of a table to `out`, with an index per lane. Reads the whole table in an order that
/// does not depend on the index.
pub(super) struct Lookup<'a> {
    /// The entries, one after another.
    pub(super) table: &'a [Block],
    pub(super) index: &'a Octet,
    pub(super) out: &'a mut [Block],
}

impl LaneKernel for Lookup<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let blocks = self.out.len();
        let index = l.load(self.index);
        // Two blocks at a time: ten registers, and one comparison for ten blends.
        let mut at = 0;
        while at + 1 < blocks {
            let mut found = [l.zero(); 2 * BLOCK];
            for (number, entry) in (0_u64..).zip(self.table.chunks_exact(blocks)) {
                let hit = l.equal(index, l.splat(number));
                let (a, b) = (&entry[at], &entry[at + 1]);
                each_digit!(I => {
                    found[I] = l.select(hit, l.load(&a[I]), found[I]);
                    found[BLOCK + I] = l.select(hit, l.load(&b[I]), found[BLOCK + I]);
                });
            }
            each_digit!(I => {
                l.store(&mut self.out[at][I], found[I]);
                l.store(&mut self.out[at + 1][I], found[BLOCK + I]);
            });
            at += 2;
        }
    }
}

/// Copies `other` to `value` in the odd lanes; the even ones keep `value`.
pub(super) struct TakeOdd<'a> {
    pub(super) value: &'a mut [Block],
    pub(super) other: &'a [Block],
}

impl LaneKernel for TakeOdd<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let odd = Octet([0, 1, 0, 1, 0, 1, 0, 1]);
        let mask = l.equal(l.load(&odd), l.splat(1));
        take(l, mask, self.value, self.other);
    }
}

/// Copies `other` to `value` in the lanes whose word is 1; lanes with 0 keep `value`.
pub(super) struct TakeWhere<'a> {
    pub(super) value: &'a mut [Block],
    pub(super) other: &'a [Block],
    pub(super) lanes: &'a Octet,
}

impl LaneKernel for TakeWhere<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let mask = l.equal(l.load(self.lanes), l.splat(1));
        take(l, mask, self.value, self.other);
    }
}

#[inline(always)]
fn take<L: Lanes>(l: L, mask: L::Mask, value: &mut [Block], other: &[Block]) {
    let other = other.as_flattened();
    for (octet, other) in value.as_flattened_mut().iter_mut().zip(other) {
        let taken = l.select(mask, l.load(other), l.load(octet));
        l.store(octet, taken);
    }
}

/// Per lane, the OR over all digits of the bits in which two numbers differ. Without a second number,
/// compares with the other lane of the pair. Zero means equal if both are canonical.
pub(super) struct Difference<'a> {
    pub(super) value: &'a [Block],
    pub(super) other: Option<&'a [Block]>,
}

impl LaneKernel for Difference<'_> {
    type Output = Octet;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Octet {
        let other = self.other.map(<[Block]>::as_flattened);
        let mut differ = l.zero();
        for (at, octet) in self.value.as_flattened().iter().enumerate() {
            let mine = l.load(octet);
            let theirs = match other {
                Some(other) => l.load(&other[at]),
                None => l.swap_pairs(mine),
            };
            differ = l.or(differ, l.xor(mine, theirs));
        }
        let mut out = Octet::default();
        l.store(&mut out, differ);
        out
    }
}
