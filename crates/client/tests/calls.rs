// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One node, well or ill behaved: every job ends exactly once.

mod fake;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use fake::{
    Auto, FakeNode, SIGN, SOON, Seen, assert_answered, completion, digest, import, is_answer, open,
    pool, soon, start_call,
};
use millrace_client::{ClientError, Endpoint, KeyRefusal, KeySelector, Pool, PoolConfig};
use millrace_operation::{JobError, PrivateKey};
use millrace_wire::{JobCompletion, Message, NodeMessage};
use zeroize::Zeroizing;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[test]
fn call_is_answered_by_its_node() {
    let node = FakeNode::alone(Auto::ALL);
    let pool = pool(&[&node]);
    let key = open(&pool);
    for number in 0..100 {
        let reply = pool.call(&key, &SIGN, &digest(number), soon()).expect("an answer");
        assert!(is_answer(&digest(number), &reply));
        assert_eq!(&*reply.node, "fake");
        assert_eq!(reply.service_time, Duration::from_micros(20));
    }
    let stats = pool.stats();
    assert_eq!((stats.totals.jobs, stats.totals.succeeded, stats.in_flight), (100, 100, 0));
    assert_eq!(stats.nodes[0].counters.jobs, 100);
}

#[test]
fn each_callback_is_called_once_in_any_order() {
    let node = FakeNode::alone(Auto::NO_JOBS);
    let pool = pool(&[&node]);
    let key = open(&pool);
    let (done, ended) = channel();
    for number in 0..20 {
        let done = done.clone();
        let tell = move |result: Result<_, _>| done.send((number, result)).expect("open");
        pool.submit(&key, SIGN, digest(number), soon(), Box::new(tell)).expect("taken");
    }
    let mut jobs: Vec<_> = (0..20).map(|_| node.next_job()).collect();
    jobs.reverse();
    for (peer, job) in &jobs {
        peer.answer(job);
        // Again: it is not owed any more.
        peer.answer(job);
    }
    for expected in (0..20).rev() {
        let (number, result) = ended.recv_timeout(SOON).expect("a callback");
        assert_eq!(number, expected);
        assert!(is_answer(&digest(number), &result.expect("an answer")));
    }
    // A round trip, after which everything sent before has been read.
    let last = start_call(&pool, &key, 99);
    let (peer, job) = node.next_job();
    peer.answer(&job);
    last.join().expect("no panic").expect("an answer");
    assert!(ended.try_recv().is_err(), "a callback came twice");
    assert_eq!(pool.stats().totals.stray_completions, 20);
}

#[test]
fn completions_of_unknown_jobs_end_no_job() {
    let node = FakeNode::alone(Auto::NO_JOBS);
    let pool = pool(&[&node]);
    let key = open(&pool);
    let caller = start_call(&pool, &key, 1);
    let (peer, job) = node.next_job();
    for id in [0u64, 1, u64::MAX, job.id + 1, job.id ^ (1 << 40), job.id ^ (1 << 20)] {
        peer.send(&NodeMessage::Complete(vec![JobCompletion { id, ..completion(&job) }]));
    }
    peer.answer(&job);
    assert_answered(1, caller);
}

#[test]
fn half_a_frame_is_kept_until_the_rest_comes() {
    let node = FakeNode::alone(Auto::NO_JOBS);
    let pool = pool(&[&node]);
    let key = open(&pool);
    let caller = start_call(&pool, &key, 1);
    let (peer, job) = node.next_job();
    let mut bytes = Vec::new();
    NodeMessage::Complete(vec![completion(&job)]).encode(&mut bytes);
    for byte in bytes {
        peer.send_raw(&[byte]);
    }
    assert_answered(1, caller);
}

