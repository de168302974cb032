// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Sets of operations and of hashes, as bits.

use crate::operation::{Hash, OperationKind};

macro_rules! code_set {
    ($(#[$doc:meta])* $name:ident of $item:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name(u32);

        impl $name {
            /// The empty set.
            #[must_use]
            pub fn new() -> Self {
                Self(0)
            }

            /// Adds an item.
            pub fn insert(&mut self, item: $item) {
                self.0 |= 1 << item.code();
            }

            /// Whether the item is in the set.
            #[must_use]
            pub fn contains(self, item: $item) -> bool {
                self.0 & (1 << item.code()) != 0
            }

            /// The items, in the order of their codes.
            pub fn iter(self) -> impl Iterator<Item = $item> {
                <$item>::ALL.iter().copied().filter(move |item| self.contains(*item))
            }

            /// Bit `1 << code` for each item: the form used on the wire and in stored policies.
            #[must_use]
            pub fn bits(self) -> u32 {
                self.0
            }

            /// The set of these bits; bits that name nothing are dropped.
            #[must_use]
            pub fn from_bits(bits: u32) -> Self {
                <$item>::ALL.iter().copied().filter(|item| bits & (1 << item.code()) != 0).collect()
            }
        }

        impl FromIterator<$item> for $name {
            fn from_iter<I: IntoIterator<Item = $item>>(items: I) -> Self {
                let mut set = Self::new();
                for item in items {
                    set.insert(item);
                }
                set
            }
        }
    };
}

code_set! {
    /// A set of operations.
    OperationSet of OperationKind
}
code_set! {
    /// A set of hash algorithms.
    HashAlgorithms of Hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_survive_their_bits_and_drop_unknown_ones() {
        let set: OperationSet = [OperationKind::Ecdh, OperationKind::RsaRaw].into_iter().collect();
        assert_eq!(OperationSet::from_bits(set.bits()), set);
        assert_eq!(OperationSet::from_bits(0x8000_0001), OperationSet::new());
    }
}
