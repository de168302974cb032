// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The server's own test of its configuration (`nginx -t`), run with the environment that the
//! generated files give the service. It starts no server.

use std::env;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

/// A test that takes longer is given up: nginx resolves the names of its upstreams.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a running test is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Bound on what is kept of a program's output, in bytes: a person reads it.
const MAX_OUTPUT: u64 = 64 * 1024;

/// Where programs of administrators are, besides `PATH`.
const ADMINISTRATION: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// What the dynamic linker says of a library that it does not find; the program goes on without it.
const NOT_PRELOADED: &str = "cannot be preloaded";

/// A test.
#[derive(Clone, Debug)]
pub struct Verification {
    /// As it is called.
    pub name: &'static str,
    /// The program, without a folder.
    pub program: &'static str,
    /// Its arguments.
    pub arguments: Vec<Argument>,
    /// Variables that it is given.
    pub environment: Vec<(&'static str, Argument)>,
    /// What it has to print.
    pub wants: Option<&'static str>,
}

/// An argument, or the value of a variable.
#[derive(Clone, Debug)]
pub enum Argument {
    /// Text.
    Text(&'static str),
    /// Text of this plan.
    Owned(String),
    /// A file, below the root that is written to.
    File(&'static str),
}

/// What came of a test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "result", content = "said")]
pub enum Verdict {
    /// The configuration is good.
    Passed,
    /// It is not; this is what the program said.
    Failed(String),
    /// It could not be tried, for this reason.
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

/// The path of a file below a root.
#[must_use]
pub fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

impl Verification {
    /// Runs it on the files below `root`.
    #[must_use]
    pub fn run(&self, root: &Path) -> Verdict {
        let Some(program) = find_program(self.program) else {
            return Verdict::Skipped(format!("{} is not installed here", self.program));
        };
        for argument in self
            .arguments
            .iter()
            .chain(self.environment.iter().map(|pair| &pair.1))
        {
            if let Argument::File(_) = argument {
                let file = argument.resolve(root);
                if !file.exists() {
                    return Verdict::Skipped(format!("there is no {}", file.display()));
                }
            }
        }
        let mut command = Command::new(program);
        command.args(self.arguments.iter().map(|argument| argument.resolve(root)));
        for (name, value) in &self.environment {
            command.env(name, value.resolve(root));
        }
        match run(command) {
            Err(error) => Verdict::Skipped(format!("{} cannot be run: {error}", self.program)),
            Ok(Ended::GivenUp) => Verdict::Failed(format!(
                "{} does not end within {} s",
                self.name,
                PATIENCE.as_secs()
            )),
            Ok(Ended::Output { success, text }) => {
                let wanted = self.wants.is_none_or(|wanted| text.contains(wanted));
                if success && wanted && !text.contains(NOT_PRELOADED) {
                    Verdict::Passed
                } else {
                    Verdict::Failed(text.trim().to_owned())
                }
            }
        }
    }
}

enum Ended {
    Output { success: bool, text: String },
    GivenUp,
}

/// Runs a program to its end, or ends it.
fn run(mut command: Command) -> io::Result<Ended> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = Owned(command.spawn()?);
    let readers = [
        child
            .0
            .stdout
            .take()
            .map(|pipe| thread::spawn(|| read(pipe))),
        child
            .0
            .stderr
            .take()
            .map(|pipe| thread::spawn(|| read(pipe))),
    ];
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.0.try_wait()? {
            break status;
        }
        if started.elapsed() > PATIENCE {
            return Ok(Ended::GivenUp);
        }
        thread::sleep(LOOK);
    };
    let texts = readers.into_iter().flatten().map(|reader| {
        // A reader that panicked has read nothing.
        reader.join().unwrap_or_default()
    });
    Ok(Ended::Output {
        success: status.success(),
        text: texts.collect(),
    })
}

/// Ends with its owner.
struct Owned(Child);

impl Drop for Owned {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            // If it cannot be killed it has ended.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

fn read(mut pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    // What cannot be read is not there.
    let _ = pipe.by_ref().take(MAX_OUTPUT).read_to_end(&mut bytes);
    // The rest too, or the program waits for ever.
    let _ = io::copy(&mut pipe, &mut io::sink());
    String::from_utf8_lossy(&bytes).into_owned()
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(ADMINISTRATION.iter().map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &'static str, wants: Option<&'static str>) -> Verdict {
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
    fn what_a_program_says_decides() {
        assert_eq!(shell("exit 0", None), Verdict::Passed);
        assert_eq!(shell("echo $LIBRARY", Some("/x.so")), Verdict::Passed);
        assert_eq!(
            shell("echo no", Some("yes")),
            Verdict::Failed("no".to_owned())
        );
        assert_eq!(
            shell("echo bad >&2; exit 1", None),
            Verdict::Failed("bad".to_owned())
        );
        let unloaded = "echo \"object '$LIBRARY' cannot be preloaded\" >&2";
        assert!(matches!(shell(unloaded, None), Verdict::Failed(_)));
    }

    #[test]
    fn what_is_not_there_is_skipped_and_says_so() {
        let missing = Verification {
            name: "nothing",
            program: "no-such-program-of-ours",
            arguments: Vec::new(),
            environment: Vec::new(),
            wants: None,
        };
        assert!(matches!(missing.run(Path::new("/")), Verdict::Skipped(_)));
        let file = Verification {
            program: "sh",
            arguments: vec![Argument::File("/etc/no-such-file")],
            ..missing
        };
        let verdict = file.run(Path::new("/nowhere"));
        assert_eq!(
            verdict,
            Verdict::Skipped("there is no /nowhere/etc/no-such-file".to_owned())
        );
    }
}
