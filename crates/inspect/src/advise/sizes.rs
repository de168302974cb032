// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A measurement that `millrace bench sizes --json FILE` saved: which cipher is the faster at a size.
//!
//! Read leniently (what is not needed may be anything) and in bounds: it is a file that somebody names.

use serde::Deserialize;
use thiserror::Error;

/// Bound on the file: the longest run has a few megabytes.
pub const MAX_BYTES: usize = 64 << 20;

/// What the saved form is called, up to its version.
const FORMAT: &str = "millrace-bench-sizes-";

/// Bound on rows that are looked at: a run has some thousands.
const MAX_ROWS: usize = 100_000;

/// A measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    described: String,
    processor: Option<String>,
    rows: Vec<Row>,
}

/// Why a file is no measurement.
#[derive(Debug, Error)]
pub enum SizesError {
    /// Larger than a saved run can be.
    #[error("it is larger than any saved run; save one with `millrace bench sizes --json FILE`")]
    TooLarge,
    /// No JSON, or of another shape.
    #[error("it is no run saved by `millrace bench sizes --json FILE`: {0}")]
    Shape(#[from] serde_json::Error),
    /// JSON of something else.
    #[error("it is no run saved by `millrace bench sizes --json FILE`: its format is {0:?}")]
    Format(String),
    /// Nothing in it can decide.
    #[error("it has no ciphers measured; run `millrace bench sizes --json FILE` over the ciphers")]
    Empty,
}

#[derive(Deserialize)]
struct Saved {
    format: String,
    #[serde(default)]
    described: serde_json::Value,
    #[serde(default)]
    machine: serde_json::Value,
    #[serde(default)]
    measured: Vec<serde_json::Value>,
}

/// One cipher at one size with one library.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Row {
    algorithm: String,
    size: u64,
    implementation: String,
    micros: Vec<f64>,
}

/// Microseconds: median and range.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    median: f64,
    min: f64,
    max: f64,
}

/// What a measurement says of two ciphers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The first is faster: ranges do not overlap.
    Faster(String),
    /// The second is.
    Slower(String),
    /// Ranges overlap.
    NoDifference(String),
}

impl Sizes {
    /// Reads a saved run.
    ///
    /// # Errors
    /// It is none, or nothing in it can decide.
    pub fn parse(bytes: &[u8]) -> Result<Self, SizesError> {
        if bytes.len() > MAX_BYTES {
            return Err(SizesError::TooLarge);
        }
        let saved: Saved = serde_json::from_slice(bytes)?;
        if !saved.format.starts_with(FORMAT) {
            return Err(SizesError::Format(saved.format.chars().take(40).collect()));
        }
        let rows: Vec<Row> = saved
            .measured
            .into_iter()
            .take(MAX_ROWS)
            .filter_map(|row| serde_json::from_value(row).ok())
            .filter(|row: &Row| row.range().is_some() && row.size > 0)
            .collect();
        if rows.is_empty() {
            return Err(SizesError::Empty);
        }
        // Two lines; the second names versions.
        let described = saved.described.as_str().unwrap_or("an unnamed machine");
        let described = described.lines().next().unwrap_or_default();
        let processor = saved.machine.get("cpu").and_then(|cpu| cpu.as_str());
        Ok(Self {
            processor: processor.map(words),
            described: described
                .chars()
                .filter(|c| !c.is_control())
                .take(160)
                .collect(),
            rows,
        })
    }

    /// The machine that was measured, as it was described.
    #[must_use]
    pub fn described(&self) -> &str {
        &self.described
    }

    /// Whether it was taken on such a processor; yes if either does not say which it is.
    pub(crate) fn is_of(&self, model: Option<&str>) -> bool {
        let (Some(own), Some(model)) = (&self.processor, model) else {
            return true;
        };
        *own == words(model)
    }

