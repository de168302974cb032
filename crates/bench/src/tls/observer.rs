// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Samples gateways while they work: the share of their CPU time that a pool could take over, and the rest by class.

use std::cell::RefCell;
use std::collections::BTreeMap;

use millrace_sampler::{
    Calibrations, Class, DEFAULT_FREQUENCY, Profile, SampleError, Sampler, Samples, libcryptos_of,
};
use serde::Serialize;

use crate::error::BenchError;
use crate::progress::Progress;

/// Samples gateways. Where that is not permitted it does nothing, and keeps the reason.
#[derive(Debug)]
pub(super) struct Observer {
    calibrations: Calibrations,
    /// Why there are no samples.
    blind: RefCell<Option<String>>,
}

/// The samples of one gateway during one load.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Seen {
    pub(super) samples: u64,
    /// Share of the gateway's CPU time, by class.
    pub(super) shares: BTreeMap<Class, f64>,
    #[serde(skip)]
    pub(super) raw: Samples,
}

impl Observer {
    /// Calibrates the libcryptos of these processes, if they are not yet.
    pub(super) fn new(pids: &[u32], progress: &mut Progress) -> Self {
        let mut calibrations = Calibrations::with_cache();
        let mut blind = None;
        for library in pids.iter().flat_map(|pid| libcryptos_of(*pid)) {
            let result = calibrations.ensure(&library, &mut |what, step, steps| {
                // A request to stop is heeded after the calibration.
                let _ = progress.now(&format!(
                    "calibrating libcrypto, once ({step}/{steps}): {what}"
                ));
            });
            if let Err(error) = result {
                blind = Some(error.to_string());
            }
        }
        Self {
            calibrations,
            blind: RefCell::new(blind),
        }
    }

    /// Begins; nothing if that is not possible.
    pub(super) fn start(&self, pid: u32) -> Option<Sampler> {
        if self.blind.borrow().is_some() {
            return None;
        }
        let started = Sampler::start(&[pid], DEFAULT_FREQUENCY);
        started
            .inspect_err(|error| *self.blind.borrow_mut() = Some(error.to_string()))
            .ok()
    }

    /// Ends, and classifies.
    pub(super) fn stop(&self, sampler: Option<Sampler>) -> Result<Option<Seen>, BenchError> {
        let failed = |error: SampleError| BenchError::Setup(error.to_string());
        let Some(raw) = sampler.map(Sampler::stop).transpose().map_err(failed)? else {
            return Ok(None);
        };
        let profile = raw.profile(&self.calibrations);
        let shares = profile.classes.iter();
        Ok(Some(Seen {
            samples: profile.samples,
            shares: shares.map(|one| (one.class, one.share.share)).collect(),
            raw,
        }))
    }

    /// The samples of a gateway in several rounds, as one profile.
    pub(super) fn merged<'a>(&self, seen: impl Iterator<Item = &'a Seen>) -> Option<Profile> {
        let all = seen.map(|one| one.raw.clone()).reduce(|mut all, one| {
            all.add(&one);
            all
        });
        all.filter(|all| all.total() > 0)
            .map(|all| all.profile(&self.calibrations))
    }

    /// Why the ceiling is not sampled.
    pub(super) fn blind(&self) -> Option<String> {
        self.blind.borrow().clone()
    }
}