#[test]
fn callers_of_a_silent_node_return_at_their_deadline() {
    let node = FakeNode::alone(Auto::SILENT);
    let pool = pool(&[&node]);
    let key = open(&pool);
    // Far enough away for both jobs to reach the node before, also on a busy machine.
    let deadline = Instant::now() + Duration::from_secs(2);
    let (done, ended) = channel();
    let tell = move |result: Result<_, _>| done.send(result.map(drop)).expect("open");
    pool.submit(&key, SIGN, digest(1), deadline, Box::new(tell)).expect("taken");
    assert_eq!(pool.call(&key, &SIGN, &digest(2), deadline).err(), Some(ClientError::TimedOut));
    assert_eq!(ended.recv_timeout(SOON), Ok(Err(ClientError::TimedOut)));
    assert!(Instant::now() >= deadline);
    // The node is asked to stop; its later answer is counted as a late reply.
    let mut jobs = Vec::new();
    let mut cancels = 0;
    while cancels < 2 {
        match node.next() {
            Seen::Job(peer, job) => jobs.push((peer, job)),
            Seen::Cancel(_) => cancels += 1,
            _ => {}
        }
    }
    assert_eq!(pool.stats().in_flight, 2, "what the node owes stays counted");
    for (peer, job) in &jobs {
        peer.answer(job);
    }
    let caller = start_call(&pool, &key, 3);
    let (peer, job) = node.next_job();
    peer.answer(&job);
    assert_answered(3, caller);
    let stats = pool.stats();
    assert_eq!((stats.totals.late_completions, stats.in_flight), (2, 0));
}

#[test]
fn job_with_a_past_deadline_is_not_sent() {
    let node = FakeNode::alone(Auto::ALL);
    let pool = pool(&[&node]);
    let key = open(&pool);
    let past = Instant::now();
    assert_eq!(pool.call(&key, &SIGN, &digest(1), past).err(), Some(ClientError::TimedOut));
    assert_eq!(pool.stats().nodes[0].counters.jobs, 0);
}

#[test]
fn garbage_ends_the_connection_and_the_next_one_works() {
    let node = FakeNode::alone(Auto::NO_JOBS);
    let pool = pool(&[&node]);
    let key = open(&pool);
    let caller = start_call(&pool, &key, 1);
    let (peer, _) = node.next_job();
    peer.send_raw(&[0xff; 64]);
    let give_up = soon();
    while !caller.is_finished() {
        assert!(Instant::now() < give_up, "the caller should get the error");
        // A connection that was good for a second, as it may be on a slow machine, is replaced at once,
        // and the job comes again.
        if let Ok(Seen::Job(peer, _)) = node.seen.recv_timeout(Duration::from_millis(1)) {
            peer.send_raw(&[0xff; 64]);
        }
    }
    let error = caller.join().expect("no panic").expect_err("no answer");
    assert!(
        matches!(&error, ClientError::NoNode(why) if why.contains("broke the protocol")),
        "{error}"
    );
    assert!(error.fall_back());
    retry_until_served(&pool, &key, &node);
}

/// Calls until the node, connected again, gets the job, and answers it.
fn retry_until_served(pool: &Pool, key: &millrace_client::RemoteKey, node: &FakeNode) {
    let caller = {
        let (pool, key) = (pool.clone(), key.clone());
        thread::spawn(move || {
            let give_up = soon();
            loop {
                match pool.call(&key, &SIGN, &digest(7), give_up) {
                    Err(ClientError::NoNode(_)) if Instant::now() < give_up => thread::yield_now(),
                    other => return other,
                }
            }
        })
    };
    let (peer, job) = node.next_job();
    peer.answer(&job);
    assert_answered(7, caller);
}

#[test]
fn own_key_fails_at_once_if_no_node_can_be_reached() {
    let folder = folder();
    let missing = Endpoint::Unix(folder.path().join("absent"));
    let pool = Pool::new(PoolConfig::new(vec![missing]));
    let error = import(&pool).expect_err("no node");
    assert!(matches!(&error, ClientError::NoNode(why) if why.contains("absent")), "{error}");
    assert!(pool.stats().totals.no_node >= 1);
}

#[test]
fn calls_with_an_own_key_fail_at_once_while_the_node_is_down() {
    let folder = folder();
    let path = folder.path().join("node");
    let mut node = FakeNode::start(&path, Auto::ALL);
    let pool = pool(&[&node]);
    let key = import(&pool).expect("the key opens");
    node.kill();
    let give_up = soon();
    // Until the loss is noticed the call may be on its way; it ends as soon as it is.
    let error = pool.call(&key, &SIGN, &digest(1), give_up).expect_err("no node");
    assert!(matches!(error, ClientError::NoNode(_)), "{error}");
    assert!(Instant::now() < give_up);
    drop(node);
    let node = FakeNode::start(&path, Auto::NO_JOBS);
    retry_until_served(&pool, &key, &node);
}

