// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Arithmetic on one big number at a time, for constants that are computed once per key. A number is a row of
//! 52-bit digits, least significant first, as many as the lanes have. Slow and simple; no branch and no
//! address depends on a digit.
//!
//! The tests compare the lanes with this arithmetic.

use std::hint::black_box;

use zeroize::Zeroizing;

use super::lanes::{DIGIT_BITS, DIGIT_MASK};

/// A number, zeroised when dropped.
pub(crate) type Digits = Zeroizing<Vec<u64>>;

/// Converts big-endian bytes. The number must fit.
pub(crate) fn from_bytes(bytes: &[u8], digits: usize) -> Digits {
    let mut out = Zeroizing::new(vec![0; digits]);
    for (index, byte) in bytes.iter().rev().enumerate() {
        let (digit, bit) = (8 * index / DIGIT_BITS, 8 * index % DIGIT_BITS);
        let shifted = u64::from(*byte) << bit;
        if let Some(place) = out.get_mut(digit) {
            *place |= shifted & DIGIT_MASK;
        }
        if let Some(place) = out.get_mut(digit + 1) {
            *place |= shifted >> DIGIT_BITS;
        }
    }
    out
}

/// Writes big-endian bytes to `out`; higher bytes that do not fit are lost.
pub(crate) fn to_bytes(digits: &[u64], out: &mut [u8]) {
    for (index, byte) in out.iter_mut().rev().enumerate() {
        let bits = bits_at(digits, 8 * index, 8);
        *byte = bits.to_le_bytes()[0];
    }
}

/// Returns `count` bits (at most 8) from bit `position` up.
fn bits_at(digits: &[u64], position: usize, count: usize) -> u64 {
    let (digit, bit) = (position / DIGIT_BITS, position % DIGIT_BITS);
    let low = digits.get(digit).copied().unwrap_or(0) >> bit;
    let high = digits.get(digit + 1).copied().unwrap_or(0) << (DIGIT_BITS - bit);
    (low | high) & ((1 << count) - 1)
}

/// Splits an exponent of `bits` bits into windows of `width` bits, most significant first.
pub(super) fn windows(exponent: &[u64], bits: usize, width: usize) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(vec![0; bits.div_ceil(width)]);
    for (index, window) in out.iter_mut().rev().enumerate() {
        *window = bits_at(exponent, index * width, width).to_le_bytes()[0];
    }
    out
}

/// −1/n mod 2^52 for an odd n.
pub(crate) fn negative_inverse(n: &[u64]) -> u64 {
    // Each step doubles the number of correct bits. The start value n is its own inverse modulo 8.
    let mut inverse = n[0];
    for _ in 0..5 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(n[0].wrapping_mul(inverse)));
    }
    inverse.wrapping_neg() & DIGIT_MASK
}

/// `a − b` modulo 2^(52·digits).
pub(crate) fn subtract(a: &[u64], b: &[u64]) -> Digits {
    subtract_with_borrow(a, b).0
}

/// Returns the difference, and all ones if it went below zero.
fn subtract_with_borrow(a: &[u64], b: &[u64]) -> (Digits, u64) {
    let mut out = Zeroizing::new(vec![0; a.len()]);
    let mut borrow = 0_u64;
    for (index, place) in out.iter_mut().enumerate() {
        let raw = a[index].wrapping_sub(b.get(index).copied().unwrap_or(0)).wrapping_add(borrow);
        *place = raw & DIGIT_MASK;
        borrow = (raw.cast_signed() >> 63).cast_unsigned();
    }
    (out, borrow)
}

/// `value mod n` for a value below 2n.
fn reduce_once(value: &mut Digits, n: &[u64]) {
    let (difference, below) = subtract_with_borrow(value, n);
    // Prevents the optimizer from a branch on the mask, which has one of two values.
    let below = black_box(below);
    for (place, reduced) in value.iter_mut().zip(difference.iter()) {
        *place ^= !below & (*place ^ reduced);
    }
}

/// `2·value mod n` for a value below n; n leaves the top bit free.
fn double(value: &mut Digits, n: &[u64]) {
    let mut carry = 0;
    for place in value.iter_mut() {
        let doubled = (*place << 1) | carry;
        carry = doubled >> DIGIT_BITS;
        *place = doubled & DIGIT_MASK;
    }
    reduce_once(value, n);
}

/// `value·2^times mod n` for a value below n; n leaves the top bit free.
pub(crate) fn double_often(value: &mut Digits, times: usize, n: &[u64]) {
    for _ in 0..times {
        double(value, n);
    }
}

