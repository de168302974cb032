// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The order in which a node checks the keys that clients import, and the bounds on keys that wait.
//!
//! A check takes a core for milliseconds, and every client may ask for one. Identities take turns, then the
//! sessions of one identity, so that an identity with a thousand keys delays the key of another by one check for
//! each that runs. A key takes up to 8 KiB while it waits. A session whose identity has too many of them reads no
//! further message until one of its own is checked ([`ImportQueue::must_wait`]).

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

/// Imports of one session that may wait: enough to keep the checks busy, also for the only client of a node.
pub const PER_SESSION: usize = 16;

/// Imports of one identity that may wait before each of its sessions is held at one: at 8 KiB each, 1 MiB.
pub const PER_IDENTITY: usize = 128;

/// Imports of all identities that may wait: at 8 KiB each, 8 MiB.
pub const IN_ALL: usize = 1024;

/// Imports that wait for a check, fair between identities and then between the sessions of one.
#[derive(Debug)]
pub struct ImportQueue<T> {
    identities: Turns<Arc<str>, OfIdentity<T>>,
    waiting: usize,
}

#[derive(Debug)]
struct OfIdentity<T> {
    sessions: Turns<u64, VecDeque<T>>,
    waiting: usize,
}

impl<T> Default for OfIdentity<T> {
    fn default() -> Self {
        Self { sessions: Turns::default(), waiting: 0 }
    }
}

impl<T> Default for ImportQueue<T> {
    fn default() -> Self {
        Self { identities: Turns::default(), waiting: 0 }
    }
}

impl<T> ImportQueue<T> {
    /// Adds an import of a session.
    pub fn push(&mut self, identity: &Arc<str>, session: u64, import: T) {
        let own = self.identities.line(identity);
        own.sessions.line(&session).push_back(import);
        own.waiting += 1;
        self.waiting += 1;
    }

    /// The next import to check.
    pub fn pop(&mut self) -> Option<T> {
        let next = self.identities.next(|own| {
            let next = own.sessions.next(|imports| (imports.pop_front(), imports.is_empty()));
            own.waiting -= usize::from(next.is_some());
            (next, own.waiting == 0)
        });
        self.waiting -= usize::from(next.is_some());
        next
    }

    /// Drops the waiting imports of a session that has ended.
    pub fn leave(&mut self, identity: &Arc<str>, session: u64) {
        let Some(own) = self.identities.lines.get_mut(identity) else {
            return;
        };
        let dropped = own.sessions.remove(&session);
        let dropped = dropped.map_or(0, |imports| imports.len());
        own.waiting -= dropped;
        self.waiting -= dropped;
        if own.waiting == 0 {
            self.identities.remove(identity);
        }
    }

    /// Whether a session with `pending` imports that are not answered yet must wait before it asks for another. A
    /// session without a pending import never waits, so a session that waits always gets an answer that wakes it.
    #[must_use]
    pub fn must_wait(&self, identity: &Arc<str>, pending: usize) -> bool {
        let own = self.identities.lines.get(identity);
        let of_identity = own.map_or(0, |own| own.waiting);
        pending >= PER_SESSION
            || (pending > 0 && (self.waiting >= IN_ALL || of_identity >= PER_IDENTITY))
    }
}

/// Lines whose owners take turns.
#[derive(Debug)]
struct Turns<K, L> {
    lines: HashMap<K, L>,
    /// The owners of all lines, the next one first.
    order: VecDeque<K>,
}

impl<K, L> Default for Turns<K, L> {
    fn default() -> Self {
        Self { lines: HashMap::new(), order: VecDeque::new() }
    }
}

impl<K: Clone + Eq + Hash, L: Default> Turns<K, L> {
    /// The line of an owner; a new one comes last.
    fn line(&mut self, owner: &K) -> &mut L {
        if !self.lines.contains_key(owner) {
            self.order.push_back(owner.clone());
        }
        self.lines.entry(owner.clone()).or_default()
    }

    /// Takes from the next line with `take`, which returns the value and whether the line is empty afterwards.
    fn next<T>(&mut self, take: impl FnOnce(&mut L) -> (Option<T>, bool)) -> Option<T> {
        let owner = self.order.pop_front()?;
        let (taken, empty) = take(self.lines.get_mut(&owner)?);
        if empty {
            self.lines.remove(&owner);
        } else {
            self.order.push_back(owner);
        }
        taken
    }

    fn remove(&mut self, owner: &K) -> Option<L> {
        let line = self.lines.remove(owner)?;
        self.order.retain(|other| other != owner);
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> [Arc<str>; 2] {
        ["uid:1".into(), "uid:2".into()]
    }

    #[test]
    fn identity_with_many_imports_delays_another_by_one() {
        let [flood, other] = names();
        let mut queue = ImportQueue::default();
        for session in 0..200 {
            for _ in 0..PER_SESSION {
                queue.push(&flood, session, "flood");
            }
        }
        queue.push(&other, 1000, "other");
        let order: Vec<_> = (0..2).map_while(|_| queue.pop()).collect();
        assert_eq!(order, ["flood", "other"]);
    }

    #[test]
    fn sessions_of_one_identity_take_turns() {
        let [identity, _] = names();
        let mut queue = ImportQueue::default();
        for session in [1, 1, 1, 2, 2, 3] {
            queue.push(&identity, session, session);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [1, 2, 3, 1, 2, 1]);
        assert!(queue.identities.lines.is_empty() && queue.waiting == 0);
    }

    #[test]
    fn imports_of_an_ended_session_are_dropped() {
        let [one, two] = names();
        let mut queue = ImportQueue::default();
        for (identity, session) in [(&one, 1), (&one, 1), (&one, 2), (&two, 3)] {
            queue.push(identity, session, session);
        }
        queue.leave(&one, 1);
        queue.leave(&one, 7);
        queue.leave(&two, 3);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [2]);
        assert_eq!(queue.waiting, 0);
    }

    #[test]
    fn session_waits_at_its_bound_and_at_that_of_its_identity() {
        let [crowd, other] = names();
        let mut queue = ImportQueue::default();
        assert!(!queue.must_wait(&crowd, PER_SESSION - 1));
        assert!(queue.must_wait(&crowd, PER_SESSION));
        for session in 0..PER_IDENTITY as u64 - 1 {
            queue.push(&crowd, session, ());
        }
        assert!(!queue.must_wait(&crowd, 1));
        queue.push(&crowd, 0, ());
        assert!(queue.must_wait(&crowd, 1));
        assert!(!queue.must_wait(&crowd, 0), "each may ask for one");
        assert!(!queue.must_wait(&other, 1));
        for session in 0..IN_ALL as u64 {
            queue.push(&crowd, session, ());
        }
        assert!(queue.must_wait(&other, 1) && !queue.must_wait(&other, 0));
    }
}
