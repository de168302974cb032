// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A node in this process, and `openssl` commands that use it through the module under test.

#![allow(dead_code, reason = "each test file uses a part of this")]

pub(crate) mod server;

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, LazyLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use millrace_backends::software::Software;
use millrace_engine::backend::Backend;
use millrace_engine::{Engine, EngineConfig};
use millrace_operation::stub::Stub;
use millrace_server::config::{NodeConfig, StoreConfig, UnixConfig};
use millrace_server::{Node, NodeHandle};
use millrace_service::policy::KeyPolicy;
use millrace_service::store::pem::read_private_key;
use millrace_service::store::{IfExists, KekSource, KeyStore};
pub(crate) use millrace_testkit::wait::eventually;
use tempfile::TempDir;
use tokio::sync::oneshot;

/// Time limit of a step: longer than any takes, unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with a configuration, keys, and the module as `millrace.so`.
pub(crate) struct Bench {
    pub(crate) dir: TempDir,
    node: Option<RunningNode>,
}

struct RunningNode {
    handle: NodeHandle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for RunningNode {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The folder of `scripts/arm.sh` in which the programs and the module of this run are, for 64-bit Arm under emulation;
/// none: they are for this machine.
pub(crate) fn emulated() -> Option<PathBuf> {
    let folder = std::env::var_os("MILLRACE_TEST_ARM").filter(|folder| !folder.is_empty())?;
    Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder))
}

/// A program of this machine, of the unpacked release that `MILLRACE_TEST_ROOT` names (see `scripts/in-root.sh`), or
/// an emulated one.
pub(crate) fn application(program: impl AsRef<OsStr>) -> Command {
    if let Some(folder) = emulated() {
        let mut command = Command::new(folder.join("run"));
        command.arg(program).env("MILLRACE_ROOT_BINDS", env!("CARGO_TARGET_TMPDIR"));
        return command;
    }
    let Some(root) = std::env::var_os("MILLRACE_TEST_ROOT").filter(|root| !root.is_empty()) else {
        return Command::new(program);
    };
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(workspace.join("scripts/in-root.sh"));
    command
        .arg(workspace.join(root))
        .arg(program)
        .env("MILLRACE_ROOT_BINDS", env!("CARGO_TARGET_TMPDIR"));
    command
}

/// A copy of the module under test, made once: a build that runs beside the tests may replace the
/// original.
pub(crate) fn module() -> PathBuf {
    static COPY: LazyLock<PathBuf> = LazyLock::new(|| {
        let exe = std::env::current_exe().expect("path of the test");
        let deps = exe.parent().expect("directory of the test");
        let own = || deps.join("libmillrace_provider.so");
        let module = emulated().map_or_else(own, |folder| folder.join("millrace.so"));
        let name = exe.file_name().expect("name of the test").to_string_lossy().into_owned();
        let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.so"));
        let fresh = copy.with_extension(format!("{}.new", std::process::id()));
        eventually(|| std::fs::copy(&module, &fresh).is_ok());
        std::fs::rename(&fresh, &copy).expect("rename");
        copy
    });
    COPY.clone()
}