/// Without its node, a process that has never used it waits, and one that has done so.
#[test]
fn calls_with_a_pool_key_wait_for_the_node() {
    let folder = folder();
    let path = folder.path().join("node");
    let call = |pool: &Pool, key: Option<&millrace_client::RemoteKey>| {
        let (pool, key) = (pool.clone(), key.cloned());
        thread::spawn(move || {
            let key = key.unwrap_or_else(|| open(&pool));
            let reply = pool.call(&key, &SIGN, &digest(1), soon());
            assert!(is_answer(&digest(1), &reply.expect("an answer")));
        })
    };
    let endpoint = Endpoint::Unix(path.clone());
    let fresh = Pool::new(PoolConfig::new(vec![endpoint]));
    let first = call(&fresh, None);
    failed_attempts(&fresh, 3);
    let mut node = FakeNode::start(&path, Auto::ALL);
    first.join().expect("it has waited");
    // The only node restarts, twice.
    let pool = pool(&[&node]);
    let key = open(&pool);
    for _ in 0..2 {
        drop(node);
        let (blocked, (done, ended)) = (call(&pool, Some(&key)), channel());
        let tell = move |result: Result<_, _>| done.send(result.is_ok()).expect("open");
        pool.submit(&key, SIGN, digest(2), soon(), Box::new(tell)).expect("it waits");
        failed_attempts(&pool, 3);
        node = FakeNode::start(&path, Auto::ALL);
        blocked.join().expect("it has waited");
        assert_eq!(ended.recv_timeout(SOON), Ok(true));
    }
}

/// Waits until as many further attempts to connect have failed.
fn failed_attempts(pool: &Pool, count: u64) {
    let failures = || {
        let nodes = pool.stats().nodes;
        nodes.first().map_or(0, |node| node.counters.connect_failures)
    };
    let (goal, give_up) = (failures() + count, soon());
    while failures() < goal {
        assert!(Instant::now() < give_up, "the node should be tried again");
        thread::yield_now();
    }
}

#[test]
fn refused_key_names_the_reason() {
    let node = FakeNode::alone(Auto::NO_KEYS);
    let pool = pool(&[&node]);
    let opener = {
        let pool = pool.clone();
        thread::spawn(move || pool.open_key(KeySelector::SpkiSha256([7; 32]), soon()))
    };
    let (peer, request) = node.next_open();
    peer.refuse(request, KeyRefusal::NoSuchKey);
    let error = opener.join().expect("no panic").expect_err("no key");
    assert_eq!(error, ClientError::Key(KeyRefusal::NoSuchKey));
    assert_eq!(pool.stats().keys, 0);
}

#[test]
fn imported_key_arrives_unchanged_and_is_closed_when_dropped() {
    let node = FakeNode::alone(Auto::NO_KEYS);
    let pool = pool(&[&node]);
    let importer = {
        let pool = pool.clone();
        let key = PrivateKey::from_pkcs8(Zeroizing::new(vec![0x30; 700]));
        thread::spawn(move || pool.import_key(key, soon()))
    };
    let (peer, request) = node.wait_for(|seen| match seen {
        Seen::Import(peer, request, bytes) => {
            assert_eq!(bytes, vec![0x30; 700]);
            Some((peer, request))
        }
        _ => None,
    });
    peer.open(request, 42);
    let key = importer.join().expect("no panic").expect("open");
    assert_eq!(pool.stats().keys, 1);
    let clone = key.clone();
    drop(key);
    assert_eq!(pool.stats().keys, 1);
    drop(clone);
    node.wait_for(|seen| matches!(seen, Seen::CloseKey(42)).then_some(()));
    assert_eq!(pool.stats().keys, 0);
}

