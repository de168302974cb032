// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The counters of one device. Those of ciphers and public keys have the names of QEMU's `query-stats`.

use std::sync::atomic::{AtomicU64, Ordering};

use millrace_engine::BackendKind;
use millrace_wire::{EdgeCounter, EdgeReport};
use serde::Serialize;

/// Kind of a request, in QEMU's classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum RequestKind {
    /// A cipher, chain or AEAD that encrypts.
    SymEncrypt,
    /// A cipher, chain or AEAD that decrypts.
    SymDecrypt,
    /// A hash. QEMU's device has none.
    Hash,
    /// A MAC. QEMU's device has none.
    Mac,
    /// An operation with a public key.
    AsymEncrypt,
    /// A raw operation or decryption with a private key.
    AsymDecrypt,
    /// A signature.
    AsymSign,
    /// The verification of a signature.
    AsymVerify,
}

impl RequestKind {
    /// Every kind, with the name that starts its counters.
    pub const ALL: [(Self, &str); 8] = [
        (Self::SymEncrypt, "sym-encrypt"),
        (Self::SymDecrypt, "sym-decrypt"),
        (Self::Hash, "hash"),
        (Self::Mac, "mac"),
        (Self::AsymEncrypt, "asym-encrypt"),
        (Self::AsymDecrypt, "asym-decrypt"),
        (Self::AsymSign, "asym-sign"),
        (Self::AsymVerify, "asym-verify"),
    ];
}

/// The counters of each kind in a report to a node.
#[rustfmt::skip]
const REPORTED: [(RequestKind, EdgeCounter, EdgeCounter); KINDS] = {
    use {EdgeCounter as Counter, RequestKind as Kind};
    [
        (Kind::SymEncrypt, Counter::SymEncryptOps, Counter::SymEncryptBytes),
        (Kind::SymDecrypt, Counter::SymDecryptOps, Counter::SymDecryptBytes),
        (Kind::Hash, Counter::HashOps, Counter::HashBytes),
        (Kind::Mac, Counter::MacOps, Counter::MacBytes),
        (Kind::AsymEncrypt, Counter::AsymEncryptOps, Counter::AsymEncryptBytes),
        (Kind::AsymDecrypt, Counter::AsymDecryptOps, Counter::AsymDecryptBytes),
        (Kind::AsymSign, Counter::AsymSignOps, Counter::AsymSignBytes),
        (Kind::AsymVerify, Counter::AsymVerifyOps, Counter::AsymVerifyBytes),
    ]
};

const KINDS: usize = RequestKind::ALL.len();

/// Place where a request was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedBy {
    /// The thread of the rings: work without a private key, and keys that the engine refuses.
    InPlace,
    /// A backend of the engine in this process.
    Local(BackendKind),
    /// A node, on this backend if the node said so.
    Node(Option<BackendKind>),
}

const BACKENDS: usize = BackendKind::ALL.len();
const SERVERS: usize = 2 * BACKENDS + 2;

impl ServedBy {
    fn all() -> impl Iterator<Item = Self> {
        let local = BackendKind::ALL.iter().map(|kind| Self::Local(*kind));
        let node = BackendKind::ALL.iter().map(|kind| Self::Node(Some(*kind)));
        [Self::InPlace, Self::Node(None)].into_iter().chain(local).chain(node)
    }

    fn index(self) -> usize {
        match self {
            Self::InPlace => 0,
            Self::Node(None) => 1,
            Self::Local(kind) => 2 + kind.index(),
            Self::Node(Some(kind)) => 2 + BACKENDS + kind.index(),
        }
    }

    /// The names of the place and of the backend.
    #[must_use]
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::InPlace => ("in-place", "none"),
            Self::Local(kind) => ("local", kind.name()),
            Self::Node(kind) => ("node", kind.map_or("unknown", BackendKind::name)),
        }
    }
}

/// The counters of a device. They only grow.
#[derive(Debug, Default)]
pub struct DeviceCounters {
    operations: [AtomicU64; KINDS],
    bytes: [AtomicU64; KINDS],
    failed: AtomicU64,
    sessions_created: AtomicU64,
    sessions_refused: AtomicU64,
    malformed: AtomicU64,
    throttled: AtomicU64,
    retried: AtomicU64,
    served_by: [[AtomicU64; SERVERS]; KINDS],
    sessions: AtomicU64,
    keys: AtomicU64,
    in_flight: AtomicU64,
}

fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

impl DeviceCounters {
    pub(crate) fn operation(&self, kind: RequestKind, bytes: usize) {
        add(&self.operations[kind as usize], 1);
        add(&self.bytes[kind as usize], bytes);
    }

    pub(crate) fn failed(&self) {
        add(&self.failed, 1);
    }

    pub(crate) fn session(&self, created: bool) {
        let counter = if created { &self.sessions_created } else { &self.sessions_refused };
        add(counter, 1);
    }

    pub(crate) fn malformed(&self) {
        add(&self.malformed, 1);
    }

    pub(crate) fn throttled(&self) {
        add(&self.throttled, 1);
    }

    pub(crate) fn retried(&self) {
        add(&self.retried, 1);
    }

    pub(crate) fn served(&self, kind: RequestKind, by: ServedBy) {
        add(&self.served_by[kind as usize][by.index()], 1);
    }

    pub(crate) fn levels(&self, sessions: usize, keys: usize, in_flight: usize) {
        self.sessions.store(sessions as u64, Ordering::Relaxed);
        self.keys.store(keys as u64, Ordering::Relaxed);
        self.in_flight.store(in_flight as u64, Ordering::Relaxed);
    }

