// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Deflate blocks as bits (RFC 1951): stored blocks, and how a complete stream becomes one to which more can be
//! appended.
//!
//! libdeflate only writes complete streams. To append to one, the bit that marks its last block as final has to
//! be cleared, and nothing says where that block begins. So [`reopen`] walks over the symbols, without decoding
//! what they stand for. It costs about a tenth of libdeflate's time at level 6.

use thiserror::Error;

use crate::engine::ChunkEnd;

/// Bound on the bytes of one stored block: its length has 16 bits (RFC 1951, section 3.2.4).
const MAX_STORED: usize = 65_535;

/// Length of the header of a stored block at a byte, and of an empty one.
pub(crate) const STORED_HEADER: usize = 5;

/// An empty stored block behind the three bits of its header: length 0 and its complement.
pub(crate) const EMPTY: [u8; 4] = [0, 0, 0xff, 0xff];

/// An empty block with the fixed code that ends a stream.
pub const FINAL_EMPTY: [u8; 2] = [3, 0];

/// Most bytes that [`reopen`] appends.
pub const REOPEN_BYTES: usize = 5;

/// Longest code (RFC 1951, section 3.2.7).
const MAX_BITS: usize = 15;

/// Codes up to this length are found by one look into a table; longer ones are rare.
const TABLE_BITS: usize = 11;

/// The bytes are not a complete deflate stream.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("not a complete deflate stream")]
pub struct Malformed;

/// Bytes that stored blocks with this input take, with an empty block behind them where the stream continues.
#[must_use]
pub fn stored_len(input: usize, end: ChunkEnd) -> usize {
    let full = input.div_ceil(MAX_STORED);
    let blocks = match end {
        ChunkEnd::Final => full.max(1),
        ChunkEnd::Open => full + 1,
    };
    input + STORED_HEADER * blocks
}

/// Appends the input as stored blocks, and an empty one where the stream continues.
pub fn store(input: &[u8], end: ChunkEnd, output: &mut Vec<u8>) {
    let mut rest = input;
    loop {
        let (block, more) = rest.split_at(rest.len().min(MAX_STORED));
        let ends = end == ChunkEnd::Final && more.is_empty();
        // The last empty block of an unfinished stream comes from the second round on an empty rest.
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        output.push(u8::from(ends));
        output.extend(length.to_le_bytes());
        output.extend((!length).to_le_bytes());
        output.extend(block);
        if ends || block.is_empty() {
            return;
        }
        rest = more;
    }
}

/// Makes the complete stream in the first `length` bytes one that continues: its last block is no longer final, and
/// an empty stored block ends at a byte. Returns its length then.
///
/// # Errors
/// [`Malformed`] if it is not a complete stream, or there are no [`REOPEN_BYTES`] behind it.
pub fn reopen(stream: &mut [u8], length: usize) -> Result<usize, Malformed> {
    let walked = walk(stream.get(..length).ok_or(Malformed)?)?;
    if walked.end.div_ceil(8) != length {
        return Err(Malformed);
    }
    stream[walked.last_header / 8] &= !(1 << (walked.last_header % 8));
    // The three bits of the empty block's header are zero.
    if walked.end % 8 != 0 {
        stream[length - 1] &= (1 << (walked.end % 8)) - 1;
    }
    let at = (walked.end + 3).div_ceil(8);
    let room = stream.get_mut(length..at + EMPTY.len()).ok_or(Malformed)?;
    room.fill(0);
    stream[at..at + EMPTY.len()].copy_from_slice(&EMPTY);
    Ok(at + EMPTY.len())
}

/// Positions in a stream, in bits.
struct Walked {
    /// Position of the header of the last block.
    last_header: usize,
    /// Position behind the last block.
    end: usize,
}

