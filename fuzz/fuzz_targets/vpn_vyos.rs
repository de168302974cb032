// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! VyOS's commands: any text is a valid link or a list of problems.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_vpn::ipsec::vyos;

fuzz_target!(|text: &str| {
    match vyos::import(text, "branch", None) {
        Ok(imported) => assert!(imported.text.contains("engine = \"ipsec\"")),
        Err(problems) => assert!(!problems.0.is_empty()),
    }
});