impl Bench {
    /// A bench without a node: the node's socket does not exist.
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().expect("temporary directory");
        std::os::unix::fs::symlink(module(), dir.path().join("millrace.so")).expect("symlink");
        let bench = Self { dir, node: None };
        bench.write_config("route-a.cnf", "default_properties = ?provider=millrace", "");
        bench.write_config("plain.cnf", "", "");
        bench
    }

    /// A bench with a node on the software backend.
    pub(crate) fn with_node() -> Self {
        Self::with_backend(Arc::new(Software::new()))
    }

    /// A bench with a node on this backend.
    pub(crate) fn with_backend(backend: Arc<dyn Backend>) -> Self {
        let mut bench = Self::new();
        bench.start(backend);
        bench
    }

    /// Starts the node; keys have to be in its store before.
    pub(crate) fn start(&mut self, backend: Arc<dyn Backend>) {
        let mut config = NodeConfig {
            name: "node-under-test".to_owned(),
            unix: Some(UnixConfig::at(self.socket())),
            metrics: None,
            status_socket: None,
            admin: None,
            store: self.store_config(),
            ..NodeConfig::default()
        };
        config.settings.allow_import = true;
        let store = KeyStore::open(&config.store.directory, &config.store.kek).expect("store");
        let (started, wait) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("runtime");
            runtime.block_on(async move {
                let service = config.service(engine(backend), store).expect("service");
                let node = Node::bind(config, service).expect("node");
                started.send(node.handle()).expect("test is there");
                node.run(async { drop(stopped.await) }).await;
            });
        });
        let handle = wait.recv_timeout(PATIENCE).expect("node starts");
        self.node = Some(RunningNode { handle, stop: Some(stop), thread: Some(thread) });
    }

    /// Stops the node.
    pub(crate) fn stop(&mut self) {
        self.node = None;
    }

    pub(crate) fn store_config(&self) -> StoreConfig {
        let kek = KekSource::File { path: self.path("kek"), create: true };
        StoreConfig { directory: self.path("keys"), kek }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("run/node.sock")
    }

    /// Writes a configuration with these lines in `[alg_sect]` and in the provider's section.
    pub(crate) fn write_config(&self, name: &str, algorithms: &str, provider: &str) {
        let text = format!(
            "openssl_conf = init\nconfig_diagnostics = 1\n[init]\nproviders = providers\n\
             alg_section = alg_sect\nssl_conf = ssl_sect\n\
             [providers]\nmillrace = millrace_sect\ndefault = default_sect\n[default_sect]\nactivate = 1\n\
             [millrace_sect]\nactivate = 1\npool = unix:{}\nfallback_after_ms = 20000\n\
             deadline_ms = 20000\n{provider}\n\
             [alg_sect]\n{algorithms}\n\
             [ssl_sect]\nsystem_default = system_sect\n[system_sect]\nCipherString = DEFAULT:@SECLEVEL=1\n",
            self.socket().display()
        );
        std::fs::write(self.path(name), text).expect("configuration");
    }

    /// A folder with a certificate, and with a configuration that prefers what the module computes itself, by these
    /// lines in its section.
    pub(crate) fn with_local(provider: &str) -> Self {
        let bench = Self::new();
        bench.write_config("local.cnf", "default_properties = ?millrace.local=yes", provider);
        must(&bench.stock(
            "req -x509 -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost -days 2 \
             -keyout server.key -out server.crt",
        ));
        bench
    }

    /// `openssl` without our provider.
    pub(crate) fn stock(&self, line: &str) -> Output {
        self.run(self.command(line))
    }

    /// `openssl` with our provider preferred for everything.
    pub(crate) fn route_a(&self, line: &str) -> Output {
        self.with_config("route-a.cnf", line)
    }

    /// `openssl` with our provider loaded, and nothing preferred.
    pub(crate) fn plain(&self, line: &str) -> Output {
        self.with_config("plain.cnf", line)
    }

    pub(crate) fn with_config(&self, config: &str, line: &str) -> Output {
        self.run(self.command_with(config, line))
    }

    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = application("openssl");
        command
            .args(line.split_whitespace())
            .current_dir(self.dir.path())
            .env_remove("OPENSSL_CONF")
            .env_remove("OPENSSL_MODULES")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn command_with(&self, config: &str, line: &str) -> Command {
        let mut command = self.command(line);
        command
            .env("OPENSSL_CONF", self.path(config))
            .env("OPENSSL_MODULES", self.dir.path())
            .env("MILLRACE_LOG", "1");
        command
    }

    fn run(&self, mut command: Command) -> Output {
        command.output().expect("openssl is installed")
    }

    /// Makes `name.pem` and `name.pub` by a stock `openssl genpkey`.
    pub(crate) fn generate(&self, name: &str, options: &str) {
        must(&self.stock(&format!("genpkey {options} -out {name}.pem")));
        must(&self.stock(&format!("pkey -in {name}.pem -pubout -out {name}.pub")));
    }

    /// Puts `name.pem` into the node's store and writes `name.stub`. Before the node starts.
    pub(crate) fn hold(&self, name: &str, policy: KeyPolicy) {
        let pem = std::fs::read(self.path(&format!("{name}.pem"))).expect("key");
        let key = read_private_key(&pem).expect("private key");
        let info = engine(Arc::new(Software::new())).load_key(&key).expect("key").info().clone();
        let stub = Stub::new(name, &info.spki).expect("stub");
        std::fs::write(self.path(&format!("{name}.stub")), stub.to_pem()).expect("stub");
        let config = self.store_config();
        let store = KeyStore::open(&config.directory, &config.kek).expect("store");
        store.import(name, &key, info, policy, IfExists::Replace).expect("import");
    }

    /// Makes the node read its store now.
    pub(crate) fn reload(&self) {
        let node = self.node.as_ref().expect("a node");
        node.handle.reload().expect("the store is readable");
    }

    /// Number of jobs of this operation that the node has completed.
    pub(crate) fn served(&self, operation: &str) -> u64 {
        let node = self.node.as_ref().expect("a node");
        let operations = node.handle.status().operations;
        operations.iter().filter(|row| row.operation == operation).map(|row| row.completed).sum()
    }

    /// Jobs that the node has accepted and not answered.
    pub(crate) fn in_flight(&self) -> usize {
        self.node.as_ref().expect("a node").handle.status().in_flight
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).expect("file");
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).expect("file")
    }
}

