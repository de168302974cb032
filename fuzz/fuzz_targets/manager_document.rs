// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a body of the manager's API or a record of its store. It is refused, or it is written and read as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| millrace_manager::fuzzing::document(bytes));
