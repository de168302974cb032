// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Choice of the processor's engine that compresses a chunk, by level, length and kind of bytes.
//!
//! | level | length | kind | first engine | why |
//! |---|---|---|---|---|
//! | 1 | any | any | ISA-L | 4 to 6 times as fast as zlib's level 1; output no longer |
//! | 2 to 9 | to [`MAX_SHORT_LEN`] | any | libdeflate's level 1 | a third less time, output at most 2 % longer |
//! | 2 to 9 | from [`MIN_SAMPLED_LEN`] | packed | ISA-L at its highest level, then stored blocks | nothing to find: at 100 KB a third of libdeflate's time, length within 2 % |
//! | 2 to 9 | otherwise | text | libdeflate's level | only it has the length of zlib's level |
//!
//! Every kind of text wants the same engine (`docs/adr/0033-kinds-of-content.md` has the figures).

use millrace_edge::compression::EngineKind;

use crate::settings::CompressionGoal;

/// Bound on a chunk, in bytes, that libdeflate compresses at level 1 whatever was asked: 1,000 bytes take 8.5 µs
/// instead of 13, for output that is 0.4 to 1.9 % longer than zlib's. At 2,000 bytes it would be up to 3.7 %.
pub const MAX_SHORT_LEN: usize = 1024;

/// Shortest chunk whose kind is examined, in bytes. The sample costs about 1 µs, a fiftieth of libdeflate's time for
/// the chunk.
pub const MIN_SAMPLED_LEN: usize = 8 * 1024;

/// Number of stretches of the sample. They lie over the whole chunk, so that a head of text does not decide.
const STRETCHES: usize = 16;

/// Bytes of each stretch: 1,024 samples in all.
const STRETCH: usize = 64;

/// Least effective number of byte values of a packed chunk. Measured medians: text 7 to 24, base64 51, fonts 31 (at
/// most 78), PNG 158, gzip and WOFF2 204, about the most that 1,024 samples can show.
const PACKED_VALUES: usize = 128;

/// Kind of a chunk's content. Each kind has an engine that suits it best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentKind {
    /// Content whose bytes repeat or are not equally frequent: markup, programs, JSON, plain text, also base64.
    Text,
    /// Bytes that were compressed or encrypted before.
    Packed,
}

impl ContentKind {
    /// Looks at a sample of at most 1 KiB. The answer depends on the chunk alone.
    #[must_use]
    pub fn of(chunk: &[u8]) -> Self {
        if chunk.len() < MIN_SAMPLED_LEN {
            return Self::Text;
        }
        let mut counts = [0_usize; 256];
        let last = chunk.len() - STRETCH;
        for stretch in 0..STRETCHES {
            let at = last * stretch / (STRETCHES - 1);
            for byte in &chunk[at..at + STRETCH] {
                counts[usize::from(*byte)] += 1;
            }
        }
        // The reciprocal of the probability that two samples are equal.
        let samples = STRETCHES * STRETCH;
        let pairs: usize = counts.iter().map(|count| count * count).sum();
        if samples * samples / pairs >= PACKED_VALUES { Self::Packed } else { Self::Text }
    }
}

/// An engine with the level that it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamChoice {
    /// [`EngineKind::Isal`] or [`EngineKind::Libdeflate`].
    pub engine: EngineKind,
    /// Level of compression, in zlib's numbers.
    pub level: u8,
    /// Whether the chunk is stored if this engine cannot make it shorter. Otherwise the next engine tries.
    pub or_stored: bool,
}

/// zlib's level from which ISA-L's highest one serves. It splits a chunk into blocks where a part compresses.
const DEEPEST_ISAL: u8 = 6;

/// The engines to try for a chunk, in this order.
#[must_use]
pub fn choose(level: u8, goal: CompressionGoal, chunk: &[u8]) -> [StreamChoice; 2] {
    let isal = StreamChoice { engine: EngineKind::Isal, level, or_stored: false };
    let libdeflate = StreamChoice {
        engine: EngineKind::Libdeflate,
        level: if chunk.len() <= MAX_SHORT_LEN { 1 } else { level },
        or_stored: false,
    };
    if level <= 1 || goal == CompressionGoal::Cpu {
        return [isal, libdeflate];
    }
    match ContentKind::of(chunk) {
        ContentKind::Text => [libdeflate, isal],
        ContentKind::Packed => {
            let deepest = StreamChoice { level: level.max(DEEPEST_ISAL), or_stored: true, ..isal };
            [deepest, libdeflate]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        fastrand::Rng::with_seed(1).fill(&mut bytes);
        bytes
    }

    fn first(level: u8, goal: CompressionGoal, chunk: &[u8]) -> (EngineKind, u8) {
        let [first, second] = choose(level, goal, chunk);
        assert_ne!(first.engine, second.engine);
        (first.engine, first.level)
    }

    #[test]
    fn packed_bytes_go_to_isal_and_text_to_libdeflate() {
        let text = "<li>an item of a list</li>\n".repeat(1_000);
        let packed = noise(MIN_SAMPLED_LEN);
        let (isal, libdeflate) = (EngineKind::Isal, EngineKind::Libdeflate);
        for level in 2..=9 {
            let same = |chunk| first(level, CompressionGoal::Same, chunk);
            assert_eq!(same(&packed), (isal, level.max(DEEPEST_ISAL)));
            assert!(choose(level, CompressionGoal::Same, &packed)[0].or_stored);
            assert_eq!(same(text.as_bytes()), (libdeflate, level));
            assert_eq!(same(&packed[1..]), (libdeflate, level), "too short to look at");
            assert_eq!(same(&packed[..MAX_SHORT_LEN]), (libdeflate, 1));
            assert_eq!(first(level, CompressionGoal::Cpu, text.as_bytes()), (isal, level));
        }
        assert_eq!(first(1, CompressionGoal::Same, text.as_bytes()), (isal, 1));
        assert_eq!(first(1, CompressionGoal::Same, &[]), (isal, 1));
    }

    #[test]
    fn text_in_front_of_packed_bytes_does_not_decide_and_base64_is_text() {
        let mut page = b"GIF89a and a head of text, as pictures have it. ".repeat(20);
        page.extend(noise(60_000));
        assert_eq!(ContentKind::of(&page), ContentKind::Packed);
        let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let base64: Vec<u8> =
            noise(60_000).iter().map(|byte| digits[usize::from(byte % 64)]).collect();
        assert_eq!(ContentKind::of(&base64), ContentKind::Text);
        assert_eq!(ContentKind::of(&vec![0; 60_000]), ContentKind::Text);
    }
}
