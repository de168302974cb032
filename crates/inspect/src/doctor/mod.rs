// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Problems with this machine's cryptography: the evidence, the impact, the remedy.
//!
//! ```text
//! Root ── Report::of ─┐
//!    └─── system.rs ──┴─► observation.rs ─► Facts ─► checks/ ─► Finding ─► Diagnosis
//!                           └─► watch.rs: rates, and alerts when findings come and go
//! ```
//!
//! A check is a pure function from facts to a finding, and a row of [`CHECKS`]. Monitoring may rely on its
//! ID; `docs/guide/doctor.md` lists all of them. A check whose facts could not be read reports nothing,
//! unless its title says otherwise: an unreadable file proves neither health nor a problem.
//!
//! `places` says where programs have their settings, and `settings` reads those that checks judge; `system` calls it.
//!
//! This module changes nothing on the machine. A [`Remedy`] is text for a person.

pub mod advisories;
mod checks;
mod finding;
mod observation;
mod places;
mod settings;
pub mod system;
pub mod watch;

use schemars::JsonSchema;
use serde::Serialize;

pub use self::checks::CHECKS;
pub use self::finding::{Finding, Remedy, Severity};
pub use self::observation::{Observation, diagnose};
pub use self::places::ConfiguredProgram;
pub use self::settings::{FileSettings, Setting};
use self::system::System;
use crate::accelerators::Accelerators;
use crate::cpu::Cpu;
use crate::kernel::Kernel;
use crate::libcrypto::Libraries;
use crate::network::Network;
use crate::qat::{Qat, QatDevice};
use crate::report::Report;
use crate::section::Unread;

/// The findings of one examination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Diagnosis {
    /// Version of this format; it grows when a field changes its meaning or disappears
    pub format: u32,
    /// True for the machine itself, false for a folder or bundle
    pub live: bool,
    /// Number of checks that ran
    pub checks: usize,
    /// The worst finding first
    pub findings: Vec<Finding>,
    /// Why this is not a machine that can be examined; null if it is. Without findings nothing is proven then
    pub unknown: Option<String>,
    /// Facts that could not be read, with the reason; checks that need them report nothing
    pub unread: Vec<Unread>,
}

impl Diagnosis {
    /// The current version of the JSON format. 2: `remedy` distinguishes `run` and `advice`, and
    /// `consequence` is `impact`.
    pub const FORMAT: u32 = 2;

    /// The severity of the worst finding.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).min()
    }

    /// Reason for which the health of the machine is unknown: it could not be examined, and nothing worse than a notice
    /// was found in what could be read.
    #[must_use]
    pub fn undecided(&self) -> Option<&str> {
        let serious = self.worst().is_some_and(|worst| worst != Severity::Notice);
        self.unknown.as_deref().filter(|_| !serious)
    }

    /// Number of findings of one severity.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        let findings = self.findings.iter();
        findings.filter(|found| found.severity == severity).count()
    }
}

/// A check: its problem, and the rule that finds it.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// ID of the check: letters, digits and dashes
    pub id: &'static str,
    /// The problem that the check finds, in one line
    pub title: &'static str,
    run: fn(&Facts<'_>) -> Option<Finding>,
}

/// An ID that no check has.
#[derive(Debug, thiserror::Error)]
#[error("there is no check {0:?}: `millrace doctor --list` lists the checks")]
pub struct UnknownCheck(String);

/// A predicate that selects the checks with these IDs, or all checks if there are none.
pub fn select(ids: &[String]) -> Result<impl Fn(&Check) -> bool + use<>, UnknownCheck> {
    let exists = |id: &&String| CHECKS.iter().any(|check| check.id == **id);
    if let Some(unknown) = ids.iter().find(|id| !exists(id)) {
        return Err(UnknownCheck(unknown.clone()));
    }
    let ids = ids.to_vec();
    Ok(move |check: &Check| ids.is_empty() || ids.iter().any(|id| id == check.id))
}

/// The input of all checks.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    report: &'a Report,
    system: &'a System,
    earlier: Option<&'a Qat>,
}

impl<'a> Facts<'a> {
    /// Facts from one reading of the machine.
    #[must_use]
    pub fn new(report: &'a Report, system: &'a System) -> Self {
        Self { report, system, earlier: None }
    }

    /// Adds an earlier reading of QAT. It tells requests that hang from requests in progress.
    #[must_use]
    pub fn after(mut self, earlier: Option<&'a Qat>) -> Self {
        self.earlier = earlier;
        self
    }

