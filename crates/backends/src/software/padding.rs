// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA padding around the raw operation: PKCS#1 v1.5, PSS and OAEP (RFC 8017), implicit rejection
//! (draft-irtf-cfrg-rsa-guidance) and the TLS premaster secret (RFC 5246 section 7.4.7.1).
//!
//! Every backend that computes only `x^d mod n` uses this. Encoding works on public values.
//! Decoding works on secrets: no branch and no address depends on the decrypted bytes. Two exceptions:
//!
//! - The *length* of a decrypted message is revealed, because the caller gets the message.
//! - OAEP reveals one bit at the end: decoding failed. It never reveals the cause (Manger's attack).

use millrace_engine::BackendError;
use millrace_operation::{Hash, MAX_MODULUS_BITS, Output};
use subtle::{
    Choice, ConditionallySelectable, ConstantTimeEq, ConstantTimeGreater, ConstantTimeLess,
};
use zeroize::Zeroizing;

use super::sys;

/// Length of the largest modulus, in bytes: the size of every buffer here.
pub(crate) const MAX_MODULUS_LEN: usize = MAX_MODULUS_BITS as usize / 8;

/// Length of the largest digest that these encodings use (SHA-512).
const MAX_DIGEST_LEN: usize = 64;

/// Least number of non-zero bytes that precede the message in PKCS#1 v1.5 encryption (RFC 8017 section 7.2.1).
const MIN_PKCS1_PADDING: usize = 8;

/// Length of a TLS premaster secret (RFC 5246 section 7.4.7.1).
const PREMASTER_LEN: usize = 48;

/// A block as long as the modulus. It is on the stack and zeroised when dropped.
pub(crate) type Block = Zeroizing<[u8; MAX_MODULUS_LEN]>;

pub(crate) fn block() -> Block {
    Zeroizing::new([0; MAX_MODULUS_LEN])
}

/// EMSA-PKCS1-v1_5 (RFC 8017 section 9.2) into `out`, which is as long as the modulus.
pub(crate) fn encode_pkcs1_signature(
    hash: Hash,
    digest: &[u8],
    out: &mut [u8],
) -> Result<(), BackendError> {
    let prefix = hash.digest_info_prefix();
    let len = prefix.len() + digest.len();
    let Some(padding) = out.len().checked_sub(len + 3).filter(|room| *room >= MIN_PKCS1_PADDING)
    else {
        return Err(BackendError::BadInput);
    };
    out[0] = 0;
    out[1] = 1;
    out[2..2 + padding].fill(0xff);
    out[2 + padding] = 0;
    out[3 + padding..3 + padding + prefix.len()].copy_from_slice(prefix);
    out[3 + padding + prefix.len()..].copy_from_slice(digest);
    Ok(())
}

/// EMSA-PSS (RFC 8017 section 9.1.1) with a fresh salt into `out`, which is as long as the modulus.
pub(crate) fn encode_pss(
    hash: Hash,
    mgf_hash: Hash,
    salt_len: usize,
    digest: &[u8],
    modulus_bits: usize,
    out: &mut [u8],
) -> Result<(), BackendError> {
    // The encoding is one bit shorter than the modulus: for a modulus of 8k+1 bits, one byte shorter.
    let encoded_bits = modulus_bits - 1;
    let encoded_len = encoded_bits.div_ceil(8);
    let start = out.len() - encoded_len;
    let (lead, out) = out.split_at_mut(start);
    lead.fill(0);
    let hash_len = digest.len();
    let Some(zeros) = encoded_len.checked_sub(hash_len + salt_len + 2) else {
        return Err(BackendError::BadInput);
    };

    // M' = eight zero bytes, digest, salt.
    let mut message = [0; 8 + MAX_DIGEST_LEN + MAX_MODULUS_LEN];
    let message = &mut message[..8 + hash_len + salt_len];
    message[8..8 + hash_len].copy_from_slice(digest);
    sys::random(&mut message[8 + hash_len..])?;

    let (masked, tail) = out.split_at_mut(encoded_len - hash_len - 1);
    sys::digest(hash, message, &mut tail[..hash_len])?;
    tail[hash_len] = 0xbc;
    masked[..zeros].fill(0);
    masked[zeros] = 1;
    masked[zeros + 1..].copy_from_slice(&message[8 + hash_len..]);
    xor_mgf1(mgf_hash, &tail[..hash_len], masked)?;
    masked[0] &= 0xff >> (8 * encoded_len - encoded_bits);
    Ok(())
}

