// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The calls for compression of Intel's library, and what a process needs for its own thread in a server.
//! `crates/qat` says what must hold for all calls; `tests/qat/layout_dc.c` compares the structures with Intel's
//! headers.
//!
//! The interface without sessions is used (`cpaDcNsCompressData`): nothing of a stream is kept by the library.

use std::ffi::c_void;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::{self, JoinHandle};

use millrace_qat::{
    ALIGNMENT, FlatBuffer, INVALID, InstanceInfo, Notified, PENDING, QatError, QatHandle as Handle,
    QatLibrary, QatRegion as Region, QatSession, QatStatus as Status, RETRY, SUCCESS, Translate,
    UNSUPPORTED, notified,
};

use crate::engine::ChunkEnd;

/// Bound on the input of a request, in bytes: the largest memory that a stream gets is 392 KiB.
pub(super) const MAX_INPUT_LEN: usize = 400 * 1024;

/// Room for input that does not compress, in bytes: stored blocks with their headers. All of it is offered for each
/// request: the library refuses less than some hundred bytes.
const MAX_OUTPUT_LEN: usize = MAX_INPUT_LEN + 4096;

/// `CpaBufferList`.
#[repr(C)]
struct BufferList {
    count: u32,
    buffers: *mut FlatBuffer,
    user: *mut c_void,
    meta: *mut c_void,
}

/// `CpaDcNsSetupData`.
#[repr(C)]
struct Setup {
    level: u32,
    kind: u32,
    huffman: u32,
    auto_select: u32,
    direction: u32,
    state: u32,
    window: u32,
    min_match: u32,
    lz4: [u32; 3],
    checksum: u32,
    accumulate: u32,
}

/// `CpaDcOpData`.
#[repr(C)]
struct Operation {
    flush: u32,
    verify: u32,
    verify_and_recover: u32,
    integrity: [u32; 3],
    skip: [u32; 8],
    checksums: *mut c_void,
}

/// `CpaDcRqResults`.
#[repr(C)]
struct Results {
    status: i32,
    produced: u32,
    consumed: u32,
    checksum: u32,
    end_of_last_block: u32,
    uncompressed: u32,
}

const _: () = {
    assert!(size_of::<BufferList>() == 32 && offset_of!(BufferList, buffers) == 8);
    assert!(offset_of!(BufferList, meta) == 24);
    assert!(size_of::<Setup>() == 52 && offset_of!(Setup, state) == 20);
    assert!(offset_of!(Setup, window) == 24 && offset_of!(Setup, checksum) == 44);
    assert!(size_of::<Operation>() == 64 && offset_of!(Operation, integrity) == 12);
    assert!(offset_of!(Operation, skip) == 24 && offset_of!(Operation, checksums) == 56);
    assert!(size_of::<Results>() == 24 && offset_of!(Results, consumed) == 8);
};

/// `CPA_DC_DEFLATE`.
const DEFLATE: u32 = 3;
/// `CPA_DC_HT_FULL_DYNAMIC`: codes made for each block.
const DYNAMIC: u32 = 2;
/// `CPA_DC_ASB_ENABLED`: stored or fixed blocks where those are shorter.
const BEST_BLOCKS: u32 = 4;
/// `CPA_DC_DIR_COMPRESS`.
const COMPRESS: u32 = 0;
/// `CPA_DC_STATELESS`.
const STATELESS: u32 = 1;
/// `CPA_DC_WINSIZE_32K`.
const WINDOW_32K: u32 = 3;
/// `CPA_DC_FLUSH_FINAL`: the last block is final.
const FLUSH_FINAL: u32 = 1;
/// `CPA_DC_FLUSH_FULL`: no block is final, and the output ends at a byte.
const FLUSH_FULL: u32 = 3;
/// `CPA_DC_OVERFLOW`.
const OVERFLOW: i32 = -11;
/// No code of Intel's: success, and not all of the input was consumed.
const NOTHING_DONE: i32 = -1000;

