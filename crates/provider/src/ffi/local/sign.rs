// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A signature to be measured: by the [`Signer`], and by the installed OpenSSL with the same key.

use millrace_operation::{Hash, MlDsaInput, Operation};

use super::stock::generated;
use crate::algorithms::SigningKeys;
use crate::error::{Error, Reason, Result};
use crate::ffi::inner;
use crate::ffi::key::{InnerKeyData, Key, Origin};
use crate::ffi::signature::{SignatureInput, sign_by_openssl};
use crate::ffi::signer::Signer;
use crate::ffi::state::Provider;
use crate::ffi::types::Param;

/// A fresh key of the installed OpenSSL, and the same key in a [`Signer`]: both sign the same input.
pub(super) struct SignatureSample {
    key: Key,
    signer: Signer,
    operation: Operation,
    input: Vec<u8>,
}

impl SignatureSample {
    pub(super) fn new(provider: &'static Provider, keys: SigningKeys) -> Result<Self> {
        use millrace_operation::KeyType as Exact;
        let functions = inner::key_functions(keys.key_type)?;
        let group = keys.group.map(|group| Param::text(c"group", group));
        let settings: Vec<Param> = group.into_iter().chain([Param::END]).collect();
        let data = InnerKeyData::taking(keys.key_type, generated(functions, &settings)?)?;
        let key = Key::local(provider, data, Origin::Imported);
        let signer =
            key.load_signer().ok_or_else(|| Error::new(Reason::Key, "AWS-LC refuses the key"))?;
        // A server signs the hash of a handshake, or 98 to 130 bytes around it (RFC 8446, section 4.4.3).
        let (operation, len) = match keys.exact {
            Exact::Ec(_) => (Operation::EcdsaSign { hash: Hash::Sha384 }, 48),
            Exact::Ed25519 => (Operation::Ed25519Sign, 130),
            _ => {
                let input = MlDsaInput::Message;
                (Operation::MlDsaSign { input }, 130)
            }
        };
        Ok(Self { key, signer, operation, input: vec![0x5a; len] })
    }

    pub(super) fn sign_local(&self) -> Result<()> {
        let provider = self.key.provider;
        let operation = &self.operation;
        let signature = self.signer.signature(provider, operation, &self.input);
        signature.map(drop)
    }

    pub(super) fn sign_openssl(&self) -> Result<()> {
        let kind = match self.operation {
            Operation::EcdsaSign { .. } => SignatureInput::Digest,
            _ => SignatureInput::Message,
        };
        sign_by_openssl(&self.key, &self.input, kind)
    }
}
