// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a certificate in DER. The identity in it, if there is one, is a plain name.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| millrace_server::fuzzing::certificate(data));
