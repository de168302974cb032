// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Key agreement: OpenSSL's own, except that a derivation with a pooled key goes to the pool.

use std::ffi::c_int;
use std::sync::Arc;

use millrace_operation::{Operation, Output};

use super::delegate::{
    DelegatedOperation, Finish, Rows, Wrapped, dispatch, dupctx, finish, get_params, init, listing,
    newctx, set_noted_params,
};
use super::handle::{Handle, free, with_context};
use super::ids;
use super::inner::{self, InnerAlgorithm, call};
use super::key::{Key, Origin};
use super::libcrypto::Ptr;
use super::params::{integer_in, string_in};
use super::private;
use super::types::Param;
use crate::algorithms::{AlgorithmRow, Exchange, Scheme, each_exchange};
use crate::error::{Error, Reason, Result};

type Context = Wrapped<Agreeing>;

/// The rows of each algorithm's dispatch table.
pub(crate) const DISPATCH: [fn() -> Rows; Exchange::ALL.len()] = each_exchange!(rows);

#[rustfmt::skip]
fn rows<const A: usize>() -> Rows {
    dispatch! { keyexch {
        NEWCTX              => newctx<Agreeing, A>;
        FREECTX             => free<Context>;
        DUPCTX              => dupctx<Agreeing>;
        INIT                => init<Agreeing>;
        SET_PEER            => set_peer<>;
        DERIVE              => finish<Agreeing>;
        SET_CTX_PARAMS      => set_noted_params<Agreeing>;
        SETTABLE_CTX_PARAMS => listing<Agreeing, A>;
        GET_CTX_PARAMS      => get_params<Context>;
        GETTABLE_CTX_PARAMS => listing<Agreeing, A>;
    } }
}

/// Longest public value of a peer: a group element of 8192 bits.
const MAX_PUBLIC: usize = 1024;

/// State of a key agreement context, in addition to the inner one.
#[derive(Clone, Default)]
struct Agreeing {
    peer: Option<Arc<Key>>,
    /// `OSSL_EXCHANGE_PARAM_PAD`: a finite-field secret keeps its leading zeros.
    pad: bool,
}

impl DelegatedOperation for Agreeing {
    const ROWS: &'static [AlgorithmRow] = Exchange::ROWS;
    const NEW: i32 = ids::keyexch::NEWCTX;
    const FREE: i32 = ids::keyexch::FREECTX;
    const GET_PARAMS: i32 = ids::keyexch::GET_CTX_PARAMS;
    /// There is a derivation with an ephemeral key in every handshake, and no pool could do it.
    const COUNTS_LOCAL: bool = false;

    fn inner(context: &'static inner::InnerContext) -> &'static [Option<InnerAlgorithm>] {
        &context.exchanges
    }

    fn copy(&self) -> Result<Self> {
        Ok(self.clone())
    }

    unsafe fn note(&mut self, settings: *const Param) {
        // SAFETY: by the trait's contract.
        if let Some(pad) = unsafe { integer_in(settings, c"pad") } {
            self.pad = pad != 0;
        }
    }

    /// The inner context would ask for a private key that it does not have.
    fn result_len(context: &Context, key: &Key) -> Result<Option<usize>> {
        let resident = key.origin() == Origin::Resident;
        resident.then(|| context.secret_len(key)).transpose()
    }
}

impl Finish for Agreeing {
    fn finish(context: &mut Context, key: &Key, room: usize) -> Result<Option<Output>> {
        let secret_len = context.secret_len(key)?;
        let public = match &context.state.peer {
            Some(peer) => peer.bytes(c"encoded-pub-key", MAX_PUBLIC)?,
            None => return Err(Error::new(Reason::Key, "no peer key is set")),
        };
        let operation = context.operation(&public).filter(|_| !context.has_kdf());
        let request = operation.map(|operation| (operation, public));
        // On the NIST curves there is a point whose x is zero; elsewhere zero means a peer of small order.
        let zero_is_good = context.row.scheme == Scheme::Ecdh;
        let output = private::run(key, request, &|output, _| {
            output.len() == secret_len && (zero_is_good || output.iter().any(|byte| *byte != 0))
        })?;
        Ok(output.map(|mut output| match context.row.scheme {
            Scheme::Dh if !context.state.pad => without_leading_zeros(&output),
            // As OpenSSL does, for ECDH alone.
            Scheme::Ecdh => {
                output.truncate(room);
                output
            }
            _ => output,
        }))
    }
}

impl Context {
    /// Whether the secret goes through a key derivation function in the same call.
    fn has_kdf(&self) -> bool {
        if !self.functions.has(Agreeing::GET_PARAMS) {
            return false;
        }
        let mut name = [0; 50];
        let mut request = [Param::string(c"kdf-type", &mut name), Param::END];
        !self.get(&mut request) || string_in(&name).is_some_and(|name| !name.is_empty())
    }

    /// Length of the secret, before zeros are stripped.
    fn secret_len(&self, key: &Key) -> Result<usize> {
        let bytes = match self.row.scheme {
            Scheme::Dh => key.integer(c"max-size")?,
            _ => (key.integer(c"bits")? + 7) / 8,
        };
        usize::try_from(bytes).map_err(|_| Error::library())
    }

    fn operation(&self, public: &[u8]) -> Option<Operation> {
        match self.row.scheme {
            // Compressed and hybrid points are for the inner context.
            Scheme::Ecdh if public.first() == Some(&4) => Some(Operation::Ecdh),
            Scheme::X25519 => Some(Operation::X25519),
            Scheme::Dh => Some(Operation::DhDerive),
            _ => None,
        }
    }
}

fn without_leading_zeros(secret: &[u8]) -> Output {
    let zeros = secret.iter().take_while(|byte| **byte == 0).count();
    Output::new(secret[zeros..].to_vec())
}

unsafe extern "C" fn set_peer<const ID: i32>(pointer: Ptr, object: Ptr) -> c_int {
    let entry = |context: &mut Context| {
        // SAFETY: libcrypto passes null or a key object of the same key manager as the key's.
        let peer = unsafe { Key::share(object) }?;
        // SAFETY: `set_peer` takes a live context and inner key data.
        let status = unsafe {
            call!(context.functions, ID, fn(context.inner => Ptr, peer.inner() => Ptr) -> c_int)
        }?;
        if status == 1 {
            context.state.peer = Some(peer);
        }
        Ok(status)
    };
    // SAFETY: libcrypto passes a context of this operation.
    unsafe { with_context(pointer, entry) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leading_zeros_are_stripped() {
        let stripped = |secret: &[u8]| without_leading_zeros(secret).as_slice().to_vec();
        assert_eq!(stripped(&[0, 0, 1, 0, 2]), [1, 0, 2]);
        assert_eq!(stripped(&[3]), [3]);
        assert!(stripped(&[0]).is_empty());
    }
}
