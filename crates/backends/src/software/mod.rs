// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! All operations on the CPU with AWS-LC, one at a time.
//!
//! AWS-LC is the fastest library on every x86 and Arm machine that we measured. It has every operation,
//! including finite-field Diffie-Hellman and DSA, so no other library is linked. Its constant-time
//! arithmetic, blinding and nonces are used unchanged. This backend adds two things that AWS-LC's interface
//! does not offer: distinct errors for the defects of a key (`keys`), and RSA padding around the raw
//! operation with implicit rejection (`padding`, shared with other backends).
//!
//! **Verification.** AWS-LC verifies every RSA private result with one public operation, in constant
//! time (`rsa_default_private_transform` in its `rsa_impl.c`). It skips this only for a key without a
//! public exponent, and this backend refuses such keys. A test breaks a CRT exponent behind AWS-LC's
//! checks and gets [`Fault`](millrace_engine::BackendError::Fault). AWS-LC verifies before it removes the
//! blinding. The step after that, one multiplication modulo n, is not split over the primes: an error in it
//! yields a wrong result but does not reveal a factor. A second public operation per result would cost
//! 11.5 µs of the 201 µs of an RSA-2048 signature (AMD EPYC; 0.94 of AWS-LC alone instead of 0.998) and would
//! stop no attack on faulty signatures. So it is done once per key, when the key is loaded.

use std::fmt;
use std::sync::Arc;

use millrace_engine::BackendError;
use millrace_engine::backend::{
    Backend, BackendKey, Capability, Description, OpenedKey, Queue, Unusable,
};
use millrace_operation::{BackendKind, KeyError, KeyType, Operation, Output, PrivateKey};

mod capabilities;
pub(crate) mod keys;
pub(crate) mod operations;
pub(crate) mod padding;
mod queue;
pub(crate) mod rsa;
#[expect(unsafe_code, reason = "calls AWS-LC's functions")]
pub(crate) mod sys;

use crate::key_table::{KeyTable, MAX_KEYS};
use keys::LoadedKey;

/// The software backend. It works on every machine and may be shared between threads.
pub struct Software {
    keys: Arc<KeyTable<LoadedKey>>,
}

impl Software {
    /// Makes a backend without keys.
    #[must_use]
    pub fn new() -> Self {
        Self { keys: Arc::new(KeyTable::new(MAX_KEYS)) }
    }
}

impl Default for Software {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Software {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Software({} keys)", self.keys.len())
    }
}

impl Backend for Software {
    fn describe(&self) -> Description {
        Description { kind: BackendKind::Software, version: sys::version(), on_cpu: true, batch: 1 }
    }

    fn capabilities(&self) -> &[Capability] {
        &capabilities::CAPABILITIES
    }

    fn probe(&self) -> Result<(), Unusable> {
        Ok(())
    }

    fn open_key(&self, key: &PrivateKey) -> Result<OpenedKey, KeyError> {
        let loaded = keys::load(key.dangerous_pkcs8())?;
        let info = loaded.info.clone();
        Ok(OpenedKey { key: self.keys.insert(loaded)?, info })
    }

    fn close_key(&self, key: BackendKey) {
        self.keys.remove(key);
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, Unusable> {
        Ok(Box::new(queue::SoftwareQueue::new(Arc::clone(&self.keys))))
    }
}

/// One key of a process that signs by itself: no queue, no other thread. It may be used by several threads at once.
pub struct SoftwareKey(LoadedKey);

impl SoftwareKey {
    /// Parses and checks a key, as [`Software`] does.
    pub fn load(key: &PrivateKey) -> Result<Self, KeyError> {
        keys::load(key.dangerous_pkcs8()).map(Self)
    }

    /// Type and size of the key.
    #[must_use]
    pub fn key_type(&self) -> KeyType {
        self.0.info.key_type
    }

    /// Does one operation on the thread that calls.
    ///
    /// # Errors
    /// [`BackendError::NotOffered`] for an operation that the key does not have, [`BackendError::BadInput`] for a wrong
    /// input.
    pub fn run(&self, operation: &Operation, input: &[u8]) -> Result<Output, BackendError> {
        operations::run(&self.0, operation, input)
    }
}

impl fmt::Debug for SoftwareKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SoftwareKey({:?})", self.key_type())
    }
}
