// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Intel's two libraries as the backend and the compression engine share them: loading, start and stop, device memory.
//!
//! In this order: [`QatLibrary`] loads the files, [`QatSession`] starts the library and stops it when
//! dropped, and [`QatRegion`] is memory that the device can reach. Instances and requests are the callers' own, with
//! the functions that [`QatLibrary::find`] returns. The only `unsafe` of this crate.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::mem::{offset_of, size_of};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};
use zeroize::Zeroize;

use crate::error::QatError;
use crate::maps::mapped_file;
use crate::status::{QatStatus, SUCCESS};
use crate::vfio::{VfioKind, VfioUse};

/// Alignment of everything that the device reads, in bytes.
pub const ALIGNMENT: usize = 64;

/// Events of all instances since the session began, as bits of their numbers: 1 restarting, 2 restarted, 4
/// fatal. The library is one per process, and so is this.
static EVENTS: AtomicU32 = AtomicU32::new(0);

/// `CpaInstanceHandle`.
pub type QatHandle = *mut c_void;

/// `CpaFlatBuffer`: a piece of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FlatBuffer {
    /// Bytes.
    pub len: u32,
    /// Address in a [`QatRegion`], or null.
    pub data: *mut u8,
}

impl FlatBuffer {
    /// A buffer without memory.
    pub const EMPTY: Self = Self { len: 0, data: ptr::null_mut() };
}

#[repr(C)]
#[derive(Debug)]
struct PhysicalInstance {
    package: u16,
    accelerator: u16,
    engine: u16,
    bus: u16,
    kpt: u32,
}

/// `CpaInstanceInfo2`.
#[repr(C)]
pub struct InstanceInfo {
    service: u32,
    vendor: [c_char; 64],
    part: [c_char; 64],
    software: [c_char; 64],
    name: [c_char; 64],
    id: [c_char; 128],
    physical: PhysicalInstance,
    // 128 words of 32 bits: as 64 of 64 bits they would change the alignment.
    cores: [u32; 128],
    node: u32,
    state: u32,
    contiguous: u32,
    polled: u32,
    offloaded: u32,
}

const _: () = {
    assert!(size_of::<FlatBuffer>() == 16 && offset_of!(FlatBuffer, data) == 8);
    assert!(size_of::<InstanceInfo>() == 932);
    assert!(offset_of!(InstanceInfo, physical) == 388 && offset_of!(InstanceInfo, cores) == 400);
    assert!(offset_of!(InstanceInfo, node) == 912 && offset_of!(InstanceInfo, polled) == 924);
};

impl InstanceInfo {
    /// An empty structure for the library to fill.
    #[must_use]
    pub fn empty() -> Self {
        // SAFETY: integers alone, of which zero is a value.
        unsafe { std::mem::zeroed() }
    }

    /// Whether answers come when the instance is polled; no other kind is supported.
    #[must_use]
    pub fn is_polled(&self) -> bool {
        self.polled != 0
    }

    /// Bus address of its virtual function, for people: `6b:00.1`.
    #[must_use]
    pub fn address(&self) -> String {
        let place = self.physical.bus;
        format!("{:02x}:{:02x}.{}", place >> 8, place >> 3 & 31, place & 7)
    }
}

impl fmt::Debug for InstanceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InstanceInfo({})", self.address())
    }
}

/// A callback for events of an instance.
pub type Notified = extern "C" fn(QatHandle, *mut c_void, u32);
/// Finds the device's address of memory.
pub type Translate = unsafe extern "C" fn(*mut c_void) -> u64;

/// The callback to give to every instance: the event ends the session for all of them, see [`has_event`].
pub extern "C" fn notified(_: QatHandle, _: *mut c_void, event: u32) {
    EVENTS.fetch_or(1_u32.checked_shl(event).unwrap_or(0), Ordering::AcqRel);
}

