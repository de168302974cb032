// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A simulated device without a GPU. Its memory is in this process; its kernels are the CPU twin, compiled
//! once per version of the sources and run as child processes. Tests can make it fail.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};

use millrace_backends::cuda::device::{
    CudaDevice, CudaStore, CudaStream, DeviceError, DeviceFacts, Launch, LaunchEntry, LaunchOutcome,
};
use millrace_backends::cuda::{VARIANTS, Variant};
use millrace_operation::sync::lock;
use zeroize::Zeroizing;

/// Status that a kernel writes for a verified result; `RIGHT` in `kernels/rsa.h`.
const RIGHT: u32 = 0x600d_1e55;

/// The folder of the kernel sources.
pub(crate) fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda/kernels")
}

/// The compiled twin.
fn twin() -> &'static Path {
    static TWIN: OnceLock<PathBuf> = OnceLock::new();
    TWIN.get_or_init(|| compiled("cuda-twin", &kernels().join("twin.cpp"), &["-march=native"]))
}

/// Runs the twin under memcheck, compiled without the newest instructions, which memcheck does not know. It
/// runs one task of zeros, all marked as undefined; with `control` it also branches on one of them.
pub(crate) fn under_memcheck(variant: usize, control: bool) -> std::io::Result<Output> {
    let flags = ["-mavx2", "-mfma"];
    let program = compiled("cuda-twin-memcheck", &kernels().join("twin.cpp"), &flags);
    let mut message = Vec::new();
    let at = u32::try_from(variant).expect("few");
    for number in [at, 1, 0, 0, 0, 0, 0, if control { 2 } else { 1 }] {
        message.extend(number.to_ne_bytes());
    }
    message.extend(65_537_u64.to_ne_bytes());
    let variant = &VARIANTS[variant];
    let numbers = variant.key_bytes() + variant.pair_bytes() + 4 * variant.words();
    message.resize(message.len() + numbers, 0);
    let mut child = Command::new("valgrind")
        .args(["--quiet", "--error-exitcode=9"])
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(&message)?;
    drop(input);
    child.wait_with_output()
}

/// The folder with the driver that needs no GPU.
pub(crate) fn driver() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/driver.cpp");
    let library = compiled("cuda-driver", &source, &["-march=native", "-shared", "-fPIC"]);
    let folder = library.with_extension("d");
    fs::create_dir_all(&folder).expect("a folder");
    // Another test process may create the link at the same time.
    let link = folder.join("libcuda.so.1");
    if let Err(error) = std::os::unix::fs::symlink(&library, &link) {
        assert!(link.exists(), "{}: {error}", link.display());
    }
    folder
}

/// Compiles a C++ source, once per version of it and of the kernels, and returns the path of the result.
fn compiled(name: &str, source: &Path, flags: &[&str]) -> PathBuf {
    // One thread at a time: the name of the unfinished file differs between processes, not between threads.
    static COMPILING: Mutex<()> = Mutex::new(());
    let _turn = lock(&COMPILING);
    let mut sources: Vec<_> = fs::read_dir(kernels())
        .expect("the kernels")
        .map(|entry| entry.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "h"))
        .collect();
    sources.sort();
    sources.push(source.to_owned());
    let mut hash = openssl::sha::Sha256::new();
    for source in &sources {
        hash.update(&fs::read(source).expect("a source"));
    }
    let version: String = hash.finish()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let result = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{version}"));
    if !result.exists() {
        compile(source, flags, &result);
    }
    result
}

fn compile(source: &Path, flags: &[&str], result: &Path) {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    // Compile under another name first: other test processes may compile the same file.
    let unfinished = result.with_extension(std::process::id().to_string());
    let output = Command::new(&compiler)
        // Honour the rounding mode that is set at run time, and fuse only explicit fused operations.
        .args(["-std=c++17", "-O2"])
        .args(["-frounding-math", "-ffp-contract=off"])
        .args(["-Wall", "-Wextra", "-Wno-unknown-pragmas"])
        .args(flags)
        .arg("-I")
        .arg(kernels())
        .arg("-o")
        .arg(&unfinished)
        .arg(source)
        .output()
        .unwrap_or_else(|error| panic!("{} does not run: {error}", compiler.display()));
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} does not compile:\n{complaints}", source.display());
    fs::rename(&unfinished, result).expect("the result in its place");
}

/// A bit to flip in each task of a launch, in the number that is complete at a moment (see `Moment` in
/// `kernels/lanes.h`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Strike {
    pub(crate) moment: u32,
    pub(crate) thread: u32,
    pub(crate) digit: u32,
    pub(crate) bit: u32,
}

/// Number of moments, without moment 0, which never occurs.
pub(crate) const MOMENTS: u32 = 14;

