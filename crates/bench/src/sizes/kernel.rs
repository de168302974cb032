// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The kernel's ciphers and hashes, computed as libcrypto does.

use millrace_kernel_crypto::{BLOCK_LEN, BulkAlgorithm, BulkDirection, BulkInterface, BulkSession};

use super::repeat::{Function, Nonces, key};
use crate::error::LibraryError;

/// The algorithm of the kernel for OpenSSL's name of one.
fn algorithm(name: &str) -> Result<BulkAlgorithm, LibraryError> {
    Ok(match name {
        "AES-128-CBC" | "AES-256-CBC" => BulkAlgorithm::AesCbc,
        "AES-256-CTR" => BulkAlgorithm::AesCtr,
        "AES-128-GCM" | "AES-256-GCM" => BulkAlgorithm::AesGcm,
        "SHA1" => BulkAlgorithm::Sha1,
        "SHA256" => BulkAlgorithm::Sha256,
        "SHA512" => BulkAlgorithm::Sha512,
        _ => return Err(LibraryError::missing(name)),
    })
}

/// Seals packets as libcrypto does: CBC with padding, GCM with its tag behind.
pub(super) fn sealer(
    interface: BulkInterface,
    name: &str,
    len: usize,
) -> Result<Function, LibraryError> {
    let algorithm = algorithm(name)?;
    let mut session =
        BulkSession::open(interface, algorithm, &key(len)).map_err(LibraryError::failed)?;
    let mut nonces = Nonces::default();
    Ok(Box::new(move |packet, output| {
        let nonce = nonces.next();
        if algorithm == BulkAlgorithm::AesGcm {
            let [_, _, _, _, nonce @ ..] = nonce;
            output.resize(packet.len(), 0);
            let tag = session.seal(&nonce, &[], packet, output).map_err(LibraryError::failed)?;
            output.extend_from_slice(&tag);
            return Ok(());
        }
        let mut text = packet.to_vec();
        let missing = BLOCK_LEN - packet.len() % BLOCK_LEN;
        let padded = packet.len() + missing;
        let byte = missing.to_le_bytes()[0];
        text.resize(padded, if algorithm == BulkAlgorithm::AesCbc { byte } else { 0 });
        output.resize(padded, 0);
        session
            .crypt(BulkDirection::Encrypt, &nonce, &text, output)
            .map_err(LibraryError::failed)?;
        if algorithm == BulkAlgorithm::AesCtr {
            output.truncate(packet.len());
        }
        Ok(())
    }))
}

/// Hashes blocks.
pub(super) fn hasher(interface: BulkInterface, name: &str) -> Result<Function, LibraryError> {
    let algorithm = algorithm(name)?;
    let mut session = BulkSession::open(interface, algorithm, &[]).map_err(LibraryError::failed)?;
    let len = match name {
        "SHA1" => 20,
        "SHA256" => 32,
        _ => 64,
    };
    Ok(Box::new(move |block, output| {
        output.resize(len, 0);
        session.hash(block, output).map_err(LibraryError::failed)
    }))
}
