// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Configuration of the servers that the pool is put under (nginx, HAProxy, and others), and the
//! check that a running one really uses it.
//!
//! A leaf: it knows files, processes and TLS from outside, and no other crate of ours.
#![forbid(unsafe_code)]
