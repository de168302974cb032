// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Measures which kernel is the fastest on this device, and the fewest tasks for which a launch is cheaper
//! than AWS-LC. Opening the first key of a size measures both: some tens of milliseconds, once per size and
//! process.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::DeviceHealth;
use super::device::{CudaDevice, CudaStream, DeviceError, Launch, LaunchEntry};
use super::keys::{Parts, Size};
use super::queue::LAUNCH_TASKS;
use super::variants::Variant;
use crate::software::keys::{LoadedKey, Secret};
use crate::software::rsa::rsa_private;

/// Fewest tasks of a launch where the speed is not measured.
const DEVICE_FROM: usize = 8;

/// Bounds of the measured threshold, in tasks: a launch always costs more than one task on a processor, and a
/// full launch always goes to the device.
const DEVICE_FROM_RANGE: (usize, usize) = (2, LAUNCH_TASKS);

/// Blocks in flight per multiprocessor during a measurement: enough to hide latency.
const BLOCKS_PER_PROCESSOR: usize = 3;

/// [`LAUNCH_TASKS`] in the type of positions on the device.
const LAUNCH_PAIRS: u32 = 64;
const _: () = assert!(LAUNCH_PAIRS as usize == LAUNCH_TASKS);

/// Repetitions; the shortest time counts.
const ROUNDS: usize = 3;

/// Time limit of a round. It is longer than any launch, even if the driver must assemble the kernels first.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(20);

/// Measured times of one variant.
struct Speed {
    /// Time of a round with [`BLOCKS_PER_PROCESSOR`] blocks in flight on every multiprocessor.
    full: Duration,
    /// Time of a launch on an idle device.
    launch: Duration,
    tasks: usize,
}

impl Speed {
    /// Tasks per second on a full device.
    fn rate(&self) -> f64 {
        self.tasks as f64 / self.full.as_secs_f64()
    }
}

/// The settings of the backend that bound the choice.
#[derive(Clone, Copy)]
pub(super) struct KernelChoice<'a> {
    /// Kernels of all sizes that may be chosen.
    pub(super) kernels: &'a [&'static Variant],
    /// Fewest tasks of a launch; `None` if it is to be measured.
    pub(super) device_from: Option<usize>,
}

/// Chooses a kernel for a size of key, and allocates memory for keys.
pub(super) fn open_size(
    device: &dyn CudaDevice,
    half_bits: usize,
    KernelChoice { kernels, device_from }: KernelChoice<'_>,
    (key, parts): (&LoadedKey, &Parts<'_>),
    health: &Arc<DeviceHealth>,
) -> Result<Size, DeviceError> {
    let candidates: Vec<&'static Variant> =
        kernels.iter().copied().filter(|variant| variant.half_bits == half_bits).collect();
    let mut best: Option<(&'static Variant, Speed)> = None;
    // One kernel and a fixed threshold leave nothing to measure.
    let open = candidates.len() > 1 || device_from.is_none();
    if open && device.is_measurable() {
        for variant in &candidates {
            let speed = match measure(device, variant, parts) {
                Ok(speed) => speed,
                // The variant does not fit this device: try the next one.
                Err(DeviceError::OutOfMemory(_)) => continue,
                Err(error) => return Err(error),
            };
            if best.as_ref().is_none_or(|(_, known)| known.rate() < speed.rate()) {
                best = Some((variant, speed));
            }
        }
    }
    let (variant, measured) = match best {
        Some((variant, speed)) => (variant, Some(crossover(&speed, key))),
        None => match candidates.first() {
            Some(first) => (*first, None),
            None => return Err(DeviceError::OutOfMemory("no kernel fits".to_owned())),
        },
    };
    let device_from = device_from.or(measured).unwrap_or(DEVICE_FROM);
    Size::new(device, variant, device_from, Arc::clone(health))
}

/// Number of tasks that AWS-LC does in the time of one launch.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small positive ratio, bounded right away"
)]
fn crossover(speed: &Speed, key: &LoadedKey) -> usize {
    let Secret::Rsa(rsa) = &key.secret else {
        return DEVICE_FROM;
    };
    let mut input = vec![0x5a; rsa.modulus.len()];
    input[0] = 0;
    let mut output = vec![0; rsa.modulus.len()];
    let mut on_cpu = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        // Loading the key has tested it; only the time matters here.
        let _ = rsa_private(rsa, &input, &mut output);
        on_cpu = on_cpu.min(start.elapsed());
    }
    let ratio = speed.launch.as_secs_f64() / on_cpu.as_secs_f64().max(1e-6);
    let (least, most) = DEVICE_FROM_RANGE;
    (ratio.ceil() as usize).clamp(least, most)
}

/// Measures one kernel on an idle and on a full device.
fn measure(
    device: &dyn CudaDevice,
    variant: &'static Variant,
    parts: &Parts<'_>,
) -> Result<Speed, DeviceError> {
    let blocks = device.facts().processors as usize * BLOCKS_PER_PROCESSOR;
    let count = (blocks * variant.tasks_per_block()).div_ceil(LAUNCH_TASKS).max(1);
    let pairs = u32::try_from(count * LAUNCH_TASKS + 1)
        .map_err(|_| DeviceError::OutOfMemory("too many pairs".to_owned()))?;
    let store = device.open_store(variant, 2, pairs)?;
    store.write_key(1, &parts.image(variant))?;
    let mut streams =
        (0..count).map(|_| store.open_stream(LAUNCH_TASKS)).collect::<Result<Vec<_>, _>>()?;
    // The first round makes the pairs and warms up.
    round(&mut streams, parts, Pairs::Make)?;
    let mut speed =
        Speed { full: Duration::MAX, launch: Duration::MAX, tasks: count * LAUNCH_TASKS };
    for _ in 0..ROUNDS {
        speed.launch = speed.launch.min(round(&mut streams[..1], parts, Pairs::Keep)?);
        speed.full = speed.full.min(round(&mut streams, parts, Pairs::Keep)?);
    }
    Ok(speed)
}

