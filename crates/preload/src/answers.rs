// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whether a key signs with a digest, as libcrypto has answered it on this thread. Pure: `ffi::sigalgs` counts
//! references and calls libcrypto.
//!
//! A server has one key for each type of certificate and asks for one digest each. A key that was replaced while
//! the server runs is asked for no more, and must not stay in memory for long: an answer that was not used for
//! [`MAX_UNUSED_QUESTIONS`] is dropped.

use std::ffi::{CStr, CString};

/// Bound on the answers that are kept: certificates of several types for several names.
const MAX_ANSWERS: usize = 16;

/// Bound on the name of a digest or a property query that is kept, in bytes: a server's are shorter.
const MAX_TEXT_LEN: usize = 64;

/// Questions of the thread after which an answer without use is dropped: a busy server asks them within a second.
const MAX_UNUSED_QUESTIONS: u64 = 256;

/// The address of a key, the name of a digest, and a property query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DigestQuestion<'a> {
    pub(crate) key: usize,
    pub(crate) digest: Option<&'a CStr>,
    pub(crate) properties: Option<&'a CStr>,
}

#[derive(Debug)]
struct KeptAnswer {
    key: usize,
    digest: Option<CString>,
    properties: Option<CString>,
    answer: i32,
    last_use: u64,
}

/// The answers of one thread, as long as the state of libcrypto has this generation.
#[derive(Debug)]
pub(crate) struct DigestAnswers {
    generation: u64,
    questions: u64,
    kept: Vec<KeptAnswer>,
}

impl DigestAnswers {
    pub(crate) const EMPTY: Self = Self { generation: 0, questions: 0, kept: Vec::new() };

    /// The answer, if it is known in this generation.
    pub(crate) fn find(&mut self, generation: u64, question: DigestQuestion<'_>) -> Option<i32> {
        self.questions += 1;
        let now = self.questions;
        if self.generation != generation {
            return None;
        }
        let kept = self.kept.iter_mut().find(|kept| {
            kept.key == question.key
                && kept.digest.as_deref() == question.digest
                && kept.properties.as_deref() == question.properties
        })?;
        kept.last_use = now;
        Some(kept.answer)
    }

    /// Whether a look for answers without use is due.
    pub(crate) fn is_due(&self) -> bool {
        self.questions.is_multiple_of(MAX_UNUSED_QUESTIONS)
    }

    /// The keys whose references shall be given back: those of another generation, and of answers without use.
    pub(crate) fn stale(&mut self, generation: u64) -> Vec<usize> {
        let all = self.generation != generation;
        self.generation = generation;
        let now = self.questions;
        self.kept
            .extract_if(.., |kept| all || now - kept.last_use > MAX_UNUSED_QUESTIONS)
            .map(|kept| kept.key)
            .collect()
    }

    /// Whether an answer can be kept.
    pub(crate) fn has_room(&self, question: DigestQuestion<'_>) -> bool {
        self.kept.len() < MAX_ANSWERS
            && [question.digest, question.properties]
                .into_iter()
                .flatten()
                .all(|text| text.count_bytes() <= MAX_TEXT_LEN)
    }

    /// Keeps an answer that is not there yet; only where there is room. The key has a reference for it.
    pub(crate) fn insert(&mut self, question: DigestQuestion<'_>, answer: i32) {
        self.kept.push(KeptAnswer {
            key: question.key,
            digest: question.digest.map(CStr::to_owned),
            properties: question.properties.map(CStr::to_owned),
            answer,
            last_use: self.questions,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(key: usize, digest: &CStr) -> DigestQuestion<'_> {
        DigestQuestion { key, digest: Some(digest), properties: None }
    }

    #[test]
    fn answer_is_that_of_the_same_key_digest_and_generation() {
        let mut answers = DigestAnswers::EMPTY;
        assert_eq!(answers.stale(1), []);
        answers.insert(of(7, c"SHA256"), 1);
        answers.insert(of(7, c"SHA384"), 0);
        assert_eq!(answers.find(1, of(7, c"SHA256")), Some(1));
        assert_eq!(answers.find(1, of(7, c"SHA384")), Some(0));
        assert_eq!(answers.find(1, of(8, c"SHA256")), None);
        let with_query = DigestQuestion { properties: Some(c"fips=yes"), ..of(7, c"SHA256") };
        assert_eq!(answers.find(1, with_query), None);
        assert_eq!(answers.find(2, of(7, c"SHA256")), None);
        assert_eq!(answers.stale(2), [7, 7], "both references are given back");
        assert_eq!(answers.find(2, of(7, c"SHA256")), None);
    }

    #[test]
    fn replaced_key_is_given_back_after_some_questions_about_another() {
        let mut answers = DigestAnswers::EMPTY;
        answers.stale(1);
        answers.insert(of(7, c"SHA256"), 1);
        answers.insert(of(8, c"SHA256"), 1);
        for _ in 0..MAX_UNUSED_QUESTIONS {
            assert_eq!(answers.stale(1), []);
            assert_eq!(answers.find(1, of(8, c"SHA256")), Some(1));
        }
        answers.find(1, of(8, c"SHA256"));
        assert_eq!(answers.stale(1), [7]);
        assert_eq!(answers.find(1, of(8, c"SHA256")), Some(1));
    }

    #[test]
    fn answers_have_a_bound() {
        let mut answers = DigestAnswers::EMPTY;
        answers.stale(1);
        for key in 0..MAX_ANSWERS {
            assert!(answers.has_room(of(key, c"SHA256")));
            answers.insert(of(key, c"SHA256"), 1);
        }
        assert!(!answers.has_room(of(MAX_ANSWERS, c"SHA256")));
        let long = CString::new(vec![b'a'; MAX_TEXT_LEN + 1]).expect("no zero byte");
        assert!(!DigestAnswers::EMPTY.has_room(of(0, &long)));
    }
}
