// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whole messages by the kernel's ciphers and hashes, where that was measured to pay. `ffi::local::bulk` puts them
//! under OpenSSL, which does everything that the kernel does not.
//!
//! Nothing is measured in the application's process. Without a file of `millrace bench sizes --save-crossovers` for
//! this kernel and this libcrypto, nothing goes to the kernel.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use millrace_kernel_crypto::crossovers::{self, Crossovers};
use millrace_kernel_crypto::{BulkAlgorithm, BulkInterface, BulkKind, BulkSession, MAX_MESSAGE};
use zeroize::Zeroizing;

use crate::algorithms::{BulkForm, BulkRow, HMACS};
use crate::local::choice::{self, ChoiceFileError};
use crate::local::{equal, now};

/// Failures in a row after which the kernel gets no messages for a while: one may be a lack of descriptors or memory.
const FAILURES: u32 = 8;

/// Pause of the kernel after [`FAILURES`] failures in a row: long enough for descriptors and memory to come back.
const PAUSE: Duration = Duration::from_secs(10);

/// Whether the kernel has computed a known answer of an algorithm in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum KnownAnswer {
    Unknown,
    Right,
    Wrong,
}

/// Which messages of one provider go to the kernel. It has no lock: a process may fork while another thread holds one.
#[derive(Debug)]
pub struct BulkRoutes {
    crossovers: Crossovers,
    failures: AtomicU32,
    /// Time until which the kernel gets no messages, by [`now`].
    paused_until: AtomicU64,
    answers: [AtomicU8; BulkAlgorithm::ALL.len()],
}

impl BulkRoutes {
    /// Routes by these sizes.
    #[must_use]
    pub fn new(crossovers: Crossovers) -> Self {
        Self {
            crossovers,
            failures: AtomicU32::new(0),
            paused_until: AtomicU64::new(0),
            answers: [const { AtomicU8::new(KnownAnswer::Unknown as u8) };
                BulkAlgorithm::ALL.len()],
        }
    }

    /// Routes by the file, for the running kernel and this libcrypto.
    pub fn load(path: &Path, libcrypto: &str, user: u32) -> Result<Self, ChoiceFileError> {
        let system = crossovers::this_system(libcrypto)?;
        let text = choice::text(path, user)?;
        Ok(Self::new(Crossovers::read(&text, &system)))
    }

    /// Whether messages of a row may go to the kernel; of HMAC with any digest.
    pub(crate) fn has_row(&self, row: &BulkRow) -> bool {
        match row.form {
            BulkForm::Mac => HMACS.iter().any(|(algorithm, _)| self.has(*algorithm)),
            BulkForm::Cipher | BulkForm::Digest => self.has(row.kernel),
        }
    }

    /// Whether any message of this algorithm may go to the kernel.
    #[must_use]
    pub fn has(&self, algorithm: BulkAlgorithm) -> bool {
        self.crossovers.route(algorithm).is_some()
    }

    fn is_wrong(&self, algorithm: BulkAlgorithm) -> bool {
        self.answers[algorithm as usize].load(Ordering::Relaxed) == KnownAnswer::Wrong as u8
    }

    fn is_paused(&self) -> bool {
        let until = self.paused_until.load(Ordering::Relaxed);
        until != 0 && now() < until
    }

    fn note_success(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    fn note_failure(&self) {
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES {
            self.failures.store(0, Ordering::Relaxed);
            let pause = u64::try_from(PAUSE.as_nanos()).unwrap_or(u64::MAX);
            self.paused_until.store(now().saturating_add(pause), Ordering::Relaxed);
        }
    }
}

/// Outcome of an attempt in the kernel.
#[derive(Debug)]
pub enum BulkAttempt<T> {
    /// The result of the kernel.
    Done(T),
    /// The message is not authentic, by the kernel.
    NotAuthentic,
    /// The kernel did not do it, for this reason.
    Failed(io::Error),
}

/// One key of an application, which the kernel gets when a message is long enough for it.
#[derive(Debug)]
pub struct KernelKey {
    routes: &'static BulkRoutes,
    algorithm: BulkAlgorithm,
    key: Option<Zeroizing<Vec<u8>>>,
    session: Option<BulkSession>,
    /// Whether the kernel failed with this key, which is then not tried again.
    failed: bool,
}

impl KernelKey {
    /// Without a key yet.
    #[must_use]
    pub fn new(routes: &'static BulkRoutes, algorithm: BulkAlgorithm) -> Self {
        Self { routes, algorithm, key: None, session: None, failed: false }
    }

    /// The same key, with its own session.
    #[must_use]
    pub fn copy(&self) -> Self {
        let key = self.key.clone();
        Self {
            routes: self.routes,
            algorithm: self.algorithm,
            key,
            session: None,
            failed: self.failed,
        }
    }

    /// Sets the key; an empty one for a hash. OpenVPN sets that of its HMAC again for each packet: the session stays.
    pub fn set(&mut self, key: &[u8]) {
        let is_same = self.key.as_ref().is_some_and(|known| equal(known, key));
        if is_same && self.session.is_some() {
            return;
        }
        self.session = None;
        self.failed = false;
        self.key = Some(Zeroizing::new(key.to_vec()));
    }

    /// Changes the algorithm of a hash with a key.
    pub fn set_algorithm(&mut self, algorithm: BulkAlgorithm) {
        if algorithm != self.algorithm {
            self.algorithm = algorithm;
            self.session = None;
            self.failed = false;
        }
    }

