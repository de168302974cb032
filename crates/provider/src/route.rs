// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! From a private operation to a verified result: breaker, key, permission, submission, check.
//!
//! The module uses neither pointers nor libcrypto; the C boundary passes values and closures.
//! The route runs on the 32 KiB stack of an `ASYNC_JOB` and holds no lock while the job is paused.

use std::sync::Arc;
use std::time::Instant;

use millrace_client::WrongNodes;
use millrace_operation::{Operation, Output};

use crate::config::Config;
use crate::oneshot::{Oneshot, Pause};
use crate::process::{KeyIdentity, ProcessState, Source};
use crate::remote::{Answer, FailureKind, PoolError, Remote};
use crate::sampling::Scrutiny;
use crate::stats::Stats;

/// A private operation that is to be done in the pool: where, how, and with which key.
pub struct PooledOperation<'a> {
    /// Pool, open keys and breaker of this process.
    pub process: &'a Arc<ProcessState>,
    /// Deadlines of the configuration.
    pub config: &'a Config,
    /// Counters of results, fallbacks and waits.
    pub stats: &'a Arc<Stats>,
    /// Key to use, by its public half or its name in the pool.
    pub key: &'a Arc<KeyIdentity>,
    /// Whether this process may do the operation itself: it has the private key, and `fallback` is on.
    pub local: bool,
    /// Means of waiting without blocking, if the caller is an `ASYNC_JOB`.
    pub pause: Option<&'a dyn Pause>,
}

impl std::fmt::Debug for PooledOperation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PooledOperation").field("local", &self.local).finish_non_exhaustive()
    }
}

impl PooledOperation<'_> {
    /// Does the operation in the pool. `check` says whether a result is right, with the given scrutiny; a result that
    /// it finds to be wrong is never returned.
    ///
    /// # Errors
    /// The pool did not do it. With a local key the caller then does it itself.
    pub fn perform(
        &self,
        operation: &Operation,
        input: &[u8],
        source: impl FnOnce() -> Result<Source, PoolError>,
        check: &dyn Fn(&[u8], Scrutiny) -> bool,
    ) -> Result<Output, PoolError> {
        let breaker = &self.process.breaker;
        if self.local && !breaker.try_admit(Instant::now()) {
            let result =
                Err(PoolError::new(FailureKind::Breaker, "the pool did not answer recently"));
            self.count(&result);
            self.process.pool().report_soon();
            return result;
        }
        let result = self.attempts(operation, input, source, check);
        match &result {
            Err(error) if error.kind == FailureKind::Abandoned || !error.asked => {}
            Err(error) if error.is_silent() => breaker.record_silence(Instant::now()),
            _ => breaker.record_answer(),
        }
        self.count(&result);
        if result.is_err() {
            self.process.pool().report_soon();
        }
        result
    }

    /// Attempts until a result is right: each node is asked once, and a single one twice if only the pool has the key.
    fn attempts(
        &self,
        operation: &Operation,
        input: &[u8],
        source: impl FnOnce() -> Result<Source, PoolError>,
        check: &dyn Fn(&[u8], Scrutiny) -> bool,
    ) -> Result<Output, PoolError> {
        let time = if self.local { self.config.fallback_after } else { self.config.deadline };
        let deadline = Instant::now() + time;
        let key = self.process.open_key(self.key, source, self.stats, self.pause, deadline)?;
        if key.denied_lately(operation, Instant::now()) {
            return Err(denied(operation).unasked());
        }
        let mut wrong = WrongNodes::default();
        let mut is_first = true;
        loop {
            let result = self.once(&key.remote, operation, input, deadline, wrong);
            if std::mem::take(&mut is_first) {
                self.count_wait();
            }
            let Answer { output, source, node } = match result {
                Err(error) if error.kind == FailureKind::Denied => {
                    key.deny(operation, Instant::now());
                    return Err(denied(operation));
                }
                result => result?,
            };
            let scrutiny = if source.is_doubtful() { Scrutiny::Full } else { Scrutiny::Sample };
            if check(&output, scrutiny) {
                if source.is_on_trial() {
                    key.remote.report_right(source);
                }
                return Ok(output);
            }
            self.stats.wrong_results.add();
            if !key.remote.report_wrong(source, &mut wrong) {
                let text = format!("node `{node}` answered with a wrong result");
                return Err(PoolError::new(FailureKind::WrongResult, text));
            }
        }
    }

    fn once(
        &self,
        remote: &Arc<dyn Remote>,
        operation: &Operation,
        input: &[u8],
        deadline: Instant,
        wrong: WrongNodes,
    ) -> Result<Answer, PoolError> {
        let Some(pause) = self.pause else {
            return remote.call(operation, input, deadline, wrong);
        };
        let oneshot = Oneshot::new(Some(pause.waker()));
        let result = Arc::clone(&oneshot);
        let done = Box::new(move |output| result.put(output));
        remote.submit(operation.clone(), input.to_vec(), deadline, wrong, done)?;
        oneshot.wait(Some(pause), deadline).unwrap_or_else(|| Err(PoolError::abandoned()))
    }

    /// Counts how the application waited for a job.
    fn count_wait(&self) {
        if self.pause.is_none_or(Pause::blocked) {
            self.stats.blocking.add();
        } else {
            self.stats.paused.add();
        }
    }

    fn count(&self, result: &Result<Output, PoolError>) {
        let Err(error) = result else {
            return self.stats.pooled.add();
        };
        let stats = self.stats;
        if error.kind == FailureKind::Abandoned {
            return stats.abandoned.add();
        }
        if !self.local {
            return stats.failed.add();
        }
        match error.kind {
            FailureKind::NoNode => &stats.fallback_no_node,
            FailureKind::TimedOut => &stats.fallback_timed_out,
            FailureKind::Busy => &stats.fallback_busy,
            FailureKind::Quota => &stats.fallback_quota,
            FailureKind::Refused | FailureKind::Denied => &stats.fallback_refused,
            FailureKind::Failed | FailureKind::Abandoned => &stats.fallback_failed,
            FailureKind::WrongResult => &stats.fallback_wrong_result,
            FailureKind::Breaker => &stats.fallback_breaker,
        }
        .add();
        stats.fallback.add();
    }
}

