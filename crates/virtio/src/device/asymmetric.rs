// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA and ECDSA: the public half is computed on the thread of the rings, the private half is a job of the pool.

use std::sync::Arc;
use std::time::Instant;

use millrace_operation::{Hash, Operation};

use super::JOB_TIMEOUT;
use crate::keys::{GuestKey, Half, Private};
use crate::primitives::Rsa;
use crate::request::{AkcipherOperation, DataOperation};
use crate::spec::{RsaPadding, Status};

/// Outcome of a data request: up to where the pool has to work.
pub(super) enum ComputeOutcome {
    /// The result, computed in place.
    Done(Vec<u8>),
    /// The private half of the key is in the pool.
    Job(DeviceJob),
}

/// A private-key operation for the pool.
pub(super) struct DeviceJob {
    /// The key, so that it stays in the pool although its session ends.
    pub(super) key: Arc<GuestKey>,
    pub(super) operation: Operation,
    pub(super) input: Vec<u8>,
    pub(super) room: usize,
    pub(super) deadline: Instant,
}

/// A request with an RSA session: computed here with the public key, a job with the private one.
pub(super) fn rsa(
    key: &Arc<GuestKey>,
    padding: RsaPadding,
    request: &DataOperation<'_>,
    now: Instant,
) -> Result<ComputeOutcome, Status> {
    let (DataOperation::Akcipher { operation, source, digest, room }, Half::Rsa(public)) =
        (request, &key.half)
    else {
        return Err(Status::InvalidSession);
    };
    let len = public.len();
    let here = |result: Option<Vec<u8>>| {
        let result = result.filter(|result| result.len() <= *room);
        result.map(ComputeOutcome::Done).ok_or(Status::Err)
    };
    match (operation, padding) {
        (AkcipherOperation::Encrypt, RsaPadding::Raw) => {
            here(public.encrypt_raw(&left_padded(source, len)?))
        }
        (AkcipherOperation::Encrypt, RsaPadding::Pkcs1(_)) => here(public.encrypt_pkcs1(source)),
        (AkcipherOperation::Verify, RsaPadding::Pkcs1(hash)) => {
            if public.verify_pkcs1(hash, digest, source) {
                Ok(ComputeOutcome::Done(Vec::new()))
            } else {
                Err(Status::KeyRejected)
            }
        }
        // The specification forbids it, and a signature without padding is none.
        (AkcipherOperation::Sign | AkcipherOperation::Verify, RsaPadding::Raw) => {
            Err(Status::NotSupported)
        }
        (AkcipherOperation::Decrypt | AkcipherOperation::Sign, _) => {
            let (operation, input) = private_operation(*operation, padding, source, len)?;
            match &key.private {
                None => Err(Status::Err),
                Some(Private::Local(rsa)) => here(local(rsa, &operation, &input)?),
                Some(Private::Pool(_)) => Ok(ComputeOutcome::Job(DeviceJob {
                    key: Arc::clone(key),
                    operation,
                    input,
                    room: *room,
                    deadline: now + JOB_TIMEOUT,
                })),
            }
        }
    }
}

/// The engine's operation for a request with a private RSA key, and its input.
fn private_operation(
    operation: AkcipherOperation,
    padding: RsaPadding,
    source: &[u8],
    len: usize,
) -> Result<(Operation, Vec<u8>), Status> {
    match (operation, padding) {
        (AkcipherOperation::Sign, RsaPadding::Pkcs1(Some(hash))) => {
            if source.len() != hash.digest_len() {
                return Err(Status::Err);
            }
            Ok((Operation::RsaPkcs1Sign { hash }, source.to_vec()))
        }
        (AkcipherOperation::Sign, RsaPadding::Pkcs1(None)) => {
            Ok((Operation::RsaRaw, signature_block(source, len)?))
        }
        (_, RsaPadding::Pkcs1(_)) => Ok((Operation::RsaPkcs1Decrypt, left_padded(source, len)?)),
        (_, RsaPadding::Raw) => Ok((Operation::RsaRaw, left_padded(source, len)?)),
    }
}

/// A private operation with a key that is too small for the engine. It has no PKCS#1 v1.5 decryption: implicit
/// rejection is the engine's, and a device without it would be an oracle.
fn local(rsa: &Rsa, operation: &Operation, input: &[u8]) -> Result<Option<Vec<u8>>, Status> {
    match operation {
        Operation::RsaRaw => Ok(rsa.decrypt_raw(input)),
        Operation::RsaPkcs1Sign { hash } => {
            Ok(rsa.sign_pkcs1(&[hash.digest_info_prefix(), input].concat()))
        }
        Operation::RsaPssSign { .. }
        | Operation::RsaOaepDecrypt { .. }
        | Operation::RsaPkcs1Decrypt
        | Operation::RsaTlsPremaster { .. }
        | Operation::EcdsaSign { .. }
        | Operation::Ecdh
        | Operation::X25519
        | Operation::Ed25519Sign
        | Operation::DhDerive
        | Operation::DsaSign { .. }
        | Operation::MlDsaSign { .. } => Err(Status::NotSupported),
    }
}

/// `source` with leading zeros, as long as the modulus. Linux strips them.
fn left_padded(source: &[u8], len: usize) -> Result<Vec<u8>, Status> {
    let zeros = len.checked_sub(source.len()).ok_or(Status::Err)?;
    let mut padded = vec![0; len];
    padded[zeros..].copy_from_slice(source);
    Ok(padded)
}

/// The block of a PKCS#1 v1.5 signature over bytes that are not a digest (RFC 8017 section 9.2, without the
/// `DigestInfo`).
fn signature_block(source: &[u8], len: usize) -> Result<Vec<u8>, Status> {
    let fill = len.checked_sub(source.len() + 3).filter(|fill| *fill >= 8).ok_or(Status::Err)?;
    let mut block = vec![0, 1];
    block.resize(2 + fill, 0xff);
    block.push(0);
    block.extend_from_slice(source);
    Ok(block)
}

/// A request with an ECDSA session. The session has no hash; the length of the digest tells the engine's.
pub(super) fn ecdsa(
    key: &Arc<GuestKey>,
    request: &DataOperation<'_>,
    now: Instant,
) -> Result<ComputeOutcome, Status> {
    let (DataOperation::Akcipher { operation, source, digest, room }, Half::Ec(public)) =
        (request, &key.half)
    else {
        return Err(Status::InvalidSession);
    };
    match operation {
        AkcipherOperation::Verify if public.verify(digest, source) => {
            Ok(ComputeOutcome::Done(Vec::new()))
        }
        AkcipherOperation::Verify => Err(Status::KeyRejected),
        AkcipherOperation::Sign => {
            let hash = match source.len() {
                20 => Hash::Sha1,
                28 => Hash::Sha224,
                32 => Hash::Sha256,
                48 => Hash::Sha384,
                64 => Hash::Sha512,
                _ => return Err(Status::Err),
            };
            match key.private {
                Some(Private::Pool(_)) => Ok(ComputeOutcome::Job(DeviceJob {
                    key: Arc::clone(key),
                    operation: Operation::EcdsaSign { hash },
                    input: source.to_vec(),
                    room: *room,
                    deadline: now + JOB_TIMEOUT,
                })),
                Some(Private::Local(_)) | None => Err(Status::Err),
            }
        }
        AkcipherOperation::Encrypt | AkcipherOperation::Decrypt => Err(Status::NotSupported),
    }
}