type Answered = extern "C" fn(*mut c_void, Status);

millrace_qat::functions! {
    struct Functions;
    instance_count: fn(*mut u16) -> Status = b"cpaDcGetNumInstances" in qat;
    instances: fn(u16, *mut Handle) -> Status = b"cpaDcGetInstances" in qat;
    info: fn(Handle, *mut InstanceInfo) -> Status = b"cpaDcInstanceGetInfo2" in qat;
    set_translation: fn(Handle, Translate) -> Status = b"cpaDcSetAddressTranslation" in qat;
    intermediate_buffers: fn(Handle, *mut u16) -> Status = b"cpaDcGetNumIntermediateBuffers" in qat;
    start_instance: fn(Handle, u16, *mut *mut BufferList) -> Status = b"cpaDcStartInstance" in qat;
    notify: fn(Handle, Notified, *mut c_void) -> Status = b"cpaDcInstanceSetNotificationCb" in qat;
    meta_size: fn(Handle, u32, *mut u32) -> Status = b"cpaDcBufferListGetMetaSize" in qat;
    compress: fn(Handle, *mut Setup, *mut BufferList, *mut BufferList, *mut Operation, *mut Results, Answered, *mut c_void) -> Status
        = b"cpaDcNsCompressData" in qat;
    poll: fn(Handle, u32) -> Status = b"icp_sal_DcPollInstance" in qat;
}

extern "C" fn answered(tag: *mut c_void, status: Status) {
    // SAFETY: every tag is the status of a request, which lives until the session has stopped.
    let place = unsafe { &*tag.cast::<AtomicI32>() };
    place.store(status, Ordering::Release);
}

/// Opens both libraries; see [`QatLibrary::open`].
pub(super) fn open(qat: &Path, memory: &Path, policy: u16) -> Result<Arc<QatLibrary>, QatError> {
    let library = QatLibrary::open(qat, memory, policy)?;
    library.find(Functions::of)?;
    Ok(library)
}

/// Starts the library, and returns its instances for compression. They are dropped after the session.
pub(super) fn start(library: &Arc<QatLibrary>) -> Result<(QatSession, Vec<Instance>), QatError> {
    let session = QatSession::start(library)?;
    let functions = Arc::new(library.find(Functions::of)?);
    let instances = Service { library, functions: &functions }.instances()?;
    if instances.is_empty() {
        return Err(QatError::NoService { what: "compression", services: "dc" });
    }
    Ok((session, instances))
}

/// The parts from which a session's instances are made.
struct Service<'a> {
    library: &'a Arc<QatLibrary>,
    functions: &'a Arc<Functions>,
}

impl Service<'_> {
    fn instances(&self) -> Result<Vec<Instance>, QatError> {
        let call = self.functions;
        let mut count = 0_u16;
        // SAFETY: writes a number.
        let status = unsafe { (call.instance_count)(&raw mut count) };
        let mut handles = vec![ptr::null_mut(); usize::from(count)];
        // SAFETY: the array has that many elements.
        if status != SUCCESS || unsafe { (call.instances)(count, handles.as_mut_ptr()) } != SUCCESS
        {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for handle in handles {
            let mut info = InstanceInfo::empty();
            // SAFETY: the structure has the size that the library writes; the handle is from the library.
            let status = unsafe { (call.info)(handle, &raw mut info) };
            let mut buffers = 0_u16;
            // SAFETY: writes a number.
            let known = unsafe { (call.intermediate_buffers)(handle, &raw mut buffers) };
            // Cards of earlier generations need memory between two of their stages.
            if status != SUCCESS || known != SUCCESS || !info.is_polled() || buffers > 0 {
                continue;
            }
            // SAFETY: handle and function are the libraries' own; the callback is a function.
            let started = unsafe {
                (call.set_translation)(handle, self.library.translation()) == SUCCESS
                    && (call.start_instance)(handle, 0, ptr::null_mut()) == SUCCESS
                    && (call.notify)(handle, notified, ptr::null_mut()) == SUCCESS
            };
            if !started {
                return Err(QatError::Instance);
            }
            found.push(Instance::new(self, handle)?);
        }
        Ok(found)
    }
}

