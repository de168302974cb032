// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Intel's user-space library, opened at run time. Everything `unsafe` of this backend is here.
//!
//! ```text
//! QatLibrary ──► Session (userStart … userStop) ──► Ring (one instance: 63 slots of device memory)
//!      └───────► Region (device memory, zeroised when dropped)
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
//!   library keeps, over stop and start, that a card failed, and reports no second failure; and it hands a failure
//!   that came with requests in flight to the next session, too, without a word (`adf_user_device.c`,
//!   `accel_dev_error_stat` and `adf_event_queue`). So each reading of events is followed by [`Ring::runs`].
//! - **Fork.** Regions do not exist in a child; a ring is bound to the process that made it.

use std::ffi::{c_char, c_void};
use std::mem::{offset_of, size_of};
use std::ops::Range;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use millrace_qat::{
    ALIGNMENT, FlatBuffer, INVALID, InstanceInfo, Notified, PENDING, QatError, QatHandle as Handle,
    QatLibrary, QatRegion as Region, QatSession, QatStatus as Status, RETRY, SUCCESS, Translate,
    UNSUPPORTED, notified,
};
use zeroize::{Zeroize, Zeroizing};

pub(super) use millrace_qat::has_event as is_broken;

/// Requests in flight per instance: the library's ring has 64 places and keeps one free.
pub(super) const SLOTS: usize = 63;

/// Memory of a slot, in bytes: the three numbers of 8192 bits of an exponentiation, and its result.
const SLOT_LEN: usize = 4 * 1024;

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

/// `CpaCyEcCurve` with `CpaCyEcCurveParametersWeierstrass`: the curve y² = x³ + ax + b over the integers modulo p.
#[repr(C)]
#[derive(Clone, Copy)]
struct Curve {
    /// 1: over a prime field.
    kind: u32,
    /// The parameters are a structure of their own, with the alignment of a pointer.
    gap: u32,
    /// 1: a prime field.
    field: u32,
    p: FlatBuffer,
    a: FlatBuffer,
    b: FlatBuffer,
    cofactor: FlatBuffer,
}

/// `CpaCyEcGenericPointMultiplyOpData`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PointMultiplyOpData {
    scalar: FlatBuffer,
    x: FlatBuffer,
    y: FlatBuffer,
    curve: *const Curve,
    generator: u32,
}

/// `CpaCyEcMontEdwdsPointMultiplyOpData`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LadderOpData {
    /// 1: Curve25519.
    curve: u32,
    generator: u32,
    scalar: FlatBuffer,
    x: FlatBuffer,
    y: FlatBuffer,
}

/// `CpaCyLnModExpOpData`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PowerOpData {
    modulus: FlatBuffer,
    base: FlatBuffer,
    exponent: FlatBuffer,
}

/// `CpaInstanceInfo`: deprecated, and the only structure that tells whether an instance is in error.
#[repr(C)]
struct InstanceState {
    kind: u32,
    state: u32,
    name: [c_char; 64],
    version: [c_char; 64],
}

/// No status of the library: a multiplication that the firmware flagged.
const INVALID_RESULT: Status = i32::MAX - 1;

/// `CPA_INSTANCE_STATE_INITIALISED`: the instance runs.
const RUNS: u32 = 0;

/// `CpaCyCapabilitiesInfo`: booleans of 32 bits and a bitmap.
#[repr(C)]
struct Capabilities {
    before: [u32; 4],
    rsa: u32,
    curves: u32,
    between: [u32; 3],
    powers: u32,
    further: [u32; 7],
    ladders: u32,
    last: u32,
}

const _: () = {
    assert!(size_of::<RsaPrivateKey>() == 120);
    assert!(offset_of!(RsaPrivateKey, modulus_and_exponent) == 8);
    assert!(offset_of!(RsaPrivateKey, primes_and_parts) == 40);
    assert!(size_of::<RsaDecryptOpData>() == 24 && offset_of!(RsaDecryptOpData, input) == 8);
    assert!(size_of::<Curve>() == 80 && offset_of!(Curve, field) == 8);
    assert!(offset_of!(Curve, p) == 16 && offset_of!(Curve, cofactor) == 64);
    assert!(size_of::<PointMultiplyOpData>() == 64 && offset_of!(PointMultiplyOpData, x) == 16);
    assert!(offset_of!(PointMultiplyOpData, curve) == 48);
    assert!(offset_of!(PointMultiplyOpData, generator) == 56);
    assert!(size_of::<LadderOpData>() == 56 && offset_of!(LadderOpData, generator) == 4);
    assert!(offset_of!(LadderOpData, scalar) == 8 && offset_of!(LadderOpData, x) == 24);
    assert!(size_of::<PowerOpData>() == 48 && offset_of!(PowerOpData, exponent) == 32);
    assert!(size_of::<InstanceState>() == 136 && offset_of!(InstanceState, state) == 4);
    assert!(size_of::<Capabilities>() == 76 && offset_of!(Capabilities, rsa) == 16);
    assert!(offset_of!(Capabilities, curves) == 20 && offset_of!(Capabilities, powers) == 36);
    assert!(offset_of!(Capabilities, ladders) == 68);
};

