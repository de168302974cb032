// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A mailbox for a front end whose sessions are tasks. Other threads put into it completions from the
//! engine's workers, loaded keys, and orders from the node. Many producers, one consumer (the task of the
//! connection).
//!
//! Bound: completions and imports answer requests of the connection that are in flight, and its session
//! bounds their number. The consumer is woken once per emptying, however many items arrive.

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Waker};

use millrace_engine::{Completion, CompletionSink, Key};
use millrace_operation::KeyError;
use millrace_operation::sync::lock;
use millrace_wire::RequestId;

use crate::sink::{Order, SessionSink};

/// The key loaded for a client's import, or the reason for refusing it.
pub type Import = (RequestId, Result<Arc<Key>, KeyError>);

/// The content of a mailbox.
#[derive(Debug, Default)]
pub struct UnsentAnswers {
    /// Jobs that ended.
    pub completions: Vec<Completion>,
    /// Results of imports.
    pub imports: Vec<Import>,
    /// The strongest order so far.
    pub order: Order,
}

#[derive(Default)]
struct OutboxState {
    waiting: UnsentAnswers,
    /// Set while the consumer sleeps.
    waker: Option<Waker>,
}

/// The mailbox of one session.
#[derive(Default)]
pub struct Outbox {
    state: Mutex<OutboxState>,
}

impl Outbox {
    /// Moves the content into `into`, whose lists must be empty. If there is none, returns `false` and
    /// arranges for the task to be woken.
    pub fn take(&self, into: &mut UnsentAnswers, context: &Context<'_>) -> bool {
        let mut state = self.lock();
        let OutboxState { waiting, waker } = &mut *state;
        let news = !waiting.completions.is_empty()
            || !waiting.imports.is_empty()
            || waiting.order != into.order;
        if news {
            mem::swap(&mut waiting.completions, &mut into.completions);
            mem::swap(&mut waiting.imports, &mut into.imports);
            into.order = waiting.order;
            *waker = None;
        } else if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
        news
    }

    /// Adds the result of an import.
    pub fn imported(&self, import: Import) {
        self.put(|waiting| waiting.imports.push(import));
    }

    fn put(&self, change: impl FnOnce(&mut UnsentAnswers)) {
        let mut state = self.lock();
        change(&mut state.waiting);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        lock(&self.state)
    }
}

impl CompletionSink for Outbox {
    fn complete(&self, completions: &mut Vec<Completion>) {
        self.put(|waiting| {
            if waiting.completions.is_empty() {
                mem::swap(&mut waiting.completions, completions);
            } else {
                waiting.completions.append(completions);
            }
        });
    }
}

impl SessionSink for Outbox {
    /// Ignores an order that is weaker than an earlier one.
    fn order(&self, order: Order) {
        self.put(|waiting| waiting.order = waiting.order.max(order));
    }
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outbox")
    }
}
