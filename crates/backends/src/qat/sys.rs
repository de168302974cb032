// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Intel's user-space library, opened at run time. Everything `unsafe` of this backend is here.
//!
//! ```text
//! Library ──► Session (userStart … userStop) ──► Ring (one instance: 63 slots of device memory)
//!     └─────► Region (device memory, zeroised when dropped)
//! ```
//!
//! The interface is that of libqat 24.02 to 26.08, whose sizes and offsets are equal; `tests/qat/layout.c`
//! compares them with Intel's headers. The library checks little, so these hold by construction:
//!
//! - **Device memory.** An address that libusdm does not know is accepted, and the device then uses address 0.
//!   A pointer into data of a request comes from a [`Region`] and from nowhere else.
//! - **Lifetime.** A request, its key and its data stay in place until its answer or the end of the session. A
//!   slot whose answer is missing keeps all of them.
//! - **Threads.** A ring is used by one thread at a time (`&mut self`), and answers come inside `poll`.
//! - **After an event** the library must not be polled: 24.02 crashes, or its pools of requests are gone after the
//!   next start. So no ring is used while it reads events, and none after one came. Not every event is notified: the
//!   library keeps, over stop and start, that a card failed, and tells of no second failure; and it hands a failure
//!   that came with requests in flight to the next session, too, without a word (`adf_user_device.c`,
//!   `accel_dev_error_stat` and `adf_event_queue`). So each reading of events is followed by [`Ring::runs`].
//! - **Fork.** Regions do not exist in a child; a ring is bound to the process that made it.

use std::ffi::{c_char, c_void};
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use millrace_qat::{
    ALIGNMENT, FlatBuffer, INVALID, InstanceInfo, Notified, PENDING, QatHandle as Handle,
    QatLibrary, QatRegion as Region, QatSession, QatStatus as Status, RETRY, SUCCESS, Translate,
    UNSUPPORTED, notified,
};
use zeroize::{Zeroize, Zeroizing};

pub(super) use millrace_qat::has_event as is_broken;

/// Requests in flight per instance: the library's ring has 64 places and keeps one free.
pub(super) const SLOTS: usize = 63;

/// The longest number, in bytes: RSA-8192.
const LONGEST: usize = 1024;

/// `CpaCyRsaPrivateKey` with its second representation: the parts for the Chinese remainder theorem.
#[repr(C)]
struct RsaPrivateKey {
    version: u32,
    representation: u32,
    modulus_and_exponent: [FlatBuffer; 2],
    primes_and_parts: [FlatBuffer; 5],
}

#[repr(C)]
struct RsaDecryptOpData {
    key: *const RsaPrivateKey,
    input: FlatBuffer,
}

/// `CpaInstanceInfo`: deprecated, and the only structure that tells whether an instance is in error.
#[repr(C)]
struct InstanceState {
    kind: u32,
    state: u32,
    name: [c_char; 64],
    version: [c_char; 64],
}

/// `CPA_INSTANCE_STATE_INITIALISED`: the instance runs.
const RUNS: u32 = 0;

/// `CpaCyCapabilitiesInfo`: booleans of 32 bits and a bitmap.
#[repr(C)]
struct Capabilities {
    before: [u32; 4],
    rsa: u32,
    after: [u32; 14],
}

const _: () = {
    assert!(size_of::<RsaPrivateKey>() == 120);
    assert!(offset_of!(RsaPrivateKey, modulus_and_exponent) == 8);
    assert!(offset_of!(RsaPrivateKey, primes_and_parts) == 40);
    assert!(size_of::<RsaDecryptOpData>() == 24 && offset_of!(RsaDecryptOpData, input) == 8);
    assert!(size_of::<InstanceState>() == 136 && offset_of!(InstanceState, state) == 4);
    assert!(size_of::<Capabilities>() == 76 && offset_of!(Capabilities, rsa) == 16);
};