fn walk(stream: &[u8]) -> Result<Walked, Malformed> {
    let mut bits = Bits { stream, at: 0 };
    let mut codes = Codes::new();
    loop {
        let header = bits.at;
        let last = bits.take(1)? == 1;
        match bits.take(2)? {
            0 => {
                bits.at = bits.at.next_multiple_of(8);
                let length = bits.take(16)?;
                if bits.take(16)? != !length & 0xffff {
                    return Err(Malformed);
                }
                bits.at += 8 * usize::try_from(length).map_err(|_| Malformed)?;
            }
            1 => {
                codes.fixed();
                codes.skip_block(&mut bits)?;
            }
            2 => {
                codes.read(&mut bits)?;
                codes.skip_block(&mut bits)?;
            }
            _ => return Err(Malformed),
        }
        if bits.at > 8 * stream.len() {
            return Err(Malformed);
        }
        if last {
            return Ok(Walked { last_header: header, end: bits.at });
        }
    }
}

/// A position in a stream. Bits behind its end are zero; the reader of blocks notices that it is there.
struct Bits<'a> {
    stream: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    /// Bits from the position on, at least 56.
    fn look(&self) -> u64 {
        let byte = self.at / 8;
        let word = match self.stream.get(byte..byte + 8) {
            Some(word) => u64::from_le_bytes(word.try_into().unwrap_or_default()),
            None => {
                let rest = self.stream.get(byte..).unwrap_or_default();
                let mut word = [0; 8];
                word[..rest.len()].copy_from_slice(rest);
                u64::from_le_bytes(word)
            }
        };
        word >> (self.at % 8)
    }

    /// The next bits, at most 32.
    fn take(&mut self, count: usize) -> Result<u32, Malformed> {
        if self.at + count > 8 * self.stream.len() {
            return Err(Malformed);
        }
        let found = self.look() & ((1 << count) - 1);
        self.at += count;
        u32::try_from(found).map_err(|_| Malformed)
    }

    /// A number that the next bits add to `base`.
    fn take_above(&mut self, base: usize, count: usize) -> Result<usize, Malformed> {
        Ok(base + usize::try_from(self.take(count)?).map_err(|_| Malformed)?)
    }
}

/// The two codes of a block.
struct Codes {
    literals: Code,
    distances: Code,
}

/// Packed description of a symbol: the number of bits that follow its code, and its kind.
const EXTRA_BITS_MASK: u8 = 0x0f;
const LITERAL: u8 = 0x00;
const LENGTH: u8 = 0x10;
const END: u8 = 0x20;
const INVALID: u8 = 0x30;
const KIND_MASK: u8 = 0x30;

