// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Connections to the socket of a device, before one of them is its monitor.
//!
//! A device has one monitor at a time. A client that connects and sends no message would keep the device from its
//! monitor. So the first newcomer whose first message is whole becomes the monitor.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use millrace_service::admission::{Admission, PlaceClass};

use super::message::{Message, Peeked, WHOLE_WITHIN};
use crate::control::source;

/// Newcomers: a monitor speaks at once, and some wait while another one has the device. A user has a quarter.
const NEWCOMER: PlaceClass = PlaceClass { name: "newcomer", most: 16, of_source: 4 };

/// Time between two looks at messages that have begun.
const LOOK: Duration = Duration::from_millis(10);

/// The connections of one socket that have not sent a whole message.
#[derive(Debug, Default)]
pub(super) struct Newcomers {
    order: Admission,
    clients: BTreeMap<u64, Newcomer>,
}

#[derive(Debug)]
struct Newcomer {
    stream: UnixStream,
    /// Time by which its message must be whole. `None` before the first byte.
    whole_by: Option<Instant>,
}

impl Newcomers {
    /// Sockets of the clients that have sent nothing.
    pub(super) fn silent(&self) -> impl Iterator<Item = &UnixStream> {
        let silent = self.clients.values().filter(|client| client.whole_by.is_none());
        silent.map(|client| &client.stream)
    }

    /// Time until the next look. `None` if no message has begun: then a look is needed when a socket is readable.
    pub(super) fn next_look(&self) -> Option<Duration> {
        self.clients.values().any(|client| client.whole_by.is_some()).then_some(LOOK)
    }

    /// Takes one connection, if one waits at the listener. [`Self::speaking`] looks at it before another one may take
    /// its place.
    pub(super) fn accept(&mut self, listener: &UnixListener) -> io::Result<()> {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let entered = self.order.enter(NEWCOMER, source(&stream));
        if let Some(number) = entered.displaced {
            self.clients.remove(&number);
        }
        self.clients.insert(entered.number, Newcomer { stream, whole_by: None });
        Ok(())
    }

    /// The oldest connection whose client has sent a whole message. Those that have ended, or whose message is late,
    /// are forgotten.
    pub(super) fn speaking(&mut self, now: Instant) -> Option<UnixStream> {
        let mut spoke = None;
        let mut ended = Vec::new();
        for (number, client) in &mut self.clients {
            match Message::peek(client.stream.as_fd()) {
                Peeked::Nothing => {}
                Peeked::Part if now < *client.whole_by.get_or_insert(now + WHOLE_WITHIN) => {}
                Peeked::Part | Peeked::Broken => ended.push(*number),
                Peeked::Whole => {
                    spoke = Some(*number);
                    break;
                }
            }
        }
        for number in ended.into_iter().chain(spoke) {
            self.order.leave(number);
        }
        let client = spoke.and_then(|number| self.clients.remove(&number));
        self.clients.retain(|number, _| self.order.holds(*number));
        client.map(|client| client.stream)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    /// VHOST_USER_SET_OWNER.
    const MESSAGE: [u8; 12] = [3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

    #[test]
    fn first_that_speaks_passes_silent_ones_and_the_oldest_of_a_user_give_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut newcomers = Newcomers::default();
        let mut crowd: Vec<_> = (0..40).map(|_| UnixStream::connect(&path).unwrap()).collect();
        crowd.iter().for_each(|_| newcomers.accept(&listener).unwrap());
        assert_eq!(newcomers.silent().count(), NEWCOMER.of_source);
        let now = Instant::now();
        assert!(newcomers.speaking(now).is_none() && newcomers.next_look().is_none());
        assert_eq!(crowd[0].read(&mut [0; 1]).unwrap(), 0, "the oldest has given way");
        crowd[39].write_all(&MESSAGE[..11]).unwrap();
        crowd[38].write_all(b"GET / HTTP/1.1\r\n").unwrap();
        assert!(newcomers.speaking(now).is_none());
        assert_eq!(newcomers.next_look(), Some(LOOK));
        assert_eq!(newcomers.silent().count(), NEWCOMER.of_source - 2, "what is no message ends");
        let mut monitor = UnixStream::connect(&path).unwrap();
        newcomers.accept(&listener).unwrap();
        monitor.write_all(&MESSAGE).unwrap();
        let mut first = newcomers.speaking(now).unwrap();
        let mut said = [0; 12];
        first.read_exact(&mut said).unwrap();
        assert_eq!(said, MESSAGE, "nothing of it is read before");
        assert!(newcomers.speaking(now + WHOLE_WITHIN).is_none());
        assert_eq!(newcomers.next_look(), None, "a message that is late ends");
        crowd.clear();
        assert!(newcomers.speaking(now).is_none());
        assert_eq!(newcomers.silent().count(), 0, "those that have ended are forgotten");
    }
}
