// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A socket whose peer cannot keep its reader waiting.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// A socket whose reads and writes end: each after `silence`, and all at `deadline`, however often the peer sends a
/// byte.
#[derive(Debug)]
pub(crate) struct TimedSocket {
    pub(crate) socket: TcpStream,
    pub(crate) silence: Duration,
    pub(crate) deadline: Option<Instant>,
}

impl TimedSocket {
    /// Connects to the first address that answers. `silence` bounds each of them, too.
    pub(crate) fn connect(
        name: impl ToSocketAddrs,
        silence: Duration,
        deadline: Instant,
    ) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in name.to_socket_addrs()? {
            let limit = limit(silence, Some(deadline))?;
            match TcpStream::connect_timeout(&address, limit) {
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    return Ok(Self { socket, silence, deadline: Some(deadline) });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Time for the next read or write.
fn limit(silence: Duration, deadline: Option<Instant>) -> io::Result<Duration> {
    let Some(deadline) = deadline else {
        return Ok(silence);
    };
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left.min(silence))
}

/// Linux reports a timeout as "resource temporarily unavailable".
fn in_words(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

impl Read for TimedSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let limit = limit(self.silence, self.deadline)?;
        self.socket.set_read_timeout(Some(limit))?;
        self.socket.read(buffer).map_err(in_words)
    }
}

impl Write for TimedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let limit = limit(self.silence, self.deadline)?;
        self.socket.set_write_timeout(Some(limit))?;
        self.socket.write(bytes).map_err(in_words)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn peer_that_drips_bytes_is_read_until_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peer = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let drip = |_: &i32| {
                thread::sleep(Duration::from_millis(10));
                socket.write_all(b"x").is_ok()
            };
            (0..3000).take_while(drip).count()
        });
        let deadline = Instant::now() + Duration::from_millis(500);
        let mut timed = TimedSocket::connect(address, Duration::from_secs(60), deadline).unwrap();
        let error = timed.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        drop(timed);
        assert!(peer.join().unwrap() < 3000, "it was read to its end");
    }
}
