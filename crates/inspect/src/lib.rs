// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What hardware and crypto this machine has, whether it is used, and what it could ever give.
//!
//! A leaf, and read-only: it looks at files below one root (`/`, a fixture, an unpacked firmware),
//! and never changes what it looks at.
#![forbid(unsafe_code)]
