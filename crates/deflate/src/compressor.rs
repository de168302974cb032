// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The engines of a thread: each chunk goes to the one that is chosen for it, is verified, and to another if that
//! fails.

use std::time::Instant;

use millrace_edge::compression::{Counter, Counters, EngineKind};

use crate::blocks::{self, FINAL_EMPTY};
use crate::choice::choose;
use crate::engine::{Chunk, ChunkEnd, Engine, EngineError};
use crate::isal::Isal;
use crate::libdeflate::{Decompressor, Libdeflate};
use crate::qat::QatEngine;
use crate::settings::{ChunkVerification, CompressionSettings, DeviceUse};

/// One chunk in this number is verified where verification costs about as much as half of the gain.
const VERIFY_ONE_IN: u32 = 64;

/// Lowest level at which verifying all of libdeflate's output takes about a tenth of the compression time.
const MIN_VERIFIED_LEVEL: u8 = 2;

/// Shortest length at which it does, in bytes. For shorter chunks, building the decompressor's tables alone takes a
/// quarter of the compression time.
const MIN_VERIFIED_LEN: usize = 32 * 1024;

/// The engines of one thread. Nothing of a stream stays in it between two calls.
#[derive(Debug)]
pub struct Compressor {
    settings: CompressionSettings,
    counters: Counters,
    engines: Engines,
    verifier: Option<Verifier>,
    /// Chunks since the last sample.
    unsampled: u32,
}

/// The engines of a [`Compressor`], by their places. One that is missing is passed over.
#[derive(Debug, Default)]
pub struct Engines {
    /// Engine for level 1, packed bytes, and all levels with the goal `cpu`.
    pub isal: Option<Box<dyn Engine>>,
    /// Engine for the other levels.
    pub libdeflate: Option<Box<dyn Engine>>,
    /// The device, for chunks that are long enough.
    pub qat: Option<Box<dyn Engine>>,
}

impl std::fmt::Debug for dyn Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind().name())
    }
}

impl Compressor {
    /// A compressor with libdeflate, and with ISA-L and a device where they are given; the settings may take out each.
    #[must_use]
    pub fn new(
        settings: CompressionSettings,
        counters: Counters,
        isal: Option<Isal>,
        qat: Option<QatEngine>,
    ) -> Self {
        let engines = Engines {
            isal: isal.map(|isal| Box::new(isal) as Box<dyn Engine>),
            libdeflate: Some(Box::new(Libdeflate::default())),
            qat: qat.map(|qat| Box::new(qat) as Box<dyn Engine>),
        };
        Self::with_engines(settings, counters, engines)
    }

    /// A compressor with other engines in their places.
    #[must_use]
    pub fn with_engines(
        settings: CompressionSettings,
        counters: Counters,
        engines: Engines,
    ) -> Self {
        let processor = settings.device != DeviceUse::Only;
        Self {
            settings,
            counters,
            engines: Engines {
                isal: engines.isal.filter(|_| settings.isal && processor),
                libdeflate: engines.libdeflate.filter(|_| settings.libdeflate && processor),
                qat: engines.qat.filter(|_| settings.device != DeviceUse::Off),
            },
            verifier: Verifier::new(),
            unsampled: 0,
        }
    }

    /// Whether there is an engine for new streams. Where the device alone may compress, streams are taken without it,
    /// too, and sent as they are.
    #[must_use]
    pub fn is_useful(&self) -> bool {
        let Engines { isal, libdeflate, qat } = &self.engines;
        self.settings.device == DeviceUse::Only
            || [isal, libdeflate, qat]
                .into_iter()
                .flatten()
                .any(|engine| !self.counters.is_quarantined(engine.kind()))
    }

    /// Appends the chunk to `output` as raw deflate blocks that end at a byte: at most [`blocks::stored_len`] bytes.
    pub fn compress(&mut self, chunk: &Chunk<'_>, output: &mut Vec<u8>) {
        if chunk.input.is_empty() && chunk.end == ChunkEnd::Final {
            output.extend(FINAL_EMPTY);
            return;
        }
        let device = match self.settings.device {
            DeviceUse::Off => false,
            DeviceUse::Failover => chunk.input.len() >= self.settings.device_min,
            DeviceUse::Only => true,
        };
        if device && self.engines.qat.is_none() {
            self.counters.add(Counter::QatAway, 1);
        }
        let done = !chunk.input.is_empty()
            && (device && self.attempt(Place::Qat, chunk, output) == Attempt::Done
                || self.by_processor(chunk, output));
        if !done {
            let start = Instant::now();
            let before = output.len();
            blocks::store(chunk.input, chunk.end, output);
            let written = output.len() - before;
            self.counters.add_chunk(
                EngineKind::Stored,
                chunk.input.len(),
                written,
                start.elapsed(),
            );
        }
    }

    /// Appends what the chosen engine of the processor makes of the chunk. False if none made it shorter.
    fn by_processor(&mut self, chunk: &Chunk<'_>, output: &mut Vec<u8>) -> bool {
        for choice in choose(chunk.level, self.settings.goal, chunk.input) {
            let chunk = Chunk { level: choice.level, ..*chunk };
            let result = Place::of(choice.engine)
                .map_or(Attempt::Failed, |place| self.attempt(place, &chunk, output));
            match result {
                Attempt::Done => return true,
                Attempt::TooLong if choice.or_stored => return false,
                Attempt::TooLong | Attempt::Failed => {}
            }
        }
        false
    }