    /// Bytes of the result of a hash.
    #[must_use]
    pub fn hash_len(&self) -> Option<usize> {
        match self.algorithm.kind() {
            BulkKind::Hash(len) => Some(len),
            BulkKind::Cipher | BulkKind::Aead => None,
        }
    }

    /// Whether a key is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.key.is_some()
    }

    /// Whether messages may go to the kernel at all, at any size.
    #[must_use]
    pub fn may_take(&self) -> bool {
        !self.failed
            && self.key.is_some()
            && self.routes.has(self.algorithm)
            && !self.routes.is_paused()
    }

    /// Whether a message of this length goes to the kernel, in one call.
    #[must_use]
    pub fn takes(&self, len: usize) -> bool {
        self.is_long_enough(len) && len <= MAX_MESSAGE
    }

    /// Whether a message of this length is long enough for the kernel, in parts if need be.
    #[must_use]
    pub fn is_long_enough(&self, len: usize) -> bool {
        let route = self.routes.crossovers.route(self.algorithm);
        route.is_some_and(|(_, least)| len >= least) && self.may_take()
    }

    /// Runs `work` in a session with the key. `known` says whether the kernel's session with a test key computes
    /// what OpenSSL does; it is asked once per algorithm.
    pub fn run<T>(
        &mut self,
        known: impl FnOnce(BulkInterface, BulkAlgorithm) -> io::Result<bool>,
        work: impl FnOnce(&mut BulkSession) -> io::Result<T>,
    ) -> BulkAttempt<T> {
        match self.attempt(known, work) {
            Ok(found) => {
                self.routes.note_success();
                BulkAttempt::Done(found)
            }
            // A property of the message, which does not count against the kernel: any peer can send a forged one.
            Err(error) if error.raw_os_error() == Some(libc::EBADMSG) => BulkAttempt::NotAuthentic,
            Err(error) => {
                // A session that does not open counts against this key alone; one that fails, against the kernel.
                if self.session.take().is_some() || self.routes.is_wrong(self.algorithm) {
                    self.routes.note_failure();
                }
                self.failed = true;
                BulkAttempt::Failed(error)
            }
        }
    }

    fn attempt<T>(
        &mut self,
        known: impl FnOnce(BulkInterface, BulkAlgorithm) -> io::Result<bool>,
        work: impl FnOnce(&mut BulkSession) -> io::Result<T>,
    ) -> io::Result<T> {
        let missing = || io::Error::other("no key or no route");
        let (interface, _) = self.routes.crossovers.route(self.algorithm).ok_or_else(missing)?;
        let answer = &self.routes.answers[self.algorithm as usize];
        if answer.load(Ordering::Relaxed) == KnownAnswer::Unknown as u8 {
            let is_right = known(interface, self.algorithm)?;
            let found = if is_right { KnownAnswer::Right } else { KnownAnswer::Wrong };
            answer.store(found as u8, Ordering::Relaxed);
        }
        if self.routes.is_wrong(self.algorithm) {
            return Err(io::Error::other("the kernel computes another result than OpenSSL"));
        }
        let session = match &mut self.session {
            Some(session) => session,
            place => {
                let key = self.key.as_ref().ok_or_else(missing)?;
                place.insert(BulkSession::open(interface, self.algorithm, key)?)
            }
        };
        work(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(routes: &'static BulkRoutes) -> KernelKey {
        let mut key = KernelKey::new(routes, BulkAlgorithm::AesCbc);
        key.set(&[7; 16]);
        key
    }

    fn routes(least: Option<usize>) -> &'static BulkRoutes {
        let mut crossovers = Crossovers::default();
        crossovers.set(BulkInterface::DevCrypto, BulkAlgorithm::AesCbc, least);
        Box::leak(Box::new(BulkRoutes::new(crossovers)))
    }

    #[test]
    fn message_goes_to_the_kernel_only_from_the_measured_size_on() {
        let key = key(routes(Some(1000)));
        assert!(!key.takes(999));
        assert!(key.takes(1000) && key.takes(MAX_MESSAGE));
        assert!(!key.takes(MAX_MESSAGE + 1) && key.is_long_enough(MAX_MESSAGE + 1));
        assert!(!self::key(routes(None)).takes(MAX_MESSAGE), "it pays at no size");
        let empty = KernelKey::new(routes(Some(1000)), BulkAlgorithm::AesCbc);
        assert!(!empty.takes(1000), "no key is set");
    }

    #[test]
    fn kernel_that_computes_something_else_is_left_alone() {
        let routes = routes(Some(1000));
        for failures in 1..=FAILURES {
            let mut key = key(routes);
            assert!(key.takes(1000));
            let outcome = key.run(|_, _| Ok(false), |_| Ok(()));
            assert!(matches!(outcome, BulkAttempt::Failed(_)));
            assert!(!key.takes(1000), "with this key, after {failures}");
        }
        assert!(!key(routes).takes(1000), "with any");
    }

    #[test]
    fn key_without_a_session_goes_without_the_kernel_and_others_do_not() {
        let routes = routes(Some(1000));
        for _ in 0..2 * FAILURES {
            let mut key = key(routes);
            let refused = |_, _| Err(io::Error::other("no descriptors"));
            assert!(matches!(key.run(refused, |_| Ok(())), BulkAttempt::Failed(_)));
            assert!(!key.takes(1000));
        }
        assert!(key(routes).takes(1000));
    }
}
