// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The methods that a thread has fetched from libcrypto's default library context. Pure: `ffi::fetch` counts
//! references and calls libcrypto.
//!
//! A fetch is found again by its kind, its name and its property query, each as the caller wrote it. The table is
//! open-addressed and has a bound: a server fetches some 20 methods, and one beyond the bound is not kept.

use std::ffi::{CStr, CString};

/// Slots: a power of two.
const SLOTS: usize = 128;

/// Bound on the methods that are kept: beyond it, searches get long.
const MAX_METHODS: usize = SLOTS / 2;

/// Bound on a name or property query that is kept, in bytes: a server's are shorter.
const MAX_TEXT_LEN: usize = 64;

/// A fetch: the kind of the method, its name, and a property query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MethodQuery<'a> {
    pub(crate) kind: u8,
    pub(crate) name: &'a CStr,
    pub(crate) properties: Option<&'a CStr>,
}

#[derive(Debug)]
struct FetchedMethod {
    kind: u8,
    name: CString,
    properties: Option<CString>,
    method: usize,
}

/// The fetched methods of one thread, as long as the state of libcrypto has this generation.
#[derive(Debug)]
pub(crate) struct MethodTable {
    generation: u64,
    slots: [Option<FetchedMethod>; SLOTS],
    count: usize,
}

impl MethodTable {
    pub(crate) const EMPTY: Self = Self { generation: 0, slots: [const { None }; SLOTS], count: 0 };

    /// Generation of the table's methods.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The method of this fetch.
    pub(crate) fn find(&self, query: MethodQuery<'_>) -> Option<usize> {
        let mut at = start(query);
        while let Some(fetched) = &self.slots[at] {
            if fetched.kind == query.kind
                && *fetched.name == *query.name
                && fetched.properties.as_deref() == query.properties
            {
                return Some(fetched.method);
            }
            at = (at + 1) % SLOTS;
        }
        None
    }

    /// Whether a method of this fetch can be kept.
    pub(crate) fn has_room(&self, query: MethodQuery<'_>) -> bool {
        let is_short = |text: &CStr| text.count_bytes() <= MAX_TEXT_LEN;
        self.count < MAX_METHODS && is_short(query.name) && query.properties.is_none_or(is_short)
    }

    /// Keeps a method that is not there yet; only where there is room.
    pub(crate) fn insert(&mut self, query: MethodQuery<'_>, method: usize) {
        let mut at = start(query);
        while self.slots[at].is_some() {
            at = (at + 1) % SLOTS;
        }
        self.count += 1;
        self.slots[at] = Some(FetchedMethod {
            kind: query.kind,
            name: query.name.to_owned(),
            properties: query.properties.map(CStr::to_owned),
            method,
        });
    }

    /// Empties the table for a new generation: kind and method of each.
    pub(crate) fn drain(&mut self, generation: u64) -> Vec<(u8, usize)> {
        self.generation = generation;
        self.count = 0;
        let taken = self.slots.iter_mut().filter_map(Option::take);
        taken.map(|fetched| (fetched.kind, fetched.method)).collect()
    }
}

/// The first slot of a fetch (FNV-1a). Names are chosen by the program, not by its clients.
fn start(query: MethodQuery<'_>) -> usize {
    let bytes = std::iter::once(&query.kind).chain(query.name.to_bytes());
    let sum =
        bytes.fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    (sum ^ (sum >> 16)) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query<'a>(kind: u8, name: &'a CStr, properties: Option<&'a CStr>) -> MethodQuery<'a> {
        MethodQuery { kind, name, properties }
    }

    #[test]
    fn fetch_is_found_by_kind_name_and_properties() {
        let mut table = MethodTable::EMPTY;
        table.insert(query(1, c"SHA2-256", None), 10);
        table.insert(query(2, c"SHA2-256", None), 20);
        table.insert(query(1, c"SHA2-256", Some(c"")), 30);
        table.insert(query(1, c"SHA2-256", Some(c"fips=yes")), 40);
        assert_eq!(table.find(query(1, c"SHA2-256", None)), Some(10));
        assert_eq!(table.find(query(2, c"SHA2-256", None)), Some(20));
        assert_eq!(table.find(query(1, c"SHA2-256", Some(c""))), Some(30));
        assert_eq!(table.find(query(1, c"SHA2-256", Some(c"fips=yes"))), Some(40));
        assert_eq!(table.find(query(1, c"SHA256", None)), None);
        assert_eq!(table.find(query(1, c"SHA2-256", Some(c"fips=no"))), None);
    }

    #[test]
    fn table_has_a_bound_and_empties_for_a_new_generation() {
        let mut table = MethodTable::EMPTY;
        let name = |index: usize| CString::new(format!("method {index}")).expect("no zero byte");
        let mut kept = 0;
        while table.has_room(query(0, &name(kept), None)) {
            table.insert(query(0, &name(kept), None), kept);
            kept += 1;
        }
        assert_eq!(kept, MAX_METHODS);
        for index in 0..kept {
            assert_eq!(table.find(query(0, &name(index), None)), Some(index));
        }
        assert_eq!(table.find(query(0, &name(kept), None)), None, "the search ends");
        let mut methods = table.drain(7);
        methods.sort_unstable();
        assert_eq!(methods, (0..kept).map(|index| (0, index)).collect::<Vec<_>>());
        assert_eq!(table.generation(), 7);
        assert_eq!(table.find(query(0, &name(0), None)), None);
        let long = CString::new(vec![b'a'; MAX_TEXT_LEN + 1]).expect("no zero byte");
        assert!(table.has_room(query(0, &name(0), None)) && !table.has_room(query(0, &long, None)));
        assert!(!table.has_room(query(0, &name(0), Some(&long))));
    }
}
