// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The stream of etcd's changes.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use serde_json::{Value, json};

use super::answers::{WatchAnswer, WatchEvent, WatchMessage, refused};
use super::connection::{Client, Opened, receive_head, send};
use super::{decode, decode_key, encode, end, lock};
use crate::store::{Change, StoreError};

/// Changes that are kept for readers that fall behind; older ones are asked of etcd again.
const MAX_LOG: usize = 20_000;

/// A stream of changes below one prefix. Its thread ends with the stream.
pub(super) struct Watch {
    pub(super) state: Mutex<WatchState>,
    pub(super) heard: Condvar,
    socket: TcpStream,
}

pub(super) struct WatchState {
    /// The log has every change after this revision.
    pub(super) complete_after: u64,
    pub(super) revision: u64,
    pub(super) log: VecDeque<Change>,
    pub(super) ended: Option<StoreError>,
    pub(super) heard: Instant,
}

impl Watch {
    pub(super) fn start(
        client: &Arc<Client>,
        prefix: &str,
        after: u64,
    ) -> Result<Arc<Self>, StoreError> {
        let body = json!({ "create_request": {
            "key": encode(prefix), "range_end": encode(&end(prefix)), "start_revision": (after + 1).to_string(),
        } });
        let (mut stream, socket, rest) = Self::open(client, &body)?;
        let watch = Arc::new(Self {
            state: Mutex::new(WatchState {
                complete_after: after,
                revision: after,
                log: VecDeque::new(),
                ended: None,
                heard: Instant::now(),
            }),
            heard: Condvar::new(),
            socket,
        });
        let reader = Arc::clone(&watch);
        let run = move || {
            let texts = io::Cursor::new(rest).chain(&mut *stream);
            let error = reader.follow(texts);
            let mut state = lock(&reader.state);
            state.ended = Some(error);
            drop(state);
            reader.heard.notify_all();
        };
        std::thread::Builder::new()
            .name("mr-etcd-watch".to_owned())
            .spawn(run)
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(watch)
    }

    /// Opens the stream at the first member that answers.
    fn open(client: &Client, body: &Value) -> Result<Opened, StoreError> {
        let first = client.current.load(Ordering::Relaxed);
        let mut last = StoreError::Unavailable("no endpoint".to_owned());
        for n in 0..client.endpoints.len() {
            let endpoint = &client.endpoints[(first + n) % client.endpoints.len()];
            let opened = client.connect(endpoint).and_then(|(mut stream, socket)| {
                send(&mut *stream, endpoint, "/v3/watch", body)?;
                let (status, rest) = receive_head(&mut *stream)?;
                socket.set_read_timeout(None)?;
                Ok((status, stream, socket, rest))
            });
            match opened {
                Ok((200, stream, socket, rest)) => return Ok((stream, socket, rest)),
                Ok((status, ..)) => last = refused(status, b""),
                Err(error) => {
                    last =
                        StoreError::Unavailable(format!("etcd at {}: {error}", endpoint.authority))
                }
            }
        }
        Err(last)
    }

    /// Reads the stream to its end; returns why it ended.
    fn follow(&self, texts: impl Read) -> StoreError {
        let messages = serde_json::Deserializer::from_reader(io::BufReader::new(texts))
            .into_iter::<WatchMessage>();
        for message in messages {
            let answer = match message {
                Ok(WatchMessage {
                    result: Some(answer),
                    ..
                }) => answer,
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
        state.heard = Instant::now();
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
        self.heard.notify_all();
        Ok(())
    }

    /// Ends the stream and with it the thread.
    pub(super) fn end(&self) {
        // Fails only if the connection is closed already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// The changes that an answer brings.
pub(super) fn changes_of(answer: WatchAnswer) -> Result<Vec<Change>, StoreError> {
    let change = |WatchEvent { kind, kv }: WatchEvent| {
        let deleted = kind.as_deref() == Some("DELETE");
        let value = (!deleted).then(|| decode(&kv.value)).transpose()?;
        Ok(Change {
            key: decode_key(&kv.key)?,
            value: value.map(Into::into),
            revision: kv.mod_revision,
        })
    };
    answer.events.into_iter().map(change).collect()
}
