// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reads and writes the subset of DER (X.690 section 10) that key and signature formats need.
//!
//! This is not a general ASN.1 library: tags are single bytes, lengths have at most four bytes, and the
//! reader borrows from the input. It accepts only the minimal encoding. Key parsers must tell defects apart,
//! so they read field by field.

/// Tags in keys and signatures.
#[expect(missing_docs, reason = "the names of X.680, in its order of numbers")]
pub mod tag {
    pub const INTEGER: u8 = 0x02;
    pub const BIT_STRING: u8 = 0x03;
    pub const OCTET_STRING: u8 = 0x04;
    pub const NULL: u8 = 0x05;
    pub const OBJECT_IDENTIFIER: u8 = 0x06;
    pub const UTF8_STRING: u8 = 0x0c;
    pub const SEQUENCE: u8 = 0x30;
    pub const CONTEXT_0_PRIMITIVE: u8 = 0x80;
    pub const CONTEXT_1_PRIMITIVE: u8 = 0x81;
    pub const CONTEXT_0: u8 = 0xa0;
    pub const CONTEXT_1: u8 = 0xa1;
}

/// A cursor over DER bytes.
#[derive(Clone, Copy, Debug)]
pub struct DerReader<'a> {
    rest: &'a [u8],
}

impl<'a> DerReader<'a> {
    /// Starts at the first byte.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Takes the next element, which must have this tag, and returns its content.
    pub fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let [found, first, rest @ ..] = self.rest else {
            return None;
        };
        let (len, rest) = match first {
            0..=0x7f => (usize::from(*first), rest),
            0x81..=0x84 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                let len = digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit));
                // The shortest form has no leading zero, and uses the long form only for lengths from 128.
                (digits[0] != 0 && len >= 0x80).then_some((len, rest))?
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(len)?;
        (*found == tag).then(|| self.rest = rest)?;
        Some(content)
    }

    /// Takes the next element if it has this tag.
    ///
    /// Returns `None` for a malformed element, and `Some(None)` at the end or for another tag.
    pub fn take_optional(&mut self, tag: u8) -> Option<Option<&'a [u8]>> {
        if self.peek() == Some(tag) { self.take(tag).map(Some) } else { Some(None) }
    }

    /// Takes the next element. Returns the whole element with its tag and length, and its content.
    pub fn take_whole(&mut self, tag: u8) -> Option<(&'a [u8], &'a [u8])> {
        let before = self.rest;
        let content = self.take(tag)?;
        Some((&before[..before.len() - self.rest.len()], content))
    }

    /// Takes a non-negative `INTEGER`. Returns its big-endian magnitude without leading zeros (empty for
    /// zero).
    pub fn take_unsigned(&mut self) -> Option<&'a [u8]> {
        match self.take(tag::INTEGER)? {
            [0] => Some(&[]),
            [0, magnitude @ ..] if magnitude[0] & 0x80 != 0 => Some(magnitude),
            [] | [0 | 0x80..=0xff, ..] => None,
            magnitude => Some(magnitude),
        }
    }

    /// Whether all bytes have been read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The tag of the next element; `None` at the end.
    #[must_use]
    pub fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }
}

/// Most bytes that [`push_header`] appends.
pub const MAX_HEADER_LEN: usize = 6;

/// Appends tag and length of an element; the caller appends its content of `len` bytes, less than 4 GiB. It
/// is for secrets, whose buffers must not grow: reserve [`MAX_HEADER_LEN`] before.
pub fn push_header(out: &mut Vec<u8>, tag: u8, len: usize) {
    let bytes = len.to_be_bytes();
    let digits = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
    out.push(tag);
    match digits {
        [] => out.push(0),
        [short @ 0..=0x7f] => out.push(*short),
        // At most eight bytes, so the count fits the low seven bits.
        long => {
            out.push(0x80 | u8::try_from(long.len()).unwrap_or(8));
            out.extend_from_slice(long);
        }
    }
}

