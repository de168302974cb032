// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The server's own test of its configuration (`nginx -t`), run with the environment that the generated files
//! give the service. It starts no server.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::below;
use crate::child::{self, ChildError, ChildLimits, find_program};

/// nginx resolves the names of its upstreams, which takes time; its warnings are read by a person.
const LIMITS: ChildLimits = ChildLimits { time: Duration::from_secs(60), output_bytes: 1 << 20 };

/// The dynamic linker's warning about a missing library; the program continues without it.
const NOT_PRELOADED: &str = "cannot be preloaded";

/// A test: a program that has to succeed.
#[derive(Clone, Debug)]
pub struct Verification {
    /// Name of the test in messages.
    pub name: &'static str,
    /// The program, without a folder.
    pub program: &'static str,
    /// Arguments of the program.
    pub arguments: Vec<Argument>,
    /// Variables in addition to those of this process.
    pub environment: Vec<(&'static str, Argument)>,
    /// Text that the output of the program has to contain.
    pub wants: Option<&'static str>,
}

/// An argument, or the value of a variable.
#[derive(Clone, Debug)]
pub enum Argument {
    /// Passed as it is.
    Text(&'static str),
    /// Text made for this plan.
    Owned(String),
    /// A file below the root that is written to.
    File(&'static str),
}

/// The result of a test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase", tag = "result", content = "said")]
pub enum ConfigVerdict {
    /// The configuration is valid.
    Passed,
    /// The configuration is not valid; the output of the program.
    Failed(String),
    /// The test could not run, for this reason.
    Skipped(String),
}

impl Argument {
    fn resolve(&self, root: &Path) -> PathBuf {
        match self {
            Self::Text(text) => text.into(),
            Self::Owned(text) => text.into(),
            Self::File(path) => below(root, Path::new(path)),
        }
    }
}

impl Verification {
    /// Runs the test on the files below `root`.
    #[must_use]
    pub fn run(&self, root: &Path) -> ConfigVerdict {
        let Some(program) = find_program(self.program) else {
            return ConfigVerdict::Skipped(format!("{} is not installed here", self.program));
        };
        for argument in self.arguments.iter().chain(self.environment.iter().map(|pair| &pair.1)) {
            if let Argument::File(_) = argument {
                let file = argument.resolve(root);
                if !file.exists() {
                    return ConfigVerdict::Skipped(format!("there is no {}", file.display()));
                }
            }
        }
        let mut command = Command::new(program);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.args(self.arguments.iter().map(|argument| argument.resolve(root)));
        for (name, value) in &self.environment {
            command.env(name, value.resolve(root));
        }
        match child::run(&mut command, &[], LIMITS) {
            Err(error @ ChildError::Start(_)) => {
                ConfigVerdict::Skipped(format!("{} {error}", self.program))
            }
            Err(error) => ConfigVerdict::Failed(format!("{} {error}", self.name)),
            Ok(output) => {
                let text = [output.stdout, output.stderr].concat();
                let text = String::from_utf8_lossy(&text);
                let wanted = self.wants.is_none_or(|wanted| text.contains(wanted));
                if output.status.success() && wanted && !text.contains(NOT_PRELOADED) {
                    ConfigVerdict::Passed
                } else {
                    ConfigVerdict::Failed(text.trim().to_owned())
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &'static str, wants: Option<&'static str>) -> ConfigVerdict {
        let verification = Verification {
            name: "sh",
            program: "sh",
            arguments: vec![Argument::Text("-c"), Argument::Text(script)],
            environment: vec![("LIBRARY", Argument::Owned("/x.so".to_owned()))],
            wants,
        };
        verification.run(Path::new("/"))
    }

    #[test]
    fn status_and_output_decide() {
        assert_eq!(shell("exit 0", None), ConfigVerdict::Passed);
        assert_eq!(shell("echo $LIBRARY", Some("/x.so")), ConfigVerdict::Passed);
        assert_eq!(shell("echo no", Some("yes")), ConfigVerdict::Failed("no".to_owned()));
        assert_eq!(shell("echo bad >&2; exit 1", None), ConfigVerdict::Failed("bad".to_owned()));
        let unloaded = "echo \"object '$LIBRARY' cannot be preloaded\" >&2";
        assert!(matches!(shell(unloaded, None), ConfigVerdict::Failed(_)));
    }

    #[test]
    fn missing_program_or_file_skips_the_test() {
        let missing = Verification {
            name: "nothing",
            program: "no-such-program-of-ours",
            arguments: Vec::new(),
            environment: Vec::new(),
            wants: None,
        };
        assert!(matches!(missing.run(Path::new("/")), ConfigVerdict::Skipped(_)));
        let file = Verification {
            program: "sh",
            arguments: vec![Argument::File("/etc/no-such-file")],
            ..missing
        };
        let verdict = file.run(Path::new("/nowhere"));
        assert_eq!(
            verdict,
            ConfigVerdict::Skipped("there is no /nowhere/etc/no-such-file".to_owned())
        );
    }
}
