// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Writes that a client repeats take effect once: the answer to an `Idempotency-Key` is kept for a while and given
//! again.
//!
//! The memory is that of one manager. A repetition at another manager, or after a restart, meets the conditions of
//! the write itself: names are unique, registrations are fenced, and every other write sets a value.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;

use super::call::Reply;
use super::problem::{Code, Problem};

/// Time for which an answer is kept: far longer than a client repeats a request.
const RETENTION: Duration = Duration::from_secs(600);

/// Time for which an answer with a token is kept: a client that lost an answer repeats its request within seconds.
const SECRET_RETENTION: Duration = Duration::from_secs(60);

/// Bound on the answers that are kept, the oldest of which give way: seven writes a second over [`RETENTION`].
const MAX_KEPT: usize = 4096;

/// Bound on a key, in bytes: a UUID has 36.
const MAX_KEY_LEN: usize = 128;

/// The answers to recent writes.
#[derive(Debug, Default)]
pub(super) struct Answered(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    answers: HashMap<Key, Kept>,
    order: VecDeque<Key>,
}

/// Caller with its generation, and key: one caller cannot see the answers of another, nor those of one that had its
/// name before.
type Key = (String, String);

#[derive(Clone, Debug)]
struct Kept {
    until: Instant,
    /// Digest of method, path and body.
    request: [u8; 32],
    /// `None` while the first request is under way.
    reply: Option<Result<Reply, Problem>>,
}

impl Answered {
    /// The answer to an earlier request with this key. `None` means that the caller carries it out, and then calls
    /// [`Self::finish`].
    ///
    /// # Errors
    /// The key is too long, was used for another request, or its first request is still under way.
    pub(super) fn begin(
        &self,
        caller: &str,
        key: &str,
        request: [u8; 32],
        now: Instant,
    ) -> Result<Option<Result<Reply, Problem>>, Problem> {
        if !(1..=MAX_KEY_LEN).contains(&key.len()) {
            let detail = format!("an idempotency key has 1 to {MAX_KEY_LEN} bytes");
            return Err(Problem::new(Code::Invalid, detail));
        }
        let mut memory = lock(&self.0);
        memory.forget(now);
        let key = (caller.to_owned(), key.to_owned());
        match memory.answers.get(&key) {
            None => {
                let kept = Kept { until: now + RETENTION, request, reply: None };
                memory.answers.insert(key.clone(), kept);
                memory.order.push_back(key);
                Ok(None)
            }
            Some(kept) if kept.request != request => {
                let detail = "the idempotency key was used for another request: use a new one";
                Err(Problem::new(Code::Conflict, detail))
            }
            Some(Kept { reply: None, .. }) => {
                let detail = "the first request with this idempotency key is under way";
                Err(Problem::new(Code::Conflict, detail))
            }
            Some(kept) => Ok(kept.reply.clone()),
        }
    }

    /// Keeps the answer. A failure that may pass is forgotten, so that a repetition tries again.
    pub(super) fn finish(&self, caller: &str, key: &str, reply: &Result<Reply, Problem>) {
        let mut memory = lock(&self.0);
        let key = (caller.to_owned(), key.to_owned());
        if let Err(Problem { code: Code::Unavailable | Code::Internal, .. }) = reply {
            memory.answers.remove(&key);
            // The repetition appends it again: with two places the answer would go when the first is the oldest.
            memory.order.retain(|kept| *kept != key);
        } else if let Some(kept) = memory.answers.get_mut(&key) {
            if reply.as_ref().is_ok_and(|reply| reply.is_secret) {
                kept.until = kept.until - RETENTION + SECRET_RETENTION;
            }
            kept.reply = Some(reply.clone());
        }
    }

    /// Drops answers whose time is over.
    pub(super) fn forget(&self, now: Instant) {
        lock(&self.0).forget(now);
    }
}