/// XORs MGF1 of `seed` (RFC 8017 appendix B.2.1) into `data`. The seed is at most as long as the
/// largest modulus.
fn xor_mgf1(hash: Hash, seed: &[u8], data: &mut [u8]) -> Result<(), BackendError> {
    let mut input = Zeroizing::new([0; MAX_MODULUS_LEN + 4]);
    let input = &mut input[..seed.len() + 4];
    input[..seed.len()].copy_from_slice(seed);
    let mut mask = Zeroizing::new([0; MAX_DIGEST_LEN]);
    let mask = &mut mask[..hash.digest_len()];
    for (counter, chunk) in (0_u32..).zip(data.chunks_mut(hash.digest_len())) {
        input[seed.len()..].copy_from_slice(&counter.to_be_bytes());
        sys::digest(hash, input, mask)?;
        for (byte, mask) in chunk.iter_mut().zip(mask.iter()) {
            *byte ^= mask;
        }
    }
    Ok(())
}

/// Decodes a decrypted block by EME-OAEP (RFC 8017 section 7.1.2 step 3) and overwrites the block.
pub(crate) fn decode_oaep(
    hash: Hash,
    mgf_hash: Hash,
    label: &[u8],
    encoded: &mut [u8],
) -> Result<Output, BackendError> {
    let hash_len = hash.digest_len();
    if encoded.len() < 2 * hash_len + 2 {
        return Err(BackendError::BadInput);
    }
    let mut label_hash = [0; MAX_DIGEST_LEN];
    let label_hash = &mut label_hash[..hash_len];
    sys::digest(hash, label, label_hash)?;

    let (lead, rest) = encoded.split_at_mut(1);
    let (seed, data) = rest.split_at_mut(hash_len);
    xor_mgf1(mgf_hash, data, seed)?;
    xor_mgf1(mgf_hash, seed, data)?;

    let mut good = lead[0].ct_eq(&0) & data[..hash_len].ct_eq(label_hash);
    let mut searching = Choice::from(1);
    let mut message_at = 0_u32;
    for (index, byte) in (0_u32..).zip(data.iter()).skip(hash_len) {
        let separator = byte.ct_eq(&1);
        good &= !searching | separator | byte.ct_eq(&0);
        message_at.conditional_assign(&(index + 1), searching & separator);
        searching &= !separator;
    }
    good &= !searching;
    if bool::from(good) {
        Ok(Output::new(data[message_at as usize..].to_vec()))
    } else {
        Err(BackendError::BadInput)
    }
}

/// Number of candidate lengths that implicit rejection draws (draft section 7.2).
const LENGTH_CANDIDATES: usize = 128;

/// Decodes EME-PKCS1-v1_5 with implicit rejection: a malformed block decodes to a message that key and
/// ciphertext determine. The message equals that of OpenSSL 3.2 and later bit for bit.
///
/// `rejection_key` is the SHA-256 digest of the private exponent, as long as the modulus.
pub(crate) fn decode_pkcs1_implicit(
    rejection_key: &[u8; 32],
    ciphertext: &[u8],
    encoded: &[u8],
) -> Result<Output, BackendError> {
    let len = encoded.len();
    let kdk = sys::hmac_sha256(rejection_key, ciphertext)?;
    let mut synthetic = block();
    let synthetic = &mut synthetic[..len];
    implicit_prf(&kdk, b"message", synthetic)?;
    let mut candidates = Zeroizing::new([0; 2 * LENGTH_CANDIDATES]);
    implicit_prf(&kdk, b"length", &mut *candidates)?;

    let synthetic_at = to_u32(len) - synthetic_length(&candidates, to_u32(len));
    let (good, real_at) = scan_pkcs1(encoded);
    let message_at = u32::conditional_select(&synthetic_at, &real_at, good) as usize;
    let mut message = Output::new(vec![0; len - message_at]);
    for (index, byte) in message.iter_mut().enumerate() {
        let fake = &synthetic[message_at + index];
        let real = &encoded[message_at + index];
        *byte = u8::conditional_select(fake, real, good);
    }
    Ok(message)
}

