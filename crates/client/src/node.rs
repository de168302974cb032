// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One configured node: its connection or the time of the next attempt, its latency, its counters.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_operation::OperationKind;

use crate::config::{Endpoint, MAX_NODES};
use crate::connection::Connection;
use crate::key::KeyId;
use crate::random::Random;
use crate::standing::{EarlierResults, Standing};
use crate::stats::{NodeCounters, NodeStats};

/// Position of a node in the dispatcher's list, and of its socket in [`ProcessPool`](crate::io::ProcessPool)'s list.
pub(crate) type NodeIndex = usize;

/// A set of nodes. [`MAX_NODES`] fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeSet(u64);

const _: () = assert!(MAX_NODES <= u64::BITS as usize);

impl NodeSet {
    pub(crate) fn contains(self, node: NodeIndex) -> bool {
        self.0 & (1 << node) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn insert(&mut self, node: NodeIndex) {
        self.0 |= 1 << node;
    }

    pub(crate) fn remove(&mut self, node: NodeIndex) {
        self.0 &= !(1 << node);
    }

    pub(crate) fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// The nodes of the set, in ascending order.
    pub(crate) fn iter(self) -> impl Iterator<Item = NodeIndex> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let node = left.trailing_zeros();
            left &= left.checked_sub(1)?;
            Some(node as NodeIndex)
        })
    }
}

/// First bound of the random wait after a failed connection; it doubles each time.
const BACKOFF_BASE: Duration = Duration::from_millis(50);

/// Last bound of that wait: an idle process finds a node that came back after this time at most.
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Longest wait after a failed connection to a unix socket while there are jobs. An attempt costs some microseconds and
/// loads no other machine. The wait is random, from half of it: with a constant one a client may miss a node that
/// restarts in step with it.
const NEAR_RETRY: Duration = Duration::from_millis(20);

/// Longest wait after a failed connection over TCP while a job has no node: a tenth of the default deadline. The
/// wait is random, from half of it, so that the clients of a node do not come back together.
const FAR_RETRY: Duration = Duration::from_millis(200);

/// A connection that lasted this long counts as stable: when it is lost, the client reconnects at once.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// Latency that is assumed of a node without measurements, in µs. Also the floor, so that the load alone
/// decides between two fast nodes.
const LATENCY_FLOOR_MICROS: u64 = 100;

/// Time after which an old latency counts half: a node that was slow once is tried again.
const LATENCY_HALF_LIFE: Duration = Duration::from_secs(1);

/// State of a node's connection.
pub(crate) enum ConnectionState {
    /// Not used yet, or closed while idle: connects with the next job.
    Idle,
    /// Waits for the I/O thread to connect it.
    Wanted,
    /// The I/O thread is resolving its name or starting the connection.
    Connecting,
    /// There is a connection, greeting or ready.
    Up(Box<Connection>),
    /// Failed; tried again at `until`, or at `soonest` if a job needs the node.
    Backoff { until: Instant, soonest: Instant },
}

/// A node of the dispatcher's list, with its connection. The dispatcher keeps it until another node gets its place,
/// which is vacant once the pool no longer names this one and its connection has ended.
pub(crate) struct ConfiguredNode {
    pub(crate) endpoint: String,
    /// Whether the pool still names the node. If not, the node gets no job, and its connection ends with its last one.
    pub(crate) listed: bool,
    /// Whether the endpoint is a unix socket.
    is_near: bool,
    pub(crate) state: ConnectionState,
    /// Why no private key may be sent over the present connection. `None` if one may.
    pub(crate) distrust: Option<String>,
    pub(crate) counters: NodeCounters,
    pub(crate) standing: Standing,
    /// Names this node among those that have had its place in the table.
    pub(crate) serial: u32,
    /// The node's pace with each key. Bound: the keys that are open.
    pub(crate) paces: HashMap<KeyId, KeyPace>,
    /// Results on the present connection, by operation. Bound: the number of operations.
    results: Vec<(OperationKind, u32)>,
    /// The keys whose jobs the node refused while another node did them. Bound: the keys that are open.
    pub(crate) refusals: HashMap<KeyId, KeyRefusals>,
    /// Whether a job that the node does not answer found no second node.
    pub(crate) strands_jobs: bool,
    /// Attempts sent on this connection whose jobs ended before the node answered.
    pub(crate) late_replies: u32,
    name: Arc<str>,
    failures: u32,
    latency: Latency,
    last_error: String,
}

