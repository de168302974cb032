// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A node under the control of a test: it answers by itself what [`Auto`] names, and reports everything
//! else over a channel, with a [`Peer`] through which the test answers.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses another part of this")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use millrace_client::{
    ClientError, Endpoint, Hedge, KeyRefusal, NodeReply, Pool, PoolConfig, RemoteKey,
};
use millrace_operation::{
    BackendKind, Curve, Hash, JobError, KeyInfo, KeyType, Operation, PrivateKey,
};
use millrace_service::policy::KeyPolicy;
use millrace_wire::{
    ClientMessage, Decoder, JobCompletion, KeySelector, Message, NodeMessage, SubmittedJob, Welcome,
};
use zeroize::Zeroizing;

pub use millrace_testkit::wait::SOON;
/// Messages that the node answers by itself.
#[derive(Clone, Copy)]
pub struct Auto {
    pub welcome: bool,
    pub keys: bool,
    pub jobs: bool,
    pub pongs: bool,
}

impl Auto {
    pub const ALL: Self = Self { welcome: true, keys: true, jobs: true, pongs: true };
    pub const NO_JOBS: Self = Self { jobs: false, ..Self::ALL };
    pub const NO_KEYS: Self = Self { keys: false, ..Self::ALL };
    pub const SILENT: Self = Self { jobs: false, pongs: false, ..Self::ALL };
    pub const MUTE: Self = Self { welcome: false, keys: false, jobs: false, pongs: false };
}

/// The node's end of one connection.
#[derive(Clone)]
pub struct Peer {
    pub stream: Arc<Mutex<UnixStream>>,
}

impl Peer {
    pub fn send(&self, message: &NodeMessage) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.send_raw(&bytes);
    }

    /// Errors are ignored: the client may have closed the connection.
    pub fn send_raw(&self, bytes: &[u8]) {
        let _ = self.stream.lock().expect("no panic").write_all(bytes);
    }

    pub fn answer(&self, job: &SubmittedJob) {
        self.send(&NodeMessage::Complete(vec![completion(job)]));
    }

    pub fn fail(&self, job: &SubmittedJob, error: JobError) {
        let failed = JobCompletion { result: Err(error), served_by: None, ..completion(job) };
        self.send(&NodeMessage::Complete(vec![failed]));
    }

    pub fn open(&self, request: u32, handle: u32) {
        self.send(&opened(request, handle, 1));
    }

    pub fn refuse(&self, request: u32, reason: KeyRefusal) {
        self.send(&NodeMessage::KeyRefused { request, reason });
    }

    pub fn close(&self) {
        let _ = self.stream.lock().expect("no panic").shutdown(std::net::Shutdown::Both);
    }
}

/// Messages that a node received and did not answer itself.
pub enum Seen {
    Connected(Peer),
    OpenKey(Peer, u32, KeySelector),
    Import(Peer, u32, Vec<u8>),
    CloseKey(u32),
    Job(Peer, SubmittedJob),
    Cancel(u64),
    Ping(Peer, u64),
    Closed,
}

/// A fake node. It ends when it is dropped.
pub struct FakeNode {
    pub path: PathBuf,
    pub seen: Receiver<Seen>,
    listener: Arc<UnixListener>,
    peers: Arc<Mutex<Vec<Peer>>>,
    thread: Option<JoinHandle<()>>,
    folder: Option<tempfile::TempDir>,
}

