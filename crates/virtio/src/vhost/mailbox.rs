// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The mailbox of a device. Workers of the engine put completions into it, and the thread of the rings takes them.

use std::fmt;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use millrace_engine::{Completion, CompletionSink};
use millrace_operation::sync::lock;
use millrace_service::sink::{Order, SessionSink};
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};

/// Completions for a device, and the orders of its session.
pub(super) struct Mailbox {
    completions: Mutex<Vec<Completion>>,
    draining: AtomicBool,
    notify: EventNotifier,
}

impl Mailbox {
    /// A mailbox, and the event that reports new mail.
    pub(super) fn new() -> io::Result<(Arc<Self>, EventConsumer)> {
        let (consumer, notify) =
            new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC)?;
        let mailbox =
            Self { completions: Mutex::default(), draining: AtomicBool::new(false), notify };
        Ok((Arc::new(mailbox), consumer))
    }

    /// Makes the thread of the rings look at everything.
    pub(super) fn wake(&self) {
        // Fails only if the counter of the event is full, and then the thread is awake.
        let _ = self.notify.notify();
    }

    /// Whether the service has ordered the session to end.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub(super) fn take(&self) -> Vec<Completion> {
        mem::take(&mut *lock(&self.completions))
    }
}

impl CompletionSink for Mailbox {
    fn complete(&self, completions: &mut Vec<Completion>) {
        let mut waiting = lock(&self.completions);
        let first = waiting.is_empty();
        waiting.append(completions);
        drop(waiting);
        if first {
            self.wake();
        }
    }
}

impl SessionSink for Mailbox {
    fn order(&self, order: Order) {
        if order != Order::Serve {
            self.draining.store(true, Ordering::Release);
            self.wake();
        }
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mailbox")
    }
}