#[test]
fn key_that_the_node_forgot_is_opened_again() {
    let folder = folder();
    let auto = Auto { keys: false, jobs: false, ..Auto::ALL };
    let node = FakeNode::start(&folder.path().join("node"), auto);
    let pool = pool(&[&node]);
    let caller = {
        let pool = pool.clone();
        thread::spawn(move || {
            let key = open(&pool);
            pool.call(&key, &SIGN, &digest(1), soon())
        })
    };
    let (peer, request) = node.next_open();
    peer.open(request, 5);
    let (peer, job) = node.next_job();
    assert_eq!(job.key, 5);
    peer.fail(&job, JobError::NoSuchKey);
    let (peer, request) = node.next_open();
    peer.open(request, 6);
    let (peer, job) = node.next_job();
    assert_eq!(job.key, 6);
    peer.answer(&job);
    caller.join().expect("no panic").expect("an answer");
    assert_eq!(pool.stats().totals.retries.no_such_key, 1);
}

#[test]
fn job_beyond_max_in_flight_is_refused_at_once() {
    let node = FakeNode::alone(Auto::NO_JOBS);
    let pool = Pool::new(fake::config(&[&node]).max_in_flight(3));
    let key = open(&pool);
    let (done, ended) = channel();
    for number in 0..3 {
        let done = done.clone();
        let tell = move |result: Result<_, _>| done.send(result.is_ok()).expect("open");
        pool.submit(&key, SIGN, digest(number), soon(), Box::new(tell)).expect("taken");
    }
    let refused = pool.submit(&key, SIGN, digest(4), soon(), Box::new(|_| panic!("not taken")));
    assert_eq!(refused, Err(ClientError::Busy));
    assert_eq!(pool.call(&key, &SIGN, &digest(5), soon()).err(), Some(ClientError::Busy));
    for _ in 0..3 {
        let (peer, job) = node.next_job();
        peer.answer(&job);
        assert_eq!(ended.recv_timeout(SOON), Ok(true));
    }
}

#[test]
fn bad_input_never_leaves_the_process() {
    let node = FakeNode::alone(Auto::ALL);
    let pool = pool(&[&node]);
    let key = open(&pool);
    let error = pool.call(&key, &SIGN, &[0; 31], soon()).expect_err("too short");
    assert_eq!(error, ClientError::Job(JobError::BadInput));
    assert_eq!(pool.stats().totals.jobs, 0);
}

#[test]
fn cancelled_job_ends_as_cancelled() {
    let node = FakeNode::alone(Auto::NO_JOBS);
    let pool = pool(&[&node]);
    let key = open(&pool);
    let (done, ended) = channel();
    let tell = move |result: Result<_, _>| done.send(result.map(drop)).expect("open");
    let ticket = pool.submit(&key, SIGN, digest(1), soon(), Box::new(tell)).expect("taken");
    let (peer, job) = node.next_job();
    pool.cancel(ticket);
    pool.cancel(ticket);
    assert_eq!(ended.recv_timeout(SOON), Ok(Err(ClientError::Cancelled)));
    node.wait_for(|seen| matches!(seen, Seen::Cancel(id) if id == job.id).then_some(()));
    peer.fail(&job, JobError::Cancelled);
    assert!(ended.recv_timeout(SOON).is_err(), "the callback was dropped");
}

#[test]
fn panic_in_a_callback_is_counted_and_other_jobs_go_on() {
    let node = FakeNode::alone(Auto::ALL);
    let pool = pool(&[&node]);
    let key = open(&pool);
    pool.submit(&key, SIGN, digest(1), soon(), Box::new(|_| panic!("on purpose"))).expect("taken");
    let (done, ended) = channel();
    let tell = move |result: Result<_, _>| done.send(result.is_ok()).expect("open");
    pool.submit(&key, SIGN, digest(2), soon(), Box::new(tell)).expect("taken");
    assert_eq!(ended.recv_timeout(SOON), Ok(true));
    pool.call(&key, &SIGN, &digest(3), soon()).expect("an answer");
    // It is counted when the callbacks that came with it have been called, too.
    pool.shutdown();
    assert_eq!(pool.stats().totals.callback_panics, 1);
}

#[test]
fn callback_may_use_the_pool() {
    let node = FakeNode::alone(Auto::ALL);
    let pool = pool(&[&node]);
    let key = open(&pool);
    let (done, ended) = channel();
    let (inner_pool, inner_key) = (pool.clone(), key.clone());
    let first = move |_: Result<_, _>| {
        inner_pool.call(&inner_key, &SIGN, &digest(2), soon()).expect("a call from a callback");
        let tell = move |result: Result<_, _>| done.send(result.is_ok()).expect("open");
        inner_pool.submit(&inner_key, SIGN, digest(3), soon(), Box::new(tell)).expect("taken");
    };
    pool.submit(&key, SIGN, digest(1), soon(), Box::new(first)).expect("taken");
    assert_eq!(ended.recv_timeout(SOON), Ok(true));
}

