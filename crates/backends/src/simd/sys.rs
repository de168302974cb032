// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! AVX-512 implementations of [`Lanes`], with two ways to multiply. The only `unsafe` of this backend.
//!
//! Each type is a token. Only [`detect`](Ifma::detect) makes one, after it has checked the processor's
//! features, so the holder may execute the instructions. [`Lanes::run`] enters a function that is compiled
//! for them, and the kernel is inlined into that function.

use std::arch::x86_64::{
    __m512i, __mmask8, _MM_FROUND_NO_EXC, _MM_FROUND_TO_ZERO, _mm512_add_epi64, _mm512_and_si512,
    _mm512_castpd_si512, _mm512_castsi512_pd, _mm512_cmpeq_epi64_mask, _mm512_cvttpd_epu64,
    _mm512_fmadd_round_pd, _mm512_load_si512, _mm512_madd52hi_epu64, _mm512_madd52lo_epu64,
    _mm512_mask_blend_epi64, _mm512_mullo_epi64, _mm512_or_si512, _mm512_permutex_epi64,
    _mm512_set1_epi64, _mm512_setzero_si512, _mm512_slli_epi64, _mm512_srai_epi64,
    _mm512_srli_epi64, _mm512_store_si512, _mm512_sub_epi64, _mm512_sub_pd, _mm512_xor_si512,
};

use super::lanes::{DIGIT_BITS, DIGIT_MASK, LaneKernel, Lanes, Octet};

/// Bits of a digit, as shifts take them.
const SHIFT: u32 = 52;
const _: () = assert!(SHIFT as usize == DIGIT_BITS);

/// AVX-512 with IFMA: 52-bit integer multiply-add.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ifma(());

impl Ifma {
    /// The token, if this processor has the instructions and the system saves their registers.
    pub(super) fn detect() -> Option<Self> {
        (base_features() && std::arch::is_x86_feature_detected!("avx512ifma")).then_some(Self(()))
    }
}

/// AVX-512 without IFMA: digits are doubles, products come from fused multiply-add.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fp52(());

impl Fp52 {
    /// The token, if this processor has the instructions and the system saves their registers.
    pub(super) fn detect() -> Option<Self> {
        base_features().then_some(Self(()))
    }
}

fn base_features() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512dq")
}

/// The operations that both types share: everything except multiplication.
macro_rules! common {
    () => {
        type Word = __m512i;
        type Mask = __mmask8;

        #[inline(always)]
        fn splat(self, value: u64) -> __m512i {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_set1_epi64(value.cast_signed()) }
        }

        #[inline(always)]
        fn load(self, from: &Octet) -> __m512i {
            // SAFETY: the token proves AVX-512F; an octet is 64 bytes, aligned to 64.
            unsafe { _mm512_load_si512(std::ptr::from_ref(from).cast()) }
        }

        #[inline(always)]
        fn store(self, to: &mut Octet, word: __m512i) {
            // SAFETY: the token proves AVX-512F; an octet is 64 bytes, aligned to 64.
            unsafe { _mm512_store_si512(std::ptr::from_mut(to).cast(), word) }
        }

        #[inline(always)]
        fn add(self, a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_add_epi64(a, b) }
        }

        #[inline(always)]
        fn subtract(self, a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_sub_epi64(a, b) }
        }

        #[inline(always)]
        fn xor(self, a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_xor_si512(a, b) }
        }

        #[inline(always)]
        fn or(self, a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_or_si512(a, b) }
        }

        #[inline(always)]
        fn and(self, a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_and_si512(a, b) }
        }

        #[inline(always)]
        fn shift_left<const BITS: u32>(self, word: __m512i) -> __m512i {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_slli_epi64::<BITS>(word) }
        }

        #[inline(always)]
        fn shift_right<const BITS: u32>(self, word: __m512i) -> __m512i {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_srli_epi64::<BITS>(word) }
        }

        #[inline(always)]
        fn low_digit(self, word: __m512i) -> __m512i {
            let mask = self.splat(DIGIT_MASK);
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_and_si512(word, mask) }
        }

        #[inline(always)]
        fn carry(self, word: __m512i) -> __m512i {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_srli_epi64::<SHIFT>(word) }
        }

        #[inline(always)]
        fn borrow(self, word: __m512i) -> __m512i {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_srai_epi64::<SHIFT>(word) }
        }

        #[inline(always)]
        fn swap_pairs(self, word: __m512i) -> __m512i {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_permutex_epi64::<0b10_11_00_01>(word) }
        }

        #[inline(always)]
        fn equal(self, a: __m512i, b: __m512i) -> __mmask8 {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_cmpeq_epi64_mask(a, b) }
        }

        #[inline(always)]
        fn select(self, mask: __mmask8, yes: __m512i, no: __m512i) -> __m512i {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_mask_blend_epi64(mask, no, yes) }
        }

        #[inline(always)]
        fn zero(self) -> __m512i {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_setzero_si512() }
        }
    };
}

