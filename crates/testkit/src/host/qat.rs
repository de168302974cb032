// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Machines with QAT cards that exist only in tests. `tests/qat/card.c`, preloaded into a process, stands in for
//! the cards under Intel's unmodified library, in the versions that `scripts/qat-libraries.sh` unpacks.
//!
//! A test runs itself again in the root of one of these versions:
//!
//! ```no_run
//! use millrace_testkit::qat::{QatMachine, VERSIONS, inside};
//!
//! #[test]
//! fn card_does_something() {
//!     if let Some(controls) = inside() {
//!         controls.set(millrace_testkit::qat::LATENCY_US, 400);
//!         return;
//!     }
//!     for version in VERSIONS {
//!         QatMachine::new(version, 1, 1).expect("a machine").run_test("card_does_something");
//!     }
//! }
//! ```

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use thiserror::Error;

/// The Debian releases whose library is tested: 24.02 of Debian 13, and that of unstable.
pub const VERSIONS: [&str; 2] = ["trixie", "sid"];

/// The folder of the machine, in the environment of a process on it.
const ROOT: &str = "MILLRACE_QAT_ROOT";

/// Offsets of the controls that a test sets, 32 bits each: `struct controls` of `card.c`.
pub const LATENCY_US: u64 = 0;
/// Every n-th answer has a wrong bit.
pub const WRONG_EVERY: u64 = 4;
/// Every n-th answer carries the firmware's flag of failure.
pub const FAIL_EVERY: u64 = 8;
/// Every n-th request is never answered.
pub const LOSE_EVERY: u64 = 12;
/// Requests stay in the rings.
pub const HOLD: u64 = 16;
/// Number of the next event.
const EVENT: u64 = 20;
/// Count of the events.
const EVENT_NUMBER: u64 = 24;
/// Threads that compute.
pub const ENGINES: u64 = 28;
/// Services of the rings, as [`ALL_COMPRESSION`]; 0: public keys. Set before the library starts.
pub const RING_MAP: u64 = 32;

/// Count of the searches.
const SEARCH_NUMBER: u64 = 36;

/// Every ring of a virtual function compresses: three bits for each of the four.
pub const ALL_COMPRESSION: u32 = 2 | 2 << 3 | 2 << 6 | 2 << 9;

/// Offsets of the counters, 64 bits each.
pub const REQUESTS: u64 = 64;
/// Answers written.
pub const ANSWERS: u64 = 72;
/// Answers with a wrong bit.
pub const WRONG: u64 = 80;
/// Answers with the flag of failure.
pub const FAILED: u64 = 88;
/// Requests that were not answered.
pub const LOST: u64 = 96;
/// Accesses outside the memory that is mapped for the card.
pub const DMA_FAULTS: u64 = 104;
/// Requests of functions that the stand-in does not have.
pub const UNKNOWN_FUNCTIONS: u64 = 112;
/// Most requests in flight at once.
pub const MAX_IN_FLIGHT: u64 = 120;
/// Requests in flight.
pub const IN_FLIGHT: u64 = 128;
/// Searches that ended.
const SEARCHES: u64 = 136;
/// Finds of the last search.
const FOUND: u64 = 144;
/// Requests that the card still had when their ring was turned off, while no event explains it.
pub const ABANDONED: u64 = 152;

/// Why there is no machine, or why layouts differ.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QatMachineError {
    /// A program is missing, or cannot be run.
    #[error("{program} cannot run: {reason}")]
    NotRun {
        /// The program.
        program: &'static str,
        /// The operating system's reason.
        reason: String,
    },
    /// A program ended with an error.
    #[error("{program} failed: {}", output.lines().last().unwrap_or_default())]
    Failed {
        /// The program.
        program: &'static str,
        /// Its error output, of which a message has the last line.
        output: String,
    },
    /// The compiled stand-in cannot be put in its place.
    #[error("the stand-in cannot be renamed: {0}")]
    Rename(String),
}

/// A message of the physical function to all virtual functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardEvent {
    /// A reset begins; what is in flight is lost.
    Restarting = 1,
    /// The card has failed; what is in flight is lost.
    Fatal = 4,
    /// The reset has ended.
    Restarted = 5,
}

/// The file through which a test and the stand-in speak.
#[derive(Debug)]
pub struct QatControls {
    file: File,
    folder: PathBuf,
}

impl QatControls {
    fn open(root: &Path) -> std::io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(root.join("controls"))?;
        Ok(Self { file, folder: root.to_owned() })
    }

    /// Sets a control.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn set(&self, control: u64, value: u32) {
        let written = self.file.write_all_at(&value.to_ne_bytes(), control);
        written.expect("the controls can be written");
    }

    /// Reads a counter.
    ///
    /// # Panics
    /// If the file cannot be read.
    #[must_use]
    pub fn get(&self, counter: u64) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, counter).expect("the controls can be read");
        u64::from_ne_bytes(bytes)
    }

    /// Counts how often bytes, 16 to 1024, are in the memory that the cards can reach.
    ///
    /// # Panics
    /// If the files cannot be written, or no card answers within 10 s.
    #[must_use]
    pub fn count_in_memory(&self, needle: &[u8]) -> u64 {
        std::fs::write(self.folder.join("needle"), needle).expect("the folder of the machine");
        let before = self.get(SEARCHES);
        let number = u32::try_from(self.get(SEARCH_NUMBER) & u64::from(u32::MAX)).unwrap_or(0);
        self.set(SEARCH_NUMBER, number.wrapping_add(1));
        crate::wait::until("the card has searched", || self.get(SEARCHES) > before);
        self.get(FOUND)
    }

    /// Sends an event.
    pub fn send(&self, event: CardEvent) {
        let number = u32::try_from(self.get(EVENT_NUMBER) & u64::from(u32::MAX)).unwrap_or(0);
        self.set(EVENT, event as u32);
        self.set(EVENT_NUMBER, number.wrapping_add(1));
    }
}

