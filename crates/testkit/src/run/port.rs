// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Ports for servers of a test. Test programs run at the same time, and each binds a port some time after it was given
//! one: so none comes from the range that the kernel takes its own from, each program begins at another place, and none
//! gives a port twice.

use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::process;
use std::sync::Mutex;

/// Below Linux's range for outgoing connections, which begins at 32,768.
const FIRST: u32 = 10_000;

const COUNT: u32 = 22_000;

/// Spreads the ids of processes that start one after the other over all ports.
const SPREAD: u32 = 7919;

/// A TCP port of 127.0.0.1 that nothing listened on a moment ago, and that this process was not given before.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    given(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(drop))
}

/// As [`free_port`], for UDP.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_udp_port() -> u16 {
    given(|port| UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).map(drop))
}

fn given(bind: impl Fn(u16) -> io::Result<()>) -> u16 {
    static GIVEN: Mutex<u32> = Mutex::new(0);
    let mut given = GIVEN.lock().expect("no panic");
    let start = process::id().wrapping_mul(SPREAD);
    while *given < COUNT {
        let port = FIRST + start.wrapping_add(*given) % COUNT;
        *given += 1;
        let port = u16::try_from(port).expect("below 65,536");
        if bind(port).is_ok() {
            return port;
        }
    }
    panic!("every port of 127.0.0.1 is in use, or was given away");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_that_is_in_use_or_was_given_is_not_given() {
        let first = free_port();
        let next = FIRST + (u32::from(first) - FIRST + 1) % COUNT;
        let next = u16::try_from(next).expect("a port");
        // Another test may have it.
        let _held = TcpListener::bind((Ipv4Addr::LOCALHOST, next));
        let second = free_port();
        assert!(second != first && second != next, "{first}, {next}, {second}");
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, second)).is_ok());
    }
}