pub(crate) fn engine(backend: Arc<dyn Backend>) -> Engine {
    let config = EngineConfig { workers: 1, ..EngineConfig::default() };
    Engine::start(config, vec![backend]).expect("engine")
}

/// Fails the test, with the output of the command, unless the command succeeded. Returns its standard
/// output.
#[track_caller]
pub(crate) fn must(output: &Output) -> String {
    let (out, err) = texts(output);
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    out
}

/// Fails the test unless the command failed by itself. Returns its standard error.
#[track_caller]
pub(crate) fn must_fail(output: &Output) -> String {
    let (out, err) = texts(output);
    assert!(!output.status.success(), "it should have failed\n{out}\n{err}");
    assert!(output.status.code().is_some(), "it was killed: {}\n{err}", output.status);
    err
}

pub(crate) fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// A child that is killed at the end of the test, also if the test fails.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("child starts"))
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        if let Some(stdin) = &mut self.0.stdin {
            stdin.write_all(bytes).expect("child reads");
        }
    }
}

pub(crate) fn exists(path: &Path) -> bool {
    path.exists()
}

/// A test application from its C source in `tests/`, compiled with these libraries; `None`, and a recorded skip,
/// without a compiler or headers.
///
/// # Panics
/// If the compiler has another complaint.
pub(crate) fn compiled(source: &str, libraries: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let name = source.file_stem()?.to_string_lossy().into_owned();
    let binary =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let compiler = emulated().map_or_else(|| PathBuf::from("cc"), |folder| folder.join("cc"));
    let mut compile = Command::new(compiler);
    compile.args(["-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"]);
    compile.arg(&binary).arg(&source);
    if let Ok(dir) = std::env::var("MILLRACE_TEST_OPENSSL") {
        compile.args([format!("-I{dir}/include"), format!("-L{dir}"), format!("-L{dir}/lib")]);
        compile.args([format!("-Wl,-rpath,{dir}"), format!("-Wl,-rpath,{dir}/lib")]);
    }
    let output = compile.args(libraries).output().ok();
    if !output.as_ref().is_some_and(|output| output.status.success()) {
        let error = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
        let is_incomplete = error.as_ref().is_none_or(|error| error.contains("No such file"));
        assert!(is_incomplete, "{name} does not compile: {}", error.unwrap_or_default());
        millrace_testkit::skip::record(&name, "no C compiler or no headers of OpenSSL");
        return None;
    }
    let finished = binary.with_file_name(name);
    std::fs::rename(&binary, &finished).expect("rename");
    Some(finished)
}