    /// Appends what the engine in this place makes of the chunk, or leaves `output` as it was.
    fn attempt(&mut self, place: Place, chunk: &Chunk<'_>, output: &mut Vec<u8>) -> Attempt {
        let engine = match place {
            Place::Isal => &mut self.engines.isal,
            Place::Libdeflate => &mut self.engines.libdeflate,
            Place::Qat => &mut self.engines.qat,
        };
        let kind = place.kind();
        let Some(engine) = engine.as_mut().filter(|_| !self.counters.is_quarantined(kind)) else {
            return Attempt::Failed;
        };
        let history = if engine.uses_history() { chunk.history } else { &[] };
        let chunk = Chunk { history, ..*chunk };
        let before = output.len();
        // One byte more than stored blocks take would be too long.
        output.resize(before + blocks::stored_len(chunk.input.len(), chunk.end), 0);
        let start = Instant::now();
        let result = engine.compress(&chunk, &mut output[before..]);
        let took = start.elapsed();
        let length = match result {
            Ok(length) => length,
            Err(error) => {
                output.truncate(before);
                let Some(reason) = place.reason(error) else {
                    return Attempt::TooLong;
                };
                self.counters.add(reason, 1);
                return Attempt::Failed;
            }
        };
        output.truncate(before + length);
        if !self.is_right(kind, &chunk, &output[before..]) {
            self.counters.add(place.wrong(), 1);
            output.truncate(before);
            return Attempt::Failed;
        }
        self.counters.add_chunk(kind, chunk.input.len(), length, took);
        Attempt::Done
    }

    /// Verifies the output, if its turn has come.
    fn is_right(&mut self, kind: EngineKind, chunk: &Chunk<'_>, output: &[u8]) -> bool {
        let long = chunk.input.len() >= MIN_VERIFIED_LEN;
        let all = kind == EngineKind::Libdeflate && chunk.level >= MIN_VERIFIED_LEVEL && long;
        let due = match self.settings.verify {
            // Nothing else knows what a device did.
            _ if kind == EngineKind::Qat => true,
            ChunkVerification::Off => false,
            ChunkVerification::All => true,
            ChunkVerification::Auto if all => true,
            ChunkVerification::Auto => {
                self.unsampled = (self.unsampled + 1) % VERIFY_ONE_IN;
                self.unsampled == 0
            }
        };
        let Some(verifier) = self.verifier.as_mut().filter(|_| due) else {
            // Without memory to verify it, a device's output is not used.
            return kind != EngineKind::Qat;
        };
        let start = Instant::now();
        let right = verifier.check(chunk, output);
        self.counters.add(Counter::Verified, 1);
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.counters.add(Counter::VerifyNanos, nanos);
        right
    }
}

/// Outcome of an engine's attempt at a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Done,
    /// The output would be longer than stored blocks.
    TooLong,
    /// There is no such engine, it failed, or its output was wrong.
    Failed,
}

/// The places of engines in a [`Compressor`]. Unlike [`EngineKind`] it has no stored blocks and no zlib, which
/// neither fail nor are wrong.
#[derive(Clone, Copy, Debug)]
enum Place {
    Isal,
    Libdeflate,
    Qat,
}

impl Place {
    fn of(kind: EngineKind) -> Option<Self> {
        match kind {
            EngineKind::Isal => Some(Self::Isal),
            EngineKind::Libdeflate => Some(Self::Libdeflate),
            EngineKind::Qat => Some(Self::Qat),
            EngineKind::Stored | EngineKind::System => None,
        }
    }

    fn kind(self) -> EngineKind {
        match self {
            Self::Isal => EngineKind::Isal,
            Self::Libdeflate => EngineKind::Libdeflate,
            Self::Qat => EngineKind::Qat,
        }
    }

    /// Counter of an error. `None` if the input does not compress.
    fn reason(self, error: EngineError) -> Option<Counter> {
        Some(match error {
            EngineError::NoRoom => return None,
            EngineError::Away => Counter::QatAway,
            EngineError::Busy => Counter::QatBusy,
            EngineError::Late => Counter::QatLate,
            EngineError::Failed(_) | EngineError::NoMemory => match self {
                Self::Isal => Counter::FailedIsal,
                Self::Libdeflate => Counter::FailedLibdeflate,
                Self::Qat => Counter::FailedQat,
            },
        })
    }

    fn wrong(self) -> Counter {
        match self {
            Self::Isal => Counter::WrongIsal,
            Self::Libdeflate => Counter::WrongLibdeflate,
            Self::Qat => Counter::WrongQat,
        }
    }
}

/// Decompresses and compares, into memory of exactly the length of the input.
#[derive(Debug)]
struct Verifier {
    decompressor: Decompressor,
    stream: Vec<u8>,
    back: Vec<u8>,
}

impl Verifier {
    fn new() -> Option<Self> {
        Some(Self { decompressor: Decompressor::new()?, stream: Vec::new(), back: Vec::new() })
    }

    fn check(&mut self, chunk: &Chunk<'_>, output: &[u8]) -> bool {
        let wanted = chunk.history.len() + chunk.input.len();
        self.back.resize(wanted, 0);
        let stream = if chunk.end == ChunkEnd::Final && chunk.history.is_empty() {
            output
        } else {
            // A separate stream: the history as stored blocks, the chunk, an end.
            self.stream.clear();
            if !chunk.history.is_empty() {
                blocks::store(chunk.history, ChunkEnd::Open, &mut self.stream);
            }
            self.stream.extend(output);
            if chunk.end == ChunkEnd::Open {
                self.stream.extend(FINAL_EMPTY);
            }
            &self.stream
        };
        self.decompressor.fills(stream, &mut self.back)
            && self.back[chunk.history.len()..] == *chunk.input
    }
}
