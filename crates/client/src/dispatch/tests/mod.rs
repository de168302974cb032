// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The pool without I/O, with time and the order of events under control. How jobs end when nodes
//! misbehave is tested over sockets in `tests/`, and over random schedules in [`simulation`].

mod hedging;
mod judging;
mod retry_after;
mod simulation;

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use millrace_operation::{
    Curve, Hash, JobError, KeyInfo, KeyType, MlDsaInput, Operation, OperationSet, Output,
    PrivateKey,
};
use millrace_wire::{
    ClientMessage, Decoder, EdgeCounter, EdgeReport, FEATURE_ML_DSA, JobCompletion, KeyRefusal,
    KeySelector, Message, NodeMessage, SubmittedJob, Welcome,
};
use zeroize::Zeroizing;

use super::*;
use crate::config::Endpoint;
use crate::job::JobRequest;
use crate::key::KeySource;
use crate::report::ReportSource;

struct Pool {
    dispatcher: Dispatcher,
    now: Instant,
    key: Arc<KeyData>,
    ends: Receiver<(u32, Result<NodeReply, ClientError>)>,
    tell: std::sync::mpsc::Sender<(u32, Result<NodeReply, ClientError>)>,
    features: u64,
}

impl Pool {
    fn new(nodes: usize) -> Self {
        let nodes = (0..nodes).map(|n| Endpoint::Unix(format!("/{n}").into())).collect();
        let now = Instant::now();
        let selector = KeySelector::Name("site".to_owned());
        let (tell, ends) = channel();
        Self {
            dispatcher: Dispatcher::new(&PoolConfig::new(nodes), now),
            now,
            key: Arc::new(KeyData::new(KeySource::Selector(selector))),
            ends,
            tell,
            features: 0,
        }
    }

    /// A pool whose key this process holds, too.
    fn importing(nodes: usize) -> Self {
        let key = PrivateKey::from_pkcs8(Zeroizing::new(vec![0x30; 100]));
        Self { key: Arc::new(KeyData::new(KeySource::Import(key))), ..Self::new(nodes) }
    }

    /// A pool whose edge counts in `counts`, with nodes that want reports.
    fn reporting(nodes: usize, counts: &Arc<Mutex<EdgeReport>>) -> Self {
        let mut pool = Self::new(nodes);
        let counts = Arc::clone(counts);
        let source = ReportSource::new(move || *counts.lock().expect("no panic"));
        pool.dispatcher.reporter = Some(Reporter::new(source));
        pool.features = FEATURE_REPORTS;
        pool
    }

    /// The reports that were sent to this node.
    fn reports(&mut self, node: usize) -> Vec<EdgeReport> {
        let report = |message| match message {
            ClientMessage::Report(report) => Some(*report),
            _ => None,
        };
        self.sent(node).into_iter().filter_map(report).collect()
    }

    /// A job from beginning to end.
    fn serve_one(&mut self, number: u32) -> usize {
        self.submit(number, 1000).expect("taken");
        let nodes = self.dispatcher.nodes.len();
        let served = (0..nodes).find_map(|node| Some((node, self.serve_keys(node).pop()?)));
        let (node, job) = served.expect("some node has it");
        self.answer(node, &job, good());
        assert_eq!(self.ends(), [(number, Ok(()))]);
        node
    }

    fn submit(&mut self, number: u32, millis: u64) -> Result<JobRef, ClientError> {
        let operation = Operation::EcdsaSign { hash: Hash::Sha256 };
        self.submit_operation(number, millis, operation)
    }

    fn submit_operation(
        &mut self,
        number: u32,
        millis: u64,
        operation: Operation,
    ) -> Result<JobRef, ClientError> {
        let tell = self.tell.clone();
        let recipient =
            Recipient::Callback(Box::new(move |result| drop(tell.send((number, result)))));
        let request = JobRequest::Operation { operation, input: vec![0; 32] };
        let deadline = self.now + Duration::from_millis(millis);
        let job = Job::new(Arc::clone(&self.key), request, recipient, deadline);
        self.dispatcher.submit(job, self.now)
    }

    /// Connects to the next wanted node, which says welcome.
    fn connect(&mut self) -> usize {
        let node = self.dispatcher.poll_connect().expect("a node is wanted");
        self.dispatcher.handle_connected(node, None, self.now);
        self.welcome(node);
        node
    }

