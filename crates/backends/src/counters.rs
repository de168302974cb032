// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The counters of one device, which become its row of
//! [`devices`](millrace_engine::backend::Backend::devices).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use millrace_engine::backend::BackendDeviceStatus;

/// Counters of one device, or of one instance of it, since the start of the process: a restart of the device does not
/// clear them. [`BackendDeviceStatus`] describes each.
#[derive(Default)]
pub(crate) struct BackendDeviceCounters {
    pub(crate) submitted: AtomicU64,
    pub(crate) full: AtomicU64,
    pub(crate) served: AtomicU64,
    pub(crate) faults: AtomicU64,
    pub(crate) lost: AtomicU64,
    /// Starts of the device, the first included.
    pub(crate) starts: AtomicU64,
    pub(crate) in_flight: AtomicUsize,
    pub(crate) slots_lost: AtomicUsize,
}

impl BackendDeviceCounters {
    /// The row of a device. One that does not serve holds nothing.
    pub(crate) fn status(&self, name: &str, serving: bool, capacity: usize) -> BackendDeviceStatus {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let now = |gauge: &AtomicUsize| if serving { gauge.load(Ordering::Relaxed) } else { 0 };
        let Self { submitted, full, served, faults, lost, starts, in_flight, slots_lost } = self;
        BackendDeviceStatus {
            name: name.to_owned(),
            serving,
            in_flight: now(in_flight),
            capacity,
            slots_lost: now(slots_lost),
            submitted: count(submitted),
            full: count(full),
            served: count(served),
            faults: count(faults),
            lost: count(lost),
            restarts: count(starts).saturating_sub(1),
        }
    }
}
