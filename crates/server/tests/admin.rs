// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The administration socket, and requests that the unauthenticated sockets refuse.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use common::{Setup, TestNode, my_uid};
use millrace_server::config::AdminConfig;
use millrace_service::status::Sessions;

fn start() -> (TestNode, PathBuf) {
    start_for(Vec::new())
}

fn start_for(uids: Vec<u32>) -> (TestNode, PathBuf) {
    let mut setup = Setup::new();
    let socket = setup.directory.path().join("run/admin.sock");
    setup.config.admin = Some(AdminConfig { socket: socket.clone(), uids });
    setup.config.metrics = Some("127.0.0.1:0".parse().unwrap());
    (setup.start(), socket)
}

fn ask(mut stream: impl Read + Write, method: &str, path: &str, headers: &str) -> String {
    let request = format!("{method} {path} HTTP/1.1\r\n{headers}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn admin(socket: &PathBuf, method: &str, path: &str) -> String {
    ask(UnixStream::connect(socket).unwrap(), method, path, "host: node\r\n")
}

fn body(answer: &str) -> &str {
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer.split_once("\r\n\r\n").unwrap().1
}

#[test]
fn admin_socket_opens_for_configured_users_only() {
    let mode = |uids| std::fs::metadata(start_for(uids).1).map(|data| data.mode() & 0o777);
    assert_eq!(mode(vec![]).ok(), Some(0o600));
    assert_eq!(mode(vec![1234]).ok(), Some(0o666));
}

#[test]
fn admin_socket_lists_sessions_and_settings_and_reloads() {
    let (node, socket) = start();
    assert_eq!(std::fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    let _client = node.connect();
    let listed = admin(&socket, "GET", "/sessions");
    let listed: Sessions = serde_json::from_str(body(&listed)).unwrap();
    assert_eq!(listed.sessions.len(), 1);
    let row = &listed.sessions[0];
    assert_eq!((&*row.identity, &*row.agent, row.in_flight), (&*my_uid(), "test", 0));

    let settings = admin(&socket, "GET", "/settings");
    let settings: serde_json::Value = serde_json::from_str(body(&settings)).unwrap();
    assert_eq!(settings["revision"], 1);
    assert_eq!(settings["settings"]["limits"]["in-flight"], 1024);

    let reloaded = admin(&socket, "POST", "/reload");
    assert!(body(&reloaded).contains("\"changes\":[]"), "{reloaded}");
    assert!(admin(&socket, "GET", "/reload").starts_with("HTTP/1.1 405"));
}

#[test]
fn status_over_tcp_refuses_foreign_hosts_web_pages_and_changes() {
    let (node, _) = start();
    let address = node.metrics.unwrap();
    let get =
        |path: &str, headers: &str| ask(TcpStream::connect(address).unwrap(), "GET", path, headers);
    for path in ["/status", "/metrics", "/healthz"] {
        for host in [format!("host: {address}\r\n"), "host: localhost\r\n".to_owned()] {
            assert!(get(path, &host).starts_with("HTTP/1.1 200"), "{path} {host}");
        }
        assert!(get(path, "host: evil.example\r\n").starts_with("HTTP/1.1 421"), "{path}");
        let page = "host: localhost\r\norigin: https://evil.example\r\n";
        assert!(get(path, page).starts_with("HTTP/1.1 403"), "{path}");
    }
    for path in ["/sessions", "/settings", "/reload"] {
        assert!(get(path, "host: localhost\r\n").starts_with("HTTP/1.1 404"), "{path}");
    }
}

#[test]
fn admin_socket_closes_connections_of_other_users_unanswered() {
    if !rustix::process::geteuid().is_root() {
        millrace_testkit::skip!("only root can act as another user");
    }
    let (_node, socket) = start();
    let other = rustix::process::Uid::from_raw(65_534);
    // The mode admits all users, so that only the check of the peer remains.
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&socket, all).unwrap();
    for folder in socket.ancestors().skip(1).take(2) {
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder, all).unwrap();
    }
    let answer = std::thread::spawn(move || {
        rustix::thread::set_thread_res_uid(None, other, None).unwrap();
        let mut stream = UnixStream::connect(&socket).unwrap();
        let _ = stream.write_all(b"GET /status HTTP/1.1\r\nhost: x\r\n\r\n");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    });
    assert_eq!(answer.join().unwrap(), b"");
}
