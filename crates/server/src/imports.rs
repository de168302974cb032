// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Checks of imported keys on a few threads, in the order of [`millrace_service::imports`].

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use millrace_operation::sync::lock;
use millrace_operation::{KeyError, PrivateKey};
use millrace_service::Service;
use millrace_service::imports::ImportQueue;
use millrace_service::outbox::Outbox;
use millrace_wire::RequestId;
use tokio::task::spawn_blocking;

/// Concurrent key checks of clients. Each takes a core for milliseconds; with two, imports continue beside a
/// slow one, and most of the machine stays available for jobs.
const CONCURRENT: usize = 2;

/// The checks of a node.
#[derive(Clone)]
pub(crate) struct Imports {
    shared: Arc<ImportShared>,
}

struct ImportShared {
    service: Service,
    next_session: AtomicU64,
    state: Mutex<ImportState>,
}

#[derive(Default)]
struct ImportState {
    queue: ImportQueue<Import>,
    /// Tasks that check imports; each ends when none waits.
    running: usize,
}

struct Import {
    request: RequestId,
    key: PrivateKey,
    outbox: Arc<Outbox>,
}

impl Imports {
    pub(crate) fn new(service: Service) -> Self {
        let shared =
            ImportShared { service, next_session: AtomicU64::new(0), state: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// The line of a new session. Dropping it drops the imports that wait in it.
    pub(crate) fn line(&self, identity: Arc<str>) -> ImportLine {
        ImportLine {
            session: self.shared.next_session.fetch_add(1, Ordering::Relaxed),
            identity,
            imports: self.clone(),
        }
    }

    /// Checks imports until none waits.
    async fn work(self) {
        while let Some(import) = self.next() {
            let request = import.request;
            let outbox = Arc::clone(&import.outbox);
            let service = self.shared.service.clone();
            let checked = spawn_blocking(move || {
                let key = service.check_import(&import.key);
                import.outbox.imported((import.request, key));
            });
            if checked.await.is_err() {
                outbox.imported((request, Err(KeyError::Backend)));
            }
        }
    }

    fn next(&self) -> Option<Import> {
        let mut state = self.lock();
        let next = state.queue.pop();
        // Under the lock, so that an import pushed from here on starts another task.
        state.running -= usize::from(next.is_none());
        next
    }

    fn lock(&self) -> MutexGuard<'_, ImportState> {
        lock(&self.shared.state)
    }
}

impl fmt::Debug for Imports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Imports")
    }
}

/// The imports of one session.
#[derive(Debug)]
pub(crate) struct ImportLine {
    identity: Arc<str>,
    session: u64,
    imports: Imports,
}

impl ImportLine {
    /// Asks for a check. Its result goes to `outbox`.
    pub(crate) fn push(&self, request: RequestId, key: PrivateKey, outbox: Arc<Outbox>) {
        let import = Import { request, key, outbox };
        let mut state = self.imports.lock();
        state.queue.push(&self.identity, self.session, import);
        if state.running < CONCURRENT {
            state.running += 1;
            tokio::spawn(self.imports.clone().work());
        }
    }

    /// Whether the session, with `pending` unanswered imports, must not read further messages.
    pub(crate) fn must_wait(&self, pending: usize) -> bool {
        pending > 0 && self.imports.lock().queue.must_wait(&self.identity, pending)
    }
}

impl Drop for ImportLine {
    fn drop(&mut self) {
        self.imports.lock().queue.leave(&self.identity, self.session);
    }
}