    /// Compares two algorithms, both with the system's OpenSSL, at the measured size that is nearest to
    /// a packet; none if either was not measured there.
    pub(crate) fn compare(&self, first: &str, second: &str, packet: u32) -> Option<Verdict> {
        // What the servers of this machine load; not the peer with the instructions masked.
        const LIBRARY: &str = "openssl";
        let of = |name: &str, size: u64| {
            let mut rows = self.rows.iter();
            let row = rows.find(|row| {
                row.algorithm == name && row.size == size && row.implementation == LIBRARY
            })?;
            row.range()
        };
        let distance = |size: u64| size.abs_diff(u64::from(packet));
        let mut sizes: Vec<u64> = self.rows.iter().map(|row| row.size).collect();
        sizes.sort_by_key(|size| (distance(*size), *size));
        sizes.dedup();
        let (size, one, other) = sizes
            .into_iter()
            .find_map(|size| Some((size, of(first, size)?, of(second, size)?)))?;
        let said = format!(
            "measured at {size} bytes: {first} {}, {second} {}",
            one.show(),
            other.show()
        );
        Some(if one.max < other.min {
            Verdict::Faster(said)
        } else if other.max < one.min {
            Verdict::Slower(said)
        } else {
            Verdict::NoDifference(said)
        })
    }
}

/// A name with single blanks: makers fill theirs up.
fn words(name: &str) -> String {
    let words: Vec<&str> = name.split_whitespace().collect();
    words.join(" ")
}

impl Row {
    fn range(&self) -> Option<Range> {
        let mut micros = self.micros.clone();
        if micros.iter().any(|one| !one.is_finite() || *one <= 0.0) {
            return None;
        }
        micros.sort_by(f64::total_cmp);
        Some(Range {
            median: *micros.get(micros.len() / 2)?,
            min: *micros.first()?,
            max: *micros.last()?,
        })
    }
}

impl Range {
    fn show(&self) -> String {
        let Self { median, min, max } = self;
        format!("{median:.2} us ({min:.2} to {max:.2})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(gcm: [f64; 3], chacha: [f64; 3]) -> Vec<u8> {
        serde_json::json!({
            "format": "millrace-bench-sizes-1", "described": "a machine\nOpenSSL", "packet": "odd",
            "measured": [
                {"algorithm": "aes-256-gcm", "size": 1420, "implementation": "openssl", "micros": gcm},
                {"algorithm": "chacha20-poly1305", "size": 1420, "implementation": "openssl", "micros": chacha},
                {"algorithm": "aes-256-gcm", "size": 16, "implementation": "openssl", "micros": [9.0]},
                {"algorithm": 7}, "text", null,
                {"algorithm": "aes-256-gcm", "size": 1400, "implementation": "openssl", "micros": []},
            ],
        })
        .to_string()
        .into_bytes()
    }

    #[test]
    fn ranges_that_overlap_are_no_difference() {
        let verdict = |gcm, chacha| {
            let sizes = Sizes::parse(&saved(gcm, chacha)).expect("a run");
            sizes.compare("aes-256-gcm", "chacha20-poly1305", 1400)
        };
        assert!(matches!(
            verdict([1.0, 1.1, 1.2], [2.0, 2.1, 2.2]),
            Some(Verdict::Faster(_))
        ));
        assert!(matches!(
            verdict([2.0, 2.1, 2.2], [1.0, 1.1, 1.2]),
            Some(Verdict::Slower(_))
        ));
        assert!(matches!(
            verdict([1.0, 2.0, 3.0], [2.5, 2.6, 2.7]),
            Some(Verdict::NoDifference(_))
        ));
    }

    #[test]
    fn what_is_no_run_is_refused() {
        for bad in [
            &b""[..],
            b"{}",
            b"[]",
            b"null",
            b"\0\0\0",
            br#"{"format": 7}"#,
            br#"{"format": "other"}"#,
            br#"{"format": "millrace-bench-sizes-1"}"#,
            br#"{"format": "millrace-bench-sizes-1", "measured": {}}"#,
            br#"{"format": "millrace-bench-sizes-1", "measured": [{"algorithm": "a", "size": -1, "implementation": "", "micros": [1]}]}"#,
        ] {
            assert!(Sizes::parse(bad).is_err(), "{:?}", bad.escape_ascii().to_string());
        }
        assert!(matches!(
            Sizes::parse(&vec![b' '; MAX_BYTES + 1]),
            Err(SizesError::TooLarge)
        ));
        let deep = "[".repeat(100_000);
        assert!(Sizes::parse(deep.as_bytes()).is_err());
    }
}