    fn welcome(&mut self, node: usize) {
        self.say(
            node,
            &NodeMessage::Welcome(Welcome {
                version: 1,
                features: self.features,
                node: format!("n{node}"),
                max_in_flight: 1000,
                max_keys: 10,
            }),
        );
    }

    /// The next wanted node cannot be reached.
    fn refuse_connection(&mut self) {
        let node = self.dispatcher.poll_connect().expect("a node is wanted");
        let why = "connection refused".to_owned();
        self.dispatcher.handle_lost(node, why, self.now);
    }

    /// Lets time pass by the timers, until a node is wanted. Gives how long that took.
    fn until_wanted(&mut self) -> Duration {
        let start = self.now;
        while !self.dispatcher.wants_connections() {
            let timer = self.dispatcher.poll_timeout().expect("a timer");
            self.now = self.now.max(timer);
            self.dispatcher.handle_timeout(self.now);
        }
        self.now - start
    }

    fn say(&mut self, node: usize, message: &NodeMessage) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        for chunk in bytes.chunks(4096) {
            let connection = self.dispatcher.connection(node).expect("connected");
            connection.space()[..chunk.len()].copy_from_slice(chunk);
            connection.filled(chunk.len(), self.now);
            self.dispatcher.handle_received(node, self.now);
        }
    }

    fn sent(&mut self, node: usize) -> Vec<ClientMessage> {
        let mut decoder = Decoder::<ClientMessage>::new();
        let mut messages = Vec::new();
        let Some(out) = self.dispatcher.poll_output(node) else {
            return messages;
        };
        let bytes = out.pending().to_vec();
        out.consume(bytes.len());
        for chunk in bytes.chunks(1000) {
            decoder.space()[..chunk.len()].copy_from_slice(chunk);
            decoder.filled(chunk.len());
            while let Some(message) = decoder.next().expect("we send what decodes") {
                messages.push(message);
            }
        }
        messages
    }

    /// Opens every key that was asked for; gives the jobs that were sent before and after.
    fn serve_keys(&mut self, node: usize) -> Vec<SubmittedJob> {
        let mut jobs = Vec::new();
        loop {
            let messages = self.sent(node);
            if messages.is_empty() {
                return jobs;
            }
            for message in messages {
                match message {
                    ClientMessage::OpenKey { request, .. }
                    | ClientMessage::ImportKey { request, .. } => self.say(node, &opened(request)),
                    ClientMessage::Submit(more) => jobs.extend(more),
                    _ => {}
                }
            }
        }
    }

    fn answer(&mut self, node: usize, job: &SubmittedJob, result: Result<Output, JobError>) {
        self.say(
            node,
            &NodeMessage::Complete(vec![JobCompletion {
                id: job.id,
                result,
                served_by: None,
                queue_time: Duration::ZERO,
                service_time: Duration::ZERO,
            }]),
        );
    }

    fn tick(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
        self.dispatcher.handle_timeout(self.now);
    }

    /// Calls the callbacks and returns their results.
    fn ends(&mut self) -> Vec<(u32, Result<(), ClientError>)> {
        for (callback, result) in mem::take(&mut self.dispatcher.deliveries().callbacks) {
            callback(result);
        }
        self.ends.try_iter().map(|(number, result)| (number, result.map(drop))).collect()
    }
}

fn opened(request: u32) -> NodeMessage {
    NodeMessage::KeyOpened {
        request,
        handle: 1,
        info: KeyInfo { key_type: KeyType::Ec(Curve::P256), spki: vec![1; 91] },
        operations: OperationSet::new(),
        hashes: millrace_operation::HashAlgorithms::new(),
    }
}

fn good() -> Result<Output, JobError> {
    Ok(Output::new(vec![1, 2, 3]))
}

#[test]
fn first_job_waits_for_the_connection_and_the_key() {
    let mut pool = Pool::new(1);
    assert!(!pool.dispatcher.wants_connections(), "nothing before the first job");
    pool.submit(1, 1000).expect("taken");
    let node = pool.connect();
    let jobs = pool.serve_keys(node);
    assert_eq!(jobs.len(), 1);
    assert!(jobs[0].budget <= Duration::from_secs(1) && !jobs[0].budget.is_zero());
    pool.answer(node, &jobs[0], good());
    assert_eq!(pool.ends(), [(1, Ok(()))]);
    assert_eq!(pool.dispatcher.stats().in_flight, 0);
}

