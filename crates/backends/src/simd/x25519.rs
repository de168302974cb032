// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Public values of X25519 for eight scalars at once (RFC 7748, section 5, with the base point).
//!
//! The base point has fixed multiples, so no Montgomery ladder is needed. The algorithm adds 64 points of a table, one
//! for each signed digit of the scalar in radix 16, and takes u = (1 + y)/(1 − y) of the sum. The points are on the
//! birationally equivalent Edwards curve (edwards25519, RFC 8032). The table holds (j + 1)·256^i·B for i < 32 and
//! j < 8. The points of digits at odd places come first, then four doublings, then the points of digits at even places
//! (Bernstein et al., *High-speed high-security signatures*, 2012, section 4).
//!
//! A number modulo p = 2^255 − 19 has five digits of 51 bits, so that the products of 52-bit multiply-add have room.
//! Between operations each digit is below 2^51 + 2^14.
//!
//! Kernels have loops over indices and no closures: a closure is a separate function, which the compiler would not
//! compile for the vector instructions.
//!
//! No branch and no address depends on a scalar: a lane's point is selected by looking at all eight of its place.

use std::sync::OnceLock;

use zeroize::{Zeroize, Zeroizing};

use super::Implementation;
use super::lanes::{LANES, LaneKernel, Lanes, Octet, Portable};
#[cfg(target_arch = "x86_64")]
use super::sys;

/// Bytes of a scalar and of a public value.
pub const X25519_BYTES: usize = 32;

/// Pairs that one call computes.
pub const X25519_PAIRS: usize = LANES;

/// The public values of these scalars. `None` if this processor lacks the implementation, and for one without lanes of
/// 52-bit integers.
#[must_use]
pub fn x25519_public_values(
    implementation: Implementation,
    scalars: &[[u8; X25519_BYTES]; X25519_PAIRS],
) -> Option<[[u8; X25519_BYTES]; X25519_PAIRS]> {
    match implementation {
        #[cfg(target_arch = "x86_64")]
        Implementation::Avx512Ifma => Some(on(sys::Ifma::detect()?, scalars)),
        #[cfg(not(target_arch = "x86_64"))]
        Implementation::Avx512Ifma => None,
        Implementation::Avx512Fp52 => None,
        Implementation::Portable => Some(on(Portable, scalars)),
    }
}

fn on<L: Lanes>(lanes: L, scalars: &[[u8; X25519_BYTES]; LANES]) -> [[u8; X25519_BYTES]; LANES] {
    static TABLE: OnceLock<Box<Table>> = OnceLock::new();
    let table = TABLE.get_or_init(|| lanes.run(MakeTable));
    let digits = Zeroizing::new(Digits::of(scalars));
    lanes.run(PublicValues { table, digits: &digits })
}

/// Digits of a number modulo p.
const LIMBS: usize = 5;
/// Bits of a digit.
const BITS: u32 = 51;
const MASK: u64 = (1 << BITS) - 1;
/// Residue of 2^255 modulo p.
const FOLD: u64 = 19;

/// 2p, digit by digit, above every digit of a number that is subtracted.
const TWO_P: [u64; LIMBS] =
    [(1 << 52) - 38, (1 << 52) - 2, (1 << 52) - 2, (1 << 52) - 2, (1 << 52) - 2];

/// Little-endian words of a constant, as digits.
const fn limbs(words: [u64; 4]) -> [u64; LIMBS] {
    [
        words[0] & MASK,
        (words[0] >> 51 | words[1] << 13) & MASK,
        (words[1] >> 38 | words[2] << 26) & MASK,
        (words[2] >> 25 | words[3] << 39) & MASK,
        words[3] >> 12,
    ]
}