/// Returns the product, with as many digits as both factors together.
#[expect(clippy::cast_possible_truncation, reason = "masked to a digit")]
pub(crate) fn multiply(a: &[u64], b: &[u64]) -> Digits {
    let mut out = Zeroizing::new(vec![0; a.len() + b.len()]);
    let mut carry = 0_u128;
    for (column, place) in out.iter_mut().enumerate() {
        // At most 80 products below 2^104, and a carry.
        let mut sum = carry;
        for i in column.saturating_sub(b.len() - 1)..a.len().min(column + 1) {
            sum += u128::from(a[i]) * u128::from(b[column - i]);
        }
        *place = sum as u64 & DIGIT_MASK;
        carry = sum >> DIGIT_BITS;
    }
    out
}

/// `a·b/R mod n` for numbers below n, canonical.
#[expect(clippy::cast_possible_truncation, reason = "masked to a digit")]
pub(super) fn montgomery(a: &[u64], b: &[u64], n: &[u64], negative_inverse: u64) -> Digits {
    // Columns are summed without carries: at most 160 products below 2^104 each.
    let mut sums = Zeroizing::new(vec![0_u128; n.len() + 1]);
    for b in b {
        for (sum, a) in sums.iter_mut().zip(a) {
            *sum += u128::from(*a) * u128::from(*b);
        }
        let q = (sums[0] as u64).wrapping_mul(negative_inverse) & DIGIT_MASK;
        for (sum, n) in sums.iter_mut().zip(n) {
            *sum += u128::from(*n) * u128::from(q);
        }
        let carry = sums[0] >> DIGIT_BITS;
        sums.copy_within(1.., 0);
        sums[0] += carry;
        *sums.last_mut().unwrap_or(&mut 0) = 0;
    }
    let mut out = Zeroizing::new(vec![0; n.len()]);
    let mut carry = 0_u128;
    for (place, sum) in out.iter_mut().zip(sums.iter()) {
        let sum = sum + carry;
        *place = sum as u64 & DIGIT_MASK;
        carry = sum >> DIGIT_BITS;
    }
    reduce_once(&mut out, n);
    out
}

/// `R mod n` and `R² mod n` for R = 2^(52·digits) and an odd n of this size.
pub(super) fn montgomery_constants(n: &[u64], bits: usize) -> (Digits, Digits) {
    let r_bits = DIGIT_BITS * n.len();
    // 2^(bits-1) is below n; doubling it reaches R.
    let mut power = Zeroizing::new(vec![0; n.len()]);
    power[(bits - 1) / DIGIT_BITS] = 1 << ((bits - 1) % DIGIT_BITS);
    for _ in bits - 1..r_bits {
        double(&mut power, n);
    }
    let one = power.clone();
    // R·2^t for the odd t in 52·digits = t·2^s; then s squarings reach R·2^(52·digits).
    let squarings = r_bits.trailing_zeros();
    for _ in 0..r_bits >> squarings {
        double(&mut power, n);
    }
    let inverse = negative_inverse(n);
    for _ in 0..squarings {
        power = montgomery(&power, &power, n, inverse);
    }
    (one, power)
}

/// Length of a number, in bits.
pub(crate) fn bits(bytes: &[u8]) -> usize {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes.get(zeros).map_or(0, |first| 8 * (bytes.len() - zeros) - first.leading_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_digits_convert_to_the_same_number() {
        let bytes: Vec<u8> = (1..=32).collect();
        let digits = from_bytes(&bytes, 5);
        assert_eq!(digits[0], 0x001a_1b1c_1d1e_1f20 & DIGIT_MASK);
        let mut back = vec![0; 32];
        to_bytes(&digits, &mut back);
        assert_eq!(back, bytes);
        let windows = windows(&digits, 256, 5);
        assert_eq!(windows.len(), 52);
        assert_eq!(windows[51], 0x20 & 31);
        assert_eq!(windows[50], 0x1f20_u16.to_le_bytes()[0] >> 5 | 0x18 & 31);
        assert_eq!(bits(&[0, 0, 5, 0]), 11);
    }

    #[test]
    fn montgomery_constants_are_powers_of_r() {
        // Small enough for 128-bit arithmetic: one digit of 50 bits.
        let n = [0x3_1234_5678_9abd_u64];
        let modulus = u128::from(n[0]);
        let (one, square) = montgomery_constants(&n, 50);
        assert_eq!(u128::from(one[0]), (1 << 52) % modulus);
        assert_eq!(u128::from(square[0]), (1 << 104) % modulus);
        let inverse = negative_inverse(&n);
        assert_eq!(n[0].wrapping_mul(inverse) & DIGIT_MASK, DIGIT_MASK);
        assert_eq!(montgomery(&square, &[1], &n, inverse), one);
    }
}
