// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A known answer of the kernel before its first result goes to an application: some drivers are wrong (errata, a
//! device that lost its firmware), and nothing else would notice a hash or a ciphertext that is.

use std::ffi::CStr;
use std::io;

use millrace_kernel_crypto::{
    BulkAlgorithm, BulkDirection, BulkInterface, BulkKind, BulkSession, NONCE_LEN, TAG_LEN,
};

use super::*;
use crate::ffi::key::succeeded;

/// The key, the vector and the message are numbers that count up: nothing that hides an exchange of bytes.
const KEY_LEN: usize = 32;
const MESSAGE_LEN: usize = 2000;
/// Whole blocks of it.
const BLOCKS_LEN: usize = MESSAGE_LEN - MESSAGE_LEN % 16;

/// Says whether the kernel computes what OpenSSL does: for [`KernelKey::run`](crate::bulk::KernelKey::run).
pub(super) fn known() -> fn(BulkInterface, BulkAlgorithm) -> io::Result<bool> {
    |interface, algorithm| {
        let kernel = match by_kernel(interface, algorithm) {
            // It does not open what it has sealed.
            Err(error) if error.raw_os_error() == Some(libc::EBADMSG) => None,
            kernel => kernel?,
        };
        let openssl = by_openssl(algorithm).map_err(|error| io::Error::other(error.text))?;
        Ok(kernel == Some(openssl))
    }
}

fn counting<const N: usize>() -> [u8; N] {
    std::array::from_fn(|index| index.wrapping_mul(7).wrapping_add(3).to_le_bytes()[0])
}