/// The base point of edwards25519 (RFC 8032, section 5.1).
const BASE_X: [u64; LIMBS] = limbs([
    0xc956_2d60_8f25_d51a,
    0x692c_c760_9525_a7b2,
    0xc0a4_e231_fdd6_dc5c,
    0x2169_36d3_cd6e_53fe,
]);
const BASE_Y: [u64; LIMBS] = limbs([
    0x6666_6666_6666_6658,
    0x6666_6666_6666_6666,
    0x6666_6666_6666_6666,
    0x6666_6666_6666_6666,
]);
/// The constant d of the curve.
const CURVE_D: [u64; LIMBS] = limbs([
    0x75eb_4dca_1359_78a3,
    0x0070_0a4d_4141_d8ab,
    0x8cc7_4079_7779_e898,
    0x5203_6cee_2b6f_fe73,
]);
const ONE: [u64; LIMBS] = [1, 0, 0, 0, 0];

/// Signed digits of a scalar in radix 16.
const DIGITS: usize = 64;
/// Places of the table: one for two digits.
const PLACES: usize = DIGITS / 2;
/// Multiples of a place: a digit is between -8 and 8.
const MULTIPLES: usize = 8;

/// A point of the table: y + x, y − x and 2dxy.
type TablePoint = [[u64; LIMBS]; 3];
type Table = [[TablePoint; MULTIPLES]; PLACES];

/// The digits of eight scalars: their amounts, and 1 for the negative ones.
struct Digits {
    amounts: [Octet; DIGITS],
    signs: [Octet; DIGITS],
}

impl Zeroize for Digits {
    fn zeroize(&mut self) {
        self.amounts.zeroize();
        self.signs.zeroize();
    }
}

impl Digits {
    fn of(scalars: &[[u8; X25519_BYTES]; LANES]) -> Self {
        let mut digits =
            Self { amounts: [Octet::default(); DIGITS], signs: [Octet::default(); DIGITS] };
        for (lane, scalar) in scalars.iter().enumerate() {
            let mut carry = 0;
            for place in 0..DIGITS {
                let mut byte = i64::from(scalar[place / 2]);
                // The clamping of RFC 7748.
                match place / 2 {
                    0 => byte &= 0xf8,
                    31 => byte = (byte & 0x7f) | 0x40,
                    _ => {}
                }
                let digit = ((byte >> (place % 2 * 4)) & 15) + carry;
                // The last digit is at most 8 and gives no carry.
                carry = if place + 1 < DIGITS { (digit + 8) >> 4 } else { 0 };
                let digit = digit - (carry << 4);
                let negative = digit >> 63;
                digits.amounts[place].0[lane] = ((digit ^ negative) - negative).cast_unsigned();
                digits.signs[place].0[lane] = negative.cast_unsigned() & 1;
            }
        }
        digits
    }
}

/// Eight numbers modulo p.
struct Field<L: Lanes>([L::Word; LIMBS]);

impl<L: Lanes> Clone for Field<L> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<L: Lanes> Copy for Field<L> {}

impl<L: Lanes> Field<L> {
    #[inline(always)]
    fn splat(lanes: L, value: &[u64; LIMBS]) -> Self {
        let mut digits = [lanes.zero(); LIMBS];
        for limb in 0..LIMBS {
            digits[limb] = lanes.splat(value[limb]);
        }
        Self(digits)
    }

    /// Digits of up to 60 bits to digits below 2^51 + 2^14.
    #[inline(always)]
    fn carried(lanes: L, digits: [L::Word; LIMBS]) -> Self {
        let mask = lanes.splat(MASK);
        let (mut carries, mut low) = (digits, digits);
        for limb in 0..LIMBS {
            carries[limb] = lanes.shift_right::<BITS>(digits[limb]);
            low[limb] = lanes.and(digits[limb], mask);
        }
        let top = times_fold(lanes, carries[4]);
        Self([
            lanes.add(low[0], top),
            lanes.add(low[1], carries[0]),
            lanes.add(low[2], carries[1]),
            lanes.add(low[3], carries[2]),
            lanes.add(low[4], carries[3]),
        ])
    }

