// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What is wrong with this machine's cryptography, how that is known, what it costs, and what to do.
//!
//! ```text
//! Root ── Report::of ────┐
//!    └─── system.rs ─────┴─► Facts ─► checks/ ─► Finding (severity, evidence, consequence, remedy)
//!                                                   └─► watch.rs: alerts when findings come and go
//! ```
//!
//! Checks are pure: facts in, findings out. Each is a row of [`CHECKS`], with an id that monitoring can
//! rely on; `docs/guide/doctor.md` names them all. What could not be read makes no finding, but for the
//! checks that say so: silence of an unreadable file is no proof of health.
//!
//! Not here: changing anything. A remedy is text for a person.

mod checks;
mod settings;
pub mod system;
pub mod watch;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::checks::CHECKS;
pub use self::settings::{MAX_SETTINGS, Program, Setting, Settings};
pub use self::system::System;
use crate::accelerators::Accelerators;
use crate::cpu::Cpu;
use crate::kernel::Kernel;
use crate::libcrypto::Libraries;
use crate::network::Network;
use crate::qat::{Device, Qat};
use crate::report::{Report, Section, Unread};
use millrace_hostfs::Root;

/// How bad a finding is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something broken, or data in danger
    Critical,
    /// Capacity or safety that is lost
    Warning,
    /// Worth knowing
    Notice,
}

impl Severity {
    /// Its name, as in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Notice => "notice",
        }
    }
}

/// Something that is wrong, or could be better.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Finding {
    /// The check that found it; stable, for monitoring
    pub id: String,
    /// How bad it is
    pub severity: Severity,
    /// In one line
    pub title: String,
    /// What says so: files and values
    pub evidence: Vec<String>,
    /// What follows from it, with numbers where they are known, and whose they are
    pub consequence: String,
    /// What to do: commands and lines, to be read before they are used
    pub remedy: Vec<String>,
}

/// All findings of one look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Diagnosis {
    /// Version of this form; it grows when a field changes its meaning or goes
    pub format: u32,
    /// Whether this is the machine itself, rather than files of one
    pub live: bool,
    /// Checks that were made
    pub checks: usize,
    /// The worst first
    pub findings: Vec<Finding>,
    /// What could not be read, and why: a check that needs it is silent
    pub unread: Vec<Unread>,
}

impl Diagnosis {
    /// The version of the form.
    pub const FORMAT: u32 = 1;

    /// The severity of the worst finding.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).min()
    }

    /// The JSON schema of a diagnosis, as text.
    #[must_use]
    pub fn schema() -> String {
        // A schema is made of maps and texts: writing it cannot fail.
        let mut text =
            serde_json::to_string_pretty(&schemars::schema_for!(Self)).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// What a check found: a finding without its id.
#[derive(Clone, Debug)]
pub struct Found {
    severity: Severity,
    title: String,
    evidence: Vec<String>,
    consequence: String,
    remedy: Vec<String>,
}

/// Evidence that one finding names; a hostile tree may have any amount.
const MAX_EVIDENCE: usize = 12;
/// Longest piece of evidence, in characters: a line of a configuration.
const MAX_EVIDENCE_LEN: usize = 200;

impl Found {
    fn new(severity: Severity, title: impl Into<String>) -> Self {
        Self {
            severity,
            title: title.into(),
            evidence: Vec::new(),
            consequence: String::new(),
            remedy: Vec::new(),
        }
    }

    fn critical(title: impl Into<String>) -> Self {
        Self::new(Severity::Critical, title)
    }

    fn warning(title: impl Into<String>) -> Self {
        Self::new(Severity::Warning, title)
    }

    fn notice(title: impl Into<String>) -> Self {
        Self::new(Severity::Notice, title)
    }

    /// Adds what says so.
    fn seen(mut self, evidence: impl IntoIterator<Item = String>) -> Self {
        for piece in evidence {
            match self.evidence.len() {
                len if len < MAX_EVIDENCE => {
                    self.evidence
                        .push(piece.chars().take(MAX_EVIDENCE_LEN).collect());
                }
                MAX_EVIDENCE => self.evidence.push("and more".to_owned()),
                _ => break,
            }
        }
        self
    }

    fn means(mut self, consequence: impl Into<String>) -> Self {
        self.consequence = consequence.into();
        self
    }

    fn fix(mut self, line: impl Into<String>) -> Self {
        self.remedy.push(line.into());
        self
    }
}

/// One check.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Its id: letters, digits and dashes
    pub id: &'static str,
    /// What it looks for, in one line
    pub about: &'static str,
    run: fn(&Facts<'_>) -> Option<Found>,
}

/// What checks are made of.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    report: &'a Report,
    system: &'a System,
    earlier: Option<&'a Qat>,
}

