// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A device behind NVIDIA's driver, which is opened at run time.
//!
//! Inputs and results of a launch are in pinned memory that is mapped into the device: kernels read and write
//! it directly. So a launch needs no copies, and no second copy of its inputs and results has to be zeroised.
//!
//! All calls use the primary context of the device. Every entry point makes it current for the calling
//! thread, so the context that the thread had before does not matter.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::fmt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use millrace_engine::backend::Unusable;
use zeroize::{Zeroize, Zeroizing};

use super::device::{
    CudaDevice, CudaStore, CudaStream, DeviceError, DeviceFacts, Launch, LaunchEntry, LaunchOutcome,
};
use super::variants::{VARIANTS, Variant};

/// The kernels as PTX, with the zero byte that ends a C string.
const PTX: &str = concat!(include_str!("kernels/kernels.ptx"), "\0");

/// Lowest compute capability that the kernels support.
const LEAST_COMPUTE: (u32, u32) = (8, 0);

/// Status that a kernel writes for a verified result; `RIGHT` in `kernels/rsa.h`.
const RIGHT: u32 = 0x600d_1e55;

/// Shared memory of a block that needs no function attribute, in bytes.
const PLAIN_SHARED_BYTES: usize = 48 * 1024;

/// Words that name slot and pair of a task.
const NAMES: usize = 2;

/// Longest fat binary that is loaded, in bytes; many times the size of the kernels.
const LARGEST_FAT_BINARY: u64 = 64 << 20;

/// The parameter of a kernel; `Launch` in `kernels/rsa.h`.
#[repr(C)]
struct Parameters {
    tasks: sys::CUdeviceptr,
    input: sys::CUdeviceptr,
    output: sys::CUdeviceptr,
    status: sys::CUdeviceptr,
    keys: sys::CUdeviceptr,
    pairs: sys::CUdeviceptr,
    tables: sys::CUdeviceptr,
    exponent: u64,
    exponent_bits: u32,
    make: u32,
}

/// A device with its kernels loaded.
pub(super) struct Driver {
    inner: Arc<DriverState>,
}

struct DriverState {
    device: sys::CUdevice,
    context: sys::CUcontext,
    module: sys::CUmodule,
    facts: DeviceFacts,
}

// SAFETY: a context and a module are handles that any thread may use which has the context current, and every
// use here makes it so first; the driver serializes what has to be.
unsafe impl Send for DriverState {}
// SAFETY: as above.
unsafe impl Sync for DriverState {}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Driver").field(&self.inner.facts).finish()
    }
}

/// The driver's name and text for an error.
fn words(error: DriverError) -> String {
    let text = |text: Result<&std::ffi::CStr, DriverError>| {
        text.map_or_else(|_| "unknown".to_owned(), |text| text.to_string_lossy().into_owned())
    };
    format!("{} ({})", text(error.error_string()), text(error.error_name()))
}

fn failed(error: DriverError) -> DeviceError {
    match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => DeviceError::OutOfMemory(words(error)),
        // Every other error of a launch or a copy leaves the context unusable, or is a bug here that would
        // repeat.
        _ => DeviceError::Lost(words(error)),
    }
}

fn unusable(what: &str) -> impl Fn(DriverError) -> Unusable + '_ {
    move |error| Unusable(format!("{what}: {}", words(error)))
}

