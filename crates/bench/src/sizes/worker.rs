// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One implementation in a process of its own.
//!
//! A libcrypto reads its capability mask when it is loaded, and one process cannot hold two builds of
//! it apart. So each implementation is a child of ours that takes requests on its standard input and
//! answers on its standard output, one line each. That also lets the implementations take turns in
//! slices of milliseconds, which `openssl speed` with its whole seconds does not.
//!
//! | request | answer |
//! |---|---|
//! | (at the start) | `ready DESCRIPTION`, or `absent REASON` and the end |
//! | `measure ROW BYTES MICROSECONDS` | `measured OPERATIONS NANOSECONDS CPU-NANOSECONDS CHECK`, `absent REASON`, `wrong REASON` |
//!
//! CHECK is the hash of the first output where every implementation must give the same, else `-`.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use aws_lc_rs::digest;

use super::implementation::{Implementation, Opened, Prepared, Source};
use super::rows;
use crate::cores;
use crate::error::{BenchError, LibraryError};

/// Bound on one line of the conversation, in bytes.
const MAX_LINE: usize = 1024;

/// Bound on a packet or block, in bytes: the record of a jumbo frame and then some.
pub(crate) const MAX_SIZE: usize = 1 << 20;

/// Bound on one slice.
const MAX_SLICE: Duration = Duration::from_secs(10);

/// Bytes of the hash that is compared.
const CHECK_LEN: usize = 8;

/// Between two looks at the clock, in operations, at most: a look costs 20 ns.
const MAX_BURST: u64 = 1024;

/// What one slice gave.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slice {
    pub(crate) operations: u64,
    pub(crate) elapsed: Duration,
    pub(crate) cpu: Duration,
    /// The hash of the first output, where all must agree.
    pub(crate) check: Option<String>,
}

// ---- the child ------------------------------------------------------------------------------------

/// Serves requests until standard input ends.
///
/// # Errors
/// Standard input or output is broken.
pub(crate) fn serve(source: &Source) -> Result<(), BenchError> {
    let opened = match Opened::open(source) {
        Ok(opened) => opened,
        Err(reason) => return say(&format!("absent {}", one_line(&reason.to_string()))),
    };
    say(&format!("ready {}", one_line(&opened.describe())))?;
    let mut prepared = HashMap::new();
    for line in io::stdin().lock().lines() {
        let line = line.map_err(BenchError::system("read a request"))?;
        let answer = answer(&opened, &mut prepared, &line);
        say(&one_line(&answer))?;
    }
    Ok(())
}

type Cache = HashMap<(&'static str, usize), Prepared>;

fn answer(opened: &Opened, cache: &mut Cache, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let &["measure", name, size, micros] = words.as_slice() else {
        return format!("wrong the request {line:?} is none");
    };
    let (Some(row), Ok(size), Ok(micros)) = (rows::find(name), size.parse(), micros.parse()) else {
        return format!("wrong the request {line:?} is none");
    };
    if size > MAX_SIZE || Duration::from_micros(micros) > MAX_SLICE {
        return "wrong too large".to_owned();
    }
    let key = (row.name, size);
    if let std::collections::hash_map::Entry::Vacant(place) = cache.entry(key) {
        match opened.prepare(row, size) {
            Ok(prepared) => {
                place.insert(prepared);
            }
            Err(reason) => return format!("absent {reason}"),
        }
    }
    let Some(prepared) = cache.get_mut(&key) else {
        return "wrong nothing was made ready".to_owned();
    };
    match slice(prepared, Duration::from_micros(micros)) {
        Ok(slice) => format!(
            "measured {} {} {} {}",
            slice.operations,
            slice.elapsed.as_nanos(),
            slice.cpu.as_nanos(),
            slice.check.unwrap_or_else(|| "-".to_owned())
        ),
        Err(reason) => format!("wrong {reason}"),
    }
}

/// Repeats the operation for as long.
fn slice(prepared: &mut Prepared, length: Duration) -> Result<Slice, LibraryError> {
    let (start, cpu) = (Instant::now(), cores::thread_cpu_time());
    let (mut operations, mut burst) = (0, 1);
    loop {
        for _ in 0..burst {
            (prepared.run)()?;
        }
        operations += burst;
        let elapsed = start.elapsed();
        if elapsed >= length {
            return Ok(Slice {
                operations,
                elapsed,
                cpu: cores::thread_cpu_time().saturating_sub(cpu),
                check: prepared.output.as_deref().map(check),
            });
        }
        // A burst takes at most a tenth of what is left, so that slices end when they should.
        let left = (length - elapsed).as_nanos() / 10;
        let each = (elapsed.as_nanos() / u128::from(operations)).max(1);
        burst = u64::try_from(left / each).unwrap_or(1).clamp(1, MAX_BURST);
    }
}

fn check(output: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA256, output);
    hash.as_ref()[..CHECK_LEN]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn one_line(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    line.chars().take(MAX_LINE).collect()
}

fn say(line: &str) -> Result<(), BenchError> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")
        .and_then(|()| output.flush())
        .map_err(BenchError::system("answer a request"))
}

// ---- the parent -----------------------------------------------------------------------------------

/// A running child. Ended on drop.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) name: String,
    /// What it says of itself.
    pub(crate) description: String,
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// What a child says to a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Measured(Slice),
    /// This implementation does not do it.
    Absent(String),
}

