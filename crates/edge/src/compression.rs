// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Counters of the compression library, in cells that other processes can read.
//!
//! The cells lie in memory that a server's master and its workers share: they hold the sums over all of them, and
//! live as long as the last process. The first two cells say what the others are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The name of the memory file that holds the cells; `/proc/PID/fd` shows it behind `/memfd:`.
pub const MEMORY_NAME: &str = "millrace-compression";

/// First cell: what this is, and the version of its layout.
const MAGIC: u64 = 0x4d52_434f_4d50_0001;

/// Cells before the counters: magic, number of counters.
const HEAD: usize = 2;

/// Bound on the counters that a reader accepts: more than any version will have.
const MAX_COUNTERS: usize = 512;

/// Bound on the bytes of the memory file that a reader needs.
pub const MAX_BYTES: usize = (HEAD + MAX_COUNTERS) * 8;

macro_rules! counters {
    ($($variant:ident $name:literal $help:literal,)*) => {
        /// Counters. The order is the layout: new ones go to the end.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter {
            $(#[doc = $help] $variant,)*
        }

        impl Counter {
            /// All counters, in the order of the cells.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The word for it in JSON and metrics.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Description of the counter, with its unit.
            #[must_use]
            pub fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)* }
            }
        }
    };
}

counters! {
    Streams "streams" "Streams taken over from zlib.",
    Finished "finished" "Streams of those that were completed.",
    Ended "ended" "Streams of those for which deflateEnd was called.",
    IsalChunks "isal_chunks" "Chunks compressed by ISA-L.",
    IsalIn "isal_in_bytes" "Bytes that ISA-L compressed.",
    IsalOut "isal_out_bytes" "Bytes that ISA-L wrote.",
    IsalNanos "isal_nanoseconds" "Time in ISA-L, nanoseconds.",
    LibdeflateChunks "libdeflate_chunks" "Chunks compressed by libdeflate.",
    LibdeflateIn "libdeflate_in_bytes" "Bytes that libdeflate compressed.",
    LibdeflateOut "libdeflate_out_bytes" "Bytes that libdeflate wrote.",
    LibdeflateNanos "libdeflate_nanoseconds" "Time in libdeflate, nanoseconds.",
    StoredChunks "stored_chunks" "Chunks sent as they are, since compression would make them longer.",
    StoredIn "stored_in_bytes" "Bytes sent as they are.",
    StoredOut "stored_out_bytes" "Bytes of those with the headers of their blocks.",
    StoredNanos "stored_nanoseconds" "Time in storing, nanoseconds.",
    SystemChunks "system_chunks" "Calls of the system's zlib for streams that were taken over.",
    SystemIn "system_in_bytes" "Bytes of those that the system's zlib compressed.",
    SystemOut "system_out_bytes" "Bytes of those that the system's zlib wrote.",
    SystemNanos "system_nanoseconds" "Time of those in the system's zlib, nanoseconds.",
    Verified "verified" "Chunks that were decompressed and compared.",
    VerifyNanos "verify_nanoseconds" "Time in verification, nanoseconds.",
    WrongIsal "wrong_isal" "Wrong outputs of ISA-L; from the first one on it is not used.",
    WrongLibdeflate "wrong_libdeflate" "Wrong outputs of libdeflate; from the first one on it is not used.",
    FailedIsal "failed_isal" "Errors of ISA-L.",
    FailedLibdeflate "failed_libdeflate" "Errors of libdeflate.",
    Flushed "fallback_flush" "Streams that went on with the system's zlib since the server flushed them.",
    MoreMemory "fallback_memory" "Allocations of the system's zlib beyond the memory of the stream.",
    ForwardedFormat "forwarded_format" "Streams left to zlib: not in the format of the server's responses.",
    ForwardedLevel "forwarded_level" "Streams left to zlib: level 0, or a strategy.",
    ForwardedMemory "forwarded_memory" "Streams left to zlib: no memory for the stream.",
    ForwardedEngines "forwarded_engines" "Streams left to zlib: no engine, or all are in quarantine.",
    ForwardedCall "forwarded_call" "Streams given back to zlib: the server called a function that needs it.",
    Panics "panics" "Faults of this library that were caught; the stream failed.",
    QatChunks "qat_chunks" "Chunks compressed by a QAT card.",
    QatIn "qat_in_bytes" "Bytes that a QAT card compressed.",
    QatOut "qat_out_bytes" "Bytes that a QAT card wrote.",
    QatNanos "qat_nanoseconds" "Time from a request to a QAT card to its answer, nanoseconds.",
    WrongQat "wrong_qat" "Wrong outputs of a QAT card; from the first one on it is not used.",
    FailedQat "failed_qat" "Errors of a QAT card or of its library.",
    QatAway "qat_away" "Chunks for which there was no QAT card: none, still starting, or failed.",
    QatBusy "qat_busy" "Chunks for which a QAT card had no room.",
    QatLate "qat_late" "Chunks that a QAT card did not answer in time.",
    QatRestarts "qat_restarts" "Starts of the library for QAT cards after the first in its process.",
}