impl Driver {
    /// Opens the first device that can run the kernels. Loads them from the fat binary if the file exists,
    /// otherwise from the PTX inside the program.
    pub(super) fn open(fat_binary: Option<&Path>) -> Result<Self, Unusable> {
        // SAFETY: opens the library and closes it again; its initializers are NVIDIA's.
        if !unsafe { sys::is_culib_present() } {
            return Err(Unusable(
                "no CUDA driver: libcuda.so.1 not found; install NVIDIA's driver for this machine's GPU"
                    .to_owned(),
            ));
        }
        result::init().map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_NO_DEVICE => {
                Unusable("a CUDA driver but no device".to_owned())
            }
            _ => unusable("the CUDA driver does not start")(error),
        })?;
        let (device, name, compute) = first_fit()?;
        // SAFETY: the device comes from the driver; released when dropped.
        let context = unsafe { result::primary_ctx::retain(device) }
            .map_err(unusable(&format!("{name} cannot be opened")))?;
        let opened = OpenDevice { device };
        // SAFETY: the context was just retained.
        unsafe { result::ctx::set_current(context) }.map_err(unusable(&name))?;
        let (module, kernels) = load_kernels(fat_binary, &name)?;
        let processors =
            attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let facts = DeviceFacts {
            name,
            compute,
            processors,
            software: format!("driver for CUDA {}, {kernels}", driver_version()),
        };
        std::mem::forget(opened);
        Ok(Self { inner: Arc::new(DriverState { device, context, module, facts }) })
    }

    /// Runs a kernel of `rates.h` and returns the clocks that each block took.
    pub(super) fn clocks(
        &self,
        kernel: &str,
        (blocks, threads): (u32, u32),
        rounds: u32,
    ) -> Result<Vec<u64>, DeviceError> {
        let inner = &self.inner;
        inner.enter()?;
        let function = inner.function(kernel)?;
        let clocks = Area::new(inner, 8 * blocks as usize)?;
        let sink = Area::new(inner, 8 * (blocks * threads) as usize)?;
        let mut rounds = rounds;
        let mut seed = 3_u32;
        let mut clocks_at = clocks.at;
        let mut sink_at = sink.at;
        let mut parameters = [
            (&raw mut rounds).cast::<c_void>(),
            (&raw mut seed).cast(),
            (&raw mut clocks_at).cast(),
            (&raw mut sink_at).cast(),
        ];
        // SAFETY: the parameters are those of RATE_KERNEL, and are copied before this returns; both areas
        // have a place for each block or thread and outlive the launch, which is waited for below.
        unsafe {
            result::launch_kernel(
                function,
                (blocks, 1, 1),
                (threads, 1, 1),
                0,
                ptr::null_mut(),
                &mut parameters,
            )
        }
        .map_err(failed)?;
        result::ctx::synchronize().map_err(failed)?;
        let mut found = vec![0_u64; blocks as usize];
        // SAFETY: the area is as long as the vector, and nothing writes to it any more.
        unsafe { result::memcpy_dtoh_sync(&mut found, clocks.at) }.map_err(failed)?;
        Ok(found)
    }
}