/// The faults of a simulated device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    /// A bit that flips while it is computed.
    pub(crate) strike: Strike,
    /// A bit of each result that flips after it was verified, on its way to the host.
    pub(crate) late: bool,
    /// The device is lost after this number of further launches.
    pub(crate) lost_after: Option<u32>,
    /// There is no memory for keys.
    pub(crate) no_memory: bool,
    /// There is no memory for streams.
    pub(crate) no_streams: bool,
}

pub(crate) struct Simulated {
    facts: DeviceFacts,
    plan: Arc<Mutex<Plan>>,
    stores: Mutex<Vec<Arc<Memory>>>,
}

impl Simulated {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            facts: DeviceFacts {
                name: "simulated device".to_owned(),
                compute: (8, 0),
                processors: 1,
                software: "CPU twin".to_owned(),
            },
            plan: Arc::default(),
            stores: Mutex::default(),
        })
    }

    pub(crate) fn plan(&self, plan: Plan) {
        *lock(&self.plan) = plan;
    }

    /// Number of bytes of the device memory that are not zero.
    pub(crate) fn bytes_in_use(&self) -> usize {
        let used = |bytes: &Mutex<Vec<u8>>| lock(bytes).iter().filter(|byte| **byte != 0).count();
        let stores = lock(&self.stores);
        stores.iter().map(|memory| used(&memory.keys) + used(&memory.pairs)).sum()
    }

    /// Flips a bit of the first key.
    pub(crate) fn flip_key_bit(&self, bit: usize) {
        let stores = lock(&self.stores);
        let memory = stores.first().expect("a key");
        let size = memory.variant.key_bytes();
        lock(&memory.keys)[size + bit / 8 % size] ^= 1 << (bit % 8);
    }
}

impl std::fmt::Debug for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Simulated").field(&self.facts).finish()
    }
}

struct Memory {
    variant: &'static Variant,
    keys: Mutex<Vec<u8>>,
    pairs: Mutex<Vec<u8>>,
    plan: Arc<Mutex<Plan>>,
}

impl CudaDevice for Simulated {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn is_measurable(&self) -> bool {
        false
    }

    fn open_store(
        &self,
        variant: &'static Variant,
        keys: u32,
        pairs: u32,
    ) -> Result<Box<dyn CudaStore>, DeviceError> {
        if lock(&self.plan).no_memory {
            return Err(DeviceError::OutOfMemory("as planned".to_owned()));
        }
        let memory = Arc::new(Memory {
            variant,
            keys: Mutex::new(vec![0; keys as usize * variant.key_bytes()]),
            pairs: Mutex::new(vec![0; pairs as usize * variant.pair_bytes()]),
            plan: Arc::clone(&self.plan),
        });
        lock(&self.stores).push(Arc::clone(&memory));
        Ok(Box::new(SimulatedStore(memory)))
    }
}

struct SimulatedStore(Arc<Memory>);

impl CudaStore for SimulatedStore {
    fn write_key(&self, slot: u32, image: &[u8]) -> Result<(), DeviceError> {
        assert!(slot > 0, "the first slot is for spare groups");
        let at = slot as usize * image.len();
        lock(&self.0.keys)[at..at + image.len()].copy_from_slice(image);
        Ok(())
    }

    fn clear(&self, slot: u32, pairs: &[u32]) -> Result<(), DeviceError> {
        let key = self.0.variant.key_bytes();
        let pair = self.0.variant.pair_bytes();
        lock(&self.0.keys)[slot as usize * key..][..key].fill(0);
        for place in pairs {
            lock(&self.0.pairs)[*place as usize * pair..][..pair].fill(0);
        }
        Ok(())
    }

    fn open_stream(&self, tasks: usize) -> Result<Box<dyn CudaStream>, DeviceError> {
        if lock(&self.0.plan).no_streams {
            return Err(DeviceError::OutOfMemory("as planned".to_owned()));
        }
        Ok(Box::new(SimulatedStream {
            memory: Arc::clone(&self.0),
            tasks,
            twin: Some(Twin::start()),
            running: None,
            outcomes: Vec::new(),
        }))
    }
}

/// The child process that runs the kernels.
struct Twin {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Twin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Twin {
    fn start() -> Self {
        let mut child = Command::new(twin())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the twin");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, input, output }
    }

