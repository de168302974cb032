// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a conversation between a client, a session and an engine; see the harness for its form.
//! Every job and request is answered exactly once, and no bound is ever exceeded.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| millrace_service::fuzzing::session(data));
