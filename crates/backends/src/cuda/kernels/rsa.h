// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// The RSA private operation of one group of 2·T threads: T of them compute modulo p, T modulo q, and modulo
// n = p·q all together. The digits of a half are spread over T threads, so those of a whole number are over
// 2·T, with as many in each.
//
//   blind        b = input·f mod n                 f = ρ, g = ρ^−d: a blinding pair of the key
//   exponentiate bᵈ mod p, bᵈ mod q                windows of four bits, all of the table read for each
//   recombine    s = Σ of both halves, each times its basis, mod n
//   unblind      y = s·g mod n
//   verify       yᵉ = input?                       on what is handed out; else zeros and an error
//   renew        f ← f², g ← g²
//
// A pair is made by the same program: of a random input ρ with the factor 1 and the exponent −d comes
// s = ρ^−d, it is right if sᵉ·ρ = 1, and (ρ, s) is the pair.
//
// The only branches are on the position in this program, the public exponent, and whether pairs are made, all of
// them the same for a launch. Addresses depend on the position and on which slot and pair a task names.

#pragma once

#include "lanes.h"

/// What a launch gets. The same for all its threads.
struct Launch {
    /// Per task: the slot of its key, the place of its blinding pair.
    const uint32_t *tasks;
    /// Per task: a number below its modulus, in words, little-endian.
    const uint32_t *input;
    /// Per task: the result likewise, or zeros.
    uint32_t *output;
    /// Per task: `RIGHT` or `WRONG`.
    uint32_t *status;
    const void *keys;
    void *pairs;
    /// Room for tables where they are not in shared memory.
    void *tables;
    /// The public exponent.
    uint64_t exponent;
    /// How many bits it has.
    uint32_t exponent_bits;
    /// Whether pairs are made.
    uint32_t make;
};

/// Answers that a stray zero or a stuck bit does not give.
constexpr uint32_t RIGHT = 0x600d1e55;
constexpr uint32_t WRONG = 0xbad0dead;

constexpr int WINDOW_BITS = 4;
constexpr int ENTRIES = 1 << WINDOW_BITS;
/// Windows that share a digit, whatever a digit could hold.
constexpr int WINDOWS_PER_DIGIT = 8;

/// Where the numbers of a key are in its slot, in digits. M digits are a half.
template <int M, int HALF_BITS>
struct Layout {
    // Of each half: modulus, R, R², R³ modulo it.
    static constexpr int HALF_MODULUS = 0, HALF_ONE = M, HALF_SQUARE = 2 * M, HALF_CUBE = 3 * M;
    static constexpr int HALF = 4 * M;
    // Of the whole: modulus, R, R² modulo it, bases of recombination of p and q.
    static constexpr int MODULUS = 2 * HALF, ONE = MODULUS + 2 * M, SQUARE = ONE + 2 * M, BASIS = SQUARE + 2 * M;
    // −1/p, −1/q, −1/n modulo 2^32 or 2^52; one place is left free.
    static constexpr int INVERSES = BASIS + 4 * M;
    // Windows of d and −d modulo p−1, and modulo q−1, the lowest first.
    static constexpr int EXPONENT = HALF_BITS / (WINDOW_BITS * WINDOWS_PER_DIGIT);
    static constexpr int EXPONENTS = INVERSES + 4;
    static constexpr int KEY = EXPONENTS + 4 * EXPONENT;
    // Of a blinding pair: factor and inverse, both times R.
    static constexpr int PAIR = 4 * M;
};

template <class A, int T, int HALF_BITS>
struct Rsa {
    using M = typename A::M;
    using Word = typename M::Word;
    using Digit = typename A::Digit;
    using Number = typename A::Number;
    using Operand = typename A::Operand;
    static constexpr int L = A::L;
    static constexpr int G = 2 * T;
    static constexpr int HALF = L * T;
    static constexpr int WORDS = 2 * HALF_BITS / 32;
    using At = Layout<HALF, HALF_BITS>;
    using Scalar = decltype(A::scalar(nullptr, Word()));

    /// Where a block of threads has its memory, and which part of it is this group's.
    struct Place {
        /// Numbers that a whole group reads: two of HALF digits, or one of twice as many, per operation.
        Digit *stage;
        /// Columns of one thread each: the table, later what must be kept.
        Digit *table;
        /// The position of the group in the block, and how many groups there are.
        Word group;
        uint32_t groups;
        /// The position of the thread in the block, and how many threads there are.
        Word thread;
        uint32_t threads;
    };

    /// Entries of the table that serve again when it is no longer needed.
    static constexpr int ENTERED = 0, OUTPUT = 1, FACTOR = 2;

