// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Big numbers.

use std::ptr::{self, NonNull};

use aws_lc_sys as aws;
use zeroize::Zeroizing;

use super::{clear_errors, owned, succeeded};

owner! {
    /// A number, zeroised when freed.
    pub(crate) Number(aws::BIGNUM), freed by aws::BN_clear_free;
}

impl Number {
    /// Converts big-endian bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // SAFETY: `bytes` is readable for its length; null asks for a new number.
        owned(unsafe { aws::BN_bin2bn(bytes.as_ptr(), bytes.len(), ptr::null_mut()) }).map(Self)
    }

    /// Writes big-endian bytes, padded on the left to the length of `out`; `false` if they do not fit.
    pub(crate) fn write_padded(&self, out: &mut [u8]) -> bool {
        // SAFETY: the number is valid; `out` is writable for its length.
        succeeded(unsafe { aws::BN_bn2bin_padded(out.as_mut_ptr(), out.len(), self.as_ptr()) })
    }

    /// Length, in bits.
    pub(crate) fn bits(&self) -> usize {
        // SAFETY: the number is valid.
        unsafe { aws::BN_num_bits(self.as_ptr()) as usize }
    }

    pub(crate) fn is_odd(&self) -> bool {
        // SAFETY: the number is valid.
        unsafe { aws::BN_is_odd(self.as_ptr()) == 1 }
    }

    pub(crate) fn is_below(&self, other: &Self) -> bool {
        // SAFETY: both numbers are valid.
        unsafe { aws::BN_cmp(self.as_ptr(), other.as_ptr()) < 0 }
    }

    /// The number minus one; negative for zero.
    pub(crate) fn minus_one(&self) -> Option<Self> {
        // SAFETY: the number is valid; the copy is new.
        let copy = Self(owned(unsafe { aws::BN_dup(self.as_ptr()) })?);
        // SAFETY: the copy is valid and ours alone.
        succeeded(unsafe { aws::BN_sub_word(copy.as_ptr(), 1) }).then_some(copy)
    }

    /// Half of the number, rounded down.
    pub(crate) fn half(&self) -> Option<Self> {
        // SAFETY: allocates a number.
        let half = Self(owned(unsafe { aws::BN_new() })?);
        // SAFETY: both numbers are valid.
        succeeded(unsafe { aws::BN_rshift1(half.as_ptr(), self.as_ptr()) }).then_some(half)
    }

    /// Tests primality with the number of Miller-Rabin rounds that AWS-LC uses for numbers that are not
    /// adversarial. `None` if there is no memory.
    pub(crate) fn is_probably_prime(&self) -> Option<bool> {
        let context = NumberContext::new()?;
        // SAFETY: number and context are valid; no callback is given.
        let code = unsafe {
            aws::BN_is_prime_fasttest_ex(
                self.as_ptr(),
                aws::BN_prime_checks_for_generation,
                context.0.as_ptr(),
                1,
                ptr::null_mut(),
            )
        };
        if code < 0 {
            clear_errors();
            return None;
        }
        Some(code == 1)
    }

    /// `self^exponent mod modulus` in constant time in base and exponent. The modulus is odd and the
    /// base below it; `None` otherwise, or if there is no memory.
    pub(crate) fn power(&self, exponent: &Self, modulus: &Self) -> Option<Self> {
        if !modulus.is_odd() || !self.is_below(modulus) {
            return None;
        }
        let context = NumberContext::new()?;
        // SAFETY: allocates a number.
        let result = Self(owned(unsafe { aws::BN_new() })?);
        // SAFETY: all numbers and the context are valid; null asks for a fresh Montgomery context.
        let code = unsafe {
            aws::BN_mod_exp_mont_consttime(
                result.as_ptr(),
                self.as_ptr(),
                exponent.as_ptr(),
                modulus.as_ptr(),
                context.0.as_ptr(),
                ptr::null(),
            )
        };
        succeeded(code).then_some(result)
    }

    /// Big-endian bytes, padded on the left to `len`; `None` if they do not fit.
    pub(crate) fn to_bytes(&self, len: usize) -> Option<Zeroizing<Vec<u8>>> {
        let mut bytes = Zeroizing::new(vec![0; len]);
        self.write_padded(&mut bytes).then_some(bytes)
    }

    /// Splits a secret below `order` into shares: a random a, the b with a + b = secret, and a + 2b, all modulo
    /// `order`. Any one of them alone says nothing about the secret. In constant time. `None` if there is no memory.
    ///
    /// # Safety
    /// Both pointers are valid numbers.
    pub(super) unsafe fn split(
        secret: *const aws::BIGNUM,
        order: *const aws::BIGNUM,
    ) -> Option<[Self; 3]> {
        let new = || -> Option<Self> {
            // SAFETY: allocates a number.
            owned(unsafe { aws::BN_new() }).map(Self)
        };
        let shares = [new()?, new()?, new()?];
        let [a, b, both] = shares.each_ref().map(Self::as_ptr);
        // SAFETY: the caller's promise for the order; the number is ours.
        let drawn = unsafe { aws::BN_rand_range_ex(a, 1, order) };
        // SAFETY: all numbers are valid, not negative and below the order.
        let split = succeeded(drawn)
            && succeeded(unsafe { aws::BN_mod_sub_quick(b, secret, a, order) })
            // SAFETY: as above.
            && succeeded(unsafe { aws::BN_mod_add_quick(both, secret, b, order) });
        split.then_some(shares)
    }

    pub(super) fn as_ptr(&self) -> *mut aws::BIGNUM {
        self.0.as_ptr()
    }

    /// Passes ownership to a callee that frees the number.
    pub(super) fn into_raw(self) -> *mut aws::BIGNUM {
        let pointer = self.0.as_ptr();
        std::mem::forget(self);
        pointer
    }
}

