// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A run saved by `millrace bench tls --local`: what a server gains that computes its handshakes itself.
//!
//! The reader is lenient about fields that it does not need, and bounded: the file comes from a user.

use serde::Deserialize;
use thiserror::Error;

/// Bound on the file, in bytes: a run with a hundred rounds of every server has about two megabytes.
pub const MAX_BYTES: usize = 16 << 20;

/// Name of the benchmark in the file.
const BENCHMARK: &str = "tls-local";

/// Bound on comparisons: a run has a few dozen.
const MAX_COMPARISONS: usize = 1_000;

/// Longest text that is taken over from the file, in characters.
const MAX_TEXT: usize = 80;

/// A saved run.
#[derive(Clone, Debug, PartialEq)]
pub struct HandshakeRun {
    processor: Option<String>,
    date: String,
    openssl: String,
    comparisons: Vec<Comparison>,
}

/// Why a file is not a saved run.
#[derive(Debug, Error)]
pub enum HandshakeRunError {
    /// Larger than a saved run can be.
    #[error(
        "it is larger than any saved run; save one with `millrace bench tls --local --output FILE`"
    )]
    TooLarge,
    /// Not JSON, or JSON of another shape.
    #[error("it is not a run saved by `millrace bench tls --local --output FILE`: {0}")]
    Shape(#[from] serde_json::Error),
    /// The report of another benchmark.
    #[error("it is not a run saved by `millrace bench tls --local --output FILE`: it is of {0:?}")]
    Benchmark(String),
    /// The file compares no servers.
    #[error("it compares no servers; run `millrace bench tls --local --output FILE`")]
    Empty,
}

#[derive(Deserialize)]
struct SavedRun {
    benchmark: String,
    #[serde(default)]
    machine: serde_json::Value,
    #[serde(default)]
    plan: serde_json::Value,
    #[serde(default)]
    comparisons: Vec<serde_json::Value>,
}

/// A server against its peer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Comparison {
    question: String,
    ours: MeasuredServer,
    ratio: Ratio,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct MeasuredServer {
    server: String,
    key: String,
    group: String,
}

/// Geometric mean over the rounds, and the range that holds it with a probability of 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
struct Ratio {
    mean: f64,
    low: f64,
    high: f64,
}

/// Answer of a run to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MeasuredGain {
    /// Less CPU time, in words.
    Less(String),
    /// No less: the range reaches 1.
    None(String),
}

impl HandshakeRun {
    /// Reads a saved run.
    pub fn parse(bytes: &[u8]) -> Result<Self, HandshakeRunError> {
        if bytes.len() > MAX_BYTES {
            return Err(HandshakeRunError::TooLarge);
        }
        let saved: SavedRun = serde_json::from_slice(bytes)?;
        if saved.benchmark != BENCHMARK {
            return Err(HandshakeRunError::Benchmark(plain(&saved.benchmark)));
        }
        if saved.comparisons.len() > MAX_COMPARISONS {
            return Err(HandshakeRunError::TooLarge);
        }
        let comparisons: Vec<Comparison> = saved
            .comparisons
            .into_iter()
            .filter_map(|comparison| serde_json::from_value(comparison).ok())
            .filter(|comparison: &Comparison| comparison.ratio.is_valid())
            .collect();
        if comparisons.is_empty() {
            return Err(HandshakeRunError::Empty);
        }
        let text = |value: &serde_json::Value, key: &str| value.get(key)?.as_str().map(plain);
        Ok(Self {
            processor: text(&saved.machine, "cpu"),
            date: text(&saved.machine, "date").unwrap_or_else(|| "an unknown day".to_owned()),
            openssl: text(&saved.plan, "openssl").unwrap_or_default(),
            comparisons,
        })
    }

    /// Whether the run is from this processor; so it counts where either is unknown.
    pub(crate) fn is_from(&self, model: Option<&str>) -> bool {
        match (&self.processor, model) {
            (Some(own), Some(model)) => own == &plain(model),
            _ => true,
        }
    }

