// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A known answer of the kernel before its first result goes to an application. Some drivers compute wrong results
//! (errata, a device that lost its firmware), and nothing else notices a wrong hash or ciphertext.

use std::ffi::CStr;
use std::io;

use millrace_kernel_crypto::{
    BLOCK_LEN, BulkAlgorithm, BulkDirection, BulkInterface, BulkKind, BulkSession, NONCE_LEN,
    TAG_LEN,
};

use super::hash::{DIGEST, MAC};
use super::*;
use crate::ffi::hasher::MAX_DIGEST;
use crate::ffi::inner::succeeded;

/// Bytes of the key: AES-256, and a key of HMAC that is shorter than a block.
const KEY_LEN: usize = 32;

/// Bytes of the message: more than a packet of a VPN, and no multiple of a block.
const MESSAGE_LEN: usize = 2000;

/// Bytes of the message's whole blocks.
const BLOCKS_LEN: usize = MESSAGE_LEN - MESSAGE_LEN % BLOCK_LEN;

/// Bytes of the additional authenticated data: more than a block.
const AAD_LEN: usize = 20;

/// Whether the kernel computes what OpenSSL does, for [`KernelKey::run`](crate::bulk::KernelKey::run).
pub(super) fn known() -> fn(BulkInterface, BulkAlgorithm) -> io::Result<bool> {
    |interface, algorithm| {
        let kernel = match by_kernel(interface, algorithm) {
            // The kernel does not open what it has sealed.
            Err(error) if error.raw_os_error() == Some(libc::EBADMSG) => None,
            kernel => kernel?,
        };
        let openssl = by_openssl(algorithm).map_err(|error| io::Error::other(error.text))?;
        Ok(kernel == Some(openssl))
    }
}

/// Bytes that count up by seven: an exchange of two bytes changes the result.
fn counting<const N: usize>() -> [u8; N] {
    std::array::from_fn(|index| index.wrapping_mul(7).wrapping_add(3).to_le_bytes()[0])
}

/// Result of the kernel. `None` if it does not decrypt what it has encrypted.
fn by_kernel(interface: BulkInterface, algorithm: BulkAlgorithm) -> io::Result<Option<Vec<u8>>> {
    let key = counting::<KEY_LEN>();
    let message = counting::<MESSAGE_LEN>();
    let is_plain_hash =
        !algorithm.name().starts_with("hmac") && matches!(algorithm.kind(), BulkKind::Hash(_));
    let mut session =
        BulkSession::open(interface, algorithm, if is_plain_hash { &[] } else { &key })?;
    match algorithm.kind() {
        BulkKind::Cipher => {
            let iv = counting();
            let blocks = &message[..BLOCKS_LEN];
            let mut sealed = vec![0; BLOCKS_LEN];
            let mut opened = vec![0; BLOCKS_LEN];
            session.crypt(BulkDirection::Encrypt, &iv, blocks, &mut sealed)?;
            session.crypt(BulkDirection::Decrypt, &iv, &sealed, &mut opened)?;
            Ok((opened == blocks).then_some(sealed))
        }
        BulkKind::Aead => {
            let nonce = counting::<NONCE_LEN>();
            let aad = &message[..AAD_LEN];
            let mut sealed = vec![0; MESSAGE_LEN];
            let mut opened = vec![0; MESSAGE_LEN];
            let mut tag = session.seal(&nonce, aad, &message, &mut sealed)?;
            session.open_sealed(&nonce, aad, &sealed, &tag, &mut opened)?;
            let is_same = opened == message;
            let result = [&sealed[..], &tag].concat();
            tag[0] ^= 1;
            let is_checked = session.open_sealed(&nonce, aad, &sealed, &tag, &mut opened).is_err();
            Ok((is_same && is_checked).then_some(result))
        }
        BulkKind::Hash(len) => {
            let mut result = vec![0; len];
            session.hash(&message, &mut result)?;
            Ok(Some(result))
        }
    }
}

