// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Nodes that are taken out, and tried again.

use millrace_operation::OperationKind;

use super::*;
use crate::config::Hedge;
use crate::job::{ReplySource, WrongNodes};
use crate::key::spki_sha256;
use crate::standing::EarlierResults;

/// Longer than a first pause.
const PAUSE_MS: u64 = 1300;

impl Pool {
    /// Connected nodes, all with the key open and with answers given; without hedges.
    fn of_good(nodes: usize) -> Self {
        let mut pool = Self::new(nodes);
        pool.dispatcher.hedging = None;
        pool.warm_up();
        pool
    }

    fn warm_up(&mut self) {
        // No connection is given up for its silence.
        self.dispatcher.timings.ping_after = Duration::from_secs(3600);
        let nodes = self.dispatcher.nodes.len();
        for number in 0.. {
            self.submit(number, 1000).expect("taken");
            while self.dispatcher.wants_connections() {
                self.connect();
            }
            let (node, job) = self.under_way().pop().expect("sent");
            self.now += Duration::from_millis(1);
            self.answer(node, &job, good());
            drop(self.ends());
            if self.dispatcher.nodes.iter().filter(|node| node.counters.succeeded > 0).count()
                == nodes
            {
                return;
            }
        }
    }

    /// The jobs that were sent and not taken yet, with their nodes.
    fn under_way(&mut self) -> Vec<(usize, SubmittedJob)> {
        let mut jobs = Vec::new();
        for node in 0..self.dispatcher.nodes.len() {
            jobs.extend(self.serve_keys(node).into_iter().map(|job| (node, job)));
        }
        jobs
    }

    /// Submits jobs until this node has one; the others answer theirs then.
    fn job_at(&mut self, wanted: usize) -> SubmittedJob {
        let mut others = Vec::new();
        loop {
            self.submit(1, 60_000).expect("taken");
            let (node, job) = self.under_way().pop().expect("sent");
            if node != wanted {
                others.push((node, job));
                continue;
            }
            for (node, job) in others {
                self.answer(node, &job, good());
            }
            drop(self.ends());
            return job;
        }
    }

    /// Runs jobs, and gives the nodes that they went to.
    fn nodes_of(&mut self, jobs: u32) -> Vec<usize> {
        (0..jobs)
            .map(|number| {
                self.submit(number, 1000).expect("taken");
                let (node, job) = self.under_way().pop().expect("sent");
                self.answer(node, &job, good());
                drop(self.ends());
                node
            })
            .collect()
    }

    /// Runs a job to its result at this node; gives the result's source.
    fn result_of(&mut self, node: usize) -> ReplySource {
        let job = self.job_at(node);
        self.answer(node, &job, good());
        let replies = mem::take(&mut self.dispatcher.deliveries().callbacks);
        assert_eq!(replies.len(), 1);
        for (callback, result) in replies {
            callback(result);
        }
        let (_, result) = self.ends.try_recv().expect("an end");
        result.expect("a result").source
    }

    fn is_out(&self, node: usize) -> bool {
        self.dispatcher.nodes[node].standing.is_out()
    }
}

#[test]
fn node_that_opens_another_key_than_was_asked_for_is_out_and_decides_nothing() {
    let mut pool = Pool::new(2);
    let selector = KeySelector::SpkiSha256(spki_sha256(&[1; 91]));
    pool.key = Arc::new(KeyData::new(KeySource::Selector(selector)));
    pool.submit(1, 1000).expect("taken");
    let (liar, good_node) = (pool.connect(), pool.connect());
    let asked = pool.sent(liar).into_iter().find_map(|message| match message {
        ClientMessage::OpenKey { request, .. } => Some(request),
        _ => None,
    });
    let NodeMessage::KeyOpened { request, handle, mut info, operations, hashes } =
        opened(asked.expect("the first that connected"))
    else {
        unreachable!()
    };
    info.spki[0] ^= 1;
    pool.say(liar, &NodeMessage::KeyOpened { request, handle, info, operations, hashes });
    assert!(pool.is_out(liar) && !pool.is_out(good_node));
    let jobs = pool.serve_keys(good_node);
    pool.answer(good_node, &jobs[0], good());
    assert_eq!(pool.ends(), [(1, Ok(()))]);
}

