// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Nodes that say when they take jobs with a key again.

use millrace_wire::FEATURE_RETRY_AFTER;

use super::*;

impl Pool {
    fn told(nodes: usize) -> Self {
        let mut pool = Self::new(nodes);
        pool.features = FEATURE_RETRY_AFTER;
        pool
    }

    /// The node refuses a job, and says when to try again.
    fn refuse(&mut self, node: usize, job: &SubmittedJob, error: JobError, millis: u64) {
        let wait = Duration::from_millis(millis);
        self.say(node, &NodeMessage::RetryAfter { handle: 1, wait });
        self.answer(node, job, Err(error));
    }

    /// A pool whose connected nodes have the key open, with one job under way at one of them.
    fn with_job(mut self) -> (Self, usize, SubmittedJob) {
        let nodes = self.dispatcher.nodes.len();
        self.submit(1, 1000).expect("taken");
        for _ in 0..nodes {
            self.connect();
        }
        let found = (0..nodes).find_map(|node| Some((node, self.serve_keys(node).pop()?)));
        let (node, job) = found.expect("a node has it");
        (self, node, job)
    }
}

#[test]
fn refused_job_is_sent_again_when_the_pause_is_over() {
    for error in [JobError::Busy, JobError::OverQuota] {
        let (mut pool, node, job) = Pool::told(1).with_job();
        pool.refuse(node, &job, error, 100);
        assert_eq!(pool.dispatcher.poll_timeout(), Some(pool.now + Duration::from_millis(100)));
        pool.tick(99);
        assert!(pool.serve_keys(node).is_empty() && pool.ends().is_empty(), "{error}");
        pool.tick(1);
        let again = pool.serve_keys(node).pop().expect("sent again");
        pool.answer(node, &again, good());
        assert_eq!(pool.ends(), [(1, Ok(()))], "{error}");
    }
}

#[test]
fn jobs_of_a_paused_key_are_not_sent_and_wait_or_end_by_their_deadline() {
    let (mut pool, node, job) = Pool::told(1).with_job();
    pool.refuse(node, &job, JobError::Busy, 100);
    // Its deadline comes first: its owner can do something better with the time.
    assert_eq!(pool.submit(2, 100), Err(ClientError::Busy));
    pool.submit(3, 101).expect("it waits");
    assert!(pool.serve_keys(node).is_empty());
    pool.tick(100);
    let sent: Vec<SubmittedJob> = pool.serve_keys(node);
    assert_eq!(sent.len(), 2, "the refused one and the one that waited");
}

#[test]
fn other_node_gets_the_jobs_while_one_is_paused() {
    for error in [JobError::Busy, JobError::OverQuota] {
        let (mut pool, node, job) = Pool::told(2).with_job();
        let other = 1 - node;
        pool.refuse(node, &job, error, 500);
        let again = pool.serve_keys(other).pop().expect("the other node has it");
        pool.answer(other, &again, good());
        assert_eq!(pool.ends(), [(1, Ok(()))], "{error}");
        for number in 2..20 {
            pool.submit(number, 400).expect("taken");
        }
        assert!(pool.serve_keys(node).is_empty());
        assert_eq!(pool.serve_keys(other).len(), 18);
    }
}

#[test]
fn owner_of_an_imported_key_does_the_work_at_once() {
    let mut pool = Pool::importing(1);
    pool.features = FEATURE_RETRY_AFTER;
    let (mut pool, node, job) = pool.with_job();
    pool.refuse(node, &job, JobError::Busy, 100);
    assert_eq!(pool.ends(), [(1, Err(ClientError::Job(JobError::Busy)))]);
    assert_eq!(pool.submit(2, 1000), Err(ClientError::Busy), "without a round trip");
    pool.tick(100);
    pool.submit(3, 1000).expect("taken");
    let job = pool.serve_keys(node).pop().expect("sent");
    pool.refuse(node, &job, JobError::OverQuota, 100);
    let over_quota = ClientError::Job(JobError::OverQuota);
    assert_eq!(pool.ends(), [(3, Err(over_quota.clone()))]);
    assert_eq!(pool.submit(4, 1000), Err(over_quota), "the reason stays");
}

#[test]
fn node_that_says_it_without_the_feature_loses_its_connection() {
    let (mut pool, node, _) = Pool::new(1).with_job();
    let wait = Duration::from_millis(1);
    pool.say(node, &NodeMessage::RetryAfter { handle: 1, wait });
    assert_eq!(pool.dispatcher.poll_close(), Some(node));
}

#[test]
fn pause_of_a_key_that_is_closed_changes_nothing() {
    let (mut pool, node, job) = Pool::told(1).with_job();
    let wait = Duration::from_millis(100);
    pool.say(node, &NodeMessage::RetryAfter { handle: 77, wait });
    pool.answer(node, &job, good());
    assert_eq!(pool.ends(), [(1, Ok(()))]);
    pool.submit(2, 50).expect("taken");
    assert_eq!(pool.serve_keys(node).len(), 1);
}
