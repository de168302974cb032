// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a configuration file of any server. Findings are bounded, and every
//! check of the doctor ends, saying everything or nothing.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use millrace_hostfs::Root;
use millrace_inspect::doctor::system::System;
use millrace_inspect::doctor::{ConfiguredProgram, Facts, FileSettings, examine};
use millrace_inspect::kernel::blocked::{of_line, of_parameters};
use millrace_inspect::report::Report;

const PROGRAMS: [ConfiguredProgram; 7] = [
    ConfiguredProgram::Strongswan,
    ConfiguredProgram::Openvpn,
    ConfiguredProgram::Nginx,
    ConfiguredProgram::Haproxy,
    ConfiguredProgram::Openssl,
    ConfiguredProgram::Systemd,
    ConfiguredProgram::Limits,
];

/// A machine of which nothing is known.
fn nothing() -> &'static Report {
    static REPORT: OnceLock<Report> = OnceLock::new();
    REPORT.get_or_init(|| {
        let root = Root::open("/proc/self/attr").expect("a folder with nothing of a machine in it");
        Report::of(&root)
    })
}

fuzz_target!(|text: &str| {
    let mut system = System::default();
    for program in PROGRAMS {
        let settings = FileSettings::read(program, text);
        // A line may have several: `opt=1 opt=2;`.
        assert!(settings.len() <= text.len());
        assert!(settings.iter().all(|setting| text.contains(&setting.name)));
        let file = "etc/any.conf".to_owned();
        system.settings.push(FileSettings { program, file, settings });
    }
    // What keeps modules out has names of modules, whatever the file says.
    let lines = text.lines().filter_map(|line| of_line("etc/modprobe.d/any.conf", line));
    system.blocked_modules = lines.chain(of_parameters(text)).collect();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    assert!(
        system
            .blocked_modules
            .iter()
            .all(|one| one.module.len() <= 64 && one.module.chars().all(is_name))
    );
    for finding in examine(&Facts::new(nothing(), &system), |_| true) {
        assert!(!finding.title.is_empty() && !finding.evidence.is_empty());
        assert!(!finding.impact.is_empty() && !finding.remedy.is_empty());
    }
});
