// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// Numbers as 52-bit digits held in doubles, multiplied by fused multiply-add.
//
//   h = a·b + 2^104, rounded toward zero     its mantissa is the high half of a·b
//   l = a·b + (2^104 + 2^52 − h), likewise   its mantissa is the low half
//
// The bit patterns of h and l are added as 64-bit integers into columns, each with what its exponent is too
// much. That surplus is the same in every row, so a column starts at minus what it will have collected
// when it has moved down to position 0.
//
// A number has L digits in each of W threads, R = 2^(52·L·W), and the digits have at least 16 bits more than
// the modulus: R > 2^16·N, so nothing is ever subtracted. Products of factors below 4N are below 2N. Columns
// are complete sums below 2^61 without carries; these are taken through all digits at the end of a product.

#pragma once

#include "lanes.h"

template <int G, int DIGITS>
struct Fp52 {
    using M = Lanes<G>;
    using Word = typename M::Word;
    using Long = typename M::Long;
    using Real = typename M::Real;
    /// The bit pattern of a double, so that memory needs no conversion.
    using Digit = uint64_t;
    static constexpr int L = DIGITS;
    /// Whether there is a squaring that is cheaper than a product, where a number is in one thread.
    static constexpr bool SQUARES = false;
    static constexpr uint64_t MASK = ((uint64_t)1 << 52) - 1;
    /// What the exponents of l and h add: those of 2^52 and 2^104.
    static constexpr uint64_t LOW = (uint64_t)(1023 + 52) << 52;
    static constexpr uint64_t HIGH = (uint64_t)(1023 + 104) << 52;
    static constexpr uint64_t ROW = 2 * (LOW + HIGH);

    struct Number {
        Real at[L];
    };

    /// Digits in memory that all threads of a group read one after another.
    struct Operand {
        const Digit *base;
        Word column;
        uint32_t first, stride;
        /// How many there are; the others are zero.
        uint32_t count;
    };

#ifndef __CUDACC__
    static void hit(Moment moment, Number &number);
#endif

    static DEVICE Real two_to_52() { return M::real(4503599627370496.0); }
    static DEVICE Real two_to_104() { return M::real(20282409603651670423947251286016.0); }
    static DEVICE Real two_to_104_and_52() { return M::real(20282409603651674927546878656512.0); }

    /// A number below 2^52 as a double.
    static DEVICE Real to_real(Long digit) { return M::subtract(M::from_bits(digit | LOW), two_to_52()); }
    /// A digit as an integer.
    static DEVICE Long to_long(Real digit) {
        // Adding 2^52 is exact; it puts the digit into the mantissa.
        return M::bits(M::subtract(digit, M::real(-4503599627370496.0))) & MASK;
    }

    static DEVICE Real digit(const Operand &operand, int i) {
        // Beyond its end an operand is zero; the position says nothing.
        if ((uint32_t)i >= operand.count) return M::real(0);
        return load_digit(operand.base, operand.column, (operand.first + i) * operand.stride);
    }
    static DEVICE Real load_digit(const Digit *base, Word index, uint32_t offset = 0) {
        return M::from_bits(M::load(base, index, offset));
    }
    static DEVICE Long scalar(const Digit *base, Word index) { return M::load(base, index); }
    static DEVICE Word low_word(Long scalar) { return M::shorten(scalar); }
    static DEVICE void store_digit(Digit *base, Word index, uint32_t offset, Real value) {
        M::store(base, index, offset, M::bits(value));
    }
    static DEVICE Real zero() { return M::real(0); }
    static DEVICE Real unit() { return M::real(1); }
    static DEVICE Real masked(Real digit, Word mask) { return M::from_bits(M::bits(digit) & M::spread(mask)); }
    static DEVICE Real either(Real a, Real b) { return M::from_bits(M::bits(a) | M::bits(b)); }
    static DEVICE Word difference(Real a, Real b) {
        Long bits = M::bits(a) ^ M::bits(b);
        return M::shorten(bits) | M::shorten(bits >> 32);
    }

    /// What a column at this position has yet to collect on its way down.
    static DEVICE constexpr uint64_t debt(int position) {
        return position == L ? (uint64_t)L * ROW : (uint64_t)position * ROW + 2 * LOW;
    }

    static DEVICE void product(Real a, Real b, Long &low, Long &high) {
        Real h = M::fma_toward_zero(a, b, two_to_104());
        Real l = M::fma_toward_zero(a, b, M::subtract(two_to_104_and_52(), h));
        low = M::bits(l);
        high = M::bits(h);
    }