/// Releases the context again if opening fails half-way.
struct OpenDevice {
    device: sys::CUdevice,
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        // SAFETY: retained once when this was made.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Finds the first device with at least [`LEAST_COMPUTE`].
fn first_fit() -> Result<(sys::CUdevice, String, (u32, u32)), Unusable> {
    let count = result::device::get_count().map_err(unusable("counting devices"))?;
    let mut others = Vec::new();
    for ordinal in 0..count {
        let device = result::device::get(ordinal).map_err(unusable("looking at a device"))?;
        let name = result::device::get_name(device).unwrap_or_else(|_| format!("device {ordinal}"));
        let major = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        let minor = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
        let compute = (attribute(device, major)?, attribute(device, minor)?);
        if compute >= LEAST_COMPUTE {
            return Ok((device, name, compute));
        }
        others.push(format!("{name} has {}.{}", compute.0, compute.1));
    }
    let found =
        if others.is_empty() { "there is none at all".to_owned() } else { others.join(", ") };
    let (major, minor) = LEAST_COMPUTE;
    Err(Unusable(format!("no device with compute capability {major}.{minor} or above: {found}")))
}

fn attribute(device: sys::CUdevice, attribute: sys::CUdevice_attribute) -> Result<u32, Unusable> {
    // SAFETY: the device comes from the driver.
    let value = unsafe { result::device::get_attribute(device, attribute) }
        .map_err(unusable("asking a device what it can do"))?;
    Ok(u32::try_from(value).unwrap_or(0))
}

fn driver_version() -> String {
    let mut version: c_int = 0;
    // SAFETY: writes one number.
    let code = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    match code.result() {
        Ok(()) => format!("{}.{}", version / 1000, version % 1000 / 10),
        Err(_) => "of unknown version".to_owned(),
    }
}

/// Loads the kernels on the current device, and says where they are from.
fn load_kernels(
    fat_binary: Option<&Path>,
    name: &str,
) -> Result<(sys::CUmodule, String), Unusable> {
    let image = fat_binary.and_then(|path| {
        let length = path.metadata().ok()?.len();
        (length <= LARGEST_FAT_BINARY).then(|| std::fs::read(path).ok())?
    });
    if let Some(image) = image {
        // SAFETY: a fat binary knows its own length, which is that of the file; the driver checks its form.
        if let Ok(module) = unsafe { result::module::load_data(image.as_ptr().cast()) } {
            return Ok((module, "kernels of the fat binary".to_owned()));
        }
    }
    // SAFETY: the text ends with a zero.
    let module = unsafe { result::module::load_data(PTX.as_ptr().cast()) }
        .map_err(unusable(&format!("{name} does not take the kernels")))?;
    Ok((module, "kernels assembled by the driver".to_owned()))
}

impl DriverState {
    /// Makes the context current for the calling thread.
    fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained as long as this value is.
        unsafe { result::ctx::set_current(self.context) }.map_err(failed)
    }

    /// Waits until writes and overwrites of device memory are complete. The calls that start them return
    /// early, and our streams do not wait for them.
    fn wait_for_writes(&self) -> Result<(), DeviceError> {
        self.enter()?;
        // SAFETY: the stream that every context has.
        unsafe { result::stream::synchronize(result::stream::null()) }.map_err(failed)
    }

    fn function(&self, name: &str) -> Result<sys::CUfunction, DeviceError> {
        let missing = || DeviceError::Lost(format!("there is no kernel {name}"));
        let name = CString::new(name).map_err(|_| missing())?;
        // SAFETY: the module is loaded as long as this value is.
        unsafe { result::module::get_function(self.module, name) }.map_err(|_| missing())
    }
}

impl Drop for DriverState {
    fn drop(&mut self) {
        if self.enter().is_ok() {
            // SAFETY: nothing uses the module any more: whatever does holds this value.
            let _ = unsafe { result::module::unload(self.module) };
        }
        drop(OpenDevice { device: self.device });
    }
}

impl CudaDevice for Driver {
    fn facts(&self) -> &DeviceFacts {
        &self.inner.facts
    }

    fn open_store(
        &self,
        variant: &'static Variant,
        keys: u32,
        pairs: u32,
    ) -> Result<Box<dyn CudaStore>, DeviceError> {
        debug_assert!(VARIANTS.contains(variant));
        let inner = &self.inner;
        inner.enter()?;
        let function = inner.function(variant.name)?;
        let shared = variant.shared_bytes();
        if shared > PLAIN_SHARED_BYTES {
            let bytes = c_int::try_from(shared).unwrap_or(c_int::MAX);
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is of a module that is loaded.
            unsafe { result::function::set_function_attribute(function, most, bytes) }
                // The device allows less shared memory per block than this variant needs; other variants may
                // fit.
                .map_err(|error| DeviceError::OutOfMemory(words(error)))?;
        }
        Ok(Box::new(DriverStore {
            memory: Arc::new(Memory {
                keys: Area::new(inner, keys as usize * variant.key_bytes())?,
                pairs: Area::new(inner, pairs as usize * variant.pair_bytes())?,
                limits: (keys, pairs),
                function,
                variant,
                inner: Arc::clone(inner),
            }),
        }))
    }
}

/// Device memory, zeroed on allocation and before it is freed.
struct Area {
    at: sys::CUdeviceptr,
    bytes: usize,
    inner: Arc<DriverState>,
}