/// Kind of the engine that compressed a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EngineKind {
    /// Intel's ISA-L, loaded at run time.
    Isal,
    /// libdeflate, linked.
    Libdeflate,
    /// An Intel QAT card.
    Qat,
    /// No compression: the bytes as they are, in stored blocks.
    Stored,
    /// The zlib of the system, for streams that are flushed.
    System,
}

impl EngineKind {
    /// Every kind, in the order of tables.
    pub const ALL: [Self; 5] =
        [Self::Isal, Self::Libdeflate, Self::Qat, Self::Stored, Self::System];

    /// The word for it in settings, counters and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Isal => "isal",
            Self::Libdeflate => "libdeflate",
            Self::Qat => "qat",
            Self::Stored => "stored",
            Self::System => "system",
        }
    }
}

/// Names of the counters of one engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineCounters {
    /// Chunks that the engine compressed.
    pub chunks: Counter,
    /// Bytes in.
    pub input: Counter,
    /// Bytes out.
    pub output: Counter,
    /// Time in the engine, ns.
    pub nanos: Counter,
}

impl EngineCounters {
    /// Counters of an engine.
    #[must_use]
    pub fn of(engine: EngineKind) -> Self {
        #[rustfmt::skip]
        let [chunks, input, output, nanos] = match engine {
            EngineKind::Isal => [Counter::IsalChunks, Counter::IsalIn, Counter::IsalOut, Counter::IsalNanos],
            EngineKind::Libdeflate => [Counter::LibdeflateChunks, Counter::LibdeflateIn, Counter::LibdeflateOut, Counter::LibdeflateNanos],
            EngineKind::Qat => [Counter::QatChunks, Counter::QatIn, Counter::QatOut, Counter::QatNanos],
            EngineKind::Stored => [Counter::StoredChunks, Counter::StoredIn, Counter::StoredOut, Counter::StoredNanos],
            EngineKind::System => [Counter::SystemChunks, Counter::SystemIn, Counter::SystemOut, Counter::SystemNanos],
        };
        Self { chunks, input, output, nanos }
    }
}

/// Bytes of the memory file.
pub const BYTES: usize = (HEAD + Counter::ALL.len()) * 8;

/// The cells, shared with other threads and processes.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    cells: &'static [AtomicU64],
}

impl Counters {
    /// Counters on memory of [`BYTES`] bytes.
    ///
    /// # Panics
    /// If there are fewer cells.
    #[must_use]
    pub fn on(cells: &'static [AtomicU64]) -> Self {
        assert!(cells.len() * 8 >= BYTES, "too few cells");
        cells[0].store(MAGIC, Ordering::Relaxed);
        cells[1].store(Counter::ALL.len() as u64, Ordering::Relaxed);
        Self { cells }
    }

    /// Counters on memory of this process, which stays allocated.
    #[must_use]
    pub fn private() -> Self {
        let cells: Vec<AtomicU64> = (0..BYTES / 8).map(|_| AtomicU64::new(0)).collect();
        Self::on(cells.leak())
    }