    /// Adds the counters to a report to a node.
    pub(crate) fn add_to(&self, report: &mut EdgeReport) {
        for served in &self.served_by {
            let by_node = ServedBy::all().filter(|by| matches!(by, ServedBy::Node(_)));
            for by in by_node {
                let jobs = served[by.index()].load(Ordering::Relaxed);
                report.add(EdgeCounter::Pooled, jobs);
                report.add(EdgeCounter::Paused, jobs);
            }
        }
        for (kind, ops, bytes) in REPORTED {
            for (counter, counts) in [(ops, &self.operations), (bytes, &self.bytes)] {
                report.add(counter, counts[kind as usize].load(Ordering::Relaxed));
            }
        }
    }

    /// The counters now.
    #[must_use]
    pub fn read(&self) -> DeviceStatistics {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let operations = |kind: RequestKind| load(&self.operations[kind as usize]);
        let bytes = |kind: RequestKind| load(&self.bytes[kind as usize]);
        let row = |(kind, operation): (RequestKind, &'static str), by: ServedBy| {
            let ops = load(&self.served_by[kind as usize][by.index()]);
            let (place, backend) = by.names();
            (ops > 0).then_some(ServedOperations { operation, place, backend, ops })
        };
        let served_by = RequestKind::ALL
            .into_iter()
            .flat_map(|kind| ServedBy::all().filter_map(move |by| row(kind, by)))
            .collect();
        DeviceStatistics {
            sym_encrypt_ops: operations(RequestKind::SymEncrypt),
            sym_decrypt_ops: operations(RequestKind::SymDecrypt),
            sym_encrypt_bytes: bytes(RequestKind::SymEncrypt),
            sym_decrypt_bytes: bytes(RequestKind::SymDecrypt),
            asym_encrypt_ops: operations(RequestKind::AsymEncrypt),
            asym_decrypt_ops: operations(RequestKind::AsymDecrypt),
            asym_sign_ops: operations(RequestKind::AsymSign),
            asym_verify_ops: operations(RequestKind::AsymVerify),
            asym_encrypt_bytes: bytes(RequestKind::AsymEncrypt),
            asym_decrypt_bytes: bytes(RequestKind::AsymDecrypt),
            asym_sign_bytes: bytes(RequestKind::AsymSign),
            asym_verify_bytes: bytes(RequestKind::AsymVerify),
            hash_ops: operations(RequestKind::Hash),
            hash_bytes: bytes(RequestKind::Hash),
            mac_ops: operations(RequestKind::Mac),
            mac_bytes: bytes(RequestKind::Mac),
            failed: load(&self.failed),
            malformed: load(&self.malformed),
            throttled: load(&self.throttled),
            retried: load(&self.retried),
            sessions_created: load(&self.sessions_created),
            sessions_refused: load(&self.sessions_refused),
            sessions: load(&self.sessions),
            keys: load(&self.keys),
            in_flight: load(&self.in_flight),
            served_by,
        }
    }
}

/// The counters of a device at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the names of QEMU's query-stats")]
pub struct DeviceStatistics {
    pub sym_encrypt_ops: u64,
    pub sym_decrypt_ops: u64,
    pub sym_encrypt_bytes: u64,
    pub sym_decrypt_bytes: u64,
    pub asym_encrypt_ops: u64,
    pub asym_decrypt_ops: u64,
    pub asym_sign_ops: u64,
    pub asym_verify_ops: u64,
    pub asym_encrypt_bytes: u64,
    pub asym_decrypt_bytes: u64,
    pub asym_sign_bytes: u64,
    pub asym_verify_bytes: u64,
    pub hash_ops: u64,
    pub hash_bytes: u64,
    pub mac_ops: u64,
    pub mac_bytes: u64,
    /// Data requests answered with a status other than OK.
    pub failed: u64,
    /// Requests whose descriptors or fields do not parse.
    pub malformed: u64,
    /// Times that a throttle stopped a queue.
    pub throttled: u64,
    /// Jobs that the pool refused for now and that were submitted again.
    pub retried: u64,
    pub sessions_created: u64,
    pub sessions_refused: u64,
    /// Sessions now.
    pub sessions: u64,
    /// Parsed keys now.
    pub keys: u64,
    /// Jobs at the pool now.
    pub in_flight: u64,
    /// Data requests without an error, by operation and by what served them.
    pub served_by: Vec<ServedOperations>,
}

/// Requests of one operation that one backend at one place has served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ServedOperations {
    /// The operation, with the name that starts its counters.
    pub operation: &'static str,
    /// `in-place`, `local` (the engine of this process) or `node`.
    pub place: &'static str,
    /// The backend; `none` in place.
    pub backend: &'static str,
    /// Number of operations.
    pub ops: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number of the status that a node shows has the same name there.
    #[test]
    fn report_to_a_node_has_the_names_and_numbers_of_the_status() {
        let counters = DeviceCounters::default();
        for (number, (kind, _)) in (1..).zip(RequestKind::ALL) {
            for _ in 0..number {
                counters.operation(kind, 100);
            }
        }
        let mut report = EdgeReport::default();
        counters.add_to(&mut report);
        let shown = serde_json::to_value(counters.read()).unwrap();
        let mut sum = 0;
        for (counter, count) in report.iter().filter(|(counter, _)| counter.is_of_device()) {
            assert_eq!(shown[counter.name()], count, "{}", counter.name());
            sum += count;
        }
        assert_eq!(sum, 36 + 3600);
    }
}
