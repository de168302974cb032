// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! How long a connection asks its node for no key that it has refused, and for no job with a key that it has paused.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::key::KeyId;

/// Time for which a refusal of a key holds. A key that is added to a node is found after that.
pub(super) const REFUSAL_LASTS: Duration = Duration::from_secs(5);

/// A time in which a node refuses jobs with a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyPause {
    pub(crate) until: Instant,
    /// Whether a quota is the reason, and not the node's load.
    pub(crate) over_quota: bool,
}

/// The pauses of one connection. Bound: the keys that are open on it.
#[derive(Debug, Default)]
pub(crate) struct KeyPauses(HashMap<KeyId, KeyPause>);

impl KeyPauses {
    pub(super) fn insert(&mut self, key: KeyId, until: Instant) {
        self.0.insert(key, KeyPause { until, over_quota: false });
    }

    pub(super) fn remove(&mut self, key: KeyId) {
        self.0.remove(&key);
    }

    /// The pause of this key, if it has not ended.
    pub(crate) fn get(&self, key: KeyId, now: Instant) -> Option<KeyPause> {
        self.0.get(&key).copied().filter(|pause| now < pause.until)
    }

    /// The refused job says why the node refuses jobs with this key: the quota is used up.
    pub(crate) fn set_over_quota(&mut self, key: KeyId) {
        if let Some(pause) = self.0.get_mut(&key) {
            pause.over_quota = true;
        }
    }

    /// The end of the first pause that is not over. Forgets those that are.
    pub(crate) fn next_end(&mut self, now: Instant) -> Option<Instant> {
        self.0.retain(|_, pause| now < pause.until);
        self.0.values().map(|pause| pause.until).min()
    }
}