#[test]
fn job_of_an_own_key_fails_at_once_while_every_node_is_in_backoff() {
    let mut pool = Pool::importing(2);
    pool.submit(1, 1000).expect("taken");
    for _ in 0..2 {
        assert!(pool.ends().is_empty(), "one node may still come");
        pool.refuse_connection();
    }
    let ends = pool.ends();
    let [(1, Err(ClientError::NoNode(why)))] = &ends[..] else { panic!("{ends:?}") };
    assert!(why.contains("unix:/0: connection refused; unix:/1: connection refused"), "{why}");
    assert!(matches!(pool.submit(2, 1000), Err(ClientError::NoNode(_))));
    // The next attempt is under way, but the last one failed: no job waits for it.
    pool.tick(60);
    assert!(pool.dispatcher.poll_connect().is_some());
    assert!(matches!(pool.submit(3, 1000), Err(ClientError::NoNode(_))));
}

#[test]
fn job_of_a_pool_key_waits_for_the_node_that_comes_back() {
    let mut pool = Pool::new(1);
    pool.submit(1, 2000).expect("taken");
    let (start, mut attempts) = (pool.now, 0);
    while pool.now < start + Duration::from_millis(1900) {
        pool.refuse_connection();
        attempts += 1;
        let waited = pool.until_wanted();
        assert!(waited <= Duration::from_millis(50), "{waited:?}");
        assert!(pool.ends().is_empty());
    }
    assert!(attempts >= 38, "{attempts} attempts in 1.9 s");
    // A second job does not cost further attempts.
    pool.submit(2, 2000).expect("taken");
    let node = pool.connect();
    assert!(pool.dispatcher.poll_connect().is_none());
    let jobs = pool.serve_keys(node);
    assert_eq!(jobs.len(), 2);
    for job in &jobs {
        pool.answer(node, job, good());
    }
    assert_eq!(pool.ends(), [(1, Ok(())), (2, Ok(()))]);
}

#[test]
fn job_that_waited_in_vain_ends_with_the_errors_of_the_nodes() {
    let mut pool = Pool::new(2);
    pool.submit(1, 1000).expect("taken");
    for _ in 0..2 {
        pool.refuse_connection();
    }
    pool.tick(999);
    assert!(pool.ends().is_empty());
    pool.tick(1);
    let ends = pool.ends();
    let [(1, Err(ClientError::NoNode(why)))] = &ends[..] else { panic!("{ends:?}") };
    assert!(why.contains("unix:/0: connection refused"), "{why}");
    assert_eq!(pool.dispatcher.stats().totals.no_node, 1);
}

#[test]
fn job_waits_for_a_node_that_is_slow_to_say_welcome() {
    let mut pool = Pool::new(1);
    pool.submit(1, 2000).expect("taken");
    pool.refuse_connection();
    pool.until_wanted();
    let node = pool.dispatcher.poll_connect().expect("wanted");
    pool.dispatcher.handle_connected(node, None, pool.now);
    // The kernel has accepted; the node starts.
    pool.tick(1500);
    assert_eq!(pool.dispatcher.poll_close(), None);
    pool.welcome(node);
    let job = pool.serve_keys(node).pop().expect("the job");
    pool.answer(node, &job, good());
    assert_eq!(pool.ends(), [(1, Ok(()))]);
}

#[test]
fn job_that_a_draining_node_declines_waits_for_the_restarted_one() {
    let declines: [fn(&mut Pool, usize); 3] = [
        |pool, node| {
            let job = pool.serve_keys(node).pop().expect("the job");
            pool.answer(node, &job, Err(JobError::Draining));
        },
        |pool, node| {
            pool.say(node, &NodeMessage::Drain);
        },
        |pool, node| {
            let request = pool.sent(node).into_iter().find_map(|message| match message {
                ClientMessage::OpenKey { request, .. } => Some(request),
                _ => None,
            });
            let (request, reason) = (request.expect("asked"), KeyRefusal::Draining);
            pool.say(node, &NodeMessage::KeyRefused { request, reason });
        },
    ];
    for decline in declines {
        let mut pool = Pool::new(1);
        pool.submit(1, 2000).expect("taken");
        let node = pool.connect();
        decline(&mut pool, node);
        assert!(pool.ends().is_empty());
        pool.sent(node);
        pool.dispatcher.handle_lost(node, "gone".to_owned(), pool.now);
        pool.until_wanted();
        let node = pool.connect();
        let job = pool.serve_keys(node).pop().expect("the job again");
        pool.answer(node, &job, good());
        assert_eq!(pool.ends(), [(1, Ok(()))]);
    }
}

