// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Counters of a provider, common to all that are loaded with the same configuration. They are provider
//! parameters: `OSSL_PROVIDER_get_params` reads them, `openssl list -providers -verbose` shows them.

use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_client::{EdgeCounter, EdgeReport};

use crate::algorithms::Primitive;
use crate::shared_cells::{LocalEvent, SharedCells};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $field:ident = $name:literal $(, $reported:ident)?;)*) => {
        /// The counters. All are events since a provider with this configuration was first loaded into
        /// this process or its ancestors.
        #[derive(Debug, Default)]
        pub struct Stats {
            $($(#[doc = $doc])* pub $field: EventCounter,)*
            /// Operations of each [`Primitive`] that were computed in this process, by its index.
            computed: [EventCounter; Primitive::ALL.len()],
            /// Counts that other processes can read.
            shared: OnceLock<SharedCells>,
        }

        impl Stats {
            /// Name of the provider parameter and value of each counter.
            pub fn each(&self) -> impl Iterator<Item = (&'static CStr, u64)> {
                let counters = [$(($name, self.$field.get())),*];
                let computed = Primitive::ALL.iter().map(|primitive| {
                    (primitive.row().counter, self.computed[*primitive as usize].get())
                });
                counters.into_iter().chain(computed)
            }

            /// The counters that are reported to the nodes; the client adds its own.
            #[must_use]
            pub fn report(&self) -> EdgeReport {
                let mut report = EdgeReport::default();
                $($(report.set(EdgeCounter::$reported, self.$field.get());)?)*
                report
            }
        }
    };
}

counters! {
    /// Private operations done by the pool, verified and handed to the application.
    pooled = c"millrace-pooled", Pooled;
    /// Private operations done in this process by design: generated keys, operations that the pool does not offer.
    local = c"millrace-local";
    /// Private operations done in this process because the pool could not: the sum of the following.
    fallback = c"millrace-fallback";
    /// … no node could be reached.
    fallback_no_node = c"millrace-fallback-no-node", FallbackNoNode;
    /// … no answer by the deadline.
    fallback_timed_out = c"millrace-fallback-timed-out", FallbackTimedOut;
    /// … the pool or this process was full.
    fallback_busy = c"millrace-fallback-busy", FallbackBusy;
    /// … the key was refused by the pool.
    fallback_refused = c"millrace-fallback-refused", FallbackRefused;
    /// … the operation failed in the pool.
    fallback_failed = c"millrace-fallback-failed", FallbackFailed;
    /// … the result did not verify.
    fallback_wrong_result = c"millrace-fallback-wrong-result", FallbackWrongResult;
    /// … the circuit breaker was open.
    fallback_breaker = c"millrace-fallback-breaker", FallbackBreaker;
    /// … this client was over its quota at the node.
    fallback_quota = c"millrace-fallback-quota", FallbackQuota;
    /// Private operations that ended as an error of the pool, for keys that only the pool holds.
    failed = c"millrace-failed", Failed;
    /// Private operations given up with their connection.
    abandoned = c"millrace-abandoned", Abandoned;
    /// Results from the pool that did not verify.
    wrong_results = c"millrace-wrong-results", WrongResults;
    /// Jobs for which the application was paused, its thread free for other connections.
    paused = c"millrace-paused", Paused;
    /// Jobs for which a thread of the application was blocked until the answer came.
    blocking = c"millrace-blocking", Blocking;
    /// Jobs that were resumed although the pool was not ready.
    spurious_resumes = c"millrace-spurious-resumes";
    /// Keys opened at or imported into the pool.
    keys_opened = c"millrace-keys-opened";
    /// Messages that the kernel's ciphers and hashes did (`kernel_bulk`).
    kernel_bulk = c"millrace-kernel-bulk";
    /// Messages that OpenSSL did because the kernel failed.
    kernel_bulk_failed = c"millrace-kernel-bulk-failed";
    /// Panics that were caught at the C boundary: each is a bug.
    panics = c"millrace-panics";
}

impl Stats {
    /// Counts an operation that was computed in this process.
    pub fn served_locally(&self, primitive: Primitive) {
        self.computed[primitive as usize].add();
        if let Some(shared) = self.shared.get() {
            shared.served_locally(primitive);
        }
    }

    /// Counts an event for other processes.
    pub fn happened(&self, event: LocalEvent, times: u64) {
        if let Some(shared) = self.shared.get() {
            shared.event(event).fetch_add(times, Ordering::Relaxed);
        }
    }

    /// Shows other processes what a primitive costs in this process and in the installed OpenSSL.
    pub fn set_costs(&self, primitive: Primitive, local_ns: u64, openssl_ns: u64) {
        if let Some(shared) = self.shared.get() {
            shared.set_costs(primitive, local_ns, openssl_ns);
        }
    }

    /// Lets other processes read the counts of primitives.
    pub fn share(&self, cells: SharedCells) {
        // All providers of a process have the same cells.
        let _ = self.shared.set(cells);
    }
}

/// Events so far; every thread of the process may count.
#[derive(Debug, Default)]
pub struct EventCounter(AtomicU64);

impl EventCounter {
    /// Counts one event.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The events so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
