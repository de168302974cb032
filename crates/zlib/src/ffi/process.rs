// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! State of the process: the program that runs, its settings, its counters. Decided before `main`, since nginx wipes
//! its environment.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};

use millrace_deflate::compressor::Compressor;
use millrace_deflate::isal::Isal;
use millrace_deflate::qat::{Card, CardFiles, QatEngine};
use millrace_deflate::settings::{CompressionSettings, DeviceUse};
use millrace_edge::compression::{BYTES, Counters, MEMORY_NAME};

use crate::program::Program;
use crate::stream::Tools;

unsafe extern "C" {
    /// The name of the running program, without its folder (glibc).
    static program_invocation_short_name: *const c_char;
}

/// Run by the dynamic linker before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

extern "C" fn before_main() {
    // A fault here must not keep a server from starting: without a process every call goes on to zlib.
    drop(std::panic::catch_unwind(|| {
        process();
    }));
}

/// A process whose streams are looked at.
pub(super) struct ServedProcess {
    pub(super) program: Program,
    pub(super) settings: CompressionSettings,
    pub(super) counters: Counters,
    /// `None` if ISA-L is not wanted, or not installed.
    isal: Option<Mutex<Isal>>,
    /// Opened before a server gives up its rights, started by the first chunk of a worker. `None` if no card is wanted,
    /// or none can be opened.
    card: Option<Arc<Card>>,
}

/// This process. `None` if the library does nothing in it.
pub(super) fn process() -> Option<&'static ServedProcess> {
    static PROCESS: OnceLock<Option<ServedProcess>> = OnceLock::new();
    PROCESS.get_or_init(find).as_ref()
}

fn find() -> Option<ServedProcess> {
    let (settings, problems) = CompressionSettings::read(|name| std::env::var(name).ok());
    let program = Program::named(&name()?, settings.scope)?;
    for problem in problems {
        log(&problem);
    }
    let isal = settings.isal.then(Isal::load).and_then(|loaded| match loaded {
        Ok(isal) => Some(Mutex::new(isal)),
        Err(error) => {
            log(&format!("{error}; libdeflate serves level 1, at half the speed"));
            None
        }
    });
    let counters = counters();
    let card = if settings.device == DeviceUse::Off {
        None
    } else {
        let files = CardFiles::read(|name| std::env::var(name).ok());
        Card::open(&files, counters, settings.device_time, log)
            .map_err(|error| log(&error.to_string()))
            .ok()
    };
    Some(ServedProcess { program, settings, counters, isal, card })
}

fn log(what: &str) {
    // A closed standard error is not an error of ours.
    drop(writeln!(std::io::stderr(), "millrace-zlib: {what}"));
}

/// The name of the program's file; where there is no `/proc`, the one that it was started with.
fn name() -> Option<Vec<u8>> {
    if let Ok(file) = fs::read_link("/proc/self/exe") {
        return Some(file.file_name()?.as_bytes().to_vec());
    }
    // SAFETY: glibc sets this before any constructor runs, to a C string that is valid until `main`.
    let name = unsafe { program_invocation_short_name };
    // SAFETY: as above.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes().to_vec())
}

/// Cells in a memory file that the workers of a server inherit and that `/proc/PID/fd` shows to others.
fn counters() -> Counters {
    shared_cells().map_or_else(Counters::private, Counters::on)
}

fn shared_cells() -> Option<&'static [AtomicU64]> {
    let name = CString::new(MEMORY_NAME).ok()?;
    let length = libc::off_t::try_from(BYTES).ok()?;
    // SAFETY: a C string.
    let file = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return None;
    }
    // SAFETY: the descriptor was made above.
    if unsafe { libc::ftruncate(file, length) } != 0 {
        return None;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of a file that is this long. The descriptor stays open, so that readers find it.
    let start = unsafe { libc::mmap(ptr::null_mut(), BYTES, access, libc::MAP_SHARED, file, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: zeroed, aligned to a page, never unmapped; all accesses are atomic.
    Some(unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>(), BYTES / 8) })
}

impl ServedProcess {
    fn tools(&self) -> Tools {
        let isal = self.isal.as_ref().and_then(|isal| isal.lock().ok()?.again());
        Tools {
            compressor: Compressor::new(
                self.settings,
                self.counters,
                isal,
                self.card.as_ref().map(QatEngine::on),
            ),
            output: Vec::new(),
        }
    }

    /// Runs `work` with this thread's engines.
    pub(super) fn with_tools<T>(&self, work: impl FnOnce(&mut Tools) -> T) -> T {
        thread_local! {
            static TOOLS: RefCell<Option<Box<Tools>>> = const { RefCell::new(None) };
        }
        // At the end of a thread they are gone; a stream may still be ended then.
        let taken = TOOLS.try_with(|tools| tools.try_borrow_mut().ok()?.take()).ok().flatten();
        let mut tools = taken.unwrap_or_else(|| Box::new(self.tools()));
        let result = work(&mut tools);
        let _ = TOOLS.try_with(|place| {
            if let Ok(mut place) = place.try_borrow_mut() {
                *place = Some(tools);
            }
        });
        result
    }

    /// Whether new streams find an engine.
    pub(super) fn is_useful(&self) -> bool {
        self.with_tools(|tools| tools.compressor.is_useful())
    }
}
