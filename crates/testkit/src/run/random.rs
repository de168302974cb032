// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Random numbers from a seed, so that a failure can be repeated. Not for secrets.

/// A generator that its seed determines.
#[derive(Debug)]
pub struct SeededRandom(fastrand::Rng);

impl SeededRandom {
    /// The generator of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// A number of 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0.usize(..bound)
    }

    /// `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill(&mut bytes);
        bytes
    }

    /// A big-endian number of `len` bytes that is below any RSA modulus of this length.
    ///
    /// # Panics
    /// If `len` is 0.
    pub fn number(&mut self, len: usize) -> Vec<u8> {
        let mut number = self.bytes(len);
        number[0] &= 0x3f;
        number
    }
}
