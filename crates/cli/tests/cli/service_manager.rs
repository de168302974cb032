// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A node under a service manager: sockets that it inherits, signs of life, the unit files.

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use millrace_testkit::skip;
use millrace_wire::{
    ClientMessage, Decoder, Hello, Message, NodeMessage, VERSION_MAX, VERSION_MIN,
};
use rustix::process::Signal;

use crate::support::{Place, SOON, repository};

/// Starts `millrace up` as systemd does: the socket is descriptor 3, and two variables say so.
fn activated(place: &Place, socket: OwnedFd, args: &[&str]) -> Command {
    const START: &str = r#"exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" "$@""#;
    let plain = place.command(["up"]);
    let mut command = Command::new("/bin/sh");
    let program: OsString = plain.get_program().to_owned();
    command.arg("-c").arg(START).arg(program).arg("up").args(args);
    for (name, value) in plain.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.stdin(Stdio::from(socket));
    command
}

fn greet(stream: &mut (impl Read + Write)) {
    let mut bytes = Vec::new();
    let hello = Hello {
        min_version: VERSION_MIN,
        max_version: VERSION_MAX,
        features: 0,
        agent: "test".to_owned(),
    };
    ClientMessage::Hello(hello).encode(&mut bytes);
    stream.write_all(&bytes).unwrap();
}

/// Waits for the node's answer to the greeting.
fn welcomed(stream: &mut UnixStream) -> bool {
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut decoder: Decoder<NodeMessage> = Decoder::new();
    loop {
        match decoder.next().unwrap() {
            Some(message) => return matches!(message, NodeMessage::Welcome(_)),
            None => match stream.read(decoder.space()) {
                Ok(0) | Err(_) => return false,
                Ok(count) => decoder.filled(count),
            },
        }
    }
}

#[test]
fn connection_made_between_two_nodes_is_served_by_the_second() {
    let place = Place::new();
    let path = place.path("activated.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let up = || {
        let socket = OwnedFd::from(listener.try_clone().unwrap());
        place.up_as(activated(&place, socket, &[])).0
    };
    let mut node = up();
    node.wait_for_log(path.to_str().unwrap(), 1);
    let mut served = UnixStream::connect(&path).unwrap();
    greet(&mut served);
    assert!(welcomed(&mut served));
    node.signal(Signal::TERM);
    assert!(node.wait().success());
    let mut waiting = UnixStream::connect(&path).expect("the socket outlives the node");
    greet(&mut waiting);
    let _second = up();
    assert!(welcomed(&mut waiting));
}

#[test]
fn inherited_tcp_socket_needs_no_configured_address() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let command = activated(&place, OwnedFd::from(listener), &[]);
    let (node, _) = place.up_as(command);
    node.wait_for_log(&address, 1);
    assert!(place.path("state/tls/node.crt").exists());
}

#[test]
fn inherited_descriptor_that_is_no_stream_socket_is_refused() {
    let place = Place::new();
    let file = fs::File::open("/dev/null").unwrap();
    let output = activated(&place, OwnedFd::from(file), &[]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("LISTEN_FDS"), "{text}");
}

#[test]
fn watched_node_sends_signs_of_life_until_it_is_stopped() {
    let place = Place::new();
    let mut command = place.command(["up"]);
    command.env("WATCHDOG_USEC", "200000");
    let (node, messages) = place.up_as(command);
    let mut buffer = [0; 64];
    let mut signs = 0;
    let started = Instant::now();
    while signs < 5 {
        assert!(started.elapsed() < SOON, "{signs} signs\n{}", node.log());
        if let Ok(length) = messages.recv(&mut buffer) {
            assert_eq!(&buffer[..length], b"WATCHDOG=1");
            signs += 1;
        }
    }
    // A stopped process is what a service manager restarts.
    node.signal(Signal::STOP);
    let mut silent = 0;
    while silent < 5 {
        assert!(started.elapsed() < SOON, "signs of a stopped process");
        silent = if messages.recv(&mut buffer).is_ok() { 0 } else { silent + 1 };
    }
}

#[test]
fn unit_files_are_accepted_by_systemd() {
    let program = Path::new("/usr/bin/systemd-analyze");
    if !program.exists() {
        skip!("no systemd-analyze");
    }
    let place = Place::new();
    let units = ["millrace.service", "millrace.socket"];
    let paths = units.map(|unit| {
        let text = fs::read_to_string(repository().join("deploy").join(unit)).unwrap();
        // The program must exist.
        place.write(unit, &text.replace("=/usr/bin/millrace ", "=/bin/true "))
    });
    let output = Command::new(program).args(["verify", "--man=no"]).args(&paths).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.is_empty(), "{text}");
}
