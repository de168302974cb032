// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The GPU as the backend uses it: memory for keys, and streams of launches. `sys` implements it with
//! NVIDIA's driver; the tests implement it with the CPU twin of the kernels.
//!
//! ```text
//! Device ──► Store     keys and blinding pairs of one variant, in the memory of the device
//!              └──► Stream   one launch at a time: tasks in, results out
//! ```

use std::fmt;

use thiserror::Error;
use zeroize::Zeroizing;

use super::variants::Variant;

/// Properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Name of the product, for logs and status.
    pub name: String,
    /// Compute capability, major and minor.
    pub compute: (u32, u32),
    /// Number of multiprocessors.
    pub processors: u32,
    /// Versions of driver and kernels, for logs and status.
    pub software: String,
}

/// Why a call to a device failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// There is no more memory. Keys and streams that exist keep working.
    #[error("out of memory on the device: {0}")]
    OutOfMemory(String),
    /// The device is unusable from now on: it is lost, its memory has an uncorrectable error, or a launch
    /// died.
    #[error("the device is lost: {0}")]
    Lost(String),
}

/// A GPU.
pub trait CudaDevice: Send + Sync + fmt::Debug {
    /// The properties of the device.
    fn facts(&self) -> &DeviceFacts;

    /// Whether launch times are real, so that variants can be compared by them. False for simulated devices.
    fn is_measurable(&self) -> bool {
        true
    }

    /// Allocates zeroed memory for this number of keys and pairs. The first of each is for the spare groups
    /// of a launch.
    ///
    /// # Errors
    /// Mostly [`DeviceError::OutOfMemory`].
    fn open_store(
        &self,
        variant: &'static Variant,
        keys: u32,
        pairs: u32,
    ) -> Result<Box<dyn CudaStore>, DeviceError>;
}

/// Keys and blinding pairs on a device, zeroised when dropped.
pub trait CudaStore: Send + Sync {
    /// Writes the image of a key into its slot.
    ///
    /// # Errors
    /// [`DeviceError::Lost`].
    fn write_key(&self, slot: u32, image: &[u8]) -> Result<(), DeviceError>;

    /// Overwrites a slot and these pairs with zeros. The caller guarantees that no launch uses them.
    ///
    /// # Errors
    /// [`DeviceError::Lost`].
    fn clear(&self, slot: u32, pairs: &[u32]) -> Result<(), DeviceError>;

    /// Opens a stream for launches of up to `tasks` tasks and up to `tasks` new pairs.
    ///
    /// # Errors
    /// Mostly [`DeviceError::OutOfMemory`].
    fn open_stream(&self, tasks: usize) -> Result<Box<dyn CudaStream>, DeviceError>;
}

/// One task of a launch.
#[derive(Clone, Copy)]
pub struct LaunchEntry<'a> {
    /// Slot of the task's key.
    pub slot: u32,
    /// Position of the task's blinding pair. No other entry of any launch uses this pair.
    pub pair: u32,
    /// A number below the modulus, big-endian. To make a pair, it is random.
    pub input: &'a [u8],
}

impl fmt::Debug for LaunchEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry(slot {}, pair {})", self.slot, self.pair)
    }
}

/// Tasks with keys of one size and one public exponent.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The public exponent.
    pub exponent: u64,
    /// Pairs to make before the tasks run.
    pub make: &'a [LaunchEntry<'a>],
    /// Private operations.
    pub tasks: &'a [LaunchEntry<'a>],
}

/// A result as long as the input, or `None` if verification failed.
pub type LaunchOutcome = Option<Zeroizing<Vec<u8>>>;

/// A queue of the device with at most one launch in flight. Dropping it waits for that launch and zeroises
/// the stream's memory.
pub trait CudaStream: Send {
    /// Starts a launch. The inputs are copied.
    ///
    /// # Errors
    /// [`DeviceError::Lost`].
    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), DeviceError>;

    /// Whether the launch has ended. Never blocks.
    ///
    /// # Errors
    /// [`DeviceError::Lost`].
    fn is_done(&mut self) -> Result<bool, DeviceError>;

    /// Takes the outcomes of a launch that has ended, in the order of its tasks, and zeroises the stream's
    /// copy.
    fn take(&mut self) -> Vec<LaunchOutcome>;
}
