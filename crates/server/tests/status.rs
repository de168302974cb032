// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Clients that hold all HTTP connections of a node, and clients that connect after them.

mod common;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use common::{SOON, Setup, TestNode, eventually};
use millrace_service::settings::Limits;

/// The number of connections that the node serves at once.
const ALL: usize = 64;

/// Those of one user.
const OF_USER: usize = ALL / 4;

/// A timeout that expires within a test, but long enough to be observed.
const SHORT_TIMEOUT: Duration = Duration::from_millis(200);

/// A timeout longer than any test.
const NEVER: Duration = Duration::from_secs(600);

fn start(limits: impl FnOnce(&mut Limits)) -> (TestNode, PathBuf) {
    let mut setup = Setup::new().limits(limits);
    let path = setup.directory.path().join("run/status.sock");
    setup.config.status_socket = Some(path.clone());
    (setup.start(), path)
}

fn connect(path: &PathBuf) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream
}

const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

/// Whether the node serves a client that connects now. On a busy machine the node may close the connection
/// before the request is sent.
fn is_served(path: &PathBuf) -> bool {
    let mut stream = connect(path);
    let mut answer = String::new();
    let asked = stream.write_all(REQUEST);
    asked.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.ends_with("ready\n")
}

/// Whether an attempt to write says that the node has closed the connection.
fn is_closed(written: io::Result<usize>) -> bool {
    let closed = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
    written.is_err_and(|error| closed.contains(&error.kind()))
}

#[test]
fn kept_connections_and_event_streams_give_way_to_a_new_one() {
    let (node, path) = start(|limits| {
        limits.handshake_timeout = NEVER;
        limits.write_timeout = NEVER;
    });
    for request in ["/healthz", "/v1/events"] {
        let mut crowd: Vec<_> = (0..ALL).map(|_| connect(&path)).collect();
        for stream in &mut crowd {
            // One that had to give way already takes no request and has no answer.
            let _ = write!(stream, "GET {request} HTTP/1.1\r\nhost: localhost\r\n\r\n");
            let _ = stream.read(&mut [0; 16]);
        }
        for _ in 0..OF_USER + 1 {
            assert!(is_served(&path), "{request}");
        }
        let text = node.handle.service().render_metrics();
        let refused = "millrace_connections_refused_total{reason=\"displaced\"} ";
        let displaced = text.lines().find_map(|line| line.strip_prefix(refused)).unwrap();
        assert!(displaced.parse::<u64>().unwrap() > (ALL - OF_USER) as u64, "{displaced}");
    }
}

#[test]
fn slow_requests_end_at_the_request_timeout() {
    let (node, path) = start(|limits| {
        limits.handshake_timeout = SHORT_TIMEOUT;
        limits.write_timeout = NEVER;
    });
    let mut silent: Vec<_> = (0..ALL / 2).map(|_| connect(&path)).collect();
    let mut slow: Vec<_> = (0..ALL / 2).map(|_| connect(&path)).collect();
    for stream in &mut slow {
        // On a busy machine the node may have closed the first connection already.
        let _ = stream.write_all(b"GET /status HTTP/1.1\r\nx: ");
    }
    // Sends a byte now and then, until the node closes the connection.
    eventually(|| {
        slow.retain_mut(|stream| stream.write_all(b"x").is_ok());
        slow.is_empty()
    });
    for stream in &mut silent {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    eventually(|| is_served(&path));
    drop(node);
}

#[test]
fn answer_timeout_ends_when_the_answer_is_sent() {
    let (node, path) = start(|limits| {
        limits.handshake_timeout = NEVER;
        limits.write_timeout = SHORT_TIMEOUT;
    });
    let mut patient = connect(&path);
    let mut ask = || {
        patient.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"ready\n") {
            let mut bytes = [0; 512];
            let count = patient.read(&mut bytes).unwrap();
            assert!(count > 0, "cut off");
            answer.extend_from_slice(&bytes[..count]);
        }
    };
    ask();
    // These clients send requests until the node waits for them to read.
    let deaf: Vec<_> = (2..OF_USER).map(|_| connect(&path)).collect();
    for mut stream in &deaf {
        stream.set_nonblocking(true).unwrap();
        let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100);
        loop {
            match stream.write(&request) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Sending the requests took longer than the node's timeout.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(is_served(&path));
    eventually(|| deaf.iter().all(|mut stream| is_closed(stream.write(b"x"))));
    // A client that reads its answers keeps its connection.
    ask();
    drop(node);
}

#[test]
fn new_connection_displaces_the_oldest_without_a_request() {
    let (node, path) = start(|limits| {
        limits.handshake_timeout = NEVER;
        limits.write_timeout = NEVER;
    });
    let mut crowd: Vec<_> = (0..ALL).map(|_| connect(&path)).collect();
    for stream in &mut crowd {
        stream.write_all(b"GET /status HTTP/1.1\r\nx: ").unwrap();
    }
    for _ in 0..5 {
        assert!(is_served(&path));
    }
    // The oldest is gone; the youngest may continue.
    let mut rest = Vec::new();
    let _ = crowd[0].read_to_end(&mut rest);
    assert!(rest.is_empty());
    let youngest = crowd.last_mut().unwrap();
    youngest.write_all(b"y\r\nhost: a\r\n\r\n").unwrap();
    assert!(youngest.read(&mut [0; 16]).unwrap() > 0);
    drop(node);
}
