// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Pages over HTTP/1.1, and what the library that compresses them has counted.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use flate2::read::GzDecoder;
use millrace_edge::compression::{CounterSnapshot, MAX_BYTES, MEMORY_NAME};
use millrace_hostfs::process::Proc;

/// A socket that is silent so long has failed.
const SILENCE: Duration = Duration::from_secs(60);

/// An answer.
#[derive(Clone, Debug)]
pub struct Page {
    /// Status line and fields, in lower case.
    pub head: String,
    /// The body as it came, without the frames of chunks.
    pub body: Vec<u8>,
}

impl Page {
    /// Whether the page says that it is compressed.
    #[must_use]
    pub fn is_gzip(&self) -> bool {
        self.head.contains("\r\ncontent-encoding: gzip\r\n")
    }

    /// The page itself.
    ///
    /// # Panics
    /// If the body is not gzip, or has bytes behind its end.
    #[must_use]
    pub fn plain(&self) -> Vec<u8> {
        if !self.is_gzip() {
            return self.body.clone();
        }
        let mut found = Vec::new();
        let mut decoder = GzDecoder::new(&self.body[..]);
        decoder.read_to_end(&mut found).expect("a body of gzip");
        assert!(decoder.into_inner().is_empty(), "bytes behind the trailer of gzip");
        found
    }
}

/// Connects and asks for a page that may be compressed. The answer is for the caller to read.
///
/// # Panics
/// If there is no connection.
#[must_use]
pub fn ask(port: u16, path: &str) -> TcpStream {
    send(
        port,
        &format!(
            "GET {path} HTTP/1.1\r\nHost: test\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"
        ),
    )
}

fn send(port: u16, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a connection");
    stream.set_read_timeout(Some(SILENCE)).expect("a socket");
    stream.write_all(request.as_bytes()).expect("a request");
    stream
}

/// Asks for a page that may be compressed.
///
/// # Panics
/// If there is no whole answer.
#[must_use]
pub fn get(port: u16, path: &str) -> Page {
    whole(ask(port, path))
}

/// The answer to a request after which the connection is closed. One to HEAD is a head alone.
///
/// # Panics
/// If there is no whole answer.
#[must_use]
pub fn answer(port: u16, request: &str) -> Page {
    let stream = send(port, request);
    if !request.starts_with("HEAD ") {
        return whole(stream);
    }
    let answer = read(stream);
    assert!(answer.ends_with(b"\r\n\r\n"), "a body behind an answer to HEAD");
    Page { head: head(&answer), body: Vec::new() }
}

fn whole(stream: TcpStream) -> Page {
    page(&read(stream))
}

fn read(mut stream: TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    answer
}

fn head(answer: &[u8]) -> String {
    let end = memchr::memmem::find(answer, b"\r\n\r\n").expect("the end of the head") + 4;
    String::from_utf8_lossy(&answer[..end]).to_lowercase()
}

/// Takes a whole answer apart.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn page(answer: &[u8]) -> Page {
    let head = head(answer);
    let body =
        &answer[memchr::memmem::find(answer, b"\r\n\r\n").expect("the end of the head") + 4..];
    let body = if head.contains("\r\ntransfer-encoding: chunked\r\n") {
        unchunked(body)
    } else {
        body.to_vec()
    };
    Page { head, body }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = memchr::memmem::find(rest, b"\r\n").expect("the length of a chunk");
        let length = std::str::from_utf8(&rest[..end]).expect("a number");
        let length = usize::from_str_radix(length, 16).expect("a number");
        if length == 0 {
            return body;
        }
        body.extend(&rest[end + 2..end + 2 + length]);
        rest = &rest[end + 2 + length + 2..];
    }
}

/// Counters of the library in a process and in those that share its memory; none if it is not loaded.
#[must_use]
pub fn counters(id: u32) -> Option<CounterSnapshot> {
    let proc = Proc::open(Path::new("/proc")).expect("/proc");
    let memory = proc.memory_file(id, MEMORY_NAME, MAX_BYTES)?;
    CounterSnapshot::parse(&memory.bytes)
}

/// Text of `length` bytes that compresses like a page with a list.
#[must_use]
pub fn html(length: usize) -> Vec<u8> {
    let mut found = b"<!doctype html><title>List</title><ul>\n".to_vec();
    let mut random = fastrand::Rng::with_seed(1);
    while found.len() < length {
        let word = random.u32(..);
        let line = format!(
            "<li class=\"entry\"><a href=\"/item/{}\">Item {word:x}</a></li>\n",
            word % 977
        );
        found.extend(line.into_bytes());
    }
    found.truncate(length);
    found
}

/// Bytes that do not compress.
#[must_use]
pub fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    bytes
}
