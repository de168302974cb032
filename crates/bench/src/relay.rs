// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Stands between a gateway and a node, and holds the node's answers back, as if it were far away.
//!
//! The relay's threads run on the core of the thread that starts it. It forwards at once what the gateway sends.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;

use crate::error::BenchError;

/// Bytes of one read.
const READ: usize = 64 * 1024;

/// Reads that wait on one connection before the relay reads no more: several thousand answers.
const MAX_HELD: usize = 1024;

/// A running relay; ends on drop.
pub(crate) struct Relay {
    path: PathBuf,
    /// The open connections of gateways; `None` once the relay ends.
    open: Connections,
    thread: Option<JoinHandle<()>>,
}

type Connections = Arc<Mutex<Option<Vec<UnixStream>>>>;

impl Relay {
    /// Listens at `path` for gateways of the node that listens at `node`. Each answer is held back for `latency`.
    pub(crate) fn start(path: &Path, node: &Path, latency: Duration) -> Result<Self, BenchError> {
        let listener = UnixListener::bind(path).map_err(BenchError::file("listen at", path))?;
        let open = Connections::new(Mutex::new(Some(Vec::new())));
        let accepted = Arc::clone(&open);
        let node = node.to_owned();
        let thread = thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || relay(&listener, &accepted, &node, latency));
        Ok(Self {
            path: path.to_owned(),
            open,
            thread: Some(thread.map_err(BenchError::system("start a relay"))?),
        })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        for connection in lock(&self.open).take().into_iter().flatten() {
            let _ = connection.shutdown(Shutdown::Both);
        }
        // Wakes the thread that accepts. A panic in there has been printed.
        drop(UnixStream::connect(&self.path));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn relay(listener: &UnixListener, open: &Connections, node: &Path, latency: Duration) {
    thread::scope(|scope| {
        while let Ok((gateway, _)) = listener.accept() {
            let mut open = lock(open);
            let Some(open) = &mut *open else { return };
            // A gateway whose node cannot be reached finds its connection closed.
            if let (Ok(node), Ok(known)) = (UnixStream::connect(node), gateway.try_clone()) {
                open.push(known);
                scope.spawn(move || carry(&gateway, &node, latency));
            }
        }
    });
}

/// Carries what a gateway and the node send each other, until either closes.
fn carry(gateway: &UnixStream, node: &UnixStream, latency: Duration) {
    let (hold, held) = sync_channel(MAX_HELD);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = io::copy(&mut &*gateway, &mut &*node);
            let _ = node.shutdown(Shutdown::Both);
        });
        scope.spawn(move || {
            let mut space = vec![0; READ];
            while let Ok(len @ 1..) = (&mut &*node).read(&mut space) {
                let answer = space.get(..len).unwrap_or_default().to_vec();
                if hold.send((Instant::now() + latency, answer)).is_err() {
                    return;
                }
            }
        });
        for (due, answer) in held {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if (&mut &*gateway).write_all(&answer).is_err() {
                break;
            }
        }
        for side in [gateway, node] {
            let _ = side.shutdown(Shutdown::Both);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_late_and_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("relay");
        let node = dir.path().join("node");
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
        // When the node closes, the connection of the gateway ends; when the relay ends, too.
        drop(echo.join().expect("no panic"));
        assert_eq!(gateway.read(&mut came).expect("the end"), 0);
        let mut other = UnixStream::connect(&path).expect("a connection");
        let (_node, _) = listener.accept().expect("the relay's");
        drop(relay);
        assert_eq!(other.read(&mut came).expect("the end"), 0);
    }
}
