// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Several nodes, some of which fail: jobs go where they can be done, a bounded number of times.

mod fake;

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use fake::{
    Auto, FakeNode, Peer, SIGN, SOON, Seen, assert_answered, config, digest, import, is_answer,
    open, pool, soon, start_call,
};
use millrace_client::{
    ClientError, Endpoint, Hedge, KeyRefusal, NodeReply, Pool, PoolConfig, RemoteKey,
};
use millrace_operation::JobError;
use millrace_wire::{NodeMessage, SubmittedJob};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

type Ends = Receiver<(u64, Result<NodeReply, ClientError>)>;

fn submit_many(pool: &Pool, key: &RemoteKey, count: u64, deadline: Instant) -> Ends {
    let (done, ended) = channel();
    for number in 0..count {
        let done = done.clone();
        let tell = move |result| drop(done.send((number, result)));
        pool.submit(key, SIGN, digest(number), deadline, Box::new(tell)).expect("taken");
    }
    ended
}

fn expect_all(ended: &Ends, count: u64) {
    for _ in 0..count {
        let (number, result) = ended.recv_timeout(SOON).expect("every job ends");
        assert!(is_answer(&digest(number), &result.expect("an answer")));
    }
    assert!(ended.try_recv().is_err(), "a job ended twice");
}

/// Two nodes that answer no job by themselves.
struct TwoNodes {
    one: FakeNode,
    two: FakeNode,
    _folder: tempfile::TempDir,
}

impl TwoNodes {
    fn both(&self) -> [&FakeNode; 2] {
        [&self.one, &self.two]
    }
}

/// Two nodes, a pool that is connected to both, and a key that is open at one of them.
fn two_nodes() -> (TwoNodes, Pool, RemoteKey) {
    let folder = folder();
    let start = |name| FakeNode::start(&folder.path().join(name), Auto::NO_JOBS);
    let nodes = TwoNodes { one: start("one"), two: start("two"), _folder: folder };
    let pool = pool(&nodes.both());
    let key = open(&pool);
    both_connected(&pool);
    (nodes, pool, key)
}

/// Waits until the pool is connected to each of its nodes.
fn both_connected(pool: &Pool) {
    let give_up = soon();
    while !pool.stats().nodes.iter().all(|node| node.connected) {
        assert!(Instant::now() < give_up, "the nodes should be connected");
        thread::yield_now();
    }
}

/// The jobs that came to either node, with the node they came to.
fn collect(nodes: [&FakeNode; 2], count: usize) -> Vec<(usize, Peer, SubmittedJob)> {
    let mut jobs = Vec::new();
    let give_up = soon();
    while jobs.len() < count {
        assert!(Instant::now() < give_up, "the nodes should have got {count} jobs");
        for (at, node) in nodes.iter().enumerate() {
            while let Ok(seen) = node.seen.recv_timeout(Duration::from_millis(1)) {
                if let Seen::Job(peer, job) = seen {
                    jobs.push((at, peer, job));
                }
            }
        }
    }
    jobs
}

#[test]
fn load_is_spread_over_healthy_nodes() {
    let (nodes, pool, key) = two_nodes();
    // Without answers no latency is known, so the shorter queue decides.
    let ended = submit_many(&pool, &key, 1000, soon());
    let jobs = collect(nodes.both(), 1000);
    let at_one = jobs.iter().filter(|(node, ..)| *node == 0).count();
    assert!((499..=501).contains(&at_one), "{at_one} of 1000 at the first node");
    for (_, peer, job) in &jobs {
        peer.answer(job);
    }
    expect_all(&ended, 1000);
}

