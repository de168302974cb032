// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A host's event loop that drives the sockets of its pool.

mod fake;

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, ThreadId};
use std::time::Instant;

use fake::{Auto, FakeNode, SIGN, SOON, digest, is_answer, open, pool, soon};
use millrace_client::{ClientError, HostLoop, NodeReply, Pool, RemoteKey};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Bound on the timers of a pool with one node and one job under way: reports, silence, the deadline.
const TIMERS_PER_SECOND: u64 = 20;

type Ended = (u64, ThreadId, Result<NodeReply, ClientError>);

/// An event loop that knows nothing but the pool.
struct Host {
    pool: Pool,
    host_loop: HostLoop,
    ended: (Sender<Ended>, Receiver<Ended>),
    /// Wakes the loop, as a paused job's descriptor does.
    wake: Arc<OwnedFd>,
    rounds: Rc<Cell<u64>>,
}

impl Host {
    fn new(pool: &Pool) -> Self {
        let host_loop = pool.host_loop().expect("the pool was used");
        host_loop.drive_from_host();
        Self {
            pool: pool.clone(),
            host_loop,
            ended: channel(),
            wake: Arc::new(eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd")),
            rounds: Rc::default(),
        }
    }

    fn submit(&self, key: &RemoteKey, number: u64) {
        let (tell, wake) = (self.ended.0.clone(), Arc::clone(&self.wake));
        let done = move |result| {
            let _ = tell.send((number, thread::current().id(), result));
            rustix::io::write(&*wake, &1_u64.to_ne_bytes()).expect("room");
        };
        self.pool.submit(key, SIGN, digest(number), soon(), Box::new(done)).expect("taken");
    }

    /// Goes round once.
    fn round(&self) {
        self.rounds.set(self.rounds.get() + 1);
        self.host_loop.before_wait();
        let readiness = self.host_loop.fd();
        let mut fds =
            [PollFd::new(&readiness, PollFlags::IN), PollFd::new(&*self.wake, PollFlags::IN)];
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut fds, Some(&second)).expect("poll");
        if fds[1].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        }
        if fds[0].revents().contains(PollFlags::IN) {
            self.host_loop.on_readable();
        }
    }

    /// Goes round until something ended.
    fn next(&self) -> Ended {
        let started = Instant::now();
        while started.elapsed() < SOON {
            if let Ok(ended) = self.ended.1.try_recv() {
                return ended;
            }
            self.round();
        }
        panic!("nothing ended");
    }
}

/// The I/O thread keeps the clock: where the machine is so busy that this thread does not read before a timer is due,
/// it reads instead.
#[test]
fn callbacks_run_on_the_thread_of_the_host_loop() {
    let node = FakeNode::alone(Auto::ALL);
    let pool = pool(&[&node]);
    assert!(pool.host_loop().is_none(), "the pool was not used yet");
    let key = open(&pool);
    let host = Host::new(&pool);
    let started = Instant::now();
    let mut by_the_clock = 0;
    for number in 0..1000 {
        host.submit(&key, number);
        let (told, thread, result) = host.next();
        assert_eq!(told, number);
        by_the_clock += u64::from(thread != thread::current().id());
        assert!(is_answer(&digest(number), &result.expect("an answer")));
    }
    let seconds = started.elapsed().as_secs() + 1;
    assert!(by_the_clock <= TIMERS_PER_SECOND * seconds, "{by_the_clock} in {seconds} s");
}

/// A young connection that ends is made again after a moment, which the I/O thread has to know of, although
/// the host's loop has read the end.
#[test]
fn job_of_a_lost_connection_goes_on_without_a_further_job() {
    let node = FakeNode::alone(Auto::NO_JOBS);
    let pool = pool(&[&node]);
    let key = open(&pool);
    let host = Host::new(&pool);
    // After some jobs the I/O thread sleeps until the deadline of the first.
    for number in 0..20 {
        host.submit(&key, number);
        host.host_loop.before_wait();
        let (peer, job) = node.next_job();
        peer.answer(&job);
        assert_eq!(host.next().0, number);
    }
    host.submit(&key, 20);
    host.host_loop.before_wait();
    node.next_job();
    node.drop_connections();
    let again = thread::spawn(move || {
        let (peer, job) = node.next_job();
        peer.answer(&job);
        node
    });
    let (number, _, result) = host.next();
    assert_eq!(number, 20);
    assert!(is_answer(&digest(20), &result.expect("an answer")));
    again.join().expect("the job came again");
}

#[test]
fn host_loop_takes_over_at_any_moment() {
    let node = FakeNode::alone(Auto::ALL);
    for turn in 0..100 {
        let pool = pool(&[&node]);
        let key = open(&pool);
        let (done, ended) = channel();
        // The I/O thread has the sockets, or leaves them to callers, or goes from one to the other.
        if turn % 2 == 0 {
            let tell = move |result: Result<NodeReply, _>| done.send(result).expect("open");
            pool.submit(&key, SIGN, digest(turn), soon(), Box::new(tell)).expect("taken");
            if turn % 4 == 0 {
                let result = ended.recv_timeout(SOON).expect("a callback");
                assert!(is_answer(&digest(turn), &result.expect("an answer")));
            }
        }
        let host = Host::new(&pool);
        for number in 0..5 {
            host.submit(&key, number);
            let (told, _, result) = host.next();
            assert_eq!(told, number);
            assert!(is_answer(&digest(number), &result.expect("an answer")));
        }
    }
}

#[test]
fn blocked_callers_get_answers_while_a_host_loop_drives() {
    let node = FakeNode::alone(Auto::ALL);
    for turn in 0..50 {
        let pool = pool(&[&node]);
        let opener = {
            let pool = pool.clone();
            thread::spawn(move || open(&pool))
        };
        while pool.host_loop().is_none() {
            thread::yield_now();
        }
        let host = Host::new(&pool);
        // On odd turns the host does other work.
        while turn % 2 == 0 && !opener.is_finished() {
            host.round();
        }
        let key = opener.join().expect("no panic");
        host.submit(&key, 1);
        let blocked = {
            let (pool, key) = (pool.clone(), key.clone());
            thread::spawn(move || {
                for number in 10..20 {
                    let reply = pool.call(&key, &SIGN, &digest(number), soon());
                    assert!(is_answer(&digest(number), &reply.expect("an answer")));
                }
            })
        };
        assert!(host.next().2.is_ok());
        blocked.join().expect("no panic");
        // A call of the host's own while its jobs are under way.
        host.submit(&key, 2);
        let reply = pool.call(&key, &SIGN, &digest(3), soon());
        assert!(is_answer(&digest(3), &reply.expect("an answer")));
        assert!(host.next().2.is_ok());
    }
}