    static DEVICE_CALLED void load(Number &out, const Digit *base, Word at) {
#pragma unroll
        for (int k = 0; k < L; k++) out.at[k] = A::load_digit(base, at, k);
    }
    static DEVICE_CALLED void keep(const Place &place, int entry, const Number &value) {
#pragma unroll
        for (int k = 0; k < L; k++)
            A::store_digit(place.table, place.thread, (entry * L + k) * place.threads, value.at[k]);
    }
    static DEVICE_CALLED void recall(Number &out, const Place &place, int entry) {
#pragma unroll
        for (int k = 0; k < L; k++)
            out.at[k] = A::load_digit(place.table, place.thread, (entry * L + k) * place.threads);
    }

    /// Puts a number where all threads that need it can read it. What was there has been read.
    template <int W>
    static DEVICE_CALLED Operand stage(const Place &place, const Number &value) {
        M::settle();
        Word lane = M::lane(), column = place.group;
        uint32_t stride = place.groups;
        if (W == T) {
            column = column * M::word(2) + lane / M::word(T);
            stride *= 2;
        }
        Word first = column + lane % M::word(W) * M::word(L * stride);
#pragma unroll
        for (int k = 0; k < L; k++)
            A::store_digit(place.stage, first, k * stride, value.at[k]);
        M::settle();
        return {place.stage, column, 0, stride, (uint32_t)(L * W)};
    }
    /// What either half put there, as a whole number.
    static DEVICE Operand staged_half(const Place &place, int half) {
        return {place.stage, place.group * M::word(2) + M::word(half), 0, 2 * place.groups, (uint32_t)HALF};
    }
    /// The number 1.
    template <int W>
    static DEVICE Operand stage_unit(const Place &place) {
        Number unit;
        Word lowest = M::equal(M::lane() % M::word(W), M::word(0));
        unit.at[0] = A::masked(A::unit(), lowest);
#pragma unroll
        for (int k = 1; k < L; k++) unit.at[k] = A::zero();
        return stage<W>(place, unit);
    }

    /// Entry `window` of the table. All are read.
    static DEVICE_CALLED void look_up(Number &out, const Place &place, Word window) {
#pragma unroll
        for (int k = 0; k < L; k++) out.at[k] = A::zero();
#pragma unroll 1
        for (int entry = 0; entry < ENTRIES; entry++) {
            Word mask = M::equal(window, M::word(entry));
            Number value;
            recall(value, place, entry);
#pragma unroll
            for (int k = 0; k < L; k++) out.at[k] = A::either(out.at[k], A::masked(value.at[k], mask));
        }
    }

    /// Whether squares are computed apart. There are no registers to keep the modulus meanwhile.
    static constexpr bool SQUARES = A::SQUARES && T == 1;

    static DEVICE_CALLED void square(Number &value, const Place &place, const Digit *keys, Word n_at, const Number &n,
                                     Scalar n0) {
        if constexpr (SQUARES) {
            M::settle();
            Word column = place.group * M::word(2) + M::lane();
            A::square(value, place.stage, column, 2 * place.groups, keys, n_at, n0);
        } else {
            Operand factor = stage<T>(place, value);
            A::template multiply<T>(value, factor, n, n0);
        }
    }

    /// bᵈ modulo the prime of this half, where `b` is staged as a whole number; staged for recombination.
    static DEVICE_CALLED void exponentiate(const Launch &launch, const Place &place, const Digit *keys, Word key,
                                           Operand b) {
        Word lane = M::lane(), half = lane / M::word(T);
        Word own = key + half * M::word(At::HALF), digits = lane % M::word(T) * M::word(L);
        Number n, power, other;
        load(n, keys, own + digits);
        MOMENT(HalfModulus, n);
        Scalar n0 = A::scalar(keys, key + M::word(At::INVERSES) + half);

        // With b = high·R + low, b·R is low·R²/R + high·R³/R. Then the powers 0 to 15.
        load(power, keys, own + M::word(At::HALF_SQUARE) + digits);
        b.count = HALF;
        Operand factor = b;
#pragma unroll 1
        for (int k = 0; k < ENTRIES; k++) {
            A::template multiply<T>(power, factor, n, n0);
            if (k == 0) {
                other = power;
                load(power, keys, own + M::word(At::HALF_CUBE) + digits);
                factor.first = HALF;
                continue;
            }
            if (k == 1) {
                A::template add<T>(power, other, n);
                MOMENT(Base, power);
                factor = stage<T>(place, power);
            }
            MOMENT(Table, power);
            keep(place, k, power);
        }
        load(other, keys, own + M::word(At::HALF_ONE) + digits);
        keep(place, 0, other);

        constexpr int WINDOWS = HALF_BITS / WINDOW_BITS;
        Word which = half * M::word(2) + M::word(launch.make);
        Word exponent = key + M::word(At::EXPONENTS) + which * M::word(At::EXPONENT);
        power = other;
#pragma unroll 1
        for (int i = WINDOWS; i >= 0; i--) {
            if (i == 0) {
                // Out of Montgomery form.
                factor = stage_unit<T>(place);
            } else {
                if (i < WINDOWS) {
#pragma unroll 1
                    for (int bit = 0; bit < WINDOW_BITS; bit++) square(power, place, keys, own + digits, n, n0);
                }
                Word packed = A::low_word(A::scalar(keys, exponent + M::word((i - 1) / WINDOWS_PER_DIGIT)));
                Word shift = M::word(WINDOW_BITS * ((i - 1) % WINDOWS_PER_DIGIT));
                look_up(other, place, (packed >> shift) & M::word(ENTRIES - 1));
                factor = stage<T>(place, other);
            }
            if (SQUARES) load(n, keys, M::again(own + digits));
            A::template multiply<T>(power, factor, n, n0);
            MOMENT(Power, power);
        }
        MOMENT(HalfResult, power);
        stage<T>(place, power);
    }