type Answered = extern "C" fn(*mut c_void, Status, *mut c_void, *mut FlatBuffer);
millrace_qat::functions! {
    poll: fn(Handle, u32) -> Status = b"icp_sal_CyPollInstance" in qat;
    instance_count: fn(*mut u16) -> Status = b"cpaCyGetNumInstances" in qat;
    instances: fn(u16, *mut Handle) -> Status = b"cpaCyGetInstances" in qat;
    info: fn(Handle, *mut InstanceInfo) -> Status = b"cpaCyInstanceGetInfo2" in qat;
    state: fn(Handle, *mut InstanceState) -> Status = b"cpaCyInstanceGetInfo" in qat;
    capabilities: fn(Handle, *mut Capabilities) -> Status = b"cpaCyQueryCapabilities" in qat;
    set_translation: fn(Handle, Translate) -> Status = b"cpaCySetAddressTranslation" in qat;
    start_instance: fn(Handle) -> Status = b"cpaCyStartInstance" in qat;
    notify: fn(Handle, Notified, *mut c_void) -> Status = b"cpaCyInstanceSetNotificationCb" in qat;
    rsa_decrypt: fn(Handle, Answered, *mut c_void, *const RsaDecryptOpData, *mut FlatBuffer) -> Status
        = b"cpaCyRsaDecrypt" in qat;
}

extern "C" fn answered(tag: *mut c_void, status: Status, _: *mut c_void, _: *mut FlatBuffer) {
    // SAFETY: every tag is that of a slot, which lives until the session has stopped.
    let slot = unsafe { &*tag.cast::<AtomicI32>() };
    slot.store(status, Ordering::Release);
}

/// Intel's libraries with the functions for public keys.
pub(super) struct Library {
    shared: Arc<QatLibrary>,
    functions: Functions,
    /// The file that was loaded, with its version.
    pub(super) version: String,
}

impl Library {
    /// Opens both libraries; see [`QatLibrary::open`].
    ///
    /// # Errors
    /// Why it cannot be used, from the dynamic linker.
    pub(super) fn open(qat: &Path, memory: &Path, policy: u16) -> Result<Arc<Self>, String> {
        let shared = QatLibrary::open(qat, memory, policy)?;
        Ok(Arc::new(Self {
            functions: Functions::of(&shared.symbols())?,
            version: shared.version().to_owned(),
            shared,
        }))
    }

    /// Memory that the device can reach; see [`QatLibrary::region`].
    pub(super) fn region(&self, size: usize) -> Option<Region> {
        self.shared.region(size)
    }
}

/// The parts of an RSA key in device memory, as requests name them.
pub(super) struct KeyParts {
    layout: RsaPrivateKey,
    modulus_len: usize,
    _region: Region,
}

// SAFETY: the pointers are into the region, which is shared for reading and lives as long.
unsafe impl Send for KeyParts {}
// SAFETY: as above.
unsafe impl Sync for KeyParts {}

impl KeyParts {
    /// Copies p, q, dp, dq and 1/q mod p, each half as long as the modulus.
    pub(super) fn copy(library: &Arc<Library>, parts: [&[u8]; 5]) -> Option<Self> {
        let half = parts[0].len();
        assert!(parts.iter().all(|part| part.len() == half), "equal lengths");
        let mut region = library.region(5 * half.next_multiple_of(ALIGNMENT))?;
        let step = half.next_multiple_of(ALIGNMENT);
        for (part, at) in parts.iter().zip((0..).step_by(step)) {
            region.bytes_mut()[at..at + half].copy_from_slice(part);
        }
        let buffer = |index: usize| region.buffer(index * step, half);
        Some(Self {
            layout: RsaPrivateKey {
                version: 1,
                representation: 2,
                modulus_and_exponent: [FlatBuffer::EMPTY; 2],
                primes_and_parts: [0, 1, 2, 3, 4].map(buffer),
            },
            modulus_len: 2 * half,
            _region: region,
        })
    }
}

/// The library between start and stop. There is one per process. Dropping it stops all instances: rings of this
/// session are not used any more then, see [`Ring::is_alive`].
pub(super) struct Session {
    library: Arc<Library>,
    shared: QatSession,
}

impl Session {
    /// Starts the library, and returns its RSA instances.
    ///
    /// # Errors
    /// The library does not start, or no virtual function offers public-key operations; the text names a remedy.
    pub(super) fn start(library: &Arc<Library>) -> Result<(Self, Vec<Ring>), String> {
        let session =
            Self { shared: QatSession::start(&library.shared)?, library: Arc::clone(library) };
        let rings = session.rings()?;
        if rings.is_empty() {
            return Err(
                "no virtual function offers public-key operations: set cfg_services of the card to asym"
                    .to_owned(),
            );
        }
        Ok((session, rings))
    }

