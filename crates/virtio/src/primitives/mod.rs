// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Primitives that the device computes in place: symmetric ciphers, hashes, MACs, public-key operations that need no
//! private key, and RSA below the engine's smallest size. All of it is AWS-LC's.
//!
//! A request of a guest is small and takes microseconds, so a queue of the engine or a network would cost more than
//! the work. Private operations with keys of the engine's sizes are not here: they go to the service.

#[expect(unsafe_code, reason = "calls AWS-LC's functions")]
mod sys;

pub(crate) use sys::{Aead, AeadError, CipherContext, EcPublic, Rsa, hash, mac, sha256};
