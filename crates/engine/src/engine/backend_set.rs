// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Sets of backends, as bits.

use std::sync::atomic::{AtomicU32, Ordering};

/// A set of backends, each by its index in the order of preference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BackendSet(u32);

impl BackendSet {
    pub(crate) const EMPTY: Self = Self(0);

    /// Bound on the indexes: each is below this.
    pub(crate) const CAPACITY: usize = u32::BITS as usize;

    #[must_use]
    pub(crate) const fn with(self, index: usize) -> Self {
        Self(self.0 | 1 << index)
    }

    #[must_use]
    pub(crate) const fn without(self, index: usize) -> Self {
        Self(self.0 & !(1 << index))
    }

    /// The backends of this set that are not in the other one.
    #[must_use]
    pub(crate) const fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// This set, or the other one if this one is empty.
    #[must_use]
    pub(crate) const fn or(self, other: Self) -> Self {
        if self.is_empty() { other } else { self }
    }

    pub(crate) const fn contains(self, index: usize) -> bool {
        self.0 & 1 << index != 0
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The one that the operator named first.
    pub(crate) fn first(self) -> Option<usize> {
        (!self.is_empty()).then(|| self.0.trailing_zeros() as usize)
    }

    /// Indexes of the backends, in order of preference.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..Self::CAPACITY).filter(move |index| self.contains(*index))
    }
}

impl FromIterator<usize> for BackendSet {
    fn from_iter<I: IntoIterator<Item = usize>>(indices: I) -> Self {
        indices.into_iter().fold(Self::EMPTY, Self::with)
    }
}

/// A set that one thread changes and others read.
#[derive(Debug, Default)]
pub(super) struct AtomicBackendSet(AtomicU32);

impl AtomicBackendSet {
    pub(super) fn load(&self) -> BackendSet {
        BackendSet(self.0.load(Ordering::Relaxed))
    }

    pub(super) fn store(&self, set: BackendSet) {
        self.0.store(set.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_every_index_up_to_their_capacity() {
        let ends: BackendSet = [0, BackendSet::CAPACITY - 1].into_iter().collect();
        assert_eq!(ends.iter().collect::<Vec<_>>(), [0, 31]);
        assert_eq!((ends.len(), ends.first()), (2, Some(0)));
        let last = ends.without(0);
        assert_eq!((last.first(), last.contains(0)), (Some(31), false));
        assert_eq!(ends.minus(last), BackendSet::EMPTY.with(0));
        assert_eq!(last.minus(ends).or(last), last);
        assert_eq!(BackendSet::EMPTY.first(), None);
    }
}