    /// All ones if the number of the group is the one of these digits, or for `expected` null, of 1.
    static DEVICE_CALLED Word is(const Number &value, const Number &expected) {
        Word difference = M::word(0);
#pragma unroll
        for (int k = 0; k < L; k++) difference = difference | A::difference(value.at[k], expected.at[k]);
        return M::equal(M::any(difference), M::word(0));
    }

    /// From at most N to below N.
    static DEVICE_CALLED void canonical(Number &value, const Number &n) {
        Word below = ~is(value, n);
#pragma unroll
        for (int k = 0; k < L; k++) value.at[k] = A::masked(value.at[k], below);
    }

    /// The steps after exponentiation. Each is one multiplication modulo n.
    enum Step : int {
        BasisP,
        BasisQ,
        Unblind,
        Enter,
        Leave,
        Return,
        Squaring,
        Times,
        TimesInput,
        Reenter,
        Check,
        Renew,
        RenewInverse,
        Done,
    };

    /// What a group has to know of its task. Made anew where it is used.
    struct Task {
        const Digit *keys;
        Digit *pairs;
        Word key, pair, digits, input;

        DEVICE Task(const Launch &launch, Word task) {
            task = M::again(task);
            keys = (const Digit *)launch.keys;
            pairs = (Digit *)launch.pairs;
            key = M::load(launch.tasks, task * M::word(2)) * M::word(At::KEY);
            pair = M::load(launch.tasks, task * M::word(2) + M::word(1)) * M::word(At::PAIR);
            digits = M::lane() * M::word(L);
            input = task * M::word(WORDS);
        }
    };

    /// The input times the factor of the blinding pair, staged.
    static DEVICE_CALLED Operand blind(const Launch &launch, const Place &place, const Task &task) {
        Number n, value, other;
        load(n, task.keys, task.key + M::word(At::MODULUS) + task.digits);
        if (launch.make) {
            load(other, task.keys, task.key + M::word(At::ONE) + task.digits);
        } else {
            load(other, task.pairs, task.pair + task.digits);
        }
        MOMENT(Factor, other);
        Operand factor = stage<G>(place, other);
        A::from_words(value, launch.input, task.input, task.digits, WORDS);
        MOMENT(Input, value);
        Scalar n0 = A::scalar(task.keys, task.key + M::word(At::INVERSES + 2));
        A::template multiply<G>(value, factor, n, n0);
        MOMENT(Blinded, value);
        return stage<G>(place, value);
    }

    static DEVICE_CALLED void run(const Launch &launch, const Place &place, Word index) {
        {
            Task task(launch, index);
            exponentiate(launch, place, task.keys, task.key, blind(launch, place, task));
        }
        conclude(launch, place, index);
    }