    fn rings(&self) -> Result<Vec<Ring>, String> {
        let call = &self.library.functions;
        let mut count = 0_u16;
        // SAFETY: writes a number.
        let status = unsafe { (call.instance_count)(&raw mut count) };
        let mut handles = vec![ptr::null_mut(); usize::from(count)];
        // SAFETY: the array has that many elements.
        if status != SUCCESS || unsafe { (call.instances)(count, handles.as_mut_ptr()) } != SUCCESS
        {
            return Ok(Vec::new());
        }
        let mut rings = Vec::new();
        for handle in handles {
            // SAFETY: all zeros is a value of the structure, and the handle is from the library.
            let mut capabilities: Capabilities = unsafe { std::mem::zeroed() };
            // SAFETY: as above; the structure has the size that the library writes.
            let status = unsafe { (call.capabilities)(handle, &raw mut capabilities) };
            if status != SUCCESS || capabilities.rsa == 0 {
                continue;
            }
            let mut info = InstanceInfo::empty();
            // SAFETY: the structure has the size that the library writes.
            let status = unsafe { (call.info)(handle, &raw mut info) };
            if status != SUCCESS || !info.is_polled() {
                continue;
            }
            // SAFETY: handle and function are the libraries' own; the callback is a function.
            let started = unsafe {
                (call.set_translation)(handle, self.library.shared.translation()) == SUCCESS
                    && (call.start_instance)(handle) == SUCCESS
                    && (call.notify)(handle, notified, ptr::null_mut()) == SUCCESS
            };
            if !started {
                return Err(
                    "an instance of the card does not start: see the kernel's log".to_owned()
                );
            }
            let function = info.address();
            let of_function = |ring: &&Ring| ring.function == function;
            let number = rings.iter().filter(of_function).count();
            let name = format!("{function}/{number}");
            rings.push(Ring::new(&self.library, handle, function, name)?);
        }
        Ok(rings)
    }

    /// Lets the library read the messages of the cards. May block for a second per function that is gone.
    pub(super) fn poll_events(&self) {
        self.shared.poll_events();
    }
}

/// Outcome of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submitted {
    Taken,
    /// All slots are in use.
    Full,
    /// The library does not have this size of key.
    NotOffered,
    /// The device does not serve now.
    Failed,
}

/// An answer, to be verified. The firmware's flag of failure is not passed on by the library, so a failed
/// operation comes as a wrong result.
pub(super) struct Answer<O> {
    pub(super) owner: O,
    pub(super) output: Result<Zeroizing<Vec<u8>>, ()>,
}

/// One instance of a card: slots for requests in device memory.
pub(super) struct Ring<O = (usize, u64)> {
    library: Arc<Library>,
    handle: Handle,
    /// Bus address of the instance's virtual function, without the domain: the library does not tell it.
    pub(super) function: String,
    /// Bus address of the virtual function, with the number of the instance in it.
    pub(super) name: String,
    memory: Region,
    /// Slots that stay in place for as long as the library may answer.
    slots: Box<[Slot<O>]>,
    free: Vec<usize>,
    process: u32,
    stopped: bool,
}

struct Slot<O> {
    status: AtomicI32,
    request: RsaDecryptOpData,
    output: FlatBuffer,
    owner: Option<O>,
    key: Option<Arc<KeyParts>>,
}

// SAFETY: handle and pointers are used under `&mut self` alone; the library has no thread affinity.
unsafe impl<O: Send> Send for Ring<O> {}

impl<O> Ring<O> {
    fn new(
        library: &Arc<Library>,
        handle: Handle,
        function: String,
        name: String,
    ) -> Result<Self, String> {
        let memory = library.region(SLOTS * 2 * LONGEST).ok_or(
            "no memory for the requests of a card: raise the limit of locked memory (memlock)",
        )?;
        let slot = |_| Slot {
            status: AtomicI32::new(PENDING),
            request: RsaDecryptOpData { key: ptr::null(), input: FlatBuffer::EMPTY },
            output: FlatBuffer::EMPTY,
            owner: None,
            key: None,
        };
        Ok(Self {
            library: Arc::clone(library),
            handle,
            function,
            name,
            memory,
            slots: (0..SLOTS).map(slot).collect(),
            free: (0..SLOTS).rev().collect(),
            process: std::process::id(),
            stopped: false,
        })
    }