/// Returns the last candidate that is a possible message length, or 0.
fn synthetic_length(candidates: &[u8; 2 * LENGTH_CANDIDATES], len: u32) -> u32 {
    // A message is at least 10 bytes shorter than the block: 2 of type, 8 of padding. OpenSSL has this bound.
    let bound = len - 2 - to_u32(MIN_PKCS1_PADDING);
    let mask = (bound + 1).next_power_of_two() - 1;
    let mut length = 0_u32;
    for pair in candidates.chunks_exact(2) {
        let candidate = u32::from(u16::from_be_bytes([pair[0], pair[1]])) & mask;
        length.conditional_assign(&candidate, candidate.ct_lt(&bound));
    }
    length
}

/// Checks that a block is type 2 with at least eight bytes of padding, and finds the start of its message.
fn scan_pkcs1(encoded: &[u8]) -> (Choice, u32) {
    let mut good = encoded[0].ct_eq(&0) & encoded[1].ct_eq(&2);
    let mut searching = Choice::from(1);
    let mut zero_at = 0_u32;
    for (index, byte) in (0_u32..).zip(encoded).skip(2) {
        let zero = byte.ct_eq(&0);
        zero_at.conditional_assign(&index, searching & zero);
        searching &= !zero;
    }
    // Without a separator `zero_at` is 0; this check refuses that case too.
    good &= zero_at.ct_gt(&(1 + to_u32(MIN_PKCS1_PADDING)));
    (good, zero_at + 1)
}

/// Longest label of the PRF: `premaster` and a version of two bytes.
const MAX_PRF_LABEL: usize = 11;

/// The PRF of the draft: HMAC-SHA256 in counter mode over counter, label and length in bits.
fn implicit_prf(kdk: &[u8; 32], label: &[u8], out: &mut [u8]) -> Result<(), BackendError> {
    let bits = u16::try_from(out.len() * 8).map_err(|_| BackendError::BadInput)?;
    let mut input = [0; 2 + MAX_PRF_LABEL + 2];
    let input = &mut input[..2 + label.len() + 2];
    input[2..2 + label.len()].copy_from_slice(label);
    input[2 + label.len()..].copy_from_slice(&bits.to_be_bytes());
    for (counter, chunk) in (0_u16..).zip(out.chunks_mut(32)) {
        input[..2].copy_from_slice(&counter.to_be_bytes());
        let mac = sys::hmac_sha256(kdk, input)?;
        chunk.copy_from_slice(&mac[..chunk.len()]);
    }
    Ok(())
}

/// Returns the premaster secret in a decrypted block. If padding, length or version are wrong, returns
/// `client_version` and 46 bytes that key, ciphertext and version determine. So neither the first two bytes nor
/// a second request tell the cases apart.
///
/// The version is an input of the derivation: otherwise the 46 bytes of a malformed block would be the same
/// for two versions, which those of a good block are not.
pub(crate) fn decode_premaster(
    rejection_key: &[u8; 32],
    ciphertext: &[u8],
    client_version: u16,
    encoded: &[u8],
) -> Result<Output, BackendError> {
    let version = client_version.to_be_bytes();
    let mut premaster = Output::new(vec![0; PREMASTER_LEN]);
    // Derived in both cases, so that the time is the same.
    let kdk = sys::hmac_sha256(rejection_key, ciphertext)?;
    let label = [&b"premaster"[..], &version].concat();
    premaster[..2].copy_from_slice(&version);
    implicit_prf(&kdk, &label, &mut premaster[2..])?;
    let (padding, rest) = encoded.split_at(encoded.len() - PREMASTER_LEN - 1);
    let (separator, secret) = rest.split_at(1);
    let mut good = padding[0].ct_eq(&0) & padding[1].ct_eq(&2) & separator[0].ct_eq(&0);
    for byte in &padding[2..] {
        good &= !byte.ct_eq(&0);
    }
    good &= secret[..2].ct_eq(&version);
    for (byte, real) in premaster.iter_mut().zip(secret) {
        byte.conditional_assign(real, good);
    }
    Ok(premaster)
}

