// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Short connections with TLS 1.2's RSA key exchange: a small file, from the gateway itself and through it.
//!
//! ApacheBench makes the load, because the client of the other parts refuses RSA key exchange. It counts only complete
//! responses with the right length and a good status, over the one offered protocol and cipher; its output is checked
//! once more here.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::Command;

use serde::Serialize;
use thiserror::Error;

use super::gateway::{SHORT_CIPHER, SMALL_FILE_LEN};
use super::observer::Seen;
use crate::error::BenchError;
use crate::process::{output_of, require_program};

/// Requests before a measurement, which also say how many it takes to fill its time.
pub(super) const WARM_UP_REQUESTS: u64 = 300;

/// Bounds on the requests of a measurement. ApacheBench opens some connections more than it counts, at
/// most as many as it has at a time; among fewer than these they would show in the CPU time.
pub(super) const REQUESTS: RangeInclusive<u64> = 1000..=1_000_000;

/// Source of the small file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub(super) enum ShortPath {
    /// The gateway's own disk.
    Files,
    /// A plain HTTP server behind the gateway.
    Proxy,
}

impl ShortPath {
    pub(super) const ALL: [Self; 2] = [Self::Files, Self::Proxy];
}

/// Short connections to one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Short {
    pub(super) path: ShortPath,
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SHORT_CIPHER}, {}", self.path)
    }
}

/// The figures of one load. CPU times are per request.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ShortLoad {
    pub(super) completed: u64,
    pub(super) elapsed_s: f64,
    pub(super) per_s: f64,
    pub(super) gateway_cpu_us: f64,
    pub(super) node_cpu_us: f64,
    /// Number of completed jobs by operation, from the node's counters.
    pub(super) served: BTreeMap<String, u64>,
    /// The gateway's CPU time by class.
    pub(super) seen: Option<Seen>,
}

/// ApacheBench's report on a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AbReport {
    pub(super) completed: u64,
    pub(super) elapsed_s: f64,
}

/// Requests the file `requests` times, and checks that every response came.
pub(super) fn ask(url: &str, requests: u64, concurrency: usize) -> Result<AbReport, BenchError> {
    let mut command = Command::new(need_ab()?);
    command
        .args(["-q", "-n", &requests.to_string()])
        .args(["-c", &concurrency.to_string()])
        .args(["-f", "TLS1.2", "-Z", SHORT_CIPHER])
        .arg(url);
    let text = output_of("ab", &mut command)?;
    parse(&text, requests).map_err(|problem| BenchError::Child {
        name: "ab".to_owned(),
        problem: problem.to_string(),
        log: text,
    })
}

/// ApacheBench, whose package has another name.
pub(super) fn need_ab() -> Result<PathBuf, BenchError> {
    let remedy =
        "install the package apache2-utils, or leave this part out: --parts handshakes,requests";
    require_program("ab", remedy)
}

/// Why a run of ApacheBench does not count.
#[derive(Debug, PartialEq, Error)]
enum AbFailure {
    #[error("says {field} {found:?} where {wanted} is expected")]
    Count { field: &'static str, found: Option<f64>, wanted: f64 },
    #[error("counts {0} responses that are not a success")]
    Status(String),
    #[error("used {0}")]
    Protocol(String),
    #[error("did not say how long it took")]
    Time,
}

fn parse(text: &str, requests: u64) -> Result<AbReport, AbFailure> {
    let find = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let field = |name| find(name).map(str::trim);
    let number = |name| -> Option<f64> { field(name)?.split(' ').next()?.parse().ok() };
    let expect = |field: &'static str, wanted: f64| match number(field) {
        Some(found) if (found - wanted).abs() < 0.5 => Ok(()),
        found => Err(AbFailure::Count { field, found, wanted }),
    };
    expect("Complete requests:", requests as f64)?;
    expect("Failed requests:", 0.0)?;
    expect("Document Length:", SMALL_FILE_LEN as f64)?;
    if let Some(bad) = field("Non-2xx responses:") {
        return Err(AbFailure::Status(bad.to_owned()));
    }
    let protocol = field("SSL/TLS Protocol:").unwrap_or("none");
    if !protocol.starts_with(&format!("TLSv1.2,{SHORT_CIPHER},")) {
        return Err(AbFailure::Protocol(protocol.to_owned()));
    }
    let elapsed_s = number("Time taken for tests:").filter(|seconds| *seconds > 0.0);
    let elapsed_s = elapsed_s.ok_or(AbFailure::Time)?;
    Ok(AbReport { completed: requests, elapsed_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
SSL/TLS Protocol:       TLSv1.2,AES128-SHA,2048,128
Document Length:        512 bytes
Time taken for tests:   2.000 seconds
Complete requests:      1000
Failed requests:        0
";

    #[test]
    fn only_a_run_without_any_fault_counts() {
        let answer = parse(TEXT, 1000).expect("a good run");
        assert_eq!(answer.completed, 1000);
        assert!((answer.elapsed_s - 2.0).abs() < 1e-9);
        assert!(parse(TEXT, 1001).is_err());
        for (from, to) in [
            ("Failed requests:        0", "Failed requests:        1"),
            ("512 bytes", "0 bytes"),
            ("AES128-SHA", "ECDHE-RSA-AES128-SHA"),
            ("TLSv1.2", "TLSv1.3"),
            ("2.000", "0.000"),
            ("Complete", "Non-2xx responses: 3\nComplete"),
        ] {
            assert!(parse(&TEXT.replace(from, to), 1000).is_err(), "{to}");
        }
    }
}