impl ConfiguredNode {
    pub(crate) fn new(endpoint: &Endpoint, now: Instant) -> Self {
        Self {
            endpoint: endpoint.to_string(),
            listed: true,
            is_near: matches!(endpoint, Endpoint::Unix(_)),
            state: ConnectionState::Idle,
            distrust: None,
            counters: NodeCounters::default(),
            standing: Standing::default(),
            serial: 0,
            paces: HashMap::new(),
            results: Vec::new(),
            refusals: HashMap::new(),
            strands_jobs: false,
            late_replies: 0,
            name: Arc::from(""),
            failures: 0,
            latency: Latency { micros: 0, at: now },
            last_error: String::new(),
        }
    }

    /// The connection, if there is one.
    pub(crate) fn connection(&mut self) -> Option<&mut Connection> {
        match &mut self.state {
            ConnectionState::Up(connection) => Some(connection),
            _ => None,
        }
    }

    /// There is a job: connects an idle node, and retries a near one early.
    pub(crate) fn connect_if_idle(&mut self, now: Instant) {
        if !self.listed {
            return;
        }
        if matches!(self.state, ConnectionState::Idle) {
            self.state = ConnectionState::Wanted;
        } else if self.is_near {
            self.retry_early(now);
        }
    }

    /// A job has no node: ends the wait for the next attempt as early as the bounds on attempts allow.
    pub(crate) fn retry_early(&mut self, now: Instant) {
        if !self.listed {
            return;
        }
        match &mut self.state {
            ConnectionState::Backoff { soonest, .. } if *soonest <= now => {
                self.state = ConnectionState::Wanted
            }
            ConnectionState::Backoff { until, soonest } => *until = (*until).min(*soonest),
            ConnectionState::Idle => self.state = ConnectionState::Wanted,
            ConnectionState::Wanted | ConnectionState::Connecting | ConnectionState::Up(_) => {}
        }
    }

    /// Whether a connection is being made and the last attempt did not fail: worth waiting for, also if the
    /// caller has the key itself.
    pub(crate) fn is_connecting(&self) -> bool {
        self.failures == 0
            && match &self.state {
                ConnectionState::Wanted | ConnectionState::Connecting => true,
                ConnectionState::Up(connection) => {
                    !connection.is_ready() && !connection.is_draining()
                }
                ConnectionState::Idle | ConnectionState::Backoff { .. } => false,
            }
    }

    /// The pool names this node no more. Its connection takes no new jobs.
    pub(crate) fn retire(&mut self) {
        self.listed = false;
        match &mut self.state {
            ConnectionState::Up(connection) => connection.drain(),
            ConnectionState::Wanted | ConnectionState::Backoff { .. } => {
                self.state = ConnectionState::Idle;
            }
            ConnectionState::Idle | ConnectionState::Connecting => {}
        }
    }

    /// Whether another node can take this node's place in the table.
    pub(crate) fn is_vacant(&self) -> bool {
        !self.listed && self.late_replies == 0 && matches!(self.state, ConnectionState::Idle)
    }

    /// The name that the node gave itself; empty before the first connection.
    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// Records a completed handshake.
    pub(crate) fn handshake_completed(&mut self, name: &Arc<str>) {
        self.name = Arc::clone(name);
        self.counters.connects += 1;
        // Another process may answer now.
        self.results.clear();
        self.paces.values_mut().for_each(|pace| pace.results = 0);
    }