impl FakeNode {
    /// A node in a folder of its own, which lasts as long as the node.
    pub fn alone(auto: Auto) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut node = Self::start(&folder.path().join("node"), auto);
        node.folder = Some(folder);
        node
    }

    pub fn start(path: &Path, auto: Auto) -> Self {
        Self::start_named(path, auto, "fake", 1)
    }

    /// `spki` tells the keys of different nodes apart.
    pub fn start_named(path: &Path, auto: Auto, name: &'static str, spki: u8) -> Self {
        let _ = std::fs::remove_file(path);
        let listener = Arc::new(UnixListener::bind(path).expect("socket in a temporary folder"));
        let (report, seen) = channel();
        let peers = Arc::new(Mutex::new(Vec::new()));
        let (accepting, all) = (Arc::clone(&listener), Arc::clone(&peers));
        let thread = thread::spawn(move || {
            loop {
                let stream = match accepting.accept() {
                    Ok((stream, _)) => stream,
                    // A test that takes descriptors away gives them back.
                    Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                        thread::yield_now();
                        continue;
                    }
                    Err(_) => return,
                };
                let peer = Peer {
                    stream: Arc::new(Mutex::new(stream.try_clone().expect("a descriptor"))),
                };
                all.lock().expect("no panic").push(peer.clone());
                let report = report.clone();
                thread::spawn(move || serve(stream, &peer, auto, name, spki, &report));
            }
        });
        Self { path: path.to_owned(), seen, listener, peers, thread: Some(thread), folder: None }
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.path.clone())
    }

    /// The next thing of note, connections aside.
    pub fn next(&self) -> Seen {
        loop {
            match self.seen.recv_timeout(SOON).expect("the node should have seen something") {
                Seen::Connected(_) => {}
                seen => return seen,
            }
        }
    }

    pub fn next_job(&self) -> (Peer, SubmittedJob) {
        loop {
            if let Seen::Job(peer, job) = self.next() {
                return (peer, job);
            }
        }
    }

    pub fn next_open(&self) -> (Peer, u32) {
        loop {
            if let Seen::OpenKey(peer, request, _) = self.next() {
                return (peer, request);
            }
        }
    }

    /// Waits for something of note that `wanted` takes.
    pub fn wait_for<T>(&self, mut wanted: impl FnMut(Seen) -> Option<T>) -> T {
        loop {
            let seen = self.seen.recv_timeout(SOON).expect("the node should have seen it");
            if let Some(found) = wanted(seen) {
                return found;
            }
        }
    }

    /// Stops listening and ends every connection, as if the node's process were killed.
    pub fn kill(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the fake node does not panic");
        }
        self.drop_connections();
    }

    pub fn drop_connections(&self) {
        for peer in self.peers.lock().expect("no panic").drain(..) {
            peer.close();
        }
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        self.kill();
    }
}

fn serve(
    mut stream: UnixStream,
    peer: &Peer,
    auto: Auto,
    name: &str,
    spki: u8,
    report: &Sender<Seen>,
) {
    let _ = report.send(Seen::Connected(peer.clone()));
    let mut decoder = Decoder::<ClientMessage>::new();
    let mut replies = Vec::new();
    let mut keys = 0;
    while let Ok(n @ 1..) = stream.read(decoder.space()) {
        decoder.filled(n);
        while let Some(message) = decoder.next().expect("the client sends what decodes") {
            for seen in react(message, peer, auto, name, spki, &mut keys, &mut replies) {
                let _ = report.send(seen);
            }
        }
        peer.send_raw(&replies);
        replies.clear();
    }
    let _ = report.send(Seen::Closed);
}

/// Puts the automatic answers into `replies` and returns what is left to the test.
pub fn react(
    message: ClientMessage,
    peer: &Peer,
    auto: Auto,
    name: &str,
    spki: u8,
    keys: &mut u32,
    replies: &mut Vec<u8>,
) -> Vec<Seen> {
    match message {
        ClientMessage::Hello(_) if auto.welcome => welcome(name).encode(replies),
        ClientMessage::OpenKey { request, .. } | ClientMessage::ImportKey { request, .. }
            if auto.keys =>
        {
            *keys += 1;
            opened(request, *keys, spki).encode(replies);
        }
        ClientMessage::OpenKey { request, selector } => {
            return vec![Seen::OpenKey(peer.clone(), request, selector)];
        }
        ClientMessage::ImportKey { request, key } => {
            return vec![Seen::Import(peer.clone(), request, key.dangerous_pkcs8().to_vec())];
        }
        ClientMessage::Submit(jobs) if auto.jobs => {
            NodeMessage::Complete(jobs.iter().map(completion).collect()).encode(replies);
        }
        ClientMessage::Submit(jobs) => {
            return jobs.into_iter().map(|job| Seen::Job(peer.clone(), job)).collect();
        }
        ClientMessage::Ping { token } if auto.pongs => {
            NodeMessage::Pong { token }.encode(replies);
        }
        ClientMessage::Ping { token } => return vec![Seen::Ping(peer.clone(), token)],
        ClientMessage::CloseKey { handle } => return vec![Seen::CloseKey(handle)],
        ClientMessage::Cancel { job } => return vec![Seen::Cancel(job)],
        _ => {}
    }
    Vec::new()
}