#[test]
fn jobs_of_a_node_that_dies_are_done_by_the_other() {
    const JOBS: usize = 200;
    let (mut nodes, pool, key) = two_nodes();
    let ended = submit_many(&pool, &key, JOBS as u64, soon());
    let jobs = collect(nodes.both(), JOBS);
    let at_one = jobs.iter().filter(|(node, ..)| *node == 0).count();
    assert!(at_one > 0 && at_one < JOBS, "{at_one} of {JOBS} jobs at the first node");
    nodes.one.kill();
    for (_, peer, job) in jobs.iter().filter(|(node, ..)| *node == 1) {
        peer.answer(job);
    }
    for _ in 0..at_one {
        let (peer, job) = nodes.two.next_job();
        peer.answer(&job);
    }
    expect_all(&ended, JOBS as u64);
    assert_eq!(pool.stats().totals.retries.connection_lost, at_one as u64);
}

#[test]
fn blocked_caller_gets_its_answer_although_its_node_died() {
    let (mut nodes, pool, key) = two_nodes();
    let caller = start_call(&pool, &key, 1);
    let first = collect(nodes.both(), 1).remove(0).0;
    let survivor = if first == 0 {
        nodes.one.kill();
        &nodes.two
    } else {
        nodes.two.drop_connections();
        &nodes.one
    };
    let (peer, job) = survivor.next_job();
    peer.answer(&job);
    assert_answered(1, caller);
}

#[test]
fn job_that_a_node_declines_is_done_by_the_other() {
    let (nodes, pool, key) = two_nodes();
    for reason in [JobError::Busy, JobError::Failed, JobError::NotOffered] {
        let ended = submit_many(&pool, &key, 1, soon());
        let (at, peer, job) = collect(nodes.both(), 1).remove(0);
        peer.fail(&job, reason);
        let (other, peer, job) = collect(nodes.both(), 1).remove(0);
        assert_ne!(at, other, "{reason}");
        peer.answer(&job);
        expect_all(&ended, 1);
    }
    let retries = pool.stats().totals.retries;
    assert_eq!((retries.busy, retries.failed, retries.not_offered), (1, 1, 1));
}

#[test]
fn error_that_every_node_gives_is_final() {
    for reason in [JobError::Denied, JobError::BadInput, JobError::Expired, JobError::OverQuota] {
        let (nodes, pool, key) = two_nodes();
        let ended = submit_many(&pool, &key, 1, soon());
        for _ in 0..2 {
            let (_, peer, job) = collect(nodes.both(), 1).remove(0);
            peer.fail(&job, reason);
        }
        let (_, result) = ended.recv_timeout(SOON).expect("an end");
        assert_eq!(result.err(), Some(ClientError::Job(reason)));
    }
}

#[test]
fn error_that_one_node_gives_is_not_the_pools() {
    for reason in [JobError::Denied, JobError::BadInput, JobError::Expired, JobError::OverQuota] {
        let (nodes, pool, key) = two_nodes();
        let ended = submit_many(&pool, &key, 1, soon());
        let (_, peer, job) = collect(nodes.both(), 1).remove(0);
        peer.fail(&job, reason);
        let (_, peer, job) = collect(nodes.both(), 1).remove(0);
        peer.answer(&job);
        expect_all(&ended, 1);
    }
}

#[test]
fn job_ends_as_busy_if_every_node_is_busy() {
    let (nodes, pool, key) = two_nodes();
    let ended = submit_many(&pool, &key, 1, soon());
    for _ in 0..2 {
        let (_, peer, job) = collect(nodes.both(), 1).remove(0);
        peer.fail(&job, JobError::Busy);
    }
    let (_, result) = ended.recv_timeout(SOON).expect("an end");
    assert_eq!(result.err(), Some(ClientError::Job(JobError::Busy)));
}

#[test]
fn retries_stay_within_their_budget_under_overload() {
    const JOBS: u64 = 300;
    let (nodes, pool, key) = two_nodes();
    let ended = submit_many(&pool, &key, JOBS, soon());
    let mut answered = 0;
    let mut ends = 0;
    while ends < JOBS {
        for node in nodes.both() {
            while let Ok(seen) = node.seen.recv_timeout(Duration::from_millis(1)) {
                if let Seen::Job(peer, job) = seen {
                    peer.fail(&job, JobError::Busy);
                    answered += 1;
                }
            }
        }
        ends += ended.try_iter().count() as u64;
    }
    // One retry for ten jobs, and ten to begin with.
    assert!(answered <= JOBS + JOBS / 10 + 10, "{answered} answers to {JOBS} jobs");
    assert!(pool.stats().totals.budget_exhausted > 0);
}