impl Area {
    fn new(inner: &Arc<DriverState>, bytes: usize) -> Result<Self, DeviceError> {
        inner.enter()?;
        // An empty area would have no address.
        let bytes = bytes.max(1);
        // SAFETY: freed when dropped.
        let at = unsafe { result::malloc_sync(bytes) }.map_err(failed)?;
        let area = Self { at, bytes, inner: Arc::clone(inner) };
        area.clear(0, bytes)?;
        inner.wait_for_writes()?;
        Ok(area)
    }

    /// Overwrites a part with zeros. The part must be inside the area; the caller waits with
    /// [`DriverState::wait_for_writes`].
    fn clear(&self, offset: usize, bytes: usize) -> Result<(), DeviceError> {
        self.inner.enter()?;
        assert!(offset + bytes <= self.bytes, "a part of the area");
        // SAFETY: inside of the area, as was just checked.
        unsafe { result::memset_d8_sync(self.at + offset as u64, 0, bytes) }.map_err(failed)
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.enter()?;
        assert!(offset + bytes.len() <= self.bytes, "a part of the area");
        // SAFETY: inside of the area, as was just checked.
        unsafe { result::memcpy_htod_sync(self.at + offset as u64, bytes) }.map_err(failed)?;
        self.inner.wait_for_writes()
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // If the device is lost, so is its memory.
        if self.clear(0, self.bytes).is_ok() {
            let _ = result::ctx::synchronize();
            // SAFETY: allocated by `new`; nothing uses it any more.
            let _ = unsafe { result::free_sync(self.at) };
        }
    }
}

/// The memory for keys and blinding pairs of one variant.
struct Memory {
    keys: Area,
    pairs: Area,
    limits: (u32, u32),
    function: sys::CUfunction,
    variant: &'static Variant,
    inner: Arc<DriverState>,
}

// SAFETY: the function is a handle into the module of `inner`, which may be used from any thread as that may.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

struct DriverStore {
    memory: Arc<Memory>,
}

impl CudaStore for DriverStore {
    fn write_key(&self, slot: u32, image: &[u8]) -> Result<(), DeviceError> {
        let bytes = self.memory.variant.key_bytes();
        assert!(image.len() == bytes, "an image of this variant");
        self.memory.keys.write(slot as usize * bytes, image)
    }

    fn clear(&self, slot: u32, pairs: &[u32]) -> Result<(), DeviceError> {
        let Memory { keys, pairs: area, variant, .. } = &*self.memory;
        let key = variant.key_bytes();
        let pair = variant.pair_bytes();
        keys.clear(slot as usize * key, key)?;
        for place in pairs {
            area.clear(*place as usize * pair, pair)?;
        }
        self.memory.inner.wait_for_writes()
    }

    fn open_stream(&self, tasks: usize) -> Result<Box<dyn CudaStream>, DeviceError> {
        let variant = self.memory.variant;
        self.memory.inner.enter()?;
        let per_block = variant.tasks_per_block();
        let tasks = tasks.next_multiple_of(per_block);
        let tables =
            if variant.shared_table { 0 } else { tasks / per_block * variant.table_bytes() };
        let pinned = Pinned::new(&self.memory.inner, tasks, variant.words())?;
        let tables = Area::new(&self.memory.inner, tables)?;
        // SAFETY: destroyed when dropped. It does not wait for the default stream that all threads share.
        let stream =
            result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed)?;
        Ok(Box::new(DriverStream {
            stream,
            pinned,
            tables,
            launched: Vec::new(),
            memory: Arc::clone(&self.memory),
        }))
    }
}

/// Host memory that the device reads and writes. It has two parts, for pairs to make and for tasks; each
/// holds names, inputs, statuses and outputs, in words.
struct Pinned {
    base: *mut u32,
    at: sys::CUdeviceptr,
    /// Capacity of each part, in tasks.
    tasks: usize,
    words: usize,
    inner: Arc<DriverState>,
}