    /// Records a result, after [`Self::record_answer`]. Returns the results that came before it.
    pub(crate) fn record_result(&mut self, operation: OperationKind, key: KeyId) -> EarlierResults {
        let mut earlier = EarlierResults::default();
        match self.results.iter_mut().find(|(known, _)| *known == operation) {
            Some((_, count)) => earlier.of_operation = count_up(count),
            None => self.results.push((operation, 1)),
        }
        if let Some(pace) = self.paces.get_mut(&key) {
            earlier.with_key = count_up(&mut pace.results);
        }
        earlier
    }

    /// Records that a connection could not be made.
    pub(crate) fn connect_failed(&mut self, why: String, random: &mut Random, now: Instant) {
        self.counters.connect_failures += 1;
        self.back_off(why, random, now);
    }

    /// Records the loss of a connection after its handshake. `orderly`: no job or request was open on it.
    pub(crate) fn lost(
        &mut self,
        started: Instant,
        orderly: bool,
        why: String,
        random: &mut Random,
        now: Instant,
    ) {
        self.counters.lost += 1;
        if now.saturating_duration_since(started) < STABLE_AFTER {
            return self.back_off(why, random, now);
        }
        self.failures = 0;
        self.last_error = why;
        self.state = if orderly { ConnectionState::Idle } else { ConnectionState::Wanted };
    }

    /// Waits a random time, exponentially longer each time (full jitter), so that the clients of a node
    /// that comes back do not come back together.
    pub(crate) fn back_off(&mut self, why: String, random: &mut Random, now: Instant) {
        let bound = BACKOFF_BASE.saturating_mul(1 << self.failures.min(10)).min(BACKOFF_MAX);
        self.failures = self.failures.saturating_add(1);
        self.last_error = why;
        let longest = if self.is_near { NEAR_RETRY } else { FAR_RETRY };
        let retry = longest / 2 + random.up_to(longest / 2);
        self.state =
            ConnectionState::Backoff { until: now + random.up_to(bound), soonest: now + retry };
    }

    /// Records that the node answered a job with this key that was sent at `sent`.
    pub(crate) fn record_answer(&mut self, key: KeyId, sent: Instant, now: Instant) {
        let latency = now.saturating_duration_since(sent);
        self.failures = 0;
        self.latency.add(latency, now);
        let pace = self.paces.entry(key).or_insert(KeyPace { answered: sent, latency, results: 0 });
        pace.answered = pace.answered.max(sent);
        // The weight is that of the moving average of all jobs.
        pace.latency = (pace.latency * 7 + latency) / 8;
    }

    /// Records that another node did a job with this key that this one had refused.
    pub(crate) fn was_refuted(&mut self, key: KeyId, now: Instant) {
        let refusals = self.refusals.entry(key).or_insert(KeyRefusals {
            until: now,
            in_a_row: 0,
            on_trial: false,
        });
        // Of many jobs that were under way, only the first one counts.
        if refusals.until <= now || refusals.on_trial {
            refusals.on_trial = false;
            refusals.in_a_row = refusals.in_a_row.saturating_add(1);
            refusals.until = now + refusals.pause();
        }
    }

    /// Whether jobs with this key prefer other nodes.
    pub(crate) fn is_avoided(&self, key: KeyId, now: Instant) -> bool {
        self.refusals.get(&key).is_some_and(|refusals| now < refusals.until)
    }

    /// A job with this key goes to the node. After a pause one does, and the others wait for its answer.
    pub(crate) fn is_chosen(&mut self, key: KeyId, now: Instant) {
        if let Some(refusals) = self.refusals.get_mut(&key).filter(|found| found.until <= now) {
            refusals.on_trial = true;
            refusals.until = now + refusals.pause();
        }
    }

    /// Records that a job waited for `latency` without an answer, and waits no longer.
    pub(crate) fn record_wait(&mut self, latency: Duration, now: Instant) {
        self.latency.add(latency, now);
    }

