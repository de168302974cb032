// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The algorithms of the kernel and its interfaces to them, each with its names and numbers.

/// An interface of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkInterface {
    /// Sockets of the family `AF_ALG`.
    AfAlg,
    /// The device of cryptodev-linux.
    DevCrypto,
}

impl BulkInterface {
    /// Every interface.
    pub const ALL: [Self; 2] = [Self::AfAlg, Self::DevCrypto];

    /// The name in files and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AfAlg => "af-alg",
            Self::DevCrypto => "dev-crypto",
        }
    }
}

/// Whether a cipher encrypts or decrypts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkDirection {
    /// Plaintext to ciphertext.
    Encrypt,
    /// Ciphertext to plaintext.
    Decrypt,
}

/// Which calls of a session an algorithm serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkKind {
    /// A cipher that continues from any block.
    Cipher,
    /// A cipher with authentication.
    Aead,
    /// A hash or an HMAC with a result of this many bytes.
    Hash(usize),
}

macro_rules! algorithms {
    ($($variant:ident $name:literal: $kind:expr, $kernel:literal, $cipher:literal, $mac:literal;)*) => {
        /// An algorithm of the kernel, whichever the length of its key.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum BulkAlgorithm {
            $(#[doc = concat!("`", $kernel, "`")] $variant),*
        }

        impl BulkAlgorithm {
            /// Every algorithm.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name in files and tables.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Cipher, AEAD cipher or hash.
            #[must_use]
            pub const fn kind(self) -> BulkKind {
                match self { $(Self::$variant => $kind),* }
            }

            /// The name that the kernel's crypto API has for it.
            pub(crate) const fn kernel_name(self) -> &'static str {
                match self { $(Self::$variant => $kernel),* }
            }

            /// The numbers that cryptodev-linux has for it: cipher, MAC.
            pub(crate) const fn numbers(self) -> (u32, u32) {
                match self { $(Self::$variant => ($cipher, $mac)),* }
            }
        }
    };
}

algorithms! {
    AesCbc     "aes-cbc":     BulkKind::Cipher,   "cbc(aes)",     11, 0;
    AesCtr     "aes-ctr":     BulkKind::Cipher,   "ctr(aes)",     21, 0;
    AesGcm     "aes-gcm":     BulkKind::Aead,     "gcm(aes)",     50, 0;
    Sha1       "sha1":        BulkKind::Hash(20), "sha1",         0, 14;
    Sha224     "sha224":      BulkKind::Hash(28), "sha224",       0, 103;
    Sha256     "sha256":      BulkKind::Hash(32), "sha256",       0, 104;
    Sha384     "sha384":      BulkKind::Hash(48), "sha384",       0, 105;
    Sha512     "sha512":      BulkKind::Hash(64), "sha512",       0, 106;
    HmacSha1   "hmac-sha1":   BulkKind::Hash(20), "hmac(sha1)",   0, 7;
    HmacSha224 "hmac-sha224": BulkKind::Hash(28), "hmac(sha224)", 0, 107;
    HmacSha256 "hmac-sha256": BulkKind::Hash(32), "hmac(sha256)", 0, 18;
    HmacSha384 "hmac-sha384": BulkKind::Hash(48), "hmac(sha384)", 0, 19;
    HmacSha512 "hmac-sha512": BulkKind::Hash(64), "hmac(sha512)", 0, 20;
}

impl BulkAlgorithm {
    /// The algorithm of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_has_a_name_of_its_own() {
        for algorithm in BulkAlgorithm::ALL {
            assert_eq!(BulkAlgorithm::from_name(algorithm.name()), Some(*algorithm));
            let (cipher, mac) = algorithm.numbers();
            assert!((cipher == 0) != (mac == 0), "{algorithm:?}: one of the two");
        }
    }
}
