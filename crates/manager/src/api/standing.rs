// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The classes of callers, which take no place from each other (ADR 54): of connections, of bodies that are read, and
//! of requests that are carried out.
//!
//! ```text
//!  TCP ─► handshake ─► stranger ─────────┐   the token or certificate of a request
//!              └─────► certificate ──────┴─► viewer · administrator · node
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_server::places::Places;
use millrace_service::admission::PlaceClass;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Peers in a TLS handshake. One takes about 50 KiB; at a millisecond of a core each, two cores end as many in a
/// quarter of a second.
pub(super) const HANDSHAKE: PlaceClass = PlaceClass::new("handshake", 512);

/// Clients without a certificate that have not shown a token: pages that load, health checks, strangers.
pub(super) const STRANGER: PlaceClass = PlaceClass::new("stranger", 512);

/// Clients by a certificate without a role: gateways that ask for the nodes of their tenant, once a minute.
pub(super) const CERTIFICATE: PlaceClass =
    PlaceClass { name: "certificate", most: 256, of_source: 16 };

/// Viewers: pages that are open and programs that collect metrics.
const VIEWER: PlaceClass = PlaceClass::new("viewer", 256);

/// Operators and administrators: people and their programs.
const ADMINISTRATOR: PlaceClass = PlaceClass::new("administrator", 128);

/// Nodes: 1,000 that send a heartbeat at once, each over a connection of its own, beside some that close.
const NODE: PlaceClass = PlaceClass { name: "node", most: 1280, of_source: 8 };

/// Every class, each at its [`Standing`] after the first.
const CLASSES: [PlaceClass; 6] = [HANDSHAKE, STRANGER, CERTIFICATE, VIEWER, ADMINISTRATOR, NODE];

/// The class of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Stranger = 1,
    Certificate,
    Viewer,
    Administrator,
    Node,
}

impl Standing {
    pub(super) const fn class(self) -> PlaceClass {
        CLASSES[self as usize]
    }
}

/// The work of each class.
#[derive(Debug)]
pub(super) struct Rooms([Room; CLASSES.len()]);

/// The work of one class. Who waits for it does so in turn, over a connection of its class.
#[derive(Debug)]
struct Room {
    /// Bodies that are read, of 1 MiB at most.
    bodies: Semaphore,
    /// Requests that are carried out: each has one of the 512 threads that the runtime has for blocking work, while it
    /// waits for the store.
    requests: Semaphore,
}

/// Requests of one class that are carried out at once.
const MAX_AT_ONCE: usize = 64;

/// Of strangers: `/healthz`, which asks the store, and the document of the API.
const STRANGERS_AT_ONCE: usize = 8;

/// Bodies of one class that are read at once: more than one identity has connections.
const BODIES_AT_ONCE: usize = 64;

impl Default for Rooms {
    fn default() -> Self {
        Self(CLASSES.map(|class| {
            let stranger = class.name == STRANGER.name;
            let requests = if stranger { STRANGERS_AT_ONCE } else { MAX_AT_ONCE };
            let bodies = if stranger { 0 } else { BODIES_AT_ONCE };
            Room { bodies: Semaphore::new(bodies), requests: Semaphore::new(requests) }
        }))
    }
}

impl Rooms {
    /// Waits until a request may be carried out.
    pub(super) async fn request(&self, of: Standing) -> Option<SemaphorePermit<'_>> {
        // No semaphore is ever closed.
        self.0[of as usize].requests.acquire().await.ok()
    }

    /// Waits until a body may be read. Strangers send none.
    pub(super) async fn body(&self, of: Standing) -> Option<SemaphorePermit<'_>> {
        self.0[of as usize].bodies.acquire().await.ok()
    }
}

/// The places of the API's connections, with counters of those that gave way.
#[derive(Debug)]
pub(super) struct CountedPlaces {
    pub(super) places: Places,
    displaced: Arc<[AtomicU64; CLASSES.len()]>,
}

impl CountedPlaces {
    /// Name, connections, and connections that gave way of each class.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&'static str, usize, u64)> {
        let counters = CLASSES.iter().zip(&*self.displaced);
        counters.map(|(class, displaced)| {
            (class.name, self.places.held(*class), displaced.load(Ordering::Relaxed))
        })
    }
}

impl Default for CountedPlaces {
    fn default() -> Self {
        let displaced = Arc::<[AtomicU64; CLASSES.len()]>::default();
        let counted = Arc::clone(&displaced);
        let places = Places::new(move |class, _| {
            if let Some(index) = CLASSES.iter().position(|known| known.name == class.name) {
                counted[index].fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { places, displaced }
    }
}