#[test]
fn first_results_of_each_operation_and_key_on_each_connection_are_doubtful() {
    let mut pool = Pool::of_good(1);
    let doubtful = |pool: &mut Pool| (0..70).filter(|_| pool.result_of(0).is_doubtful()).count();
    // One came while the pool warmed up.
    assert_eq!(doubtful(&mut pool), 63);
    let (first, other) = (OperationKind::EcdsaSign, OperationKind::Ed25519Sign);
    let node = &mut pool.dispatcher.nodes[0];
    let mut after = |operation| node.record_result(operation, pool.key.id);
    assert_eq!(after(first), EarlierResults { of_operation: 71, with_key: 71 });
    let new = EarlierResults { of_operation: 0, with_key: 72 };
    assert_eq!(after(other), new, "another operation is new");
    let name = Arc::from("node");
    pool.dispatcher.nodes[0].handshake_completed(&name);
    assert_eq!(doubtful(&mut pool), 64, "a node that has connected again may be another one");
}

#[test]
fn node_with_a_wrong_result_gets_one_job_after_each_pause_until_one_is_verified() {
    let mut pool = Pool::of_good(2);
    let source = pool.result_of(0);
    pool.dispatcher.report_wrong(source, pool.now);
    assert_eq!(pool.nodes_of(50), [1; 50]);
    pool.tick(PAUSE_MS);
    let tried = pool.nodes_of(10);
    assert_eq!(tried.iter().filter(|node| **node == 0).count(), 1, "one job tries it: {tried:?}");
    assert!(pool.is_out(0), "no owner has verified that result");
    pool.tick(2 * PAUSE_MS);
    let source = pool.result_of(0);
    assert!(source.is_on_trial() && source.is_doubtful());
    pool.dispatcher.report_right(source, pool.now);
    assert!(!pool.is_out(0));
    assert!(pool.result_of(0).is_doubtful(), "a node that was wrong once is verified for ever");
    assert_eq!(pool.dispatcher.stats().nodes[0].counters.wrong, 1);
}

#[test]
fn job_that_was_answered_wrongly_goes_to_another_node_or_waits_for_one() {
    let mut pool = Pool::of_good(2);
    let source = pool.result_of(0);
    pool.dispatcher.report_wrong(source, pool.now);
    pool.dispatcher.handle_lost(1, "killed".to_owned(), pool.now);
    // The only node that is there has answered this operation wrongly.
    let mut wrong = WrongNodes::default();
    wrong.0.insert(0);
    let recipient = Recipient::Caller { waiter: None };
    let operation = Operation::EcdsaSign { hash: Hash::Sha256 };
    let request = JobRequest::Operation { operation, input: vec![0; 32] };
    let deadline = pool.now + Duration::from_secs(2);
    let job = Job::new(Arc::clone(&pool.key), request, recipient, deadline).avoiding(wrong);
    let id = pool.dispatcher.submit(job, pool.now).expect("taken");
    assert_eq!(pool.under_way().len(), 0, "it waits for the other node");
    // A job that has not been there is better off with this node than with none.
    pool.submit(7, 1000).expect("taken");
    let (node, job) = pool.under_way().pop().expect("sent");
    assert_eq!(node, 0);
    pool.answer(node, &job, good());
    let _ = pool.until_wanted();
    assert_eq!(pool.connect(), 1);
    let (node, job) = pool.under_way().pop().expect("sent");
    assert_eq!(node, 1);
    pool.answer(node, &job, good());
    assert!(matches!(pool.dispatcher.take_done(id), Some(Ok(Some(_)))));
}

#[test]
fn key_of_this_process_is_used_here_rather_than_at_a_node_that_is_out() {
    let mut pool = Pool::importing(1);
    pool.warm_up();
    let source = pool.result_of(0);
    pool.dispatcher.report_wrong(source, pool.now);
    assert_eq!(pool.submit(1, 1000), Err(ClientError::Distrusted));
    pool.tick(PAUSE_MS);
    assert!(pool.submit(1, 1000).is_ok(), "one job tries it");
    assert_eq!(pool.submit(2, 1000), Err(ClientError::Distrusted));
}

#[test]
fn operation_that_cannot_be_verified_waits_for_the_end_of_the_pause() {
    let mut pool = Pool::of_good(1);
    let source = pool.result_of(0);
    pool.dispatcher.report_wrong(source, pool.now);
    pool.submit_operation(1, 5000, Operation::RsaPkcs1Decrypt).expect("taken");
    assert_eq!(pool.under_way().len(), 0);
    pool.submit(2, 5000).expect("taken");
    assert_eq!(pool.under_way().len(), 1, "a signature is verified");
    let pause = pool.dispatcher.nodes[0].standing.next_try().expect("out");
    pool.now = pause;
    pool.dispatcher.handle_timeout(pool.now);
    assert_eq!(pool.under_way().len(), 1);
}

