// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Measures instructions per multiprocessor and clock, by kind of instruction. All performance bounds of the
//! kernels rest on these rates. The example `cuda_rates` prints them.

use millrace_engine::backend::Unusable;

use super::device::CudaDevice;
use super::sys::Driver;

/// Threads of a block: enough that every scheduler has work in each cycle.
const THREADS: u32 = 512;

/// Independent chains per thread; equals `CHAINS` in `kernels/rates.h`.
const CHAINS: u32 = 8;

/// Steps of a chain; they take some milliseconds.
const ROUNDS: u32 = 1 << 16;

/// Per row: the kernel, the instruction, and the rate per multiprocessor and clock that the bounds assume for
/// compute capability 9.0.
const INSTRUCTIONS: [(&str, &str, f64); 6] = [
    ("rate_imad_wide", "IMAD.WIDE (32·32+64 bit)", 32.0),
    ("rate_imad", "IMAD (32 bit)", 64.0),
    ("rate_iadd", "IADD3", 64.0),
    ("rate_dfma", "DFMA.RZ", 64.0),
    ("rate_dadd", "DADD", 64.0),
    ("rate_shfl", "SHFL.IDX", 32.0),
];

/// Measured throughput of one instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct InstructionRate {
    /// Name of the instruction.
    pub instruction: &'static str,
    /// Measured rate: instructions of single threads per multiprocessor and clock.
    pub measured: f64,
    /// Rate that the bounds assume, for an H100, in the same unit.
    pub expected: f64,
}

/// The measured rates of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct InstructionRates {
    /// Name and software of the device.
    pub device: String,
    /// One row per instruction.
    pub rates: Vec<InstructionRate>,
}

/// Measures all rates with one block on each multiprocessor, on the first device that can run the kernels.
pub fn measure() -> Result<InstructionRates, Unusable> {
    let driver = Driver::open(None)?;
    let facts = driver.facts().clone();
    let mut rates = Vec::new();
    for (kernel, instruction, expected) in INSTRUCTIONS {
        let clocks = driver
            .clocks(kernel, (facts.processors, THREADS), ROUNDS)
            .map_err(|error| Unusable(error.to_string()))?;
        // Blocks may share a multiprocessor in a run; the fastest block had one to itself.
        let least = clocks.into_iter().min().unwrap_or(u64::MAX);
        let steps = u64::from(THREADS * CHAINS) * u64::from(ROUNDS);
        #[expect(clippy::cast_precision_loss, reason = "a ratio for display")]
        let measured = steps as f64 / least as f64;
        rates.push(InstructionRate { instruction, measured, expected });
    }
    Ok(InstructionRates { device: format!("{}, {}", facts.name, facts.software), rates })
}