type Answered = extern "C" fn(*mut c_void, Status, *mut c_void, *mut FlatBuffer);
/// The number after the operation is 0 if the result is not valid.
type Multiplied =
    extern "C" fn(*mut c_void, Status, *mut c_void, u32, *mut FlatBuffer, *mut FlatBuffer);
millrace_qat::functions! {
    struct Functions;
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
    multiply: fn(Handle, Multiplied, *mut c_void, *const PointMultiplyOpData, *mut u32, *mut FlatBuffer,
        *mut FlatBuffer) -> Status = b"cpaCyEcGenericPointMultiply" in qat;
    ladder: fn(Handle, Multiplied, *mut c_void, *const LadderOpData, *mut u32, *mut FlatBuffer,
        *mut FlatBuffer) -> Status = b"cpaCyEcMontEdwdsPointMultiply" in qat;
    power: fn(Handle, Answered, *mut c_void, *const PowerOpData, *mut FlatBuffer) -> Status
        = b"cpaCyLnModExp" in qat;
}

extern "C" fn answered(tag: *mut c_void, status: Status, _: *mut c_void, _: *mut FlatBuffer) {
    // SAFETY: every tag is that of a slot, which lives until the session has stopped.
    let slot = unsafe { &*tag.cast::<AtomicI32>() };
    slot.store(status, Ordering::Release);
}

extern "C" fn multiplied(
    tag: *mut c_void,
    status: Status,
    _: *mut c_void,
    valid: u32,
    _: *mut FlatBuffer,
    _: *mut FlatBuffer,
) {
    let status = if status == SUCCESS && valid == 0 { INVALID_RESULT } else { status };
    // SAFETY: every tag is that of a slot, which lives until the session has stopped.
    let slot = unsafe { &*tag.cast::<AtomicI32>() };
    slot.store(status, Ordering::Release);
}

/// Opens both libraries; see [`QatLibrary::open`].
///
/// # Errors
/// As there, and for a function that the backend needs.
pub(super) fn open(qat: &Path, memory: &Path, policy: u16) -> Result<Arc<QatLibrary>, QatError> {
    let library = QatLibrary::open(qat, memory, policy)?;
    library.find(Functions::of)?;
    Ok(library)
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
    pub(super) fn copy(library: &Arc<QatLibrary>, parts: [&[u8]; 5]) -> Option<Self> {
        let half = parts[0].len();
        assert!(parts.iter().all(|part| part.len() == half), "equal lengths");
        let mut region = library.region(5 * half.next_multiple_of(ALIGNMENT))?;
        let step = half.next_multiple_of(ALIGNMENT);
        for (part, at) in parts.iter().zip((0..).step_by(step)) {
            region.bytes_mut()[at..at + half].copy_from_slice(part);
        }
        Some(Self {
            layout: RsaPrivateKey {
                version: 1,
                representation: 2,
                modulus_and_exponent: [FlatBuffer::EMPTY; 2],
                primes_and_parts: [0, 1, 2, 3, 4].map(|index| region.buffer(index * step, half)),
            },
            modulus_len: 2 * half,
            _region: region,
        })
    }
}

/// The library between start and stop. There is one per process. Dropping it stops all instances: rings of this
/// session are not used any more then, see [`Ring::is_alive`].
pub(super) struct Session {
    library: Arc<QatLibrary>,
    functions: Arc<Functions>,
    shared: QatSession,
}

impl Session {
    /// Starts the library, and returns its RSA instances.
    ///
    /// # Errors
    /// [`QatError::NoService`] where no virtual function offers public-key operations, or why the library does not
    /// start.
    pub(super) fn start(library: &Arc<QatLibrary>) -> Result<(Self, Vec<Ring>), QatError> {
        let shared = QatSession::start(library)?;
        let functions = Arc::new(library.find(Functions::of)?);
        let session = Self { library: Arc::clone(library), functions, shared };
        let rings = session.rings()?;
        if rings.is_empty() {
            return Err(QatError::NoService { what: "public-key operations", services: "asym" });
        }
        Ok((session, rings))
    }

