// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The client's counters, as plain numbers: their readers decide how to show them.

use std::time::Duration;

use millrace_wire::Fault;

use crate::connection::fault_text;

/// Counters of a pool in one process, since its first use there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// One per configured node, in their order. Empty before the first use.
    pub nodes: Vec<NodeStats>,
    /// Counters of all nodes and jobs together.
    pub totals: Totals,
    /// Jobs that have not ended.
    pub in_flight: usize,
    /// Keys that are open.
    pub keys: usize,
}

/// Totals of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Jobs accepted.
    pub jobs: u64,
    /// Jobs that ended with a result.
    pub succeeded: u64,
    /// Jobs that ended with a node's error.
    pub failed: u64,
    /// Jobs that ended at their deadline.
    pub timed_out: u64,
    /// Jobs that were cancelled by their owner.
    pub cancelled: u64,
    /// Jobs and keys refused or ended because no node could be reached.
    pub no_node: u64,
    /// Jobs refused because of the bound on jobs in flight.
    pub busy: u64,
    /// Jobs tried again, by reason.
    pub retries: Retries,
    /// Retries that were not made because their budget was used up.
    pub budget_exhausted: u64,
    /// Jobs that were sent to a second node as well.
    pub hedges: u64,
    /// Hedges that answered before the first node.
    pub hedge_wins: u64,
    /// Hedges whose result was not used.
    pub hedge_losses: u64,
    /// Hedges that were not sent because their budget was used up.
    pub hedges_denied: u64,
    /// Jobs that were sent to a second node because their first one was taken out.
    pub rescues: u64,
    /// Completions that no attempt on the connection waited for: duplicates, or a faulty node.
    pub stray_completions: u64,
    /// Times that a node broke the protocol, answered for a job that it did not have, or failed jobs in a row that
    /// another node did.
    pub contradictions: u64,
    /// Completions that came after their job had ended by deadline or cancellation.
    pub late_completions: u64,
    /// Callbacks that panicked.
    pub callback_panics: u64,
}

/// Retries, by the reason of the failure before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retries {
    /// The connection was lost.
    pub connection_lost: u64,
    /// The node was busy.
    pub busy: u64,
    /// The identity was over its quota at the node, which said when to try again.
    pub over_quota: u64,
    /// The node was draining.
    pub draining: u64,
    /// The node answered `failed`: none of its backends could do it.
    pub failed: u64,
    /// The node had forgotten the key.
    pub no_such_key: u64,
    /// The node does not do this operation.
    pub not_offered: u64,
    /// The node did not open the key.
    pub key_refused: u64,
}

/// State and counters of one node, as one process sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStats {
    /// Address of the node, as configured.
    pub endpoint: String,
    /// The node's name for itself; empty before the first connection.
    pub name: String,
    /// Whether jobs can be sent now.
    pub connected: bool,
    /// Whether the node takes no new jobs.
    pub draining: bool,
    /// Jobs that the node has not answered.
    pub in_flight: u32,
    /// Moving average of the time from sending a job to its completion.
    pub latency: Duration,
    /// Whether jobs go to other nodes, because this one answered wrongly or not at all beside another.
    pub out: bool,
    /// Counters since the first use.
    pub counters: NodeCounters,
    /// Why the last connection ended or could not be made; empty if none did.
    pub last_error: String,
}

impl NodeStats {
    /// Whether the node answers and takes no connection, because this identity or all together have as many as they
    /// may.
    #[must_use]
    pub fn is_full(&self) -> bool {
        !self.connected && self.last_error == fault_text(Fault::TooManyConnections)
    }
}

/// Counters of one node since the first use of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeCounters {
    /// Attempts sent: jobs, retries and hedges.
    pub jobs: u64,
    /// Completions with a result.
    pub succeeded: u64,
    /// Completions with an error.
    pub failed: u64,
    /// Handshakes completed.
    pub connects: u64,
    /// Connections that could not be made.
    pub connect_failures: u64,
    /// Connections lost after their handshake.
    pub lost: u64,
    /// Results that their owner found to be wrong.
    pub wrong: u64,
    /// Times that the node was taken out: for a wrong result, a broken protocol, or silence beside a node that answers.
    pub outs: u64,
}
