// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The fixed fields of requests: a cursor that takes no bytes that are not there, and one table with the order of the
//! fields in each form of a request.

use super::RequestFormat;
use crate::spec::{CryptoService, Status};

/// A cursor over the bytes of a request.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl<'a> Cursor<'a> {
    /// Takes `len` bytes.
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Status> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Status::Err)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Takes `len` bytes as a cursor of their own.
    pub(super) fn part(&mut self, len: usize) -> Result<Self, Status> {
        self.take(len).map(Self)
    }

    /// Takes the fixed fields: `own` bytes, or `legacy` bytes without revision 1.
    pub(super) fn fixed(
        &mut self,
        format: RequestFormat,
        own: usize,
        legacy: usize,
    ) -> Result<Self, Status> {
        self.part(if format.revision_1() { own } else { legacy })
    }

    /// Takes a key of at least one and at most `most` bytes.
    pub(super) fn key(&mut self, len: usize, most: usize) -> Result<&'a [u8], Status> {
        if len == 0 || len > most {
            return Err(Status::NotSupported);
        }
        self.take(len)
    }

    pub(super) fn word(&mut self) -> Result<u32, Status> {
        let bytes = self.take(4)?.try_into().map_err(|_| Status::Err)?;
        Ok(u32::from_le_bytes(bytes))
    }

    pub(super) fn long(&mut self) -> Result<u64, Status> {
        let bytes = self.take(8)?.try_into().map_err(|_| Status::Err)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// A fixed field of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Field {
    // The parameters of a session, or of a request without one.
    Algorithm,
    KeyLen,
    Direction,
    /// Length of an AEAD tag.
    TagLen,
    /// Public or private.
    KeyType,
    /// The padding of RSA, the curve of ECDSA.
    Scheme,
    /// The hash of an RSA padding.
    SchemeHash,
    /// Whether a chain starts with its cipher or with its hash.
    Order,
    /// Whether a chain has a hash or a MAC.
    Mode,
    /// The algorithm of a hash or MAC.
    CheckAlgorithm,
    CheckKeyLen,
    /// Length of the result of a hash or MAC.
    ResultLen,
    // The work of one request.
    /// Length of an IV, counter, tweak or nonce.
    IvLen,
    SourceLen,
    /// Length of the result; of the digest in a verification.
    TargetLen,
    AadLen,
    CipherStart,
    CipherLen,
    HashStart,
    HashLen,
    /// Padding, and lengths that each request states again.
    Skipped,
}

const FIELDS: usize = Field::Skipped as usize + 1;

/// The place of a request's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A control request that makes a session: parameters alone.
    Session,
    /// A data request that names a session: work alone.
    Named,
    /// A data request with parameters of its own before the work.
    Stateless,
}

/// The kinds of requests that differ in their fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Cipher,
    Chain,
    Hash,
    Mac,
    Aead,
    Akcipher,
}

impl Kind {
    /// The kind of a service's requests; a cipher request is a [`Self::Chain`] if its type says so.
    pub(super) const fn of(service: CryptoService) -> Self {
        match service {
            CryptoService::Cipher => Self::Cipher,
            CryptoService::Hash => Self::Hash,
            CryptoService::Mac => Self::Mac,
            CryptoService::Aead => Self::Aead,
            CryptoService::Akcipher => Self::Akcipher,
        }
    }

