// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `openssl s_server` and `s_client`, and what the server has computed itself.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::sync::mpsc;
use std::thread;

use millrace_edge::counters;

use super::{Bench, PATIENCE, eventually, texts};

/// A running `openssl s_server`, killed at its end.
pub(crate) struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts it with this configuration; none: stock OpenSSL.
    pub(crate) fn start(bench: &Bench, config: Option<&str>, options: &str) -> Self {
        Self::start_on(bench, config, options, None)
    }

    /// Starts it with the libcrypto of this folder; none: that of the release.
    pub(crate) fn start_on(
        bench: &Bench,
        config: Option<&str>,
        options: &str,
        library: Option<&Path>,
    ) -> Self {
        let line =
            format!("s_server -accept 127.0.0.1:0 -cert server.crt -key server.key -www {options}");
        let mut command = match config {
            Some(config) => bench.command_with(config, &line),
            None => bench.command(&line),
        };
        if let Some(library) = library {
            command.env("LD_LIBRARY_PATH", library);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().expect("openssl is installed");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
        let port = lines.find_map(|line| {
            let line = line.expect("readable");
            line.strip_prefix("ACCEPT ")?.rsplit_once(':')?.1.trim().parse().ok()
        });
        // The rest of the output has a reader, so that the server never waits for one.
        thread::spawn(move || lines.count());
        let port = port.expect("s_server says its port");
        Self { child, port }
    }

    /// Operations that the server and its children have computed themselves, by primitive.
    pub(crate) fn computed(&self) -> HashMap<String, u64> {
        let mut found = HashMap::new();
        eventually(|| {
            found = processes_of(self.child.id()).find_map(|pid| cells(&pid)).unwrap_or_default();
            !found.is_empty()
        });
        found
    }
}

/// A process and its descendants.
fn processes_of(pid: u32) -> impl Iterator<Item = String> {
    let mut all = vec![pid.to_string()];
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        all.extend(children.split_whitespace().map(str::to_owned));
        next += 1;
    }
    all.into_iter()
}

/// The memory file of a process.
fn cells(pid: &str) -> Option<HashMap<String, u64>> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let file = open.filter_map(Result::ok).map(|entry| entry.path()).find(|path| {
        fs::read_link(path)
            .is_ok_and(|target| target == Path::new("/memfd:millrace-local (deleted)"))
    })?;
    let memory = fs::read(file).ok()?;
    Some(counters::parse(&memory)?.into_iter().collect())
}

/// A handshake of a client with this configuration; none: stock OpenSSL.
pub(crate) fn connect(
    bench: &Bench,
    config: Option<&str>,
    server: &Server,
    options: &str,
) -> Output {
    let line = format!(
        "s_client -connect 127.0.0.1:{} -tls1_3 -CAfile server.crt -verify_return_error {options}",
        server.port
    );
    let command = match config {
        Some(config) => bench.command_with(config, &line),
        None => bench.command(&line),
    };
    let mut command = command;
    command.output().expect("openssl is installed")
}

/// Bytes of [`long_file`]: some 64 records of TLS.
pub(crate) const SENT: u32 = 1 << 20;

/// Writes a file `big`, which [`fetch`] gets.
pub(crate) fn long_file(bench: &Bench) -> Vec<u8> {
    let words = (0..SENT / 4).map(|word| word.wrapping_mul(2_654_435_761));
    let file: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    bench.write("big", &file);
    file
}

/// The file `big` over a connection to a server with the option `-WWW`; no configuration: with stock OpenSSL.
pub(crate) fn fetch(
    bench: &Bench,
    config: Option<&str>,
    server: &Server,
    options: &str,
) -> Vec<u8> {
    let line = format!(
        "s_client -connect 127.0.0.1:{} -CAfile server.crt -verify_return_error -quiet {options}",
        server.port
    );
    let mut command = match config {
        Some(config) => bench.command_with(config, &line),
        None => bench.command(&line),
    };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = command.spawn().expect("openssl is installed");
    let mut stdin = client.stdin.take().expect("stdin");
    // The pipe stays open until the client has ended by itself.
    let (done, wait) = mpsc::channel::<()>();
    let writer = thread::spawn(move || {
        let asked = stdin.write_all(b"GET /big HTTP/1.0\r\n\r\n");
        let _ = wait.recv_timeout(PATIENCE);
        asked
    });
    let output = client.wait_with_output().expect("a client");
    drop(done);
    writer.join().expect("no panic").expect("the client reads");
    let head = b"\r\n\r\n";
    let body = output.stdout.windows(head.len()).position(|window| window == head);
    let body = body.unwrap_or_else(|| panic!("no answer: {options}: {:?}", texts(&output)));
    output.stdout[body + head.len()..].to_vec()
}
