// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! How many instructions of a kind a multiprocessor does per clock: what all bounds of the kernels rest on. For the
//! example `cuda_rates`.

use millrace_engine::backend::Unusable;

use super::device::Device;
use super::sys::Driver;

/// Threads of a block: enough for every scheduler to have work in any cycle.
const THREADS: u32 = 512;

/// Independent chains of a thread; `CHAINS` in `kernels/rates.h`.
const CHAINS: u32 = 8;

/// Steps of a chain: some milliseconds.
const ROUNDS: u32 = 1 << 16;

/// What is measured: kernel, instruction, and what the bounds expect per multiprocessor and clock on compute
/// capability 9.0.
const INSTRUCTIONS: [(&str, &str, f64); 6] = [
    ("rate_imad_wide", "IMAD.WIDE (32·32+64 bit)", 32.0),
    ("rate_imad", "IMAD (32 bit)", 64.0),
    ("rate_iadd", "IADD3", 64.0),
    ("rate_dfma", "DFMA.RZ", 64.0),
    ("rate_dadd", "DADD", 64.0),
    ("rate_shfl", "SHFL.IDX", 32.0),
];

/// The rate of one instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// Which one.
    pub instruction: &'static str,
    /// Threads' instructions per multiprocessor and clock.
    pub measured: f64,
    /// What the bounds rest on, for an H100.
    pub expected: f64,
}

/// Device and rates.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Name and software of the device.
    pub device: String,
    /// One per instruction.
    pub rates: Vec<Rate>,
}

/// Measures, with one block on each multiprocessor.
///
/// # Errors
/// Why there is no device to measure.
pub fn measure() -> Result<Rates, Unusable> {
    let driver = Driver::open(None)?;
    let facts = driver.facts().clone();
    let mut rates = Vec::new();
    for (kernel, instruction, expected) in INSTRUCTIONS {
        let clocks = driver
            .clocks(kernel, (facts.processors, THREADS), ROUNDS)
            .map_err(|error| Unusable(error.to_string()))?;
        // Blocks may share a multiprocessor in one run; the fastest one did not.
        let least = clocks.into_iter().min().unwrap_or(u64::MAX);
        let steps = u64::from(THREADS * CHAINS) * u64::from(ROUNDS);
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let measured = steps as f64 / least as f64;
        rates.push(Rate {
            instruction,
            measured,
            expected,
        });
    }
    Ok(Rates {
        device: format!("{}, {}", facts.name, facts.software),
        rates,
    })
}
