// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Programs that provide data which no file contains, such as the capabilities that a library reports when it
//! is loaded. Only [`Root::ask`](crate::root::Root::ask) of the live machine runs them; a bundle holds their
//! output.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::child::{self, ChildLimits};
use crate::{ReadResult, Unavailable};

/// These programs print and exit, but may lie on a slow disk. The longest known output has 2 KB.
const LIMITS: ChildLimits = ChildLimits { time: Duration::from_secs(10), output_bytes: 256 << 10 };

/// A program to run, without input and with only the given environment.
#[derive(Clone, Debug)]
pub struct Probe<'a> {
    /// Name of its output in a bundle: letters, digits and dashes.
    pub name: String,
    /// Description of the data, for the message that it is missing.
    pub what: &'a str,
    /// Absolute path of the program.
    pub program: &'a str,
    /// Arguments of the program.
    pub arguments: &'a [&'a str],
    /// Nothing is inherited beside these.
    pub environment: &'a [(&'a str, &'a str)],
}

impl Probe<'_> {
    /// The standard output, if the program ends with success, in time, and prints text.
    pub(crate) fn run(&self) -> ReadResult<String> {
        let mut command = Command::new(self.program);
        command
            .args(self.arguments)
            .env_clear()
            .envs(self.environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let failed = |reason: &dyn std::fmt::Display| {
            Unavailable::unreadable(format!("{} {reason}", self.program))
        };
        let output = child::run(&mut command, &[], LIMITS).map_err(|error| failed(&error))?;
        if !output.status.success() {
            return Err(failed(&format_args!("failed: {}", output.status)));
        }
        String::from_utf8(output.stdout).map_err(|_| failed(&"printed something that is not text"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str) -> ReadResult<String> {
        let probe = Probe {
            name: "test".to_owned(),
            what: "a test",
            program: "/bin/sh",
            arguments: &["-c", script],
            environment: &[("GIVEN", "yes")],
        };
        probe.run()
    }

    #[test]
    fn program_gets_only_the_given_environment() {
        let output = run("echo ${GIVEN:-no} ${HOME:-no} ${CARGO:-no}");
        assert_eq!(output, Ok("yes no no\n".to_owned()));
    }

    #[test]
    fn failure_and_output_that_is_not_text_are_reasons() {
        for (script, expected) in [
            ("exit 3", "failed: exit status: 3"),
            ("printf '\\377'", "not text"),
            ("exec yes", "more than 262144 bytes"),
        ] {
            let reason = run(script).unwrap_err().to_string();
            assert!(reason.starts_with("/bin/sh ") && reason.contains(expected), "{reason}");
        }
    }
}