/// Whether a card has reported anything since the session began: that it failed, that a reset begins, or that one
/// has ended. What is in flight may never be answered, and after the end of a reset of an earlier session the
/// library's own state is not to be relied on. The library must not be called for an instance then.
#[must_use]
pub fn has_event() -> bool {
    EVENTS.load(Ordering::Acquire) != 0
}

/// Both libraries, as a table of functions names them.
#[derive(Debug)]
pub struct SymbolSource<'a> {
    /// `libqat`.
    pub qat: &'a Loaded,
    /// `libusdm`.
    pub memory: &'a Loaded,
}

/// Declares a structure of functions of Intel's libraries, and how it is filled:
///
/// ```ignore
/// millrace_qat::functions! {
///     struct Functions;
///     poll: fn(QatHandle, u32) -> QatStatus = b"icp_sal_CyPollInstance" in qat;
/// }
/// ```
///
/// gives a `Functions` with the field `poll` and `Functions::of(&SymbolSource) -> Result<Self, QatError>`. The rows
/// must have the types of Intel's headers; the module that calls the macro is a room for `unsafe`. Functions of
/// `libqat` hold until the session ends, those of `libusdm` for ever.
#[macro_export]
macro_rules! functions {
    (struct $table:ident;
     $($name:ident: fn($($argument:ty),*) $(-> $result:ty)? = $symbol:literal in $library:ident;)*) => {
        struct $table { $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* }

        impl $table {
            fn of(libraries: &$crate::SymbolSource<'_>) -> Result<Self, $crate::QatError> {
                Ok(Self { $($name: {
                    type Function = unsafe extern "C" fn($($argument),*) $(-> $result)?;
                    let library = libraries.$library;
                    let symbol: &[u8] = $symbol;
                    // SAFETY: the symbol has this type in every version with this SONAME, and is called while its
                    // library is loaded.
                    let found = unsafe { library.get::<Function>(symbol) };
                    *found.map_err(|error| $crate::QatError::Function(error.to_string()))?
                },)* })
            }
        }
    };
}

functions! {
    struct SessionFunctions;
    user_start: fn(*const c_char) -> QatStatus = b"icp_sal_userStart" in qat;
    user_stop: fn() -> QatStatus = b"icp_sal_userStop" in qat;
    poll_events: fn() -> QatStatus = b"icp_sal_poll_device_events" in qat;
}

functions! {
    struct MemoryFunctions;
    allocate: fn(usize, c_int, usize) -> *mut u8 = b"qaeMemAllocNUMA" in memory;
    free: fn(*mut *mut u8) = b"qaeMemFreeNUMA" in memory;
    translate: fn(*mut c_void) -> u64 = b"qaeVirtToPhysNUMA" in memory;
    forget_container: fn(c_int) -> c_int = b"qaeUnregisterDevice" in memory;
}

/// The usual names of `libqat` and `libusdm`.
pub const DEFAULT_FILES: [&str; 2] = ["libqat.so.4", "libusdm.so.0"];

/// Section of the library's configuration that the process uses.
const SECTION: &CStr = c"SSL";

/// Most users of one container that libusdm counts: one per virtual function.
const MAX_CONTAINER_USERS: usize = 1024;

/// Intel's two libraries; see [`QatSession`] for when `libqat` is loaded again.
pub struct QatLibrary {
    file: PathBuf,
    /// `None` after a session that left virtual functions open.
    qat: Mutex<Option<Loaded>>,
    /// Never closed: it has a destructor for threads.
    memory: &'static Loaded,
    functions: MemoryFunctions,
    version: String,
}

fn load(path: &Path) -> Result<Loaded, QatError> {
    // SAFETY: the libraries' constructors only prepare their own state.
    unsafe { Loaded::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| QatError::Library(error.to_string()))
}

impl fmt::Debug for QatLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QatLibrary({})", self.version)
    }
}

