// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The head of an HTTP/1 answer: the clients of managers and of etcd read it here.

use std::io::{self, Read};

/// Bound on the head of an answer, in bytes: a manager and etcd send less than 1 KiB, a proxy in front may add to it.
const MAX_HEAD: usize = 16 * 1024;

/// Bound on the headers of an answer: a manager sends about ten.
const MAX_HEADERS: usize = 64;

/// Why an answer cannot be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The connection failed.
    Io(io::Error),
    /// The answer is not in the form of one: the reason, with "it" for the server.
    Form(&'static str),
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => error,
            ReadError::Form(reason) => Self::new(io::ErrorKind::InvalidData, reason),
        }
    }
}

/// The fields of a head that the clients use.
#[derive(Debug)]
pub(crate) struct Head {
    /// Status code.
    pub(crate) status: u16,
    /// The `ETag` header.
    pub(crate) etag: Option<String>,
    /// Length of the body in bytes, if the server names it; otherwise the body ends with the connection.
    pub(crate) length: Option<u64>,
}

impl Head {
    /// Reads a head; returns it and the bytes of the body that came with it.
    ///
    /// # Errors
    /// [`ReadError`]. A transfer coding is an error, since requests are HTTP/1.0.
    pub(crate) fn read(stream: &mut impl Read) -> Result<(Self, Vec<u8>), ReadError> {
        let mut bytes = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            let count = stream.read(&mut chunk).map_err(ReadError::Io)?;
            if count == 0 {
                return Err(ReadError::Form("the connection ended within the header"));
            }
            bytes.extend_from_slice(&chunk[..count]);
            if let Some((head, at)) = Self::parse(&bytes).map_err(ReadError::Form)? {
                return Ok((head, bytes.split_off(at)));
            }
            if bytes.len() > MAX_HEAD {
                return Err(ReadError::Form("its header is too long"));
            }
        }
    }

    /// A head and its length in bytes, or `None` if it is not complete.
    fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, &'static str> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut answer = httparse::Response::new(&mut headers);
        let at = match answer.parse(bytes) {
            Ok(httparse::Status::Complete(at)) => at,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err("it is not HTTP"),
        };
        let find = |name: &str| {
            let found = answer.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
            found.and_then(|header| std::str::from_utf8(header.value).ok())
        };
        if find("transfer-encoding").is_some() {
            return Err("its answer has a transfer coding");
        }
        let length = match find("content-length") {
            Some(text) => Some(text.parse().map_err(|_| "its content-length is not a number")?),
            None => None,
        };
        let head = Self {
            status: answer.code.unwrap_or_default(),
            etag: find("etag").map(str::to_owned),
            length,
        };
        Ok(Some((head, at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_read_apart_from_the_body() {
        let read = |mut bytes: &[u8]| Head::read(&mut bytes);
        let (head, body) = read(b"HTTP/1.0 200 OK\r\nETag: \"7\"\r\n\r\nbody").unwrap();
        assert_eq!((head.status, head.etag.as_deref(), head.length), (200, Some("\"7\""), None));
        assert_eq!(body, b"body");
        for wrong in [
            &b"HTTP/1.0 200 OK\r\n"[..],
            b"SSH-2.0-x\r\n\r\n",
            b"HTTP/2 200\r\n\r\n",
            b"HTTP/1.1 x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            b"",
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn head_is_bounded() {
        let read = |mut bytes: &[u8]| Head::read(&mut bytes);
        let headers = |count: usize| {
            format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(count)).into_bytes()
        };
        assert!(read(&headers(MAX_HEADERS)).is_ok());
        assert!(read(&headers(MAX_HEADERS + 1)).is_err());
        let endless = |length: usize| {
            let mut bytes = b"HTTP/1.1 200 OK\r\nx: ".to_vec();
            bytes.resize(length, b'y');
            match read(&bytes) {
                Err(ReadError::Form(reason)) => reason,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(endless(MAX_HEAD), "the connection ended within the header");
        assert_eq!(endless(MAX_HEAD + 1), "its header is too long");
    }
}