owner! {
    /// Scratch space for arithmetic.
    NumberContext(aws::BN_CTX), freed by aws::BN_CTX_free;
}

impl NumberContext {
    fn new() -> Option<Self> {
        // SAFETY: allocates a context.
        owned(unsafe { aws::BN_CTX_new() }).map(Self)
    }
}

owner! {
    /// The constants of a modulus for Montgomery multiplication.
    MontgomeryContext(aws::BN_MONT_CTX), freed by aws::BN_MONT_CTX_free;
}

/// An odd modulus, for multiplications in constant time.
pub(crate) struct Modulus(MontgomeryContext);

// SAFETY: after construction the constants are only read.
unsafe impl Send for Modulus {}
// SAFETY: as above.
unsafe impl Sync for Modulus {}

// SAFETY: a number has no thread affinity.
unsafe impl Send for Number {}
// SAFETY: shared references only read.
unsafe impl Sync for Number {}

/// A number in Montgomery form: times R, modulo n.
pub(crate) struct Factor(Number);

impl Modulus {
    /// `None` for an even modulus, or if there is no memory.
    pub(crate) fn new(modulus: &Number) -> Option<Self> {
        let scratch = NumberContext::new()?;
        // SAFETY: number and scratch space are valid.
        let context =
            unsafe { aws::BN_MONT_CTX_new_for_modulus(modulus.as_ptr(), scratch.0.as_ptr()) };
        Some(Self(MontgomeryContext(owned(context)?)))
    }

    /// A number below the modulus as a factor.
    pub(crate) fn factor(&self, number: &Number) -> Option<Factor> {
        self.computed(|out, scratch| {
            // SAFETY: all are valid; the number is below the modulus or the call fails.
            unsafe { aws::BN_to_montgomery(out, number.as_ptr(), self.0.0.as_ptr(), scratch) }
        })
        .map(Factor)
    }

    /// `number · factor mod n`, for a number below n.
    pub(crate) fn multiply(&self, number: &Number, factor: &Factor) -> Option<Number> {
        self.product(number, &factor.0)
    }

    /// The square of a factor.
    pub(crate) fn square(&self, factor: &Factor) -> Option<Factor> {
        self.product(&factor.0, &factor.0).map(Factor)
    }

    /// `1/number mod n`, without a trace of the number in the time; `None` if there is no inverse.
    pub(crate) fn inverse(&self, number: &Number) -> Option<Number> {
        let mut none = 0;
        self.computed(|out, scratch| {
            // SAFETY: all are valid; the number is below the modulus or the call fails.
            unsafe {
                aws::BN_mod_inverse_blinded(
                    out,
                    &raw mut none,
                    number.as_ptr(),
                    self.0.0.as_ptr(),
                    scratch,
                )
            }
        })
    }

    fn product(&self, a: &Number, b: &Number) -> Option<Number> {
        self.computed(|out, scratch| {
            // SAFETY: all are valid.
            unsafe {
                aws::BN_mod_mul_montgomery(out, a.as_ptr(), b.as_ptr(), self.0.0.as_ptr(), scratch)
            }
        })
    }

    /// A new number that `compute` has filled.
    fn computed(
        &self,
        compute: impl FnOnce(*mut aws::BIGNUM, *mut aws::BN_CTX) -> std::ffi::c_int,
    ) -> Option<Number> {
        let scratch = NumberContext::new()?;
        // SAFETY: allocates a number.
        let out = Number(owned(unsafe { aws::BN_new() })?);
        let done = succeeded(compute(out.as_ptr(), scratch.0.as_ptr()));
        done.then_some(out)
    }
}
