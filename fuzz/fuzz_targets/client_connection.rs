// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a conversation between callers, a pool and its nodes; see the harness for its form. Every
//! task ends exactly once, whatever the nodes say, and nothing grows without bound.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| millrace_client::fuzzing::pool(data));
