// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! State of one process: the pool, the keys that are open there, the circuit breaker.
//!
//! A forked child starts with a new state and never reads its parent's: another thread may have held a lock there at
//! the moment of the fork, and the parent still uses its connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use millrace_client::{HostLoop, describe_start};
use millrace_operation::PrivateKey;
use millrace_operation::sync::lock;

use crate::breaker::Breaker;
use crate::oneshot::{Oneshot, Pause};
use crate::open_key::OpenKey;
use crate::remote::{self, FailureKind, Pool, PoolError};
use crate::sampling::SignatureSampler;
use crate::stats::Stats;

/// Time for which a refusal is remembered before the pool is asked again: a node may be reconfigured.
pub const REFUSAL_LASTS: Duration = Duration::from_secs(10);

/// Stack of the thread that opens a key while the job that needs it is paused, in bytes. It mostly waits. But a blocked
/// caller leads where no other thread does, and then the client's TLS handshake with a node runs here.
const OPENER_STACK: usize = 512 * 1024;

/// Identity of a key: its public half, and its name if only the pool has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyIdentity {
    /// DER `SubjectPublicKeyInfo`.
    pub spki: Vec<u8>,
    /// Name of the key in the pool; `None` for a key that this process imports into it.
    pub name: Option<String>,
}

/// Source from which the pool gets a key.
pub enum Source {
    /// The key is in the pool already, under the name in its [`KeyIdentity`].
    Resident,
    /// This process has it and imports it.
    Imported(PrivateKey),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Resident => "Resident",
            Self::Imported(_) => "Imported",
        })
    }
}

type Opened = Result<Arc<OpenKey>, PoolError>;

/// Connections and open keys, which a forked child must not share: each process has its own.
pub struct ProcessState {
    pool: Arc<dyn Pool>,
    /// Opens when the pool stops answering.
    pub breaker: Breaker,
    /// Chooses the results that are verified.
    pub sampler: SignatureSampler,
    host_loop: OnceLock<Option<&'static HostLoop>>,
    keys: Mutex<HashMap<Arc<KeyIdentity>, KeyEntry>>,
}

impl std::fmt::Debug for ProcessState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessState").field("breaker", &self.breaker).finish_non_exhaustive()
    }
}

struct KeyEntry {
    /// The application's key objects with this identity. The entry goes with the last of them.
    users: Vec<Weak<KeyIdentity>>,
    state: KeyState,
}

enum KeyState {
    Opening(Vec<Arc<Oneshot<Opened>>>),
    Open(Arc<OpenKey>),
    Refused(PoolError, Instant),
}

impl ProcessState {
    /// A process that uses `pool`.
    #[must_use]
    pub fn new(pool: Arc<dyn Pool>) -> Self {
        Self {
            pool,
            breaker: Breaker::default(),
            sampler: SignatureSampler::default(),
            host_loop: OnceLock::new(),
            keys: Mutex::default(),
        }
    }

    /// The nodes that this process uses.
    #[must_use]
    pub fn pool(&self) -> &Arc<dyn Pool> {
        &self.pool
    }