    #[inline(always)]
    fn add(self, lanes: L, other: Self) -> Self {
        let (mut sum, other) = (self.0, other.0);
        for limb in 0..LIMBS {
            sum[limb] = lanes.add(sum[limb], other[limb]);
        }
        Self::carried(lanes, sum)
    }

    #[inline(always)]
    fn subtract(self, lanes: L, other: Self) -> Self {
        let mut difference = self.0;
        for limb in 0..LIMBS {
            let raised = lanes.add(difference[limb], lanes.splat(TWO_P[limb]));
            difference[limb] = lanes.subtract(raised, other.0[limb]);
        }
        Self::carried(lanes, difference)
    }

    #[inline(always)]
    fn negate(self, lanes: L) -> Self {
        Self([lanes.zero(); LIMBS]).subtract(lanes, self)
    }

    #[inline(always)]
    fn multiply(self, lanes: L, other: Self) -> Self {
        let zero = lanes.zero();
        let (mut low, mut high) = ([zero; 2 * LIMBS], [zero; 2 * LIMBS]);
        for i in 0..LIMBS {
            for j in 0..LIMBS {
                let (a, b) = (self.0[i], other.0[j]);
                (low[i + j], high[i + j + 1]) =
                    lanes.multiply_add(low[i + j], high[i + j + 1], a, b);
            }
        }
        Self::reduced(lanes, low, high)
    }

    #[inline(always)]
    fn square(self, lanes: L) -> Self {
        let zero = lanes.zero();
        let (mut low, mut high) = ([zero; 2 * LIMBS], [zero; 2 * LIMBS]);
        for i in 0..LIMBS {
            for j in i + 1..LIMBS {
                let (a, b) = (self.0[i], self.0[j]);
                (low[i + j], high[i + j + 1]) =
                    lanes.multiply_add(low[i + j], high[i + j + 1], a, b);
            }
        }
        // The products of two different digits count twice.
        for limb in 0..2 * LIMBS {
            low[limb] = lanes.add(low[limb], low[limb]);
            high[limb] = lanes.add(high[limb], high[limb]);
        }
        for i in 0..LIMBS {
            let digit = self.0[i];
            (low[2 * i], high[2 * i + 1]) =
                lanes.multiply_add(low[2 * i], high[2 * i + 1], digit, digit);
        }
        Self::reduced(lanes, low, high)
    }

    /// The sums of low and high halves of products: each sum has at most five halves of 52 bits.
    #[inline(always)]
    fn reduced(lanes: L, low: [L::Word; 2 * LIMBS], high: [L::Word; 2 * LIMBS]) -> Self {
        // A high half has the weight 2^52, which is twice that of the next digit.
        let mut sums = low;
        for limb in 0..2 * LIMBS {
            sums[limb] = lanes.add(sums[limb], lanes.add(high[limb], high[limb]));
        }
        let mut digits = [lanes.zero(); LIMBS];
        for limb in 0..LIMBS {
            digits[limb] = lanes.add(sums[limb], times_fold(lanes, sums[limb + LIMBS]));
        }
        Self::carried(lanes, digits)
    }

    #[inline(always)]
    fn squared_times(self, lanes: L, times: usize) -> Self {
        let mut power = self;
        for _ in 0..times {
            power = power.square(lanes);
        }
        power
    }

    /// The inverse: the power p − 2 = 2^255 − 21. Zero stays zero.
    #[inline(always)]
    fn inverse(self, lanes: L) -> Self {
        let x2 = self.square(lanes);
        let x9 = x2.squared_times(lanes, 2).multiply(lanes, self);
        let x11 = x9.multiply(lanes, x2);
        // Exponents 2^n − 1.
        let n5 = x11.square(lanes).multiply(lanes, x9);
        let n10 = n5.squared_times(lanes, 5).multiply(lanes, n5);
        let n20 = n10.squared_times(lanes, 10).multiply(lanes, n10);
        let n40 = n20.squared_times(lanes, 20).multiply(lanes, n20);
        let n50 = n40.squared_times(lanes, 10).multiply(lanes, n10);
        let n100 = n50.squared_times(lanes, 50).multiply(lanes, n50);
        let n200 = n100.squared_times(lanes, 100).multiply(lanes, n100);
        let n250 = n200.squared_times(lanes, 50).multiply(lanes, n50);
        n250.squared_times(lanes, 5).multiply(lanes, x11)
    }

