// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A run saved by `millrace bench sizes --output FILE`: which cipher is faster at a packet size.
//!
//! The reader is lenient about fields that it does not need, and bounded: the file comes from a user.

use std::fmt;

use serde::Deserialize;
use thiserror::Error;

use super::algorithm::Cipher;

/// Bound on the file, in bytes: the longest run has a few megabytes.
pub const MAX_BYTES: usize = 64 << 20;

/// Name of the file format, without its version.
const FORMAT: &str = "millrace-bench-sizes-";

/// Bound on rows: a run has a few thousand.
const MAX_ROWS: usize = 100_000;

/// A saved measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    described: String,
    processor: Option<String>,
    rows: Vec<Row>,
}

/// Why a file is not a saved measurement.
#[derive(Debug, Error)]
pub enum SizesError {
    /// Larger than a saved run can be.
    #[error("it is larger than any saved run; save one with `millrace bench sizes --output FILE`")]
    TooLarge,
    /// Not JSON, or JSON of another shape.
    #[error("it is not a run saved by `millrace bench sizes --output FILE`: {0}")]
    Shape(#[from] serde_json::Error),
    /// JSON with another format name.
    #[error("it is not a run saved by `millrace bench sizes --output FILE`: its format is {0:?}")]
    Format(String),
    /// The file contains no measured cipher.
    #[error(
        "it has no measured ciphers; run `millrace bench sizes --output FILE` over the ciphers"
    )]
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

/// Result of a measurement for two ciphers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SizeVerdict {
    /// The first is faster: the ranges do not overlap.
    Faster(String),
    /// The second is faster: the ranges do not overlap.
    Slower(String),
    /// The ranges of the rounds overlap; the sentence has the numbers.
    NoDifference(String),
    /// The run measured at most one of them.
    NotBoth,
    /// The run comes from another processor.
    OtherProcessor,
}

impl fmt::Display for SizeVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Faster(times) | Self::Slower(times) => f.write_str(times),
            Self::NoDifference(times) => {
                write!(f, "{times}: the ranges overlap, there is no measurable difference")
            }
            Self::NotBoth => {
                f.write_str("the saved run does not have both ciphers and decides nothing")
            }
            Self::OtherProcessor => {
                f.write_str("the saved run is from another processor and decides nothing")
            }
        }
    }
}

impl Sizes {
    /// Reads a saved run.
    pub fn parse(bytes: &[u8]) -> Result<Self, SizesError> {
        if bytes.len() > MAX_BYTES {
            return Err(SizesError::TooLarge);
        }
        let saved: Saved = serde_json::from_slice(bytes)?;
        if !saved.format.starts_with(FORMAT) {
            return Err(SizesError::Format(saved.format.chars().take(40).collect()));
        }
        if saved.measured.len() > MAX_ROWS {
            return Err(SizesError::TooLarge);
        }
        let rows: Vec<Row> = saved
            .measured
            .into_iter()
            .filter_map(|row| serde_json::from_value(row).ok())
            .filter(|row: &Row| row.range().is_some() && row.size > 0)
            .collect();
        if rows.is_empty() {
            return Err(SizesError::Empty);
        }
        // The second line names versions.
        let described = saved
            .described
            .as_str()
            .unwrap_or("an unnamed machine")
            .lines()
            .next()
            .unwrap_or_default();
        let processor = saved.machine.get("cpu").and_then(|cpu| cpu.as_str());
        Ok(Self {
            processor: processor.map(words),
            described: described.chars().filter(|c| !c.is_control()).take(160).collect(),
            rows,
        })
    }

    /// The run's description of its machine.
    #[must_use]
    pub fn described(&self) -> &str {
        &self.described
    }

    /// Compares two ciphers, both with the system's OpenSSL, at the measured size nearest to a packet.
    /// `model` is this machine's processor; if it or that of the run is unknown, they count as equal.
    pub(crate) fn compare(
        &self,
        model: Option<&str>,
        first: Cipher,
        second: Cipher,
        packet: u32,
    ) -> SizeVerdict {
        // The servers of this machine load OpenSSL; the run also has it with masked instructions.
        const LIBRARY: &str = "openssl";
        if let (Some(own), Some(model)) = (&self.processor, model)
            && *own != words(model)
        {
            return SizeVerdict::OtherProcessor;
        }
        let of = |cipher: Cipher, size: u64| {
            // The run measures only AEAD.
            let name = cipher.is_aead().then(|| cipher.names().name.to_ascii_lowercase())?;
            let mut rows = self.rows.iter();
            let row = rows.find(|row| {
                row.algorithm == name && row.size == size && row.implementation == LIBRARY
            })?;
            Some((name, row.range()?))
        };
        let mut sizes: Vec<u64> = self.rows.iter().map(|row| row.size).collect();
        sizes.sort_by_key(|size| (size.abs_diff(u64::from(packet)), *size));
        sizes.dedup();
        let found =
            sizes.into_iter().find_map(|size| Some((size, of(first, size)?, of(second, size)?)));
        let Some((size, (first, one), (second, other))) = found else {
            return SizeVerdict::NotBoth;
        };
        let times =
            format!("measured at {size} bytes: {first} {}, {second} {}", one.show(), other.show());
        if one.max < other.min {
            SizeVerdict::Faster(times)
        } else if other.max < one.min {
            SizeVerdict::Slower(times)
        } else {
            SizeVerdict::NoDifference(times)
        }
    }
}

/// A processor's name with single blanks; makers pad theirs.
fn words(name: &str) -> String {
    let words: Vec<&str> = name.split_whitespace().collect();
    words.join(" ")
}

impl Row {
    fn range(&self) -> Option<Range> {
        let mut micros = self.micros.clone();
        if micros.iter().any(|time| !time.is_finite() || *time <= 0.0) {
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
    fn overlapping_ranges_are_no_difference() {
        let verdict = |gcm, chacha| {
            let sizes = Sizes::parse(&saved(gcm, chacha)).expect("a run");
            sizes.compare(None, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305, 1400)
        };
        assert!(matches!(verdict([1.0, 1.1, 1.2], [2.0, 2.1, 2.2]), SizeVerdict::Faster(_)));
        assert!(matches!(verdict([2.0, 2.1, 2.2], [1.0, 1.1, 1.2]), SizeVerdict::Slower(_)));
        assert!(matches!(verdict([1.0, 2.0, 3.0], [2.5, 2.6, 2.7]), SizeVerdict::NoDifference(_)));
    }

    #[test]
    fn files_that_are_no_saved_run_are_refused() {
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
        assert!(matches!(Sizes::parse(&vec![b' '; MAX_BYTES + 1]), Err(SizesError::TooLarge)));
        let rows = |count: usize| {
            let rows = vec!["0"; count].join(",");
            Sizes::parse(format!(r#"{{"format": "{FORMAT}1", "measured": [{rows}]}}"#).as_bytes())
        };
        assert!(matches!(rows(MAX_ROWS), Err(SizesError::Empty)));
        assert!(matches!(rows(MAX_ROWS + 1), Err(SizesError::TooLarge)));
        let deep = "[".repeat(100_000);
        assert!(Sizes::parse(deep.as_bytes()).is_err());
    }
}