/// Extra bits of the length codes 257 to 285 and of the distance codes (RFC 1951, section 3.2.5).
const LENGTH_EXTRA: [u8; 29] =
    [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
const DISTANCE_EXTRA: [u8; 30] = [
    0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13,
    13,
];

/// The order of the lengths of the code for code lengths (RFC 1951, section 3.2.7).
const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

const LITERALS: usize = 288;
const DISTANCES: usize = 32;

impl Codes {
    fn new() -> Self {
        Self { literals: Code::new(), distances: Code::new() }
    }

    /// The fixed code (RFC 1951, section 3.2.6).
    fn fixed(&mut self) {
        let mut lengths = [8; LITERALS];
        lengths[144..256].fill(9);
        lengths[256..280].fill(7);
        // These are complete codes.
        let _ = self.literals.build(&lengths, literal);
        let _ = self.distances.build(&[5; DISTANCES], distance);
    }

    /// The codes at the head of a dynamic block.
    fn read(&mut self, bits: &mut Bits<'_>) -> Result<(), Malformed> {
        let literals = bits.take_above(257, 5)?;
        let distances = bits.take_above(1, 5)?;
        let of_lengths = bits.take_above(4, 4)?;
        if literals > LITERALS - 2 {
            return Err(Malformed);
        }
        let mut widths = [0; ORDER.len()];
        for place in &ORDER[..of_lengths] {
            widths[*place] = u8::try_from(bits.take(3)?).map_err(|_| Malformed)?;
        }
        self.literals.build(&widths, |symbol| u8::try_from(symbol).unwrap_or(INVALID))?;
        let mut lengths = [0; LITERALS + DISTANCES];
        let mut filled = 0;
        while filled < literals + distances {
            let (symbol, _) = self.literals.next(bits)?;
            let (length, times) = match symbol {
                0..=15 => (symbol, 1),
                16 if filled > 0 => (lengths[filled - 1], bits.take_above(3, 2)?),
                17 => (0, bits.take_above(3, 3)?),
                18 => (0, bits.take_above(11, 7)?),
                _ => return Err(Malformed),
            };
            let slots = lengths.get_mut(filled..filled + times).ok_or(Malformed)?;
            slots.fill(length);
            filled += times;
        }
        if filled > literals + distances {
            return Err(Malformed);
        }
        let (of_literals, of_distances) = lengths[..filled].split_at(literals);
        self.literals.build(of_literals, literal)?;
        self.distances.build(of_distances, distance)
    }

    /// Goes behind the end of the block.
    fn skip_block(&self, bits: &mut Bits<'_>) -> Result<(), Malformed> {
        let end = 8 * bits.stream.len();
        while bits.at <= end {
            // Both codes with their extra bits take 48 bits at most.
            let window = bits.look();
            let (entry, used) = self.literals.find(window)?;
            bits.at += used;
            match entry & KIND_MASK {
                LITERAL => {}
                LENGTH => bits.at += self.distances.find(window >> used)?.1,
                END => return Ok(()),
                _ => return Err(Malformed),
            }
        }
        Err(Malformed)
    }
}

fn literal(symbol: usize) -> u8 {
    match symbol {
        0..=255 => LITERAL,
        256 => END,
        257..=285 => LENGTH | LENGTH_EXTRA[symbol - 257],
        _ => INVALID,
    }
}

fn distance(symbol: usize) -> u8 {
    DISTANCE_EXTRA.get(symbol).copied().unwrap_or(INVALID)
}

/// A canonical Huffman code, for walking.
struct Code {
    /// Description of the symbol that the next bits encode, and the bits of its code with the extra bits; 0 bits if the
    /// code is longer than [`TABLE_BITS`], or there is none.
    table: Vec<(u8, u8)>,
    /// Number of codes of each length.
    counts: [u16; MAX_BITS + 1],
    /// Descriptions of the symbols, in the order of their codes.
    entries: Vec<u8>,
}

impl Code {
    fn new() -> Self {
        Self {
            table: vec![(INVALID, 0); 1 << TABLE_BITS],
            counts: [0; MAX_BITS + 1],
            entries: Vec::with_capacity(LITERALS),
        }
    }

    /// A code may be incomplete (libdeflate and zlib write one distance code of one bit), but not ambiguous.
    fn build(&mut self, lengths: &[u8], entry_of: impl Fn(usize) -> u8) -> Result<(), Malformed> {
        self.table.fill((INVALID, 0));
        self.counts = [0; MAX_BITS + 1];
        self.entries.clear();
        for length in lengths {
            *self.counts.get_mut(usize::from(*length)).ok_or(Malformed)? += 1;
        }
        self.counts[0] = 0;
        let mut left = 1_i32;
        for count in &self.counts[1..] {
            left = 2 * left - i32::from(*count);
            if left < 0 {
                return Err(Malformed);
            }
        }
        let mut code = 0_u32;
        for length in 1..=MAX_BITS {
            code <<= 1;
            for (symbol, _) in
                lengths.iter().enumerate().filter(|(_, bits)| usize::from(**bits) == length)
            {
                let entry = entry_of(symbol);
                self.entries.push(entry);
                if length <= TABLE_BITS {
                    self.enter(code, length, entry);
                }
                code += 1;
            }
        }
        Ok(())
    }

    /// Enters a code under every continuation of it. Codes arrive with their first bit lowest.
    fn enter(&mut self, code: u32, length: usize, entry: u8) {
        let turned = code.reverse_bits() >> (32 - length);
        let used = u8::try_from(length).unwrap_or(0) + (entry & EXTRA_BITS_MASK);
        let first = usize::try_from(turned).unwrap_or(usize::MAX);
        for place in (first..1 << TABLE_BITS).step_by(1 << length) {
            self.table[place] = (entry, used);
        }
    }

    /// Description of the next symbol, and the bits of its code with its extra bits.
    fn find(&self, window: u64) -> Result<(u8, usize), Malformed> {
        let low = usize::try_from(window & ((1 << TABLE_BITS) - 1)).unwrap_or(0);
        let (entry, used) = self.table[low];
        if used != 0 {
            return Ok((entry, usize::from(used)));
        }
        let (entry, length) = self.search(window)?;
        Ok((entry, length + usize::from(entry & EXTRA_BITS_MASK)))
    }

    /// The next symbol of the code for code lengths, whose entries are the symbols.
    fn next(&self, bits: &mut Bits<'_>) -> Result<(u8, usize), Malformed> {
        let (symbol, length) = self.search(bits.look())?;
        bits.at += length;
        Ok((symbol, length))
    }

    /// Finds the symbol bit by bit, for codes longer than [`TABLE_BITS`].
    fn search(&self, window: u64) -> Result<(u8, usize), Malformed> {
        let (mut code, mut first, mut index) = (0_usize, 0_usize, 0_usize);
        for length in 1..=MAX_BITS {
            code |= usize::from(window >> (length - 1) & 1 == 1);
            let count = usize::from(self.counts[length]);
            if code < first + count {
                let entry = self.entries.get(index + code - first).ok_or(Malformed)?;
                return Ok((*entry, length));
            }
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        Err(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use flate2::Compression;
    use flate2::read::DeflateDecoder;
    use flate2::write::DeflateEncoder;
    use proptest::prelude::*;

    use super::*;

    fn inflate(stream: &[u8]) -> Vec<u8> {
        let mut found = Vec::new();
        DeflateDecoder::new(stream).read_to_end(&mut found).expect("a deflate stream");
        found
    }

    fn deflate(input: &[u8], level: u32) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(level));
        encoder.write_all(input).expect("memory");
        encoder.finish().expect("memory")
    }

    #[test]
    fn stored_blocks_have_the_promised_length_and_content() {
        for length in [0, 1, 65_534, 65_535, 65_536, 200_000] {
            let input: Vec<u8> = (0..length).map(|byte: usize| byte.to_le_bytes()[0]).collect();
            let mut last = Vec::new();
            store(&input, ChunkEnd::Final, &mut last);
            assert_eq!(last.len(), stored_len(length, ChunkEnd::Final), "{length}");
            assert_eq!(inflate(&last), input);
            let mut open = Vec::new();
            store(&input, ChunkEnd::Open, &mut open);
            assert_eq!(open.len(), stored_len(length, ChunkEnd::Open), "{length}");
            open.extend(FINAL_EMPTY);
            assert_eq!(inflate(&open), input);
        }
    }

    #[test]
    fn truncated_stream_is_not_reopened() {
        let whole = deflate(&b"the same words, the same words ".repeat(300), 6);
        for length in 0..whole.len() {
            let mut cut = whole.clone();
            cut.resize(length + REOPEN_BYTES, 0);
            assert_eq!(reopen(&mut cut, length), Err(Malformed), "{length}");
        }
        assert_eq!(reopen(&mut whole.clone(), whole.len()), Err(Malformed), "no room");
    }

    proptest! {
        #[test]
        fn reopened_streams_can_be_concatenated(
            words in prop::collection::vec(0_u16..600, 0..6000),
            level in 0_u32..10,
        ) {
            let input: Vec<u8> = words.iter().flat_map(|word| word.to_string().into_bytes()).collect();
            let mut stream = deflate(&input, level);
            let length = stream.len();
            stream.resize(length + REOPEN_BYTES, 0xaa);
            let open = reopen(&mut stream, length).expect("a complete stream");
            stream.truncate(open);
            stream.extend(deflate(&input, level));
            prop_assert_eq!(inflate(&stream), input.repeat(2));
        }

        #[test]
        fn walking_over_any_bytes_ends(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut stream = bytes.clone();
            stream.resize(bytes.len() + REOPEN_BYTES, 0);
            let _ = reopen(&mut stream, bytes.len());
        }
    }
}
