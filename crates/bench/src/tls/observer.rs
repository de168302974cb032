// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Samples gateways and tunnels while they work: the share of their CPU time that an accelerator could take over, and
//! the rest by class.

use std::cell::RefCell;
use std::collections::BTreeMap;

use millrace_sampler::{
    Calibrations, DEFAULT_FREQUENCY, Profile, SampleError, Sampler, Samples, SymbolClass,
    libcryptos_of,
};
use serde::Serialize;

use crate::error::BenchError;
use crate::progress::Progress;

/// Samples processes. Where that is not permitted it does nothing, and keeps the reason.
#[derive(Debug)]
pub(crate) struct LoadObserver {
    calibrations: Calibrations,
    /// Why there are no samples.
    blind: RefCell<Option<String>>,
}

/// The samples of processes during one load.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Seen {
    pub(crate) samples: u64,
    /// Share of their CPU time, by class.
    pub(crate) shares: BTreeMap<SymbolClass, f64>,
    #[serde(skip)]
    pub(crate) raw: Samples,
}

impl LoadObserver {
    /// Calibrates the libcryptos of these processes, if they are not yet.
    pub(crate) fn new(pids: &[u32], progress: &mut Progress) -> Self {
        let mut calibrations = Calibrations::with_cache();
        let mut blind = None;
        for library in pids.iter().flat_map(|pid| libcryptos_of(*pid)) {
            let result = calibrations.ensure(&library, &mut |what, step, steps| {
                // A request to stop is heeded after the calibration.
                let _ =
                    progress.now(&format!("calibrating libcrypto, once ({step}/{steps}): {what}"));
            });
            if let Err(error) = result {
                blind = Some(error.to_string());
            }
        }
        Self { calibrations, blind: RefCell::new(blind) }
    }

    /// Begins; nothing if that is not possible.
    pub(crate) fn start(&self, pids: &[u32]) -> Option<Sampler> {
        if self.blind.borrow().is_some() {
            return None;
        }
        let started = Sampler::start(pids, DEFAULT_FREQUENCY);
        started.inspect_err(|error| *self.blind.borrow_mut() = Some(error.to_string())).ok()
    }

    /// Ends, and classifies.
    pub(crate) fn stop(&self, sampler: Option<Sampler>) -> Result<Option<Seen>, BenchError> {
        let failed = |error: SampleError| BenchError::Setup(error.to_string());
        let Some(raw) = sampler.map(Sampler::stop).transpose().map_err(failed)? else {
            return Ok(None);
        };
        let profile = raw.profile(&self.calibrations);
        let shares = profile.classes.iter();
        Ok(Some(Seen {
            samples: profile.samples,
            shares: shares.map(|row| (row.class, row.share.share)).collect(),
            raw,
        }))
    }

    /// The samples of the same processes in several rounds, as one profile.
    pub(crate) fn merged<'a>(&self, seen: impl Iterator<Item = &'a Seen>) -> Option<Profile> {
        let all = seen.map(|round| round.raw.clone()).reduce(|mut all, round| {
            all.add(&round);
            all
        });
        all.filter(|all| all.total() > 0).map(|all| all.profile(&self.calibrations))
    }

    /// Why the ceiling is not sampled.
    pub(crate) fn blind(&self) -> Option<String> {
        self.blind.borrow().clone()
    }
}
