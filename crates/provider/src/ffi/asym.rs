// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Asymmetric encryption: OpenSSL's own, except that a decryption with a pooled key goes to the pool.

use millrace_operation::Output;

use super::delegate::{
    DelegatedOperation, OneShot, Rows, Wrapped, dispatch, dupctx, get_params, init, listing,
    newctx, produce, set_noted_params, transform,
};
use super::handle::free;
use super::ids;
use super::inner::{self, InnerAlgorithm};
use super::key::Key;
use super::memory::bytes;
use super::params::{digest_in, integer_in};
use super::private;
use super::types::Param;
use crate::algorithms::{AlgorithmRow, Cipher, each_cipher};
use crate::error::{Error, Result};
use crate::operation_params::{self, Digest, PAD_TLS, RsaDecrypt};

type Context = Wrapped<Crypting>;

/// The rows of each algorithm's dispatch table.
pub(crate) const DISPATCH: [fn() -> Rows; Cipher::ALL.len()] = each_cipher!(rows);

#[rustfmt::skip]
fn rows<const A: usize>() -> Rows {
    dispatch! { cipher {
        NEWCTX              => newctx<Crypting, A>;
        FREECTX             => free<Context>;
        DUPCTX              => dupctx<Crypting>;
        ENCRYPT_INIT        => init<Crypting>;
        ENCRYPT             => transform<Context>;
        DECRYPT_INIT        => init<Crypting>;
        DECRYPT             => produce<Crypting>;
        GET_CTX_PARAMS      => get_params<Context>;
        GETTABLE_CTX_PARAMS => listing<Crypting, A>;
        SET_CTX_PARAMS      => set_noted_params<Crypting>;
        SETTABLE_CTX_PARAMS => listing<Crypting, A>;
    } }
}

/// Length of a TLS premaster secret (`SSL_MAX_MASTER_KEY_LENGTH`).
const PREMASTER: usize = 48;

/// Settings of an encryption or decryption context that the inner context does not return.
#[derive(Clone, Copy, Default)]
struct Crypting {
    /// The TLS version that was negotiated.
    negotiated_version: u32,
    /// Whether implicit rejection was switched off.
    explicit_rejection: bool,
}

impl DelegatedOperation for Crypting {
    const ROWS: &'static [AlgorithmRow] = Cipher::ROWS;
    const NEW: i32 = ids::cipher::NEWCTX;
    const FREE: i32 = ids::cipher::FREECTX;
    const GET_PARAMS: i32 = ids::cipher::GET_CTX_PARAMS;

    fn inner(context: &'static inner::InnerContext) -> &'static [Option<InnerAlgorithm>] {
        &context.ciphers
    }

    fn copy(&self) -> Result<Self> {
        Ok(*self)
    }

    unsafe fn note(&mut self, settings: *const Param) {
        // SAFETY: by the trait's contract.
        if let Some(version) = unsafe { integer_in(settings, c"tls-negotiated-version") } {
            self.negotiated_version = u32::try_from(version).unwrap_or(u32::MAX);
        }
        // SAFETY: by the trait's contract.
        if let Some(implicit) = unsafe { integer_in(settings, c"implicit-rejection") } {
            self.explicit_rejection = implicit == 0;
        }
    }
}

impl OneShot for Crypting {
    fn produce(
        context: &mut Context,
        _id: i32,
        key: &Key,
        ciphertext: &[u8],
        room: usize,
    ) -> Result<Option<Output>> {
        let settings = context.settings()?;
        let modulus_len =
            usize::try_from(key.integer(c"max-size")?).map_err(|_| Error::library())?;
        let tls = settings.pad_mode == PAD_TLS;
        let request = operation_params::rsa_decrypt(&settings)
            .filter(|_| ciphertext.len() == modulus_len && (!tls || room >= PREMASTER))
            .map(|operation| (operation, ciphertext.to_vec()));
        private::run(key, request, &|output, _| {
            if tls { output.len() == PREMASTER } else { output.len() <= modulus_len }
        })
    }
}

impl Context {
    fn settings(&self) -> Result<RsaDecrypt> {
        let mut pad_mode = 0;
        let mut client_version = 0;
        let mut digest = [0; Digest::MAX_NAME];
        let mut mgf1 = [0; Digest::MAX_NAME];
        let mut label: *const u8 = std::ptr::null();
        let mut request = [
            Param::int(c"pad-mode", &mut pad_mode),
            Param::string(c"digest", &mut digest),
            Param::string(c"mgf1-digest", &mut mgf1),
            Param::bytes_ptr(c"oaep-label", &mut label),
            Param::uint(c"tls-client-version", &mut client_version),
            Param::END,
        ];
        if !self.get(&mut request) {
            return Err(Error::library());
        }
        let label_len = if request[3].is_set() { request[3].return_size } else { 0 };
        Ok(RsaDecrypt {
            pad_mode,
            digest: digest_in(&digest),
            mgf1: digest_in(&mgf1),
            // SAFETY: the inner context has set the pointer to its label, of this length, and lives on
            // while the label is copied.
            label: unsafe { bytes(label, label_len) }.to_vec(),
            client_version,
            negotiated_version: self.state.negotiated_version,
            explicit_rejection: self.state.explicit_rejection,
        })
    }
}
