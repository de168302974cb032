// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Counters that other processes can read: primitives that this process computed, their costs, and what the preload
//! library spared OpenSSL. [`millrace_edge::counters`] has the layout.

use std::sync::atomic::{AtomicU64, Ordering};

use millrace_edge::counters::{self, COST_LOCAL, COST_OPENSSL, event};

use crate::algorithms::Primitive;

/// Cells of each primitive: its operations, and the two costs.
const OF_PRIMITIVE: usize = 3;

/// Number of cells.
const CELLS: usize = Primitive::ALL.len() * OF_PRIMITIVE + event::ALL.len();

/// Numbers of 64 bits in the file.
pub const LEN: usize = counters::words(CELLS);

/// An event, by its place in [`event::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalEvent {
    /// [`event::FETCH_HITS`]
    FetchHit,
    /// [`event::FETCH_MISSES`]
    FetchMiss,
    /// [`event::TICKETS_JOINED`]
    TicketJoined,
    /// [`event::PAIRS_AHEAD`]
    PairAhead,
    /// [`event::PAIRS_DROPPED`]
    PairDropped,
}

/// Counters in memory that forked processes share.
#[derive(Clone, Copy, Debug)]
pub struct SharedCells(&'static [AtomicU64; LEN]);

impl SharedCells {
    /// Makes the cells on memory that is all zeros.
    #[must_use]
    pub fn on(memory: &'static [AtomicU64; LEN]) -> Self {
        let primitives = Primitive::ROWS.iter().map(|row| row.name);
        let mut costs = Vec::new();
        for prefix in [COST_LOCAL, COST_OPENSSL] {
            costs.extend(primitives.clone().map(|name| format!("{prefix}{name}")));
        }
        let names = primitives.chain(event::ALL).chain(costs.iter().map(String::as_str));
        counters::describe(memory, names);
        Self(memory)
    }

    fn cell(&self, index: usize) -> &'static AtomicU64 {
        &self.0[counters::place(index)]
    }

    /// Counts an operation of a primitive.
    pub fn served_locally(&self, primitive: Primitive) {
        self.cell(primitive as usize).fetch_add(1, Ordering::Relaxed);
    }

    /// The cell that counts an event.
    #[must_use]
    pub fn event(&self, event: LocalEvent) -> &'static AtomicU64 {
        self.cell(Primitive::ALL.len() + event as usize)
    }

    /// Sets what a primitive costs in this process and in the installed OpenSSL; 0 for what was not measured.
    pub fn set_costs(&self, primitive: Primitive, local_ns: u64, openssl_ns: u64) {
        let first = Primitive::ALL.len() + event::ALL.len() + primitive as usize;
        self.cell(first).store(local_ns, Ordering::Relaxed);
        self.cell(first + Primitive::ALL.len()).store(openssl_ns, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use millrace_edge::counters::parse;

    use super::*;

    #[test]
    fn numbers_are_found_by_their_names() {
        let memory: &'static [AtomicU64; LEN] =
            Box::leak(Box::new([const { AtomicU64::new(0) }; LEN]));
        let cells = SharedCells::on(memory);
        cells.served_locally(Primitive::Tls13Kdf);
        for (at, event) in [
            LocalEvent::FetchHit,
            LocalEvent::FetchMiss,
            LocalEvent::TicketJoined,
            LocalEvent::PairAhead,
            LocalEvent::PairDropped,
        ]
        .into_iter()
        .enumerate()
        {
            cells.event(event).store(10 + at as u64, Ordering::Relaxed);
        }
        cells.set_costs(Primitive::SecP256r1MlKem768, 4, 5);
        let bytes: Vec<u8> =
            memory.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        let mut numbers = parse(&bytes).expect("counters");
        numbers.retain(|_, number| *number > 0);
        let expected = [
            ("TLS13-KDF", 1),
            ("fetch-hits", 10),
            ("fetch-misses", 11),
            ("ns SecP256r1MLKEM768", 4),
            ("pairs-ahead", 13),
            ("pairs-dropped", 14),
            ("stock SecP256r1MLKEM768", 5),
            ("tickets-joined", 12),
        ];
        let expected = expected.map(|(name, number)| (name.to_owned(), number));
        assert_eq!(numbers.into_iter().collect::<Vec<_>>(), expected);
    }
}
