// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A unix socket that requests writability events only while a write waits.
//!
//! tokio's own `UnixStream` is registered for writability from the start. On Linux a unix socket announces
//! writability each time its peer *reads* (`unix_write_space`). Every read by a client would then wake the node for
//! nothing, at the client's cost: 7 µs within each read, measured across two cores of a virtual machine. That is more
//! than all other work of the client for a job.

#![expect(
    deprecated,
    reason = "the successor of `AsyncFd::with_interest` is unsafe, and this crate forbids unsafe code"
)]

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as Socket;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

use crate::connection::{ClientStream, socket_hung_up};

/// A unix stream that is registered for writability only while a write waits.
#[derive(Debug)]
pub(crate) struct OnDemandWritable {
    read: AsyncFd<Socket>,
    /// A duplicate of the socket, registered while a write waits.
    write: Option<AsyncFd<Socket>>,
}

impl OnDemandWritable {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        let socket = stream.into_std()?;
        let read = AsyncFd::with_interest(socket, Interest::READABLE)?;
        Ok(Self { read, write: None })
    }
}

impl ClientStream for OnDemandWritable {
    fn hung_up(&self) -> bool {
        socket_hung_up(self.read.get_ref().as_fd())
    }
}

impl AsyncRead for OnDemandWritable {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buffer.initialize_unfilled();
        loop {
            let mut guard = ready!(self.read.poll_read_ready(context))?;
            match guard.try_io(|socket| socket.get_ref().read(room)) {
                Ok(Ok(count)) => {
                    // A short read has emptied the socket. Returning here saves the read that would fail with
                    // `EAGAIN`.
                    if count > 0 && count < room.len() {
                        guard.clear_ready();
                    }
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_) => {}
            }
        }
    }
}

impl AsyncWrite for OnDemandWritable {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.read.get_ref().write(bytes) {
                Ok(count) => {
                    self.write = None;
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let waiting = match self.write.take() {
                        Some(waiting) => waiting,
                        None => {
                            let socket = self.read.get_ref().try_clone()?;
                            AsyncFd::with_interest(socket, Interest::WRITABLE)?
                        }
                    };
                    let waiting = self.write.insert(waiting);
                    ready!(waiting.poll_write_ready(context))?.clear_ready();
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.read.get_ref().shutdown(Shutdown::Write))
    }
}
