// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a file named as a saved run of `millrace bench sizes`. It is
//! refused, or advice comes out whose comments end where they end.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use millrace_hostfs::Root;
use millrace_inspect::advise::sizes::Sizes;
use millrace_inspect::advise::{AdviseRequest, Subject, advise, software};
use millrace_inspect::report::Report;

/// An empty machine: the run is all that there is to judge.
static EMPTY: LazyLock<Root> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join("millrace-fuzz-advise");
    std::fs::create_dir_all(&folder).expect("a folder");
    Root::open(folder).expect("a root")
});
static REPORT: LazyLock<Report> = LazyLock::new(|| Report::of(&EMPTY));

fuzz_target!(|bytes: &[u8]| {
    let Ok(sizes) = Sizes::parse(bytes) else {
        return;
    };
    let request = AdviseRequest { sizes: Some(sizes), ..AdviseRequest::of(Subject::Openvpn) };
    let advice = advise(&REPORT, &software::section(&EMPTY), &request);
    assert!(advice.configuration.lines().all(|line| !line.contains('\r')));
    assert_eq!(advice.configuration.matches("data-ciphers ").count(), 1);
});
