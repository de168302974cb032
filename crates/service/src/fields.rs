// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Fields of the service's own binary formats: key files and grants. Numbers are big-endian; text and byte
//! strings carry their length as 16 bits. Each call names its field, for the error.

/// The named field is missing, truncated, out of its bounds, or not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged(pub(crate) &'static str);

/// Takes fields from the front of bytes.
pub(crate) struct RecordReader<'a> {
    rest: &'a [u8],
}

impl<'a> RecordReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The bytes that no call has taken.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], Damaged> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Damaged(what))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Damaged> {
        self.take(N, what)?.try_into().map_err(|_| Damaged(what))
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, Damaged> {
        self.array(what).map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, Damaged> {
        self.array(what).map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, Damaged> {
        self.array(what).map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, Damaged> {
        self.array(what).map(u64::from_be_bytes)
    }

    /// Takes bytes after their length.
    pub(crate) fn short(&mut self, what: &'static str) -> Result<&'a [u8], Damaged> {
        let len = usize::from(self.u16(what)?);
        self.take(len, what)
    }

    /// Takes UTF-8 after its length.
    pub(crate) fn text(&mut self, what: &'static str) -> Result<&'a str, Damaged> {
        str::from_utf8(self.short(what)?).map_err(|_| Damaged(what))
    }
}

/// Appends a count or a length of 16 bits.
pub(crate) fn push_len(out: &mut Vec<u8>, len: usize, what: &'static str) -> Result<(), Damaged> {
    let len = u16::try_from(len).map_err(|_| Damaged(what))?;
    out.extend_from_slice(&len.to_be_bytes());
    Ok(())
}

/// Appends bytes after their length.
pub(crate) fn push_short(
    out: &mut Vec<u8>,
    bytes: &[u8],
    what: &'static str,
) -> Result<(), Damaged> {
    push_len(out, bytes.len(), what)?;
    out.extend_from_slice(bytes);
    Ok(())
}