#[test]
fn eight_threads_call_and_submit_at_once() {
    const THREADS: usize = 8;
    const CALLS: usize = 300;
    const SUBMITS: usize = 1250;
    let node = FakeNode::alone(Auto::ALL);
    let pool = Pool::new(fake::config(&[&node]).max_in_flight(20_000));
    let key = open(&pool);
    let ended = Arc::new(AtomicUsize::new(0));
    let (finished, all) = channel();
    let start = Arc::new(Barrier::new(THREADS));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (pool, key, ended) = (pool.clone(), key.clone(), Arc::clone(&ended));
            let (start, finished) = (Arc::clone(&start), finished.clone());
            thread::spawn(move || {
                start.wait();
                for number in 0..SUBMITS {
                    let input = digest((thread << 32 | number) as u64);
                    let (ended, finished) = (Arc::clone(&ended), finished.clone());
                    let wanted = input.clone();
                    let tell = move |result: Result<millrace_client::NodeReply, _>| {
                        assert!(is_answer(&wanted, &result.expect("an answer")));
                        if ended.fetch_add(1, Ordering::Relaxed) + 1 == THREADS * SUBMITS {
                            finished.send(()).expect("open");
                        }
                    };
                    pool.submit(&key, SIGN, input, soon(), Box::new(tell)).expect("taken");
                    if number % (SUBMITS / CALLS) == 0 {
                        let input = digest((thread << 40 | number) as u64);
                        let reply = pool.call(&key, &SIGN, &input, soon()).expect("an answer");
                        assert!(is_answer(&input, &reply));
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no wrong answer");
    }
    all.recv_timeout(SOON).expect("every callback");
    let totals = pool.stats().totals;
    assert_eq!(totals.callback_panics, 0);
    assert_eq!(totals.jobs, totals.succeeded);
    assert_eq!(pool.stats().in_flight, 0);
}

#[test]
fn eight_blocked_callers_hand_the_lead_on() {
    let node = FakeNode::alone(Auto::ALL);
    let pool = pool(&[&node]);
    let key = open(&pool);
    let threads: Vec<_> = (0..8u64)
        .map(|thread| {
            let (pool, key) = (pool.clone(), key.clone());
            thread::spawn(move || {
                for number in 0..500 {
                    let input = digest(thread << 32 | number);
                    let reply = pool.call(&key, &SIGN, &input, soon()).expect("an answer");
                    assert!(is_answer(&input, &reply));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no wrong answer");
    }
    assert_eq!(pool.stats().totals.succeeded, 4000);
}

#[test]
fn shutdown_ends_every_job() {
    let node = FakeNode::alone(Auto::NO_JOBS);
    let pool = pool(&[&node]);
    let key = open(&pool);
    let (done, ended) = channel();
    let tell = move |result: Result<_, _>| done.send(result.map(drop)).expect("open");
    pool.submit(&key, SIGN, digest(1), soon(), Box::new(tell)).expect("taken");
    let caller = {
        let (pool, key) = (pool.clone(), key.clone());
        thread::spawn(move || pool.call(&key, &SIGN, &digest(2), soon()).map(drop))
    };
    for _ in 0..2 {
        node.next_job();
    }
    pool.shutdown();
    assert_eq!(ended.recv_timeout(SOON), Ok(Err(ClientError::Closed)));
    assert_eq!(caller.join().expect("no panic"), Err(ClientError::Closed));
    assert_eq!(pool.call(&key, &SIGN, &digest(3), soon()).err(), Some(ClientError::Closed));
    pool.shutdown();
}

#[test]
fn key_of_another_pool_is_refused() {
    let node = FakeNode::alone(Auto::ALL);
    let (one, other) = (pool(&[&node]), pool(&[&node]));
    let key = open(&one);
    assert_eq!(other.call(&key, &SIGN, &digest(1), soon()).err(), Some(ClientError::ForeignKey));
}