    /// One row: columns += a·b, += N·q, then down by one digit. Threads whose `lowest` is all ones have the
    /// lowest digits, where what is left of column 0 is a carry; of the others it goes to the thread below.
    template <int W>
    static DEVICE_CALLED void row(Long *column, const Real *a, Real b, const Real *n, Long n0, Long lowest) {
        Long low, high, before = Long(0);
#pragma unroll
        for (int k = 0; k < L; k++) {
            product(a[k], b, low, high);
            column[k] = column[k] + low + before;
            before = high;
        }
        column[L] = column[L] + before;
        Real q = to_real(M::template first<W>(column[0] * n0 & MASK));
        product(n[0], q, low, high);
        Long out = column[0] + low;
        before = high;
#pragma unroll
        for (int k = 1; k < L; k++) {
            product(n[k], q, low, high);
            column[k - 1] = column[k] + low + before;
            before = high;
        }
        column[L - 1] = column[L] + before + M::template from_above<W>(out);
        column[0] = column[0] + ((out >> 52) & lowest);
        column[L] = Long(0 - debt(L));
    }

    /// Takes carries through all digits of all threads, and makes digits of columns.
    template <int W>
    static DEVICE_CALLED void settle_columns(Number &out, Long *column) {
        Long carry = Long(0);
#pragma unroll
        for (int k = 0; k < L; k++) {
            column[k] = column[k] + carry;
            carry = column[k] >> 52;
            column[k] = column[k] & MASK;
        }
#pragma unroll 1
        for (int pass = 1; pass < W; pass++) {
            carry = M::template from_below<W>(carry);
#pragma unroll
            for (int k = 0; k < L; k++) {
                column[k] = column[k] + carry;
                carry = column[k] >> 52;
                column[k] = column[k] & MASK;
            }
        }
#pragma unroll
        for (int k = 0; k < L; k++) out.at[k] = to_real(column[k]);
    }

    template <int W>
    static DEVICE Long lowest() {
        return M::spread(M::equal(M::lane() % W, M::word(0)));
    }

    /// a ← a·b/R.
    template <int W>
    static DEVICE_CALLED void multiply(Number &a, const Operand &b, const Number &n, Long n0) {
        Long column[L + 1];
#pragma unroll
        for (int k = 0; k <= L; k++) column[k] = Long(0 - debt(k));
        Long bottom = lowest<W>();
#pragma unroll 1
        for (int i = 0; i < L * W; i++) row<W>(column, a.at, digit(b, i), n.at, n0, bottom);
#pragma unroll
        for (int k = 0; k < L; k++) column[k] = column[k] + debt(k);
        settle_columns<W>(a, column);
    }

    /// a ← a + b.
    template <int W>
    static DEVICE_CALLED void add(Number &a, const Number &b, const Number &) {
        Long column[L];
#pragma unroll
        for (int k = 0; k < L; k++) column[k] = to_long(a.at[k]) + to_long(b.at[k]);
        settle_columns<W>(a, column);
    }

    /// The number in these words, little-endian, as the digits of this thread.
    static DEVICE_CALLED void from_words(Number &out, const uint32_t *words, Word first, Word position,
                                         uint32_t count) {
        position = M::again(position);
#pragma unroll
        for (int k = 0; k < L; k++) {
            Word bit = (position + M::word(k)) * M::word(52);
            Word at = bit >> 5;
            Long digit = Long(0), shift = M::lengthen(bit & M::word(31));
            // A digit is in up to three words.
            digit = M::lengthen(word_at(words, first, at, count)) >> shift;
            digit = digit | (M::lengthen(word_at(words, first, at + M::word(1), count)) << (Long(32) - shift));
            // Shifted in two steps, since 64 is too far.
            Long third = M::lengthen(word_at(words, first, at + M::word(2), count)) << Long(32);
            digit = digit | ((third << (Long(31) - shift)) << Long(1));
            out.at[k] = to_real(digit & MASK);
        }
    }
    static DEVICE Word word_at(const uint32_t *words, Word first, Word at, uint32_t count) {
        Word inside = M::word(0) - ((at - M::word(count)) >> 31);
        return M::load(words, first + (at & inside)) & inside;
    }

    /// Word i of the number whose digits were put into memory.
    static DEVICE Word to_word(const Operand &operand, Word i) {
        Word bit = i * M::word(32);
        Word at = bit / M::word(52);
        Long shift = M::lengthen(bit % M::word(52));
        Long low = to_long(load_digit(operand.base, operand.column + at * M::word(operand.stride)));
        // A word never ends beyond the digits, which have room to spare.
        Long high = to_long(load_digit(operand.base, operand.column + at * M::word(operand.stride), operand.stride));
        return M::shorten((low >> shift) | (high << (Long(52) - shift)));
    }
};
