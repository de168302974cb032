// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The C boundary: everything with a raw pointer in it, and nothing else.
//!
//! Modules, the lowest first:
//!
//! - `ids`: OpenSSL's numbers. [`types`]: its structs whose layout is interface.
//! - `libcrypto`: the library that loaded the module, found at run time.
//! - `memory`: memory of the application. `params`: `OSSL_PARAM` arrays.
//! - `core`: upcalls and the error stack. `state`: a loaded provider, and the guard of every entry.
//! - `inner`: the inner library context and the functions of its `default` provider. `hasher`: its digests.
//! - `handle`: objects that OpenSSL holds by a pointer. `delegate`: what all operations have in common.
//! - `stack`: a larger stack for a computation in an `ASYNC_JOB`. `signer`: signatures by AWS-LC.
//! - `wait`: `ASYNC_JOB`s. `preload`: the functions of the preload library for them.
//! - `key`, `keymgmt`: key objects. `private`: from a private operation to the pool.
//! - `signature`, `keyexch`, `asym`: the operations, each a table of rows and what it intercepts.
//! - `local`: primitives by AWS-LC, and whole messages by the kernel. `cells`: the memory file that counts primitives.
//! - `decoder`, `store`: stubs and `millrace:` URIs.
//! - `notice`: the line on standard error of a process that reaches no node.
//! - `about`: parameters of every provider. `section`: mistakes in `openssl.cnf`. `unusable`: the provider after one.
//! - `provider`: `OSSL_provider_init` and the tables.
//!
//! Ownership: a *key object* of OpenSSL is a strong reference to a [`key::Key`]; an operation context is a box. A
//! provider is never freed: OpenSSL may unload it while the client's I/O thread still holds a late completion, and at
//! exit nothing may call libcrypto any more.

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
mod notice;
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
