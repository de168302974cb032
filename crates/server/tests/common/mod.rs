// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A node in this process and a blocking client that speaks in raw frames.

#![allow(dead_code, reason = "each test file uses a part of this")]

pub(crate) mod tls;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use millrace_backends::software::Software;
use millrace_engine::backend::Backend;
use millrace_engine::{Engine, EngineConfig};
use millrace_operation::{Hash, JobError, KeyInfo, Operation, PrivateKey};
use millrace_server::config::{NodeConfig, StoreConfig, UnixConfig};
use millrace_server::{Node, NodeHandle};
use millrace_service::policy::KeyPolicy;
use millrace_service::settings::Limits;
use millrace_service::store::{IfExists, KekSource, KeyStore};
use millrace_testkit::keys::TestKey;
pub(crate) use millrace_testkit::wait::eventually;
use millrace_wire::encode_submit_batch;
use millrace_wire::{
    ClientMessage, Decoder, Fault, Hello, JobCompletion, KeyHandle, KeySelector, Message,
    NodeMessage, SubmittedJob, Welcome,
};
use tempfile::TempDir;
use tokio::sync::oneshot;

pub(crate) use millrace_testkit::wait::SOON;
pub(crate) const RSA_SIGN: Operation = Operation::RsaPkcs1Sign { hash: Hash::Sha256 };
pub(crate) const ECDSA_SIGN: Operation = Operation::EcdsaSign { hash: Hash::Sha256 };

/// A directory for a node's files, with a store and a configuration that uses only paths in it.
pub(crate) struct Setup {
    pub(crate) directory: TempDir,
    pub(crate) config: NodeConfig,
}

impl Setup {
    pub(crate) fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let config = NodeConfig {
            name: "node-under-test".to_owned(),
            unix: Some(UnixConfig::at(directory.path().join("run/node.sock"))),
            metrics: None,
            status_socket: None,
            admin: None,
            store: StoreConfig {
                directory: directory.path().join("keys"),
                kek: KekSource::File { path: directory.path().join("kek"), create: true },
            },
            ..NodeConfig::default()
        };
        Self { directory, config }
    }

    pub(crate) fn limits(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.config.settings.limits);
        self
    }

    pub(crate) fn store(&self) -> KeyStore {
        KeyStore::open(&self.config.store.directory, &self.config.store.kek).unwrap()
    }

    /// Imports a key as `millrace key import` does.
    pub(crate) fn import(&self, name: &str, key: &TestKey, policy: KeyPolicy) -> KeyInfo {
        let engine = engine(Arc::new(Software::new()));
        let info = engine.load_key(&key.private_key()).unwrap().info().clone();
        self.store()
            .import(name, &key.private_key(), info.clone(), policy, IfExists::Replace)
            .unwrap();
        info
    }

    pub(crate) fn start(self) -> TestNode {
        self.start_with(Arc::new(Software::new()))
    }

    pub(crate) fn start_with(self, backend: Arc<dyn Backend>) -> TestNode {
        let store = self.store();
        let (started, wait) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let config = self.config.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let service = config.service(engine(backend), store).unwrap();
                let node = Node::bind(config, service).unwrap();
                let addresses = (node.tcp_address(), node.metrics_address());
                started.send((node.handle(), addresses)).unwrap();
                node.run(async { drop(stopped.await) }).await;
            });
        });
        let (handle, (tcp, metrics)) = wait.recv_timeout(SOON).unwrap();
        TestNode { setup: self, handle, tcp, metrics, stop: Some(stop), thread: Some(thread) }
    }
}

pub(crate) fn engine(backend: Arc<dyn Backend>) -> Engine {
    let config = EngineConfig { workers: 1, ..EngineConfig::default() };
    Engine::start(config, vec![backend]).unwrap()
}

/// A policy for one identity.
pub(crate) fn only(identity: &str) -> KeyPolicy {
    KeyPolicy { identities: vec![identity.to_owned()], ..KeyPolicy::signing(["*"]) }
}

pub(crate) fn my_uid() -> String {
    format!("uid:{}", rustix::process::geteuid().as_raw())
}

/// A running node; stopped when dropped.
pub(crate) struct TestNode {
    pub(crate) setup: Setup,
    pub(crate) handle: NodeHandle,
    pub(crate) tcp: Option<SocketAddr>,
    pub(crate) metrics: Option<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TestNode {
    pub(crate) fn path(&self) -> PathBuf {
        self.setup.config.unix.as_ref().unwrap().path.clone()
    }

    pub(crate) fn socket(&self) -> UnixStream {
        let socket = UnixStream::connect(self.path()).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        socket.set_write_timeout(Some(SOON)).unwrap();
        socket
    }

    pub(crate) fn silent(&self) -> Client<UnixStream> {
        Client::new(self.socket())
    }

    pub(crate) fn connect(&self) -> Client<UnixStream> {
        let mut client = self.silent();
        client.hello();
        client
    }

    /// Starts the shutdown; [`Self::join`] waits for its end.
    pub(crate) fn shut_down(&mut self) {
        drop(self.stop.take());
    }

    pub(crate) fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }

