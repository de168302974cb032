// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Each instance computes the known answer after each start of the library, before a queue may use it: an instance
//! that an earlier session left in error refuses it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::sys::{Answer, KeyParts, Library, Ring, Submitted};
use crate::known_answer::known_answer;
use crate::software::keys::rsa_numbers;

/// Pause between two polls: a card answers in less than a millisecond.
const PAUSE: Duration = Duration::from_micros(50);

/// Owner of the request: no queue has this seat.
const OWNER: (usize, u64) = (usize::MAX, 0);

/// Lets an instance compute it, within `limit`. A request that stays unanswered ends with the session.
///
/// # Errors
/// The fault of the instance.
pub(super) fn check(
    library: &Arc<Library>,
    ring: &mut Ring,
    limit: Duration,
) -> Result<(), String> {
    let known = known_answer();
    let [_, _, _, parts @ ..] = rsa_numbers(&known.pkcs8).map_err(|error| error.to_string())?;
    let key = KeyParts::copy(library, parts)
        .ok_or("no memory for a key: raise the limit of locked memory (memlock)")?;
    if ring.submit(&Arc::new(key), &known.input, OWNER) != Submitted::Taken {
        return Err(format!("instance {} refuses requests", ring.name));
    }
    let (start, mut answers) = (Instant::now(), Vec::new());
    while answers.is_empty() {
        if start.elapsed() > limit {
            return Err(format!("instance {} gives no answers", ring.name));
        }
        thread::sleep(PAUSE);
        ring.poll(&mut answers);
    }
    let right =
        |answer: &Answer<_>| answer.output.as_ref().is_ok_and(|output| **output == known.answer);
    if answers.iter().all(right) {
        Ok(())
    } else {
        Err(format!("instance {} computes a wrong result", ring.name))
    }
}