// SAFETY: the memory belongs to this value alone, and to the launches of the stream that owns it.
unsafe impl Send for Pinned {}

/// A part of the pinned memory.
#[derive(Clone, Copy)]
enum Part {
    Make,
    Tasks,
}

/// Offsets of the fields of one part, in words from the base.
struct Positions {
    names: usize,
    input: usize,
    status: usize,
    output: usize,
    end: usize,
}

impl Pinned {
    fn new(inner: &Arc<DriverState>, tasks: usize, words: usize) -> Result<Self, DeviceError> {
        let mut base = ptr::null_mut();
        let mut at = 0;
        let bytes = 4 * positions(tasks, words, Part::Tasks).end;
        let flags: c_uint = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: writes the address of fresh memory, which is freed when dropped.
        unsafe { sys::cuMemHostAlloc(&raw mut base, bytes, flags) }.result().map_err(failed)?;
        let base = base.cast::<u32>();
        // SAFETY: fresh memory of this length, aligned to a page.
        unsafe { ptr::write_bytes(base, 0, bytes / 4) };
        let mut pinned = Self { base, at, tasks, words, inner: Arc::clone(inner) };
        // SAFETY: the memory was allocated as mapped; writes one address.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut at, base.cast(), 0) }
            .result()
            .map_err(failed)?;
        pinned.at = at;
        Ok(pinned)
    }

    /// The whole memory as words. No launch may be in flight.
    fn words(&mut self) -> &mut [u32] {
        let end = positions(self.tasks, self.words, Part::Tasks).end;
        // SAFETY: allocated with this length, zeroed at first, and no other code has it: launches under way are
        // excluded by the stream, which calls this before a launch and after its end.
        unsafe { std::slice::from_raw_parts_mut(self.base, end) }
    }

    /// Writes entries into a part. Groups of the last block without a task get slot 0 and pair 0.
    fn fill(&mut self, part: Part, entries: &[LaunchEntry<'_>]) {
        let tasks = self.tasks;
        let words = self.words;
        assert!(entries.len() <= tasks, "as many tasks as the stream has room for");
        let positions = positions(tasks, words, part);
        let memory = self.words();
        memory[positions.names..positions.input].fill(0);
        memory[positions.status..positions.output].fill(0);
        for (at, entry) in entries.iter().enumerate() {
            let names = positions.names + NAMES * at;
            memory[names] = entry.slot;
            memory[names + 1] = entry.pair;
            let input = &mut memory[positions.input + words * at..][..words];
            // Little-endian words of a big-endian number.
            let mut bytes = entry.input.rchunks(4);
            for word in input {
                *word = bytes.next().map_or(0, |chunk| {
                    chunk.iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
                });
            }
        }
    }

    /// The outcome of a task; `length` is that of its input.
    fn outcome(&mut self, at: usize, length: usize) -> LaunchOutcome {
        let tasks = self.tasks;
        let words = self.words;
        let positions = positions(tasks, words, Part::Tasks);
        let memory = self.words();
        if memory[positions.status + at] != RIGHT {
            return None;
        }
        let output = &memory[positions.output + words * at..][..words];
        let mut number = Zeroizing::new(vec![0; length]);
        for (chunk, word) in number.rchunks_mut(4).zip(output) {
            let bytes = word.to_be_bytes();
            chunk.copy_from_slice(&bytes[4 - chunk.len()..]);
        }
        Some(number)
    }

    fn address(&self, position: usize) -> sys::CUdeviceptr {
        self.at + 4 * position as u64
    }
}

fn positions(tasks: usize, words: usize, part: Part) -> Positions {
    let length = tasks * (NAMES + 1 + 2 * words);
    let names = match part {
        Part::Make => 0,
        Part::Tasks => length,
    };
    let input = names + NAMES * tasks;
    let status = input + words * tasks;
    let output = status + tasks;
    Positions { names, input, status, output, end: names + length }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.words().zeroize();
        let _ = self.inner.enter();
        // SAFETY: allocated by `new`; the stream that used it has been waited for.
        let _ = unsafe { result::free_host(self.base.cast()) };
    }
}