    /// Runs one task. Returns status and output, in words, and updates the pair.
    fn run(
        &mut self,
        memory: &Memory,
        (exponent, make): (u64, bool),
        strike: Strike,
        (slot, place, words): (u32, u32, &[u32]),
    ) -> (u32, Vec<u32>) {
        let variant = memory.variant;
        let at = VARIANTS.iter().position(|known| known == variant).expect("a variant");
        let Strike { moment, thread, digit, bit } = strike;
        let at = u32::try_from(at).expect("few");
        let mut message = Vec::new();
        for number in [at, 1, u32::from(make), moment, thread, digit, bit, 0] {
            message.extend(number.to_ne_bytes());
        }
        message.extend(exponent.to_ne_bytes());
        let key = variant.key_bytes();
        let pair = variant.pair_bytes();
        let place = place as usize * pair..(place as usize + 1) * pair;
        message.extend(&lock(&memory.keys)[slot as usize * key..][..key]);
        message.extend(&lock(&memory.pairs)[place.clone()]);
        message.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        self.input.write_all(&message).expect("a twin that listens");
        self.input.flush().expect("a twin that listens");

        let mut answer = vec![0; 4 + pair + 4 * words.len()];
        self.output.read_exact(&mut answer).expect("a twin that answers");
        lock(&memory.pairs)[place].copy_from_slice(&answer[4..4 + pair]);
        let mut numbers = answer
            .chunks_exact(4)
            .map(|chunk| u32::from_ne_bytes(chunk.try_into().expect("four bytes")));
        let status = numbers.next().expect("a status");
        (status, numbers.skip(pair / 4).collect())
    }
}

/// The stream's copy of a task.
struct Copy {
    slot: u32,
    pair: u32,
    words: Vec<u32>,
    length: usize,
}

impl Copy {
    fn new(entry: &LaunchEntry<'_>, words: usize) -> Self {
        let mut chunks = entry.input.rchunks(4);
        let word = |chunk: &[u8]| chunk.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        Self {
            slot: entry.slot,
            pair: entry.pair,
            words: (0..words).map(|_| chunks.next().map_or(0, word)).collect(),
            length: entry.input.len(),
        }
    }

    fn run(&self, twin: &mut Twin, memory: &Memory, exponent: u64, plan: Plan) -> LaunchOutcome {
        let names = (self.slot, self.pair, self.words.as_slice());
        let (status, mut output) = twin.run(memory, (exponent, false), plan.strike, names);
        if status != RIGHT {
            let left = output.iter().any(|word| *word != 0);
            assert!(!left, "nothing of a wrong result leaves");
            return None;
        }
        if plan.late {
            output[3] ^= 1 << 5;
        }
        let words = output.iter().rev();
        let bytes: Vec<u8> = words.flat_map(|word| word.to_be_bytes()).collect();
        Some(Zeroizing::new(bytes[bytes.len() - self.length..].to_vec()))
    }
}

struct SimulatedStream {
    memory: Arc<Memory>,
    tasks: usize,
    twin: Option<Twin>,
    running: Option<JoinHandle<(Twin, Vec<LaunchOutcome>)>>,
    outcomes: Vec<LaunchOutcome>,
}

impl CudaStream for SimulatedStream {
    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        assert!(launch.tasks.len() <= self.tasks && launch.make.len() <= launch.tasks.len());
        let mut plan = lock(&self.memory.plan);
        match &mut plan.lost_after {
            Some(0) => return Err(DeviceError::Lost("as planned".to_owned())),
            Some(left) => *left -= 1,
            None => {}
        }
        let plan = *plan;
        let words = self.memory.variant.words();
        let copies = |entries: &[LaunchEntry<'_>]| -> Vec<Copy> {
            entries.iter().map(|entry| Copy::new(entry, words)).collect()
        };
        let make = copies(launch.make);
        let tasks = copies(launch.tasks);
        let memory = Arc::clone(&self.memory);
        let exponent = launch.exponent;
        let mut twin = self.twin.take().expect("one launch at a time");
        self.running = Some(thread::spawn(move || {
            // A lost device computes nothing.
            let is_lost = || lock(&memory.plan).lost_after == Some(0);
            for task in make.iter().take_while(|_| !is_lost()) {
                let names = (task.slot, task.pair, task.words.as_slice());
                twin.run(&memory, (exponent, true), Strike::default(), names);
            }
            let outcomes = tasks
                .iter()
                .take_while(|_| !is_lost())
                .map(|task| task.run(&mut twin, &memory, exponent, plan))
                .collect();
            (twin, outcomes)
        }));
        Ok(())
    }

    fn is_done(&mut self) -> Result<bool, DeviceError> {
        if lock(&self.memory.plan).lost_after == Some(0) {
            return Err(DeviceError::Lost("as planned".to_owned()));
        }
        let ended = self.running.as_ref().is_some_and(JoinHandle::is_finished);
        if let Some(running) = self.running.take_if(|_| ended) {
            let (twin, outcomes) = running.join().expect("a twin that ends");
            self.twin = Some(twin);
            self.outcomes = outcomes;
        }
        Ok(ended)
    }

    fn take(&mut self) -> Vec<LaunchOutcome> {
        std::mem::take(&mut self.outcomes)
    }
}

impl Drop for SimulatedStream {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = running.join();
        }
    }
}