/// Blinding pairs of a round.
#[derive(Clone, Copy)]
enum Pairs {
    Make,
    Keep,
}

/// Starts one launch on each stream and returns the time until the last has ended.
fn round(
    streams: &mut [Box<dyn CudaStream>],
    parts: &Parts<'_>,
    pairs: Pairs,
) -> Result<Duration, DeviceError> {
    let input = parts.some_input();
    let start = Instant::now();
    for (stream, at) in streams.iter_mut().zip(0_u32..) {
        let entries: Vec<_> = (0_u32..)
            .take(LAUNCH_TASKS)
            .map(|task| LaunchEntry { slot: 1, pair: 1 + at * LAUNCH_PAIRS + task, input: &input })
            .collect();
        stream.launch(&Launch {
            exponent: parts.public_exponent(),
            make: match pairs {
                Pairs::Make => &entries,
                Pairs::Keep => &[],
            },
            tasks: &entries,
        })?;
    }
    for stream in streams.iter_mut() {
        while !stream.is_done()? {
            if start.elapsed() > MEASURE_TIMEOUT {
                return Err(DeviceError::Lost("a launch does not end".to_owned()));
            }
            thread::yield_now();
        }
    }
    let elapsed = start.elapsed();
    for stream in streams {
        stream.take();
    }
    Ok(elapsed)
}

#[cfg(test)]
mod tests {
    use millrace_testkit::keys;

    use super::*;
    use crate::cuda::device::{CudaStore, DeviceFacts, LaunchOutcome};
    use crate::cuda::keys::load;
    use crate::cuda::variants::{Arithmetic, VARIANTS};

    /// A device that computes nothing: each launch ends after a fixed number of polls.
    #[derive(Debug)]
    struct Idle {
        facts: DeviceFacts,
        slow: Arithmetic,
        too_large: &'static str,
    }

    struct IdleStore(u32);

    struct IdleStream {
        questions: u32,
        left: u32,
    }

    impl CudaDevice for Idle {
        fn facts(&self) -> &DeviceFacts {
            &self.facts
        }

        fn open_store(
            &self,
            variant: &'static Variant,
            _keys: u32,
            _pairs: u32,
        ) -> Result<Box<dyn CudaStore>, DeviceError> {
            if variant.name == self.too_large {
                return Err(DeviceError::OutOfMemory("too large".to_owned()));
            }
            let slow = variant.arithmetic == self.slow;
            Ok(Box::new(IdleStore(if slow { 2_000 } else { 1 })))
        }
    }

    impl CudaStore for IdleStore {
        fn write_key(&self, slot: u32, _image: &[u8]) -> Result<(), DeviceError> {
            assert!(slot > 0);
            Ok(())
        }

        fn clear(&self, _slot: u32, _pairs: &[u32]) -> Result<(), DeviceError> {
            Ok(())
        }

        fn open_stream(&self, tasks: usize) -> Result<Box<dyn CudaStream>, DeviceError> {
            assert_eq!(tasks, LAUNCH_TASKS);
            let questions = self.0;
            Ok(Box::new(IdleStream { questions, left: 0 }))
        }
    }

    impl CudaStream for IdleStream {
        fn launch(&mut self, launch: &Launch<'_>) -> Result<(), DeviceError> {
            assert_eq!(launch.tasks.len(), LAUNCH_TASKS);
            self.left = self.questions;
            Ok(())
        }

        fn is_done(&mut self) -> Result<bool, DeviceError> {
            self.left = self.left.saturating_sub(1);
            Ok(self.left == 0)
        }

        fn take(&mut self) -> Vec<LaunchOutcome> {
            Vec::new()
        }
    }

    fn chosen(slow: Arithmetic, too_large: &'static str) -> Size {
        let device = Idle {
            facts: DeviceFacts {
                name: String::new(),
                compute: (9, 0),
                processors: 2,
                software: String::new(),
            },
            slow,
            too_large,
        };
        let der = keys::rsa_2048().der;
        let key = load(der).expect("a good key");
        let parts = Parts::parse(der).expect("a good key");
        let kernels: Vec<_> = VARIANTS.iter().collect();
        let size = parts.size().map(|at| super::super::SIZES[at]);
        let half_bits = size.expect("a size that there are kernels for");
        let choice = KernelChoice { kernels: &kernels, device_from: None };
        open_size(&device, half_bits, choice, (&key, &parts), &Arc::default()).expect("a kernel")
    }

    #[test]
    fn fastest_kernel_is_chosen() {
        for (slow, fast) in
            [(Arithmetic::Integer, Arithmetic::Fp52), (Arithmetic::Fp52, Arithmetic::Integer)]
        {
            let size = chosen(slow, "");
            assert_eq!(size.variant.arithmetic, fast);
            assert_eq!(size.variant.half_bits, 1024);
            let (least, most) = DEVICE_FROM_RANGE;
            assert!((least..=most).contains(&size.device_from));
        }
    }

    #[test]
    fn kernel_that_does_not_fit_the_device_is_skipped() {
        for name in ["rsa_2048_integer_4", "rsa_2048_integer_1"] {
            let size = chosen(Arithmetic::Fp52, name);
            assert_eq!(size.variant.arithmetic, Arithmetic::Integer);
            assert_ne!(size.variant.name, name);
        }
    }
}