/// Compiles a kernel for IFMA instructions.
#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
#[inline(never)]
fn enter_ifma<K: LaneKernel>(lanes: Ifma, kernel: K) -> K::Output {
    kernel.run(lanes)
}

impl Lanes for Ifma {
    common!();

    const LOW_BIAS: u64 = 0;
    const HIGH_BIAS: u64 = 0;
    // A multiply-add takes four cycles, and two start per cycle.
    const APART: bool = true;

    #[inline(always)]
    fn run<K: LaneKernel>(self, kernel: K) -> K::Output {
        // SAFETY: the token proves the features that the function is compiled for.
        unsafe { enter_ifma(self, kernel) }
    }

    #[inline(always)]
    fn multiply_add(
        self,
        low: __m512i,
        high: __m512i,
        a: __m512i,
        b: __m512i,
    ) -> (__m512i, __m512i) {
        // SAFETY: the token proves AVX-512IFMA.
        unsafe { (_mm512_madd52lo_epu64(low, a, b), _mm512_madd52hi_epu64(high, a, b)) }
    }

    #[inline(always)]
    fn multiply_low(self, a: __m512i, b: __m512i) -> __m512i {
        let zero = self.zero();
        // SAFETY: the token proves AVX-512IFMA. What is added to is zero, so the sum is the low half.
        unsafe { _mm512_madd52lo_epu64(zero, a, b) }
    }

    #[inline(always)]
    fn to_digit(self, word: __m512i) -> __m512i {
        word
    }

    #[inline(always)]
    fn word_of(self, digit: __m512i) -> __m512i {
        digit
    }
}

/// The bits of 2^52 as a double; with this exponent the mantissa holds an integer below 2^52.
const BITS_OF_2_52: u64 = (1023 + 52) << 52;

/// The bits of 2^104 as a double; with this exponent the mantissa holds a multiple of 2^52 below 2^104.
const BITS_OF_2_104: u64 = (1023 + 104) << 52;

/// Compiles a kernel for AVX-512F and DQ instructions.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline(never)]
fn enter_fp52<K: LaneKernel>(lanes: Fp52, kernel: K) -> K::Output {
    kernel.run(lanes)
}

impl Lanes for Fp52 {
    common!();

    const LOW_BIAS: u64 = BITS_OF_2_52;
    const HIGH_BIAS: u64 = BITS_OF_2_104;
    // An integer addition takes one cycle.
    const APART: bool = false;

    #[inline(always)]
    fn run<K: LaneKernel>(self, kernel: K) -> K::Output {
        // SAFETY: the token proves the features that the function is compiled for.
        unsafe { enter_fp52(self, kernel) }
    }

