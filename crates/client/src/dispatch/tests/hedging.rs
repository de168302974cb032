// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Jobs that are sent to a second node.

use super::*;
use crate::config::Hedge;
use crate::standing::Standing;

/// Two nodes, both with the key open; hedges after 20 ms.
fn pair() -> Pool {
    let mut pool = Pool::new(2);
    pool.dispatcher.hedging = Hedging::new(Hedge::After(Duration::from_millis(20)));
    pool.submit(1000, 10_000).expect("taken");
    let nodes = [pool.connect(), pool.connect()];
    let (node, job) = nodes
        .into_iter()
        .find_map(|node| Some((node, pool.serve_keys(node).pop()?)))
        .expect("one of them has it");
    // The other learns the key by a hedge.
    pool.tick(20);
    let hedge = pool.serve_keys(1 - node).pop().expect("a hedge");
    pool.answer(1 - node, &hedge, good());
    pool.answer(node, &job, good());
    assert_eq!(pool.ends(), [(1000, Ok(()))]);
    for node in nodes {
        pool.sent(node);
    }
    pool.dispatcher.totals = Totals::default();
    pool
}

impl Pool {
    /// Submits a job; gives the node that has it.
    fn sent_job(&mut self, number: u32, millis: u64) -> (usize, SubmittedJob) {
        self.submit(number, millis).expect("taken");
        self.find_job().expect("sent")
    }

    fn find_job(&mut self) -> Option<(usize, SubmittedJob)> {
        (0..2).find_map(|node| Some((node, self.serve_keys(node).pop()?)))
    }

    fn cancels(&mut self, node: usize) -> Vec<u64> {
        let cancel = |message| match message {
            ClientMessage::Cancel { job } => Some(job),
            _ => None,
        };
        self.sent(node).into_iter().filter_map(cancel).collect()
    }

    /// Hedges won, lost, and not allowed; jobs succeeded; late completions.
    fn counts(&self) -> [u64; 5] {
        let totals = self.dispatcher.totals;
        assert_eq!(totals.hedges + totals.rescues, totals.hedge_wins + totals.hedge_losses);
        [
            totals.hedge_wins,
            totals.hedge_losses,
            totals.hedges_denied,
            totals.succeeded,
            totals.late_completions,
        ]
    }

    /// Nothing is left of any job.
    fn assert_clean(&self) {
        let stats = self.dispatcher.stats();
        assert_eq!(stats.in_flight, 0);
        assert!(stats.nodes.iter().all(|node| node.in_flight == 0));
        assert!(self.dispatcher.nodes.iter().all(|node| node.late_replies == 0));
        assert!(self.dispatcher.keys.values().all(|usage| usage.jobs == 0));
    }
}

#[test]
fn hedged_job_ends_once_with_the_other_nodes_answer() {
    let mut pool = pair();
    let (node, job) = pool.sent_job(1, 1000);
    pool.tick(19);
    assert!(pool.find_job().is_none());
    pool.tick(1);
    let (other, hedge) = pool.find_job().expect("a hedge");
    assert_eq!(other, 1 - node);
    assert_ne!(hedge.id, job.id);
    assert_eq!(hedge.budget, Duration::from_millis(980), "the job's deadline");
    pool.tick(100);
    assert!(pool.find_job().is_none(), "there is one hedge per job");
    pool.answer(other, &hedge, good());
    assert_eq!(pool.ends(), [(1, Ok(()))]);
    assert_eq!(pool.cancels(node), [job.id]);
    pool.answer(node, &job, Err(JobError::Cancelled));
    assert!(pool.ends().is_empty());
    assert_eq!(pool.counts(), [1, 0, 0, 1, 1]);
    pool.assert_clean();
}

#[test]
fn first_node_may_answer_before_the_hedge() {
    let mut pool = pair();
    let (node, job) = pool.sent_job(1, 1000);
    pool.tick(20);
    let (other, hedge) = pool.find_job().expect("a hedge");
    pool.answer(node, &job, good());
    assert_eq!(pool.ends(), [(1, Ok(()))]);
    assert_eq!(pool.cancels(other), [hedge.id]);
    // The cancel crossed a result.
    pool.answer(other, &hedge, good());
    assert!(pool.ends().is_empty());
    assert_eq!(pool.counts(), [0, 1, 0, 1, 1]);
    pool.assert_clean();
}

