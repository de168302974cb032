// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Measures whether instructions are used: the same operation of the same program, with and without them, in
//! turns. Only the ratio is judged, because other load on the machine disturbs it little.

use millrace_hostfs::Probe;
use millrace_hostfs::Root;
use schemars::JsonSchema;
use serde::Serialize;

use crate::architecture::Architecture;
use crate::section::{Section, SectionReader};

/// Speeds with and without the instructions for an algorithm.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Timed {
    /// Algorithm, as `openssl speed` names it
    pub algorithm: &'static str,
    /// Instructions that are masked in every second run
    pub instructions: &'static str,
    /// Speed with them, in MB/s
    pub with_mb_per_s: f64,
    /// Speed without them, in MB/s
    pub without_mb_per_s: f64,
    /// Ratio of the speeds: the median of the turns
    pub ratio: f64,
}

/// Ratio from which the instructions count as used; noise of a busy machine stays well below.
pub const CLEAR_RATIO: f64 = 1.3;
/// Number of turns: the median of three ratios tolerates one disturbed turn.
const TURNS: usize = 3;

/// Masks and the instructions that they switch off. OpenSSL's x86 mask must name the second and later words,
/// because a mask of one word zeroes them.
#[rustfmt::skip]
const CASES: &[(Architecture, &str, &str, &str, &str)] = &[
    (Architecture::X86_64, "aes-256-gcm", "AES-NI, PCLMUL", "OPENSSL_ia32cap", "~0x200000200000000:~0x0"),
    (Architecture::X86_64, "sha256", "SHA", "OPENSSL_ia32cap", "~0x0:~0x20000000"),
    (Architecture::Aarch64, "aes-256-gcm", "AES, PMULL", "OPENSSL_armcap", "0x1"),
    (Architecture::Arm, "aes-256-gcm", "all", "OPENSSL_armcap", "0x0"),
];

/// Measures with the machine's `openssl` program, for about twelve seconds.
#[must_use]
pub fn timed(root: &Root, architecture: Architecture) -> Section<Vec<Timed>> {
    let mut reader = SectionReader::new(root);
    let mut measured = Vec::new();
    for (_, algorithm, instructions, variable, mask) in
        CASES.iter().filter(|case| case.0 == architecture)
    {
        let mut turns = Vec::new();
        for turn in 0..TURNS {
            let mut run = |what: &str, environment: &[(&str, &str)]| {
                speed(
                    &mut reader,
                    &format!("speed-{algorithm}-{turn}-{what}"),
                    algorithm,
                    environment,
                )
            };
            let with = run("with", &[]);
            let without = run("without", &[(variable, mask)]);
            if let (Some(with), Some(without)) = (with, without) {
                turns.push((with / without, with, without));
            }
        }
        turns.sort_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((ratio, with, without)) = turns.get(turns.len() / 2) {
            measured.push(Timed {
                algorithm,
                instructions,
                with_mb_per_s: round(*with, 1.0),
                without_mb_per_s: round(*without, 1.0),
                ratio: round(*ratio, 100.0),
            });
        }
    }
    reader.section((!measured.is_empty()).then_some(measured))
}

fn round(value: f64, steps: f64) -> f64 {
    (value * steps).round() / steps
}

/// Megabytes per second of one run.
fn speed(
    reader: &mut SectionReader<'_>,
    name: &str,
    algorithm: &str,
    environment: &[(&str, &str)],
) -> Option<f64> {
    let answer = reader.ask(&Probe {
        name: format!("{name}.txt"),
        what: "openssl speed",
        program: "/usr/bin/openssl",
        arguments: &["speed", "-mr", "-seconds", "1", "-bytes", "8192", "-evp", algorithm],
        environment,
    })?;
    parse(&answer).filter(|speed| *speed > 0.0)
}

/// `+F:25:AES-256-GCM:1234567890.00`: bytes per second, last.
fn parse(answer: &str) -> Option<f64> {
    let line = answer.lines().find(|line| line.starts_with("+F:"))?;
    let bytes: f64 = line.rsplit(':').next()?.trim().parse().ok()?;
    Some(bytes / 1e6).filter(|speed| speed.is_finite())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn machine_readable_line_is_understood() {
        assert_eq!(parse("+H:8192\n+F:25:AES-256-GCM:2500000.00\n"), Some(2.5));
        for text in ["", "+F:", "+F:25:x:inf", "speed"] {
            assert_eq!(parse(text), None);
        }
    }
}