    /// Digits a and b are doubles that hold integers below 2^52.
    ///
    /// h = a·b + 2^104, rounded toward zero, has a unit of 2^52 in its last place, so its mantissa is
    /// the high half of the product. s = 2^104 + 2^52 − h is exact, and so is l = a·b + s, which is 2^52
    /// plus the low half. The bits of both, taken as integers, are a bias plus the half.
    #[inline(always)]
    fn multiply_add(
        self,
        low: __m512i,
        high: __m512i,
        a: __m512i,
        b: __m512i,
    ) -> (__m512i, __m512i) {
        const TOWARD_ZERO: i32 = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
        let c1 = self.splat(BITS_OF_2_104);
        // 2^104 + 2^52: the lowest bit of the mantissa of 2^104.
        let c2 = self.splat(BITS_OF_2_104 + 1);
        // SAFETY: the token proves AVX-512F; the casts keep the bits.
        unsafe {
            let (a, b) = (_mm512_castsi512_pd(a), _mm512_castsi512_pd(b));
            let h = _mm512_fmadd_round_pd::<TOWARD_ZERO>(a, b, _mm512_castsi512_pd(c1));
            let s = _mm512_sub_pd(_mm512_castsi512_pd(c2), h);
            let l = _mm512_fmadd_round_pd::<TOWARD_ZERO>(a, b, s);
            (
                _mm512_add_epi64(low, _mm512_castpd_si512(l)),
                _mm512_add_epi64(high, _mm512_castpd_si512(h)),
            )
        }
    }

    #[inline(always)]
    fn multiply_low(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512DQ.
        self.low_digit(unsafe { _mm512_mullo_epi64(a, b) })
    }

    #[inline(always)]
    fn to_digit(self, word: __m512i) -> __m512i {
        let bits = self.splat(BITS_OF_2_52);
        let with_exponent = self.or(word, bits);
        // SAFETY: the token proves AVX-512F; the casts keep the bits. 2^52 + word − 2^52 is exact.
        unsafe {
            _mm512_castpd_si512(_mm512_sub_pd(
                _mm512_castsi512_pd(with_exponent),
                _mm512_castsi512_pd(bits),
            ))
        }
    }

    #[inline(always)]
    fn word_of(self, digit: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512DQ; a digit is an integer, so nothing is rounded.
        unsafe { _mm512_cvttpd_epu64(_mm512_castsi512_pd(digit)) }
    }
}

/// Sends a client request to valgrind's memcheck (`valgrind.h`, `memcheck.h`). Returns 0 if the program does
/// not run under memcheck.
#[cfg(test)]
fn ask_memcheck(request: u64, arguments: [u64; 3]) -> u64 {
    // Memcheck's request codes start at the letters "MC".
    const MEMCHECK: u64 = 0x4d43_0000;
    let [a, b, c] = arguments;
    let arguments = [MEMCHECK + request, a, b, c, 0, 0];
    let mut answer = 0_u64;
    // SAFETY: rotations by 128 bits in all, and an exchange of a register with itself, change nothing on a
    // processor. Valgrind takes the sequence for a request: it reads the arguments and writes the answer,
    // and only where the arguments say, which is the callers' own memory.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") &raw const arguments,
            inout("rdx") answer,
            inout("rdi") 0_u64 => _,
            options(nostack)
        );
    }
    answer
}

/// Marks memory as undefined, so that memcheck reports every branch and address that depends on it.
#[cfg(test)]
pub(super) fn memcheck_mark_undefined<T>(memory: &mut [T]) {
    ask_memcheck(1, [memory.as_mut_ptr() as u64, size_of_val(memory) as u64, 0]);
}

/// Marks memory as defined.
#[cfg(test)]
pub(super) fn memcheck_mark_defined<T>(memory: &mut [T]) {
    ask_memcheck(2, [memory.as_mut_ptr() as u64, size_of_val(memory) as u64, 0]);
}

/// Number of bytes with bits that memcheck regards as undefined.
#[cfg(test)]
pub(super) fn memcheck_undefined(memory: &[u8]) -> usize {
    let mut bits = vec![0_u8; memory.len()];
    ask_memcheck(8, [memory.as_ptr() as u64, bits.as_mut_ptr() as u64, memory.len() as u64]);
    std::hint::black_box(bits).into_iter().filter(|bits| *bits != 0).count()
}