    /// The loop of the application that drives the pool's sockets, if one does.
    #[must_use]
    pub fn host_loop(&self) -> Option<&'static HostLoop> {
        self.host_loop.get().copied().flatten()
    }

    /// Offers the pool's sockets to the application's event loop, once, as soon as there are some.
    /// `offer` returns the loop if the application drives it from now on.
    pub fn offer_host_loop(&self, offer: impl FnOnce(HostLoop) -> Option<&'static HostLoop>) {
        if self.host_loop.get().is_some() {
            return;
        }
        if let Some(host_loop) = self.pool.host_loop() {
            self.host_loop.get_or_init(|| offer(host_loop));
        }
    }

    /// The key at the pool, opened if it is not yet. Concurrent callers share one opening.
    pub fn open_key(
        self: &Arc<Self>,
        user: &Arc<KeyIdentity>,
        source: impl FnOnce() -> Result<Source, PoolError>,
        stats: &Arc<Stats>,
        pause: Option<&dyn Pause>,
        deadline: Instant,
    ) -> Opened {
        loop {
            let oneshot = match self.join(user, pause) {
                Joined::Now(opened) => return opened,
                Joined::Open => return self.open(user, source, stats, pause, deadline),
                Joined::Wait(oneshot) => oneshot,
            };
            let opened = oneshot.wait(pause, deadline).unwrap_or_else(|| Err(unanswered(pause)));
            match opened {
                // The caller that opened the key had an earlier deadline.
                Err(error) if error.is_silent() && Instant::now() < deadline => {}
                opened => return opened,
            }
        }
    }

    /// Joins the opening of a key, or puts the key into state `Opening` for the caller to open it.
    fn join(&self, user: &Arc<KeyIdentity>, pause: Option<&dyn Pause>) -> Joined {
        let mut keys = lock(&self.keys);
        if let Some(entry) = keys.get_mut(user.as_ref()) {
            return entry.join(user, pause);
        }
        keys.retain(|_, entry| entry.users.iter().any(|user| user.strong_count() > 0));
        let entry =
            KeyEntry { users: vec![Arc::downgrade(user)], state: KeyState::Opening(Vec::new()) };
        keys.insert(Arc::new(KeyIdentity::clone(user)), entry);
        Joined::Open
    }

    /// Forgets keys that have no key object any more.
    pub fn sweep(&self) {
        let mut keys = lock(&self.keys);
        keys.retain(|_, entry| entry.users.iter().any(|user| user.strong_count() > 0));
    }

    /// Opens the key, which this caller has put into state `Opening`, and wakes all that wait for it.
    fn open(
        self: &Arc<Self>,
        user: &Arc<KeyIdentity>,
        source: impl FnOnce() -> Result<Source, PoolError>,
        stats: &Arc<Stats>,
        pause: Option<&dyn Pause>,
        deadline: Instant,
    ) -> Opened {
        let opening = Opening {
            process: Arc::clone(self),
            identity: Arc::new(KeyIdentity::clone(user)),
            settled: false,
        };
        let source = match source() {
            Ok(source) => source,
            Err(error) => return opening.end(Err(error)),
        };
        let stats = Arc::clone(stats);
        let Some(pause) = pause else {
            return opening.run(source, &stats, deadline);
        };
        let oneshot = Oneshot::new(Some(pause.waker()));
        let result = Arc::clone(&oneshot);
        let thread =
            std::thread::Builder::new().name("millrace-open".to_owned()).stack_size(OPENER_STACK);
        let started = pause
            .spawn(thread, Box::new(move || result.put(opening.run(source, &stats, deadline))));
        if let Err(error) = started {
            return Err(PoolError::new(
                FailureKind::Busy,
                format!("no thread to open the key: {}", describe_start(&error)),
            )
            .unasked());
        }
        oneshot.wait(Some(pause), deadline).unwrap_or_else(|| Err(PoolError::abandoned()))
    }
}

enum Joined {
    Now(Opened),
    Wait(Arc<Oneshot<Opened>>),
    Open,
}

impl KeyEntry {
    fn join(&mut self, user: &Arc<KeyIdentity>, pause: Option<&dyn Pause>) -> Joined {
        if !self.users.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(user))) {
            self.users.retain(|known| known.strong_count() > 0);
            self.users.push(Arc::downgrade(user));
        }
        match &mut self.state {
            KeyState::Open(key) => Joined::Now(Ok(Arc::clone(key))),
            KeyState::Refused(error, until) if Instant::now() < *until => {
                Joined::Now(Err(error.clone().unasked()))
            }
            KeyState::Opening(waiting) => {
                let oneshot = Oneshot::new(pause.map(Pause::waker));
                waiting.push(Arc::clone(&oneshot));
                Joined::Wait(oneshot)
            }
            KeyState::Refused(..) => {
                self.state = KeyState::Opening(Vec::new());
                Joined::Open
            }
        }
    }
}

/// Ends an opening for all that wait for it, also if it panics.
struct Opening {
    process: Arc<ProcessState>,
    identity: Arc<KeyIdentity>,
    settled: bool,
}

impl Opening {
    fn run(self, source: Source, stats: &Stats, deadline: Instant) -> Opened {
        let pool = &self.process.pool;
        let remote = match source {
            Source::Imported(key) => pool.import(key, deadline),
            Source::Resident => {
                let name = self.identity.name.as_deref().unwrap_or("");
                remote::open_version(pool.as_ref(), name, &self.identity.spki, deadline)
            }
        };
        let opened = remote.map(|remote| {
            stats.keys_opened.add();
            Arc::new(OpenKey::new(remote))
        });
        self.end(opened)
    }

