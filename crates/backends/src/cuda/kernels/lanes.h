// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// What the kernels ask of a processor, twice: as instructions of a GPU thread, and as ordinary C++ that runs
// a whole group of threads in step, for the CPU twin.
//
// A group is the threads that work on one RSA operation: `Lanes<G>` has G of them. A `Word`, `Long` or `Real`
// is one value per thread: on the GPU a register, in the twin an array of G. Since no branch in the kernels
// depends on such a value, the two are the same program.
//
// Carries go from one `..._cc` operation to the next `c`-operation, as in PTX. Nothing else that sets or
// reads the carry flag may come between them; the asm statements are volatile, which keeps their order.

#pragma once

#include <stdint.h>

#ifdef __CUDACC__

#define DEVICE __device__ __forceinline__
// What the twin calls rather than inlines, so that it compiles in seconds. On the GPU a call would put
// numbers into memory.
#define DEVICE_CALLED DEVICE

// Every thread of a warp takes part in everything.
#define ALL_THREADS 0xffffffffu

template <int G>
struct Lanes {
    using Word = uint32_t;
    using Long = uint64_t;
    using Real = double;

    /// The position of this thread in its group.
    static DEVICE Word lane() { return threadIdx.x % G; }

    static DEVICE Word word(uint32_t value) { return value; }
    static DEVICE Long lengthen(Word value) { return value; }
    static DEVICE Word shorten(Long value) { return (Word)value; }