    /// The answer to a question about a server: that about P-256 and X25519, if there are several.
    pub(crate) fn gain(&self, question: &str, server: &str) -> Option<MeasuredGain> {
        let all: Vec<&Comparison> = self
            .comparisons
            .iter()
            .filter(|one| one.question == question && one.ours.server == server)
            .collect();
        let usual = all.iter().find(|one| one.ours.key == "p-256" && one.ours.group == "x25519");
        let found = *usual.or_else(|| all.first())?;
        let MeasuredServer { key, group, .. } = &found.ours;
        let words = format!(
            "measured here on {} with {}: {} of the CPU time per handshake ({server}, {}, {})",
            self.date.split('T').next().unwrap_or_default(),
            self.openssl.split(" (").next().unwrap_or_default(),
            found.ratio.show(),
            plain(key),
            plain(group),
        );
        Some(if found.ratio.high < 1.0 {
            MeasuredGain::Less(words)
        } else {
            MeasuredGain::None(words)
        })
    }
}

impl Ratio {
    fn is_valid(&self) -> bool {
        let Self { mean, low, high } = *self;
        [mean, low, high].iter().all(|ratio| ratio.is_finite() && *ratio > 0.0)
    }

    /// The change in per cent, with its interval: `-15 % (-18 to -12)`
    fn show(self) -> String {
        let [mean, low, high] = [self.mean, self.low, self.high].map(|ratio| (ratio - 1.0) * 100.0);
        format!("{mean:+.0} % ({low:+.0} to {high:+.0})")
    }
}

/// Printable text with single blanks, cut to a bound.
fn plain(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    text.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mean: f64, high: f64) -> Vec<u8> {
        serde_json::json!({
            "benchmark": "tls-local", "machine": {"cpu": "A  CPU", "date": "2026-11-22T23:00:00Z"},
            "plan": {"openssl": "OpenSSL 3.0.19 27 Jan 2026 (Library: OpenSSL 3.0.19)"},
            "comparisons": [
                {"question": "local", "ratio": {"mean": 0.5, "low": 0.4, "high": 0.6},
                 "ours": {"server": "nginx", "key": "rsa-2048", "group": "x25519"}},
                {"question": "local", "ratio": {"mean": mean, "low": 0.8, "high": high},
                 "ours": {"server": "nginx", "key": "p-256", "group": "x25519", "threads": 1}},
                {"question": "local", "ratio": {"mean": -1, "low": 0, "high": 0}}, 7, null,
            ],
        })
        .to_string()
        .into_bytes()
    }

    #[test]
    fn gain_is_that_of_the_usual_certificate_and_has_its_range() {
        let read = HandshakeRun::parse(&run(0.85, 0.88)).expect("a run");
        assert!(read.is_from(Some("A CPU")) && read.is_from(None) && !read.is_from(Some("B")));
        let Some(MeasuredGain::Less(words)) = read.gain("local", "nginx") else {
            panic!("a gain");
        };
        for part in ["2026-11-22 with OpenSSL 3.0.19", "-15 % (-20 to -12)", "p-256, x25519"] {
            assert!(words.contains(part), "{part}: {words}");
        }
        assert_eq!(read.gain("local", "haproxy"), None);
        let no_gain = HandshakeRun::parse(&run(0.99, 1.02)).expect("a run");
        assert!(matches!(no_gain.gain("local", "nginx"), Some(MeasuredGain::None(_))));
    }

    #[test]
    fn files_that_are_no_saved_run_are_refused() {
        for bad in [
            &b""[..],
            b"{}",
            b"[]",
            b"null",
            b"\0\0\0",
            br#"{"benchmark": 7}"#,
            br#"{"benchmark": "tls"}"#,
            br#"{"benchmark": "tls-local"}"#,
            br#"{"benchmark": "tls-local", "comparisons": {}}"#,
            br#"{"benchmark": "tls-local", "comparisons": [{"question": "local"}]}"#,
        ] {
            assert!(HandshakeRun::parse(bad).is_err(), "{:?}", bad.escape_ascii().to_string());
        }
        let large = vec![b' '; MAX_BYTES + 1];
        assert!(matches!(HandshakeRun::parse(&large), Err(HandshakeRunError::TooLarge)));
        let rows = |count: usize| {
            let rows = vec!["0"; count].join(",");
            let text = format!(r#"{{"benchmark": "{BENCHMARK}", "comparisons": [{rows}]}}"#);
            HandshakeRun::parse(text.as_bytes())
        };
        assert!(matches!(rows(MAX_COMPARISONS), Err(HandshakeRunError::Empty)));
        assert!(matches!(rows(MAX_COMPARISONS + 1), Err(HandshakeRunError::TooLarge)));
    }
}
