// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Each instance computes the known answer after each start of the library, before a queue may use it: an instance
//! that an earlier session left in error refuses it. One that lost requests and answers nothing computes it, too: it
//! takes tasks again when its answer is there.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use millrace_qat::{QatError, QatLibrary};

use super::error::CardError;
use super::sys::{Answer, KeyParts, Request, Ring, Submitted};
use crate::known_answer::known_answer;
use crate::software::keys::rsa_numbers;

/// Pause between two polls: a card answers in less than a millisecond.
const PAUSE: Duration = Duration::from_micros(50);

/// Owner of the request: no queue has this seat.
pub(super) const OWNER: (usize, u64) = (usize::MAX, 0);

/// Hands the request for the known answer to an instance.
pub(super) fn ask(library: &Arc<QatLibrary>, ring: &mut Ring) -> Result<(), CardError> {
    let known = known_answer();
    let [_, _, _, parts @ ..] = rsa_numbers(&known.pkcs8)?;
    let key = KeyParts::copy(library, parts).ok_or(QatError::Memory("a key"))?;
    let request = Request::Root { key: Arc::new(key), input: known.input.into() };
    match ring.submit(&request, OWNER) {
        Submitted::Taken => Ok(()),
        _ => Err(CardError::Refuses(ring.name.clone())),
    }
}

/// Whether an answer is the known one.
fn is_right<O>(answer: &Answer<O>) -> bool {
    answer.output.as_ref().is_ok_and(|output| **output == known_answer().answer)
}

/// Has an instance compute the known answer within `limit`. A request that stays unanswered ends with the session.
pub(super) fn check(
    library: &Arc<QatLibrary>,
    ring: &mut Ring,
    limit: Duration,
) -> Result<(), CardError> {
    ask(library, ring)?;
    let start = Instant::now();
    let mut answers = Vec::new();
    while answers.is_empty() {
        if start.elapsed() > limit {
            return Err(CardError::NoAnswer(ring.name.clone()));
        }
        thread::sleep(PAUSE);
        ring.poll(&mut answers);
    }
    if answers.iter().all(is_right) {
        Ok(())
    } else {
        Err(CardError::WrongAnswer(ring.name.clone()))
    }
}
