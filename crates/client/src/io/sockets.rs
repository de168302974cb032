// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The sockets of the pool: connecting, reading, writing and closing what the dispatcher asks for.

use std::time::Instant;

use rustix::event::epoll;

use super::{Guard, ProcessPool, ProcessPoolState};
use crate::link::{LinkError, NodeSocket};
use crate::node::NodeIndex;

/// Reads from one socket before the others have their turn: a node that floods delays them by these reads alone.
const READS_PER_TURN: usize = 16;

/// Jobs under way at a node up to which each is sent by itself. Measured with 128 P-256 jobs under way:
/// single sends cost the node 5 % of its time in reads. With 16 handshakes under way, waking the leader
/// instead cost the gateway 7 % of what it saves.
const MAX_PROMPT: u32 = 32;

/// The socket of one node in the epoll instance.
pub(super) struct Socket {
    link: NodeSocket,
    /// Tells events of this socket from those of its predecessor.
    token: u64,
    /// Whether the registration waits for writability, too.
    armed: bool,
}

impl ProcessPool {
    /// Sends as many of the waiting bytes as the sockets take, and closes sockets that are done.
    pub(super) fn flush_all(&self, inner: &mut ProcessPoolState) {
        inner.driver.flushed();
        self.close_sockets(inner);
        for node in 0..inner.sockets.len() {
            self.flush(inner, node);
        }
    }

    /// Sends waiting bytes to nodes with no more than [`MAX_PROMPT`] jobs under way.
    pub(super) fn flush_prompt(&self, inner: &mut ProcessPoolState) {
        self.close_sockets(inner);
        for node in 0..inner.sockets.len() {
            if inner.dispatcher.in_flight(node) <= MAX_PROMPT {
                self.flush(inner, node);
            }
        }
    }

    fn flush(&self, inner: &mut ProcessPoolState, node: NodeIndex) {
        let Some(socket) = &mut inner.sockets[node] else {
            return;
        };
        // An error is found by the next read, after the last bytes from the node.
        let _ = socket.link.flush(inner.dispatcher.poll_output(node));
        if socket.armed != socket.link.wants_write() {
            socket.armed = socket.link.wants_write();
            let data = epoll::EventData::new_u64(socket.token);
            let _ = epoll::modify(&self.epoll, &socket.link, data, interest(socket.armed));
        }
    }

    pub(super) fn close_sockets(&self, inner: &mut ProcessPoolState) {
        while let Some(node) = inner.dispatcher.poll_close() {
            if let Some(socket) = inner.sockets[node].take() {
                // Closing is not enough: a forked child may hold the socket open.
                let _ = epoll::delete(&self.epoll, &socket.link);
            }
        }
    }

    pub(super) fn make_connections<'a>(&'a self, mut inner: Guard<'a>) -> Guard<'a> {
        if inner.dispatcher.wants_connections() {
            // Jobs that wait for a node may wait for one that the pool names no more.
            drop(inner);
            self.look_for_nodes();
            inner = self.lock();
        }
        while let Some(node) = inner.dispatcher.poll_connect() {
            let attempt = inner.dispatcher.connect_failures(node);
            let endpoint = inner.endpoints[node].clone();
            inner.driver.resolve();
            let successor = inner.successor();
            drop(inner);
            if let Some(waiter) = successor {
                waiter.notify_one();
            }
            let link = NodeSocket::connect(&endpoint, attempt);
            inner = self.lock();
            inner.driver.resolved();
            let now = Instant::now();
            let token = inner.next_token;
            let registered = link.and_then(|link| self.register(link, token));
            match registered {
                Ok(socket) => {
                    inner.next_token += 1;
                    let distrust = socket.link.distrust().cloned();
                    inner.sockets[node] = Some(socket);
                    inner.dispatcher.handle_connected(node, distrust, now);
                }
                Err(error) => inner.dispatcher.handle_lost(node, error.to_string(), now),
            }
            self.flush_all(&mut inner);
            self.wake_all(&mut inner);
        }
        inner
    }

    fn register(&self, link: NodeSocket, token: u64) -> Result<Socket, LinkError> {
        let armed = link.wants_write();
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, &link, data, interest(armed)).map_err(std::io::Error::from)?;
        Ok(Socket { link, token, armed })
    }
}

impl ProcessPoolState {
    pub(super) fn socket_with(&self, token: u64) -> Option<NodeIndex> {
        self.sockets.iter().position(|s| s.as_ref().is_some_and(|s| s.token == token))
    }

    /// Whether bytes wait that were not yet offered to the socket.
    pub(super) fn has_unsent(&mut self, node: NodeIndex) -> bool {
        let Some(socket) = &self.sockets[node] else {
            return false;
        };
        !socket.link.wants_write() && self.dispatcher.poll_output(node).is_some()
    }

    pub(super) fn on_socket(&mut self, node: NodeIndex, flags: epoll::EventFlags, now: Instant) {
        let Some(socket) = &mut self.sockets[node] else {
            return;
        };
        if socket.link.is_connecting() {
            if let Err(error) = socket.link.finish_connect() {
                self.dispatcher.handle_lost(node, error.to_string(), now);
            }
            return;
        }
        let readable = epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        if !flags.intersects(readable) {
            return;
        }
        if let Err(error) = self.read(node, now) {
            self.dispatcher.handle_lost(node, error.to_string(), now);
        }
    }

    /// Reads until there is nothing more, or others should have their turn.
    fn read(&mut self, node: NodeIndex, now: Instant) -> Result<(), LinkError> {
        for turn in 0.. {
            let Some(socket) = &mut self.sockets[node] else {
                return Ok(());
            };
            let Some(connection) = self.dispatcher.connection(node) else {
                return Ok(());
            };
            let space = connection.space();
            let room = space.len();
            let n = match socket.link.read(space) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(n) => n,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            connection.filled(n, now);
            let over = turn >= READS_PER_TURN;
            let last = if socket.link.short_read_is_last() {
                n < room || over
            } else {
                // The socket does not become readable for bytes that TLS has decrypted already.
                over && !socket.link.holds_plaintext()
            };
            self.dispatcher.handle_received(node, now);
            if last {
                break;
            }
        }
        Ok(())
    }
}

fn interest(write: bool) -> epoll::EventFlags {
    if write { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN }
}