impl QatLibrary {
    /// Opens both libraries, and lets them take `policy` virtual functions of each card unless `QAT_POLICY` is
    /// set. Called before the program has other threads that use the environment.
    ///
    /// # Errors
    /// [`QatError::Library`] or [`QatError::Function`].
    pub fn open(qat: &Path, memory: &Path, policy: u16) -> Result<Arc<Self>, QatError> {
        let file = qat.to_owned();
        // First: the other one needs it, and finds it by its SONAME.
        let memory: &Loaded = Box::leak(Box::new(load(memory)?));
        let qat = load(qat)?;
        let functions = MemoryFunctions::of(&SymbolSource { qat: &qat, memory })?;
        prefer_policy(policy);
        let version = mapped_file("libqat.so").unwrap_or_else(|| "libqat".to_owned());
        let qat = Mutex::new(Some(qat));
        Ok(Arc::new(Self { file, qat, memory, functions, version }))
    }

    /// The file that was loaded, with its version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Finds functions of a service in the copy of `libqat` that the session uses, or the next one will.
    ///
    /// # Errors
    /// The missing function, or [`QatError::Library`] where `libqat` cannot be loaded again.
    pub fn find<T>(
        &self,
        find: impl FnOnce(&SymbolSource<'_>) -> Result<T, QatError>,
    ) -> Result<T, QatError> {
        let mut qat = self.qat();
        let qat = match &mut *qat {
            Some(qat) => qat,
            none => none.insert(load(&self.file)?),
        };
        find(&SymbolSource { qat, memory: self.memory })
    }

    fn qat(&self) -> MutexGuard<'_, Option<Loaded>> {
        self.qat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes what a session left open of VFIO, and with it this copy of `libqat`, whose state names it.
    fn clean(&self, before: &VfioUse) {
        if VfioUse::now().since(before).is_empty() {
            return;
        }
        drop(self.qat().take());
        if mapped_file(&self.version).is_some() {
            // Another user of this process has it, and the functions may be its own.
            return;
        }
        for kind in VfioKind::IN_CLOSING_ORDER {
            for descriptor in VfioUse::now().since(before).of(kind) {
                if kind == VfioKind::Container {
                    self.forget_container(descriptor);
                }
                // SAFETY: opened by the library since `before`; its owner is gone.
                drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
            }
            if kind == VfioKind::Function {
                VfioUse::now().since(before).mappings().for_each(unmap);
            }
        }
    }

    /// Has libusdm forget a container that it counts users of: it maps no memory for the next one otherwise.
    fn forget_container(&self, container: RawFd) {
        for _ in 0..MAX_CONTAINER_USERS {
            // SAFETY: takes the number of an open descriptor, and fails for one that it does not know.
            if unsafe { (self.functions.forget_container)(container) } != 0 {
                return;
            }
        }
    }

    /// Function with which an instance finds the device's addresses.
    #[must_use]
    pub fn translation(&self) -> Translate {
        self.functions.translate
    }

    /// Memory that the device can reach, filled with zeros. `None` if there is none, or if it has no address for the
    /// device.
    #[must_use]
    pub fn region(self: &Arc<Self>, size: usize) -> Option<QatRegion> {
        // SAFETY: any size and alignment may be asked for. The node is not used by the library.
        let data = NonNull::new(unsafe { (self.functions.allocate)(size, 0, ALIGNMENT) })?;
        let region = QatRegion { library: Arc::clone(self), data, size };
        // SAFETY: `data` has `size` bytes, ours alone.
        unsafe { ptr::write_bytes(data.as_ptr(), 0, size) };
        // SAFETY: only looks the address up.
        let address = unsafe { (self.functions.translate)(data.as_ptr().cast()) };
        (address != 0).then_some(region)
    }
}

/// Unmaps registers of a virtual function.
fn unmap((start, end): (usize, usize)) {
    // SAFETY: mapped by a copy of the library that is not loaded any more.
    unsafe { libc::munmap(ptr::with_exposed_provenance_mut(start), end - start) };
}

/// Sets `QAT_POLICY`, virtual functions of each card for this process, unless it is set: the library reads it at each
/// start. Called before the program has other threads that use the environment.
pub fn prefer_policy(policy: u16) {
    const POLICY: &str = "QAT_POLICY";
    if std::env::var_os(POLICY).is_none() {
        // SAFETY: the caller's promise. Nothing changes the variable any more.
        unsafe { std::env::set_var(POLICY, policy.to_string()) };
    }
}

/// Memory that the device can reach, zeroised when dropped. May hold secrets: `Debug` shows its size alone.
pub struct QatRegion {
    library: Arc<QatLibrary>,
    data: NonNull<u8>,
    size: usize,
}

// SAFETY: plain memory, and the library's allocator has its own lock.
unsafe impl Send for QatRegion {}
// SAFETY: shared references only read, or give addresses to the device, which reads.
unsafe impl Sync for QatRegion {}

impl QatRegion {
    /// The memory. The caller knows that no request uses it, or which part of it no request uses.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `data` has `size` initialised bytes, and `&mut self` makes them ours.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.size) }
    }

