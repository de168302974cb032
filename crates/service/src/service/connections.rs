// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The connections of a service: counted when they are accepted, listed when their client is known.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use super::Service;
use crate::account::Account;
use crate::metrics::ConnectionRefusal;
use crate::settings::SettingsSnapshot;
use crate::sink::{Order, SessionSink};

/// Connections and sessions. Bound on the sessions: [`Limits::connections`](crate::settings::Limits::connections).
#[derive(Default)]
pub(super) struct ConnectionTable {
    pub(super) places: usize,
    pub(super) next: u64,
    pub(super) sessions: BTreeMap<u64, Arc<SessionEntry>>,
    pub(super) of_identity: HashMap<Arc<str>, usize>,
}

/// A row of the list of sessions.
pub(super) struct SessionEntry {
    pub(super) identity: Arc<str>,
    pub(super) agent: OnceLock<Arc<str>>,
    pub(super) since: SystemTime,
    pub(super) in_flight: AtomicUsize,
    pub(super) sink: Arc<dyn SessionSink>,
}

/// A counted connection. Dropping it frees its place.
#[derive(Debug)]
pub struct ConnectionSlot {
    pub(super) service: Service,
}

impl ConnectionSlot {
    /// Lists an admitted client as a session.
    pub(super) fn enter(
        &self,
        identity: &Arc<str>,
        sink: &Arc<dyn SessionSink>,
    ) -> Result<Entered, ConnectionRefusal> {
        let snapshot = self.service.settings();
        let terms = snapshot.terms(identity).ok_or(ConnectionRefusal::NotAdmitted)?;
        let inner = &*self.service.inner;
        let account = inner.accounts.of(&terms, Instant::now());
        let mut connections = inner.lock_connections();
        let open = connections.sessions.len();
        let held = connections.of_identity.get(identity).copied().unwrap_or(0);
        let of_party = account.connections();
        let settings = &snapshot.settings;
        if open >= settings.limits.connections {
            return Err(ConnectionRefusal::TooMany);
        }
        if !settings.has_room(identity, held, of_party, &terms.bounds, open) {
            return Err(ConnectionRefusal::TooManyOfIdentity);
        }
        account.connected();
        let entry = Arc::new(SessionEntry {
            identity: Arc::clone(identity),
            agent: OnceLock::new(),
            since: SystemTime::now(),
            in_flight: AtomicUsize::new(0),
            sink: Arc::clone(sink),
        });
        connections.next += 1;
        let number = connections.next;
        connections.sessions.insert(number, Arc::clone(&entry));
        connections.of_identity.insert(Arc::clone(identity), held + 1);
        inner.metrics.connections_open.set(connections.sessions.len());
        // Checked under the lock that `drain` holds while it sends its order to the listed sessions.
        if self.service.draining() {
            sink.order(Order::Drain);
        }
        Ok((number, entry, snapshot, account))
    }
}

/// An opened session: its number and entry, the settings, and the account of its party.
pub(super) type Entered = (u64, Arc<SessionEntry>, Arc<SettingsSnapshot>, Arc<Account>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.service.inner.lock_connections().places -= 1;
    }
}