#[test]
fn jobs_beyond_the_room_of_a_node_wait_in_order() {
    const JOBS: u32 = 2500;
    let mut pool = Pool::new(1);
    for number in 0..JOBS {
        pool.submit(number, 2000).expect("taken");
    }
    let node = pool.connect();
    let mut ended = Vec::new();
    loop {
        let jobs = pool.serve_keys(node);
        if jobs.is_empty() {
            break;
        }
        assert!(jobs.len() <= 1000, "the node's own bound");
        for job in &jobs {
            pool.answer(node, job, good());
        }
        ended.extend(pool.ends());
    }
    assert!(ended.into_iter().eq((0..JOBS).map(|number| (number, Ok(())))));
    // A key that is here, too, does not wait for room.
    let own = Pool::importing(1).key;
    for number in 0..1000 {
        pool.submit(number, 2000).expect("taken");
    }
    pool.key = own;
    assert_eq!(pool.submit(1000, 2000), Err(ClientError::Busy));
}

#[test]
fn private_key_is_sent_to_no_node_that_is_not_trusted() {
    let mut pool = Pool::importing(2);
    pool.submit(1, 1000).expect("taken");
    let [foreign, own] = [0, 1].map(|_| pool.dispatcher.poll_connect().expect("wanted"));
    let why = "unix:/0: another user".to_owned();
    pool.dispatcher.handle_connected(foreign, Some(why.clone()), pool.now);
    pool.welcome(foreign);
    assert!(pool.serve_keys(foreign).is_empty());
    assert!(pool.ends().is_empty(), "the other node may come");
    pool.dispatcher.handle_lost(own, "refused".to_owned(), pool.now);
    assert_eq!(pool.ends(), [(1, Err(ClientError::Untrusted(why)))]);
    // A key that the nodes hold is used there as ever: it gives nothing away.
    pool.key = Pool::new(2).key;
    assert_eq!(pool.serve_one(2), foreign);
}

#[test]
fn deadline_ends_a_job_in_each_stage() {
    let mut pool = Pool::new(1);
    pool.submit(1, 10).expect("waits for a connection");
    pool.tick(9);
    assert!(pool.ends().is_empty());
    pool.tick(1);
    let no_node = ClientError::NoNode("unix:/0: not ready".to_owned());
    assert_eq!(pool.ends(), [(1, Err(no_node))]);
    let node = pool.connect();
    pool.submit(2, 10).expect("waits for a key");
    pool.tick(10);
    assert_eq!(pool.ends(), [(2, Err(ClientError::TimedOut))]);
    pool.serve_keys(node);
    pool.submit(3, 10).expect("sent");
    pool.submit(4, 30).expect("sent");
    let jobs = pool.serve_keys(node);
    pool.tick(10);
    assert_eq!(pool.ends(), [(3, Err(ClientError::TimedOut))]);
    let cancels = pool.sent(node);
    assert!(matches!(cancels[..], [ClientMessage::Cancel { job }] if job == jobs[0].id));
    pool.answer(node, &jobs[0], good());
    pool.answer(node, &jobs[1], good());
    assert_eq!(pool.ends(), [(4, Ok(()))]);
    let stats = pool.dispatcher.stats();
    assert_eq!((stats.in_flight, stats.totals.late_completions, stats.totals.timed_out), (0, 1, 2));
    assert_eq!(stats.nodes[0].in_flight, 0);
}