    fn rings(&self) -> Result<Vec<Ring>, QatError> {
        let call = &self.functions;
        let mut count = 0_u16;
        // SAFETY: writes a number.
        let status = unsafe { (call.instance_count)(&raw mut count) };
        let mut handles = vec![ptr::null_mut(); usize::from(count)];
        // SAFETY: the array has that many elements.
        if status != SUCCESS || unsafe { (call.instances)(count, handles.as_mut_ptr()) } != SUCCESS
        {
            return Ok(Vec::new());
        }
        let mut rings: Vec<Ring> = Vec::new();
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
                (call.set_translation)(handle, self.library.translation()) == SUCCESS
                    && (call.start_instance)(handle) == SUCCESS
                    && (call.notify)(handle, notified, ptr::null_mut()) == SUCCESS
            };
            if !started {
                return Err(QatError::Instance);
            }
            let function = info.address();
            let number = rings.iter().filter(|ring| ring.function == function).count();
            let name = format!("{function}/{number}");
            let offers = Offers {
                curves: capabilities.curves != 0,
                ladders: capabilities.ladders != 0,
                powers: capabilities.powers != 0,
            };
            rings.push(self.ring(handle, function, name, offers)?);
        }
        Ok(rings)
    }

    fn ring(
        &self,
        handle: Handle,
        function: String,
        name: String,
        offers: Offers,
    ) -> Result<Ring, QatError> {
        let memory = self
            .library
            .region(SLOTS * SLOT_LEN)
            .ok_or(QatError::Memory("the requests of a card"))?;
        let slots = std::iter::repeat_with(|| Slot {
            status: AtomicI32::new(PENDING),
            operation: SlotOperation::None,
            outputs: [FlatBuffer::EMPTY; 2],
            valid: 0,
            used: 0,
            results: 0..0,
            taken: false,
            owner: None,
            key: None,
        });
        Ok(Ring {
            functions: Arc::clone(&self.functions),
            handle,
            function,
            name,
            offers,
            memory,
            slots: slots.take(SLOTS).collect(),
            free: (0..SLOTS).rev().collect(),
            process: std::process::id(),
            stopped: false,
        })
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

/// An answer, to be verified. The library does not pass on the firmware's flag of failure for RSA and for powers, so
/// a failed operation comes as a wrong result.
pub(super) struct Answer<O> {
    pub(super) owner: O,
    /// The result; of a multiplication on a curve x and y, each as long as the scalar.
    pub(super) output: Result<Zeroizing<Vec<u8>>, ()>,
}

/// One operation for a card. Numbers are big-endian; all of one operation have the length that the card's function
/// works on, since the library copies others to memory that it does not zeroise.
pub(super) enum Request {
    /// `input^d mod n`, with an input as long as the modulus and below it.
    Root { key: Arc<KeyParts>, input: Zeroizing<Vec<u8>> },
    /// A multiple of the point x, y.
    Multiply { curve: CurveNumbers, scalar: Zeroizing<Vec<u8>>, point: [Vec<u8>; 2] },
    /// The x coordinate of a multiple of a point on Curve25519.
    Ladder { scalar: Zeroizing<[u8; 32]>, x: [u8; 32] },
    /// `base^exponent mod modulus`.
    Power { modulus: Arc<Vec<u8>>, base: Zeroizing<Vec<u8>>, exponent: Zeroizing<Vec<u8>> },
}

/// p, a, b and the cofactor of a curve.
pub(super) type CurveNumbers = Arc<[Vec<u8>; 4]>;

/// The kinds of requests, beside RSA, that an instance has.
#[derive(Clone, Copy, Debug)]
struct Offers {
    curves: bool,
    ladders: bool,
    powers: bool,
}

impl Offers {
    fn has(self, request: &Request) -> bool {
        match request {
            Request::Root { .. } => true,
            Request::Multiply { .. } => self.curves,
            Request::Ladder { .. } => self.ladders,
            Request::Power { .. } => self.powers,
        }
    }
}

/// One instance of a card: slots for requests in device memory.
pub(super) struct Ring<O = (usize, u64)> {
    /// Of the session: not called after it, see [`Ring::is_alive`].
    functions: Arc<Functions>,
    handle: Handle,
    /// Bus address of the instance's virtual function, without the domain: the library does not tell it.
    pub(super) function: String,
    /// Bus address of the virtual function, with the number of the instance in it.
    pub(super) name: String,
    offers: Offers,
    memory: Region,
    /// Slots that stay in place for as long as the library may answer.
    slots: Box<[Slot<O>]>,
    free: Vec<usize>,
    process: u32,
    stopped: bool,
}

struct Slot<O> {
    status: AtomicI32,
    operation: SlotOperation,
    /// The result, or both coordinates of one.
    outputs: [FlatBuffer; 2],
    /// Written by the library where a call has no callback, so never.
    valid: u32,
    /// Bytes of the slot's memory that the request uses, and where its results are in them.
    used: usize,
    results: Range<usize>,
    taken: bool,
    owner: Option<O>,
    key: Option<Arc<KeyParts>>,
}

/// The structure of a request that the library reads until the answer.
enum SlotOperation {
    None,
    Root(RsaDecryptOpData),
    Multiply(Curve, PointMultiplyOpData),
    Ladder(LadderOpData),
    Power(PowerOpData),
}

/// The memory of one slot, filled from its start.
struct SlotMemory<'a> {
    memory: &'a mut Region,
    start: usize,
    used: usize,
}

