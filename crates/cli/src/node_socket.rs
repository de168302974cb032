// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! HTTP requests to the node of this machine, over its sockets for status and for administration.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::exit::{ContextCode, Failure, fail};

/// A running node answers in milliseconds, also under load.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bound on an answer, in bytes. The longest, all versions of the most keys that a store has, takes 15 MiB.
const MAX_ANSWER: u64 = 32 << 20;

/// The body of the answer to `GET path`.
///
/// # Errors
/// [`Failure::NoNode`] if nothing answers; an answer other than 200.
pub(crate) fn get(socket: &Path, path: &str) -> Result<Vec<u8>> {
    let silent = || {
        format!(
            "no node answers on {}: start one with `millrace up`, or name the socket of its clients with --socket",
            socket.display()
        )
    };
    let mut stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
        // The usual case, no socket or no listener, needs no further explanation.
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => fail(Failure::NoNode, silent()),
        _ => anyhow!(error).context(format!("cannot connect to {}", socket.display())),
    })?;
    let answer = converse(&mut stream, path).or_fail(Failure::NoNode, silent)?;
    let head = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let (head, body) =
        head.map(|at| answer.split_at(at + 4)).context("the answer has no header")?;
    if !head.starts_with(b"HTTP/1.1 200 ") {
        let first = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
        bail!("the node answered {}", String::from_utf8_lossy(first));
    }
    Ok(body.to_vec())
}

fn converse(stream: &mut UnixStream, path: &str) -> std::io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    Ok(answer)
}
