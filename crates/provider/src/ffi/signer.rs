// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Signatures with keys that the application has loaded, by AWS-LC in place of OpenSSL: the `software` backend signs,
//! on the thread that calls.

use millrace_backends::software::SoftwareKey;
use millrace_operation::{Operation, Output, PrivateKey};

use super::stack;
use super::state::Provider;
use crate::algorithms::{KeyType, Primitive};
use crate::error::{Error, Reason, Result};
use crate::sampling::Scrutiny;

/// A key of the application that AWS-LC signs with. AWS-LC wipes its copy when it is dropped.
pub(super) struct Signer {
    primitive: Primitive,
    key: SoftwareKey,
}

impl Signer {
    /// Whether any primitive signs with keys of this type.
    pub(super) fn signs_with(key_type: KeyType) -> bool {
        Primitive::ALL
            .iter()
            .filter_map(|primitive| primitive.row().signs)
            .any(|keys| keys.key_type == key_type)
    }

    /// The signer of a private key; `None` if no primitive signs with it.
    pub(super) fn load(provider: &Provider, private: &PrivateKey) -> Option<Self> {
        let key = stack::with_room(provider, || {
            SoftwareKey::load(private).map_err(|error| Error::new(Reason::Key, error.to_string()))
        })
        .ok()?;
        let exact = key.key_type();
        let primitive = Primitive::ALL
            .iter()
            .find(|primitive| primitive.row().signs.is_some_and(|keys| keys.exact == exact))?;
        Some(Self { primitive: *primitive, key })
    }

    pub(super) fn is_chosen(&self, provider: &'static Provider) -> bool {
        provider.chosen().has(self.primitive)
    }

    /// Signs, and counts it. `None` means that OpenSSL has to do it: another operation, or a result that `check`
    /// refuses.
    pub(super) fn run(
        &self,
        provider: &Provider,
        operation: &Operation,
        input: &[u8],
        check: &dyn Fn(&[u8], Scrutiny) -> bool,
    ) -> Option<Output> {
        let output = self.signature(provider, operation, input).ok()?;
        if !check(&output, Scrutiny::Form) {
            provider.stats.wrong_results.add();
            return None;
        }
        provider.stats.served_locally(self.primitive);
        Some(output)
    }

    /// Signs, whether the result is right or not.
    pub(super) fn signature(
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