impl SlotMemory<'_> {
    /// Room for a number.
    fn room(&mut self, len: usize) -> FlatBuffer {
        assert!(self.used + len <= SLOT_LEN, "numbers of a request fit its slot");
        let buffer = self.memory.buffer(self.start + self.used, len);
        self.used += len.next_multiple_of(ALIGNMENT);
        buffer
    }

    /// Copies a number.
    fn copy(&mut self, number: &[u8]) -> FlatBuffer {
        let at = self.start + self.used;
        let buffer = self.room(number.len());
        self.memory.bytes_mut()[at..at + number.len()].copy_from_slice(number);
        buffer
    }
}

// SAFETY: handle and pointers are used under `&mut self` alone; the library has no thread affinity.
unsafe impl<O: Send> Send for Ring<O> {}

impl<O> Ring<O> {
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
        let status = unsafe { (self.functions.state)(self.handle, &raw mut state) };
        status == SUCCESS && state.state == RUNS
    }

    /// Whether the library may be called for this ring.
    pub(super) fn is_alive(&self) -> bool {
        !self.stopped && !is_broken() && self.process == std::process::id()
    }

    /// Hands a request to the card.
    pub(super) fn submit(&mut self, request: &Request, owner: O) -> Submitted {
        if !self.is_alive() || !is_well_formed(request) {
            return Submitted::Failed;
        }
        if !self.offers.has(request) {
            return Submitted::NotOffered;
        }
        let Some(&index) = self.free.last() else {
            return Submitted::Full;
        };
        self.fill(index, request);
        let status = self.call(index);
        match status {
            SUCCESS => {
                let slot = &mut self.slots[index];
                slot.taken = true;
                slot.owner = Some(owner);
                self.free.pop();
                Submitted::Taken
            }
            status => {
                self.empty(index);
                match status {
                    RETRY => Submitted::Full,
                    INVALID | UNSUPPORTED => Submitted::NotOffered,
                    _ => Submitted::Failed,
                }
            }
        }
    }

    /// Copies the numbers of a request to its slot, and describes them for the library.
    fn fill(&mut self, index: usize, request: &Request) {
        let slot = &mut self.slots[index];
        let start = index * SLOT_LEN;
        slot.status.store(PENDING, Ordering::Release);
        let mut memory = SlotMemory { memory: &mut self.memory, start, used: 0 };
        let (operation, len, outputs) = match request {
            Request::Root { key, input } => {
                slot.key = Some(Arc::clone(key));
                let key = &raw const key.layout;
                let input = memory.copy(input);
                (SlotOperation::Root(RsaDecryptOpData { key, input }), input.len as usize, 1)
            }
            Request::Multiply { curve, scalar, point } => {
                let [p, a, b, cofactor] = [0, 1, 2, 3].map(|number| memory.copy(&curve[number]));
                let curve = Curve { kind: 1, gap: 0, field: 1, p, a, b, cofactor };
                let [x, y] = [0, 1].map(|coordinate| memory.copy(&point[coordinate]));
                let data = PointMultiplyOpData {
                    scalar: memory.copy(scalar.as_slice()),
                    x,
                    y,
                    curve: ptr::null(),
                    generator: 0,
                };
                (SlotOperation::Multiply(curve, data), scalar.len(), 2)
            }
            Request::Ladder { scalar, x } => {
                let data = LadderOpData {
                    curve: 1,
                    generator: 0,
                    scalar: memory.copy(scalar.as_slice()),
                    x: memory.copy(x),
                    y: FlatBuffer::EMPTY,
                };
                (SlotOperation::Ladder(data), x.len(), 1)
            }
            Request::Power { modulus, base, exponent } => {
                let data = PowerOpData {
                    modulus: memory.copy(modulus),
                    base: memory.copy(base),
                    exponent: memory.copy(exponent),
                };
                (SlotOperation::Power(data), modulus.len(), 1)
            }
        };
        let results = memory.used;
        slot.outputs = [FlatBuffer::EMPTY; 2];
        for output in &mut slot.outputs[..outputs] {
            *output = memory.room(len);
        }
        slot.used = memory.used;
        slot.results = results..slot.used;
        slot.operation = operation;
        // The slot stays where it is, so the operation may name its curve.
        if let SlotOperation::Multiply(curve, data) = &mut slot.operation {
            data.curve = &raw const *curve;
        }
    }

    /// Has the library take the request of a slot.
    fn call(&mut self, index: usize) -> Status {
        let call = &self.functions;
        let handle = self.handle;
        let slot = &mut self.slots[index];
        let tag = (&raw const slot.status).cast_mut().cast();
        let [output, second] = &mut slot.outputs;
        let output = &raw mut *output;
        let second = &raw mut *second;
        let valid = &raw mut slot.valid;
        // SAFETY, for the four calls: request, key, curve, input and output stay in place until the answer: the slot
        // is not free, holds the key, and neither slots nor memory move. All data is in regions.
        match &slot.operation {
            SlotOperation::None => INVALID,
            SlotOperation::Root(data) => {
                // SAFETY: see above.
                unsafe { (call.rsa_decrypt)(handle, answered, tag, data, output) }
            }
            SlotOperation::Multiply(_, data) => {
                // SAFETY: see above.
                unsafe { (call.multiply)(handle, multiplied, tag, data, valid, output, second) }
            }
            SlotOperation::Ladder(data) => {
                // SAFETY: see above; the second output describes no memory, since there is no y.
                unsafe { (call.ladder)(handle, multiplied, tag, data, valid, output, second) }
            }
            SlotOperation::Power(data) => {
                // SAFETY: see above.
                unsafe { (call.power)(handle, answered, tag, data, output) }
            }
        }
    }

    /// Zeroises what a request left, and forgets its key.
    fn empty(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let start = index * SLOT_LEN;
        self.memory.bytes_mut()[start..start + slot.used].zeroize();
        slot.operation = SlotOperation::None;
        slot.key = None;
        slot.taken = false;
    }

    /// Collects answers.
    pub(super) fn poll(&mut self, answers: &mut Vec<Answer<O>>) {
        if !self.is_alive() || self.free.len() == SLOTS {
            return;
        }
        // SAFETY: an instance that was started and not stopped, in the process that started it; this thread
        // alone uses it. 0: all answers that are there.
        unsafe { (self.functions.poll)(self.handle, 0) };
        for index in 0..SLOTS {
            let slot = &mut self.slots[index];
            let status = slot.status.load(Ordering::Acquire);
            if status == PENDING || !slot.taken {
                continue;
            }
            let owner = slot.owner.take();
            let output = match status {
                SUCCESS => Ok(self.results(index)),
                _ => Err(()),
            };
            self.empty(index);
            self.free.push(index);
            if let Some(owner) = owner {
                answers.push(Answer { owner, output });
            }
        }
    }

    /// The results in a slot, one after the other.
    fn results(&mut self, index: usize) -> Zeroizing<Vec<u8>> {
        let slot = &self.slots[index];
        let start = index * SLOT_LEN;
        let mut bytes = Zeroizing::new(Vec::with_capacity(slot.results.len()));
        let mut at = start + slot.results.start;
        for output in &slot.outputs {
            let len = output.len as usize;
            bytes.extend_from_slice(&self.memory.bytes_mut()[at..at + len]);
            at += len.next_multiple_of(ALIGNMENT);
        }
        bytes
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
        slots.filter(|slot| slot.taken && slot.owner.is_none()).count()
    }
}

/// Whether the numbers have the lengths that the card's functions ask for.
fn is_well_formed(request: &Request) -> bool {
    match request {
        Request::Root { key, input } => input.len() == key.modulus_len,
        Request::Multiply { curve, scalar, point } => {
            let numbers = curve[..3].iter().chain(point);
            numbers.chain([&**scalar]).all(|number| number.len() == scalar.len())
        }
        Request::Ladder { .. } => true,
        Request::Power { modulus, base, exponent } => {
            base.len() == modulus.len() && exponent.len() == modulus.len()
        }
    }
}
