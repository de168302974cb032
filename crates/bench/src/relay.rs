// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Stands between a gateway and a node, and holds the node's answers back, as if it were far away.
//!
//! One thread, on the core of the thread that starts it. What the gateway sends is forwarded at once.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::BenchError;

/// Bytes that wait on one connection, in either direction, before no more are read: several thousand
/// answers.
const MAX_HELD: usize = 4 * 1024 * 1024;

/// Bytes of one read.
const READ: usize = 64 * 1024;

/// A running relay; ends on drop.
pub(crate) struct Relay {
    /// Closed to end the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Listens at `path` for gateways of the node that listens at `node`. Each answer is held back for
    /// `latency`.
    ///
    /// # Errors
    /// [`BenchError::System`], [`BenchError::File`].
    pub(crate) fn start(path: &Path, node: &Path, latency: Duration) -> Result<Self, BenchError> {
        let failed = BenchError::system("start a relay");
        let listener = UnixListener::bind(path).map_err(BenchError::file("listen at", path))?;
        let prepared = listener
            .set_nonblocking(true)
            .and_then(|()| UnixStream::pair());
        let (stop, stopped) = match prepared {
            Ok(pair) => pair,
            Err(error) => return Err(failed(error)),
        };
        let node = node.to_owned();
        let thread = thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || relay(&listener, &stopped, &node, latency));
        match thread {
            Ok(thread) => Ok(Self {
                stop: Some(stop),
                thread: Some(thread),
            }),
            Err(error) => Err(failed(error)),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic in there has been printed.
            let _ = thread.join();
        }
    }
}

/// A connection of a gateway, and the one to the node that stands for it.
struct Line {
    gateway: UnixStream,
    node: UnixStream,
    /// On their way to the node.
    forth: Vec<u8>,
    /// On their way back, with the time from which they may be sent.
    back: VecDeque<(Instant, Vec<u8>)>,
    held: usize,
}

impl Line {
    fn new(gateway: UnixStream, node: &Path) -> io::Result<Self> {
        let node = UnixStream::connect(node)?;
        gateway.set_nonblocking(true)?;
        node.set_nonblocking(true)?;
        Ok(Self {
            gateway,
            node,
            forth: Vec::new(),
            back: VecDeque::new(),
            held: 0,
        })
    }

    /// What to wait for: at the gateway's side, and at the node's.
    fn wants(&self, now: Instant) -> (PollFlags, PollFlags) {
        let (mut gateway, mut node) = (PollFlags::empty(), PollFlags::empty());
        gateway.set(PollFlags::IN, self.forth.len() < MAX_HELD);
        gateway.set(
            PollFlags::OUT,
            self.back.front().is_some_and(|(due, _)| *due <= now),
        );
        node.set(PollFlags::IN, self.held < MAX_HELD);
        node.set(PollFlags::OUT, !self.forth.is_empty());
        (gateway, node)
    }

    /// Moves what can be moved.
    ///
    /// # Errors
    /// One side is gone, or has ended.
    fn turn(&mut self, latency: Duration, space: &mut [u8]) -> io::Result<()> {
        while self.forth.len() < MAX_HELD {
            let Some(n) = read(&mut self.gateway, space)? else {
                break;
            };
            self.forth.extend_from_slice(&space[..n]);
        }
        let sent = write(&mut self.node, &self.forth)?;
        self.forth.drain(..sent);
        while self.held < MAX_HELD {
            let Some(n) = read(&mut self.node, space)? else {
                break;
            };
            self.held += n;
            self.back
                .push_back((Instant::now() + latency, space[..n].to_vec()));
        }
        let now = Instant::now();
        while let Some((due, bytes)) = self.back.front_mut().filter(|(due, _)| *due <= now) {
            let sent = write(&mut self.gateway, bytes)?;
            self.held -= sent;
            if sent < bytes.len() {
                bytes.drain(..sent);
                // Due still, so that it is written as soon as there is room.
                *due = now;
                break;
            }
            self.back.pop_front();
        }
        Ok(())
    }
}

fn read(from: &mut UnixStream, space: &mut [u8]) -> io::Result<Option<usize>> {
    match from.read(space) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(n) => Ok(Some(n)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

fn write(to: &mut UnixStream, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match to.write(&bytes[sent..]) {
            Ok(n) => sent += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

/// Runs until the other end of `stopped` is closed.
fn relay(listener: &UnixListener, stopped: &UnixStream, node: &Path, latency: Duration) {
    let mut lines: Vec<Line> = Vec::new();
    let mut space = vec![0; READ];
    while !wait(listener, stopped, &lines) {
        while let Ok((gateway, _)) = listener.accept() {
            // A gateway whose node cannot be reached finds its connection closed.
            lines.extend(Line::new(gateway, node));
        }
        lines.retain_mut(|line| line.turn(latency, &mut space).is_ok());
    }
}

/// Waits until something can be moved. Gives whether it is time to end.
fn wait(listener: &UnixListener, stopped: &UnixStream, lines: &[Line]) -> bool {
    let now = Instant::now();
    let mut fds = vec![
        PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
    ];
    for line in lines {
        let (gateway, node) = line.wants(now);
        fds.push(PollFd::from_borrowed_fd(line.gateway.as_fd(), gateway));
        fds.push(PollFd::from_borrowed_fd(line.node.as_fd(), node));
    }
    let due = lines.iter().filter_map(|line| Some(line.back.front()?.0));
    let next = due.filter(|due| *due > now).min();
    let timeout = next.map(|due| Timespec::try_from(due - now).unwrap_or_default());
    // A signal is of no interest here: the next turn finds nothing to do.
    let _ = poll(&mut fds, timeout.as_ref());
    !fds[0].revents().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_late_and_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, node) = (dir.path().join("relay"), dir.path().join("node"));
        let listener = UnixListener::bind(&node).expect("a node");
        let latency = Duration::from_millis(20);
        let relay = Relay::start(&path, &node, latency).expect("a relay");
        let mut gateway = UnixStream::connect(&path).expect("a connection");
        let (mut node, _) = listener.accept().expect("the relay's");
        // More than a socket holds, so that both sides have to wait for room.
        let sent: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
        let started = Instant::now();
        let echo = thread::spawn(move || {
            let mut all = vec![0; 1_000_000];
            node.read_exact(&mut all).expect("what was sent");
            node.write_all(&all).expect("room");
            node
        });
        gateway.write_all(&sent).expect("room");
        let mut came = vec![0; sent.len()];
        gateway.read_exact(&mut came).expect("an answer");
        assert!(came == sent, "what came is what was sent");
        assert!(started.elapsed() >= latency);
        // When the node closes, the gateway hears of it; when the relay ends, too.
        drop(echo.join().expect("no panic"));
        assert_eq!(gateway.read(&mut came).expect("the end"), 0);
        let mut other = UnixStream::connect(&path).expect("a connection");
        let (_node, _) = listener.accept().expect("the relay's");
        drop(relay);
        assert_eq!(other.read(&mut came).expect("the end"), 0);
    }
}
