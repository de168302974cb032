// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What the client counts. Plain numbers: whoever reads them decides how to show them.

use std::time::Duration;

/// What one process has done with a pool, since its first use in that process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// One per configured node, in their order. Empty before the first use.
    pub nodes: Vec<NodeStats>,
    /// Totals.
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
    /// Jobs that would have been tried again if the budget for that had not been used up.
    pub budget_exhausted: u64,
    /// Jobs that were sent to a second node as well.
    pub hedges: u64,
    /// Those that the second node answered first.
    pub hedge_wins: u64,
    /// Those for which it was in vain.
    pub hedge_losses: u64,
    /// Jobs that would have been, if the budget for that had not been used up.
    pub hedges_denied: u64,
    /// Completions of jobs that the connection did not owe: a duplicate, or a node gone wrong.
    pub stray_completions: u64,
    /// Completions that came after their job had ended by deadline or cancellation.
    pub late_completions: u64,
    /// Callbacks that panicked.
    pub callback_panics: u64,
}

/// Second tries, by the reason of the first one's failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retries {
    /// The connection was lost.
    pub connection_lost: u64,
    /// The node was busy.
    pub busy: u64,
    /// The node was draining.
    pub draining: u64,
    /// The node failed.
    pub failed: u64,
    /// The node had forgotten the key.
    pub no_such_key: u64,
    /// The node does not do this operation.
    pub not_offered: u64,
    /// The node did not open the key.
    pub key_refused: u64,
}

/// What one process knows of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStats {
    /// As configured.
    pub endpoint: String,
    /// The node's name for itself; empty before the first connection.
    pub name: String,
    /// Whether jobs can be sent now.
    pub connected: bool,
    /// Whether it takes no new jobs.
    pub draining: bool,
    /// Jobs that it owes.
    pub in_flight: u32,
    /// Moving average of the time from sending a job to its completion.
    pub latency: Duration,
    /// Counters.
    pub counters: NodeCounters,
    /// Why the last connection ended or did not come about; empty if that never happened.
    pub last_error: String,
}

/// Counters of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeCounters {
    /// Jobs sent, second tries included.
    pub jobs: u64,
    /// Completions with a result.
    pub succeeded: u64,
    /// Completions with an error.
    pub failed: u64,
    /// Handshakes completed.
    pub connects: u64,
    /// Connections that did not come about.
    pub connect_failures: u64,
    /// Connections lost after their handshake.
    pub lost: u64,
}
