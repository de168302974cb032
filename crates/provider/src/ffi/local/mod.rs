// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The primitives of [`crate::local`] under OpenSSL. The key objects of key shares are not
//! [`Key`](super::key::Key)s: they hold a key share of AWS-LC, and delegate nothing.
//!
//! - `keymgmt`: key objects. `exchange`: X25519. `kem`: ML-KEM-768 and the hybrids.
//! - `kdf`: `TLS13-KDF`.
//! - `aead`, `digest`: ciphers of records, and SHA-2.
//! - `bulk`: whole messages by the kernel. `entries`: the functions for C of `aead`, `digest` and `bulk`.
//! - `groups`: the TLS groups that this OpenSSL does not announce itself.
//! - `measure`: which primitives this process computes. `sign`, `stock`: what is measured for keys and key shares.

mod aead;
mod bulk;
mod digest;
mod entries;
mod exchange;
mod groups;
mod kdf;
mod kem;
mod keymgmt;
mod measure;
mod sign;
mod stock;

use std::ffi::{CStr, c_int, c_void};
use std::sync::{Arc, Mutex};

use millrace_operation::sync::lock;

pub(super) use groups::announce;

use super::delegate::{LOCAL_PROPERTIES, Offering, Rows, wrapped};
use super::inner;
use super::state::{Chosen, Provider};
use super::types::{Algorithm, StaticTable};
use crate::algorithms::{Aead, Bulk, BulkForm, Primitive, Sha2, Share};
use crate::bulk::BulkRoutes;
use crate::error::{Error, Reason, Result};
use crate::local::LocalError;
use crate::local::share::ShareKey;

impl From<LocalError> for Error {
    fn from(error: LocalError) -> Self {
        let reason = match error {
            LocalError::Refused(_) => Reason::Key,
            LocalError::Failed => Reason::Internal,
        };
        Self::new(reason, error.to_string())
    }
}

/// A key object. Operation contexts take the key that it holds when they start.
struct ShareObject {
    provider: &'static Provider,
    held: Mutex<Arc<ShareKey>>,
}

impl ShareObject {
    fn new(provider: &'static Provider, key: ShareKey) -> Self {
        Self { provider, held: Mutex::new(Arc::new(key)) }
    }

    fn key(&self) -> Arc<ShareKey> {
        Arc::clone(&lock(&self.held))
    }

    fn set(&self, key: ShareKey) {
        *lock(&self.held) = Arc::new(key);
    }

    /// The key in an object that a function got as an argument.
    ///
    /// # Safety
    /// `object` is null or a live key object of one of our tables.
    unsafe fn key_of(object: *const c_void) -> Result<Arc<ShareKey>> {
        // SAFETY: by this function's contract.
        match unsafe { object.cast::<Self>().as_ref() } {
            Some(object) => Ok(object.key()),
            None => Err(Error::new(Reason::Key, "no key is set")),
        }
    }
}

/// Whether this key share is offered: it was chosen, and is not left to an OpenSSL that has it.
pub(super) fn offers(chosen: &Chosen, share: Share) -> Result<bool> {
    let row = share.row();
    let is_left = row.yields && inner::context()?.shares[share as usize].is_some();
    Ok(chosen.has(row.primitive) && !is_left)
}

/// The algorithms of each operation that this process computes, or the kernel.
pub(super) struct Tables {
    pub(super) keys: Vec<Algorithm>,
    pub(super) exchanges: Vec<Algorithm>,
    pub(super) kems: Vec<Algorithm>,
    pub(super) kdfs: Vec<Algorithm>,
    pub(super) aeads: Vec<Algorithm>,
    pub(super) digests: Vec<Algorithm>,
    pub(super) macs: Vec<Algorithm>,
}

impl Tables {
    /// The tables of the chosen primitives, of algorithms with a route to the kernel, and of key shares.
    pub(super) fn new(chosen: &Chosen, routes: Option<&BulkRoutes>) -> Result<Self> {
        let context = inner::context()?;
        let aeads = Aead::ROWS.iter().map(|row| chosen.has(row.primitive));
        let digests = Sha2::ROWS.iter().map(|row| chosen.has(row.primitive));
        let mut tables = Self {
            keys: Vec::new(),
            exchanges: Vec::new(),
            kems: Vec::new(),
            kdfs: Vec::new(),
            aeads: wrapped(aeads, &context.aeads, &aead::DISPATCH, &[], LOCAL),
            digests: wrapped(digests, &context.sha2, &digest::DISPATCH, &[], LOCAL),
            macs: Vec::new(),
        };
        for (form, table) in [
            (BulkForm::Cipher, &mut tables.aeads),
            (BulkForm::Digest, &mut tables.digests),
            (BulkForm::Mac, &mut tables.macs),
        ] {
            let offered = Bulk::ROWS.iter().map(|row| {
                // Sizes were measured against OpenSSL, not against AWS-LC.
                let is_local = row.local.is_some_and(|primitive| chosen.has(primitive));
                row.form == form && !is_local && routes.is_some_and(|routes| routes.has_row(row))
            });
            table.extend(wrapped(offered, &context.bulk, &bulk::DISPATCH, &[], BY_KERNEL));
        }
        for (index, &share) in Share::ALL.iter().enumerate() {
            if !offers(chosen, share)? {
                continue;
            }
            let names = share.row().names;
            tables.keys.push(algorithm(names, keymgmt::DISPATCH[index]()));
            if share.is_agreement() {
                tables.exchanges.push(algorithm(names, exchange::rows()));
            } else {
                tables.kems.push(algorithm(names, kem::rows()));
            }
        }
        if chosen.has(Primitive::Tls13Kdf) && context.tls13_kdf.is_some() {
            tables.kdfs.push(algorithm(kdf::NAME, kdf::rows()));
        }
        Ok(tables)
    }
}

/// Property and description of what the kernel may compute.
const BY_KERNEL: Offering =
    (LOCAL_PROPERTIES, c"OpenSSL's, with long messages by the kernel's ciphers and hashes");

/// Property and description of what AWS-LC computes.
const LOCAL: Offering = (LOCAL_PROPERTIES, c"computed in this process by AWS-LC");

fn algorithm(names: &'static CStr, rows: Rows) -> Algorithm {
    let (properties, description) = LOCAL;
    Algorithm {
        names: names.as_ptr(),
        properties: properties.as_ptr(),
        implementation: StaticTable::dispatch(rows).as_ptr(),
        description: description.as_ptr(),
    }
}

/// Success, for C.
const DONE: c_int = 1;
