// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// Numbers as 32-bit limbs, multiplied by chains of 32×32+64-bit multiply-adds.
//
// A number modulo which is computed has L limbs in each of W threads, R = 2^(32·L·W). Everything is kept
// below R, not below the modulus N: a product then is below R + N, and what is at or above R (one bit) has N
// subtracted under a mask. So a modulus may use all bits, without a 33rd limb and a 33rd row.
//
// A row of the product adds a·b[i] and N·q. Two accumulators keep the halves of each 64-bit product in
// adjacent words with one carry chain each, which the assembler makes one IMAD.WIDE per pair of mad.lo and
// mad.hi: `even` holds products of the limbs 0, 2, 4…, `odd` those of 1, 3, 5…, one word higher. Moving down
// by one word after a row makes one the other: even[1], which then is word 0, is added in the next row, and its
// carry is the one that the odd chain starts with.
//
// Between rows each thread has L words and a carry word; the word that leaves it at the bottom goes to the
// thread below. Only after the last row are carries taken through all threads, W − 1 times whatever they are.

#pragma once

#include "lanes.h"

template <int G, int LIMBS>
struct Integer {
    using M = Lanes<G>;
    using Word = typename M::Word;
    using Digit = uint32_t;
    static constexpr int L = LIMBS;
    /// Whether there is a squaring that is cheaper than a product, where a number is in one thread.
    static constexpr bool SQUARES = true;
    static_assert(L % 2 == 0, "limbs come in pairs");

    struct Number {
        Word at[L];
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

    static DEVICE Word digit(const Operand &operand, int i) {
        // Beyond its end an operand is zero; the position says nothing.
        if ((uint32_t)i >= operand.count) return M::word(0);
        return M::load(operand.base, operand.column, (operand.first + i) * operand.stride);
    }

    static DEVICE Word load_digit(const Digit *base, Word index, uint32_t offset = 0) {
        return M::load(base, index, offset);
    }
    static DEVICE Word scalar(const Digit *base, Word index) { return M::load(base, index); }
    static DEVICE Word low_word(Word digit) { return digit; }
    static DEVICE void store_digit(Digit *base, Word index, uint32_t offset, Word value) {
        M::store(base, index, offset, value);
    }
    static DEVICE Word zero() { return M::word(0); }
    static DEVICE Word unit() { return M::word(1); }
    static DEVICE Word masked(Word digit, Word mask) { return digit & mask; }
    static DEVICE Word either(Word a, Word b) { return a | b; }
    static DEVICE Word difference(Word a, Word b) { return a ^ b; }

    /// even + spill + the rows' odd accumulator, which is two words too high; the carry out is returned.
    static DEVICE Word settle_row(Number &out, const Word *even, Word spill, const Word *odd, Word top) {
        out.at[0] = M::add_cc(even[0], spill);
#pragma unroll
        for (int k = 1; k < L; k++) out.at[k] = M::addc_cc(even[k], odd[k + 1]);
        return M::addc(even[L], top);
    }

    /// One row: even and odd (which is two words too high) += a·b if there is one, += N·q; then down by one
    /// word, which makes odd the even one. `spill` and `top` are the words that are between the two.
    template <int W, bool PRODUCT>
    static DEVICE_CALLED void row(Word *even, Word *odd, Word &spill, Word &top, const Word *a, Word b, const Word *n,
                                  Word n0, Word incoming) {
        if (PRODUCT) {
            even[0] = M::add_cc(even[0], spill);
#pragma unroll
            for (int k = 1; k < L; k += 2) {
                odd[k - 1] = M::madc_lo_cc(a[k], b, odd[k + 1]);
                odd[k] = M::madc_hi_cc(a[k], b, k + 1 < L ? odd[k + 2] : top);
            }
            odd[L] = M::addc(M::word(0), M::word(0));
            even[0] = M::mad_lo_cc(a[0], b, even[0]);
            even[1] = M::madc_hi_cc(a[0], b, even[1]);
#pragma unroll
            for (int k = 2; k < L; k += 2) {
                even[k] = M::madc_lo_cc(a[k], b, even[k]);
                even[k + 1] = M::madc_hi_cc(a[k], b, even[k + 1]);
            }
            even[L] = M::addc(even[L], M::word(0));
            Word q = M::template first<W>(even[0] * n0);
            odd[0] = M::mad_lo_cc(n[1], q, odd[0]);
            odd[1] = M::madc_hi_cc(n[1], q, odd[1]);
#pragma unroll
            for (int k = 3; k < L; k += 2) {
                odd[k - 1] = M::madc_lo_cc(n[k], q, odd[k - 1]);
                odd[k] = M::madc_hi_cc(n[k], q, odd[k]);
            }
            odd[L] = M::addc(odd[L], M::word(0));
            reduce_even<W>(even, n, q);
        } else {
            Word q = M::template first<W>((even[0] + spill) * n0);
            even[0] = M::add_cc(even[0], spill);
#pragma unroll
            for (int k = 1; k < L; k += 2) {
                odd[k - 1] = M::madc_lo_cc(n[k], q, odd[k + 1]);
                odd[k] = M::madc_hi_cc(n[k], q, k + 1 < L ? odd[k + 2] : top);
            }
            odd[L] = M::addc(M::word(0), M::word(0));
            reduce_even<W>(even, n, q);
        }
        spill = even[1];
        incoming = incoming + M::template from_above<W>(even[0]);
        even[L] = M::add_cc(even[L], incoming);
        top = M::addc(M::word(0), M::word(0));
    }

