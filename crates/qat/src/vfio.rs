// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Virtual functions that this process has open, as `/proc/self` lists them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::RawFd;

use crate::maps::mappings;

/// Kind of an open file of VFIO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VfioKind {
    /// A virtual function.
    Function,
    /// `/dev/vfio/N`; stays open while a function of it is.
    Group,
    /// `/dev/vfio/vfio`.
    Container,
}

impl VfioKind {
    pub(crate) const IN_CLOSING_ORDER: [Self; 3] = [Self::Function, Self::Group, Self::Container];

    /// The kind of the file that a descriptor links to.
    fn of(target: &str) -> Option<Self> {
        match target {
            _ if is_function(target) => Some(Self::Function),
            _ if target.ends_with("/dev/vfio/vfio") => Some(Self::Container),
            _ if target.contains("/dev/vfio/") => Some(Self::Group),
            _ => None,
        }
    }
}

/// Whether this is Linux's name of an open function (`drivers/vfio/group.c`), as a link or in a list of mappings.
fn is_function(name: &str) -> bool {
    name.contains("[vfio-device]")
}

/// Open files and mappings of VFIO.
#[derive(Clone, Debug, Default)]
pub(crate) struct VfioUse {
    descriptors: BTreeMap<RawFd, VfioKind>,
    /// Addresses of mapped registers: first, and behind the last.
    mappings: BTreeSet<(usize, usize)>,
}

impl VfioUse {
    /// Those of this process; empty where there is no `/proc`.
    pub(crate) fn now() -> Self {
        let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let descriptors = entries.filter_map(|entry| {
            let target = fs::read_link(entry.path()).ok()?;
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, VfioKind::of(target.to_str()?)?))
        });
        Self {
            descriptors: descriptors.collect(),
            mappings: mappings().lines().filter_map(mapping).collect(),
        }
    }

    /// Those that were not open `before`.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        self.descriptors.retain(|number, _| !before.descriptors.contains_key(number));
        self.mappings.retain(|range| !before.mappings.contains(range));
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        let Self { descriptors, mappings } = self;
        descriptors.is_empty() && mappings.is_empty()
    }

    /// Descriptors of one kind.
    pub(crate) fn of(&self, kind: VfioKind) -> Vec<RawFd> {
        let of_kind = self.descriptors.iter().filter(|(_, known)| **known == kind);
        of_kind.map(|(number, _)| *number).collect()
    }

    /// Mapped registers of functions.
    pub(crate) fn mappings(self) -> impl Iterator<Item = (usize, usize)> {
        self.mappings.into_iter()
    }
}

/// The addresses of a line of `/proc/self/maps` that is a function's.
fn mapping(line: &str) -> Option<(usize, usize)> {
    let range = line.split(' ').next().filter(|_| is_function(line))?;
    let (start, end) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some((address(start)?, address(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_mappings_of_functions_groups_and_containers_are_told_apart() {
        let kinds = [
            ("anon_inode:[vfio-device]", Some(VfioKind::Function)),
            ("/dev/vfio/12", Some(VfioKind::Group)),
            ("/dev/vfio/noiommu-3", Some(VfioKind::Group)),
            ("/dev/vfio/vfio", Some(VfioKind::Container)),
            ("anon_inode:[eventfd]", None),
            ("/dev/null", None),
        ];
        for (target, kind) in kinds {
            assert_eq!(VfioKind::of(target), kind, "{target}");
        }
        let line =
            "7f5c8a2b0000-7f5c8a2c0000 rw-s 00000000 00:0f 1036      anon_inode:[vfio-device]";
        assert_eq!(mapping(line), Some((0x7f5c_8a2b_0000, 0x7f5c_8a2c_0000)));
        assert_eq!(mapping("7f5c8a2b0000-7f5c8a2c0000 rw-p 00000000 00:00 0"), None);
    }

    #[test]
    fn only_what_was_opened_since_counts() {
        let with = |descriptors: &[(RawFd, VfioKind)]| VfioUse {
            descriptors: descriptors.iter().copied().collect(),
            mappings: BTreeSet::new(),
        };
        let before = with(&[(3, VfioKind::Function)]);
        let left = with(&[(3, VfioKind::Function), (5, VfioKind::Group)]).since(&before);
        assert_eq!((left.of(VfioKind::Function), left.of(VfioKind::Group)), (vec![], vec![5]));
        assert!(before.clone().since(&before).is_empty() && !left.is_empty());
    }
}