    /// Part of it as the library describes memory.
    ///
    /// # Panics
    /// If it is not within the region.
    #[must_use]
    pub fn buffer(&self, at: usize, len: usize) -> FlatBuffer {
        assert!(at + len <= self.size, "a part of the region");
        FlatBuffer {
            len: u32::try_from(len).unwrap_or(u32::MAX),
            // SAFETY: within the region, as was just checked.
            data: unsafe { self.data.as_ptr().add(at) },
        }
    }
}

impl fmt::Debug for QatRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QatRegion({} bytes)", self.size)
    }
}

impl Drop for QatRegion {
    fn drop(&mut self) {
        self.bytes_mut().zeroize();
        let mut data = self.data.as_ptr();
        // SAFETY: allocated by this library, and used no more.
        unsafe { (self.library.functions.free)(&raw mut data) };
    }
}

/// The library between start and stop. There is one per process. Dropping it stops all instances, which must not be
/// used any more then.
///
/// Version 26.08 without `qatmgr` opens each virtual function twice at its start and closes it once
/// (`qat_mgr_get_device_capabilities`, `keep_device_open`). Linux opens a VFIO group once, and keeps it open while a
/// device of it is, so that the same process would find no function at its next start. A start that fails inside the
/// library leaves functions open, too, in both versions. So what a session leaves open is closed after it, and
/// `libqat`, which still counts it, is loaded again for the next one.
pub struct QatSession {
    library: Arc<QatLibrary>,
    functions: SessionFunctions,
    /// Before the start.
    before: VfioUse,
}

impl fmt::Debug for QatSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QatSession({})", self.library.version)
    }
}

impl QatSession {
    /// Starts the library, which takes virtual functions of the cards; 0.15 s and more.
    ///
    /// # Errors
    /// [`QatError::Start`], or as [`QatLibrary::find`].
    pub fn start(library: &Arc<QatLibrary>) -> Result<Self, QatError> {
        EVENTS.store(0, Ordering::Release);
        let functions = library.find(SessionFunctions::of)?;
        let before = VfioUse::now();
        // SAFETY: a string that ends with zero.
        let status = unsafe { (functions.user_start)(SECTION.as_ptr()) };
        if status != SUCCESS {
            library.clean(&before);
            return Err(QatError::Start(status));
        }
        Ok(Self { library: Arc::clone(library), functions, before })
    }

    /// Lets the library read the messages of the cards. May block for a second per function that is gone.
    pub fn poll_events(&self) {
        // SAFETY: takes nothing; called by one thread.
        unsafe { (self.functions.poll_events)() };
    }
}

impl Drop for QatSession {
    fn drop(&mut self) {
        // SAFETY: instances of this session are not used any more.
        unsafe { (self.functions.user_stop)() };
        self.library.clean(&self.before);
    }
}