    template <int W>
    static DEVICE void reduce_even(Word *even, const Word *n, Word q) {
        even[0] = M::mad_lo_cc(n[0], q, even[0]);
        even[1] = M::madc_hi_cc(n[0], q, even[1]);
#pragma unroll
        for (int k = 2; k < L; k += 2) {
            even[k] = M::madc_lo_cc(n[k], q, even[k]);
            even[k + 1] = M::madc_hi_cc(n[k], q, even[k + 1]);
        }
        even[L] = M::addc(even[L], M::word(0));
    }

    /// Takes the carry that each thread has for the next through all of them; what leaves the last one.
    template <int W>
    static DEVICE_CALLED Word propagate(Number &value, Word carry) {
        Word over = carry;
#pragma unroll 1
        for (int pass = 1; pass < W; pass++) {
            Word in = M::template from_below<W>(carry);
            value.at[0] = M::add_cc(value.at[0], in);
#pragma unroll
            for (int k = 1; k < L; k++) value.at[k] = M::addc_cc(value.at[k], M::word(0));
            carry = M::addc(M::word(0), M::word(0));
            over = over + carry;
        }
        return M::template last<W>(over);
    }

    /// value -= N & mask; what is borrowed from above.
    template <int W>
    static DEVICE_CALLED Word subtract(Number &value, const Number &n, Word mask) {
        value.at[0] = M::sub_cc(value.at[0], n.at[0] & mask);
#pragma unroll
        for (int k = 1; k < L; k++) value.at[k] = M::subc_cc(value.at[k], n.at[k] & mask);
        Word borrow = M::subc(M::word(0), M::word(0)) & M::word(1);
        Word under = borrow;
#pragma unroll 1
        for (int pass = 1; pass < W; pass++) {
            Word in = M::template from_below<W>(borrow);
            value.at[0] = M::sub_cc(value.at[0], in);
#pragma unroll
            for (int k = 1; k < L; k++) value.at[k] = M::subc_cc(value.at[k], M::word(0));
            borrow = M::subc(M::word(0), M::word(0)) & M::word(1);
            under = under + borrow;
        }
        return M::template last<W>(under);
    }

    /// a ← a·b/R, below R.
    template <int W>
    static DEVICE_CALLED void multiply(Number &a, const Operand &b, const Number &n, Word n0) {
        Word even[L + 1], odd[L + 1];
#pragma unroll
        for (int k = 0; k <= L; k++) even[k] = odd[k] = M::word(0);
        Word spill = M::word(0), top = M::word(0);
#pragma unroll 1
        for (int i = 0; i < L * W; i += 2) {
            row<W, true>(even, odd, spill, top, a.at, digit(b, i), n.at, n0, M::word(0));
            row<W, true>(odd, even, spill, top, a.at, digit(b, i + 1), n.at, n0, M::word(0));
        }
        Word over = propagate<W>(a, settle_row(a, even, spill, odd, top));
        subtract<W>(a, n, M::word(0) - over);
    }

