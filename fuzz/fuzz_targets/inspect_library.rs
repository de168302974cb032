// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a file that is called like a crypto library.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_inspect::libcrypto::{Assembly, Container, examine};

fuzz_target!(|bytes: &[u8]| {
    for container in [Container::SharedLibrary, Container::Program] {
        let Ok(Some(library)) = examine(bytes, "usr/lib/libcrypto.so.3", container, None) else {
            continue;
        };
        for used in &library.algorithms {
            assert!(used.level <= used.possible);
        }
        assert!(library.assembly != Assembly::None || library.modules.is_empty());
        assert!(library.build.compiler.is_none_or(|line| !line.contains(char::is_control)));
    }
});
