// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The counters of one device. Those of ciphers and public keys have the names of QEMU's `query-stats`.

use std::sync::atomic::{AtomicU64, Ordering};

use millrace_operation::BackendKind;
use millrace_wire::{EdgeCounter, EdgeReport};
use serde::Serialize;

use crate::cells::KeptCells;

/// Declares the counters of a device once: operations and bytes of each kind of request, events, and levels.
macro_rules! device_counters {
    (
        kinds { $($(#[$kind_doc:meta])* $kind:ident $name:literal: $ops:ident, $bytes:ident => $edge_ops:ident, $edge_bytes:ident;)* }
        events { $($(#[$event_doc:meta])* $event:ident;)* }
        levels { $($(#[$level_doc:meta])* $level:ident;)* }
    ) => {
        /// Kind of a request, in QEMU's classes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum RequestKind {
            $($(#[$kind_doc])* $kind,)*
        }

        impl RequestKind {
            /// Every kind, with the name that starts its counters.
            pub const ALL: &'static [(Self, &'static str)] = &[$((Self::$kind, $name)),*];
        }

        const KINDS: usize = RequestKind::ALL.len();

        /// The counters of each kind in a report to a node.
        const REPORTED: [(RequestKind, EdgeCounter, EdgeCounter); KINDS] =
            [$((RequestKind::$kind, EdgeCounter::$edge_ops, EdgeCounter::$edge_bytes)),*];

        #[expect(non_camel_case_types, reason = "named as the counters")]
        #[derive(Clone, Copy)]
        enum Event {
            $($event,)*
        }

        const EVENTS: &[&str] = &[$(stringify!($event)),*];

        /// The counters of a device. They only grow, but for the levels. Those that grow lie in the journal of the
        /// device, and go on when another process serves it.
        #[derive(Debug)]
        pub struct DeviceCounters {
            kept: KeptCells,
            $($level: AtomicU64,)*
        }

        impl DeviceCounters {
            /// The counters in these cells, of which there are [`KEPT`].
            pub(crate) fn over(kept: KeptCells) -> Self {
                Self { kept, $($level: AtomicU64::new(0),)* }
            }
        }

        /// The counters of a device at one moment.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "kebab-case")]
        #[expect(missing_docs, reason = "the names of QEMU's query-stats")]
        pub struct DeviceStatistics {
            $(pub $ops: u64, pub $bytes: u64,)*
            $($(#[$event_doc])* pub $event: u64,)*
            $($(#[$level_doc])* pub $level: u64,)*
            /// Data requests without an error, by operation and by what served them.
            pub served_by: Vec<ServedOperations>,
        }

        impl DeviceCounters {
            $(pub(crate) fn $event(&self) {
                self.kept.add(event(Event::$event), 1);
            })*

            fn statistics(&self, served_by: Vec<ServedOperations>) -> DeviceStatistics {
                DeviceStatistics {
                    $($ops: self.kept.get(operations(RequestKind::$kind)),)*
                    $($bytes: self.kept.get(bytes(RequestKind::$kind)),)*
                    $($event: self.kept.get(event(Event::$event)),)*
                    $($level: self.$level.load(Ordering::Relaxed),)*
                    served_by,
                }
            }
        }
    };
}

#[rustfmt::skip]
device_counters! {
    kinds {
        /// A cipher, chain or AEAD that encrypts.
        SymEncrypt "sym-encrypt": sym_encrypt_ops, sym_encrypt_bytes => SymEncryptOps, SymEncryptBytes;
        /// A cipher, chain or AEAD that decrypts.
        SymDecrypt "sym-decrypt": sym_decrypt_ops, sym_decrypt_bytes => SymDecryptOps, SymDecryptBytes;
        /// A hash. QEMU's device has none.
        Hash "hash": hash_ops, hash_bytes => HashOps, HashBytes;
        /// A MAC. QEMU's device has none.
        Mac "mac": mac_ops, mac_bytes => MacOps, MacBytes;
        /// An operation with a public key.
        AsymEncrypt "asym-encrypt": asym_encrypt_ops, asym_encrypt_bytes => AsymEncryptOps, AsymEncryptBytes;
        /// A raw operation or decryption with a private key.
        AsymDecrypt "asym-decrypt": asym_decrypt_ops, asym_decrypt_bytes => AsymDecryptOps, AsymDecryptBytes;
        /// A signature with a private key.
        AsymSign "asym-sign": asym_sign_ops, asym_sign_bytes => AsymSignOps, AsymSignBytes;
        /// The verification of a signature.
        AsymVerify "asym-verify": asym_verify_ops, asym_verify_bytes => AsymVerifyOps, AsymVerifyBytes;
    }
    events {
        /// Data requests answered with a status other than OK.
        failed;
        /// Requests whose descriptors or fields do not parse.
        malformed;
        /// Times that a throttle stopped a queue.
        throttled;
        /// Jobs that the pool refused for now and that were submitted again.
        retried;
        sessions_created;
        sessions_refused;
    }
    levels {
        /// Open sessions.
        sessions;
        /// Parsed keys.
        keys;
        /// Jobs at the pool.
        in_flight;
    }
}

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

// The place of each counter that is kept.
const fn operations(kind: RequestKind) -> usize {
    kind as usize
}

const fn bytes(kind: RequestKind) -> usize {
    KINDS + kind as usize
}

const fn event(event: Event) -> usize {
    2 * KINDS + event as usize
}

fn served(kind: RequestKind, by: ServedBy) -> usize {
    2 * KINDS + EVENTS.len() + SERVERS * kind as usize + by.index()
}

/// Number of the counters that are kept.
pub(crate) const KEPT: usize = 2 * KINDS + EVENTS.len() + SERVERS * KINDS;

/// Names the counters that are kept and their order (FNV-1a, 64 bits).
pub(crate) fn fingerprint() -> u64 {
    let kinds = RequestKind::ALL.iter().map(|(_, name)| *name);
    let backends = BackendKind::ALL.iter().map(|kind| kind.name());
    let names = kinds.chain(EVENTS.iter().copied()).chain(backends);
    names.flat_map(|name| name.bytes().chain([b'\n'])).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Counters that no other process continues.
impl Default for DeviceCounters {
    fn default() -> Self {
        Self::over(KeptCells::own(KEPT))
    }
}

impl DeviceCounters {
    pub(crate) fn operation(&self, kind: RequestKind, len: usize) {
        self.kept.add(operations(kind), 1);
        self.kept.add(bytes(kind), len as u64);
    }

    pub(crate) fn session(&self, created: bool) {
        if created { self.sessions_created() } else { self.sessions_refused() }
    }

    pub(crate) fn served(&self, kind: RequestKind, by: ServedBy) {
        self.kept.add(served(kind, by), 1);
    }

    pub(crate) fn levels(&self, sessions: usize, keys: usize, in_flight: usize) {
        self.sessions.store(sessions as u64, Ordering::Relaxed);
        self.keys.store(keys as u64, Ordering::Relaxed);
        self.in_flight.store(in_flight as u64, Ordering::Relaxed);
    }

    /// Adds the counters to a report to a node.
    pub(crate) fn add_to(&self, report: &mut EdgeReport) {
        for (kind, _) in RequestKind::ALL {
            let by_node = ServedBy::all().filter(|by| matches!(by, ServedBy::Node(_)));
            for by in by_node {
                let jobs = self.kept.get(served(*kind, by));
                report.add(EdgeCounter::Pooled, jobs);
                report.add(EdgeCounter::Paused, jobs);
            }
        }
        for (kind, ops, of_bytes) in REPORTED {
            report.add(ops, self.kept.get(operations(kind)));
            report.add(of_bytes, self.kept.get(bytes(kind)));
        }
    }

    /// Every counter at one moment; they are read one after the other.
    #[must_use]
    pub fn read(&self) -> DeviceStatistics {
        let row = |(kind, operation): (RequestKind, &'static str), by: ServedBy| {
            let ops = self.kept.get(served(kind, by));
            let (place, backend) = by.names();
            (ops > 0).then_some(ServedOperations { operation, place, backend, ops })
        };
        let kinds = RequestKind::ALL.iter();
        let served_by = kinds.flat_map(|kind| ServedBy::all().filter_map(move |by| row(*kind, by)));
        self.statistics(served_by.collect())
    }
}

/// Requests of one operation that one backend at one place has served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ServedOperations {
    /// The operation, with the name that starts its counters.
    pub operation: &'static str,
    /// `in-place`, `local` (the engine of this process) or `node`.
    pub place: &'static str,
    /// The engine's name of the backend; `none` in place, `unknown` for a node that did not say.
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
        for (number, (kind, _)) in (1..).zip(RequestKind::ALL.iter().copied()) {
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