#[test]
fn draining_node_finishes_its_jobs_and_gets_no_new_ones() {
    let (nodes, pool, key) = two_nodes();
    let ended = submit_many(&pool, &key, 50, soon());
    let jobs = collect(nodes.both(), 50);
    let Some((_, drained, _)) = jobs.iter().find(|(node, ..)| *node == 0) else {
        panic!("50 jobs should reach both nodes");
    };
    drained.send(&NodeMessage::Drain);
    let give_up = soon();
    while !pool.stats().nodes[0].draining {
        assert!(Instant::now() < give_up);
        thread::yield_now();
    }
    let more = submit_many(&pool, &key, 50, soon());
    for _ in 0..50 {
        let (peer, job) = nodes.two.next_job();
        peer.answer(&job);
    }
    expect_all(&more, 50);
    for (_, peer, job) in &jobs {
        peer.answer(job);
    }
    expect_all(&ended, 50);
    nodes.one.wait_for(|seen| matches!(seen, Seen::Closed).then_some(()));
}

#[test]
fn node_without_the_key_gets_no_job() {
    let folder = folder();
    let one = FakeNode::start(&folder.path().join("one"), Auto::NO_KEYS);
    let two = FakeNode::start(&folder.path().join("two"), Auto::ALL);
    let refuser = thread::spawn(move || {
        // Refuses each request for the key.
        while let Ok(seen) = one.seen.recv() {
            match seen {
                Seen::OpenKey(peer, request, _) => peer.refuse(request, KeyRefusal::NoSuchKey),
                Seen::Closed => return,
                _ => {}
            }
        }
    });
    let endpoints = ["one", "two"].map(|name| Endpoint::Unix(folder.path().join(name)));
    let pool = Pool::new(PoolConfig::new(endpoints.to_vec()).health(SOON, SOON));
    let key = open(&pool);
    both_connected(&pool);
    for number in 0..50 {
        let reply = pool.call(&key, &SIGN, &digest(number), soon()).expect("an answer");
        assert!(is_answer(&digest(number), &reply));
    }
    assert_eq!(pool.stats().nodes[0].counters.jobs, 0);
    pool.shutdown();
    refuser.join().expect("no panic");
    drop(two);
}

#[test]
fn node_with_another_key_of_the_same_name_is_not_used() {
    let folder = folder();
    let mut one = FakeNode::start_named(&folder.path().join("one"), Auto::ALL, "one", 1);
    let pool = Pool::new(config(&[&one]));
    let key = open(&pool);
    pool.call(&key, &SIGN, &digest(1), soon()).expect("an answer");
    one.kill();
    let two = FakeNode::start_named(&one.path, Auto::ALL, "two", 2);
    let give_up = soon();
    let error = loop {
        match pool.call(&key, &SIGN, &digest(2), give_up) {
            Err(ClientError::NoNode(_)) if Instant::now() < give_up => thread::yield_now(),
            other => break other.expect_err("the key of `two` is another one"),
        }
    };
    assert_eq!(error, ClientError::Key(KeyRefusal::NoSuchKey));
    two.wait_for(|seen| matches!(seen, Seen::CloseKey(1)).then_some(()));
}

