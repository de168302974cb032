// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Counters of a gateway that other processes can read.
//!
//! The counters lie in a memory file that the processes of a server inherit, so that it has the sums of a master and
//! its workers over reloads. A reader finds it in `/proc/PID/fd` by its name. It describes itself: [`MAGIC`], the
//! number of cells, then for each cell a name of [`NAME_LEN`] bytes, filled up with zeros, and a number; the numbers
//! have 64 bits in the order of the machine.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The name of the memory file; `/proc/PID/fd` shows it behind `/memfd:`.
pub const MEMORY_NAME: &CStr = c"millrace-local";

/// First number: what this is, and the version of its layout.
pub const MAGIC: u64 = 0x4d52_4c4f_4341_0001;

/// Bytes of a name.
pub const NAME_LEN: usize = 24;

/// Bound on the cells that a reader takes: more than any version will have.
const MAX_CELLS: usize = 64;

/// Numbers before the cells.
const HEAD: usize = 2;

/// Numbers of a cell: its name and its number.
const STRIDE: usize = NAME_LEN / 8 + 1;

/// Bytes of the largest file that a reader takes.
pub const MAX_BYTES: usize = words(MAX_CELLS) * 8;

/// Meaning of a cell's number. The cells of primitives have their bare names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellKind {
    /// Operations of a primitive that were computed in the gateway.
    Operations,
    /// Other events.
    Events,
    /// Nanoseconds of a primitive in the gateway, when it was measured.
    CostLocal,
    /// Nanoseconds of a primitive in the installed OpenSSL, when it was measured.
    CostOpenssl,
}

/// Events, by the names of their cells.
pub mod event {
    /// Fetches that the preload library answered from its cache.
    pub const FETCH_HITS: &str = "fetch-hits";
    /// Fetches that the preload library passed on.
    pub const FETCH_MISSES: &str = "fetch-misses";
    /// Tickets that left in one packet with the next one.
    pub const TICKETS_JOINED: &str = "tickets-joined";
    /// X25519 pairs that were used some time after they were made.
    pub const PAIRS_AHEAD: &str = "pairs-ahead";
    /// X25519 pairs that were made ahead and wiped without use: they were too old.
    pub const PAIRS_DROPPED: &str = "pairs-dropped";

    /// All events, in the order of their cells.
    pub const ALL: [&str; 5] =
        [FETCH_HITS, FETCH_MISSES, TICKETS_JOINED, PAIRS_AHEAD, PAIRS_DROPPED];
}

/// Prefix of a primitive's name in the cell of its cost in the gateway.
pub const COST_LOCAL: &str = "ns ";
/// Prefix of a primitive's name in the cell of its cost in the installed OpenSSL.
pub const COST_OPENSSL: &str = "stock ";

impl CellKind {
    /// Kind of the cell with this name, and the name of its primitive or event.
    #[must_use]
    pub fn of(name: &str) -> (Self, &str) {
        match (name.strip_prefix(COST_LOCAL), name.strip_prefix(COST_OPENSSL)) {
            (Some(primitive), _) => (Self::CostLocal, primitive),
            (_, Some(primitive)) => (Self::CostOpenssl, primitive),
            _ if event::ALL.contains(&name) => (Self::Events, name),
            _ => (Self::Operations, name),
        }
    }
}

/// Numbers of 64 bits in a file of `cells` cells.
#[must_use]
pub const fn words(cells: usize) -> usize {
    HEAD + cells * STRIDE
}

/// Index of a cell's number in the file, in numbers of 64 bits.
#[must_use]
pub const fn place(cell: usize) -> usize {
    words(cell) + STRIDE - 1
}

/// Writes names into memory that is all zeros and has [`words`] numbers for them. Names are cut at [`NAME_LEN`].
///
/// # Panics
/// If the memory is shorter.
pub fn describe<'a>(memory: &[AtomicU64], names: impl Iterator<Item = &'a str>) {
    let mut cells = 0;
    for name in names {
        let mut bytes = [0; NAME_LEN];
        for (place, byte) in bytes.iter_mut().zip(name.bytes()) {
            *place = byte;
        }
        for (at, word) in bytes.chunks_exact(8).enumerate() {
            let word = u64::from_ne_bytes(word.try_into().unwrap_or_default());
            memory[words(cells) + at].store(word, Ordering::Relaxed);
        }
        cells += 1;
    }
    memory[1].store(cells as u64, Ordering::Relaxed);
    // A reader that sees this sees the rest.
    memory[0].store(MAGIC, Ordering::Release);
}

/// The numbers by name. `None` if the memory is something else, or cut short.
#[must_use]
pub fn parse(memory: &[u8]) -> Option<BTreeMap<String, u64>> {
    let number = |at: usize| {
        let bytes = memory.get(at * 8..(at + 1) * 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    };
    let cells = usize::try_from(number(1)?).ok()?;
    if number(0)? != MAGIC || cells > MAX_CELLS {
        return None;
    }
    let mut numbers = BTreeMap::new();
    for cell in 0..cells {
        let start = words(cell) * 8;
        let name = memory.get(start..start + NAME_LEN)?;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        numbers.insert(name, number(place(cell))?);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(memory: &[AtomicU64]) -> Vec<u8> {
        let words = memory.iter().map(|word| word.load(Ordering::Relaxed));
        words.flat_map(u64::to_ne_bytes).collect()
    }

    #[test]
    fn file_describes_itself() {
        let memory: Vec<AtomicU64> = (0..words(2)).map(|_| AtomicU64::new(0)).collect();
        describe(&memory, ["X25519", event::FETCH_HITS].into_iter());
        memory[place(1)].store(7, Ordering::Relaxed);
        let whole = bytes_of(&memory);
        let expected = [("X25519".to_owned(), 0), ("fetch-hits".to_owned(), 7)];
        assert_eq!(parse(&whole), Some(BTreeMap::from(expected)));
    }

    #[test]
    fn other_memory_and_cut_memory_are_refused() {
        let memory: Vec<AtomicU64> = (0..words(3)).map(|_| AtomicU64::new(0)).collect();
        describe(&memory, ["a", "b", "c"].into_iter());
        let whole = bytes_of(&memory);
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), None, "{length}");
        }
        let mut absurd = whole;
        absurd[8..16].copy_from_slice(&u64::MAX.to_ne_bytes());
        assert_eq!(parse(&absurd), None);
        assert_eq!(parse(&[0; 256]), None);
    }

    #[test]
    fn cells_are_told_apart_by_their_names() {
        assert_eq!(CellKind::of("X25519"), (CellKind::Operations, "X25519"));
        assert_eq!(CellKind::of("fetch-hits"), (CellKind::Events, "fetch-hits"));
        for name in event::ALL {
            assert_eq!(CellKind::of(name), (CellKind::Events, name));
        }
        assert_eq!(CellKind::of("ns X25519"), (CellKind::CostLocal, "X25519"));
        assert_eq!(CellKind::of("stock X25519"), (CellKind::CostOpenssl, "X25519"));
    }
}