#[test]
fn node_that_owes_answers_while_another_gives_them_is_taken_out_and_its_jobs_go_there() {
    let mut pool = Pool::of_good(2);
    let job = pool.job_at(0);
    pool.tick(100);
    assert_eq!(pool.nodes_of(1), [1], "the load alone decides");
    pool.tick(149);
    assert!(!pool.is_out(0));
    pool.tick(1);
    assert!(pool.is_out(0));
    let (node, second) = pool.under_way().pop().expect("a second attempt");
    assert_eq!(node, 1);
    pool.answer(1, &second, good());
    assert_eq!(pool.ends(), [(1, Ok(()))]);
    assert_eq!(pool.nodes_of(20), [1; 20]);
    assert_eq!((pool.dispatcher.totals.rescues, pool.dispatcher.totals.hedges), (1, 0));
    // The job that tries it is not answered either.
    pool.tick(PAUSE_MS);
    pool.submit(5, 2000).expect("taken");
    let (node, _) = pool.under_way().pop().expect("sent");
    assert_eq!(node, 0);
    pool.tick(250);
    let (node, second) = pool.under_way().pop().expect("a second attempt");
    assert_eq!(node, 1);
    pool.answer(1, &second, good());
    assert_eq!(pool.ends(), [(5, Ok(()))]);
    pool.tick(PAUSE_MS);
    assert_eq!(pool.nodes_of(10), [1; 10], "the second pause is longer");
    // A late answer is none that brings it back; one of a job that tries it is.
    pool.answer(0, &job, Err(JobError::Cancelled));
    assert!(pool.is_out(0));
    pool.tick(2 * PAUSE_MS);
    assert!(pool.nodes_of(3).contains(&0));
    assert!(!pool.is_out(0));
}

#[test]
fn nodes_that_are_slow_alike_stay_in() {
    let mut pool = Pool::of_good(2);
    for number in 0..100 {
        pool.submit(number, 60_000).expect("taken");
    }
    for _ in 0..50 {
        pool.tick(100);
    }
    assert!(!pool.is_out(0) && !pool.is_out(1));
    let jobs = pool.under_way();
    assert_eq!(jobs.len(), 100, "none has two attempts");
    for (node, job) in jobs {
        pool.answer(node, &job, good());
    }
    pool.tick(1000);
    assert!(!pool.is_out(0) && !pool.is_out(1), "a job in its queue is answered after others");
}

#[test]
fn only_node_is_never_out_for_silence() {
    let mut pool = Pool::of_good(1);
    pool.submit(1, 60_000).expect("taken");
    for _ in 0..100 {
        pool.tick(100);
    }
    assert!(!pool.is_out(0));
}

#[test]
fn broken_promise_of_the_protocol_takes_the_node_out() {
    for breaks in [0, 1] {
        let mut pool = Pool::of_good(2);
        let job = pool.job_at(0);
        if breaks == 0 {
            let foreign = SubmittedJob { id: job.id ^ (1 << 40), ..job };
            pool.answer(0, &foreign, good());
        } else {
            let connection = pool.dispatcher.connection(0).expect("connected");
            connection.space()[..8].copy_from_slice(&[0xff; 8]);
            connection.filled(8, pool.now);
            pool.dispatcher.handle_received(0, pool.now);
        }
        assert!(pool.is_out(0));
        assert_eq!(pool.dispatcher.totals.contradictions, 1);
        let (node, second) = pool.under_way().pop().expect("a second attempt");
        assert_eq!(node, 1);
        pool.answer(1, &second, good());
        assert_eq!(pool.ends(), [(1, Ok(()))]);
    }
}

#[test]
fn node_that_fails_three_jobs_in_a_row_which_another_does_is_out() {
    let mut pool = Pool::of_good(2);
    for failures in 1..=3 {
        assert!(!pool.is_out(0));
        let job = pool.job_at(0);
        pool.answer(0, &job, Err(JobError::Failed));
        let (node, again) = pool.under_way().pop().expect("a retry");
        assert_eq!(node, 1, "failure {failures}");
        pool.answer(1, &again, good());
        assert_eq!(pool.ends(), [(1, Ok(()))]);
    }
    assert!(pool.is_out(0));
}

#[test]
fn job_that_was_lost_with_a_connection_goes_to_another_node_first() {
    for _ in 0..20 {
        let mut pool = Pool::of_good(2);
        drop(pool.job_at(0));
        pool.now += Duration::from_secs(2);
        pool.dispatcher.handle_lost(0, "killed".to_owned(), pool.now);
        let (node, _) = pool.under_way().pop().expect("a retry");
        assert_eq!(node, 1);
        assert_eq!(pool.connect(), 0);
        pool.now += Duration::from_secs(2);
        pool.dispatcher.handle_lost(1, "killed".to_owned(), pool.now);
        let (node, _) = pool.under_way().pop().expect("a retry");
        assert_eq!(node, 0, "where no other is left, it goes there again");
    }
}

