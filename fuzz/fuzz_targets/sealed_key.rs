// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: the secret that a manager seals, or a sealed key as an answer to a heartbeat brings it. What parses as the
//! secret has one encoding; no sealed key that this node was not given opens.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| millrace_manager::fuzzing::sealed_key(bytes));
