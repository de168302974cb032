// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The counters that an edge reports to a node: operations that the pool did, how the application waited for
//! them, operations that the edge did itself, by cause, and what a virtio-crypto device did for its machines.
//! Numbers only.
//!
//! A node sees only the jobs that reach it. Only the edge knows whether the application's threads were
//! blocked, and which operations never reached the pool.

use millrace_operation::coded_enum;

coded_enum! {
    /// One of the numbers in an [`EdgeReport`].
    pub enum EdgeCounter {
        /// Operations that the pool did.
        Pooled = 0x01 "pooled",
        /// Jobs for which the application waited without blocking a thread.
        Paused = 0x02 "paused",
        /// Jobs for which a thread of the application blocked.
        Blocking = 0x03 "blocking",
        /// Jobs that the client also sent to a second node, which answered first.
        HedgeWon = 0x04 "hedge-won",
        /// Jobs that the client also sent to a second node, which did not answer first.
        HedgeLost = 0x05 "hedge-lost",
        /// Operations that ended as an error of the application.
        Failed = 0x06 "failed",
        /// Operations that the application stopped waiting for.
        Abandoned = 0x07 "abandoned",
        /// Jobs that the application cancelled.
        Cancelled = 0x08 "cancelled",
        /// Results that did not verify, and answers that broke the protocol.
        WrongResults = 0x09 "wrong-results",
        /// Operations that the edge did itself because no node could be reached.
        FallbackNoNode = 0x10 "fallback-no-node",
        /// Operations that the edge did itself because no answer came in time.
        FallbackTimedOut = 0x11 "fallback-timed-out",
        /// Operations that the edge did itself because the pool or the edge was overloaded.
        FallbackBusy = 0x12 "fallback-busy",
        /// Operations that the edge did itself because the pool refused the key, or the operation with it.
        FallbackRefused = 0x13 "fallback-refused",
        /// Operations that the edge did itself because they failed in the pool.
        FallbackFailed = 0x14 "fallback-failed",
        /// Operations that the edge did itself because the pool's result did not verify.
        FallbackWrongResult = 0x15 "fallback-wrong-result",
        /// Operations that the edge did itself without asking the pool, because the pool had recently not
        /// answered.
        FallbackBreaker = 0x16 "fallback-breaker",
        /// Operations that the edge did itself because the identity was over its quota.
        FallbackQuota = 0x17 "fallback-quota",
        /// Requests of virtual machines: a cipher, chain or AEAD that encrypts. This name and those of the
        /// following counters are those of QEMU's `query-stats`, which has no hashes and MACs.
        SymEncryptOps = 0x20 "sym-encrypt-ops",
        /// Bytes of these requests.
        SymEncryptBytes = 0x21 "sym-encrypt-bytes",
        /// Requests of virtual machines: a cipher, chain or AEAD that decrypts.
        SymDecryptOps = 0x22 "sym-decrypt-ops",
        /// Bytes of these requests.
        SymDecryptBytes = 0x23 "sym-decrypt-bytes",
        /// Requests of virtual machines: hashes.
        HashOps = 0x24 "hash-ops",
        /// Bytes of these requests.
        HashBytes = 0x25 "hash-bytes",
        /// Requests of virtual machines: MACs.
        MacOps = 0x26 "mac-ops",
        /// Bytes of these requests.
        MacBytes = 0x27 "mac-bytes",
        /// Requests of virtual machines: operations with a public key.
        AsymEncryptOps = 0x28 "asym-encrypt-ops",
        /// Bytes of these requests.
        AsymEncryptBytes = 0x29 "asym-encrypt-bytes",
        /// Requests of virtual machines: raw operations and decryptions with a private key.
        AsymDecryptOps = 0x2a "asym-decrypt-ops",
        /// Bytes of these requests.
        AsymDecryptBytes = 0x2b "asym-decrypt-bytes",
        /// Requests of virtual machines: signatures.
        AsymSignOps = 0x2c "asym-sign-ops",
        /// Bytes of these requests.
        AsymSignBytes = 0x2d "asym-sign-bytes",
        /// Requests of virtual machines: verifications of signatures.
        AsymVerifyOps = 0x2e "asym-verify-ops",
        /// Bytes of these requests.
        AsymVerifyBytes = 0x2f "asym-verify-bytes",
    }
}

/// Number of counters.
pub const EDGE_COUNTERS: usize = EdgeCounter::ALL.len();

impl EdgeCounter {
    /// The reason why the edge did an operation itself. `None` for counters of other events.
    #[must_use]
    pub fn fallback_reason(self) -> Option<&'static str> {
        self.name().strip_prefix("fallback-")
    }

    /// Whether only virtio-crypto devices have it.
    #[must_use]
    pub fn is_of_device(self) -> bool {
        self.code() >= Self::SymEncryptOps.code()
    }
}

/// A value per [`EdgeCounter`], initially 0. In a message the values count since the connection was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeReport {
    counts: [u64; EDGE_COUNTERS],
}

impl Default for EdgeReport {
    fn default() -> Self {
        Self { counts: [0; EDGE_COUNTERS] }
    }
}

impl EdgeReport {
    /// The value of one counter.
    #[must_use]
    pub fn get(&self, counter: EdgeCounter) -> u64 {
        self.counts[counter.index()]
    }

    /// Replaces a count. Counts are cumulative since the connection was opened.
    pub fn set(&mut self, counter: EdgeCounter, count: u64) {
        self.counts[counter.index()] = count;
    }

    /// Adds to one counter; it saturates at `u64::MAX`.
    pub fn add(&mut self, counter: EdgeCounter, count: u64) {
        let sum = &mut self.counts[counter.index()];
        *sum = sum.saturating_add(count);
    }

    /// Every counter with its value, in the order of the codes.
    pub fn iter(&self) -> impl Iterator<Item = (EdgeCounter, u64)> + '_ {
        EdgeCounter::ALL.iter().copied().zip(self.counts)
    }

    /// Whether every counter is 0.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.counts == [0; EDGE_COUNTERS]
    }

    /// The increase of each counter since `before`; 0 for a counter that is below its earlier value.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut difference = *self;
        for (count, before) in difference.counts.iter_mut().zip(before.counts) {
            *count = count.saturating_sub(before);
        }
        difference
    }

    /// Adds every counter of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (counter, count) in other.iter() {
            self.add(counter, count);
        }
    }

    /// Number of operations that the edge did itself, for any cause.
    #[must_use]
    pub fn fallbacks(&self) -> u64 {
        self.iter()
            .filter(|(counter, _)| counter.fallback_reason().is_some())
            .fold(0, |sum: u64, (_, count)| sum.saturating_add(count))
    }
}
