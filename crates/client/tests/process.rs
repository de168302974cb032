// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The client as a guest in a process: its threads, its descriptors, fork. These tests look at the
//! whole process, so each runs in a process of its own: this binary, started again.

mod fake;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use fake::{Auto, FakeNode, SIGN, digest, import, is_answer, open, pool, soon};
use millrace_client::{Endpoint, Pool, PoolConfig};

/// Set in the processes that run one test alone.
const ALONE: &str = "MILLRACE_TEST_ALONE";

/// A child process that does not outlive its test.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `test` here if this process is for it alone, and otherwise starts such a process.
fn alone(name: &str, test: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    let child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", name, "--test-threads=1", "--nocapture"])
        .env(ALONE, "1")
        .spawn()
        .expect("this binary runs");
    let mut child = Guard(child);
    assert!(child.0.wait().expect("it ends").success(), "{name} failed; see above");
}

fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("procfs");
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
    tasks.flatten().filter_map(name).map(|name| name.trim().to_owned()).collect()
}

fn io_threads() -> usize {
    threads().iter().filter(|name| *name == "millrace-io").count()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("procfs").count()
}

/// Polls until it holds: the kernel lists descriptors and threads for a moment after their end, also a
/// thread that has been joined.
#[track_caller]
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let give_up = soon();
    while !holds() {
        assert!(Instant::now() < give_up, "it does not happen: {what}");
        thread::yield_now();
    }
}

#[test]
fn client_starts_no_thread_and_no_socket_before_the_first_key() {
    alone("client_starts_no_thread_and_no_socket_before_the_first_key", || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let node = FakeNode::start(&folder.path().join("node"), Auto::ALL);
        let before = (threads().len(), descriptors());
        let pool = pool(&[&node]);
        let _ = pool.stats();
        assert_eq!((threads().len(), descriptors()), before);
        let key = open(&pool);
        assert_eq!(io_threads(), 1);
        let another = pool.clone();
        another.call(&key, &SIGN, &digest(1), soon()).expect("an answer");
        assert_eq!(io_threads(), 1);
        drop((pool, another, key));
        eventually("the last handle ends the thread", || io_threads() == 0);
    });
}

#[test]
#[expect(unsafe_code, reason = "there is no safe setrlimit")]
fn io_thread_that_could_not_start_is_tried_again() {
    alone("io_thread_that_could_not_start_is_tried_again", || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let node = FakeNode::start(&folder.path().join("node"), Auto::ALL);
        let pool = pool(&[&node]);
        let limit = |descriptors: libc::rlim_t| {
            let limit = libc::rlimit { rlim_cur: descriptors, rlim_max: 1024 };
            // SAFETY: `limit` is a valid structure; the limit of this process alone changes.
            let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
            assert_eq!(set, 0);
        };
        limit(3);
        let selector = millrace_client::KeySelector::Name("site".to_owned());
        let error = pool.open_key(selector, soon()).expect_err("no descriptors");
        assert!(matches!(error, millrace_client::ClientError::Start(_)), "{error}");
        limit(1024);
        let key = open(&pool);
        pool.call(&key, &SIGN, &digest(1), soon()).expect("an answer");
    });
}

#[test]
fn io_thread_takes_no_signals_of_its_host() {
    alone("io_thread_takes_no_signals_of_its_host", || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let node = FakeNode::start(&folder.path().join("node"), Auto::ALL);
        let pool = pool(&[&node]);
        let _key = open(&pool);
        let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).ok();
        let tasks = fs::read_dir("/proc/self/task").expect("procfs");
        let all: Vec<String> = tasks.flatten().filter_map(status).collect();
        let io = all.iter().find(|s| s.contains("millrace-io")).expect("the thread");
        let blocked = io.lines().find_map(|l| l.strip_prefix("SigBlk:")).expect("its mask");
        let blocked = u64::from_str_radix(blocked.trim(), 16).expect("a mask in hex");
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGCHLD] {
            assert_ne!(blocked & (1 << (signal - 1)), 0, "signal {signal} is not blocked");
        }
    });
}

#[test]
fn thousand_reconnects_leave_no_descriptor_open() {
    alone("thousand_reconnects_leave_no_descriptor_open", || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("node");
        let stop = AtomicBool::new(false);
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        thread::scope(|scope| {
            // Says welcome and hangs up.
            scope.spawn(|| {
                let mut bytes = Vec::new();
                millrace_wire::Message::encode(&fake::welcome("short"), &mut bytes);
                for stream in listener.incoming() {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let mut stream: UnixStream = stream.expect("a connection");
                    let _ = stream.write_all(&bytes);
                }
            });
            let before = descriptors();
            for _ in 0..1000 {
                let pool = Pool::new(PoolConfig::new(vec![Endpoint::Unix(path.clone())]));
                import(&pool).expect_err("no node answers");
                drop(pool);
            }
            // (The other ends are here, too, and are closed by their thread.)
            eventually("all descriptors are closed", || descriptors() == before);
            eventually("all threads have ended", || io_threads() == 0);
            stop.store(true, Ordering::Relaxed);
            drop(UnixStream::connect(&path));
        });
    });
}

