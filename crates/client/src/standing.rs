// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whether a node may have jobs, by what it did with earlier ones.
//!
//! A node that answered wrongly, broke the protocol, or stopped answering while another node answered is *out*: the
//! jobs go to other nodes. When its pause is over, one job tries it, and its end brings the node back or begins a
//! pause of twice the length. The rules are those of a circuit breaker (Nygard, Release It!), per node and process.
//!
//! Being out is about the choice between nodes. Where no other node is left, [`crate::dispatch`] uses this one.

use std::time::{Duration, Instant};

use crate::random::Random;

/// First pause of a node that is out: long against one handshake, short against the repair of a node.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Longest pause: a node that was repaired gets jobs within it.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// A node that was in for this long begins with [`FIRST_PAUSE`] again: above the longest pause, so that a node that is
/// well for some seconds and bad for some gets rarer and rarer.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60);

/// Results of each operation that are verified on each connection of a node, before samples of them are trusted: a node
/// that answers wrongly from the beginning, or from a restart on, gets no wrong result out. They cost a process 4 ms
/// with P-256, 42 ms with P-384.
const PROOFS: u32 = 64;

/// The same for each key: a node may have a wrong key among others. They cost 0.2 ms with P-256, 3 ms with P-384.
const KEY_PROOFS: u32 = 4;

/// Answers in a row of a node that another node contradicted, until the node is out: one can be an accident of its
/// device.
const MAX_OUTVOTED: u32 = 3;

/// The results that a node gave on its present connection before one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EarlierResults {
    /// Results of the same operation.
    pub(crate) of_operation: u32,
    /// Results with the same key.
    pub(crate) with_key: u32,
}

/// A reason for taking a node out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offence {
    /// A result did not verify.
    Wrong,
    /// The node broke the protocol, or failed jobs that other nodes did.
    Contradiction,
    /// The node answered nothing for a time in which another one answered.
    Stalled,
}

/// Progress of the job that tries a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Trial {
    #[default]
    None,
    /// Sent, and unanswered since.
    Since(Instant),
    /// Answered. The verdict is its owner's.
    Answered,
}

/// The state of a node's breaker.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    /// Time from which the next job may try the node. `None` while it is in.
    next_try: Option<Instant>,
    trial: Trial,
    /// Pauses in a row.
    pauses: u32,
    /// Whether only a verified result brings the node back.
    needs_proof: bool,
    /// Whether a result of the node was ever wrong.
    was_wrong: bool,
    /// Time at which the node came back the last time. `None` if it was never out.
    back_since: Option<Instant>,
    outvoted: u32,
}

impl Standing {
    /// Whether new jobs go elsewhere.
    pub(crate) fn is_out(&self) -> bool {
        self.next_try.is_some()
    }

    /// Whether the pause is over, so that a job may try the node. `is_proof`: its owner can verify the result.
    pub(crate) fn may_try(&self, is_proof: bool, now: Instant) -> bool {
        self.is_over(now) && (is_proof || !self.needs_proof)
    }

    /// Whether the pause is over.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.next_try.is_some_and(|at| at <= now)
    }

    /// End of the pause, if the node is out.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        self.next_try
    }

    /// A job tries the node. The next one does after a further pause, in case this one is given up.
    pub(crate) fn try_begins(&mut self, now: Instant) {
        self.trial = Trial::Since(now);
        self.next_try = Some(now + pause(self.pauses));
    }

    /// The job that tries the node was answered, and its owner is to say whether the result is right.
    pub(crate) fn awaits_verdict(&mut self) {
        self.trial = Trial::Answered;
    }

    /// Since when a job tries the node without an answer. `None` if none does.
    pub(crate) fn tried_since(&self) -> Option<Instant> {
        match self.trial {
            Trial::Since(at) => Some(at),
            Trial::None | Trial::Answered => None,
        }
    }

    /// Whether a result of this node is to be verified in any case, after these on its connection.
    pub(crate) fn is_doubtful(&self, earlier: EarlierResults) -> bool {
        let is_new = earlier.of_operation < PROOFS || earlier.with_key < KEY_PROOFS;
        self.was_wrong || self.is_out() || is_new
    }

    /// Whether only a verified result brings the node back.
    pub(crate) fn needs_proof(&self) -> bool {
        self.needs_proof
    }

    /// Records an offence. Returns whether the node was in, or on trial, and is out now. Of many jobs that were under
    /// way at a bad node, only the first one counts.
    pub(crate) fn offend(&mut self, offence: Offence, random: &mut Random, now: Instant) -> bool {
        if offence == Offence::Wrong {
            self.was_wrong = true;
            self.needs_proof = true;
        }
        let trial = std::mem::take(&mut self.trial);
        if self.is_out() && trial == Trial::None {
            return false;
        }
        if self.back_since.is_some_and(|at| now.saturating_duration_since(at) >= FORGIVEN_AFTER) {
            self.pauses = 0;
        }
        self.outvoted = 0;
        self.pauses = self.pauses.saturating_add(1);
        let length = pause(self.pauses);
        // Longer by a random part, so that the clients of a slow node do not come back together.
        self.next_try = Some(now + length + random.up_to(length / 4));
        true
    }

    /// The job that tried the node, or a verified result, was good.
    pub(crate) fn acquit(&mut self, now: Instant) {
        self.trial = Trial::None;
        self.next_try = None;
        self.needs_proof = false;
        self.back_since = Some(now);
    }

    /// The node gave a result.
    pub(crate) fn succeeded(&mut self) {
        self.outvoted = 0;
    }

    /// Another node did a job that this one failed. Returns whether that happened too often in a row.
    pub(crate) fn was_outvoted(&mut self) -> bool {
        self.outvoted += 1;
        self.outvoted >= MAX_OUTVOTED
    }
}

