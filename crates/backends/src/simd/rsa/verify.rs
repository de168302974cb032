// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Roots that a device has computed, verified in lanes: up to eight at once, each with its own key.
//!
//! One lane per root: `root^65537 mod n` must be its input. Keys with another exponent are verified on AWS-LC, which is
//! also faster for a root that comes alone.

use zeroize::Zeroize;

use super::{Constants, F4, put, room, wipe_stack};
use crate::simd::Implementation;
use crate::simd::keys::{SIZES, Size};
use crate::simd::lanes::{LANES, Lanes};
use crate::simd::montgomery::{BLOCK, Block, Difference, ToDigits};
use crate::simd::numbers::{self, Digits};
#[cfg(target_arch = "x86_64")]
use crate::simd::sys;

/// Roots of one batch.
pub(crate) const ROOTS: usize = LANES;

/// A public key for the lanes.
pub(crate) struct RootKey {
    size: &'static Size,
    modulus: Digits,
    negative_inverse: u64,
    square: Digits,
}

impl RootKey {
    /// The lane form of a public key, from big-endian numbers; `None` if no size of lanes fits it, or the exponent is
    /// not 65537.
    pub(crate) fn new(modulus: &[u8], exponent: &[u8]) -> Option<Self> {
        let bits = numbers::bits(modulus);
        let size = SIZES.iter().find(|size| bits <= size.bits)?;
        if numbers::bits(exponent) > 64 || numbers::from_bytes(exponent, 2)[..] != [F4, 0] {
            return None;
        }
        let modulus = numbers::from_bytes(modulus, 2 * size.blocks * BLOCK);
        let negative_inverse = numbers::negative_inverse(&modulus);
        let (_, square) = numbers::montgomery_constants(&modulus, bits);
        Some(Self { size, modulus, negative_inverse, square })
    }

    /// Keys with the same number can share a batch.
    pub(crate) fn size(&self) -> usize {
        self.size.index
    }
}

/// A root to be verified: both numbers big-endian and below the modulus.
pub(crate) struct RsaRoot<'a> {
    pub(crate) key: &'a RootKey,
    pub(crate) root: &'a [u8],
    pub(crate) input: &'a [u8],
}

/// The lanes of this processor, with the memory of their batches.
pub(crate) struct RootVerifier {
    implementation: Implementation,
    spaces: [Option<Box<Space>>; SIZES.len()],
}

impl RootVerifier {
    /// The fastest lanes of this processor; `None` if it has none.
    pub(crate) fn new() -> Option<Self> {
        let fast = [Implementation::Avx512Ifma, Implementation::Avx512Fp52];
        fast.into_iter().find(|fast| fast.is_available()).map(Self::with)
    }

    pub(crate) fn with(implementation: Implementation) -> Self {
        Self { implementation, spaces: Default::default() }
    }

    /// Whether each root is right. All keys have the size of the first.
    ///
    /// # Panics
    /// If there are more than [`ROOTS`], or keys of another size.
    pub(crate) fn verify(&mut self, roots: &[RsaRoot<'_>]) -> Vec<bool> {
        let Some(first) = roots.first() else {
            return Vec::new();
        };
        let size = first.key.size;
        let space = self.spaces[size.index].get_or_insert_with(|| Box::new(Space::new(size)));
        let verified = match self.implementation {
            #[cfg(target_arch = "x86_64")]
            Implementation::Avx512Ifma => {
                sys::Ifma::detect().map(|lanes| space.verify(lanes, roots))
            }
            #[cfg(target_arch = "x86_64")]
            Implementation::Avx512Fp52 => {
                sys::Fp52::detect().map(|lanes| space.verify(lanes, roots))
            }
            #[cfg(not(target_arch = "x86_64"))]
            Implementation::Avx512Ifma | Implementation::Avx512Fp52 => None,
            Implementation::Portable => Some(space.verify(crate::simd::lanes::Portable, roots)),
        };
        // Without lanes nothing is verified.
        verified.unwrap_or_else(|| vec![false; roots.len()])
    }
}

/// The memory of a batch, zeroised after each: a root may be a secret.
struct Space {
    size: &'static Size,
    whole: Constants,
    root: Vec<Block>,
    power: Vec<Block>,
    input: Vec<Block>,
}

impl Space {
    fn new(size: &'static Size) -> Self {
        let blocks = 2 * size.blocks;
        Self {
            size,
            whole: Constants::new(blocks),
            root: room(blocks),
            power: room(blocks),
            input: room(blocks),
        }
    }

