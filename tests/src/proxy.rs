// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A fault-injecting proxy on the unix socket between provider and node. It parses the protocol, so that it can
//! count jobs, cut a frame in its middle, or falsify one byte of one result in a frame that is otherwise valid.

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

use millrace_operation::JobError;
use millrace_wire::{ClientMessage, Decoder, JobCompletion, Message, NodeMessage};

use crate::wait;

/// The fault to inject. Unless stated otherwise only completions are affected, so that connections and keys open
/// as usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// Completions arrive this much later.
    Latency(Duration),
    /// Completions are held until the fault changes. Other messages pass, so that the client keeps its
    /// connection.
    Hold,
    /// Completions vanish.
    Drop,
    /// Connections are closed at once, also new ones.
    Refuse,
    /// Random bytes instead of completions.
    Garbage,
    /// Half a frame of completions, then the end.
    CutMidFrame,
    /// One byte of each result is changed.
    WrongResult,
    /// Completions arrive twice.
    Twice,
    /// Completions are for jobs that were never submitted.
    ForeignIds,
    /// Frames of completions lack their last byte, and say so.
    Short,
    /// Everything arrives byte by byte, with this pause between two.
    Drip(Duration),
    /// Answers to requests for keys vanish.
    NoKeys,
    /// Every completion says that the job failed.
    Failing(JobError),
}

/// A running proxy. Ends on drop.
pub struct Proxy {
    shared: Arc<ProxyShared>,
    path: PathBuf,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({}, {:?})", self.path.display(), self.shared.state().fault)
    }
}

struct ProxyShared {
    upstream: PathBuf,
    state: Mutex<ProxyState>,
    changed: Condvar,
    jobs: AtomicU64,
    completions: AtomicU64,
    falsified: AtomicU64,
    connections: AtomicU64,
    held: AtomicU64,
}

struct ProxyState {
    fault: Fault,
    stopped: bool,
    open: Vec<UnixStream>,
    queues: Vec<Weak<Queue>>,
}

impl Proxy {
    /// Starts a proxy in front of the node's socket.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn start(dir: &Path, name: &str, upstream: &Path) -> Self {
        let path = dir.join(format!("{name}-proxy.sock"));
        let listener = UnixListener::bind(&path).expect("proxy socket");
        // The workers of a gateway run as another user.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("permissions");
        let state =
            ProxyState { fault: Fault::None, stopped: false, open: Vec::new(), queues: Vec::new() };
        let shared = Arc::new(ProxyShared {
            upstream: upstream.to_owned(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            jobs: AtomicU64::new(0),
            completions: AtomicU64::new(0),
            falsified: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            held: AtomicU64::new(0),
        });
        let acceptor = Arc::clone(&shared);
        thread::spawn(move || acceptor.accept(&listener));
        Self { shared, path }
    }

