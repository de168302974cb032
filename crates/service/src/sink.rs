// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The sink of a session: a front end receives the completions of its jobs there, and the orders of the service.

use millrace_engine::CompletionSink;

/// Receives the completions of one session's jobs, and the service's orders. The front end implements it.
pub trait SessionSink: CompletionSink {
    /// Receives an order of the service. Called from any thread; must not block.
    fn order(&self, order: Order);
}

/// The service's order to a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// Continue to serve.
    #[default]
    Serve,
    /// Take no new jobs; end when the client disconnects or nothing is in flight.
    Drain,
    /// End at once.
    Close,
}
