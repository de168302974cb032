// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Connections to the socket of a device, before one of them is its monitor.
//!
//! A device has one monitor at a time. Who connects and says nothing would keep it from its device, so that the first
//! of the newcomers that speaks becomes the monitor.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};

use millrace_service::admission::{Admission, PlaceClass};
use rustix::net::{RecvFlags, recv};

use crate::control::source;

/// Newcomers that are silent: a monitor speaks at once, and some wait while another one has the device. A user has a
/// quarter.
const NEWCOMER: PlaceClass = PlaceClass { name: "newcomer", most: 16, of_source: 4 };

/// The silent connections of one socket.
#[derive(Debug, Default)]
pub(super) struct Newcomers {
    order: Admission,
    streams: BTreeMap<u64, UnixStream>,
}

impl Newcomers {
    /// Sockets on which something may have come.
    pub(super) fn sockets(&self) -> impl Iterator<Item = &UnixStream> {
        self.streams.values()
    }

    /// Takes what waits at the listener.
    pub(super) fn accept(&mut self, listener: &UnixListener) -> io::Result<()> {
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let entered = self.order.enter(NEWCOMER, source(&stream));
            if let Some(number) = entered.displaced {
                self.streams.remove(&number);
            }
            self.streams.insert(entered.number, stream);
        }
    }

    /// The oldest connection whose client has sent something. Those that have ended are forgotten.
    pub(super) fn speaking(&mut self) -> Option<UnixStream> {
        let mut spoke = None;
        let mut ended = Vec::new();
        for (number, stream) in &self.streams {
            let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            match recv(stream.as_fd(), &mut [0; 1], peek) {
                Ok((1.., _)) => {
                    spoke = Some(*number);
                    break;
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Ok(_) | Err(_) => ended.push(*number),
            }
        }
        for number in ended.into_iter().chain(spoke) {
            self.order.leave(number);
        }
        let stream = spoke.and_then(|number| self.streams.remove(&number));
        self.streams.retain(|number, _| self.order.holds(*number));
        stream
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn first_that_speaks_passes_silent_ones_and_the_oldest_of_a_user_give_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut newcomers = Newcomers::default();
        let mut crowd: Vec<_> = (0..40).map(|_| UnixStream::connect(&path).unwrap()).collect();
        newcomers.accept(&listener).unwrap();
        assert_eq!(newcomers.sockets().count(), NEWCOMER.of_source);
        assert!(newcomers.speaking().is_none());
        assert_eq!(crowd[0].read(&mut [0; 1]).unwrap(), 0, "the oldest has given way");
        let mut monitor = UnixStream::connect(&path).unwrap();
        newcomers.accept(&listener).unwrap();
        monitor.write_all(b"m").unwrap();
        let mut first = newcomers.speaking().unwrap();
        let mut said = [0; 1];
        first.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"m", "nothing of it is read before");
        crowd.clear();
        assert!(newcomers.speaking().is_none());
        assert_eq!(newcomers.sockets().count(), 0, "those that have ended are forgotten");
    }
}