#[test]
fn answer_to_the_first_attempt_does_not_count_for_the_second() {
    let mut pool = Pool::new(2);
    pool.submit(1, 1000).expect("taken");
    let nodes = [pool.connect(), pool.connect()];
    let first = nodes.into_iter().find_map(|node| Some((node, pool.serve_keys(node).pop()?)));
    let (node, job) = first.expect("one of them has it");
    pool.answer(node, &job, Err(JobError::Busy));
    let other = 1 - node;
    let again = pool.serve_keys(other).pop().expect("the other has it now");
    assert_ne!(job.id, again.id);
    pool.answer(other, &job, good());
    pool.answer(node, &again, good());
    assert!(pool.ends().is_empty(), "neither is owed");
    pool.answer(other, &again, good());
    assert_eq!(pool.ends(), [(1, Ok(()))]);
    assert_eq!(pool.dispatcher.stats().totals.stray_completions, 2);
}

#[test]
fn job_waits_for_a_stable_connection_that_was_lost() {
    let mut pool = Pool::new(1);
    pool.submit(1, 10_000).expect("taken");
    let node = pool.connect();
    assert_eq!(pool.serve_keys(node).len(), 1);
    pool.now += Duration::from_secs(2);
    pool.dispatcher.handle_lost(node, "gone".to_owned(), pool.now);
    assert_eq!(pool.dispatcher.poll_close(), Some(node));
    assert!(pool.ends().is_empty());
    let node = pool.connect();
    let jobs = pool.serve_keys(node);
    pool.answer(node, &jobs[0], good());
    assert_eq!(pool.ends(), [(1, Ok(()))]);
}

#[test]
fn node_that_loses_jobs_is_given_up() {
    let mut pool = Pool::new(1);
    pool.submit(0, 1000).expect("taken");
    let node = pool.connect();
    let answered = pool.serve_keys(node);
    pool.answer(node, &answered[0], good());
    pool.ends();
    for number in 0..=MAX_LATE_REPLIES {
        // The node's own bound is 1000.
        pool.submit(number, 10).expect("taken");
    }
    pool.serve_keys(node);
    pool.tick(10);
    let ends = pool.ends();
    let busy = ends.iter().filter(|(_, end)| *end == Err(ClientError::Busy));
    assert_eq!(busy.count(), ends.len() - 1000, "the node owes a thousand");
    // The node is silent although jobs are open: it is pinged, then given up.
    pool.tick(250);
    pool.tick(500);
    assert_eq!(pool.dispatcher.poll_close(), Some(node));
    assert_eq!(pool.dispatcher.stats().in_flight, 0);
}

#[test]
fn node_that_answers_pings_and_lost_a_job_gets_a_new_connection() {
    let mut pool = Pool::new(1);
    pool.submit(1, 10).expect("taken");
    let node = pool.connect();
    pool.serve_keys(node);
    pool.tick(10);
    assert_eq!(pool.ends(), [(1, Err(ClientError::TimedOut))]);
    let mut waited = Duration::ZERO;
    while pool.dispatcher.poll_close().is_none() {
        assert!(waited < LOST_REPLY_AFTER + LOST_REPLY_LOOK, "{waited:?}");
        // It answers every ping.
        for message in pool.sent(node) {
            if let ClientMessage::Ping { token } = message {
                pool.say(node, &NodeMessage::Pong { token });
            }
        }
        pool.tick(100);
        waited += Duration::from_millis(100);
    }
    assert!(waited >= LOST_REPLY_AFTER, "{waited:?}");
    assert_eq!(pool.dispatcher.stats().in_flight, 0);
    pool.submit(2, 1000).expect("taken");
    assert_eq!(pool.connect(), node);
    let jobs = pool.serve_keys(node);
    pool.answer(node, &jobs[0], good());
    assert_eq!(pool.ends(), [(2, Ok(()))]);
}

#[test]
fn key_dropped_while_a_job_uses_it_is_closed_afterwards() {
    let mut pool = Pool::new(1);
    pool.submit(1, 1000).expect("taken");
    let node = pool.connect();
    let jobs = pool.serve_keys(node);
    let key = pool.key.id;
    pool.dispatcher.close_key(key);
    assert!(pool.sent(node).is_empty(), "a job needs it, perhaps again");
    pool.answer(node, &jobs[0], good());
    assert!(matches!(pool.sent(node)[..], [ClientMessage::CloseKey { handle: 1 }]));
    assert_eq!(pool.dispatcher.stats().keys, 0);
}

