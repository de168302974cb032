// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`SearchPace`]: how often a manager looks for better placements that no event asks for. Each tenant that it tries
//! costs a placement.

use std::time::{Duration, Instant};

/// Least time between two looks. Gateways follow a list of nodes within seconds.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// Bound on the tenants that are tried in one look.
pub const TRIES: usize = 16;

/// The time of the next look; `None` if one may begin at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct SearchPace(Option<Instant>);

impl SearchPace {
    /// Whether a look may begin.
    #[must_use]
    pub fn is_due(self, now: Instant) -> bool {
        self.0.is_none_or(|next| next <= now)
    }

    /// Notes that a look has begun.
    pub fn begin(&mut self, now: Instant) {
        self.0 = Some(now + INTERVAL);
    }
}