    /// The fields in their order (virtio 1.3, sections 5.9.7.2 and 5.9.7.3).
    #[rustfmt::skip]
    const fn fields(self, form: Form) -> &'static [Field] {
        use Field::*;
        match (self, form) {
            (Self::Cipher, Form::Session)     => &[Algorithm, KeyLen, Direction],
            (Self::Cipher, Form::Named)       => &[IvLen, SourceLen, TargetLen],
            (Self::Cipher, Form::Stateless)   => &[Algorithm, KeyLen, Direction, IvLen, SourceLen, TargetLen],
            (Self::Chain, Form::Session)      => &[Order, Mode, Algorithm, KeyLen, Direction, Skipped,
                                                   CheckAlgorithm, ResultLen, CheckKeyLen],
            (Self::Chain, Form::Named)        => &[IvLen, SourceLen, TargetLen, CipherStart, CipherLen, HashStart,
                                                   HashLen, AadLen, ResultLen],
            (Self::Chain, Form::Stateless)    => &[Order, Skipped, Algorithm, KeyLen, Direction, CheckAlgorithm,
                                                   CheckKeyLen, Mode, IvLen, SourceLen, TargetLen, CipherStart,
                                                   CipherLen, HashStart, HashLen, AadLen, ResultLen],
            (Self::Hash, Form::Session)       => &[CheckAlgorithm, ResultLen],
            (Self::Mac, Form::Session)        => &[CheckAlgorithm, ResultLen, CheckKeyLen],
            (Self::Hash | Self::Mac, Form::Named) => &[SourceLen, ResultLen],
            (Self::Hash, Form::Stateless)     => &[CheckAlgorithm, SourceLen, ResultLen],
            (Self::Mac, Form::Stateless)      => &[CheckAlgorithm, CheckKeyLen, SourceLen, ResultLen],
            // A session's length of additional data is skipped: each request has its own.
            (Self::Aead, Form::Session)       => &[Algorithm, KeyLen, TagLen, Skipped, Direction],
            (Self::Aead, Form::Named)         => &[IvLen, AadLen, SourceLen, TargetLen, TagLen],
            (Self::Aead, Form::Stateless)     => &[Algorithm, KeyLen, Direction, IvLen, TagLen, AadLen, SourceLen,
                                                   TargetLen],
            (Self::Akcipher, Form::Session)   => &[Algorithm, KeyType, KeyLen, Scheme, SchemeHash],
            (Self::Akcipher, Form::Named)     => &[SourceLen, TargetLen],
            (Self::Akcipher, Form::Stateless) => &[Algorithm, KeyType, KeyLen, Scheme, SchemeHash, SourceLen,
                                                   TargetLen],
        }
    }
}

/// Length of the fixed fields of a service's requests with revision 1, in bytes.
#[rustfmt::skip]
pub(super) const fn fixed_len(service: CryptoService, form: Form) -> usize {
    match (service, form) {
        (CryptoService::Cipher | CryptoService::Akcipher, Form::Session) => 56,
        (CryptoService::Hash, Form::Session)                       => 8,
        (CryptoService::Mac, Form::Session)                        => 16,
        (CryptoService::Aead, Form::Session | Form::Named)         => 24,
        (CryptoService::Cipher, Form::Named)                       => 48,
        (CryptoService::Cipher, Form::Stateless)                   => 76,
        (CryptoService::Hash | CryptoService::Mac | CryptoService::Akcipher, Form::Named) => 8,
        (CryptoService::Hash | CryptoService::Mac, Form::Stateless)      => 16,
        (CryptoService::Aead, Form::Stateless)                     => 32,
        (CryptoService::Akcipher, Form::Stateless)                 => 28,
    }
}

/// Offset of the word that tells a cipher from a chain, in bytes.
pub(super) const fn type_offset(form: Form) -> usize {
    match form {
        Form::Session => 48,
        Form::Named => 40,
        Form::Stateless => 72,
    }
}

/// The values of the fixed fields that a request has; the others are 0.
pub(super) struct Values([u32; FIELDS]);

impl Values {
    /// Reads the fields of a request.
    pub(super) fn read(kind: Kind, form: Form, mut fixed: Cursor<'_>) -> Result<Self, Status> {
        let mut values = [0; FIELDS];
        for field in kind.fields(form) {
            values[*field as usize] = fixed.word()?;
        }
        Ok(Self(values))
    }

    pub(super) const fn code(&self, field: Field) -> u32 {
        self.0[field as usize]
    }

    /// A length, of 32 bits on the wire.
    pub(super) fn len(&self, field: Field) -> Result<usize, Status> {
        usize::try_from(self.code(field)).map_err(|_| Status::Err)
    }
}
