// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Takes fields from the front of a payload. Each call names its field, so that an error shows the developer
//! of another implementation where to look.

use crate::error::WireError;

/// The rest of a payload.
pub(crate) struct PayloadReader<'a> {
    rest: &'a [u8],
}

impl<'a> PayloadReader<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    #[inline]
    pub(crate) fn array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], WireError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(WireError::Truncated(field))?;
        self.rest = rest;
        Ok(*array)
    }

    #[inline]
    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, WireError> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    #[inline]
    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, WireError> {
        self.array(field).map(u16::from_le_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, WireError> {
        self.array(field).map(u32::from_le_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, WireError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// Takes bytes after their `u16` length.
    #[inline]
    pub(crate) fn bytes(
        &mut self,
        field: &'static str,
        limit: usize,
    ) -> Result<&'a [u8], WireError> {
        let length = usize::from(self.u16(field)?);
        self.take(field, length, limit)
    }

    /// Takes text after its `u8` length.
    pub(crate) fn text(&mut self, field: &'static str, limit: usize) -> Result<String, WireError> {
        let length = usize::from(self.u8(field)?);
        let bytes = self.take(field, length, limit)?;
        let text = str::from_utf8(bytes).map_err(|_| WireError::NotUtf8(field))?;
        if text.chars().any(char::is_control) {
            return Err(WireError::ControlCharacter(field));
        }
        Ok(text.to_owned())
    }

    /// Number of bytes left.
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Checks that no bytes are left.
    pub(crate) fn finish(self) -> Result<(), WireError> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(WireError::Trailing(left)),
        }
    }

    #[inline]
    fn take(
        &mut self,
        field: &'static str,
        length: usize,
        limit: usize,
    ) -> Result<&'a [u8], WireError> {
        if length > limit {
            return Err(WireError::TooLong { field, length, limit });
        }
        let (bytes, rest) =
            self.rest.split_at_checked(length).ok_or(WireError::Truncated(field))?;
        self.rest = rest;
        Ok(bytes)
    }
}
