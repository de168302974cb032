// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The formats of compressed files. Each output is decompressed and compared.

use std::io::{Cursor, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use millrace_deflate::libdeflate::{Decompressor, Libdeflate, MAX_LEVEL, crc32};

use crate::args::CompressFormat;

/// Brotli's highest level.
const BROTLI_LEVEL: i32 = 11;

/// Brotli's largest window that every browser takes, as a power of two: 16 MiB (RFC 7932).
const BROTLI_WINDOW: i32 = 24;

/// The highest level of Zstandard whose window every reader accepts: browsers allow 8 MiB (RFC 9659).
const ZSTD_LEVEL: i32 = 19;

/// The name of the compressed file beside its original.
pub(super) fn beside(original: &Path, format: CompressFormat) -> PathBuf {
    let mut name = original.as_os_str().to_owned();
    name.push(match format {
        CompressFormat::Gz => ".gz",
        CompressFormat::Br => ".br",
        CompressFormat::Zst => ".zst",
    });
    name.into()
}

/// Compresses at the highest level.
pub(super) fn pack(format: CompressFormat, original: &[u8]) -> Result<Vec<u8>> {
    match format {
        CompressFormat::Gz => gzip(original),
        CompressFormat::Br => brotli(original),
        CompressFormat::Zst => zstd(original),
    }
}

fn gzip(original: &[u8]) -> Result<Vec<u8>> {
    // RFC 1952: no name, no time, hardest compression, Unix.
    let mut packed = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 3];
    let head = packed.len();
    packed.resize(head + original.len() + 64, 0);
    let Ok(length) = Libdeflate::default().whole(MAX_LEVEL, original, &mut packed[head..]) else {
        // Longer than the original, which the caller does not want.
        return Ok(original.to_vec());
    };
    packed.truncate(head + length);
    let mut back = vec![0; original.len()];
    let fills = Decompressor::new().context("out of memory")?.fills(&packed[head..], &mut back);
    ensure!(fills && back == original, "libdeflate's output does not decompress to its input");
    packed.extend(crc32(0, original).to_le_bytes());
    let length = u32::try_from(original.len()).context("longer than 4 GiB")?;
    packed.extend(length.to_le_bytes());
    Ok(packed)
}

fn brotli(original: &[u8]) -> Result<Vec<u8>> {
    let parameters = brotli::enc::BrotliEncoderParams {
        quality: BROTLI_LEVEL,
        lgwin: BROTLI_WINDOW,
        size_hint: original.len(),
        ..brotli::enc::BrotliEncoderParams::default()
    };
    let mut packed = Vec::new();
    brotli::BrotliCompress(&mut Cursor::new(original), &mut packed, &parameters)
        .context("brotli")?;
    let mut back = Vec::new();
    let limit = original.len() as u64 + 1;
    brotli::Decompressor::new(&packed[..], 4096)
        .take(limit)
        .read_to_end(&mut back)
        .context("brotli")?;
    ensure!(back == original, "Brotli's output does not decompress to its input");
    Ok(packed)
}

fn zstd(original: &[u8]) -> Result<Vec<u8>> {
    let packed = zstd::bulk::compress(original, ZSTD_LEVEL).context("zstd")?;
    let back = zstd::bulk::decompress(&packed, original.len()).context("zstd")?;
    ensure!(back == original, "Zstandard's output does not decompress to its input");
    Ok(packed)
}