#[test]
fn blocked_caller_is_answered_by_the_hedge() {
    for taken_first in [true, false] {
        let mut pool = pair();
        let request = JobRequest::Operation {
            operation: Operation::EcdsaSign { hash: Hash::Sha256 },
            input: vec![0; 32],
        };
        let recipient = Recipient::Caller { waiter: None };
        let deadline = pool.now + Duration::from_secs(1);
        let job = Job::new(Arc::clone(&pool.key), request, recipient, deadline);
        let id = pool.dispatcher.submit(job, pool.now).expect("taken");
        let (node, job) = pool.find_job().expect("sent");
        pool.tick(20);
        let (other, hedge) = pool.find_job().expect("a hedge");
        pool.answer(other, &hedge, good());
        assert_eq!(pool.cancels(node), [job.id]);
        if taken_first {
            assert!(matches!(pool.dispatcher.take_done(id), Some(Ok(Some(_)))));
            pool.answer(node, &job, Err(JobError::Cancelled));
        } else {
            pool.answer(node, &job, Err(JobError::Cancelled));
            assert!(matches!(pool.dispatcher.take_done(id), Some(Ok(Some(_)))));
        }
        assert!(pool.dispatcher.take_done(id).is_none());
        assert_eq!(pool.counts(), [1, 0, 0, 1, 1]);
        pool.assert_clean();
    }
}

#[test]
fn first_node_lost_after_the_hedge_answered_leaves_nothing() {
    let mut pool = pair();
    let request = JobRequest::Operation {
        operation: Operation::EcdsaSign { hash: Hash::Sha256 },
        input: vec![0; 32],
    };
    let deadline = pool.now + Duration::from_secs(1);
    let recipient = Recipient::Caller { waiter: None };
    let job = Job::new(Arc::clone(&pool.key), request, recipient, deadline);
    let id = pool.dispatcher.submit(job, pool.now).expect("taken");
    let (node, _) = pool.find_job().expect("sent");
    pool.tick(20);
    let (other, hedge) = pool.find_job().expect("a hedge");
    pool.answer(other, &hedge, good());
    pool.dispatcher.handle_lost(node, "gone".to_owned(), pool.now);
    assert!(matches!(pool.dispatcher.take_done(id), Some(Ok(Some(_)))));
    pool.assert_clean();
}

#[test]
fn failed_hedge_leaves_the_job_to_its_first_node() {
    let mut pool = pair();
    for (number, error) in (1..).zip([JobError::Busy, JobError::OverQuota, JobError::BadInput]) {
        for _ in 0..40 {
            pool.dispatcher.hedging.as_mut().expect("on").deposit();
        }
        let (node, job) = pool.sent_job(number, 1000);
        pool.tick(20);
        let (other, hedge) = pool.find_job().expect("a hedge");
        pool.answer(other, &hedge, Err(error));
        assert!(pool.ends().is_empty());
        pool.answer(node, &job, good());
        assert_eq!(pool.ends(), [(number, Ok(()))]);
    }
    assert_eq!(pool.counts(), [0, 3, 0, 3, 0]);
    pool.assert_clean();
}

