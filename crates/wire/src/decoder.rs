// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Turns a stream of bytes, in whatever pieces it comes, into messages.
//!
//! The decoder lends out the place for the next read, so that bytes are copied once by the kernel
//! and once into the message. It holds at most one unfinished frame, and refuses a frame from its
//! header alone if that cannot be the start of a message.

use std::fmt;
use std::hint::black_box;
use std::marker::PhantomData;

use zeroize::Zeroize;

use crate::codec::{Message, parse_header};
use crate::error::{Peer, WireError};
use crate::{HEADER_LEN, MAX_FRAME_LEN};

/// The least room that [`Decoder::space`] offers, in bytes: one page, so that a read is worth its
/// system call.
pub const MIN_SPACE: usize = 4 * 1024;

/// Size of the buffer at first, in bytes. Enough for batches of signatures; an idle connection
/// should not cost [`MAX_BUFFER`].
const FIRST_BUFFER: usize = 16 * 1024;

/// Bound on the buffer, in bytes: the longest unfinished frame, and room to read.
pub const MAX_BUFFER: usize = MAX_FRAME_LEN + MIN_SPACE;

/// Decodes the messages of one direction of one connection.
///
/// ```text
/// loop {
///     let n = socket.read(decoder.space())?;     // 0: the peer has closed
///     decoder.filled(n);
///     while let Some(message) = decoder.next()? { … }
/// }
/// ```
///
/// After an error the stream cannot be understood any more: `next` repeats the error.
///
/// Bytes that may have been secret (imported keys, outputs of jobs) are overwritten with zeros as
/// soon as their message is decoded, and the whole buffer is when it is dropped.
pub struct Decoder<M> {
    /// Initialised memory; the valid bytes are `start..end`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Whether a read filled all the room it was given: then more is worth offering.
    crowded: bool,
    /// No frame has been decoded yet: an impossible header may be another protocol.
    fresh: bool,
    failed: Option<WireError>,
    message: PhantomData<fn() -> M>,
}

impl<M: Message> Decoder<M> {
    /// A decoder for a new connection. Allocates at the first [`Self::space`].
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

    /// Where the next read goes: at least [`MIN_SPACE`] bytes, provided that [`Self::next`] was
    /// called until it had no more.
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

    /// Says how many bytes were put at the front of [`Self::space`]. More than fit count as all.
    pub fn filled(&mut self, count: usize) {
        let room = self.buffer.len() - self.end;
        self.end += count.min(room);
        self.crowded = count >= room && room > 0;
    }

    /// The next message, or none before more bytes have come.
    ///
    /// # Errors
    /// What is wrong with the bytes. Sticky: close the connection.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator would end at the first None"
    )]
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

    /// How many bytes have come that no message has used.
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
            wipe(payload);
        }
        self.start += HEADER_LEN + length;
        self.fresh = false;
        message.map(Some)
    }

    /// Moves the unread bytes to the front. Only ever the beginning of one frame is moved, and each
    /// frame at most once, because afterwards there is room for the rest of it.
    fn compact(&mut self) {
        if self.start == 0 {
            return;
        }
        self.buffer.copy_within(self.start..self.end, 0);
        let moved = self.end - self.start;
        wipe(&mut self.buffer[moved..self.end]);
        (self.start, self.end) = (0, moved);
    }

    /// Enlarges the buffer to `wanted` bytes within its bounds, leaving no copy behind.
    fn grow(&mut self, wanted: usize) {
        let unfinished = match self.buffer[self.start..self.end].first_chunk::<HEADER_LEN>() {
            Some(header) => parse_header::<M>(*header).map_or(0, |(_, length)| length + HEADER_LEN),
            None => 0,
        };
        let size = wanted
            .max(unfinished + MIN_SPACE)
            .clamp(FIRST_BUFFER, MAX_BUFFER);
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

/// Overwrites bytes of a buffer that lives on. `black_box` makes the compiler believe that they are
/// read, so that this is one `memset` and not the byte-wise volatile loop of `zeroize`.
pub(crate) fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    black_box(bytes);
}
