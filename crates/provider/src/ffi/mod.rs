// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The C boundary: everything with a raw pointer in it, and nothing else.
//!
//! - `ids`: OpenSSL's numbers. [`types`]: its four structs that are interface.
//! - `libcrypto`: the library that loaded us, found at run time.
//! - `core`: upcalls, error stack, and the `guard` through which every entry goes.
//! - `inner`: the inner library context and the functions of its `default` provider.
//! - `params`: `OSSL_PARAM` arrays.
//! - `wait`: `ASYNC_JOB`s; `preload`: what the preload library does for them.
//! - `delegate`: contexts and functions that all operations have in common; `signature`, `keyexch`, `asym`:
//!   the operations, each a table of rows and what it intercepts; `key`, `keymgmt`: key objects.
//! - `local`: what AWS-LC computes here; `cells`: the memory file in which it is counted.
//! - `private`: from an operation to the pool; `hasher`: digests of messages that the pool signs.
//! - `decoder`, `store`: stubs and `millrace:` URIs.
//! - `state`: a loaded provider, which every entry gets; `about`: what it says about itself.
//! - `provider`: `OSSL_provider_init` and the tables, above all others; `section`: mistakes in `openssl.cnf`;
//!   `unusable`: the provider after one.
//!
//! Ownership: a *key object* in OpenSSL's hands is a strong reference to a [`key::Key`]; an operation
//! context is a box. A provider is never freed: OpenSSL may unload it while the client's I/O thread
//! still holds a late completion, and at exit nothing may call libcrypto any more.

mod about;
mod asym;
mod cells;
mod core;
mod decoder;
mod delegate;
mod handle;
mod hasher;
mod ids;
mod inner;
mod key;
mod keyexch;
mod keymgmt;
mod libcrypto;
mod local;
mod memory;
mod params;
mod preload;
mod private;
mod provider;
mod section;
mod signature;
mod signer;
mod stack;
mod state;
mod store;
mod types;
mod unusable;
mod wait;
