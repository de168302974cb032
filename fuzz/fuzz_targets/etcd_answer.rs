// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: what an etcd, or something in its place, answers. It is an error or an answer; nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| millrace_manager::fuzzing::etcd_answer(bytes));