#[test]
fn node_that_hangs_is_replaced_before_the_deadline() {
    let folder = folder();
    let hanging = FakeNode::start(&folder.path().join("hanging"), Auto::SILENT);
    let other = FakeNode::start(&folder.path().join("other"), Auto::ALL);
    // Long enough that the other one does not seem to hang on a busy machine.
    let short = Duration::from_millis(250);
    let pool = Pool::new(config(&[&hanging, &other]).health(short, short));
    let key = open(&pool);
    both_connected(&pool);
    // The first job that comes to the one that hangs is done by the other.
    while pool.stats().nodes[0].counters.jobs == 0 {
        let ended = submit_many(&pool, &key, 1, soon());
        expect_all(&ended, 1);
    }
    hanging.wait_for(|seen| matches!(seen, Seen::Ping(..)).then_some(()));
    assert!(pool.stats().nodes[0].last_error.contains("silent"), "{:?}", pool.stats());
}

#[test]
fn node_that_never_sends_welcome_is_given_up() {
    let folder = folder();
    let mute = FakeNode::start(&folder.path().join("mute"), Auto::MUTE);
    let pool = Pool::new(config(&[&mute]).connect_timeout(Duration::from_millis(30)));
    let error = import(&pool).expect_err("no welcome");
    assert!(matches!(&error, ClientError::NoNode(why) if why.contains("welcome")), "{error}");
}

#[test]
fn job_that_kills_its_nodes_kills_three() {
    let folder = folder();
    let nodes: Vec<_> = (0..5)
        .map(|n| FakeNode::start(&folder.path().join(n.to_string()), Auto::NO_JOBS))
        .collect();
    let all: Vec<_> = nodes.iter().collect();
    let pool = pool(&all);
    let key = open(&pool);
    both_connected(&pool);
    let ended = submit_many(&pool, &key, 1, soon());
    let mut killed = 0;
    let result = loop {
        for node in &nodes {
            if let Ok(Seen::Job(peer, _)) = node.seen.recv_timeout(Duration::from_millis(1)) {
                peer.close();
                killed += 1;
            }
        }
        if let Ok((_, result)) = ended.try_recv() {
            break result;
        }
    };
    assert!(matches!(result, Err(ClientError::NoNode(_))), "{result:?}");
    assert_eq!(killed, 3);
}

#[test]
fn slow_job_is_hedged_and_answered_by_the_other_node() {
    let folder = folder();
    let slow = FakeNode::start(&folder.path().join("slow"), Auto::NO_JOBS);
    let fast = FakeNode::start(&folder.path().join("fast"), Auto::ALL);
    // Long enough that the fast one answers before, also on a busy machine.
    let hedge = Hedge::After(Duration::from_secs(1));
    // As a blocked caller with a key that the nodes hold.
    let pool = Pool::new(config(&[&slow, &fast]).hedge(hedge));
    let named = open(&pool);
    both_connected(&pool);
    hedged_once(&pool, |number| {
        let reply = pool.call(&named, &SIGN, &digest(number), soon());
        assert!(is_answer(&digest(number), &reply.expect("an answer")));
    });
    let (peer, job) = slow.next_job();
    let cancelled = slow.wait_for(|seen| match seen {
        Seen::Cancel(job) => Some(job),
        _ => None,
    });
    assert_eq!(cancelled, job.id);
    // The answer crossed the cancel: it is counted as a late reply.
    peer.answer(&job);
    // As a callback with an imported key, by another pool, which has not measured the latency of either
    // node.
    let pool = Pool::new(config(&[&slow, &fast]).hedge(hedge));
    let imported = import(&pool).expect("the key opens");
    both_connected(&pool);
    hedged_once(&pool, |_| {
        let ended = submit_many(&pool, &imported, 1, soon());
        expect_all(&ended, 1);
    });
    slow.next_job();
}

/// Runs jobs until the slow node got one and its hedge was answered by the other node.
fn hedged_once(pool: &Pool, job: impl Fn(u64)) {
    let mut number = 0;
    while pool.stats().totals.hedge_wins == 0 {
        number += 1;
        job(number);
        assert!(number < 10_000, "the slow node should get a job sometimes");
    }
    let totals = pool.stats().totals;
    assert_eq!(totals.succeeded, totals.jobs);
    assert_eq!((totals.hedges, totals.hedge_losses), (1, 0));
    assert_eq!(totals.timed_out + totals.failed, 0);
}