    fn verify<L: Lanes>(&mut self, l: L, roots: &[RsaRoot<'_>]) -> Vec<bool> {
        let digits = 2 * self.size.blocks * BLOCK;
        for (RsaRoot { key, root, input }, lane) in roots.iter().zip(0..) {
            assert!(lane < ROOTS && key.size.index == self.size.index);
            put(&mut self.whole.modulus, lane, &key.modulus);
            put(&mut self.whole.square, lane, &key.square);
            self.whole.negative_inverse.0[lane] = key.negative_inverse;
            put(&mut self.root, lane, &numbers::from_bytes(root, digits));
            put(&mut self.input, lane, &numbers::from_bytes(input, digits));
        }
        for numbers in
            [&mut self.whole.modulus, &mut self.whole.square, &mut self.root, &mut self.input]
        {
            l.run(ToDigits(numbers));
        }
        // root^65536 in Montgomery form, times the root itself.
        self.power.copy_from_slice(&self.root);
        self.whole.enter(l, &mut self.power);
        for _ in 0..16 {
            self.whole.square(l, &mut self.power);
        }
        self.whole.multiply(l, &mut self.power, &self.root);
        self.whole.reduce(l, &mut self.power);
        let wrong = l.run(Difference { value: &self.power, other: Some(&self.input) });
        // Whether a device was right is public: the caller gets a result or an error.
        let verified = (0..roots.len()).map(|lane| wrong.0[lane] == 0).collect();
        self.wipe();
        verified
    }

    fn wipe(&mut self) {
        self.whole.wipe();
        for numbers in [&mut self.root, &mut self.power, &mut self.input] {
            numbers.as_flattened_mut().zeroize();
        }
        wipe_stack();
    }
}

#[cfg(test)]
mod tests {
    use millrace_testkit::keys;

    use super::*;
    use crate::software::keys::{load, rsa_numbers};

    /// A root and its input.
    type Pair = (Vec<u8>, Vec<u8>);

    /// A key with inputs and their roots, by AWS-LC.
    fn roots(der: &[u8], count: u8) -> (RootKey, Vec<Pair>) {
        let software = load(der).expect("a key");
        let [n, e, ..] = rsa_numbers(der).expect("numbers");
        let key = RootKey::new(n, e).expect("a size of the lanes");
        let rsa = crate::raw_rsa::secret(&software).expect("an RSA key");
        let pairs = (1..=count).map(|byte| {
            let mut input = vec![byte; rsa.modulus.len()];
            input[0] = 0;
            let mut root = vec![0; input.len()];
            rsa.key.private(&input, &mut root).expect("a root");
            (root, input)
        });
        (key, pairs.collect())
    }

    #[test]
    fn right_roots_are_verified_and_each_wrong_one_is_found() {
        for der in [keys::rsa_2048(), keys::rsa_3072(), keys::rsa_4096()] {
            let (key, mut pairs) = roots(der.der, 8);
            for implementation in
                Implementation::ALL.into_iter().filter(|known| known.is_available())
            {
                let mut verifier = RootVerifier::with(implementation);
                let mut verify = |pairs: &[Pair]| {
                    let roots =
                        pairs.iter().map(|(root, input)| RsaRoot { key: &key, root, input });
                    verifier.verify(&roots.collect::<Vec<_>>())
                };
                for count in 1..=pairs.len() {
                    assert_eq!(verify(&pairs[..count]), vec![true; count], "{implementation:?}");
                }
                for wrong in 0..pairs.len() {
                    let (at, bit) = (pairs[wrong].0.len() - 1 - 13 * wrong, 1 << (wrong % 8));
                    pairs[wrong].0[at] ^= bit;
                    let expected: Vec<bool> = (0..pairs.len()).map(|lane| lane != wrong).collect();
                    assert_eq!(verify(&pairs), expected, "{implementation:?}");
                    pairs[wrong].0[at] ^= bit;
                }
                assert_eq!(verify(&pairs), [true; 8], "nothing is left of the batch before");
            }
        }
    }

    #[test]
    fn key_with_another_exponent_or_size_has_no_lanes() {
        let [n, ..] = rsa_numbers(keys::rsa_2048().der).expect("numbers");
        assert!(RootKey::new(n, &[1, 0, 1]).is_some());
        assert!(RootKey::new(n, &[0, 1, 0, 1]).is_some(), "with a zero before it");
        assert!(RootKey::new(n, &[3]).is_none());
        assert!(RootKey::new(n, &[1, 0, 0, 0, 0, 0, 0, 1, 0, 1]).is_none());
        let [n, e, ..] = rsa_numbers(keys::rsa_8192().der).expect("numbers");
        assert!(RootKey::new(n, e).is_none());
    }
}