/// Outcome of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submitted {
    Taken,
    /// The ring is full: others use the card, too.
    Full,
    /// The library refuses the parameters.
    NotOffered(Status),
    /// The device does not serve now.
    Refused(Status),
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The output has this many bytes.
    Done(usize),
    /// The output is longer than the room for it.
    Overflow,
    /// The request failed, with this status of the library or of the card.
    Failed(i32),
}

/// One instance of a card, with memory for one request.
pub(super) struct Instance {
    /// Of the session: not called after it.
    functions: Arc<Functions>,
    handle: Handle,
    /// Input, output, and the card's lists of both.
    memory: Region,
    meta: usize,
    /// Written by the library while a request is in flight; freed with the instance.
    request: NonNull<Request>,
    in_flight: bool,
}

/// Data that the library reads and writes for a request, by address: they must not move while it is in flight.
struct Request {
    status: AtomicI32,
    setup: Setup,
    operation: Operation,
    results: Results,
    pieces: [FlatBuffer; 2],
    lists: [BufferList; 2],
}

// SAFETY: handle and pointers are used under `&mut self` alone; the library has no thread affinity.
unsafe impl Send for Instance {}

impl Instance {
    fn new(service: &Service<'_>, handle: Handle) -> Result<Self, QatError> {
        let mut meta = 0_u32;
        // SAFETY: writes a number.
        let status = unsafe { (service.functions.meta_size)(handle, 1, &raw mut meta) };
        let meta = usize::try_from(meta).unwrap_or(0).next_multiple_of(ALIGNMENT);
        if status != SUCCESS {
            return Err(QatError::Lists(status));
        }
        let size = MAX_INPUT_LEN + MAX_OUTPUT_LEN + 2 * meta;
        let memory =
            service.library.region(size).ok_or(QatError::Memory("the requests of a card"))?;
        let list = || BufferList {
            count: 1,
            buffers: ptr::null_mut(),
            user: ptr::null_mut(),
            meta: ptr::null_mut(),
        };
        let request = Box::new(Request {
            status: AtomicI32::new(PENDING),
            setup: Setup {
                level: 1,
                kind: DEFLATE,
                huffman: DYNAMIC,
                auto_select: BEST_BLOCKS,
                direction: COMPRESS,
                state: STATELESS,
                window: WINDOW_32K,
                min_match: 0,
                lz4: [0; 3],
                checksum: 0,
                accumulate: 0,
            },
            operation: Operation {
                flush: FLUSH_FINAL,
                verify: 1,
                verify_and_recover: 0,
                integrity: [0; 3],
                skip: [0; 8],
                checksums: ptr::null_mut(),
            },
            results: Results {
                status: 0,
                produced: 0,
                consumed: 0,
                checksum: 0,
                end_of_last_block: 0,
                uncompressed: 0,
            },
            pieces: [FlatBuffer::EMPTY; 2],
            lists: [list(), list()],
        });
        Ok(Self {
            functions: Arc::clone(service.functions),
            handle,
            memory,
            meta,
            request: NonNull::from(Box::leak(request)),
            in_flight: false,
        })
    }

