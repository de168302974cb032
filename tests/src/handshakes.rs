// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The handshake driver as a program, for tests that are not Rust programs. Each line of standard input is
//! answered with the counts so far, one JSON object a line; its end ends the load, with the final counts.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Serialize;

use crate::drive::{Client, Load, Tls};

/// Counts of all versions of TLS together.
#[derive(Debug, Default, Serialize)]
struct Counts {
    /// Handshakes that were verified and answered.
    completed: u64,
    /// Handshakes that failed.
    failed: u64,
    /// Error texts and how often each occurred; only in the final counts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    failures: BTreeMap<String, u64>,
}

/// The program: `THREADS` threads for TLS 1.2 and as many for TLS 1.3 make full handshakes with `ADDRESS`, whose
/// certificate the authority in `CA` (PEM) issued for `localhost`.
///
/// # Errors
/// Wrong arguments, a certificate that cannot be read, or a closed standard output.
pub fn run() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [ca, address, threads] = &arguments[..] else {
        return Err(io::Error::other("usage: handshakes CA ADDRESS THREADS"));
    };
    let authority = CertificateDer::from_pem_file(ca).map_err(io::Error::other)?;
    let address: SocketAddr = address.parse().map_err(io::Error::other)?;
    let threads = threads.parse().map_err(io::Error::other)?;

    let client = Client::trusting_der(authority);
    let loads = Tls::ALL.map(|version| client.load(address, version, threads));
    for line in io::stdin().lock().lines() {
        line?;
        print(&Counts {
            completed: loads.iter().map(Load::completed).sum(),
            failed: loads.iter().map(Load::failed).sum(),
            failures: BTreeMap::new(),
        })?;
    }
    let mut counts = Counts::default();
    for outcome in loads.map(Load::stop) {
        counts.completed += outcome.completed;
        counts.failed += outcome.failed();
        for (error, count) in outcome.failures {
            *counts.failures.entry(error).or_insert(0) += count;
        }
    }
    print(&counts)
}

fn print(counts: &Counts) -> io::Result<()> {
    let mut output = io::stdout().lock();
    serde_json::to_writer(&mut output, counts)?;
    output.write_all(b"\n")?;
    output.flush()
}