/// Encodes one element. Not for secrets, because the buffers are not zeroised.
#[must_use]
pub fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(MAX_HEADER_LEN + content.len());
    push_header(&mut out, tag, content.len());
    out.extend_from_slice(content);
    out
}

/// Encodes an `INTEGER` from a big-endian magnitude.
#[must_use]
pub fn integer(magnitude: &[u8]) -> Vec<u8> {
    let zeros = magnitude.iter().take_while(|byte| **byte == 0).count();
    let significant = &magnitude[zeros..];
    let mut content = Vec::with_capacity(significant.len() + 1);
    if significant.first().is_none_or(|first| first & 0x80 != 0) {
        content.push(0);
    }
    content.extend_from_slice(significant);
    element(tag::INTEGER, &content)
}

/// Encodes a `SubjectPublicKeyInfo` from a whole `AlgorithmIdentifier` and the encoded public key.
#[must_use]
pub fn subject_public_key_info(algorithm: &[u8], public_key: &[u8]) -> Vec<u8> {
    // The leading zero byte means that no bits are unused.
    let bits = element(tag::BIT_STRING, &[&[0], public_key].concat());
    element(tag::SEQUENCE, &[algorithm, &bits].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn der_lengths_have_the_shortest_form() {
        for (len, header) in [
            (0_usize, &[4, 0][..]),
            (127, &[4, 127]),
            (128, &[4, 0x81, 128]),
            (255, &[4, 0x81, 255]),
            (256, &[4, 0x82, 1, 0]),
            (65_536, &[4, 0x83, 1, 0, 0]),
        ] {
            let der = element(tag::OCTET_STRING, &vec![7; len]);
            assert!(der.starts_with(header));
            let mut reader = DerReader::new(&der);
            assert_eq!(reader.take(tag::OCTET_STRING), Some(&vec![7; len][..]));
            assert!(reader.is_empty());
        }
        for bad in [
            &[4, 0x81, 1, 7][..],
            &[4, 0x82, 0, 0x80],
            &[4, 2, 7],
            &[4, 0x80, 7, 0, 0],
            &[4, 0x85, 0, 0, 0, 0, 1, 7],
            &[4, 0xff],
            &[4],
            &[],
            &[5, 1, 7],
        ] {
            let mut reader = DerReader::new(bad);
            assert_eq!(reader.take(tag::OCTET_STRING), None, "{bad:?}");
            assert_eq!(reader.peek(), bad.first().copied(), "nothing was taken");
        }
    }

    #[test]
    fn der_integers_are_minimal_and_not_negative() {
        let read = |der: &'static [u8]| DerReader::new(der).take_unsigned();
        assert_eq!(read(&[2, 1, 0]), Some(&[][..]));
        assert_eq!(read(&[2, 1, 0x7f]), Some(&[0x7f][..]));
        assert_eq!(read(&[2, 2, 0, 0x80]), Some(&[0x80][..]));
        assert_eq!(read(&[2, 2, 0, 1]), None);
        assert_eq!(read(&[2, 1, 0x80]), None);
        assert_eq!(read(&[2, 0]), None);
        assert_eq!(integer(&[0, 0, 0x80]), [2, 2, 0, 0x80]);
        assert_eq!(integer(&[]), [2, 1, 0]);
    }

    #[test]
    fn der_optional_element_is_present_absent_or_malformed() {
        let mut reader = DerReader::new(&[0xa0, 1, 7, 4, 0]);
        assert_eq!(reader.take_optional(tag::CONTEXT_1), Some(None));
        assert_eq!(reader.take_optional(tag::CONTEXT_0), Some(Some(&[7][..])));
        assert_eq!(reader.take_whole(tag::OCTET_STRING), Some((&[4, 0][..], &[][..])));
        assert_eq!(reader.take_optional(tag::NULL), Some(None));
        assert_eq!(DerReader::new(&[5, 9]).take_optional(tag::NULL), None);
    }
}