/// The same by OpenSSL.
fn by_openssl(algorithm: BulkAlgorithm) -> Result<Vec<u8>> {
    let message = counting::<MESSAGE_LEN>();
    match algorithm {
        BulkAlgorithm::AesCbc => {
            encrypted(Bulk::Aes256Cbc, &counting::<BLOCK_LEN>(), &[], &message[..BLOCKS_LEN])
        }
        BulkAlgorithm::AesCtr => {
            encrypted(Bulk::Aes256Ctr, &counting::<BLOCK_LEN>(), &[], &message[..BLOCKS_LEN])
        }
        BulkAlgorithm::AesGcm => {
            encrypted(Bulk::Aes256Gcm, &counting::<NONCE_LEN>(), &message[..AAD_LEN], &message)
        }
        BulkAlgorithm::Sha1 => hashed(Bulk::Sha1, None, &message),
        BulkAlgorithm::Sha224 => hashed(Bulk::Sha224, None, &message),
        BulkAlgorithm::Sha256 => hashed(Bulk::Sha256, None, &message),
        BulkAlgorithm::Sha384 => hashed(Bulk::Sha384, None, &message),
        BulkAlgorithm::Sha512 => hashed(Bulk::Sha512, None, &message),
        BulkAlgorithm::HmacSha1 => hashed(Bulk::Hmac, Some(c"SHA1"), &message),
        BulkAlgorithm::HmacSha224 => hashed(Bulk::Hmac, Some(c"SHA224"), &message),
        BulkAlgorithm::HmacSha256 => hashed(Bulk::Hmac, Some(c"SHA256"), &message),
        BulkAlgorithm::HmacSha384 => hashed(Bulk::Hmac, Some(c"SHA384"), &message),
        BulkAlgorithm::HmacSha512 => hashed(Bulk::Hmac, Some(c"SHA512"), &message),
    }
}

/// Bytes by which the output of a cipher may exceed its input: two blocks.
const SLACK: usize = 2 * BLOCK_LEN;

fn encrypted(algorithm: Bulk, iv: &[u8], aad: &[u8], message: &[u8]) -> Result<Vec<u8>> {
    let inner = Inner::new(algorithm, ids::aead::NEWCTX, ids::aead::FREECTX)?;
    let key: [u8; KEY_LEN] = counting();
    // SAFETY: no parameters.
    succeeded(unsafe {
        inner.start(ids::aead::ENCRYPT_INIT, Some(&key), Some(iv), std::ptr::null())
    }?)?;
    let mut written = 0;
    let place = &raw mut written;
    if !aad.is_empty() {
        // OpenSSL asks for as much room, and writes nothing.
        let nowhere = (std::ptr::null_mut(), place, aad.len());
        // SAFETY: no output, an input with its length, and a place for a length.
        succeeded(unsafe { inner.part(ids::aead::UPDATE, nowhere, (aad.as_ptr(), aad.len())) }?)?;
    }
    let mut out = vec![0; message.len() + SLACK];
    let output = (out.as_mut_ptr(), place, out.len());
    // SAFETY: a buffer with its room, an input with its length, and a place for a length.
    succeeded(unsafe {
        inner.part(ids::aead::UPDATE, output, (message.as_ptr(), message.len()))
    }?)?;
    out.truncate(written);
    if algorithm.is_gcm() {
        let mut tag = [0; TAG_LEN];
        // SAFETY: a buffer with its room, into which the end of GCM writes nothing, and a place for a length.
        succeeded(unsafe { inner.finish(ids::aead::FINAL, tag.as_mut_ptr(), place, TAG_LEN) }?)?;
        let mut request = [Param::buffer(c"tag", &mut tag), Param::END];
        // SAFETY: parameters with their end, over a buffer of ours.
        succeeded(unsafe { inner.params(ids::aead::GET_CTX_PARAMS, request.as_mut_ptr()) }?)?;
        out.extend_from_slice(&tag);
    }
    Ok(out)
}

/// A digest, or HMAC with this one.
fn hashed(algorithm: Bulk, hmac: Option<&'static CStr>, message: &[u8]) -> Result<Vec<u8>> {
    let numbers = if hmac.is_some() { MAC } else { DIGEST };
    let inner = Inner::new(algorithm, numbers.new, numbers.free)?;
    succeeded(match hmac {
        Some(digest) => {
            let key: [u8; KEY_LEN] = counting();
            let settings = [Param::text(c"digest", digest), Param::END];
            // SAFETY: a key with its length, and parameters with their end.
            unsafe { inner.start_mac(key.as_ptr(), KEY_LEN, settings.as_ptr()) }
        }
        None => {
            let none: *const Param = std::ptr::null();
            // SAFETY: `digest_init` takes a context and no parameters.
            unsafe { inner.params(ids::digest::INIT, none) }
        }
    }?)?;
    // SAFETY: the bytes of a slice.
    succeeded(unsafe { inner.hash(numbers.update, message.as_ptr(), message.len()) }?)?;
    let mut result = vec![0; MAX_DIGEST];
    let mut written = 0;
    let out = result.as_mut_ptr();
    // SAFETY: a buffer with its length, and a place for that of the result.
    succeeded(unsafe { inner.finish(numbers.finish, out, &raw mut written, result.len()) }?)?;
    result.truncate(written);
    Ok(result)
}