    /// Waits until the node's status satisfies the condition.
    pub(crate) fn until(&self, what: impl Fn(&millrace_service::status::Status) -> bool) {
        eventually(|| what(&self.handle.status()));
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.shut_down();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A client over any blocking stream.
pub(crate) struct Client<S> {
    pub(crate) stream: S,
    decoder: Decoder<NodeMessage>,
    completions: Vec<JobCompletion>,
}

impl<S: Read + Write> Client<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, decoder: Decoder::new(), completions: Vec::new() }
    }

    pub(crate) fn hello(&mut self) -> Welcome {
        self.send(&ClientMessage::Hello(Hello {
            min_version: 1,
            max_version: 1,
            features: 0,
            agent: "test".to_owned(),
        }));
        match self.receive() {
            NodeMessage::Welcome(welcome) => welcome,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn send(&mut self, message: &ClientMessage) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.write(&bytes);
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
        self.stream.flush().unwrap();
    }

    /// The next message, or `None` at the end of the stream.
    pub(crate) fn try_receive(&mut self) -> io::Result<Option<NodeMessage>> {
        loop {
            if let Some(message) = self.decoder.next().unwrap() {
                return Ok(Some(message));
            }
            match self.stream.read(self.decoder.space()) {
                Ok(0) => return Ok(None),
                Ok(count) => self.decoder.filled(count),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn receive(&mut self) -> NodeMessage {
        self.try_receive().unwrap().expect("the node hung up")
    }

    /// The fault that ends the connection.
    pub(crate) fn fault(&mut self) -> Fault {
        let NodeMessage::Fault(fault) = self.receive() else { panic!("no fault") };
        assert!(self.try_receive().unwrap().is_none(), "something after the fault");
        fault
    }

    /// Expects the end of the stream.
    pub(crate) fn ended(&mut self) {
        match self.try_receive().unwrap() {
            None | Some(NodeMessage::Drain) => {}
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn ask(&mut self, name: &str) -> NodeMessage {
        let selector = KeySelector::Name(name.to_owned());
        self.send(&ClientMessage::OpenKey { request: 7, selector });
        self.receive()
    }

    pub(crate) fn open(&mut self, name: &str) -> KeyHandle {
        match self.ask(name) {
            NodeMessage::KeyOpened { request: 7, handle, .. } => handle,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn open_by_spki(&mut self, spki: &[u8]) -> KeyHandle {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, spki).as_ref());
        let selector = KeySelector::SpkiSha256(hash);
        self.send(&ClientMessage::OpenKey { request: 9, selector });
        match self.receive() {
            NodeMessage::KeyOpened { handle, .. } => handle,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn try_import(&mut self, key: PrivateKey) -> NodeMessage {
        self.send(&ClientMessage::ImportKey { request: 8, key });
        self.receive()
    }

    pub(crate) fn import(&mut self, key: &TestKey) -> (KeyHandle, KeyInfo) {
        match self.try_import(key.private_key()) {
            NodeMessage::KeyOpened { request: 8, handle, info, .. } => (handle, info),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn submit(&mut self, jobs: &[SubmittedJob]) {
        let mut bytes = Vec::new();
        encode_submit_batch(jobs, &mut bytes);
        self.write(&bytes);
    }

    /// The next completion.
    pub(crate) fn complete(&mut self) -> JobCompletion {
        while self.completions.is_empty() {
            match self.receive() {
                NodeMessage::Complete(completions) => self.completions.extend(completions),
                other => panic!("{other:?}"),
            }
        }
        self.completions.remove(0)
    }

    /// Submits one job and returns its result.
    pub(crate) fn run(
        &mut self,
        key: KeyHandle,
        operation: &Operation,
        input: &[u8],
    ) -> Result<Vec<u8>, JobError> {
        self.submit(&[job(77, key, operation, input)]);
        let completion = self.complete();
        assert_eq!(completion.id, 77);
        completion.result.map(|output| output.to_vec())
    }
}

pub(crate) fn job(id: u64, key: KeyHandle, operation: &Operation, input: &[u8]) -> SubmittedJob {
    SubmittedJob {
        id,
        key,
        budget: Duration::ZERO,
        operation: operation.clone(),
        input: input.to_vec(),
    }
}

/// A blocking stream over TCP.
pub(crate) fn tcp(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream
}

/// Sends GET to an HTTP server. Returns the answer with its headers.
pub(crate) fn get(mut stream: impl Read + Write, path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
