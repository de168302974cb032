// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The little DER that key formats need: reading on top of AWS-LC's byte-string parser, which
//! refuses everything that is not minimal, and writing a `SubjectPublicKeyInfo`.
//!
//! Not a general ASN.1 library: tags are single bytes, and what is read is borrowed.

use crate::software::sys;

/// Tags that occur in keys.
pub(crate) mod tag {
    pub(crate) const INTEGER: u8 = 0x02;
    pub(crate) const BIT_STRING: u8 = 0x03;
    pub(crate) const OCTET_STRING: u8 = 0x04;
    pub(crate) const NULL: u8 = 0x05;
    pub(crate) const OBJECT_IDENTIFIER: u8 = 0x06;
    pub(crate) const SEQUENCE: u8 = 0x30;
    /// `[0]`, constructed.
    pub(crate) const CONTEXT_0: u8 = 0xa0;
    /// `[0]`, primitive.
    pub(crate) const CONTEXT_0_PRIMITIVE: u8 = 0x80;
    /// `[1]`, constructed.
    pub(crate) const CONTEXT_1: u8 = 0xa1;
    /// `[1] IMPLICIT BIT STRING`, primitive.
    pub(crate) const CONTEXT_1_PRIMITIVE: u8 = 0x81;
}

/// A position in DER bytes.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Takes the next element, which must have this tag, and returns its content.
    pub(crate) fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (content, rest) = sys::asn1_element(self.rest, tag)?;
        self.rest = rest;
        Some(content)
    }

    /// Takes the next element if it has this tag.
    ///
    /// `None` is a malformed element; `Some(None)` is the end or another tag.
    #[expect(
        clippy::option_option,
        reason = "malformed, absent and present are three answers"
    )]
    pub(crate) fn take_optional(&mut self, tag: u8) -> Option<Option<&'a [u8]>> {
        if self.rest.first() == Some(&tag) {
            self.take(tag).map(Some)
        } else {
            Some(None)
        }
    }

    /// Takes the next element and returns it whole, with its tag and length, and its content.
    pub(crate) fn take_whole(&mut self, tag: u8) -> Option<(&'a [u8], &'a [u8])> {
        let before = self.rest;
        let content = self.take(tag)?;
        Some((&before[..before.len() - self.rest.len()], content))
    }

    /// Takes an `INTEGER` that is not negative, and returns its big-endian magnitude without
    /// leading zeros (empty for zero).
    pub(crate) fn take_unsigned(&mut self) -> Option<&'a [u8]> {
        unsigned(self.take(tag::INTEGER)?)
    }

    /// Whether everything has been read.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The tag of the next element, if there is one.
    pub(crate) fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }
}

/// The magnitude in the content of an `INTEGER`, if that is minimal and not negative.
fn unsigned(content: &[u8]) -> Option<&[u8]> {
    match content {
        [] => None,
        [0] => Some(&[]),
        [0, next, ..] if next & 0x80 != 0 => Some(&content[1..]),
        [0, ..] => None,
        [first, ..] if first & 0x80 != 0 => None,
        _ => Some(content),
    }
}

/// One element.
pub(crate) fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(content.len() + 6);
    out.push(tag);
    let length = content.len().to_be_bytes();
    let significant = &length[length.iter().take_while(|byte| **byte == 0).count()..];
    match significant {
        [] => out.push(0),
        [short] if *short < 0x80 => out.push(*short),
        // At most eight length bytes, so the count fits the low seven bits.
        long => {
            out.push(0x80 | u8::try_from(long.len()).unwrap_or(8));
            out.extend_from_slice(long);
        }
    }
    out.extend_from_slice(content);
    out
}

/// An `INTEGER` from a big-endian magnitude.
pub(crate) fn integer(magnitude: &[u8]) -> Vec<u8> {
    let zeros = magnitude.iter().take_while(|byte| **byte == 0).count();
    let significant = &magnitude[zeros..];
    let mut content = Vec::with_capacity(significant.len() + 1);
    if significant.first().is_none_or(|first| first & 0x80 != 0) {
        content.push(0);
    }
    content.extend_from_slice(significant);
    element(tag::INTEGER, &content)
}

/// A `SubjectPublicKeyInfo` from a whole `AlgorithmIdentifier` and the encoded public key.
pub(crate) fn subject_public_key_info(algorithm: &[u8], public_key: &[u8]) -> Vec<u8> {
    let mut bits = Vec::with_capacity(public_key.len() + 1);
    bits.push(0); // no unused bits
    bits.extend_from_slice(public_key);
    let mut content = algorithm.to_vec();
    content.extend_from_slice(&element(tag::BIT_STRING, &bits));
    element(tag::SEQUENCE, &content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_minimal_on_the_way_out_and_demanded_on_the_way_in() {
        for (len, header) in [
            (0_usize, &[4, 0][..]),
            (127, &[4, 127]),
            (128, &[4, 0x81, 128]),
            (256, &[4, 0x82, 1, 0]),
        ] {
            let der = element(tag::OCTET_STRING, &vec![7; len]);
            assert!(der.starts_with(header));
            assert_eq!(
                Reader::new(&der).take(tag::OCTET_STRING),
                Some(&vec![7; len][..])
            );
        }
        assert_eq!(Reader::new(&[4, 0x81, 1, 7]).take(tag::OCTET_STRING), None);
        assert_eq!(Reader::new(&[4, 2, 7]).take(tag::OCTET_STRING), None);
        assert_eq!(
            Reader::new(&[4, 0x80, 7, 0, 0]).take(tag::OCTET_STRING),
            None
        );
    }

    #[test]
    fn integers_are_minimal_and_not_negative() {
        let read = |der: &'static [u8]| Reader::new(der).take_unsigned();
        assert_eq!(read(&[2, 1, 0]), Some(&[][..]));
        assert_eq!(read(&[2, 2, 0, 0x80]), Some(&[0x80][..]));
        assert_eq!(read(&[2, 2, 0, 1]), None);
        assert_eq!(read(&[2, 1, 0x80]), None);
        assert_eq!(read(&[2, 0]), None);
        assert_eq!(integer(&[0, 0, 0x80]), [2, 2, 0, 0x80]);
        assert_eq!(integer(&[]), [2, 1, 0]);
    }
}