    fn end(mut self, opened: Opened) -> Opened {
        self.settled = true;
        self.settle(&opened);
        opened
    }

    fn settle(&self, opened: &Opened) {
        let waiting = {
            let mut keys = lock(&self.process.keys);
            let Some(entry) = keys.get_mut(&self.identity) else {
                return;
            };
            // A failure that may pass is not remembered: until the breaker opens, each operation asks again.
            let state = match opened {
                Ok(key) => KeyState::Open(Arc::clone(key)),
                Err(error) if error.kind == FailureKind::Refused => {
                    KeyState::Refused(error.clone(), Instant::now() + REFUSAL_LASTS)
                }
                Err(error) => KeyState::Refused(error.clone(), Instant::now()),
            };
            match std::mem::replace(&mut entry.state, state) {
                KeyState::Opening(waiting) => waiting,
                _ => Vec::new(),
            }
        };
        for oneshot in waiting {
            oneshot.put(opened.clone());
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if !self.settled {
            self.settle(&Err(PoolError::new(
                FailureKind::Failed,
                "opening the key was interrupted",
            )));
        }
    }
}

/// The error of a wait that ended without an answer: a pause ends when the job is given up, a block at
/// the deadline.
fn unanswered(pause: Option<&dyn Pause>) -> PoolError {
    match pause {
        Some(_) => PoolError::abandoned(),
        None => {
            PoolError::new(FailureKind::TimedOut, "the key could not be opened by the deadline")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;
    use crate::remote::Remote;

    /// Answers the first opening when another caller has joined it, and then with an error.
    struct Late {
        process: OnceLock<Weak<ProcessState>>,
        openings: AtomicU32,
    }

    impl Late {
        fn is_joined(&self) -> bool {
            let process = self.process.get().and_then(Weak::upgrade);
            let process = process.expect("the test holds it");
            let keys = lock(&process.keys);
            let waits =
                |entry: &KeyEntry| matches!(&entry.state, KeyState::Opening(w) if !w.is_empty());
            keys.values().any(waits)
        }
    }

    impl Pool for Arc<Late> {
        fn open(
            &self,
            _name: &str,
            _: Option<&[u8]>,
            _deadline: Instant,
        ) -> Result<Arc<dyn Remote>, PoolError> {
            let (kind, text) = match self.openings.fetch_add(1, Ordering::SeqCst) {
                0 => (FailureKind::NoNode, "the node restarts"),
                _ => (FailureKind::Refused, "the node is back"),
            };
            while kind == FailureKind::NoNode && !self.is_joined() {
                thread::yield_now();
            }
            Err(PoolError::new(kind, text))
        }

        fn import(
            &self,
            _key: PrivateKey,
            deadline: Instant,
        ) -> Result<Arc<dyn Remote>, PoolError> {
            self.open("", None, deadline)
        }
    }

    #[test]
    fn caller_that_joined_an_opening_goes_on_when_that_ends_early() {
        let pool = Arc::new(Late { process: OnceLock::new(), openings: AtomicU32::new(0) });
        let process = Arc::new(ProcessState::new(Arc::new(Arc::clone(&pool))));
        let _ = pool.process.set(Arc::downgrade(&process));
        let user = Arc::new(KeyIdentity { spki: vec![1], name: Some("www".to_owned()) });
        let open = || {
            let deadline = Instant::now() + Duration::from_secs(60);
            let opened =
                process.open_key(&user, || Ok(Source::Resident), &Arc::default(), None, deadline);
            opened.err().map(|error| error.kind)
        };
        let mut ends = thread::scope(|scope| {
            [scope.spawn(open), scope.spawn(open)].map(|caller| caller.join().expect("no panic"))
        });
        // The first caller's time is over; the second one opens the key itself.
        ends.sort_by_key(|end| *end == Some(FailureKind::Refused));
        assert_eq!(ends, [Some(FailureKind::NoNode), Some(FailureKind::Refused)]);
        assert_eq!(pool.openings.load(Ordering::SeqCst), 2);
    }
}
