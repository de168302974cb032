// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Decodes a stream of bytes, which may arrive in pieces of any size, into messages.
//!
//! The decoder lends its buffer for the next read, so that bytes are copied once by the operating system and
//! once into the message. It holds at most one unfinished frame. It refuses a frame with an invalid header
//! before the payload arrives.

use std::fmt;
use std::marker::PhantomData;

use zeroize::Zeroize;

use crate::codec::{Message, parse_header};
use crate::error::{Peer, WireError};
use crate::writer::wipe_bytes;
use crate::{HEADER_LEN, MAX_FRAME_LEN};

/// Smallest room that [`Decoder::space`] offers, in bytes: one page, so that a read is worth its system call.
pub const MIN_SPACE: usize = 4 * 1024;

/// Initial size of the buffer, in bytes. It is enough for batches of signatures, and spares idle connections
/// the cost of [`MAX_BUFFER`].
const FIRST_BUFFER: usize = 16 * 1024;

/// Bound on the buffer, in bytes: the longest unfinished frame, and room for a read.
pub const MAX_BUFFER: usize = MAX_FRAME_LEN + MIN_SPACE;

/// Decodes the messages of one direction of one connection.
///
/// ```
/// use std::io::Read;
///
/// use millrace_wire::{ClientMessage, Decoder, Message};
///
/// let mut sent = Vec::new();
/// ClientMessage::Ping { token: 7 }.encode(&mut sent);
/// let mut socket = sent.as_slice();
///
/// let mut decoder = Decoder::<ClientMessage>::new();
/// let mut pings = 0;
/// loop {
///     let count = socket.read(decoder.space())?;
///     if count == 0 {
///         break; // the peer has closed
///     }
///     decoder.filled(count);
///     while let Some(message) = decoder.next()? {
///         pings += u32::from(matches!(message, ClientMessage::Ping { token: 7 }));
///     }
/// }
/// assert_eq!(pings, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// After an error the rest of the stream has no meaning: `next` repeats the error.
///
/// The decoder overwrites bytes that may be secret (imported keys, outputs of jobs) with zeros when it has
/// decoded their message, and the whole buffer when it is dropped.
pub struct Decoder<M> {
    /// Initialised memory; the valid bytes are `start..end`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Whether the last read filled all its room; then the next read gets more.
    crowded: bool,
    /// True until the first frame is decoded. Until then an invalid header may be another protocol.
    fresh: bool,
    failed: Option<WireError>,
    message: PhantomData<fn() -> M>,
}

impl<M: Message> Decoder<M> {
    /// Makes a decoder for a new connection. It allocates at the first [`Self::space`].
    #[must_use]
    pub fn new() -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            end: 0,
            crowded: false,
            fresh: true,
            failed: None,
            message: PhantomData,
        }
    }

    /// Returns the buffer for the next read: at least [`MIN_SPACE`] bytes, if [`Self::next`] was called until
    /// it returned `None`.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.crowded {
            self.crowded = false;
            self.grow(self.buffer.len() * 2);
        }
        if self.buffer.len() - self.end < MIN_SPACE {
            self.compact();
            self.grow(self.end + MIN_SPACE);
        }
        &mut self.buffer[self.end..]
    }

    /// Adds the first `count` bytes of [`Self::space`] to the stream. A larger count means all of it.
    pub fn filled(&mut self, count: usize) {
        let room = self.buffer.len() - self.end;
        self.end += count.min(room);
        self.crowded = count >= room && room > 0;
    }

    /// Returns the next message, or `None` until more bytes arrive.
    ///
    /// # Errors
    /// The first defect of the bytes. Sticky: close the connection.
    #[expect(clippy::should_implement_trait, reason = "an iterator would end at the first None")]
    pub fn next(&mut self) -> Result<Option<M>, WireError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let result = self.try_next();
        if let Err(error) = &result {
            self.failed = Some(*error);
        }
        result
    }

    /// Number of bytes that have arrived and belong to no decoded message.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.end - self.start
    }

    fn try_next(&mut self) -> Result<Option<M>, WireError> {
        let unread = &mut self.buffer[self.start..self.end];
        let Some(header) = unread.first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let (kind, length) = match parse_header::<M>(*header) {
            Ok(header) => header,
            Err(error) if self.fresh => {
                let [a, b, c, d, ..] = *header;
                return Err(Peer::recognise([a, b, c, d]).map_or(error, WireError::NotMillrace));
            }
            Err(error) => return Err(error),
        };
        let Some(payload) = unread.get_mut(HEADER_LEN..HEADER_LEN + length) else {
            return Ok(None);
        };
        let message = M::decode(kind, payload);
        if M::may_be_secret(kind) {
            wipe_bytes(payload);
        }
        self.start += HEADER_LEN + length;
        self.fresh = false;
        message.map(Some)
    }

    /// Moves the unread bytes to the front. They are the beginning of one frame. Each frame is moved at most
    /// once, because afterwards there is room for the rest of it.
    fn compact(&mut self) {
        if self.start == 0 {
            return;
        }
        self.buffer.copy_within(self.start..self.end, 0);
        let moved = self.end - self.start;
        wipe_bytes(&mut self.buffer[moved..self.end]);
        (self.start, self.end) = (0, moved);
    }

    /// Enlarges the buffer to `wanted` bytes within its bounds, leaving no copy behind.
    fn grow(&mut self, wanted: usize) {
        let unfinished = match self.buffer[self.start..self.end].first_chunk::<HEADER_LEN>() {
            Some(header) => parse_header::<M>(*header).map_or(0, |(_, length)| length + HEADER_LEN),
            None => 0,
        };
        let size = wanted.max(unfinished + MIN_SPACE).clamp(FIRST_BUFFER, MAX_BUFFER);
        if size <= self.buffer.len() {
            return;
        }
        let mut larger = vec![0; size];
        let moved = self.end - self.start;
        larger[..moved].copy_from_slice(&self.buffer[self.start..self.end]);
        self.buffer.zeroize();
        self.buffer = larger;
        (self.start, self.end) = (0, moved);
    }
}

impl<M: Message> Default for Decoder<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M> Drop for Decoder<M> {
    fn drop(&mut self) {
        self.buffer.zeroize();
    }
}

impl<M> fmt::Debug for Decoder<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder")
            .field("buffered", &(self.end - self.start))
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}