impl<'a> Facts<'a> {
    /// Facts of one look.
    #[must_use]
    pub fn new(report: &'a Report, system: &'a System) -> Self {
        Self {
            report,
            system,
            earlier: None,
        }
    }

    /// With an earlier look at QAT, so that what hangs can be told from what is on its way.
    #[must_use]
    pub fn after(mut self, earlier: &'a Qat) -> Self {
        self.earlier = Some(earlier);
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

    /// QAT devices that are no virtual functions.
    fn devices(&self) -> impl Iterator<Item = &'a Device> + use<'a> {
        let devices = self.qat().map_or(&[][..], |qat| &qat.devices);
        devices.iter().filter(|device| !device.virtual_function)
    }

    /// Settings of a program by name, with the file that has them.
    fn settings(
        &self,
        program: Program,
        name: &'static str,
    ) -> impl Iterator<Item = (&'a str, &'a Setting)> + use<'a> {
        self.system
            .settings
            .iter()
            .filter(move |file| file.program == program)
            .flat_map(|file| {
                file.settings
                    .iter()
                    .map(|setting| (file.file.as_str(), setting))
            })
            .filter(move |(_, setting)| setting.name == name)
    }

    /// Whether a program has a configuration here.
    fn configured(&self, program: Program) -> bool {
        self.system
            .settings
            .iter()
            .any(|file| file.program == program)
    }
}

/// `file: name value`, as evidence.
fn quote((file, setting): (&str, &Setting)) -> String {
    format!("{file}: {} {}", setting.name, setting.value)
}

/// Makes all checks that `wanted` takes.
#[must_use]
pub fn examine(facts: &Facts<'_>, wanted: impl Fn(&Check) -> bool) -> Vec<Finding> {
    let mut findings: Vec<Finding> = CHECKS
        .iter()
        .filter(|check| wanted(check))
        .filter_map(|check| {
            let Found {
                severity,
                title,
                evidence,
                consequence,
                remedy,
            } = (check.run)(facts)?;
            Some(Finding {
                id: check.id.to_owned(),
                severity,
                title,
                evidence,
                consequence,
                remedy,
            })
        })
        .collect();
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// Looks at everything, and makes the checks that `wanted` takes.
#[must_use]
pub fn diagnose(root: &Root, wanted: impl Fn(&Check) -> bool) -> Diagnosis {
    let report = Report::of(root);
    let system = system::section(root);
    judge(&report, &system, None, wanted)
}

/// Makes checks of what is known already; `earlier` is an earlier look at QAT.
#[must_use]
pub fn judge(
    report: &Report,
    system: &Section<System>,
    earlier: Option<&Qat>,
    wanted: impl Fn(&Check) -> bool,
) -> Diagnosis {
    let nothing = System::default();
    let mut facts = Facts::new(report, system.known.as_ref().unwrap_or(&nothing));
    facts.earlier = earlier;
    let sections = [
        &system.unread,
        &report.qat.unread,
        &report.kernel.unread,
        &report.network.unread,
        &report.cpu.unread,
        &report.libcrypto.unread,
    ];
    let mut unread: Vec<Unread> = Vec::new();
    for entry in sections.into_iter().flatten() {
        if !unread.contains(entry) {
            unread.push(entry.clone());
        }
    }
    Diagnosis {
        format: Diagnosis::FORMAT,
        live: report.live,
        checks: CHECKS.iter().filter(|check| wanted(check)).count(),
        findings: examine(&facts, wanted),
        unread,
    }
}