/// Result of the kernel; none if it does not decrypt what it has encrypted.
fn by_kernel(interface: BulkInterface, algorithm: BulkAlgorithm) -> io::Result<Option<Vec<u8>>> {
    let (key, message) = (counting::<KEY_LEN>(), counting::<MESSAGE_LEN>());
    let is_plain_hash =
        !algorithm.name().starts_with("hmac") && matches!(algorithm.kind(), BulkKind::Hash(_));
    let key: &[u8] = if is_plain_hash { &[] } else { &key };
    let mut session = BulkSession::open(interface, algorithm, key)?;
    match algorithm.kind() {
        BulkKind::Cipher => {
            let (iv, blocks) = (counting(), &message[..BLOCKS_LEN]);
            let (mut sealed, mut opened) = (vec![0; BLOCKS_LEN], vec![0; BLOCKS_LEN]);
            session.crypt(BulkDirection::Encrypt, &iv, blocks, &mut sealed)?;
            session.crypt(BulkDirection::Decrypt, &iv, &sealed, &mut opened)?;
            Ok((opened == blocks).then_some(sealed))
        }
        BulkKind::Aead => {
            let (nonce, aad) = (counting::<NONCE_LEN>(), &message[..20]);
            let (mut sealed, mut opened) = (vec![0; MESSAGE_LEN], vec![0; MESSAGE_LEN]);
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
            encrypted(Bulk::Aes256Cbc, &counting::<16>(), &[], &message[..BLOCKS_LEN])
        }
        BulkAlgorithm::AesCtr => {
            encrypted(Bulk::Aes256Ctr, &counting::<16>(), &[], &message[..BLOCKS_LEN])
        }
        BulkAlgorithm::AesGcm => {
            encrypted(Bulk::Aes256Gcm, &counting::<NONCE_LEN>(), &message[..20], &message)
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

/// Bytes in which a part of a message ends at most: those of a block, beyond its length.
const SLACK: usize = 32;

fn encrypted(algorithm: Bulk, iv: &[u8], aad: &[u8], message: &[u8]) -> Result<Vec<u8>> {
    let inner = Inner::new(algorithm, ids::aead::NEWCTX, ids::aead::FREECTX)?;
    let (functions, context) = (inner.functions, inner.context);
    let (key, none): ([u8; KEY_LEN], *const Param) = (counting(), std::ptr::null());
    let (key, iv_start, iv_len) = (key.as_ptr(), iv.as_ptr(), iv.len());
    // SAFETY: the initialisation has this type: a live context, a key and a vector with their lengths.
    succeeded(unsafe {
        call!(functions, ids::aead::ENCRYPT_INIT,
            fn(context => Ptr, key => *const u8, KEY_LEN => usize, iv_start => *const u8, iv_len => usize,
                none => *const Param) -> c_int)
    }?)?;
    let mut out = vec![0; message.len() + SLACK];
    let update = |out: *mut u8, room: usize, input: &[u8]| {
        let mut written = 0;
        let (place, start, len) = (&raw mut written, input.as_ptr(), input.len());
        // SAFETY: the function has this type: null or `room` bytes, and an input with its length.
        let status = unsafe {
            call!(functions, ids::aead::UPDATE,
                fn(context => Ptr, out => *mut u8, place => *mut usize, room => usize, start => *const u8,
                    len => usize) -> c_int)
        }?;
        succeeded(status).map(|()| written)
    };
    if !aad.is_empty() {
        // OpenSSL asks for as much room, and writes nothing.
        update(std::ptr::null_mut(), aad.len(), aad)?;
    }
    let room = out.len();
    let written = update(out.as_mut_ptr(), room, message)?;
    out.truncate(written);
    if algorithm.is_gcm() {
        let (mut tag, mut len) = ([0; TAG_LEN], 0);
        let (nowhere, place): (*mut u8, _) = (tag.as_mut_ptr(), &raw mut len);
        // SAFETY: the function has this type: room for nothing that it writes, and a place for the length.
        succeeded(unsafe {
            call!(functions, ids::aead::FINAL,
                fn(context => Ptr, nowhere => *mut u8, place => *mut usize, TAG_LEN => usize) -> c_int)
        }?)?;
        let mut request = [Param::buffer(c"tag", &mut tag), Param::END];
        // SAFETY: parameters with their end, over a buffer of ours.
        succeeded(unsafe { inner.params(ids::aead::GET_CTX_PARAMS, request.as_mut_ptr()) }?)?;
        out.extend_from_slice(&tag);
    }
    Ok(out)
}

/// A digest, or HMAC with this one.
fn hashed(algorithm: Bulk, hmac: Option<&'static CStr>, message: &[u8]) -> Result<Vec<u8>> {
    let mut result = vec![0; 64];
    let (start, len, room) = (message.as_ptr(), message.len(), result.len());
    let (out, mut written) = (result.as_mut_ptr(), 0);
    let place = &raw mut written;
    let none: *const Param = std::ptr::null();
    let (new, free, update, finish) = match hmac {
        None => {
            (ids::digest::NEWCTX, ids::digest::FREECTX, ids::digest::UPDATE, ids::digest::FINAL)
        }
        Some(_) => (ids::mac::NEWCTX, ids::mac::FREECTX, ids::mac::UPDATE, ids::mac::FINAL),
    };
    let inner = Inner::new(algorithm, new, free)?;
    let (functions, context) = (inner.functions, inner.context);
    if let Some(digest) = hmac {
        let key: [u8; KEY_LEN] = counting();
        let (key, settings) = (key.as_ptr(), [Param::text(c"digest", digest), Param::END]);
        let settings = settings.as_ptr();
        // SAFETY: `mac_init` takes a live context, a key with its length, and parameters with their end.
        succeeded(unsafe {
            call!(functions, ids::mac::INIT,
                fn(context => Ptr, key => *const u8, KEY_LEN => usize, settings => *const Param) -> c_int)
        }?)?;
    } else {
        // SAFETY: `digest_init` takes a live context and no parameters.
        succeeded(unsafe { inner.params(ids::digest::INIT, none) }?)?;
    }
    // SAFETY: takes a live context, and bytes with their length, in both operations.
    succeeded(unsafe {
        call!(functions, update, fn(context => Ptr, start => *const u8, len => usize) -> c_int)
    }?)?;
    // SAFETY: takes a live context, a buffer with its length, and a place for that of the result, in both operations.
    succeeded(unsafe {
        call!(functions, finish,
            fn(context => Ptr, out => *mut u8, place => *mut usize, room => usize) -> c_int)
    }?)?;
    result.truncate(written);
    Ok(result)
}