    /// a ← a²/R, below R. `room` is as long as a number, where `column` is this thread's own. The modulus is
    /// read from memory only when the product is there, for want of registers. Only with one thread per
    /// number, since the halves of a square are too unlike to be spread over several.
    static DEVICE_CALLED void square(Number &a, Digit *room, Word column, uint32_t stride, const Digit *keys, Word n_at,
                                     Word n0) {
        Word even[L + 1], odd[L + 1];
        {
            Word low[2 * L], high[2 * L];
#pragma unroll
            for (int k = 0; k < 2 * L; k++) low[k] = high[k] = M::word(0);
            // Products of unlike limbs: at even positions in `low`, at odd ones in `high`, one word up.
#pragma unroll
            for (int i = 0; i + 1 < L; i++) {
                chain(i % 2 == 0 ? high : low, a.at, i, i + 1, i % 2 == 0 ? 1 : 0);
                if (i + 2 < L) chain(i % 2 == 0 ? low : high, a.at, i, i + 2, i % 2 == 0 ? 0 : 1);
            }
            low[1] = M::add_cc(low[1], high[0]);
#pragma unroll
            for (int k = 2; k < 2 * L; k++) low[k] = M::addc_cc(low[k], high[k - 1]);
            // Twice that, and the squares of the limbs.
            low[0] = M::add_cc(low[0], low[0]);
#pragma unroll
            for (int k = 1; k < 2 * L; k++) low[k] = M::addc_cc(low[k], low[k]);
            low[0] = M::mad_lo_cc(a.at[0], a.at[0], low[0]);
            low[1] = M::madc_hi_cc(a.at[0], a.at[0], low[1]);
#pragma unroll
            for (int k = 1; k < L; k++) {
                low[2 * k] = M::madc_lo_cc(a.at[k], a.at[k], low[2 * k]);
                low[2 * k + 1] = M::madc_hi_cc(a.at[k], a.at[k], low[2 * k + 1]);
            }
#pragma unroll
            for (int k = 0; k < L; k++) {
                even[k] = low[k];
                odd[k] = M::word(0);
                store_digit(room, column, k * stride, low[L + k]);
            }
            even[L] = odd[L] = M::word(0);
        }
        Number n;
        n_at = M::again(n_at);
#pragma unroll
        for (int k = 0; k < L; k++) n.at[k] = load_digit(keys, n_at, k);
        Word spill = M::word(0), top = M::word(0);
#pragma unroll 1
        for (int i = 0; i < L; i += 2) {
            Word incoming = load_digit(room, column, i * stride);
            row<1, false>(even, odd, spill, top, a.at, M::word(0), n.at, n0, incoming);
            incoming = load_digit(room, column, (i + 1) * stride);
            row<1, false>(odd, even, spill, top, a.at, M::word(0), n.at, n0, incoming);
        }
        Word over = settle_row(a, even, spill, odd, top);
        subtract<1>(a, n, M::word(0) - over);
    }

    /// sums += a[i] · (a[from], a[from + 2], …), where sums[k] is word k + up.
    static DEVICE void chain(Word *sums, const Word *a, int i, int from, int up) {
        int k = i + from - up;
        sums[k] = M::mad_lo_cc(a[from], a[i], sums[k]);
        sums[k + 1] = M::madc_hi_cc(a[from], a[i], sums[k + 1]);
#pragma unroll
        for (int j = from + 2; j < L; j += 2) {
            k += 2;
            sums[k] = M::madc_lo_cc(a[j], a[i], sums[k]);
            sums[k + 1] = M::madc_hi_cc(a[j], a[i], sums[k + 1]);
        }
        if (k + 2 < 2 * L) sums[k + 2] = M::addc(sums[k + 2], M::word(0));
    }

    /// a ← a + b modulo N, below R, for sums of products with something below N.
    template <int W>
    static DEVICE_CALLED void add(Number &a, const Number &b, const Number &n) {
        a.at[0] = M::add_cc(a.at[0], b.at[0]);
#pragma unroll
        for (int k = 1; k < L; k++) a.at[k] = M::addc_cc(a.at[k], b.at[k]);
        Word over = propagate<W>(a, M::addc(M::word(0), M::word(0)));
        // Each is below R. If N is above R/2, two subtractions get below it; if not, both are below 2N.
#pragma unroll 1
        for (int time = 0; time < 2; time++) over = over - subtract<W>(a, n, M::word(0) - over);
    }

    /// The number in these words, little-endian, as the digits of this thread.
    static DEVICE_CALLED void from_words(Number &out, const uint32_t *words, Word first, Word position, uint32_t) {
        position = M::again(position);
#pragma unroll
        for (int k = 0; k < L; k++) out.at[k] = M::load(words, first + position, k);
    }

    /// Word i of the number whose digits were put into memory.
    static DEVICE Word to_word(const Operand &operand, Word i) {
        return M::load(operand.base, operand.column + i * M::word(operand.stride));
    }
};