    /// Hands the input to the card. Nothing may be in flight.
    pub(super) fn submit(&mut self, level: u8, input: &[u8], end: ChunkEnd) -> Submitted {
        assert!(!self.in_flight && input.len() <= MAX_INPUT_LEN, "one request, that fits");
        self.memory.bytes_mut()[..input.len()].copy_from_slice(input);
        let request = self.request.as_ptr();
        // SAFETY: made by `new`; nothing is in flight, so that the library does not use it.
        let fields = unsafe { &mut *request };
        fields.status.store(PENDING, Ordering::Release);
        fields.setup.level = u32::from(level.clamp(1, 9));
        fields.operation.flush = match end {
            ChunkEnd::Final => FLUSH_FINAL,
            ChunkEnd::Open => FLUSH_FULL,
        };
        fields.results.checksum = 0;
        fields.pieces =
            [self.memory.buffer(0, input.len()), self.memory.buffer(MAX_INPUT_LEN, MAX_OUTPUT_LEN)];
        for (index, list) in fields.lists.iter_mut().enumerate() {
            // SAFETY: an element of the request's own array.
            list.buffers = unsafe { (&raw mut (*request).pieces).cast::<FlatBuffer>().add(index) };
            let meta = MAX_INPUT_LEN + MAX_OUTPUT_LEN + index * self.meta;
            list.meta = self.memory.buffer(meta, self.meta).data.cast();
        }
        // SAFETY: the request lives until the session has stopped, and its data is in a region. The pointers are
        // made from the allocation, which nothing else refers to while the request is in flight.
        let status = unsafe {
            let lists = (&raw mut (*request).lists).cast::<BufferList>();
            (self.functions.compress)(
                self.handle,
                &raw mut (*request).setup,
                lists,
                lists.add(1),
                &raw mut (*request).operation,
                &raw mut (*request).results,
                answered,
                (&raw mut (*request).status).cast(),
            )
        };
        match status {
            SUCCESS => {
                self.in_flight = true;
                Submitted::Taken
            }
            RETRY => Submitted::Full,
            INVALID | UNSUPPORTED => Submitted::NotOffered(status),
            refused => Submitted::Refused(refused),
        }
    }

    /// Whether the card has a request that it has not answered.
    pub(super) fn is_waiting(&self) -> bool {
        self.in_flight
    }

    /// The answer, if it has come.
    pub(super) fn poll(&mut self) -> Option<Answer> {
        // SAFETY: an instance that was started and not stopped; this thread alone uses it. 0: all answers that are
        // there.
        unsafe { (self.functions.poll)(self.handle, 0) };
        let request = self.request.as_ptr();
        // SAFETY: made by `new`; the library writes it only within `poll`.
        let (status, results) =
            unsafe { ((*request).status.load(Ordering::Acquire), &(*request).results) };
        if !self.in_flight || status == PENDING {
            return None;
        }
        self.in_flight = false;
        // SAFETY: as above.
        let input = unsafe { (*request).pieces[0].len };
        Some(match (status, results.status) {
            // What the firmware flags as failed without an error comes as success, with nothing consumed.
            (SUCCESS, 0)
                if results.consumed != input || results.produced as usize > MAX_OUTPUT_LEN =>
            {
                Answer::Failed(NOTHING_DONE)
            }
            (SUCCESS, 0) => Answer::Done(results.produced as usize),
            (SUCCESS, OVERFLOW) => Answer::Overflow,
            (SUCCESS, failed) | (failed, _) => Answer::Failed(failed),
        })
    }

    /// Output of the card.
    pub(super) fn output(&mut self, length: usize) -> &[u8] {
        &self.memory.bytes_mut()[MAX_INPUT_LEN..MAX_INPUT_LEN + length]
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`; the session has stopped, so that the library does not use it.
        drop(unsafe { Box::from_raw(self.request.as_ptr()) });
    }
}

/// Starts a thread that takes no signal: in a server those are for the thread that runs its loop.
pub(super) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: writes the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: both sets are valid places; a new thread inherits the mask of the one that starts it.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let started = thread::Builder::new().name(name.to_owned()).spawn(body);
    // SAFETY: written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    started
}

/// Has a function called when the program exits, before the libraries that are loaded now end.
pub(super) fn at_exit(function: extern "C" fn()) {
    // SAFETY: a function that lives as long as the program.
    unsafe { libc::atexit(function) };
}