impl Worker {
    /// Starts an implementation on a core; `Err` in the inner result says why it is not there.
    ///
    /// # Errors
    /// The child could not be started.
    pub(crate) fn start(
        implementation: &Implementation,
        core: usize,
    ) -> Result<Result<Self, String>, BenchError> {
        let binary = std::env::current_exe().map_err(BenchError::system("find this program"))?;
        let mut command = Command::new(binary);
        command.args(["bench", "sizes-worker"]);
        if let Source::Libcrypto(path) = &implementation.source {
            command.arg("--library").arg(path);
        }
        command
            .env_remove("OPENSSL_CONF")
            .env_remove("OPENSSL_ia32cap")
            .env_remove("OPENSSL_armcap")
            .envs(
                implementation
                    .environment
                    .iter()
                    .map(|(name, value)| (name, value)),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = cores::pinned(core, || command.spawn())?
            .map_err(BenchError::system("start this program again"))?;
        let (requests, answers) = (child.stdin.take(), child.stdout.take());
        let (Some(requests), Some(answers)) = (requests, answers) else {
            return Err(BenchError::Setup(
                "a child has no standard streams".to_owned(),
            ));
        };
        let mut worker = Self {
            name: implementation.name.clone(),
            description: String::new(),
            child,
            requests: Some(requests),
            answers: BufReader::new(answers),
        };
        let line = worker.line()?;
        if let Some(description) = line.strip_prefix("ready ") {
            description.clone_into(&mut worker.description);
            return Ok(Ok(worker));
        }
        match line.strip_prefix("absent ") {
            Some(reason) => Ok(Err(reason.to_owned())),
            None => Err(worker.nonsense(&line)),
        }
    }

    /// Has it work for as long.
    ///
    /// # Errors
    /// [`BenchError::Wrong`] if its output was wrong, or the child is gone.
    pub(crate) fn measure(
        &mut self,
        row: &str,
        size: usize,
        slice: Duration,
    ) -> Result<Answer, BenchError> {
        let request = format!("measure {row} {size} {}\n", slice.as_micros());
        if let Some(requests) = &mut self.requests {
            requests
                .write_all(request.as_bytes())
                .map_err(BenchError::system("ask a child"))?;
        }
        let line = self.line()?;
        if let Some(reason) = line.strip_prefix("absent ") {
            return Ok(Answer::Absent(reason.to_owned()));
        }
        if let Some(reason) = line.strip_prefix("wrong ") {
            return Err(BenchError::Wrong(format!(
                "{} in {row}: {reason}",
                self.name
            )));
        }
        measured(&line)
            .map(Answer::Measured)
            .ok_or_else(|| self.nonsense(&line))
    }

    fn line(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        self.answers
            .read_line(&mut line)
            .map_err(BenchError::system("read a child's answer"))?;
        if line.is_empty() {
            return Err(BenchError::Child {
                name: self.name.clone(),
                problem: "ended without an answer".to_owned(),
                log: String::new(),
            });
        }
        Ok(line.trim_end().to_owned())
    }

    fn nonsense(&self, line: &str) -> BenchError {
        BenchError::Child {
            name: self.name.clone(),
            problem: "gave an answer that is none".to_owned(),
            log: line.to_owned(),
        }
    }
}

fn measured(line: &str) -> Option<Slice> {
    let mut words = line.strip_prefix("measured ")?.split(' ');
    let operations = words.next()?.parse().ok().filter(|count| *count > 0)?;
    let elapsed = Duration::from_nanos(words.next()?.parse().ok()?);
    let cpu = Duration::from_nanos(words.next()?.parse().ok()?);
    let check = words
        .next()
        .filter(|check| *check != "-")
        .map(str::to_owned);
    Some(Slice {
        operations,
        elapsed,
        cpu,
        check,
    })
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Its standard input ends, and with it the child; if it does not, by force.
        self.requests = None;
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_and_nonsense_is_refused() {
        let mut cache = Cache::new();
        let aws_lc = Opened::open(&Source::AwsLc).expect("AWS-LC");
        let mut ask = |line: &str| answer(&aws_lc, &mut cache, line);
        let line = ask("measure aes-256-gcm 1420 500");
        let slice = measured(&line).expect(&line);
        assert!(slice.operations > 0 && slice.check.is_some(), "{line}");
        assert!(ask("measure dsa-2048-sign 0 500").starts_with("absent "));
        for wrong in [
            "",
            "measure",
            "measure abacus 16 500",
            "measure sha256 x 500",
            "measure sha256 99999999 500",
            "measure sha256 16 99999999999",
            "measure sha256 16 500 more",
        ] {
            assert!(ask(wrong).starts_with("wrong "), "{wrong:?}");
        }
    }

    #[test]
    fn answers_are_understood() {
        let slice = measured("measured 5 1000 900 0011223344556677").expect("a slice");
        assert_eq!(
            (slice.operations, slice.elapsed),
            (5, Duration::from_micros(1))
        );
        assert_eq!(
            measured("measured 5 1000 900 -").expect("a slice").check,
            None
        );
        for wrong in [
            "",
            "measured",
            "measured 0 1 1 -",
            "measured x 1 1 -",
            "ready",
        ] {
            assert_eq!(measured(wrong), None, "{wrong:?}");
        }
    }
}