    /// Wraps at 2^64; any process that shares the cells may add.
    pub fn add(&self, counter: Counter, amount: u64) {
        self.cells[HEAD + counter as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds what an engine did.
    pub fn add_chunk(&self, engine: EngineKind, input: usize, output: usize, took: Duration) {
        let of = EngineCounters::of(engine);
        self.add(of.chunks, 1);
        self.add(of.input, input as u64);
        self.add(of.output, output as u64);
        self.add(of.nanos, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The sum over the processes that share the cells.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.cells[HEAD + counter as usize].load(Ordering::Relaxed)
    }

    /// All counters now.
    #[must_use]
    pub fn snapshot(&self) -> CounterSnapshot {
        let values = Counter::ALL.iter().map(|counter| self.get(*counter));
        CounterSnapshot { values: values.collect() }
    }

    /// Whether an engine has given a wrong output, in this process or in one that shares the cells.
    #[must_use]
    pub fn is_quarantined(&self, engine: EngineKind) -> bool {
        match engine {
            EngineKind::Isal => self.get(Counter::WrongIsal) > 0,
            EngineKind::Libdeflate => self.get(Counter::WrongLibdeflate) > 0,
            EngineKind::Qat => self.get(Counter::WrongQat) > 0,
            EngineKind::Stored | EngineKind::System => false,
        }
    }
}

/// The counters of another process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterSnapshot {
    values: Vec<u64>,
}

impl CounterSnapshot {
    /// Reads the memory file of a process, which may be of another version of Millrace. `None` if it is something else.
    #[must_use]
    pub fn parse(memory: &[u8]) -> Option<Self> {
        let mut cells = memory
            .chunks_exact(8)
            .map(|cell| u64::from_ne_bytes(cell.try_into().unwrap_or_default()));
        if cells.next()? != MAGIC {
            return None;
        }
        let count = usize::try_from(cells.next()?).ok()?;
        if count > MAX_COUNTERS {
            return None;
        }
        let values: Vec<u64> = cells.take(count).collect();
        (values.len() == count).then_some(Self { values })
    }

    /// A counter; 0 if the other version does not have it.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.values.get(counter as usize).copied().unwrap_or(0)
    }

    /// Bytes before and after compression, of all engines.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        EngineKind::ALL.into_iter().map(EngineCounters::of).fold((0, 0), |(input, output), of| {
            (input + self.get(of.input), output + self.get(of.output))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(counters: &Counters) -> Vec<u8> {
        let cells = counters.cells.iter();
        cells.flat_map(|cell| cell.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }

    #[test]
    fn snapshot_has_what_was_counted() {
        let counters = Counters::private();
        counters.add(Counter::Streams, 3);
        counters.add_chunk(EngineKind::Isal, 100, 30, Duration::from_nanos(7));
        let read = CounterSnapshot::parse(&memory(&counters)).expect("counters");
        assert_eq!(read.get(Counter::Streams), 3);
        assert_eq!(read.get(Counter::IsalNanos), 7);
        assert_eq!(read.bytes(), (100, 30));
        assert_eq!(read.get(Counter::Panics), 0);
    }

    #[test]
    fn wrong_output_quarantines_that_engine_only() {
        let counters = Counters::private();
        counters.add(Counter::WrongIsal, 1);
        assert!(counters.is_quarantined(EngineKind::Isal));
        assert!(!counters.is_quarantined(EngineKind::Libdeflate));
    }

    #[test]
    fn other_memory_is_refused_and_other_versions_are_read() {
        let counters = Counters::private();
        let whole = memory(&counters);
        for length in 0..whole.len() {
            assert_eq!(CounterSnapshot::parse(&whole[..length]), None, "{length}");
        }
        assert_eq!(CounterSnapshot::parse(&[0; 64]), None);
        let mut older = whole[..(HEAD + 4) * 8].to_vec();
        older[8..16].copy_from_slice(&4_u64.to_ne_bytes());
        assert_eq!(CounterSnapshot::parse(&older).expect("counters").get(Counter::Panics), 0);
        let mut absurd = whole;
        absurd[8..16].copy_from_slice(&u64::MAX.to_ne_bytes());
        assert_eq!(CounterSnapshot::parse(&absurd), None);
    }

    #[test]
    fn counter_names_are_distinct() {
        let mut names: Vec<&str> = Counter::ALL.iter().map(|counter| counter.name()).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