    /// From the halves to the result.
    static DEVICE_CALLED void conclude(const Launch &launch, const Place &place, Word index) {
        const auto [keys, pairs, key, pair, digits, input_at] = Task(launch, index);
        Number n, value, other;
        load(n, keys, key + M::word(At::MODULUS) + digits);
        MOMENT(Modulus, n);
        Scalar n0 = A::scalar(keys, key + M::word(At::INVERSES + 2));
        Operand factor;
        load(value, keys, key + M::word(At::BASIS) + digits);
        factor = staged_half(place, 0);
        Word right = M::word(0);
        int bit = (int)launch.exponent_bits - 1;
        int step = BasisP;
#pragma unroll 1
        while (step != Done) {
            A::template multiply<G>(value, factor, n, n0);
            switch (step) {
            case BasisP:
                keep(place, ENTERED, value);
                load(value, keys, key + M::word(At::BASIS + 2 * HALF) + digits);
                factor = staged_half(place, 1);
                step = BasisQ;
                break;
            case BasisQ:
                recall(other, place, ENTERED);
                A::template add<G>(value, other, n);
                MOMENT(Recombined, value);
                if (launch.make) {
                    load(other, keys, key + M::word(At::ONE) + digits);
                } else {
                    load(other, pairs, pair + M::word(2 * HALF) + digits);
                }
                factor = stage<G>(place, other);
                step = Unblind;
                break;
            case Unblind:
                MOMENT(Unblinded, value);
                load(other, keys, key + M::word(At::SQUARE) + digits);
                factor = stage<G>(place, other);
                step = Enter;
                break;
            case Enter:
                MOMENT(Entered, value);
                factor = stage_unit<G>(place);
                step = Leave;
                break;
            case Leave:
                canonical(value, n);
                MOMENT(Output, value);
                keep(place, OUTPUT, value);
                // What is verified is what is handed out: back into Montgomery form from there.
                load(other, keys, key + M::word(At::SQUARE) + digits);
                factor = stage<G>(place, other);
                step = Return;
                break;
            case Return:
                keep(place, ENTERED, value);
                factor = stage<G>(place, value);
                step = Squaring;
                break;
            case Squaring:
                // A bit of e that is set has a factor more.
                bit--;
                if (launch.exponent >> bit & 1) {
                    recall(other, place, ENTERED);
                    factor = stage<G>(place, other);
                    step = Times;
                    break;
                }
                [[fallthrough]];
            case Times:
                MOMENT(Verifying, value);
                if (bit > 0) {
                    factor = stage<G>(place, value);
                    step = Squaring;
                } else if (launch.make) {
                    A::from_words(other, launch.input, input_at, digits, WORDS);
                    factor = stage<G>(place, other);
                    step = TimesInput;
                } else {
                    factor = stage_unit<G>(place);
                    step = Check;
                }
                break;
            case TimesInput:
                load(other, keys, key + M::word(At::SQUARE) + digits);
                factor = stage<G>(place, other);
                step = Reenter;
                break;
            case Reenter:
                factor = stage_unit<G>(place);
                step = Check;
                break;
            case Check:
                canonical(value, n);
                if (launch.make) {
                    Word lowest = M::equal(M::lane(), M::word(0));
                    other.at[0] = A::masked(A::unit(), lowest);
#pragma unroll
                    for (int k = 1; k < L; k++) other.at[k] = A::zero();
                } else {
                    A::from_words(other, launch.input, input_at, digits, WORDS);
                }
                right = is(value, other);
                if (launch.make) {
                    A::from_words(value, launch.input, input_at, digits, WORDS);
                    load(other, keys, key + M::word(At::SQUARE) + digits);
                } else {
                    load(value, pairs, pair + digits);
                    other = value;
                }
                factor = stage<G>(place, other);
                step = Renew;
                break;
            case Renew:
                keep(place, FACTOR, value);
                if (launch.make) {
                    recall(value, place, OUTPUT);
                    load(other, keys, key + M::word(At::SQUARE) + digits);
                } else {
                    load(value, pairs, pair + M::word(2 * HALF) + digits);
                    other = value;
                }
                factor = stage<G>(place, other);
                step = RenewInverse;
                break;
            default:
                step = Done;
                break;
            }
        }
        finish(launch, place, index, pair, value, right);
    }

    /// Hands out the result and the next pair if all is right, and zeros if not; wipes what is left.
    static DEVICE_CALLED void finish(const Launch &launch, const Place &place, Word task, Word pair,
                                     const Number &inverse, Word right) {
        Digit *pairs = (Digit *)launch.pairs;
        Word lane = M::lane(), digits = lane * M::word(L);
        Number value;
        recall(value, place, FACTOR);
#pragma unroll
        for (int k = 0; k < L; k++) {
            A::store_digit(pairs, pair + digits, k, A::masked(value.at[k], right));
            A::store_digit(pairs, pair + digits, 2 * HALF + k, A::masked(inverse.at[k], right));
        }
        // Of a pair that is made nothing is handed out.
        Word shown = right & M::word(launch.make ? 0 : 0xffffffffu);
        recall(value, place, OUTPUT);
#pragma unroll
        for (int k = 0; k < L; k++) value.at[k] = A::masked(value.at[k], shown);
        Operand result = stage<G>(place, value);
        for (int i = 0; i < WORDS / G; i++) {
            Word at = lane + M::word(i * G);
            M::store(launch.output, task * M::word(WORDS) + at, 0, A::to_word(result, at));
        }
        M::store(launch.status, task, 0, (right & M::word(RIGHT)) | (~right & M::word(WRONG)));
#pragma unroll
        for (int k = 0; k < L; k++) value.at[k] = A::zero();
        for (int entry = 0; entry < ENTRIES; entry++) keep(place, entry, value);
        stage<G>(place, value);
    }
};
