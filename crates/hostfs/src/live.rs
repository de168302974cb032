// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What no file says and a program of the machine does: what a library says of itself when it is
//! loaded. Asked of the machine itself only ([`Root::ask`](crate::root::Root::ask)); a bundle holds the
//! answers of its machine.
//!
//! A program gets no input, an empty environment but for what the question names, and a bound on time
//! and output.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long a program may take to answer: they print and exit, but may lie on a slow disk.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Bound on an answer: the longest known has 2 KB.
const MAX_ANSWER: u64 = 256 << 10;

/// A question, as a program to run.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// Its name in a bundle: letters, digits and dashes.
    pub name: String,
    /// What is asked, for people: it is named if there is no answer.
    pub what: &'a str,
    /// The program, an absolute path.
    pub program: &'a str,
    /// Its arguments.
    pub arguments: &'a [&'a str],
    /// Its whole environment.
    pub environment: &'a [(&'a str, &'a str)],
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What the program printed.
    Text(String),
    /// These are files of a machine, and not the machine.
    NotFromFiles,
    /// The program is not there, failed, took too long, or said no text.
    Failed(String),
}

impl Question<'_> {
    /// Runs the program.
    pub(crate) fn ask(&self) -> Answer {
        let child = Command::new(self.program)
            .args(self.arguments)
            .env_clear()
            .envs(self.environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => hear(child, self.program),
            Err(error) => Answer::Failed(format!("cannot start {}: {error}", self.program)),
        }
    }
}

/// What a program prints, if it ends well and in time; it is ended in any case.
fn hear(mut child: Child, program: &str) -> Answer {
    let Some(output) = child.stdout.take() else {
        return Answer::Failed(format!("{program} has no output"));
    };
    let (send, receive) = mpsc::sync_channel(1);
    let listener = thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = output.take(MAX_ANSWER).read_to_end(&mut bytes);
        let _ = send.send(read.map(|_| bytes));
    });
    let heard = receive.recv_timeout(TIME_LIMIT);
    let status = end(&mut child, heard.is_ok());
    drop(listener);
    match (heard, status) {
        (Err(_), _) => Answer::Failed(format!("{program} gave no answer in time")),
        (Ok(Ok(bytes)), Ok(status)) if status.success() => String::from_utf8(bytes).map_or_else(
            |_| Answer::Failed(format!("{program} says no text")),
            Answer::Text,
        ),
        (Ok(_), Ok(status)) => Answer::Failed(format!("{program} failed: {status}")),
        (Ok(_), Err(error)) => Answer::Failed(format!("{program}: {error}")),
    }
}

/// Waits for the end of a program whose output has ended; one that is still there a moment later, or
/// that gave no answer, is killed.
fn end(child: &mut Child, answered: bool) -> io::Result<ExitStatus> {
    const LOOKS: u32 = 200;
    const BETWEEN: Duration = Duration::from_millis(5);
    for _ in 0..LOOKS {
        match child.try_wait() {
            Ok(None) if answered => thread::sleep(BETWEEN),
            Ok(None) => break,
            Ok(Some(status)) => return Ok(status),
            Err(error) => return Err(error),
        }
    }
    child.kill()?;
    child.wait()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(arguments: &[&str]) -> Answer {
        let question = Question {
            name: "test".to_owned(),
            what: "a test",
            program: "/bin/sh",
            arguments,
            environment: &[("GIVEN", "yes")],
        };
        question.ask()
    }

    #[test]
    fn a_program_sees_only_the_environment_it_is_given() {
        let answer = ask(&["-c", "echo ${GIVEN:-no} ${HOME:-no} ${CARGO:-no}"]);
        assert_eq!(answer, Answer::Text("yes no no\n".to_owned()));
    }

    #[test]
    fn failures_and_noise_are_facts() {
        assert!(matches!(ask(&["-c", "exit 3"]), Answer::Failed(_)));
        assert!(matches!(ask(&["-c", "printf '\\377'"]), Answer::Failed(_)));
        // Its output ends and it does not.
        assert!(matches!(
            ask(&["-c", "exec >&-; exec sleep 1000"]),
            Answer::Failed(_)
        ));
        // Endless output: what is above the bound is not read, and the program is gone afterwards.
        assert!(matches!(
            ask(&["-c", "exec yes 2>/dev/null"]),
            Answer::Failed(_)
        ));
    }
}