/// Converts a length inside a block; it is at most [`MAX_MODULUS_LEN`].
fn to_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pkcs1_block(padding: usize, message: &[u8]) -> Vec<u8> {
        let mut block = vec![0, 2];
        block.extend(std::iter::repeat_n(0xa5, padding));
        block.push(0);
        block.extend_from_slice(message);
        block
    }

    #[test]
    fn pkcs1_block_decodes_to_its_message_and_a_bad_one_to_a_stable_one() {
        let decode = |encoded: &[u8]| {
            decode_pkcs1_implicit(&[7; 32], &[9; 256], encoded).expect("no error is possible")
        };
        let good = pkcs1_block(250, b"abc");
        assert_eq!(decode(&good).as_slice(), b"abc");
        assert_eq!(decode(&pkcs1_block(253, b"")).as_slice(), b"");
        assert_eq!(decode(&pkcs1_block(8, &[1; 245])).as_slice(), &[1; 245]);

        let rejected = decode(&[0; 256]);
        let no_separator = [&[0, 2][..], &[0xa5; 254]].concat();
        for bad in [pkcs1_block(7, &[1; 246]), no_separator, [&[1], &good[1..]].concat()] {
            assert_eq!(decode(&bad).as_slice(), rejected.as_slice());
        }
    }

    fn premaster(ciphertext: &[u8], version: u16, encoded: &[u8]) -> Vec<u8> {
        let output = decode_premaster(&[7; 32], ciphertext, version, encoded);
        output.expect("no error is possible").to_vec()
    }

    /// A block of each kind: the good one, then a wrong type, no separator, a separator too early and one too
    /// late, and another version. The secret is a function of `round`.
    fn premaster_blocks(round: u32) -> [Vec<u8>; 6] {
        let mut secret = [0; 48];
        sys::digest(Hash::Sha256, &round.to_be_bytes(), &mut secret[2..34]).expect("a digest");
        secret[..2].copy_from_slice(&[3, 3]);
        let good = pkcs1_block(256 - 3 - 48, &secret);
        let changed = |at: usize, byte: u8| {
            let mut block = good.clone();
            block[at] = byte;
            block
        };
        let early = changed(100, 0);
        let late = pkcs1_block(256 - 3 - 47, &secret[..47]);
        let wrong_type = changed(1, 1);
        let none = changed(207, 1);
        let version = changed(209, 2);
        [good, wrong_type, none, early, late, version]
    }

    #[test]
    fn premaster_of_a_malformed_block_is_told_by_neither_version_nor_repetition() {
        for round in 0..4000_u32 {
            let ciphertext = [&round.to_be_bytes()[..], &[9; 252]].concat();
            let blocks = premaster_blocks(round);
            let mut substitutes = std::collections::HashSet::new();
            for (kind, block) in blocks.iter().enumerate() {
                let first = premaster(&ciphertext, 0x0303, block);
                assert_eq!(first[..2], [3, 3], "block {kind}");
                assert_eq!(first, premaster(&ciphertext, 0x0303, block), "block {kind}");
                let other = premaster(&ciphertext, 0x0302, block);
                // The good block is malformed for another version, and the last one is good for 3.2.
                assert_eq!(other[..2], [3, 2], "block {kind}");
                assert_ne!(first[2..], other[2..], "block {kind}");
                if kind > 0 {
                    assert_ne!(first, blocks[0][208..], "block {kind}");
                    substitutes.insert(first);
                }
            }
            assert_eq!(substitutes.len(), 1, "the ciphertext alone decides");
            assert_eq!(premaster(&ciphertext, 0x0303, &blocks[0]), blocks[0][208..]);
        }
    }

    #[test]
    fn premaster_substitute_depends_on_key_and_ciphertext() {
        let substitute = |key: u8, ciphertext: u8| {
            decode_premaster(&[key; 32], &[ciphertext; 256], 0x0303, &[0; 256])
                .expect("no error is possible")
                .to_vec()
        };
        assert_eq!(substitute(1, 1), substitute(1, 1));
        assert_ne!(substitute(1, 1), substitute(2, 1));
        assert_ne!(substitute(1, 1), substitute(1, 2));
    }

    #[test]
    fn digest_too_long_for_the_modulus_is_bad_input() {
        let mut out = [0; 64];
        let result = encode_pkcs1_signature(Hash::Sha512, &[0; 64], &mut out);
        assert_eq!(result, Err(BackendError::BadInput));
        let result = encode_pss(Hash::Sha256, Hash::Sha256, 31, &[0; 32], 512, &mut out);
        assert_eq!(result, Err(BackendError::BadInput));
    }
}
