// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Bytes on their way to a node. They may hold an imported key. So they are zeroised once they have been
//! sent, and growing leaves no copy behind.

use zeroize::Zeroize;

/// Bound on the bytes that wait for one node, in bytes. A node that reads nothing gets no more jobs:
/// about 10 000 of RSA-2048.
pub(crate) const MAX_PENDING: usize = 4 * 1024 * 1024;

/// Bound on the capacity that an empty buffer keeps, in bytes: room for the largest frame.
const MAX_KEPT_CAPACITY: usize = 64 * 1024;

/// A queue of bytes: appended at the end, sent from the front.
#[derive(Default)]
pub(crate) struct OutBuffer {
    bytes: Vec<u8>,
    sent: usize,
    secret: bool,
}

impl OutBuffer {
    /// The buffer to which public bytes are appended.
    pub(crate) fn append(&mut self) -> &mut Vec<u8> {
        if self.secret {
            // Room for any frame, so that the append does not reallocate around a key.
            self.reserve(millrace_wire::MAX_FRAME_LEN);
        }
        &mut self.bytes
    }

    /// The buffer to which bytes with a secret are appended: at most one frame.
    pub(crate) fn append_secret(&mut self) -> &mut Vec<u8> {
        self.reserve(millrace_wire::MAX_FRAME_LEN);
        self.secret = true;
        &mut self.bytes
    }

    fn reserve(&mut self, more: usize) {
        if self.bytes.capacity() - self.bytes.len() < more {
            let mut bigger = Vec::with_capacity((self.bytes.len() + more) * 2);
            bigger.extend_from_slice(&self.bytes);
            if self.secret {
                self.bytes.zeroize();
            }
            self.bytes = bigger;
        }
    }

    /// Bytes that are still to be sent.
    pub(crate) fn pending(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Whether everything was sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Whether a further job would exceed [`MAX_PENDING`].
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() - self.sent >= MAX_PENDING
    }

    /// Notes that the first `n` pending bytes were sent.
    pub(crate) fn consume(&mut self, n: usize) {
        self.sent += n;
        debug_assert!(self.sent <= self.bytes.len(), "more was sent than there was");
        if self.is_empty() {
            self.wipe();
        } else if self.sent >= MAX_KEPT_CAPACITY.max(self.pending().len()) {
            // Under steady load something is always left; what was sent must not pile up before it.
            let left = self.pending().len();
            self.bytes.copy_within(self.sent.., 0);
            if self.secret {
                self.bytes[left..].zeroize();
            }
            self.bytes.truncate(left);
            self.sent = 0;
        }
    }

    fn wipe(&mut self) {
        if self.secret {
            self.bytes.zeroize();
            self.secret = false;
        }
        self.bytes.clear();
        self.bytes.shrink_to(MAX_KEPT_CAPACITY);
        self.sent = 0;
    }
}

impl Drop for OutBuffer {
    fn drop(&mut self) {
        self.wipe();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_order() {
        let mut out = OutBuffer::default();
        out.append().extend_from_slice(b"abc");
        out.consume(2);
        out.append_secret().extend_from_slice(b"def");
        assert_eq!(out.pending(), b"cdef");
        out.append().extend_from_slice(b"g");
        assert_eq!(out.pending(), b"cdefg");
        out.consume(5);
        assert!(out.is_empty());
        assert_eq!(out.pending(), b"");
    }

    #[test]
    fn sent_bytes_make_room_although_some_always_wait() {
        let mut out = OutBuffer::default();
        out.append_secret().extend_from_slice(&[7; 100]);
        for _ in 0..10_000 {
            out.append().extend_from_slice(&[1; 1000]);
            out.consume(out.pending().len() - 1);
        }
        assert_eq!(out.pending(), [1]);
        assert!(out.bytes.capacity() < 8 * MAX_KEPT_CAPACITY, "{}", out.bytes.capacity());
    }

    #[test]
    fn secret_does_not_move_without_a_wipe() {
        let mut out = OutBuffer::default();
        out.append_secret().extend_from_slice(&[7; 1000]);
        let before = out.append().as_ptr();
        // What `append` promises to a public frame: it fits without another allocation.
        out.append().extend_from_slice(&vec![1; millrace_wire::MAX_FRAME_LEN]);
        assert_eq!(out.bytes.as_ptr(), before);
    }

    #[test]
    fn buffer_of_a_node_that_reads_nothing_fills_up() {
        let mut out = OutBuffer::default();
        out.append().resize(MAX_PENDING, 0);
        assert!(out.is_full());
        out.consume(1);
        assert!(!out.is_full());
    }
}