/// Length of the `n`th pause in a row.
fn pause(n: u32) -> Duration {
    let doublings = n.saturating_sub(1).min(16);
    (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUARTER: u32 = 4;

    #[test]
    fn offence_takes_a_node_out_until_a_job_that_tries_it_ends_well() {
        let now = Instant::now();
        let mut random = Random::new();
        let mut standing = Standing::default();
        assert!(!standing.is_out());
        assert!(standing.offend(Offence::Stalled, &mut random, now));
        assert!(!standing.offend(Offence::Stalled, &mut random, now), "one pause for all jobs");
        assert!(standing.is_out() && !standing.may_try(true, now));
        let over = now + FIRST_PAUSE + FIRST_PAUSE / QUARTER;
        assert!(standing.may_try(false, over));
        standing.try_begins(over);
        assert!(!standing.may_try(true, over), "one job tries");
        assert!(standing.may_try(true, over + FIRST_PAUSE), "that job was given up");
        standing.acquit(over);
        assert!(!standing.is_out());
    }

    #[test]
    fn wrong_result_is_followed_by_proofs() {
        let now = Instant::now();
        let mut standing = Standing::default();
        let enough = EarlierResults { of_operation: PROOFS, with_key: KEY_PROOFS };
        let is_doubtful = |standing: &Standing| standing.is_doubtful(enough);
        assert!(standing.is_doubtful(EarlierResults { of_operation: PROOFS - 1, ..enough }));
        assert!(standing.is_doubtful(EarlierResults { with_key: KEY_PROOFS - 1, ..enough }));
        assert!(!is_doubtful(&standing));
        standing.offend(Offence::Wrong, &mut Random::new(), now);
        let over = now + LONGEST_PAUSE;
        assert!(!standing.may_try(false, over) && standing.may_try(true, over));
        assert!(standing.needs_proof() && is_doubtful(&standing));
        standing.acquit(over);
        assert!(!standing.needs_proof());
        assert!(is_doubtful(&standing), "all of its results are verified from now on");
    }

    #[test]
    fn pauses_double_up_to_their_bound_and_begin_anew_after_good_conduct() {
        let mut now = Instant::now();
        let mut random = Random::new();
        let mut standing = Standing::default();
        for n in 1..10 {
            assert!(standing.offend(Offence::Contradiction, &mut random, now));
            let next = standing.next_try().expect("out");
            assert!(next >= now + pause(n) && next <= now + pause(n) + pause(n) / QUARTER);
            now = next;
            standing.try_begins(now);
            if n == 8 {
                standing.acquit(now);
            }
        }
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
        standing.acquit(now);
        now += FORGIVEN_AFTER;
        standing.offend(Offence::Stalled, &mut random, now);
        assert!(standing.next_try() <= Some(now + FIRST_PAUSE + FIRST_PAUSE / QUARTER));
    }

    #[test]
    fn node_is_outvoted_by_three_in_a_row() {
        let mut standing = Standing::default();
        assert!(!standing.was_outvoted() && !standing.was_outvoted());
        standing.succeeded();
        assert!(!standing.was_outvoted() && !standing.was_outvoted());
        assert!(standing.was_outvoted());
    }
}