    /// Slots that hold a request, the lost ones included.
    pub(super) fn in_flight(&self) -> usize {
        SLOTS - self.free.len()
    }

    /// Ends the use of the library for this ring: its session ends.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether the instance is in the state in which it serves. Asked after each reading of events.
    pub(super) fn runs(&self) -> bool {
        if !self.is_alive() {
            return false;
        }
        // SAFETY: all zeros is a value of the structure.
        let mut state: InstanceState = unsafe { std::mem::zeroed() };
        // SAFETY: an instance that was started and not stopped; the structure has the size that the library
        // writes.
        let status = unsafe { (self.library.functions.state)(self.handle, &raw mut state) };
        status == SUCCESS && state.state == RUNS
    }

    /// Whether the library may be called for this ring.
    pub(super) fn is_alive(&self) -> bool {
        !self.stopped && !is_broken() && self.process == std::process::id()
    }

    /// Hands `input^d mod n` to the card. `input` is as long as the modulus and below it.
    pub(super) fn submit(&mut self, key: &Arc<KeyParts>, input: &[u8], owner: O) -> Submitted {
        if !self.is_alive() || input.len() != key.modulus_len {
            return Submitted::Failed;
        }
        let Some(&index) = self.free.last() else {
            return Submitted::Full;
        };
        let at = index * 2 * LONGEST;
        self.memory.bytes_mut()[at..at + input.len()].copy_from_slice(input);
        let slot = &mut self.slots[index];
        slot.status.store(PENDING, Ordering::Release);
        slot.request = RsaDecryptOpData {
            key: &raw const key.layout,
            input: self.memory.buffer(at, input.len()),
        };
        slot.output = self.memory.buffer(at + LONGEST, input.len());
        let tag = (&raw const slot.status).cast_mut().cast();
        // SAFETY: request, key, input and output stay in place until the answer: the slot is not free, holds
        // the key, and neither slots nor memory move. All data is in regions.
        let status = unsafe {
            (self.library.functions.rsa_decrypt)(
                self.handle,
                answered,
                tag,
                &raw const slot.request,
                &raw mut slot.output,
            )
        };
        match status {
            SUCCESS => {
                slot.owner = Some(owner);
                slot.key = Some(Arc::clone(key));
                self.free.pop();
                Submitted::Taken
            }
            RETRY => Submitted::Full,
            INVALID | UNSUPPORTED => Submitted::NotOffered,
            _ => Submitted::Failed,
        }
    }

    /// Collects answers.
    pub(super) fn poll(&mut self, answers: &mut Vec<Answer<O>>) {
        if !self.is_alive() || self.free.len() == SLOTS {
            return;
        }
        // SAFETY: an instance that was started and not stopped, in the process that started it; this thread
        // alone uses it. 0: all answers that are there.
        unsafe { (self.library.functions.poll)(self.handle, 0) };
        for index in 0..SLOTS {
            let status = self.slots[index].status.load(Ordering::Acquire);
            let slot = &mut self.slots[index];
            if status == PENDING || slot.key.is_none() {
                continue;
            }
            slot.key = None;
            let owner = slot.owner.take();
            let (at, len) = (index * 2 * LONGEST, slot.output.len as usize);
            let used = &mut self.memory.bytes_mut()[at..at + 2 * LONGEST];
            let output = match status {
                SUCCESS => Ok(Zeroizing::new(used[LONGEST..LONGEST + len].to_vec())),
                _ => Err(()),
            };
            used.zeroize();
            self.free.push(index);
            if let Some(owner) = owner {
                answers.push(Answer { owner, output });
            }
        }
    }

    /// The answers to these requests are no longer waited for. Their slots stay in use until they come.
    pub(super) fn forget(&mut self, forgotten: impl Fn(&O) -> bool) {
        for slot in &mut self.slots {
            if slot.owner.as_ref().is_some_and(&forgotten) {
                slot.owner = None;
            }
        }
    }

    /// Slots whose answer is no longer waited for.
    pub(super) fn lost(&self) -> usize {
        let slots = self.slots.iter();
        slots.filter(|slot| slot.key.is_some() && slot.owner.is_none()).count()
    }
}
