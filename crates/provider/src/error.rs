// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Errors that the provider puts on OpenSSL's error stack.

use thiserror::Error;

/// Reason codes. They are part of the interface: applications see them in `ERR_get_error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// A bug in the provider; nothing was done.
    Internal = 1,
    /// The configuration cannot be used.
    Config = 2,
    /// The pool did not do the operation, and this process does not have the private key.
    Pool = 3,
    /// The private key is in the pool and stays there.
    KeyStays = 4,
    /// The pool does not offer this for keys that it holds.
    NotOffered = 5,
    /// libcrypto refused.
    Library = 6,
    /// The pool answered with a result that does not verify.
    WrongResult = 7,
    /// The key cannot be used.
    Key = 8,
    /// The application's buffer is too small for the result.
    Buffer = 9,
    /// A message, its tag or its parameters cannot be used.
    Message = 10,
}

impl Reason {
    /// Every reason with the text that OpenSSL prints for it.
    pub const TEXTS: &'static [(Self, &'static std::ffi::CStr)] = &[
        (Self::Internal, c"internal error"),
        (Self::Config, c"configuration error"),
        (Self::Pool, c"the pool did not do the operation"),
        (Self::KeyStays, c"the private key is held by the pool"),
        (Self::NotOffered, c"operation not offered by the pool"),
        (Self::Library, c"libcrypto refused"),
        (Self::WrongResult, c"wrong result from the pool"),
        (Self::Key, c"unusable key"),
        (Self::Buffer, c"buffer too small"),
        (Self::Message, c"unusable message or parameter"),
    ];
}

/// One error of the provider: a reason and a sentence for the error stack.
#[derive(Clone, Debug, Error)]
#[error("{text}")]
pub struct Error {
    /// Goes into OpenSSL's error stack as the reason.
    pub reason: Reason,
    /// Cause and remedy, without key material.
    pub text: String,
    /// libcrypto has already put a better error on its stack: raise nothing.
    pub silent: bool,
}

impl Error {
    /// An error with a sentence.
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into(), silent: false }
    }

    /// An error that libcrypto has already put on its stack.
    #[must_use]
    pub fn library() -> Self {
        Self { reason: Reason::Library, text: String::new(), silent: true }
    }
}

/// Result of a function whose error goes to OpenSSL's error stack.
pub type Result<T> = std::result::Result<T, Error>;
