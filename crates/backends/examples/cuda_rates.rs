// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Prints the instruction rates of this machine's GPU beside the rates that the bounds in
//! `docs/backends/cuda.md` assume. Run it first on a new type of device.
//!
//! ```text
//! cargo run --release -p millrace-backends --example cuda_rates
//! ```

use std::process::ExitCode;

use millrace_backends::cuda::rates;

fn main() -> ExitCode {
    let found = match rates::measure() {
        Ok(found) => found,
        Err(reason) => {
            eprintln!("cuda_rates: {reason}");
            return ExitCode::FAILURE;
        }
    };
    println!("{}", found.device);
    println!(
        "{:28} {:>12} {:>12} {:>8}",
        "per multiprocessor and clock", "measured", "H100, taken", "ratio"
    );
    for rate in found.rates {
        let ratio = rate.measured / rate.expected;
        println!(
            "{:28} {:12.1} {:12.1} {ratio:8.2}",
            rate.instruction, rate.measured, rate.expected
        );
    }
    ExitCode::SUCCESS
}