struct DriverStream {
    stream: sys::CUstream,
    pinned: Pinned,
    tables: Area,
    /// Lengths of the inputs of the launch in flight.
    launched: Vec<usize>,
    memory: Arc<Memory>,
}

// SAFETY: a stream is a handle that any thread may use which has its context current; this value has it alone.
unsafe impl Send for DriverStream {}

impl DriverStream {
    /// Starts a kernel on the entries of one part.
    fn start(
        &mut self,
        part: Part,
        entries: &[LaunchEntry<'_>],
        exponent: u64,
    ) -> Result<(), DeviceError> {
        if entries.is_empty() {
            return Ok(());
        }
        let (keys, pairs) = self.memory.limits;
        let known = |entry: &LaunchEntry<'_>| entry.slot < keys && entry.pair < pairs;
        assert!(entries.iter().all(known), "places of this store");
        self.pinned.fill(part, entries);
        let variant = self.memory.variant;
        let positions = positions(self.pinned.tasks, self.pinned.words, part);
        let mut parameters = Parameters {
            tasks: self.pinned.address(positions.names),
            input: self.pinned.address(positions.input),
            output: self.pinned.address(positions.output),
            status: self.pinned.address(positions.status),
            keys: self.memory.keys.at,
            pairs: self.memory.pairs.at,
            tables: self.tables.at,
            exponent,
            exponent_bits: 64 - exponent.leading_zeros(),
            make: u32::from(matches!(part, Part::Make)),
        };
        let blocks = entries.len().div_ceil(variant.tasks_per_block());
        let count = |number: usize| c_uint::try_from(number).unwrap_or(c_uint::MAX);
        // SAFETY: the parameter is the struct that the kernel has, and is copied before this returns. What it
        // points to belongs to this stream and its store, has room for every block, and stays until the
        // stream has been waited for; slots and pairs were just checked, and no other launch has these pairs.
        unsafe {
            result::launch_kernel(
                self.memory.function,
                (count(blocks), 1, 1),
                (count(variant.block), 1, 1),
                count(variant.shared_bytes()),
                self.stream,
                &mut [(&raw mut parameters).cast()],
            )
        }
        .map_err(failed)
    }

    fn wait(&self) {
        if self.memory.inner.enter().is_ok() {
            // SAFETY: the stream is this value's own.
            let _ = unsafe { result::stream::synchronize(self.stream) };
        }
    }
}

impl CudaStream for DriverStream {
    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        assert!(self.launched.is_empty(), "one launch at a time");
        self.memory.inner.enter()?;
        self.start(Part::Make, launch.make, launch.exponent)?;
        self.start(Part::Tasks, launch.tasks, launch.exponent)?;
        self.launched.extend(launch.tasks.iter().map(|entry| entry.input.len()));
        Ok(())
    }

    fn is_done(&mut self) -> Result<bool, DeviceError> {
        self.memory.inner.enter()?;
        // SAFETY: the stream is this value's own.
        match unsafe { sys::cuStreamQuery(self.stream) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => Err(failed(DriverError(other))),
        }
    }

    fn take(&mut self) -> Vec<LaunchOutcome> {
        let lengths = std::mem::take(&mut self.launched);
        let outcomes = lengths
            .into_iter()
            .enumerate()
            .map(|(at, length)| self.pinned.outcome(at, length))
            .collect();
        self.pinned.words().zeroize();
        outcomes
    }
}

impl Drop for DriverStream {
    fn drop(&mut self) {
        self.wait();
        // SAFETY: created by `open_stream`, and nothing is on it any more.
        let _ = unsafe { result::stream::destroy(self.stream) };
    }
}
