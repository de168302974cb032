// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The questions of a process pool to its [`NodeSource`] whether the nodes of the pool have changed. Callers ask,
//! outside of the lock, since a source reads a file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::ProcessPool;
use crate::config::{MAX_NODES, NodeSource};

/// Shortest time between two looks, in milliseconds: a change is in use within a second of the next job, and a look
/// costs a system call.
const INTERVAL_MS: u64 = 1_000;

/// A number that no stamp is expected to have: the first look reads the source.
const NEVER: u64 = u64::MAX;

/// The source and what was seen of it.
pub(super) struct Listing {
    source: Option<Arc<dyn NodeSource>>,
    started: Instant,
    /// Milliseconds from `started` to the next look.
    next_ms: AtomicU64,
    stamp: AtomicU64,
}

impl Listing {
    pub(super) fn new(source: Option<Arc<dyn NodeSource>>) -> Self {
        Self {
            source,
            started: Instant::now(),
            next_ms: AtomicU64::new(0),
            stamp: AtomicU64::new(NEVER),
        }
    }

    /// Whether a look is due, which this thread then takes.
    fn is_due(&self) -> bool {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let next = self.next_ms.load(Ordering::Relaxed);
        let after = now + INTERVAL_MS;
        now >= next
            && self
                .next_ms
                .compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

impl ProcessPool {
    /// Takes over the nodes that the source names, if they have changed.
    pub(super) fn look_for_nodes(&self) {
        let Some(source) = &self.listing.source else {
            return;
        };
        if !self.listing.is_due() {
            return;
        }
        let stamp = source.stamp();
        if self.listing.stamp.load(Ordering::Relaxed) == stamp {
            return;
        }
        let nodes = source.nodes();
        let Some(nodes) = nodes.filter(|nodes| (1..=MAX_NODES).contains(&nodes.len())) else {
            return;
        };
        let mut inner = self.lock();
        if inner.driver.is_closing() {
            return;
        }
        let places = inner.dispatcher.set_nodes(&nodes, Instant::now());
        let all_placed = places.iter().all(Option::is_some);
        for (place, endpoint) in places.into_iter().zip(nodes) {
            match place {
                Some(at) if at < inner.endpoints.len() => inner.endpoints[at] = endpoint,
                Some(_) => {
                    inner.endpoints.push(endpoint);
                    inner.sockets.push(None);
                }
                None => {}
            }
        }
        self.flush_all(&mut inner);
        self.wake_all(&mut inner);
        drop(inner);
        // A node without a place is looked for again.
        let seen = if all_placed { stamp } else { NEVER };
        self.listing.stamp.store(seen, Ordering::Relaxed);
    }
}