#[test]
fn close_ends_every_job_once() {
    let mut pool = Pool::new(1);
    pool.submit(1, 10).expect("taken");
    let node = pool.connect();
    pool.serve_keys(node);
    pool.tick(10);
    pool.submit(2, 1000).expect("taken");
    pool.serve_keys(node);
    pool.dispatcher.close();
    let ends = pool.ends();
    assert_eq!(ends, [(1, Err(ClientError::TimedOut)), (2, Err(ClientError::Closed))]);
    let stats = pool.dispatcher.stats();
    assert_eq!(stats.in_flight, 0);
}

#[test]
fn node_that_never_answers_for_keys_is_given_up() {
    let mut pool = Pool::new(1);
    pool.submit(0, 10).expect("taken");
    let node = pool.connect();
    for number in 1..10_000 {
        let selector = KeySelector::Name(format!("site-{number}"));
        let key = Arc::new(KeyData::new(KeySource::Selector(selector)));
        let id = mem::replace(&mut pool.key, key).id;
        pool.tick(20);
        pool.dispatcher.close_key(id);
        if pool.dispatcher.connection(node).is_none() {
            assert!(number > 4096);
            return;
        }
        // Any message shows that it is alive.
        pool.say(node, &NodeMessage::Pong { token: 0 });
        pool.sent(node);
        pool.submit(number, 10).expect("taken");
        pool.ends();
    }
    panic!("what the node does not answer is remembered for ever");
}

fn count(counts: &Arc<Mutex<EdgeReport>>, counter: EdgeCounter) {
    counts.lock().expect("no panic").add(counter, 1);
}

#[test]
fn edge_reports_once_per_second_while_there_is_news() {
    let counts = Arc::default();
    let mut pool = Pool::reporting(1, &counts);
    pool.tick(5000);
    assert_eq!(pool.dispatcher.poll_timeout(), None, "nothing before the first job");
    pool.submit(1, 1000).expect("taken");
    let node = pool.connect();
    let jobs = pool.serve_keys(node);
    pool.answer(node, &jobs[0], good());
    pool.ends();
    count(&counts, EdgeCounter::Pooled);
    pool.tick(999);
    assert!(pool.reports(node).is_empty());
    pool.tick(1);
    let reports = pool.reports(node);
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].get(EdgeCounter::Pooled), 1);
    // Idle: no report, and no timer for one.
    assert_eq!(pool.dispatcher.poll_timeout(), None);
    pool.tick(10_000);
    assert!(pool.reports(node).is_empty());
    for number in 2..12 {
        pool.serve_one(number);
        count(&counts, EdgeCounter::Pooled);
    }
    pool.tick(1000);
    let reports = pool.reports(node);
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].get(EdgeCounter::Pooled), 11, "cumulative");
    // Activity without a new count makes no report.
    pool.dispatcher.report_soon(pool.now);
    pool.tick(1000);
    assert!(pool.reports(node).is_empty());
    assert_eq!(pool.dispatcher.poll_timeout(), None);
}

#[test]
fn reports_to_several_nodes_add_up() {
    let counts = Arc::default();
    let mut pool = Pool::reporting(2, &counts);
    pool.submit(0, 1000).expect("taken");
    let nodes = [pool.connect(), pool.connect()];
    let first = nodes.into_iter().find_map(|node| Some((node, pool.serve_keys(node).pop()?)));
    let (mut served, job) = first.expect("one of them has it");
    pool.answer(served, &job, good());
    pool.ends();
    count(&counts, EdgeCounter::Pooled);
    let mut told = [EdgeReport::default(); 2];
    for number in 1..50 {
        pool.tick(1000);
        for node in nodes {
            for report in pool.reports(node) {
                assert_eq!(node, served, "the node that did the job gets the report");
                told[node] = report;
            }
        }
        let mut sum = told[0];
        sum.merge(&told[1]);
        assert_eq!(sum, *counts.lock().expect("no panic"));
        served = pool.serve_one(number);
        count(&counts, EdgeCounter::Pooled);
    }
}

#[test]
fn counts_made_without_a_node_go_to_the_next_one() {
    let counts = Arc::default();
    let mut pool = Pool::reporting(1, &counts);
    pool.submit(1, 1000).expect("taken");
    let node = pool.connect();
    pool.serve_keys(node);
    pool.now += Duration::from_secs(2);
    pool.dispatcher.handle_lost(node, "gone".to_owned(), pool.now);
    count(&counts, EdgeCounter::FallbackNoNode);
    pool.dispatcher.report_soon(pool.now);
    pool.tick(1000);
    assert_eq!(pool.dispatcher.poll_timeout(), None, "no node to report to");
    let node = pool.connect();
    pool.tick(1000);
    let reports = pool.reports(node);
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].get(EdgeCounter::FallbackNoNode), 1);
    // The new connection counts from its own beginning.
    assert_eq!(reports[0].fallbacks(), 1);
}