    /// Whether the node can be sent jobs and does not stand out.
    pub(crate) fn is_good(&self) -> bool {
        let is_ready =
            matches!(&self.state, ConnectionState::Up(connection) if connection.is_ready());
        is_ready && self.listed && !self.standing.is_out()
    }

    /// Whether jobs can be sent now, and one more has room.
    pub(crate) fn has_room(&self) -> bool {
        match &self.state {
            ConnectionState::Up(connection) => connection.is_ready() && connection.has_room(),
            _ => false,
        }
    }

    /// Cost of one more job at this node, in arbitrary units: jobs in flight times latency.
    pub(crate) fn cost(&self, now: Instant) -> u64 {
        match &self.state {
            ConnectionState::Up(connection) => self.cost_with(connection.in_flight(), now),
            _ => u64::MAX,
        }
    }

    fn cost_with(&self, in_flight: u32, now: Instant) -> u64 {
        (u64::from(in_flight) + 1).saturating_mul(self.latency.now(now).max(LATENCY_FLOOR_MICROS))
    }

    /// The endpoint with its last error, for messages.
    pub(crate) fn describe_error(&self) -> String {
        if self.last_error.is_empty() {
            return format!("{}: not ready", self.endpoint);
        }
        format!("{}: {}", self.endpoint, self.last_error)
    }

    pub(crate) fn stats(&self) -> NodeStats {
        let connection = match &self.state {
            ConnectionState::Up(connection) => Some(connection),
            _ => None,
        };
        NodeStats {
            endpoint: self.endpoint.clone(),
            name: self.name.to_string(),
            connected: connection.is_some_and(|c| c.is_ready()),
            draining: connection.is_some_and(|c| c.is_draining()),
            in_flight: connection.map_or(0, |c| c.in_flight()),
            latency: Duration::from_micros(self.latency.micros),
            out: self.standing.is_out(),
            counters: self.counters,
            last_error: self.last_error.clone(),
        }
    }
}

/// First time in which a node that refused a job gets no other with the same key: long against the retry at another
/// node, short against the load that makes a node busy.
const FIRST_AVOIDED: Duration = Duration::from_millis(50);

/// Longest such time: that for which a refusal of the key itself holds.
const LONGEST_AVOIDED: Duration = Duration::from_secs(5);

/// Refusals of jobs with one key that another node did. Such a node answers at once, so that its pace would attract all
/// jobs; but it may do jobs with other keys well.
pub(crate) struct KeyRefusals {
    until: Instant,
    in_a_row: u32,
    /// Whether a job has been sent since the last pause, and was not answered.
    on_trial: bool,
}

impl KeyRefusals {
    fn pause(&self) -> Duration {
        let doublings = self.in_a_row.saturating_sub(1).min(16);
        (FIRST_AVOIDED * (1 << doublings)).min(LONGEST_AVOIDED)
    }
}

/// Adds 1 to a counter, and returns its former value.
fn count_up(count: &mut u32) -> u32 {
    std::mem::replace(count, count.saturating_add(1))
}

/// How a node answered jobs with one key.
pub(crate) struct KeyPace {
    /// Latest start of a job that it has answered.
    pub(crate) answered: Instant,
    /// Moving average.
    pub(crate) latency: Duration,
    /// Results on the present connection.
    results: u32,
}

/// A moving average of latencies whose weight halves with age.
struct Latency {
    micros: u64,
    at: Instant,
}