#[test]
fn busy_pool_gets_one_hedge_for_twenty_jobs() {
    let mut pool = Pool::new(2);
    pool.dispatcher.hedging = Hedging::new(Hedge::Adaptive);
    pool.warm_up();
    // Every answer takes a second, from both.
    for round in 0..40 {
        for number in 0..10 {
            pool.submit(round * 10 + number, 60_000).expect("taken");
        }
        let mut jobs = pool.under_way();
        for _ in 0..10 {
            pool.tick(100);
            jobs.extend(pool.under_way());
        }
        for (node, job) in jobs {
            pool.answer(node, &job, good());
        }
        drop(pool.ends());
    }
    let totals = pool.dispatcher.totals;
    assert!(totals.hedges <= 5 + totals.jobs / 20 && totals.rescues == 0, "{totals:?}");
}

#[test]
fn job_waits_for_room_at_the_only_node_although_that_is_out() {
    let mut pool = Pool::of_good(1);
    let source = pool.result_of(0);
    pool.dispatcher.report_wrong(source, pool.now);
    for number in 0..1001 {
        pool.submit(number, 60_000).expect("taken");
    }
    let jobs = pool.under_way();
    assert_eq!(jobs.len(), 1000, "its bound");
    let (node, job) = jobs.into_iter().next().expect("many");
    pool.answer(node, &job, good());
    assert_eq!(pool.under_way().len(), 1);
}

impl Pool {
    /// Runs jobs of which this node refuses each; gives how many it had, and asserts that none fails.
    fn refused_by(&mut self, bad: usize, error: JobError, jobs: u32) -> usize {
        let mut refused = 0;
        for number in 0..jobs {
            self.submit(number, 1000).expect("taken");
            while let Some((node, job)) = self.under_way().pop() {
                refused += usize::from(node == bad);
                // A refusal takes no time, so that the node would attract all jobs.
                self.now += Duration::from_millis(u64::from(node != bad));
                let result = if node == bad { Err(error) } else { good() };
                self.answer(node, &job, result);
            }
            assert_eq!(self.ends(), [(number, Ok(()))], "{error}");
        }
        refused
    }
}

#[test]
fn node_that_refuses_what_another_does_gets_a_job_after_each_pause_and_fails_none() {
    for error in [JobError::Denied, JobError::Busy, JobError::NotOffered] {
        let mut pool = Pool::of_good(2);
        // Half a second: the pauses take 50, 100, 200 and 400 ms.
        let first = pool.refused_by(0, error, 500);
        assert!((1..=4).contains(&first), "{error}: {first}");
        let mut refused = 0;
        for _ in 0..10 {
            pool.tick(5000);
            let more = pool.refused_by(0, error, 20);
            assert!(more <= 1, "{error}: one job tries it");
            refused += more;
        }
        assert!(refused > 1, "{error}: it is tried again");
        let before = pool.dispatcher.nodes[0].counters.jobs;
        for _ in 0..4 {
            pool.tick(1000);
            pool.refused_by(0, error, 20);
        }
        assert!(pool.dispatcher.nodes[0].counters.jobs <= before + 1, "{error}: longer pauses");
        assert!(!pool.is_out(0), "with other keys it works");
        pool.tick(5000);
        let tried = pool.nodes_of(100);
        assert!(tried.iter().filter(|node| **node == 0).count() > 10, "well again: {tried:?}");
    }
}

#[test]
fn job_that_every_node_denies_is_denied_and_waits_for_none() {
    let mut pool = Pool::of_good(2);
    pool.dispatcher.nodes[0].listed = false;
    for number in 0..20 {
        pool.submit(number, 1000).expect("taken");
        let (node, job) = pool.under_way().pop().expect("sent");
        assert_eq!(node, 1);
        pool.answer(node, &job, Err(JobError::Denied));
        assert!(pool.under_way().is_empty());
        assert_eq!(pool.ends(), [(number, Err(ClientError::Job(JobError::Denied)))]);
    }
    let mut pool = Pool::of_good(2);
    for number in 0..20 {
        pool.submit(number, 1000).expect("taken");
        let mut asked = 0;
        while let Some((node, job)) = pool.under_way().pop() {
            asked += 1;
            pool.answer(node, &job, Err(JobError::Denied));
        }
        assert_eq!(asked, 2);
        assert_eq!(pool.ends(), [(number, Err(ClientError::Job(JobError::Denied)))]);
    }
}

#[test]
fn node_that_refused_is_asked_again_once_no_other_is_left() {
    let mut pool = Pool::of_good(2);
    assert!(pool.refused_by(0, JobError::Busy, 100) > 0);
    pool.dispatcher.nodes[1].listed = false;
    assert_eq!(pool.nodes_of(10), [0; 10]);
}