    /// The endpoint for clients of the pool.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("unix:{}", self.path.display())
    }

    /// Changes the fault, for open connections, too.
    pub fn set(&self, fault: Fault) {
        let mut state = self.shared.state();
        state.fault = fault;
        if fault == Fault::Refuse {
            state.close_all();
        }
        if fault != Fault::Hold {
            state.queues.retain(|queue| queue.strong_count() > 0);
            for queue in state.queues.iter().filter_map(Weak::upgrade) {
                queue.release();
            }
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Closes every connection.
    pub fn cut(&self) {
        self.shared.state().close_all();
    }

    /// Jobs that clients have submitted.
    #[must_use]
    pub fn jobs(&self) -> u64 {
        self.shared.jobs.load(Ordering::SeqCst)
    }

    /// Completions that came from the node.
    #[must_use]
    pub fn completions(&self) -> u64 {
        self.shared.completions.load(Ordering::SeqCst)
    }

    /// Results that were falsified.
    #[must_use]
    pub fn falsified(&self) -> u64 {
        self.shared.falsified.load(Ordering::SeqCst)
    }

    /// Connections that were opened through this proxy.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Holds completions and waits for the first: from then on its operation is in flight for its client until
    /// the fault changes or the connection ends.
    ///
    /// # Panics
    /// If no completion comes.
    pub fn hold_one(&self) {
        let before = self.shared.held.load(Ordering::SeqCst);
        self.set(Fault::Hold);
        wait::until("a completion is held", || self.shared.held.load(Ordering::SeqCst) > before);
    }

    /// Waits until `count` jobs have been submitted in total.
    ///
    /// # Panics
    /// If they are not.
    pub fn wait_for_jobs(&self, count: u64) {
        wait::until(&format!("{count} jobs are submitted"), || self.jobs() >= count);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.stopped = true;
        state.close_all();
        drop(state);
        self.shared.changed.notify_all();
        // Wakes the acceptor, which then finds the stop flag.
        drop(UnixStream::connect(&self.path));
    }
}

impl ProxyState {
    fn close_all(&mut self) {
        for stream in self.open.drain(..) {
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

impl ProxyShared {
    fn state(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().expect("the proxy does not panic")
    }

    fn accept(self: &Arc<Self>, listener: &UnixListener) {
        while let Ok((client, _)) = listener.accept() {
            let mut state = self.state();
            if state.stopped {
                return;
            }
            if state.fault == Fault::Refuse {
                continue;
            }
            let Ok(node) = UnixStream::connect(&self.upstream) else {
                continue;
            };
            self.connections.fetch_add(1, Ordering::SeqCst);
            let clone = |stream: &UnixStream| stream.try_clone().expect("a descriptor");
            state.open.push(clone(&client));
            state.open.push(clone(&node));
            let queue = Arc::new(Queue::default());
            state.queues.push(Arc::downgrade(&queue));
            drop(state);
            let (up, down, out) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
            let (from_client, to_node) = (clone(&client), clone(&node));
            thread::spawn(move || up.carry_up(from_client, to_node));
            let filled = Arc::clone(&queue);
            thread::spawn(move || down.carry_down(node, &filled));
            thread::spawn(move || out.deliver(&queue, client));
        }
    }

    /// Forwards from client to node, unchanged, and counts jobs.
    fn carry_up(&self, mut client: UnixStream, mut node: UnixStream) {
        let mut decoder = Decoder::<ClientMessage>::new();
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count) = client.read(&mut buffer) {
            if count == 0 {
                break;
            }
            if node.write_all(&buffer[..count]).is_err() {
                break;
            }
            self.count_jobs(&mut decoder, &buffer[..count]);
        }
        drop(node.shutdown(Shutdown::Both));
        drop(client.shutdown(Shutdown::Both));
    }

    fn count_jobs(&self, decoder: &mut Decoder<ClientMessage>, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let space = decoder.space();
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            decoder.filled(count);
            bytes = &bytes[count..];
            while let Ok(Some(message)) = decoder.next() {
                if let ClientMessage::Submit(jobs) = message {
                    self.jobs.fetch_add(jobs.len() as u64, Ordering::SeqCst);
                }
            }
        }
    }

    /// Moves messages of the node, with the fault applied, into the delivery queue.
    fn carry_down(&self, mut node: UnixStream, queue: &Queue) {
        let mut decoder = Decoder::<NodeMessage>::new();
        'connection: while let Ok(count) = node.read(decoder.space()) {
            decoder.filled(count);
            if count == 0 {
                break;
            }
            while let Ok(Some(message)) = decoder.next() {
                if !self.pass(message, queue) {
                    break 'connection;
                }
            }
        }
        queue.push(None);
    }

    /// Applies the fault of this moment to one message. False ends the connection.
    fn pass(&self, mut message: NodeMessage, queue: &Queue) -> bool {
        let fault = self.state().fault;
        let now = Instant::now();
        let bytes_of = |message: &NodeMessage| {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            bytes
        };
        let NodeMessage::Complete(completions) = &mut message else {
            if fault == Fault::NoKeys && matches!(message, NodeMessage::KeyOpened { .. }) {
                return true;
            }
            queue.push(Some((now, bytes_of(&message))));
            return true;
        };
        self.completions.fetch_add(completions.len() as u64, Ordering::SeqCst);
        match fault {
            Fault::Latency(time) => queue.push(Some((now + time, bytes_of(&message)))),
            Fault::Drop => {}
            Fault::Garbage => {
                // The header of a long frame of an unknown kind, followed by noise.
                let noise = (0..997u32).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[0]);
                queue.push(Some((now, noise.collect())));
            }
            Fault::CutMidFrame => {
                let mut bytes = bytes_of(&message);
                bytes.truncate(bytes.len() / 2);
                queue.push(Some((now, bytes)));
                return false;
            }
            Fault::WrongResult => {
                self.falsify(completions);
                queue.push(Some((now, bytes_of(&message))));
            }
            Fault::Twice => {
                queue.push(Some((now, bytes_of(&message))));
                queue.push(Some((now, bytes_of(&message))));
            }
            Fault::ForeignIds => {
                completions.iter_mut().for_each(|completion| completion.id ^= 1 << 40);
                queue.push(Some((now, bytes_of(&message))));
            }
            Fault::Short => {
                let mut bytes = bytes_of(&message);
                // The first four bytes are the length of the payload, which never ends at a byte of 0.
                let length = u32::from_le_bytes(bytes[..4].try_into().expect("a header"));
                bytes[..4].copy_from_slice(&(length - 1).to_le_bytes());
                bytes.pop();
                queue.push(Some((now, bytes)));
            }
            Fault::Failing(error) => {
                completions.iter_mut().for_each(|completion| completion.result = Err(error));
                queue.push(Some((now, bytes_of(&message))));
            }
            Fault::Hold => self.hold(queue, (now, bytes_of(&message))),
            Fault::None | Fault::Refuse | Fault::Drip(_) | Fault::NoKeys => {
                queue.push(Some((now, bytes_of(&message))));
            }
        }
        true
    }

    /// Holds a delivery, unless the fault has changed since it was chosen.
    fn hold(&self, queue: &Queue, delivery: Delivery) {
        // Held deliveries are released under the same lock.
        let state = self.state();
        if state.fault == Fault::Hold {
            queue.hold(delivery);
            self.held.fetch_add(1, Ordering::SeqCst);
        } else {
            queue.push(Some(delivery));
        }
    }

    fn falsify(&self, completions: &mut [JobCompletion]) {
        for completion in completions {
            if let Ok(output) = &mut completion.result {
                // In the middle, so that the form (DER, length) stays valid.
                let middle = output.len() / 2;
                if let Some(byte) = output.get_mut(middle) {
                    *byte ^= 0x01;
                    self.falsified.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    }

    /// Waits between two bytes, if everything arrives in drips. False ends the connection.
    fn pause_of_a_drip(&self) -> bool {
        let state = self.state();
        let Fault::Drip(pause) = state.fault else {
            return true;
        };
        let (state, _) = self.changed.wait_timeout(state, pause).expect("no panic");
        !state.stopped
    }

    /// Delivers from the queue to the client, each item when it is due.
    fn deliver(&self, queue: &Queue, mut client: UnixStream) {
        while let Some((due, bytes)) = queue.pop() {
            let mut state = self.state();
            loop {
                let left = due.saturating_duration_since(Instant::now());
                if state.stopped || left.is_zero() {
                    break;
                }
                state = self.changed.wait_timeout(state, left).expect("no panic").0;
            }
            let (stopped, fault) = (state.stopped, state.fault);
            drop(state);
            let pieces = match fault {
                Fault::Drip(_) => bytes.chunks(1),
                _ => bytes.chunks(bytes.len().max(1)),
            };
            let sent = pieces
                .into_iter()
                .all(|piece| client.write_all(piece).is_ok() && self.pause_of_a_drip());
            if stopped || !sent {
                break;
            }
        }
        drop(client.shutdown(Shutdown::Both));
    }
}

/// Bytes, and when they are due.
type Delivery = (Instant, Vec<u8>);

/// Pending deliveries to one client; `None` is the end of the connection.
#[derive(Default)]
struct Queue {
    waiting: Mutex<VecDeque<Option<Delivery>>>,
    filled: Condvar,
    held: Mutex<Vec<Delivery>>,
}

impl Queue {
    fn push(&self, item: Option<Delivery>) {
        self.waiting.lock().expect("no panic").push_back(item);
        self.filled.notify_one();
    }

    fn hold(&self, delivery: Delivery) {
        self.held.lock().expect("no panic").push(delivery);
    }

    fn release(&self) {
        for delivery in self.held.lock().expect("no panic").drain(..) {
            self.push(Some(delivery));
        }
    }

    fn pop(&self) -> Option<Delivery> {
        let mut waiting = self.waiting.lock().expect("no panic");
        loop {
            match waiting.pop_front() {
                Some(item) => return item,
                None => waiting = self.filled.wait(waiting).expect("no panic"),
            }
        }
    }
}
