// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The table of kernels and the memory layout of a key, for the host. They equal those in
//! `kernels/variants.h` and `kernels/rsa.h`.

/// The representation of numbers in a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// 32-bit limbs and integer multiply-add: for every device.
    Integer,
    /// 52-bit digits in doubles and fused multiply-add: for devices with full FP64 (A100, H100, H200).
    Fp52,
}

impl Arithmetic {
    /// Name in settings, logs and status.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::Fp52 => "fp52",
        }
    }

    /// Returns the arithmetic with this name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Integer, Self::Fp52].into_iter().find(|arithmetic| arithmetic.name() == name)
    }
}

/// Bits of the exponent per window (one multiplication each), and windows stored per digit.
const WINDOW_BITS: usize = 4;
const WINDOWS_PER_DIGIT: usize = 8;

/// One kernel: its arithmetic and the shape of its threads.
#[derive(Debug, PartialEq, Eq)]
pub struct Variant {
    /// Name of the kernel in the PTX.
    pub name: &'static str,
    /// Representation of the kernel's numbers.
    pub arithmetic: Arithmetic,
    /// Digits of a number per thread.
    pub digits: usize,
    /// Threads per prime.
    pub threads: usize,
    /// Longest prime, in bits.
    pub half_bits: usize,
    /// Threads per block.
    pub block: usize,
    /// Whether tables of powers are in the shared memory of a block, instead of the memory of the device.
    pub shared_table: bool,
}

/// Every kernel. Where speed is not measured, the first of a size is used.
#[rustfmt::skip]
pub static VARIANTS: [Variant; 8] = [
    Variant { name: "rsa_2048_integer_4", arithmetic: Arithmetic::Integer, digits: 8, threads: 4, half_bits: 1024, block: 128, shared_table: true },
    Variant { name: "rsa_2048_integer_1", arithmetic: Arithmetic::Integer, digits: 32, threads: 1, half_bits: 1024, block: 64, shared_table: false },
    Variant { name: "rsa_2048_fp52_4", arithmetic: Arithmetic::Fp52, digits: 5, threads: 4, half_bits: 1024, block: 128, shared_table: true },
    Variant { name: "rsa_2048_fp52_2", arithmetic: Arithmetic::Fp52, digits: 10, threads: 2, half_bits: 1024, block: 64, shared_table: false },
    Variant { name: "rsa_3072_integer_4", arithmetic: Arithmetic::Integer, digits: 12, threads: 4, half_bits: 1536, block: 64, shared_table: true },
    Variant { name: "rsa_3072_fp52_2", arithmetic: Arithmetic::Fp52, digits: 15, threads: 2, half_bits: 1536, block: 64, shared_table: false },
    Variant { name: "rsa_4096_integer_4", arithmetic: Arithmetic::Integer, digits: 16, threads: 4, half_bits: 2048, block: 64, shared_table: true },
    Variant { name: "rsa_4096_fp52_4", arithmetic: Arithmetic::Fp52, digits: 10, threads: 4, half_bits: 2048, block: 64, shared_table: false },
];

/// The supported sizes of key, in bits of a prime.
pub(super) const SIZES: [usize; 3] = [1024, 1536, 2048];

/// Offsets of the numbers of a key in its image, in digits. A number modulo a prime has [`Variant::half`]
/// digits, a number modulo n twice as many.
pub(super) struct Layout {
    /// Offset per prime: modulus, and R, R², R³ modulo it.
    pub(super) half: usize,
    /// Offset for n: modulus, R and R² modulo it, and the two bases of recombination.
    pub(super) whole: usize,
    pub(super) inverses: usize,
    pub(super) exponents: usize,
    /// Length of one exponent, in digits.
    pub(super) exponent: usize,
    /// Length of the whole image, in digits.
    pub(super) key: usize,
}

impl Variant {
    /// Bits of a digit.
    #[must_use]
    pub fn digit_bits(&self) -> usize {
        match self.arithmetic {
            Arithmetic::Integer => 32,
            Arithmetic::Fp52 => 52,
        }
    }

    /// Bytes of a digit in memory.
    #[must_use]
    pub fn digit_bytes(&self) -> usize {
        match self.arithmetic {
            Arithmetic::Integer => 4,
            Arithmetic::Fp52 => 8,
        }
    }

    /// Digits of a number modulo a prime.
    #[must_use]
    pub fn half(&self) -> usize {
        self.digits * self.threads
    }

    /// 32-bit words of an input or a result.
    #[must_use]
    pub fn words(&self) -> usize {
        2 * self.half_bits / 32
    }

    /// Bytes of the image of a key.
    #[must_use]
    pub fn key_bytes(&self) -> usize {
        self.layout().key * self.digit_bytes()
    }

    /// Bytes of a blinding pair.
    #[must_use]
    pub fn pair_bytes(&self) -> usize {
        4 * self.half() * self.digit_bytes()
    }

    /// Tasks per block.
    #[must_use]
    pub fn tasks_per_block(&self) -> usize {
        self.block / (2 * self.threads)
    }

    /// Bytes of the tables of powers of a block.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        (self.digits << WINDOW_BITS) * self.block * self.digit_bytes()
    }

    /// Bytes of shared memory of a block.
    #[must_use]
    pub fn shared_bytes(&self) -> usize {
        let stage = 2 * self.half() * self.tasks_per_block() * self.digit_bytes();
        stage + if self.shared_table { self.table_bytes() } else { 0 }
    }

    pub(super) fn layout(&self) -> Layout {
        let digits = self.half();
        let half = 4 * digits;
        let whole = 2 * 4 * digits;
        let inverses = whole + 5 * 2 * digits;
        let exponents = inverses + 4;
        let exponent = self.half_bits / (WINDOW_BITS * WINDOWS_PER_DIGIT);
        Layout { half, whole, inverses, exponents, exponent, key: exponents + 4 * exponent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variant_table_equals_the_kernel_headers() {
        let header = include_str!("kernels/variants.h");
        let rows: Vec<_> = header.lines().filter(|line| line.starts_with("KERNEL(")).collect();
        let ours: Vec<_> = VARIANTS
            .iter()
            .map(|v| {
                let table = if v.shared_table { "SHARED" } else { "GLOBAL" };
                format!(
                    "KERNEL({}, {:?}, {}, {}, {}, {}, {table})",
                    v.name, v.arithmetic, v.digits, v.threads, v.half_bits, v.block
                )
            })
            .collect();
        assert_eq!(rows, ours);
    }

    #[test]
    fn kernel_variants_fit_their_numbers_and_the_device() {
        for variant in &VARIANTS {
            let spare = variant.half() * variant.digit_bits() - variant.half_bits;
            match variant.arithmetic {
                Arithmetic::Integer => assert_eq!(spare, 0, "{}", variant.name),
                Arithmetic::Fp52 => assert!(spare >= 16, "{}", variant.name),
            }
            // 99 KiB is the limit per block of compute capability 8.6, the smallest of the supported ones.
            assert!(variant.shared_bytes() <= 99 * 1024, "{}", variant.name);
            assert!(variant.block % 32 == 0 && 32 % (2 * variant.threads) == 0);
            assert!(SIZES.contains(&variant.half_bits));
        }
    }
}
