// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The software backend passes the suite.

use std::sync::Arc;

use millrace_backends::software::Software;
use millrace_testkit::conformance::{self, Options};

#[test]
fn software_conforms() {
    // The reference is another instance of the same backend: deterministic results must be equal across
    // instances. `openssl.rs` compares with another library.
    let options = Options { reference: Some(Arc::new(Software::new())), rounds: 5 };
    let report = conformance::run(Arc::new(Software::new()), &options);
    println!("{report}");
    assert_eq!(report.left_out, Vec::<String>::new());
    assert!(report.total() > 5_000, "only {} tests ran", report.total());
}
