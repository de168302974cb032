// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The suite that every backend passes, real or simulated:
//!
//! - `driver`: runs single operations on a backend, as a worker does;
//! - `known`: Wycheproof and RFC vectors, bit for bit;
//! - `signatures`: signs all messages of Wycheproof with our own keys and verifies with other libraries;
//! - `misuse`: wrong lengths, wrong keys, unknown keys, numbers out of range;
//! - `batching`: queues with mixed keys and operations, capacity, closing a key in flight;
//! - `comparison`: random operations on every key, compared with a reference backend if there is one.
//!
//! ```text
//! conformance::run(Arc::new(Software::new()), &Options::default());
//! ```
//!
//! The suite leaves out parts whose operations the backend does not offer. Every operation that the backend
//! offers must succeed at least once with every kind of key, so a capability without a test fails the suite.
//! A file with tests that did not run also fails it. [`ConformanceReport`] counts the tests that ran.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use millrace_engine::backend::Backend;

mod batching;
mod comparison;
mod driver;
mod known;
mod misuse;
mod signatures;

pub use driver::QueueDriver;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The backend to compare with. Without one, the results of random operations are only verified.
    pub reference: Option<Arc<dyn Backend>>,
    /// Number of random operations per key.
    pub rounds: usize,
}

impl Default for Options {
    /// No reference; 20 rounds.
    fn default() -> Self {
        Self { reference: None, rounds: 20 }
    }
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConformanceReport {
    /// Tests executed, by part.
    pub executed: BTreeMap<String, usize>,
    /// Parts that the backend does not offer.
    pub left_out: Vec<String>,
}

impl ConformanceReport {
    /// Number of executed tests.
    #[must_use]
    pub fn total(&self) -> usize {
        self.executed.values().sum()
    }

    fn ran(&mut self, part: impl Into<String>, count: usize) {
        let part = part.into();
        assert!(count > 0, "{part} ran no test");
        *self.executed.entry(part).or_default() += count;
    }

    fn left_out(&mut self, part: impl Into<String>) {
        self.left_out.push(part.into());
    }
}

impl fmt::Display for ConformanceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (part, count) in &self.executed {
            writeln!(f, "{count:6}  {part}")?;
        }
        for part in &self.left_out {
            writeln!(f, "     -  {part}")?;
        }
        writeln!(f, "{:6}  in all", self.total())
    }
}

/// Runs the suite.
///
/// # Panics
/// On the first test that fails, with its name.
#[must_use]
pub fn run(backend: Arc<dyn Backend>, options: &Options) -> ConformanceReport {
    backend.probe().expect("a backend that can be used here");
    let mut driver = QueueDriver::new(backend);
    let mut report = ConformanceReport::default();
    known::run(&mut driver, &mut report);
    signatures::run(&mut driver, &mut report);
    misuse::run(&mut driver, &mut report);
    batching::run(&driver, &mut report);
    let mut reference = options.reference.clone().map(QueueDriver::new);
    comparison::run(&mut driver, reference.as_mut(), options.rounds, &mut report);
    driver.assert_all_tried();
    report
}