impl Latency {
    fn add(&mut self, latency: Duration, now: Instant) {
        let sample = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX >> 8).min(u64::MAX >> 8);
        // Weight 1/8: follows a change within some ten jobs, and ignores one slow key among them.
        self.micros = if self.micros == 0 { sample } else { (self.micros * 7 + sample) / 8 };
        self.at = now;
    }

    fn now(&self, now: Instant) -> u64 {
        let age = now.saturating_duration_since(self.at).as_millis();
        let halvings = age / LATENCY_HALF_LIFE.as_millis();
        self.micros >> halvings.min(63)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(endpoint: &str, now: Instant) -> ConfiguredNode {
        ConfiguredNode::new(&endpoint.parse().expect("an endpoint"), now)
    }

    #[test]
    fn needed_node_is_tried_again_soon_and_not_sooner() {
        let now = Instant::now();
        let mut random = Random::new();
        for (endpoint, shortest, longest) in
            [("unix:/x", NEAR_RETRY / 2, NEAR_RETRY), ("tcp:a:1", FAR_RETRY / 2, FAR_RETRY)]
        {
            for _ in 0..100 {
                let mut node = node(endpoint, now);
                node.failures = 20;
                node.connect_failed("refused".to_owned(), &mut random, now);
                let ConnectionState::Backoff { until, soonest } = node.state else {
                    panic!("no back-off")
                };
                assert!(soonest >= now + shortest && soonest <= now + longest);
                node.retry_early(now);
                let waits = matches!(node.state, ConnectionState::Backoff { until: early, .. }
                    if early == until.min(soonest));
                assert!(waits, "{endpoint}: an attempt at most every {shortest:?}");
                node.retry_early(now + longest);
                assert!(matches!(node.state, ConnectionState::Wanted), "{endpoint}");
            }
        }
    }

    #[test]
    fn near_node_is_retried_early_for_any_job_and_a_far_one_is_not() {
        let now = Instant::now();
        for (endpoint, retried) in [("unix:/x", true), ("tcp:a:1", false)] {
            let mut node = node(endpoint, now);
            node.connect_if_idle(now);
            assert!(matches!(node.state, ConnectionState::Wanted), "the first job connects");
            node.connect_failed("refused".to_owned(), &mut Random::new(), now);
            node.connect_if_idle(now + FAR_RETRY);
            assert_eq!(matches!(node.state, ConnectionState::Wanted), retried, "{endpoint}");
        }
    }

    #[test]
    fn backoff_grows_and_stays_bounded() {
        let now = Instant::now();
        let mut random = Random::new();
        let mut node = node("unix:/x", now);
        for attempt in 0..40 {
            node.connect_failed("refused".to_owned(), &mut random, now);
            let ConnectionState::Backoff { until, .. } = node.state else { panic!("no backoff") };
            let bound = BACKOFF_BASE.saturating_mul(1 << attempt.min(10)).min(BACKOFF_MAX);
            assert!(until >= now && until <= now + bound, "attempt {attempt}");
        }
        assert!(!node.is_connecting());
        assert_eq!(node.describe_error(), "unix:/x: refused");
    }

    #[test]
    fn stable_connection_is_replaced_at_once_and_a_short_one_later() {
        let start = Instant::now();
        let mut random = Random::new();
        let mut node = node("unix:/x", start);
        node.lost(start, false, "gone".to_owned(), &mut random, start + STABLE_AFTER);
        assert!(node.is_connecting());
        node.lost(start, true, "gone".to_owned(), &mut random, start + STABLE_AFTER);
        assert!(matches!(node.state, ConnectionState::Idle));
        node.lost(start, false, "gone".to_owned(), &mut random, start + STABLE_AFTER / 2);
        assert!(matches!(node.state, ConnectionState::Backoff { .. }));
    }

    #[test]
    fn old_latency_decays() {
        let now = Instant::now();
        let mut node = node("unix:/x", now);
        let answered = now + Duration::from_millis(800);
        node.record_answer(1, now, answered);
        let now = answered;
        assert_eq!(node.cost_with(0, now), 800_000);
        assert_eq!(node.cost_with(1, now), 1_600_000);
        assert_eq!(node.cost_with(0, now + LATENCY_HALF_LIFE), 400_000);
        assert_eq!(node.cost_with(0, now + LATENCY_HALF_LIFE * 100), 100);
    }
}