#[test]
fn node_without_the_feature_gets_no_report() {
    let counts = Arc::default();
    let mut pool = Pool::reporting(1, &counts);
    pool.features = 0;
    pool.submit(1, 1000).expect("taken");
    let node = pool.connect();
    pool.serve_keys(node);
    count(&counts, EdgeCounter::Pooled);
    pool.tick(1000);
    assert!(pool.reports(node).is_empty());
}

const ML_DSA: Operation = Operation::MlDsaSign { input: MlDsaInput::Message };

#[test]
fn operation_without_its_feature_is_not_sent_and_the_connection_stays() {
    let mut pool = Pool::new(1);
    pool.submit_operation(1, 1000, ML_DSA).expect("taken");
    let node = pool.connect();
    assert!(pool.serve_keys(node).is_empty());
    assert_eq!(pool.ends(), [(1, Err(ClientError::Job(JobError::NotOffered)))]);
    assert_eq!(pool.serve_one(2), node);
}

#[test]
fn operation_goes_to_the_node_that_has_its_feature() {
    let mut pool = Pool::new(2);
    pool.submit_operation(0, 1000, ML_DSA).expect("taken");
    let old = pool.connect();
    pool.features = FEATURE_ML_DSA;
    let new = pool.connect();
    for number in 0..4 {
        if number > 0 {
            pool.submit_operation(number, 1000, ML_DSA).expect("taken");
        }
        assert!(pool.serve_keys(old).is_empty());
        let job = pool.serve_keys(new).pop().expect("the job");
        pool.answer(new, &job, good());
        assert_eq!(pool.ends(), [(number, Ok(()))]);
    }
}

#[test]
fn node_that_is_listed_no_more_gets_no_job_and_its_place_goes_to_another() {
    let mut pool = Pool::new(2);
    pool.submit(1, 1000).expect("taken");
    assert_eq!([pool.connect(), pool.connect()], [0, 1]);
    let first = [0, 1].map(|node| pool.serve_keys(node).pop().map(|job| (node, job)));
    for (node, job) in first.into_iter().flatten() {
        pool.answer(node, &job, good());
    }
    assert_eq!(pool.ends(), [(1, Ok(()))]);
    let endpoint = |name: &str| Endpoint::Unix(name.into());
    // A job is under way at node 0 when the list changes.
    let under_way = loop {
        let _ = pool.submit(7, 1000).expect("taken");
        if let Some(job) = pool.serve_keys(0).pop() {
            break job;
        }
        let job = pool.serve_keys(1).pop().expect("at one of the two");
        pool.answer(1, &job, good());
        assert_eq!(pool.ends().len(), 1);
    };
    let places = pool.dispatcher.set_nodes(&[endpoint("/1"), endpoint("/2")], pool.now);
    assert_eq!(places, [Some(1), Some(2)], "node 0 still has a job");
    assert_eq!(pool.connect(), 2);
    for number in 10..30 {
        assert_ne!(pool.serve_one(number), 0);
    }
    // The job ends where it was, and then the connection does.
    pool.answer(0, &under_way, good());
    assert_eq!(pool.ends(), [(7, Ok(()))]);
    pool.tick(1);
    assert_eq!(pool.dispatcher.poll_close(), Some(0));
    assert_eq!(pool.dispatcher.poll_connect(), None, "it is not wanted back");
    let names = |pool: &Pool| -> Vec<String> {
        let stats = pool.dispatcher.stats();
        stats.nodes.into_iter().map(|node| node.endpoint).collect()
    };
    assert_eq!(names(&pool), ["unix:/1", "unix:/2"]);
    // Its place is free now.
    let places = pool.dispatcher.set_nodes(&[endpoint("/3"), endpoint("/1")], pool.now);
    assert_eq!(places, [Some(0), Some(1)]);
    assert_eq!(names(&pool), ["unix:/3", "unix:/1"]);
}
