// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What the backend needs of a GPU: memory for keys, and streams of launches. The real one is `sys`; the
//! tests bring one that runs the CPU twin of the kernels.
//!
//! ```text
//! Device ──► Store     keys and blinding pairs of one variant, in the memory of the device
//!              └──► Stream   one launch at a time: tasks in, results out
//! ```

use std::fmt;

use thiserror::Error;
use zeroize::Zeroizing;

use super::variants::Variant;

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its name, for people.
    pub name: String,
    /// Its compute capability, major and minor.
    pub compute: (u32, u32),
    /// How many multiprocessors it has.
    pub processors: u32,
    /// Driver and kernels, for people.
    pub software: String,
}

/// Why a device did not do something.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// There is no more memory; what is there already works on.
    #[error("out of memory on the device: {0}")]
    OutOfMemory(String),
    /// The device does not work any more (lost, uncorrectable error in its memory, a launch that died).
    #[error("the device is lost: {0}")]
    Lost(String),
}

/// A GPU.
pub trait Device: Send + Sync + fmt::Debug {
    /// What it is.
    fn facts(&self) -> &Facts;

    /// Whether the time that launches take means anything, so that variants can be compared by it.
    fn is_measurable(&self) -> bool {
        true
    }

    /// Memory for this number of keys and pairs, zeroed. The first of each is for the spare groups of a launch.
    ///
    /// # Errors
    /// Mostly [`DeviceError::OutOfMemory`].
    fn open_store(
        &self,
        variant: &'static Variant,
        keys: u32,
        pairs: u32,
    ) -> Result<Box<dyn Store>, DeviceError>;
}

/// Keys and blinding pairs on a device, zeroised when dropped.
pub trait Store: Send + Sync {
    /// Puts the image of a key into its slot.
    ///
    /// # Errors
    /// [`DeviceError::Lost`].
    fn write_key(&self, slot: u32, image: &[u8]) -> Result<(), DeviceError>;

    /// Overwrites a slot and these pairs with zeros. No launch uses them.
    ///
    /// # Errors
    /// [`DeviceError::Lost`].
    fn clear(&self, slot: u32, pairs: &[u32]) -> Result<(), DeviceError>;

    /// A stream for launches of up to `tasks` tasks, and as many pairs to be made before them.
    ///
    /// # Errors
    /// Mostly [`DeviceError::OutOfMemory`].
    fn open_stream(&self, tasks: usize) -> Result<Box<dyn Stream>, DeviceError>;
}

/// One task of a launch.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    /// The slot of its key.
    pub slot: u32,
    /// Its blinding pair, which no other entry of any launch uses.
    pub pair: u32,
    /// A number below the modulus, big-endian. Of a pair that is to be made: a random one.
    pub input: &'a [u8],
}

impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry(slot {}, pair {})", self.slot, self.pair)
    }
}

/// Tasks with keys of one size and one public exponent.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The public exponent.
    pub exponent: u64,
    /// Pairs to be made first.
    pub make: &'a [Entry<'a>],
    /// Private operations.
    pub tasks: &'a [Entry<'a>],
}

/// A result as long as the input, or `None` if it did not verify.
pub type Outcome = Option<Zeroizing<Vec<u8>>>;

/// A queue of the device with one launch in it at most. Dropping it waits for that, and zeroises its memory.
pub trait Stream: Send {
    /// Starts. The inputs are copied.
    ///
    /// # Errors
    /// [`DeviceError::Lost`].
    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), DeviceError>;

    /// Whether the launch has ended. Never waits.
    ///
    /// # Errors
    /// [`DeviceError::Lost`].
    fn is_done(&mut self) -> Result<bool, DeviceError>;

    /// After a launch that ended: its outcomes in the order of its tasks. What the stream has of it is
    /// zeroised.
    fn take(&mut self) -> Vec<Outcome>;
}