pub fn welcome(name: &str) -> NodeMessage {
    NodeMessage::Welcome(Welcome {
        version: 1,
        features: 0,
        node: name.to_owned(),
        max_in_flight: 100_000,
        max_keys: 1000,
    })
}

/// The only key there is: on P-256, whose `spki` is not looked at by the client.
pub fn opened(request: u32, handle: u32, spki: u8) -> NodeMessage {
    let policy = KeyPolicy::signing(["*"]);
    NodeMessage::KeyOpened {
        request,
        handle,
        info: KeyInfo { key_type: KeyType::Ec(Curve::P256), spki: vec![spki; 91] },
        operations: policy.operations,
        hashes: policy.hashes,
    }
}

/// The answer that [`is_answer`] knows.
pub fn completion(job: &SubmittedJob) -> JobCompletion {
    let output: Vec<u8> = job.input.iter().map(|byte| !byte).collect();
    JobCompletion {
        id: job.id,
        result: Ok(Zeroizing::new(output)),
        served_by: Some(BackendKind::Software),
        queue_time: Duration::from_micros(3),
        service_time: Duration::from_micros(20),
    }
}

pub fn is_answer(input: &[u8], reply: &NodeReply) -> bool {
    reply.output.len() == input.len() && input.iter().zip(&**reply.output).all(|(i, o)| *o == !*i)
}

pub const SIGN: Operation = Operation::EcdsaSign { hash: Hash::Sha256 };

/// A digest that is unlike that of any other number.
pub fn digest(number: u64) -> Vec<u8> {
    (0..4).flat_map(|word: u64| (number.wrapping_mul(31) ^ word).to_le_bytes()).collect()
}

/// A call that another thread makes.
pub type Call = JoinHandle<Result<NodeReply, ClientError>>;

pub fn soon() -> Instant {
    Instant::now() + SOON
}

pub fn config(nodes: &[&FakeNode]) -> PoolConfig {
    let config = PoolConfig::new(nodes.iter().map(|node| node.endpoint()).collect());
    // On a busy test machine no node is given up for slowness and no job sent twice, unless the test wants it.
    config.health(SOON, SOON).connect_timeout(SOON).hedge(Hedge::Off)
}

pub fn pool(nodes: &[&FakeNode]) -> Pool {
    Pool::new(config(nodes))
}

pub fn open(pool: &Pool) -> RemoteKey {
    pool.open_key(KeySelector::Name("site".to_owned()), soon()).expect("the key opens")
}

/// A key that this process holds, too: its jobs do not wait for a node.
pub fn import(pool: &Pool) -> Result<RemoteKey, ClientError> {
    let key = PrivateKey::from_pkcs8(Zeroizing::new(vec![0x30; 100]));
    pool.import_key(key, soon())
}

/// Signs the digest of a number from a thread of its own.
pub fn start_call(pool: &Pool, key: &RemoteKey, number: u64) -> Call {
    let (pool, key) = (pool.clone(), key.clone());
    thread::spawn(move || pool.call(&key, &SIGN, &digest(number), soon()))
}

/// Waits for the answer of a call, and checks it.
pub fn assert_answered(number: u64, call: Call) {
    let reply = call.join().expect("no panic").expect("an answer");
    assert!(is_answer(&digest(number), &reply));
}