    static DEVICE Word mad_lo_cc(Word a, Word b, Word c) {
        Word d;
        asm volatile("mad.lo.cc.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
        return d;
    }
    static DEVICE Word madc_lo_cc(Word a, Word b, Word c) {
        Word d;
        asm volatile("madc.lo.cc.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
        return d;
    }
    static DEVICE Word madc_hi_cc(Word a, Word b, Word c) {
        Word d;
        asm volatile("madc.hi.cc.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
        return d;
    }
    static DEVICE Word add_cc(Word a, Word b) {
        Word d;
        asm volatile("add.cc.u32 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
        return d;
    }
    static DEVICE Word addc_cc(Word a, Word b) {
        Word d;
        asm volatile("addc.cc.u32 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
        return d;
    }
    static DEVICE Word addc(Word a, Word b) {
        Word d;
        asm volatile("addc.u32 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
        return d;
    }
    static DEVICE Word sub_cc(Word a, Word b) {
        Word d;
        asm volatile("sub.cc.u32 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
        return d;
    }
    static DEVICE Word subc_cc(Word a, Word b) {
        Word d;
        asm volatile("subc.cc.u32 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
        return d;
    }
    static DEVICE Word subc(Word a, Word b) {
        Word d;
        asm volatile("subc.u32 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
        return d;
    }

    /// a·b + c, rounded toward zero.
    static DEVICE Real fma_toward_zero(Real a, Real b, Real c) { return __fma_rz(a, b, c); }
    static DEVICE Real subtract(Real a, Real b) { return __dsub_rn(a, b); }
    static DEVICE Real real(double value) { return value; }
    static DEVICE Long bits(Real value) { return (Long)__double_as_longlong(value); }
    static DEVICE Real from_bits(Long value) { return __longlong_as_double((long long)value); }

    /// All ones where a equals b, else zero; no predicate that a branch could be made of.
    static DEVICE Word equal(Word a, Word b) {
        Word difference = a ^ b;
        return ((difference | (0u - difference)) >> 31) - 1u;
    }
    static DEVICE Long spread(Word mask) { return ((Long)mask << 32) | mask; }

    /// The value of the first, or last, thread in each part of W threads.
    template <int W>
    static DEVICE Word first(Word value) {
        return W == 1 ? value : __shfl_sync(ALL_THREADS, value, 0, W);
    }
    template <int W>
    static DEVICE Word last(Word value) {
        return W == 1 ? value : __shfl_sync(ALL_THREADS, value, W - 1, W);
    }
    /// The value of the next higher thread; zero in the last of each part.
    template <int W>
    static DEVICE Word from_above(Word value) {
        if (W == 1) return 0;
        Word other = __shfl_down_sync(ALL_THREADS, value, 1, W);
        return other & ~equal(threadIdx.x % W, W - 1);
    }
    /// The value of the next lower thread; zero in the first of each part.
    template <int W>
    static DEVICE Word from_below(Word value) {
        if (W == 1) return 0;
        Word other = __shfl_up_sync(ALL_THREADS, value, 1, W);
        return other & ~equal(threadIdx.x % W, 0);
    }
    template <int W>
    static DEVICE Long first(Long value) {
        return W == 1 ? value : __shfl_sync(ALL_THREADS, value, 0, W);
    }
    template <int W>
    static DEVICE Long from_above(Long value) {
        if (W == 1) return 0;
        Long other = __shfl_down_sync(ALL_THREADS, value, 1, W);
        return other & ~spread(equal(threadIdx.x % W, W - 1));
    }
    template <int W>
    static DEVICE Long from_below(Long value) {
        if (W == 1) return 0;
        Long other = __shfl_up_sync(ALL_THREADS, value, 1, W);
        return other & ~spread(equal(threadIdx.x % W, 0));
    }
    /// The OR over the whole group.
    static DEVICE Word any(Word value) {
#pragma unroll
        for (int step = G / 2; step > 0; step /= 2) value |= __shfl_xor_sync(ALL_THREADS, value, step, G);
        return value;
    }

    /// The same value, of which the compiler does not know that: what depends on it is computed again where it is
    /// used, rather than kept in registers that are short.
    static DEVICE Word again(Word value) {
        asm volatile("" : "+r"(value));
        return value;
    }

    template <class E>
    static DEVICE E load(const E *base, Word index, uint32_t offset = 0) { return (base + index)[offset]; }
    template <class E>
    static DEVICE void store(E *base, Word index, uint32_t offset, E value) { (base + index)[offset] = value; }

    /// Makes what this group wrote visible to its other threads.
    static DEVICE void settle() { __syncwarp(); }
};

// Moments at which the twin may flip a bit.
#define MOMENT(name, number)

#else // the twin

#include <cfenv>
#include <cmath>
#include <cstring>

#define DEVICE static inline __attribute__((always_inline))

/// One value per thread of a group.
template <class E, int G>
struct Group {
    E at[G];

    Group() = default;
    Group(E value) {
        for (int g = 0; g < G; g++) at[g] = value;
    }
};

#define GROUP_OPERATOR(op)                                                                   \
    template <class E, int G>                                                                \
    DEVICE Group<E, G> operator op(const Group<E, G> &a, const Group<E, G> &b) {             \
        Group<E, G> d;                                                                       \
        for (int g = 0; g < G; g++) d.at[g] = (E)(a.at[g] op b.at[g]);                       \
        return d;                                                                            \
    }                                                                                        \
    template <class E, int G>                                                                \
    DEVICE Group<E, G> operator op(const Group<E, G> &a, uint64_t b) {                       \
        return a op Group<E, G>((E)b);                                                       \
    }
GROUP_OPERATOR(+)
GROUP_OPERATOR(-)
GROUP_OPERATOR(*)
GROUP_OPERATOR(/)
GROUP_OPERATOR(%)
GROUP_OPERATOR(&)
GROUP_OPERATOR(|)
GROUP_OPERATOR(^)
GROUP_OPERATOR(<<)
GROUP_OPERATOR(>>)
#undef GROUP_OPERATOR

template <class E, int G>
DEVICE Group<E, G> operator~(const Group<E, G> &a) {
    return a ^ Group<E, G>((E)~(E)0);
}

#undef DEVICE
#define DEVICE inline __attribute__((always_inline))
#define DEVICE_CALLED __attribute__((noinline))

template <int G>
struct Lanes {
    using Word = Group<uint32_t, G>;
    using Long = Group<uint64_t, G>;
    using Real = Group<double, G>;

    /// The carry flag of each thread.
    static inline Word carry;

    static Word lane() {
        Word d;
        for (int g = 0; g < G; g++) d.at[g] = (uint32_t)g;
        return d;
    }
    static Word word(uint32_t value) { return Word(value); }
    static DEVICE Long lengthen(const Word &value) {
        Long d;
        for (int g = 0; g < G; g++) d.at[g] = value.at[g];
        return d;
    }
    static DEVICE Word shorten(const Long &value) {
        Word d;
        for (int g = 0; g < G; g++) d.at[g] = (uint32_t)value.at[g];
        return d;
    }

    /// The low word of each sum; what is above becomes the carry.
    template <bool IN, bool HIGH>
    static DEVICE Word mad(const Word &a, const Word &b, const Word &c) {
        Word d;
        for (int g = 0; g < G; g++) {
            uint64_t product = (uint64_t)a.at[g] * b.at[g];
            uint64_t sum = (HIGH ? product >> 32 : product & 0xffffffffu) + c.at[g] + (IN ? carry.at[g] : 0);
            d.at[g] = (uint32_t)sum;
            carry.at[g] = (uint32_t)(sum >> 32);
        }
        return d;
    }
    template <bool IN>
    static DEVICE Word sum(const Word &a, const Word &b) {
        Word d;
        for (int g = 0; g < G; g++) {
            uint64_t sum = (uint64_t)a.at[g] + b.at[g] + (IN ? carry.at[g] : 0);
            d.at[g] = (uint32_t)sum;
            carry.at[g] = (uint32_t)(sum >> 32);
        }
        return d;
    }
    template <bool IN>
    static DEVICE Word difference(const Word &a, const Word &b) {
        Word d;
        for (int g = 0; g < G; g++) {
            uint64_t raw = (uint64_t)a.at[g] - b.at[g] - (IN ? carry.at[g] : 0);
            d.at[g] = (uint32_t)raw;
            carry.at[g] = (uint32_t)(raw >> 63);
        }
        return d;
    }
    static DEVICE Word mad_lo_cc(const Word &a, const Word &b, const Word &c) { return mad<false, false>(a, b, c); }
    static DEVICE Word madc_lo_cc(const Word &a, const Word &b, const Word &c) { return mad<true, false>(a, b, c); }
    static DEVICE Word madc_hi_cc(const Word &a, const Word &b, const Word &c) { return mad<true, true>(a, b, c); }
    static DEVICE Word add_cc(const Word &a, const Word &b) { return sum<false>(a, b); }
    static DEVICE Word addc_cc(const Word &a, const Word &b) { return sum<true>(a, b); }
    static DEVICE Word addc(const Word &a, const Word &b) { return sum<true>(a, b); }
    static DEVICE Word sub_cc(const Word &a, const Word &b) { return difference<false>(a, b); }
    static DEVICE Word subc_cc(const Word &a, const Word &b) { return difference<true>(a, b); }
    static DEVICE Word subc(const Word &a, const Word &b) { return difference<true>(a, b); }

    /// The processor's own fused operation; the twin sets its rounding to toward zero.
    static DEVICE Real fma_toward_zero(const Real &a, const Real &b, const Real &c) {
        Real d;
        for (int g = 0; g < G; g++) d.at[g] = std::fma(a.at[g], b.at[g], c.at[g]);
        return d;
    }
    static DEVICE Real subtract(const Real &a, const Real &b) {
        Real d;
        for (int g = 0; g < G; g++) d.at[g] = a.at[g] - b.at[g];
        return d;
    }
    static DEVICE Real real(double value) { return Real(value); }
    static DEVICE Long bits(const Real &value) {
        Long d;
        memcpy(&d, &value, sizeof d);
        return d;
    }
    static DEVICE Real from_bits(const Long &value) {
        Real d;
        memcpy(&d, &value, sizeof d);
        return d;
    }

    static DEVICE Word equal(const Word &a, const Word &b) {
        Word d;
        for (int g = 0; g < G; g++) d.at[g] = a.at[g] == b.at[g] ? 0xffffffffu : 0;
        return d;
    }
    static DEVICE Long spread(const Word &mask) { return (lengthen(mask) << 32) | lengthen(mask); }

    template <int W, class V>
    static DEVICE V first(const V &value) {
        V d;
        for (int g = 0; g < G; g++) d.at[g] = value.at[g - g % W];
        return d;
    }
    template <int W, class V>
    static DEVICE V last(const V &value) {
        V d;
        for (int g = 0; g < G; g++) d.at[g] = value.at[g - g % W + W - 1];
        return d;
    }
    template <int W, class V>
    static DEVICE V from_above(const V &value) {
        V d(0);
        for (int g = 0; g < G; g++)
            if (g % W != W - 1) d.at[g] = value.at[g + 1];
        return d;
    }
    template <int W, class V>
    static DEVICE V from_below(const V &value) {
        V d(0);
        for (int g = 0; g < G; g++)
            if (g % W != 0) d.at[g] = value.at[g - 1];
        return d;
    }
    static DEVICE Word any(const Word &value) {
        uint32_t all = 0;
        for (int g = 0; g < G; g++) all |= value.at[g];
        return Word(all);
    }

    static DEVICE Word again(const Word &value) { return value; }

    template <class E>
    static DEVICE Group<E, G> load(const E *base, const Word &index, uint32_t offset = 0) {
        Group<E, G> d;
        for (int g = 0; g < G; g++) d.at[g] = base[index.at[g] + offset];
        return d;
    }
    template <class E>
    static DEVICE void store(E *base, const Word &index, uint32_t offset, const Group<E, G> &value) {
        for (int g = 0; g < G; g++) base[index.at[g] + offset] = value.at[g];
    }
    static void settle() {}
};

#define MOMENT(name, number) A::hit(Moment::name, number)

#endif

/// The moments at which a number is complete. Only the twin does something then.
enum class Moment : uint32_t {
    Never,
    Modulus,
    Input,
    Factor,
    Blinded,
    HalfModulus,
    Base,
    Table,
    Power,
    HalfResult,
    Recombined,
    Unblinded,
    Entered,
    Output,
    Verifying,
};
