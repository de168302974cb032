// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Backends of an engine by their index, and sets of them as bits.

use std::sync::atomic::{AtomicU32, Ordering};

/// Index of a backend in the order of preference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BackendIndex(pub(crate) usize);

/// A set of backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BackendSet(u32);

impl BackendSet {
    pub(crate) const EMPTY: Self = Self(0);

    /// Bound on the indexes: each is below this.
    pub(crate) const CAPACITY: usize = u32::BITS as usize;

    #[must_use]
    pub(crate) const fn with(self, backend: BackendIndex) -> Self {
        Self(self.0 | 1 << backend.0)
    }

    #[must_use]
    pub(crate) const fn without(self, backend: BackendIndex) -> Self {
        Self(self.0 & !(1 << backend.0))
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

    pub(crate) const fn contains(self, backend: BackendIndex) -> bool {
        self.0 & 1 << backend.0 != 0
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The one that the operator named first.
    pub(crate) fn first(self) -> Option<BackendIndex> {
        (!self.is_empty()).then(|| BackendIndex(self.0.trailing_zeros() as usize))
    }

    /// The backends, in order of preference.
    pub(crate) fn iter(self) -> impl Iterator<Item = BackendIndex> {
        (0..Self::CAPACITY).map(BackendIndex).filter(move |backend| self.contains(*backend))
    }
}

impl FromIterator<BackendIndex> for BackendSet {
    fn from_iter<I: IntoIterator<Item = BackendIndex>>(backends: I) -> Self {
        backends.into_iter().fold(Self::EMPTY, Self::with)
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
        let [lowest, highest] = [0, BackendSet::CAPACITY - 1].map(BackendIndex);
        let ends: BackendSet = [lowest, highest].into_iter().collect();
        assert_eq!(ends.iter().collect::<Vec<_>>(), [lowest, highest]);
        assert_eq!((ends.len(), ends.first()), (2, Some(lowest)));
        let last = ends.without(lowest);
        assert_eq!((last.first(), last.contains(lowest)), (Some(highest), false));
        assert_eq!(ends.minus(last), BackendSet::EMPTY.with(lowest));
        assert_eq!(last.minus(ends).or(last), last);
        assert_eq!(BackendSet::EMPTY.first(), None);
    }
}