#[test]
fn node_that_failed_as_a_hedge_is_not_tried_again() {
    let mut pool = Pool::new(3);
    pool.dispatcher.hedging = Hedging::new(Hedge::After(Duration::from_millis(20)));
    for number in 0..20 {
        pool.submit(number, 1000).expect("taken");
        while pool.dispatcher.wants_connections() {
            pool.connect();
        }
        let take =
            |pool: &mut Pool| (0..3).find_map(|node| Some((node, pool.serve_keys(node).pop()?)));
        let (first, job) = take(&mut pool).expect("sent");
        pool.tick(20);
        let (hedged, hedge) = take(&mut pool).expect("a hedge");
        pool.answer(hedged, &hedge, Err(JobError::Failed));
        pool.answer(first, &job, Err(JobError::Failed));
        let (third, job) = take(&mut pool).expect("a retry");
        assert_eq!(third, 3 - first - hedged, "the one that has not failed");
        pool.answer(third, &job, good());
        assert_eq!(pool.ends(), [(number, Ok(()))]);
        for _ in 0..20 {
            pool.dispatcher.hedging.as_mut().expect("on").deposit();
            pool.dispatcher.budget.deposit();
        }
        // Else nodes that fail what another one does are taken out.
        pool.dispatcher.nodes.iter_mut().for_each(|node| node.standing = Standing::default());
    }
    pool.assert_clean();
}

#[test]
fn failed_first_node_leaves_the_job_to_its_hedge() {
    let mut pool = pair();
    let (node, job) = pool.sent_job(1, 1000);
    pool.tick(20);
    let (other, hedge) = pool.find_job().expect("a hedge");
    pool.answer(node, &job, Err(JobError::Busy));
    assert!(pool.ends().is_empty());
    assert!(pool.find_job().is_none(), "it is under way already");
    pool.answer(other, &hedge, good());
    assert_eq!(pool.ends(), [(1, Ok(()))]);
    assert_eq!(pool.counts(), [1, 0, 0, 1, 0]);
    // The same with a connection that is lost.
    let (node, _) = pool.sent_job(2, 1000);
    pool.tick(20);
    let (other, hedge) = pool.find_job().expect("a hedge");
    pool.dispatcher.handle_lost(node, "gone".to_owned(), pool.now);
    assert!(pool.ends().is_empty());
    pool.answer(other, &hedge, good());
    assert_eq!(pool.ends(), [(2, Ok(()))]);
    pool.assert_clean();
}

#[test]
fn job_whose_attempts_both_fail_is_retried_or_ends() {
    let mut pool = pair();
    let (node, job) = pool.sent_job(1, 1000);
    pool.tick(20);
    let (other, hedge) = pool.find_job().expect("a hedge");
    pool.answer(node, &job, Err(JobError::Failed));
    pool.answer(other, &hedge, Err(JobError::Failed));
    assert_eq!(
        pool.ends(),
        [(1, Err(ClientError::Job(JobError::Failed)))],
        "both nodes have been tried"
    );
    pool.assert_clean();
    // Of two lost connections one comes back.
    let (node, _) = pool.sent_job(2, 10_000);
    pool.tick(20);
    let (other, _) = pool.find_job().expect("a hedge");
    pool.now += Duration::from_secs(2);
    pool.dispatcher.handle_lost(node, "gone".to_owned(), pool.now);
    pool.dispatcher.handle_lost(other, "gone".to_owned(), pool.now);
    assert!(pool.ends().is_empty());
    let back = pool.connect();
    let again = pool.serve_keys(back).pop().expect("tried again");
    pool.answer(back, &again, good());
    assert_eq!(pool.ends(), [(2, Ok(()))]);
    pool.assert_clean();
}

#[test]
fn deadline_ends_the_job_and_its_hedge() {
    let mut pool = pair();
    let (node, job) = pool.sent_job(1, 50);
    pool.tick(20);
    let (other, hedge) = pool.find_job().expect("a hedge");
    pool.tick(30);
    assert_eq!(pool.ends(), [(1, Err(ClientError::TimedOut))]);
    assert_eq!(pool.cancels(node), [job.id]);
    assert_eq!(pool.cancels(other), [hedge.id]);
    pool.answer(other, &hedge, good());
    pool.answer(node, &job, good());
    assert!(pool.ends().is_empty());
    assert_eq!(pool.counts(), [0, 1, 0, 0, 2]);
    pool.assert_clean();
}

