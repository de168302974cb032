// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Runs single operations on a backend, as a worker does.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use millrace_engine::BackendError;
use millrace_engine::backend::{Backend, BackendKey, OpenedKey, Queue, Task};
use millrace_operation::{KeyError, KeyKind, KeyType, Operation, OperationKind, Output};

use crate::keys::{self, TestKey};

/// A backend with one queue.
pub struct QueueDriver {
    backend: Arc<dyn Backend>,
    queue: Box<dyn Queue>,
    next_token: u32,
    /// Kinds of the keys opened here.
    kinds: RefCell<HashMap<BackendKey, KeyKind>>,
    /// Operations and kinds of key that succeeded at least once.
    tried: BTreeSet<(OperationKind, KeyKind)>,
}

impl std::fmt::Debug for QueueDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driver({:?})", self.backend)
    }
}

impl QueueDriver {
    /// Makes a driver and opens its queue.
    ///
    /// # Panics
    /// If the backend refuses to open a queue.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        let queue = backend.open_queue().expect("a queue");
        Self { backend, queue, next_token: 0, kinds: RefCell::default(), tried: BTreeSet::new() }
    }

    /// The backend under test.
    #[must_use]
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// Whether the backend offers this operation with this type of key.
    #[must_use]
    pub fn offers(&self, kind: OperationKind, key_type: KeyType) -> bool {
        self.backend.capabilities().iter().any(|row| row.covers(kind, key_type))
    }

    /// Opens a key from DER bytes.
    pub fn open(&self, der: &[u8]) -> Result<OpenedKey, KeyError> {
        let opened = self.backend.open_key(&keys::private_key(der))?;
        self.kinds.borrow_mut().insert(opened.key, opened.info.key_type.kind());
        Ok(opened)
    }

    /// Checks that every capability of the backend succeeded at least once.
    ///
    /// # Panics
    /// If one did not, because then the suite has no test for it.
    pub(super) fn assert_all_tried(&self) {
        for row in self.backend.capabilities() {
            for kind in row.operation.key_kinds().iter().copied() {
                let [smallest, largest] = kind.extremes();
                let offered = row.smallest <= largest && smallest <= row.largest;
                assert!(
                    !offered || self.tried.contains(&(row.operation, kind)),
                    "no test of this suite tries {} with {} keys",
                    row.operation,
                    kind.name()
                );
            }
        }
    }

    /// Opens a key that the backend must accept.
    ///
    /// # Panics
    /// If the backend refuses it.
    #[must_use]
    pub fn open_good(&self, key: &TestKey) -> OpenedKey {
        self.open(key.der).unwrap_or_else(|error| panic!("{}: {error}", key.name))
    }

    /// Closes a key. Its operations must fail afterwards.
    pub fn close(&self, key: BackendKey) {
        self.backend.close_key(key);
    }

    /// Runs one operation.
    ///
    /// # Panics
    /// If the backend breaks its contract: it refuses a task with an empty queue, loses it, or returns
    /// another one.
    pub fn perform(
        &mut self,
        key: BackendKey,
        operation: &Operation,
        input: &[u8],
    ) -> Result<Output, BackendError> {
        self.next_token = self.next_token.wrapping_add(1);
        let token = self.next_token;
        let task = Task { token, key, operation: operation.clone(), input: input.to_vec() };
        assert_eq!(self.queue.submit(&mut VecDeque::from([task])), 1, "an empty queue has room");
        let mut done = Vec::new();
        while self.queue.poll(&mut done) > 0 {}
        let [done] = <[_; 1]>::try_from(done).expect("one task comes back once");
        assert_eq!((done.task.token, done.task.key), (token, key));
        assert_eq!((&done.task.operation, done.task.input.as_slice()), (operation, input));
        if let (Ok(_), Some(kind)) = (&done.result, self.kinds.borrow().get(&key)) {
            self.tried.insert((operation.kind(), *kind));
        }
        done.result
    }

    /// Runs one operation that must succeed.
    ///
    /// # Panics
    /// If it fails.
    pub fn output(&mut self, key: BackendKey, operation: &Operation, input: &[u8]) -> Output {
        self.perform(key, operation, input)
            .unwrap_or_else(|error| panic!("{:?}: {error}", operation.kind()))
    }
}