#[test]
fn pool_survives_many_losses_of_its_node() {
    alone("pool_survives_many_losses_of_its_node", || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let node = FakeNode::start(&folder.path().join("node"), Auto::ALL);
        let pool = pool(&[&node]);
        let key = open(&pool);
        for number in 0..50 {
            node.drop_connections();
            let give_up = soon();
            // A job clears the count of failures, so that the wait stays short.
            while pool.call(&key, &SIGN, &digest(number), give_up).is_err() {
                assert!(Instant::now() < give_up);
                thread::yield_now();
            }
        }
        // Epoll, event counter, socket; the node's ends are closed by its threads in their own time.
        let sockets = |name: &str| {
            let links = fs::read_dir("/proc/self/fd").expect("procfs").flatten();
            let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
            targets.filter(|target| target.to_string_lossy().contains(name)).count()
        };
        assert_eq!((sockets("eventpoll"), sockets("eventfd")), (1, 1));
        assert_eq!(io_threads(), 1);
    });
}

/// Forks; the child runs `child` and reports its result: the number of answers that were right.
#[expect(unsafe_code, reason = "there is no safe fork")]
fn fork_and(child: impl FnOnce() -> u8) -> (libc::pid_t, UnixStream) {
    let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
    // SAFETY: the child is a copy of this thread alone. What it runs takes no lock that another thread
    // could have held, except the allocator's, which glibc makes usable in the child.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(0);
        let _ = theirs.write_all(&[good]);
        // SAFETY: ends the child at once; nothing of the test harness may run in it.
        unsafe { libc::_exit(0) };
    }
    (pid, ours)
}

#[expect(unsafe_code, reason = "the other half of fork")]
fn reap((pid, mut pipe): (libc::pid_t, UnixStream)) -> u8 {
    let mut answer = [0];
    pipe.set_read_timeout(Some(fake::SOON)).expect("a timeout");
    let read = pipe.read_exact(&mut answer);
    // SAFETY: `pid` is a child that has not been waited for; it is killed in case it hangs.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    read.expect("the child should answer: it hangs");
    answer[0]
}

#[test]
fn both_sides_of_a_fork_use_connections_of_their_own() {
    alone("both_sides_of_a_fork_use_connections_of_their_own", || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("node");
        // The node must live in a process that is not forked.
        let node = FakeNode::start(&path, Auto::ALL);
        let pool = pool(&[&node]);
        let key = open(&pool);
        let good = |number: u64| {
            let reply = pool.call(&key, &SIGN, &digest(number), soon());
            reply.is_ok_and(|reply| is_answer(&digest(number), &reply))
        };
        assert!(good(0));
        // Other threads hold the lock again and again while the fork happens.
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for thread in 0..2u64 {
                let (good, stop) = (&good, &stop);
                scope.spawn(move || {
                    let mut number = thread << 32;
                    while !stop.load(Ordering::Relaxed) {
                        assert!(good(number));
                        number += 1;
                    }
                });
            }
            for round in 0..50 {
                let child = fork_and(|| {
                    let right = (0..20).filter(|number| good(round * 100 + number)).count();
                    let own = pool.stats().nodes[0].counters.connects == 1;
                    u8::try_from(right).expect("20") + u8::from(own)
                });
                let answer = reap(child);
                assert_eq!(answer, 21, "round {round}");
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(good(1));
        assert_eq!(pool.stats().nodes[0].counters.connects, 1, "the parent lost its connection");
        assert_eq!(pool.stats().totals.stray_completions, 0);
    });
}

#[test]
fn forked_child_may_drop_the_inherited_pool() {
    alone("forked_child_may_drop_the_inherited_pool", || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let node = FakeNode::start(&folder.path().join("node"), Auto::ALL);
        let pool = pool(&[&node]);
        let key = open(&pool);
        let (mine, my_key) = (pool.clone(), key.clone());
        let mut inherited = Some((pool, key));
        let child = fork_and(|| {
            drop(inherited.take());
            1
        });
        assert_eq!(reap(child), 1);
        drop(inherited);
        mine.call(&my_key, &SIGN, &digest(1), soon()).expect("the parent is untouched");
    });
}
