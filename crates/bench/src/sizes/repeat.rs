// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! An operation that is made ready once and then repeated for a slice of time, whatever library computes it.

use std::time::{Duration, Instant};

use aws_lc_rs::digest;
use serde::{Deserialize, Serialize};

use crate::cores;
use crate::error::LibraryError;

/// Bytes of the hash that is compared.
const CHECK_LEN: usize = 8;

/// Bound on the operations between two readings of the clock, each of which costs 20 ns.
const MAX_BURST: u64 = 1024;

/// One operation that can be repeated.
pub(super) type RepeatedOperation = Box<dyn FnMut() -> Result<(), LibraryError>>;

/// An operation made ready.
pub(super) struct Prepared {
    /// Does the operation once.
    pub(super) run: RepeatedOperation,
    /// Output of the first operation, if every implementation must give the same.
    pub(super) output: Option<Vec<u8>>,
}

/// Computes from an input into a buffer.
pub(super) type Function = Box<dyn FnMut(&[u8], &mut Vec<u8>) -> Result<(), LibraryError>>;

impl Prepared {
    /// A function made ready for inputs of `size` bytes, with its first output, which all implementations
    /// share: a separate instance computes it, because nonces count up.
    pub(super) fn of(
        function: impl Fn() -> Result<Function, LibraryError>,
        size: usize,
    ) -> Result<Self, LibraryError> {
        let input = contents(size);
        let mut first = Vec::new();
        let mut output = Vec::new();
        function()?(&input, &mut first)?;
        let mut function = function()?;
        Ok(Self { run: Box::new(move || function(&input, &mut output)), output: Some(first) })
    }

    /// Repeats the operation for `length`.
    pub(super) fn repeat_for(&mut self, length: Duration) -> Result<TimeSlice, LibraryError> {
        let start = Instant::now();
        let cpu = cores::thread_cpu_time();
        let mut operations = 0;
        let mut burst = 1;
        loop {
            for _ in 0..burst {
                (self.run)()?;
            }
            operations += burst;
            let elapsed = start.elapsed();
            if elapsed >= length {
                return Ok(TimeSlice {
                    operations,
                    elapsed,
                    cpu: cores::thread_cpu_time().saturating_sub(cpu),
                    check: self.output.as_deref().map(check),
                });
            }
            // A burst takes at most a tenth of what is left, so that slices end when they should.
            let left = (length - elapsed).as_nanos() / 10;
            let each = (elapsed.as_nanos() / u128::from(operations)).max(1);
            burst = u64::try_from(left / each).unwrap_or(1).clamp(1, MAX_BURST);
        }
    }
}

/// The operations of one slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TimeSlice {
    pub(super) operations: u64,
    pub(super) elapsed: Duration,
    pub(super) cpu: Duration,
    /// The hash of the first output, where every implementation must give the same.
    pub(super) check: Option<String>,
}

fn check(output: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA256, output);
    let bytes = &hash.as_ref()[..CHECK_LEN];
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The contents of packets: no pattern that anything could be fast with.
fn contents(size: usize) -> Vec<u8> {
    (0..size).map(|offset| offset.wrapping_mul(167).to_le_bytes()[0]).collect()
}

/// A symmetric key with a length.
pub(super) fn key(len: usize) -> Vec<u8> {
    (0..len).map(|offset| offset.wrapping_mul(29).wrapping_add(7).to_le_bytes()[0]).collect()
}

/// Nonces that count up from one.
#[derive(Default)]
pub(super) struct Nonces(u128);

impl Nonces {
    pub(super) fn next(&mut self) -> [u8; 16] {
        self.0 += 1;
        self.0.to_be_bytes()
    }
}
