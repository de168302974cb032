// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Findings: severity, evidence, impact, remedies.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Severity of a finding; the worst sorts first.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::IntoStaticStr,
)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Severity {
    /// Something is broken, or data is in danger
    Critical,
    /// Capacity or safety is lost
    Warning,
    /// Worth knowing
    Notice,
}

impl Severity {
    /// The name used in JSON and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// One step towards a repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Remedy {
    /// A complete shell command without placeholders; it may end in a `# comment`
    Run(String),
    /// Advice in words, or lines of a configuration
    Advice(String),
}

/// One problem, or one possible improvement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Finding {
    /// ID of the check; stable, for monitoring
    pub id: String,
    /// How much the problem costs, or how soon it does
    pub severity: Severity,
    /// The problem in one line
    pub title: String,
    /// Files and values that show the problem
    pub evidence: Vec<String>,
    /// Consequences of the problem; measured numbers name their source
    pub impact: String,
    /// Steps towards a repair; read them before you use them
    pub remedy: Vec<Remedy>,
}

/// Pieces of evidence in one finding. A hostile tree may contain any number.
const MAX_EVIDENCE: usize = 12;
/// Longest piece of evidence, in characters: one line of a configuration.
const MAX_EVIDENCE_LEN: usize = 200;

/// Checks build findings with these methods; [`examine`](super::examine) fills in the ID, and the title
/// of the check where the check gives none.
impl Finding {
    pub(super) fn new(severity: Severity) -> Self {
        Self {
            id: String::new(),
            severity,
            title: String::new(),
            evidence: Vec::new(),
            impact: String::new(),
            remedy: Vec::new(),
        }
    }

    pub(super) fn critical() -> Self {
        Self::new(Severity::Critical)
    }

    pub(super) fn warning() -> Self {
        Self::new(Severity::Warning)
    }

    pub(super) fn notice() -> Self {
        Self::new(Severity::Notice)
    }

    /// Replaces the title of the check, to be more precise about this machine.
    pub(super) fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    pub(super) fn evidence(mut self, evidence: impl IntoIterator<Item = String>) -> Self {
        for piece in evidence {
            match self.evidence.len() {
                len if len < MAX_EVIDENCE => {
                    self.evidence.push(piece.chars().take(MAX_EVIDENCE_LEN).collect());
                }
                MAX_EVIDENCE => self.evidence.push("and more".to_owned()),
                _ => break,
            }
        }
        self
    }

    pub(super) fn impact(mut self, impact: impl Into<String>) -> Self {
        self.impact = impact.into();
        self
    }

    pub(super) fn run(mut self, command: impl Into<String>) -> Self {
        self.remedy.push(Remedy::Run(command.into()));
        self
    }

    pub(super) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.remedy.push(Remedy::Advice(advice.into()));
        self
    }

    /// Drops a finding without evidence: nothing on this machine shows the problem.
    pub(super) fn if_evident(self) -> Option<Self> {
        (!self.evidence.is_empty()).then_some(self)
    }
}
