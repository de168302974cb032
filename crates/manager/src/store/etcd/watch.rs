// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The stream of etcd's changes.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;
use serde_json::json;

use super::answers::{WatchAnswer, WatchEvent, WatchMessage, refused};
use super::connection::{CALL, Client, Stream, send};
use super::{decode, decode_key, encode, end};
use crate::http_head::Head;
use crate::store::{Change, StoreError};

/// Changes that are kept for readers that fall behind; older ones are asked of etcd again.
const MAX_LOG: usize = 20_000;

/// Silence of a stream after which its member must show that it still takes part: the connection may be dead, the
/// process suspended, or the member cut off from the others. Ten nodes send a heartbeat each second, which is a change.
const PROBE: Duration = Duration::from_secs(1);

/// A stream of changes below one prefix. Its thread opens it, reads it, and ends with it.
pub(super) struct Watch {
    pub(super) state: Mutex<WatchState>,
    /// Notified after every change of the state.
    pub(super) moved: Condvar,
}

pub(super) struct WatchState {
    /// The log has every change after this revision.
    pub(super) complete_after: u64,
    pub(super) revision: u64,
    pub(super) log: VecDeque<Change>,
    pub(super) ended: Option<StoreError>,
    /// The connection, once it is open.
    socket: Option<TcpStream>,
}

impl WatchState {
    /// Whether a change would be heard.
    pub(super) fn is_open(&self) -> bool {
        self.socket.is_some()
    }
}

impl Watch {
    /// Starts the thread. Readers wait for the stream together, without a lock.
    pub(super) fn start(
        client: &Arc<Client>,
        prefix: &str,
        after: u64,
    ) -> Result<Arc<Self>, StoreError> {
        let watch = Arc::new(Self {
            state: Mutex::new(WatchState {
                complete_after: after,
                revision: after,
                log: VecDeque::new(),
                ended: None,
                socket: None,
            }),
            moved: Condvar::new(),
        });
        let (reader, client, prefix) = (Arc::clone(&watch), Arc::clone(client), prefix.to_owned());
        let follow = move || {
            let error = match reader.open(client, prefix, after) {
                Ok(texts) => reader.follow(texts),
                Err(error) => error,
            };
            lock(&reader.state).ended.get_or_insert(error);
            reader.moved.notify_all();
        };
        std::thread::Builder::new()
            .name("mr-etcd-watch".to_owned())
            .spawn(follow)
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(watch)
    }

    /// Opens the stream at the first member that answers.
    fn open(
        &self,
        client: Arc<Client>,
        prefix: String,
        after: u64,
    ) -> Result<impl Read + use<>, StoreError> {
        let body = json!({ "create_request": {
            "key": encode(&prefix), "range_end": encode(&end(&prefix)), "start_revision": (after + 1).to_string(),
        } });
        let deadline = Instant::now() + CALL;
        let mut last = StoreError::Unavailable("no endpoint".to_owned());
        for member in client.in_turn() {
            let endpoint = &client.endpoints[member];
            let opened = client.connect(endpoint, deadline).and_then(|mut stream| {
                send(&mut stream, endpoint, "/v3/watch", &body)?;
                let (head, rest) = Head::read(&mut stream)?;
                let timed = stream.timed();
                (timed.silence, timed.deadline) = (PROBE, None);
                let socket = timed.socket.try_clone()?;
                Ok((head.status, stream, socket, rest))
            });
            match opened {
                Ok((200, stream, socket, rest)) => {
                    lock(&self.state).socket = Some(socket);
                    self.moved.notify_all();
                    let probed = Probed { stream, client, member, prefix };
                    return Ok(io::Cursor::new(rest).chain(probed));
                }
                Ok((status, ..)) => last = refused(status, b""),
                Err(error) => last = endpoint.failed(&error),
            }
        }
        Err(last)
    }

    /// Reads the stream to its end; returns why it ended.
    fn follow(&self, texts: impl Read) -> StoreError {
        let messages = serde_json::Deserializer::from_reader(io::BufReader::new(texts))
            .into_iter::<WatchMessage>();
        for message in messages {
            if let Some(error) = &lock(&self.state).ended {
                return error.clone();
            }
            let answer = match message {
                Ok(WatchMessage { result: Some(answer), .. }) => answer,
                Ok(WatchMessage { error, .. }) => {
                    return StoreError::Unavailable(format!(
                        "etcd ended the stream: {}",
                        error.unwrap_or_default()
                    ));
                }
                Err(error) => {
                    return StoreError::Unavailable(format!("the stream of etcd ended: {error}"));
                }
            };
            if answer.compact_revision > 0 {
                return StoreError::Compacted(answer.compact_revision);
            }
            if answer.canceled {
                return StoreError::Unavailable(format!(
                    "etcd ended the stream: {}",
                    answer.cancel_reason
                ));
            }
            if let Err(error) = self.take(answer) {
                return error;
            }
        }
        StoreError::Unavailable("the stream of etcd ended".to_owned())
    }

    fn take(&self, answer: WatchAnswer) -> Result<(), StoreError> {
        let changes = changes_of(answer)?;
        let mut state = lock(&self.state);
        if let Some(last) = changes.last() {
            // Only events say up to where the log is complete: the header of the first answer may be ahead of them.
            state.revision = last.revision;
            state.log.extend(changes);
            while state.log.len() > MAX_LOG {
                let dropped = state.log.pop_front().map_or(0, |change| change.revision);
                state.complete_after = dropped;
            }
        }
        drop(state);
        self.moved.notify_all();
        Ok(())
    }

    /// Ends the stream and with it the thread, which may still be opening it.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        let error = StoreError::Unavailable("the stream of etcd is no longer read".to_owned());
        state.ended.get_or_insert(error);
        if let Some(socket) = &state.socket {
            // Fails only if the connection is closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// The bytes of a stream. Whenever it is silent, its member must answer a read.
struct Probed {
    stream: Stream,
    client: Arc<Client>,
    member: usize,
    prefix: String,
}

impl Read for Probed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    self.client.probe(self.member, &self.prefix)?;
                }
                read => return read,
            }
        }
    }
}

/// The changes that an answer brings.
pub(super) fn changes_of(answer: WatchAnswer) -> Result<Vec<Change>, StoreError> {
    let mut changes = Vec::new();
    for WatchEvent { kind, kv } in answer.events {
        changes.push(Change {
            key: decode_key(&kv.key)?,
            value: match kind.as_deref() {
                Some("DELETE") => None,
                _ => Some(decode(&kv.value)?.into()),
            },
            revision: kv.mod_revision,
        });
    }
    Ok(changes)
}