#[test]
fn cancelled_job_cancels_its_hedge() {
    let mut pool = pair();
    let handle = pool.submit(1, 1000).expect("taken");
    let (node, job) = pool.find_job().expect("sent");
    pool.tick(20);
    let (other, hedge) = pool.find_job().expect("a hedge");
    pool.dispatcher.cancel(handle);
    assert_eq!(pool.ends(), [(1, Err(ClientError::Cancelled))]);
    pool.answer(node, &job, Err(JobError::Cancelled));
    pool.answer(other, &hedge, Err(JobError::Cancelled));
    assert_eq!(pool.counts(), [0, 1, 0, 0, 2]);
    pool.assert_clean();
}

#[test]
fn hedges_are_bounded_to_one_job_in_twenty_and_five() {
    const JOBS: u32 = 800;
    let mut pool = pair();
    for number in 0..JOBS {
        pool.submit(number, 10_000).expect("taken");
    }
    let jobs: u32 =
        (0..2).map(|node| u32::try_from(pool.serve_keys(node).len()).expect("few")).sum();
    assert_eq!(jobs, JOBS);
    pool.tick(20);
    let hedges = (0..2).map(|node| pool.serve_keys(node).len()).sum::<usize>();
    // All jobs were submitted before the first one waited too long: five hedges at most are saved up.
    assert_eq!(hedges, 5);
    assert_eq!(
        u64::from(JOBS),
        pool.dispatcher.totals.hedges_denied + pool.dispatcher.totals.hedges
    );
    pool.dispatcher.close();
    assert_eq!(pool.ends().len(), 800);
    assert_eq!(pool.dispatcher.stats().in_flight, 0);
    let mut pool = pair();
    for number in 0..JOBS {
        let (node, job) = pool.sent_job(number, 10_000);
        pool.tick(20);
        if let Some((other, hedge)) = pool.find_job() {
            pool.answer(other, &hedge, good());
        }
        pool.answer(node, &job, good());
        assert_eq!(pool.ends(), [(number, Ok(()))]);
        (0..2).for_each(|node| drop(pool.sent(node)));
    }
    let hedges = pool.dispatcher.totals.hedges;
    let share = u64::from(JOBS / 20);
    assert!((4 + share..=5 + share).contains(&hedges), "{hedges}");
    pool.assert_clean();
}

#[test]
fn job_is_sent_once_with_one_node_or_hedging_off() {
    for (nodes, hedge) in [(1, Hedge::After(Duration::from_millis(20))), (2, Hedge::Off)] {
        let mut pool = Pool::new(nodes);
        pool.dispatcher.hedging = Hedging::new(hedge);
        pool.submit(1, 1000).expect("taken");
        for _ in 0..nodes {
            pool.connect();
        }
        let sent: usize = (0..nodes).map(|node| pool.serve_keys(node).len()).sum();
        assert_eq!(sent, 1);
        pool.tick(100);
        let again: usize = (0..nodes).map(|node| pool.serve_keys(node).len()).sum();
        assert_eq!((again, pool.dispatcher.totals.hedges), (0, 0));
    }
}

#[test]
fn no_hedge_timer_is_left_when_all_jobs_were_answered() {
    let mut pool = pair();
    let (node, job) = pool.sent_job(1, 1000);
    assert!(pool.dispatcher.next_hedge().is_some());
    pool.answer(node, &job, good());
    assert_eq!(pool.dispatcher.next_hedge(), None);
}

#[test]
fn job_that_waits_for_its_key_is_hedged_too() {
    let mut pool = Pool::new(2);
    pool.dispatcher.hedging = Hedging::new(Hedge::After(Duration::from_millis(20)));
    pool.submit(1, 1000).expect("taken");
    let nodes = [pool.connect(), pool.connect()];
    let asked = nodes
        .into_iter()
        .find(|node| {
            pool.sent(*node).iter().any(|message| matches!(message, ClientMessage::OpenKey { .. }))
        })
        .expect("one of them is asked for the key, and says nothing");
    pool.tick(20);
    let hedge = pool.serve_keys(1 - asked).pop().expect("a hedge");
    pool.answer(1 - asked, &hedge, good());
    assert_eq!(pool.ends(), [(1, Ok(()))]);
    pool.assert_clean();
}