impl Memory {
    /// Drops answers that are too old, and the oldest where there are too many.
    fn forget(&mut self, now: Instant) {
        self.answers.retain(|_, kept| kept.until >= now);
        self.order.retain(|key| self.answers.contains_key(key));
        while self.order.len() >= MAX_KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.answers.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_write_gets_the_first_answer() {
        let answered = Answered::default();
        let now = Instant::now();
        assert_eq!(answered.begin("cert:a", "k", [1; 32], now), Ok(None));
        let under_way = answered.begin("cert:a", "k", [1; 32], now).unwrap_err();
        assert_eq!(under_way.code, Code::Conflict);
        let reply = Ok(Reply::empty());
        answered.finish("cert:a", "k", &reply);
        assert_eq!(answered.begin("cert:a", "k", [1; 32], now), Ok(Some(reply)));
        let other = answered.begin("cert:a", "k", [2; 32], now).unwrap_err();
        assert_eq!(other.code, Code::Conflict);
        assert_eq!(answered.begin("cert:b", "k", [1; 32], now), Ok(None), "another caller");
    }

    #[test]
    fn failure_that_may_pass_is_tried_again() {
        let answered = Answered::default();
        let now = Instant::now();
        assert_eq!(answered.begin("a", "k", [1; 32], now), Ok(None));
        answered.finish("a", "k", &Err(Problem::new(Code::Unavailable, "")));
        assert_eq!(answered.begin("a", "k", [1; 32], now), Ok(None));
    }

    #[test]
    fn repetition_after_a_failure_is_kept_as_long_as_any_other() {
        let answered = Answered::default();
        let now = Instant::now();
        assert_eq!(answered.begin("a", "k", [1; 32], now), Ok(None));
        answered.finish("a", "k", &Err(Problem::new(Code::Unavailable, "")));
        for number in 0..MAX_KEPT / 2 {
            answered.begin("a", &format!("before {number}"), [1; 32], now).unwrap();
        }
        assert_eq!(answered.begin("a", "k", [1; 32], now), Ok(None));
        let reply = Ok(Reply::empty());
        answered.finish("a", "k", &reply);
        for number in 0..3 * MAX_KEPT / 4 {
            answered.begin("a", &format!("after {number}"), [1; 32], now).unwrap();
        }
        assert_eq!(answered.begin("a", "k", [1; 32], now), Ok(Some(reply)));
    }

    #[test]
    fn answer_with_a_token_is_kept_for_a_minute_and_others_longer() {
        let answered = Answered::default();
        let now = Instant::now();
        for (key, is_secret) in [("token", true), ("quota", false)] {
            answered.begin("a", key, [1; 32], now).unwrap();
            answered.finish("a", key, &Ok(Reply::empty().secret(is_secret)));
        }
        let kept = |after| {
            answered.forget(now + after);
            let memory = answered.0.lock().unwrap();
            let mut kept: Vec<String> = memory.answers.keys().map(|(_, key)| key.clone()).collect();
            kept.sort();
            kept
        };
        assert_eq!(kept(SECRET_RETENTION), ["quota", "token"]);
        assert_eq!(kept(SECRET_RETENTION + Duration::from_millis(1)), ["quota"]);
        assert_eq!(kept(RETENTION + Duration::from_millis(1)), [""; 0]);
    }

    #[test]
    fn answers_are_bounded_in_number_and_time() {
        let answered = Answered::default();
        let now = Instant::now();
        for number in 0..2 * MAX_KEPT {
            answered.begin("a", &format!("{number}"), [1; 32], now).unwrap();
        }
        assert!(answered.0.lock().unwrap().answers.len() <= MAX_KEPT);
        let later = now + RETENTION + Duration::from_secs(1);
        answered.begin("a", "last", [1; 32], later).unwrap();
        assert_eq!(answered.0.lock().unwrap().answers.len(), 1);
        assert!(answered.begin("a", &"k".repeat(MAX_KEY_LEN + 1), [1; 32], now).is_err());
    }
}
