// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! OpenSSL called directly: `openssl speed` as a child, on a given core.
//!
//! The command is linked against the same libcrypto as the gateways from the same system, so it measures the cost of a
//! private operation to them: the offload ceiling of a handshake. Its rates are per second of processor time.

use std::process::Command;

use crate::cores;
use crate::error::BenchError;
use crate::process::{need, output_of};

/// Private operations per second of processor time of the system's OpenSSL on this core: signatures, or derivations for
/// `ecdh…`. Takes twice `seconds` for signatures, because it measures their verification, too.
pub(crate) fn openssl_rate(core: usize, algorithm: &str, seconds: u32) -> Result<f64, BenchError> {
    let name = format!("openssl speed {algorithm}");
    let mut command = Command::new(need("openssl", "openssl")?);
    command.args(["speed", "-mr", "-seconds", &seconds.to_string(), algorithm]);
    let text = cores::pinned(core, || output_of(&name, &mut command))??;
    parse(&text).ok_or_else(|| BenchError::Setup(format!("{name} printed no rate")))
}

/// Takes the rate from a line such as `+F2:2:2048:4520.0:75278.0`: RSA, DSA, ECDSA, ECDH and finite-field
/// DH alike; for Ed25519 a name is in between (`+F6:0:253:Ed25519:43642.1:14816.7`).
fn parse(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("+F"))?;
    let column = if line.starts_with("+F6:") { 4 } else { 3 };
    line.split(':').nth(column)?.parse().ok().filter(|rate: &f64| *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_taken_from_the_machine_readable_line() {
        assert_eq!(parse("+DTP:2048:private\n+F2:2:2048:4520.000000:75278.000000\n"), Some(4520.0));
        assert_eq!(parse("+F4:3:256:67216.161616:18984.000000\n"), Some(67_216.161_616));
        assert_eq!(parse("+F5:22:253:39760.294118:0.000025\n"), Some(39_760.294_118));
        assert_eq!(parse("+F6:0:253:Ed25519:43642.105263:14816.666667\n"), Some(43_642.105_263));
        assert_eq!(parse("nothing"), None);
        assert_eq!(parse("+F2:2:2048:0:0\n"), None);
    }
}