    #[inline(always)]
    fn select(lanes: L, mask: L::Mask, yes: Self, no: Self) -> Self {
        let (mut selected, yes) = (no.0, yes.0);
        for limb in 0..LIMBS {
            selected[limb] = lanes.select(mask, yes[limb], selected[limb]);
        }
        Self(selected)
    }

    /// The digits of each lane.
    #[inline(always)]
    fn stored(self, lanes: L) -> [Octet; LIMBS] {
        let mut octets = [Octet::default(); LIMBS];
        let digits = self.0;
        for limb in 0..LIMBS {
            lanes.store(&mut octets[limb], digits[limb]);
        }
        octets
    }
}

/// 19 times a word, which has no more than 59 bits.
#[inline(always)]
fn times_fold<L: Lanes>(lanes: L, word: L::Word) -> L::Word {
    const { assert!(FOLD == 16 + 2 + 1) };
    let three = lanes.add(word, lanes.shift_left::<1>(word));
    lanes.add(three, lanes.shift_left::<4>(word))
}

/// The least representative of a number with digits below 2^52, little-endian.
fn packed(digits: [u64; LIMBS]) -> [u8; X25519_BYTES] {
    let mut value = digits;
    // Two passes bring every digit below 2^51; the number is below 2p then.
    for _ in 0..2 {
        let mut carry = 0;
        for digit in &mut value {
            *digit += carry;
            carry = *digit >> BITS;
            *digit &= MASK;
        }
        value[0] += FOLD * carry;
    }
    // The number is at least p exactly if it plus 19 has the bit 2^255.
    let mut carry = FOLD;
    for digit in value {
        carry = (digit + carry) >> BITS;
    }
    value[0] += FOLD * carry;
    let mut carry = 0;
    for digit in &mut value {
        *digit += carry;
        carry = *digit >> BITS;
        *digit &= MASK;
    }
    let words = [
        value[0] | value[1] << 51,
        value[1] >> 13 | value[2] << 38,
        value[2] >> 26 | value[3] << 25,
        value[3] >> 39 | value[4] << 12,
    ];
    let mut bytes = [0; X25519_BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Eight points in extended coordinates: x = X/Z, y = Y/Z, xy = T/Z.
struct Point<L: Lanes> {
    x: Field<L>,
    y: Field<L>,
    z: Field<L>,
    t: Field<L>,
}

impl<L: Lanes> Clone for Point<L> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<L: Lanes> Copy for Point<L> {}

/// Eight points of the table.
struct Addend<L: Lanes> {
    sum: Field<L>,
    difference: Field<L>,
    product: Field<L>,
}

impl<L: Lanes> Addend<L> {
    /// The point with these coordinates.
    #[inline(always)]
    fn of(lanes: L, x: Field<L>, y: Field<L>) -> Self {
        let d = Field::splat(lanes, &CURVE_D);
        let product = x.multiply(lanes, y).multiply(lanes, d.add(lanes, d));
        Self { sum: y.add(lanes, x), difference: y.subtract(lanes, x), product }
    }

    /// The multiple with the amount of each lane's digit, negative where its sign says so.
    #[inline(always)]
    fn selected(
        lanes: L,
        multiples: &[TablePoint; MULTIPLES],
        amount: L::Word,
        sign: L::Word,
    ) -> Self {
        let mut sum = Field::splat(lanes, &ONE);
        let mut difference = sum;
        let mut product = Field([lanes.zero(); LIMBS]);
        for (number, point) in (1..).zip(multiples) {
            let mask = lanes.equal(amount, lanes.splat(number));
            sum = Field::select(lanes, mask, Field::splat(lanes, &point[0]), sum);
            difference = Field::select(lanes, mask, Field::splat(lanes, &point[1]), difference);
            product = Field::select(lanes, mask, Field::splat(lanes, &point[2]), product);
        }
        let mask = lanes.equal(sign, lanes.splat(1));
        let negative = product.negate(lanes);
        Self {
            sum: Field::select(lanes, mask, difference, sum),
            difference: Field::select(lanes, mask, sum, difference),
            product: Field::select(lanes, mask, negative, product),
        }
    }
}

impl<L: Lanes> Point<L> {
    #[inline(always)]
    fn neutral(lanes: L) -> Self {
        let (zero, one) = (Field([lanes.zero(); LIMBS]), Field::splat(lanes, &ONE));
        Self { x: zero, y: one, z: one, t: zero }
    }

    #[inline(always)]
    fn of(lanes: L, e: Field<L>, f: Field<L>, g: Field<L>, h: Field<L>) -> Self {
        Self {
            x: e.multiply(lanes, f),
            y: g.multiply(lanes, h),
            z: f.multiply(lanes, g),
            t: e.multiply(lanes, h),
        }
    }

    /// Hisil, Wong, Carter, Dawson, *Twisted Edwards curves revisited*, 2008, section 3.1, for a = −1. It is complete.
    #[inline(always)]
    fn add(self, lanes: L, other: &Addend<L>) -> Self {
        let a = self.y.subtract(lanes, self.x).multiply(lanes, other.difference);
        let b = self.y.add(lanes, self.x).multiply(lanes, other.sum);
        let c = self.t.multiply(lanes, other.product);
        let d = self.z.add(lanes, self.z);
        let (e, f) = (b.subtract(lanes, a), d.subtract(lanes, c));
        let (g, h) = (d.add(lanes, c), b.add(lanes, a));
        Self::of(lanes, e, f, g, h)
    }

    /// Ibid., section 3.3, with all signs turned.
    #[inline(always)]
    fn double(self, lanes: L) -> Self {
        let (a, b) = (self.x.square(lanes), self.y.square(lanes));
        let z = self.z.square(lanes);
        let c = z.add(lanes, z);
        let h = a.add(lanes, b);
        let e = h.subtract(lanes, self.x.add(lanes, self.y).square(lanes));
        let g = a.subtract(lanes, b);
        let f = c.add(lanes, g);
        Self::of(lanes, e, f, g, h)
    }

    /// The affine coordinates.
    #[inline(always)]
    fn affine(self, lanes: L) -> (Field<L>, Field<L>) {
        let inverse = self.z.inverse(lanes);
        (self.x.multiply(lanes, inverse), self.y.multiply(lanes, inverse))
    }
}

/// The multiplication of the base point.
struct PublicValues<'a> {
    table: &'a Table,
    digits: &'a Digits,
}

impl PublicValues<'_> {
    /// Adds the points of every other digit.
    #[inline(always)]
    fn add_digits<L: Lanes>(&self, lanes: L, start: Point<L>, parity: usize) -> Point<L> {
        let mut sum = start;
        for (place, multiples) in self.table.iter().enumerate() {
            let limb = 2 * place + parity;
            let amount = lanes.load(&self.digits.amounts[limb]);
            let sign = lanes.load(&self.digits.signs[limb]);
            sum = sum.add(lanes, &Addend::selected(lanes, multiples, amount, sign));
        }
        sum
    }
}

