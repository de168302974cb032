// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Signatures with keys that the application has loaded, by AWS-LC in place of OpenSSL.
//!
//! The key object is OpenSSL's own key data in a [`Key`], as for the pool: everything but the signature itself is
//! delegated, and so is a signature with settings that AWS-LC does not know. The `software` backend signs, on the
//! thread that calls.

use millrace_backends::software::SoftwareKey;
use millrace_operation::{Hash, KeyError, MlDsaInput, Operation, Output};

use super::measure::generated;
use super::stack;
use crate::algorithms::{Primitive, SigningKeys};
use crate::error::{Error, Reason, Result};
use crate::ffi::inner;
use crate::ffi::key::{InnerKeyData, Key, Origin};
use crate::ffi::signature;
use crate::ffi::state::Provider;
use crate::ffi::types::Param;
use crate::process::Source;

/// A key of the application, ready to sign here. AWS-LC wipes its copy when it is dropped.
pub(in crate::ffi) struct Signer {
    primitive: Primitive,
    key: SoftwareKey,
}

impl Signer {
    /// The signer of a key; `None` if no primitive signs with it.
    pub(in crate::ffi) fn of(key: &Key) -> Option<Self> {
        let key_type = key.data.key_type;
        let mut of_type = Primitive::ALL.iter().filter(|primitive| {
            let signs = primitive.row().signs;
            signs.is_some_and(|keys| keys.key_type == key_type)
        });
        // Other key types are not encoded for nothing.
        of_type.clone().next()?;
        let Ok(Source::Imported(private)) = key.source() else {
            return None;
        };
        let load = || {
            let refused = |error: KeyError| Error::new(Reason::Key, error.to_string());
            SoftwareKey::load(&private).map_err(refused)
        };
        let loaded = stack::with_room(key.provider, load).ok()?;
        let exact = loaded.key_type();
        let primitive = of_type.find(|primitive| {
            let signs = primitive.row().signs;
            signs.is_some_and(|keys| keys.exact == exact)
        })?;
        Some(Self { primitive: *primitive, key: loaded })
    }

    pub(in crate::ffi) fn is_chosen(&self, provider: &'static Provider) -> bool {
        provider.chosen().has(self.primitive)
    }

    /// Signs, and counts it. `None` means that OpenSSL has to do it: another operation, or a result that `check`
    /// refuses.
    pub(in crate::ffi) fn run(
        &self,
        provider: &Provider,
        operation: &Operation,
        input: &[u8],
        check: &dyn Fn(&[u8]) -> bool,
    ) -> Option<Output> {
        let output = self.signature(provider, operation, input).ok()?;
        if !check(&output) {
            provider.stats.wrong_results.add();
            return None;
        }
        provider.stats.served_here(self.primitive);
        Some(output)
    }

    fn signature(
        &self,
        provider: &Provider,
        operation: &Operation,
        input: &[u8],
    ) -> Result<Output> {
        stack::with_room(provider, || {
            self.key
                .run(operation, input)
                .map_err(|error| Error::new(Reason::Internal, error.to_string()))
        })
    }
}

/// A fresh key of the installed OpenSSL, and the same key here: both sign the same input.
pub(super) struct SignatureSample {
    key: Key,
    signer: Signer,
    operation: Operation,
    input: Vec<u8>,
}

impl SignatureSample {
    /// # Errors
    /// If this OpenSSL has no such keys.
    pub(super) fn new(provider: &'static Provider, keys: SigningKeys) -> Result<Self> {
        use millrace_operation::KeyType as Exact;
        let functions = inner::key_functions(keys.key_type)?;
        let group = keys.group.map(|group| Param::text(c"group", group));
        let settings: Vec<Param> = group.into_iter().chain([Param::END]).collect();
        let data = InnerKeyData::taking(keys.key_type, generated(functions, &settings)?)?;
        let key = Key::staying(provider, data, Origin::Imported);
        let signer = Signer::of(&key);
        let signer = signer.ok_or_else(|| Error::new(Reason::Key, "AWS-LC refuses the key"))?;
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

    pub(super) fn sign_here(&self) -> Result<()> {
        let (provider, operation) = (self.key.provider, &self.operation);
        let signature = self.signer.signature(provider, operation, &self.input);
        signature.map(drop)
    }

    pub(super) fn sign_there(&self) -> Result<()> {
        let is_digest = matches!(self.operation, Operation::EcdsaSign { .. });
        signature::sign_by_openssl(&self.key, &self.input, is_digest)
    }
}
