// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The steps that put the pool under an application, as values: files that are generated as a whole, lines for
//! the user's own files, and commands. A plan does nothing by itself.

use std::path::{Path, PathBuf};

use millrace_hostfs::generated::verify::Verification;
use millrace_hostfs::generated::{Generator, PlannedFile};
use schemars::JsonSchema;
use serde::Serialize;

use crate::application::Application;
use crate::system_conf::{DIFFERENCE, OPENSSL_CNF};

/// The first line of every file of a plan.
pub(crate) const GENERATOR: Generator = Generator {
    command: "millrace gateway",
    advice: "Edit it and it is yours: --write then leaves it alone.",
};

/// The steps that put the pool under one application.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RecipePlan {
    /// Application that the steps configure.
    pub application: Application,
    /// Commands that come first.
    pub before: Vec<CommandStep>,
    /// Files that are generated as a whole.
    pub files: Vec<PlannedFile>,
    /// Lines for the user's own files.
    pub snippets: Vec<Snippet>,
    /// Commands that make it take effect.
    pub after: Vec<CommandStep>,
    /// Tests of the result, before anything is restarted.
    #[serde(skip)]
    pub verifications: Vec<Verification>,
}

/// Lines that the user adds to a file of their own.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Snippet {
    /// A file of the administrator's own.
    pub path: PathBuf,
    /// To be added there.
    pub contents: String,
    /// Purpose of the lines, a sentence without a full stop.
    pub why: &'static str,
    /// The snippet counts as present if this text occurs outside a comment.
    #[serde(rename = "sign")]
    pub marker: String,
}

/// A command that the user runs before or after the files are in place.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CommandStep {
    /// For a shell, as root.
    pub command: String,
    /// Purpose of the command, a sentence without a full stop.
    pub why: &'static str,
}

impl RecipePlan {
    /// How the generated `openssl.cnf` differs from the configuration that the programs had before, a line each.
    pub fn differences(&self) -> impl Iterator<Item = &str> {
        let conf = self.files.iter().filter(|file| file.path == Path::new(OPENSSL_CNF));
        conf.flat_map(|file| file.contents.lines()).filter_map(|line| line.strip_prefix(DIFFERENCE))
    }

    /// The plan as text for a person; of a plan with one file and nothing else, that file, so that the output can
    /// be redirected to it.
    #[must_use]
    pub fn text(&self) -> String {
        if let ([file], [], [], []) =
            (&self.files[..], &self.snippets[..], &self.before[..], &self.after[..])
        {
            return file.contents.clone();
        }
        let mut text = String::new();
        steps(&mut text, "first", &self.before);
        for file in &self.files {
            text.push_str(&format!(
                "\n# ==> {} ({})\n{}",
                file.path.display(),
                file.why,
                file.contents
            ));
        }
        for snippet in &self.snippets {
            text.push_str(&format!(
                "\n# ==> {} (add to yours: {})\n{}",
                snippet.path.display(),
                snippet.why,
                snippet.contents
            ));
        }
        steps(&mut text, "then", &self.after);
        text
    }
}

fn steps(text: &mut String, when: &str, steps: &[CommandStep]) {
    if steps.is_empty() {
        return;
    }
    text.push_str(&format!("\n# ==> {when}\n"));
    for step in steps {
        text.push_str(&format!("# {}\n{}\n", step.why, step.command));
    }
}