impl LaneKernel for PublicValues<'_> {
    type Output = [[u8; X25519_BYTES]; LANES];

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> Self::Output {
        let mut sum = Point::neutral(lanes);
        for parity in [1, 0] {
            if parity == 0 {
                for _ in 0..4 {
                    sum = sum.double(lanes);
                }
            }
            sum = self.add_digits(lanes, sum, parity);
        }
        let above = sum.z.add(lanes, sum.y);
        let below = sum.z.subtract(lanes, sum.y).inverse(lanes);
        let octets = above.multiply(lanes, below).stored(lanes);
        let mut values = [[0; X25519_BYTES]; LANES];
        for (lane, value) in values.iter_mut().enumerate() {
            *value = packed(octets.map(|octet| octet.0[lane]));
        }
        values
    }
}

/// The table, made once in each process.
struct MakeTable;

impl LaneKernel for MakeTable {
    type Output = Box<Table>;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> Self::Output {
        let mut table = Box::new([[[[0; LIMBS]; 3]; MULTIPLES]; PLACES]);
        let (mut x, mut y) = (Field::splat(lanes, &BASE_X), Field::splat(lanes, &BASE_Y));
        for place in table.iter_mut() {
            // Lane j gets the multiple j + 1.
            let base = Addend::of(lanes, x, y);
            let mut sum = Point::neutral(lanes);
            let mut multiples = sum;
            let lane_numbers = lanes.load(&Octet([0, 1, 2, 3, 4, 5, 6, 7]));
            for number in 0..MULTIPLES as u64 {
                sum = sum.add(lanes, &base);
                let mask = lanes.equal(lane_numbers, lanes.splat(number));
                multiples = Point {
                    x: Field::select(lanes, mask, sum.x, multiples.x),
                    y: Field::select(lanes, mask, sum.y, multiples.y),
                    z: Field::select(lanes, mask, sum.z, multiples.z),
                    t: Field::select(lanes, mask, sum.t, multiples.t),
                };
            }
            let (table_x, table_y) = multiples.affine(lanes);
            let points = Addend::of(lanes, table_x, table_y);
            let stored = [
                points.sum.stored(lanes),
                points.difference.stored(lanes),
                points.product.stored(lanes),
            ];
            for (lane, point) in place.iter_mut().enumerate() {
                *point = stored.map(|part| part.map(|octet| octet.0[lane]));
            }
            // 256 times the base: the last multiple is 8 times, and five doublings follow.
            for _ in 0..5 {
                sum = sum.double(lanes);
            }
            (x, y) = sum.affine(lanes);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use millrace_testkit::random::SeededRandom;

    use super::*;
    use crate::software;

    /// Scalars with many digits at their edges, and pseudo-random ones.
    fn scalars(seed: u64) -> [[u8; X25519_BYTES]; LANES] {
        let mut numbers = SeededRandom::new(seed);
        let mut scalars = [[0; X25519_BYTES]; LANES];
        for (lane, scalar) in scalars.iter_mut().enumerate() {
            for byte in scalar.iter_mut() {
                let random = numbers.word().to_le_bytes()[0];
                *byte = match (seed, lane) {
                    (0, 0) => 0,
                    (0, 1) => 0xff,
                    (0, 2) => 0x88,
                    (0, 3) => 0x77,
                    (0, 4) => 0x80,
                    (0, 5) => 0x08,
                    _ => random,
                };
            }
        }
        scalars
    }

    /// Result of the software backend's library.
    fn expected(scalar: &[u8; X25519_BYTES]) -> [u8; X25519_BYTES] {
        software::sys::x25519_public(scalar)
    }

    #[test]
    fn public_values_equal_those_of_the_library() {
        for implementation in [Implementation::Avx512Ifma, Implementation::Portable] {
            if !implementation.is_available() {
                continue;
            }
            for seed in 0..64 {
                let scalars = scalars(seed);
                let values = x25519_public_values(implementation, &scalars).expect("available");
                for (scalar, value) in scalars.iter().zip(&values) {
                    assert_eq!(*value, expected(scalar), "{scalar:02x?}");
                }
            }
        }
    }

    #[test]
    fn lanes_without_integers_have_no_public_values() {
        let none = x25519_public_values(Implementation::Avx512Fp52, &scalars(1));
        assert_eq!(none, None);
    }
}