    fn cpu(&self) -> Option<&'a Cpu> {
        self.report.cpu.known.as_ref()
    }

    fn kernel(&self) -> Option<&'a Kernel> {
        self.report.kernel.known.as_ref()
    }

    fn network(&self) -> Option<&'a Network> {
        self.report.network.known.as_ref()
    }

    fn libraries(&self) -> Option<&'a Libraries> {
        self.report.libcrypto.known.as_ref()
    }

    fn accelerators(&self) -> Option<&'a Accelerators> {
        self.report.accelerators.known.as_ref()
    }

    fn qat(&self) -> Option<&'a Qat> {
        self.report.qat.known.as_ref()
    }

    /// QAT devices other than virtual functions.
    fn devices(&self) -> impl Iterator<Item = &'a QatDevice> + use<'a> {
        let devices = self.qat().map_or(&[][..], |qat| &qat.devices);
        devices.iter().filter(|device| !device.virtual_function)
    }

    /// Settings of one name, each with the file that contains it.
    fn settings(
        &self,
        program: ConfiguredProgram,
        name: &'static str,
    ) -> impl Iterator<Item = (&'a str, &'a Setting)> + use<'a> {
        let files = self.system.settings.iter();
        files
            .filter(move |file| file.program == program)
            .flat_map(|file| file.settings.iter().map(|setting| (file.file.as_str(), setting)))
            .filter(move |(_, setting)| setting.name == name)
    }

    /// [`Self::settings`] for several names, possibly of several programs.
    fn settings_of(
        &self,
        names: &[(ConfiguredProgram, &'static str)],
    ) -> impl Iterator<Item = (&'a str, &'a Setting)> + use<'a> {
        let facts = *self;
        let names = names.to_vec();
        names.into_iter().flat_map(move |(program, name)| facts.settings(program, name))
    }

    /// [`Self::settings`] for several names of one program.
    fn settings_named(
        &self,
        program: ConfiguredProgram,
        names: &'static [&'static str],
    ) -> impl Iterator<Item = (&'a str, &'a Setting)> + use<'a> {
        let facts = *self;
        names.iter().flat_map(move |name| facts.settings(program, name))
    }

    /// The lines that keep one of these modules from loading.
    fn blocked_by(&self, modules: &[impl AsRef<str>]) -> Vec<String> {
        let blocked = self.system.blocked_modules.iter();
        let lines = blocked.filter(|one| modules.iter().any(|name| name.as_ref() == one.module));
        lines.map(|one| one.by.clone()).collect()
    }

    /// Adds the command that loads modules (each with its parameters), or, where lines of this machine keep one of them
    /// out, these lines: they may close a published hole.
    fn loading(&self, finding: Finding, modules: &[&str], remark: &str) -> Finding {
        let names = modules.iter().filter_map(|module| module.split(' ').next());
        let names: Vec<String> = names.map(|name| name.replace('-', "_")).collect();
        let blocked = self.blocked_by(&names);
        if !blocked.is_empty() {
            return finding.evidence(blocked).advise(
                "A line keeps the module out, as mitigations of published holes do: read why before you remove it.",
            );
        }
        let all = if modules.len() > 1 { "-a " } else { "" };
        let remark = if remark.is_empty() { String::new() } else { format!("        # {remark}") };
        finding.run(format!("modprobe {all}{}{remark}", modules.join(" ")))
    }

    /// Whether this machine has a configuration of the program.
    fn configured(&self, program: ConfiguredProgram) -> bool {
        let mut files = self.system.settings.iter();
        files.any(|file| file.program == program)
    }
}

/// `file: name value`, as evidence.
fn quote((file, setting): (&str, &Setting)) -> String {
    format!("{file}: {} {}", setting.name, setting.value)
}

/// Runs all checks that `wanted` selects; the worst finding comes first.
#[must_use]
pub fn examine(facts: &Facts<'_>, wanted: impl Fn(&Check) -> bool) -> Vec<Finding> {
    let checks = CHECKS.iter().filter(|check| wanted(check));
    let mut findings: Vec<Finding> = checks
        .filter_map(|check| {
            let mut finding = (check.run)(facts)?;
            check.id.clone_into(&mut finding.id);
            if finding.title.is_empty() {
                check.title.clone_into(&mut finding.title);
            }
            Some(finding)
        })
        .collect();
    findings.sort_by_key(|finding| finding.severity);
    findings
}