fn denied(operation: &Operation) -> PoolError {
    let text = format!("the pool does not allow {} with this key", operation.kind());
    PoolError::new(FailureKind::Denied, text)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use millrace_client::ReplySource;
    use millrace_operation::{Hash, KeyInfo, KeyType};

    use super::*;
    use crate::open_key::{DENIAL_LASTS, OpenKey};
    use crate::remote::{AnswerCallback, Pool};

    type Script = Arc<Mutex<VecDeque<Result<Vec<u8>, FailureKind>>>>;

    /// Answers what its script says; nothing is computed.
    struct Scripted(Script);

    struct ScriptedKey(KeyInfo, Script, AtomicU32);

    impl Pool for Scripted {
        fn open(
            &self,
            _: &str,
            _: Option<&[u8]>,
            _: Instant,
        ) -> Result<Arc<dyn Remote>, PoolError> {
            let info = KeyInfo { key_type: KeyType::Rsa { bits: 2048 }, spki: vec![1, 2, 3] };
            Ok(Arc::new(ScriptedKey(info, Arc::clone(&self.0), AtomicU32::new(0))))
        }

        fn import(
            &self,
            _key: millrace_operation::PrivateKey,
            by: Instant,
        ) -> Result<Arc<dyn Remote>, PoolError> {
            self.open("", None, by)
        }
    }

    impl Remote for ScriptedKey {
        fn info(&self) -> &KeyInfo {
            &self.0
        }

        fn call(
            &self,
            _: &Operation,
            _: &[u8],
            _: Instant,
            _: WrongNodes,
        ) -> Result<Answer, PoolError> {
            let next = self.1.lock().expect("script").pop_front().expect("one more answer");
            let answer = |output| Answer {
                output: Output::new(output),
                source: ReplySource::default(),
                node: Arc::from("scripted"),
            };
            next.map(answer).map_err(|kind| PoolError::new(kind, "scripted"))
        }

        /// Every second wrong result is of a node that was wrong before.
        fn report_wrong(&self, _: ReplySource, _: &mut WrongNodes) -> bool {
            self.2.fetch_add(1, Ordering::Relaxed).is_multiple_of(2)
        }

        fn report_right(&self, _: ReplySource) {}

        fn submit(
            &self,
            operation: Operation,
            input: Vec<u8>,
            deadline: Instant,
            wrong: WrongNodes,
            done: AnswerCallback,
        ) -> Result<(), PoolError> {
            done(self.call(&operation, &input, deadline, wrong));
            Ok(())
        }
    }

    struct Bench {
        process: Arc<ProcessState>,
        config: Config,
        stats: Arc<Stats>,
        key: Arc<KeyIdentity>,
        script: Script,
    }

    impl Bench {
        fn new(answers: impl IntoIterator<Item = Result<Vec<u8>, FailureKind>>) -> Self {
            let script: Script = Arc::new(Mutex::new(answers.into_iter().collect()));
            Self {
                process: Arc::new(ProcessState::new(Arc::new(Scripted(Arc::clone(&script))))),
                config: Config::default(),
                stats: Arc::default(),
                key: Arc::new(KeyIdentity { spki: vec![1, 2, 3], name: Some("key".to_owned()) }),
                script,
            }
        }

        fn sign(&self, local: bool, hash: Hash) -> Result<Output, FailureKind> {
            let request = PooledOperation {
                process: &self.process,
                config: &self.config,
                stats: &self.stats,
                key: &self.key,
                local,
                pause: None,
            };
            let operation = Operation::RsaPkcs1Sign { hash };
            request
                .perform(&operation, &[0; 32], || Ok(Source::Resident), &|output, _| {
                    output == b"right"
                })
                .map_err(|error| error.kind)
        }

        fn left(&self) -> usize {
            self.script.lock().expect("script").len()
        }
    }

    fn right() -> Result<Vec<u8>, FailureKind> {
        Ok(b"right".to_vec())
    }

    fn wrong() -> Result<Vec<u8>, FailureKind> {
        Ok(b"wrong".to_vec())
    }

    #[test]
    fn right_result_is_returned_and_counted() {
        let bench = Bench::new([right()]);
        assert!(bench.sign(true, Hash::Sha256).is_ok());
        assert_eq!((bench.stats.pooled.get(), bench.stats.fallback.get()), (1, 0));
    }

    #[test]
    fn wrong_result_is_never_returned() {
        let bench = Bench::new([wrong(), Err(FailureKind::WrongResult), right()]);
        assert_eq!(bench.sign(true, Hash::Sha256).err(), Some(FailureKind::WrongResult));
        assert_eq!(bench.left(), 1, "the client had no other node for a local key");
        assert_eq!(bench.stats.fallback_wrong_result.get(), 1);
        assert_eq!(bench.stats.wrong_results.get(), 1);
    }

    #[test]
    fn wrong_result_is_followed_by_another_nodes() {
        let bench = Bench::new([wrong(), right()]);
        assert!(bench.sign(true, Hash::Sha256).is_ok());
        assert_eq!((bench.stats.pooled.get(), bench.stats.fallback.get()), (1, 0));
        assert_eq!(bench.stats.wrong_results.get(), 1);
    }

    #[test]
    fn resident_key_is_tried_twice_after_a_wrong_result() {
        let bench = Bench::new([wrong(), wrong()]);
        assert_eq!(bench.sign(false, Hash::Sha256).err(), Some(FailureKind::WrongResult));
        assert_eq!(bench.stats.wrong_results.get(), 2);
        assert_eq!(bench.stats.failed.get(), 1);
    }

    #[test]
    fn denied_operation_is_sent_again_after_a_second() {
        let bench = Bench::new([]);
        let start = Instant::now();
        let lasts = DENIAL_LASTS;
        let key = OpenKey::new(bench.process.pool().open("", None, start).expect("a key"));
        let [sha1, sha256] =
            [Hash::Sha1, Hash::Sha256].map(|hash| Operation::RsaPkcs1Sign { hash });
        for operation in [&sha1, &sha256] {
            key.deny(operation, start + lasts);
            assert!(key.denied_lately(operation, start + lasts * 3 / 2));
            assert!(!key.denied_lately(operation, start + lasts * 2));
        }
    }

    #[test]
    fn answer_that_denies_is_remembered() {
        let bench = Bench::new([Err(FailureKind::Denied), right()]);
        for _ in 0..2 {
            let denied = bench.sign(false, Hash::Sha256).err();
            assert_eq!(denied, Some(FailureKind::Denied));
        }
        assert_eq!(bench.left(), 1, "the second one was not sent");
    }

    #[test]
    fn open_breaker_stops_operations_of_local_keys_only() {
        let dead = || Err(FailureKind::TimedOut);
        let bench = Bench::new([dead(), dead(), dead(), right()]);
        for _ in 0..3 {
            assert_eq!(bench.sign(true, Hash::Sha256).err(), Some(FailureKind::TimedOut));
        }
        assert_eq!(bench.sign(true, Hash::Sha256).err(), Some(FailureKind::Breaker));
        assert!(bench.sign(false, Hash::Sha256).is_ok(), "a stub has no alternative");
        assert_eq!(bench.stats.fallback.get(), 4);
    }

    #[test]
    fn denial_without_asking_says_nothing_about_a_silent_pool() {
        let dead = || Err(FailureKind::TimedOut);
        let bench = Bench::new([Err(FailureKind::Denied), dead(), dead(), dead(), right()]);
        for _ in 0..3 {
            // Sent once.
            let denied = bench.sign(true, Hash::Sha384).err();
            assert_eq!(denied, Some(FailureKind::Denied));
            let silent = bench.sign(true, Hash::Sha256).err();
            assert_eq!(silent, Some(FailureKind::TimedOut));
        }
        assert_eq!(bench.sign(true, Hash::Sha256).err(), Some(FailureKind::Breaker));
    }

    #[test]
    fn every_reason_is_counted_once_and_only_silence_opens_the_breaker() {
        type Pick = fn(&Stats) -> u64;
        let reasons: [(FailureKind, Pick); 8] = [
            (FailureKind::NoNode, |s| s.fallback_no_node.get()),
            (FailureKind::TimedOut, |s| s.fallback_timed_out.get()),
            (FailureKind::Busy, |s| s.fallback_busy.get()),
            (FailureKind::Quota, |s| s.fallback_quota.get()),
            (FailureKind::Refused, |s| s.fallback_refused.get()),
            (FailureKind::Denied, |s| s.fallback_refused.get()),
            (FailureKind::Failed, |s| s.fallback_failed.get()),
            (FailureKind::WrongResult, |s| s.fallback_wrong_result.get()),
        ];
        for (kind, counter) in reasons {
            let answers = (0..3).map(|_| Err(kind));
            let bench = Bench::new(answers.chain([right()]));
            for _ in 0..3 {
                assert_eq!(bench.sign(true, Hash::Sha256).err(), Some(kind));
            }
            let stats = &bench.stats;
            assert_eq!((counter(stats), stats.fallback.get()), (3, 3), "{kind:?}");
            assert_eq!((stats.pooled.get(), stats.failed.get()), (0, 0));
            assert_eq!(stats.report().fallbacks(), 3, "{kind:?}");
            let silent = matches!(kind, FailureKind::NoNode | FailureKind::TimedOut);
            let fourth = bench.sign(true, Hash::Sha256).err();
            let again = match kind {
                FailureKind::Denied => Some(kind),
                _ => silent.then_some(FailureKind::Breaker),
            };
            assert_eq!(fourth, again, "{kind:?}");
            assert_eq!(stats.fallback_breaker.get(), u64::from(silent));
        }
    }

    #[test]
    fn jobs_are_counted_by_how_they_are_waited_for() {
        let bench = Bench::new([right(), Err(FailureKind::Busy), Err(FailureKind::Denied)]);
        for _ in 0..2 {
            let _ = bench.sign(true, Hash::Sha256);
        }
        // An operation that was denied is not sent again, so there is no wait to count.
        for _ in 0..2 {
            let _ = bench.sign(true, Hash::Sha1);
        }
        let stats = &bench.stats;
        assert_eq!((stats.blocking.get(), stats.paused.get()), (3, 0));
    }

    #[test]
    fn pool_key_with_another_public_half_is_refused() {
        let mut bench = Bench::new([right()]);
        bench.key = Arc::new(KeyIdentity { spki: vec![9], name: Some("key".to_owned()) });
        assert_eq!(bench.sign(false, Hash::Sha256).err(), Some(FailureKind::Refused));
        assert_eq!(bench.left(), 1);
    }
}