/// The controls of the machine that this process runs on; `None` outside of one.
#[must_use]
pub fn inside() -> Option<QatControls> {
    let root = std::env::var_os(ROOT)?;
    QatControls::open(Path::new(&root)).ok()
}

/// Compiles `tests/qat/layout.c` and `layout_dc.c` with the headers of a version.
///
/// # Errors
/// [`QatMachineError::Failed`] with the differences.
pub fn compare_layouts(version: &str) -> Result<(), QatMachineError> {
    prepared()?;
    let headers = workspace().join("target/qat").join(version).join("usr/include/qat");
    let compiled = Command::new("cc")
        .args(["-fsyntax-only", "-Werror", "-Wno-unused", "-I"])
        .arg(headers)
        .args(["layout.c", "layout_dc.c"].map(|file| workspace().join("tests/qat").join(file)))
        .output();
    succeeded("cc", compiled)
}

/// A folder that is a machine with cards, and the release that runs on it. Removed when dropped.
#[derive(Debug)]
pub struct QatMachine {
    folder: PathBuf,
    release: PathBuf,
    card: PathBuf,
}

impl QatMachine {
    /// Makes a machine with `cards` cards of `functions` virtual functions each.
    ///
    /// # Errors
    /// The program that is missing or failed.
    pub fn new(version: &str, cards: u32, functions: u32) -> Result<Self, QatMachineError> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let workspace = workspace();
        let release = workspace.join("target/qat").join(version);
        prepared()?;
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("millrace-qat-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let made = Command::new(workspace.join("tests/qat/machine.sh"))
            .arg(&folder)
            .args([cards, functions].map(|count| count.to_string()))
            .output();
        succeeded("machine.sh", made)?;
        Ok(Self { folder, release, card: card_file() })
    }

    /// The controls of its cards.
    ///
    /// # Panics
    /// If the folder is gone.
    #[must_use]
    pub fn controls(&self) -> QatControls {
        QatControls::open(&self.folder).expect("the folder of the machine")
    }

    /// Files and variables that put another process on the machine: the stand-in to preload, and variables with the
    /// folder of the machine and with the files of Intel's libraries.
    #[must_use]
    pub fn parts(&self) -> (PathBuf, Vec<(&'static str, String)>) {
        let libraries = self.release.join("usr/lib/x86_64-linux-gnu");
        let paths = [
            (ROOT, self.folder.clone()),
            ("MILLRACE_QAT_LIBRARY", libraries.join("libqat.so.4")),
            ("MILLRACE_QAT_MEMORY", libraries.join("libusdm.so.0")),
        ];
        let variables = paths.map(|(name, path)| (name, path.display().to_string()));
        (self.card.clone(), variables.into())
    }

    /// The environment, as `NAME=VALUE`, of a program of this machine that shall see the cards.
    #[must_use]
    pub fn environment(&self) -> Vec<String> {
        let (card, variables) = self.parts();
        let mut environment = vec![format!("LD_PRELOAD={}", card.display())];
        environment.extend(variables.into_iter().map(|(name, value)| format!("{name}={value}")));
        environment
    }

    /// A program of the release, or of this workspace, on the machine.
    #[must_use]
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(workspace().join("scripts/in-root.sh"));
        command.arg(&self.release).arg("/usr/bin/env");
        command.args(self.environment()).arg(program.as_ref());
        command
    }

    /// Runs one test of the calling program on the machine.
    ///
    /// # Panics
    /// If it fails there.
    pub fn run_test(&self, name: &str) {
        let program = std::env::current_exe().expect("this program");
        let mut command = self.command(program);
        let output = command.args(["--exact", name, "--nocapture"]).output().expect("a process");
        let written = [&output.stdout[..], &output.stderr].concat();
        let said = String::from_utf8_lossy(&written);
        let passed = output.status.success() && said.contains("1 passed");
        assert!(passed, "on {}: {}: {said}", self.release.display(), output.status);
        println!("{said}");
    }
}

impl Drop for QatMachine {
    fn drop(&mut self) {
        // A folder that stays is in the temporary folder.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap_or_default()
}

fn card_file() -> PathBuf {
    workspace().join("target/qat/card.so")
}

/// Unpacks the libraries and compiles the stand-in, once per process.
fn prepared() -> Result<(), QatMachineError> {
    static PREPARED: OnceLock<Result<(), QatMachineError>> = OnceLock::new();
    PREPARED.get_or_init(prepare).clone()
}

fn prepare() -> Result<(), QatMachineError> {
    let unpacked = Command::new(workspace().join("scripts/qat-libraries.sh")).output();
    succeeded("qat-libraries.sh", unpacked)?;
    // Several test programs may compile it at once: each into a file of its own.
    let source = workspace().join("tests/qat/card.c");
    let fresh = card_file().with_extension(format!("{}", std::process::id()));
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&fresh)
        .arg(source)
        .args(["-lcrypto", "-lz", "-lpthread", "-ldl"])
        .output();
    succeeded("cc", compiled)?;
    std::fs::rename(fresh, card_file()).map_err(|error| QatMachineError::Rename(error.to_string()))
}

fn succeeded(
    program: &'static str,
    output: std::io::Result<Output>,
) -> Result<(), QatMachineError> {
    let ended =
        output.map_err(|error| QatMachineError::NotRun { program, reason: error.to_string() })?;
    if ended.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&ended.stderr).into_owned();
    Err(QatMachineError::Failed { program, output })
}
