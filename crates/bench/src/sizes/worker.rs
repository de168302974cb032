// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One implementation in a separate process.
//!
//! A libcrypto reads its capability mask when it is loaded, and one process cannot tell two builds of it apart. So
//! each implementation is a child process that takes [`Ask`]s on its standard input and gives [`WorkerAnswer`]s on its
//! standard output, one JSON value a line. The implementations can then alternate in slices of milliseconds;
//! `openssl speed` takes whole seconds.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use millrace_hostfs::child::OwnedChild;
use millrace_kernel_crypto::BulkInterface;
use serde::{Deserialize, Serialize};

use super::implementation::{Implementation, OpenLibrary};
use super::repeat::{Prepared, TimeSlice};
use super::rows;
use crate::cores;
use crate::error::{BenchError, LibraryError};

/// Bound on a packet or block, in bytes: a request makes buffers of this length, and a jumbo frame has 9,000.
pub(crate) const MAX_SIZE: usize = 1 << 20;

/// Bound on one slice, as in the options of `bench sizes`.
const MAX_SLICE: Duration = Duration::from_secs(10);

/// A request to a child: to repeat a row's operation on inputs of `size` bytes for `time`.
#[derive(Debug, Serialize, Deserialize)]
struct Ask {
    row: String,
    size: usize,
    time: Duration,
}

/// An answer of a child.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum WorkerAnswer {
    /// Description of the implementation, sent at the start.
    Ready(String),
    /// The implementation is missing (at the start), or does not have the operation.
    Absent(String),
    Measured(TimeSlice),
    /// The output was wrong, or the request was.
    Wrong(String),
}

// ---- the child ------------------------------------------------------------------------------------

/// Serves requests until standard input ends.
pub(super) fn serve(library: Option<&Path>, kernel: Option<&str>) -> Result<(), BenchError> {
    let interface = |name: &str| BulkInterface::ALL.into_iter().find(|known| known.name() == name);
    let opened = match kernel.map(interface) {
        None => OpenLibrary::open(library),
        Some(Some(interface)) => OpenLibrary::of_kernel(interface),
        Some(None) => Err(LibraryError::Failed("the kernel has no such interface".to_owned())),
    };
    let opened = match opened {
        Ok(opened) => opened,
        Err(reason) => return report(&WorkerAnswer::Absent(reason.to_string())),
    };
    report(&WorkerAnswer::Ready(opened.describe()))?;
    let mut prepared = HashMap::new();
    for line in io::stdin().lock().lines() {
        let line = line.map_err(BenchError::system("read a request"))?;
        report(&answer(&opened, &mut prepared, &line))?;
    }
    Ok(())
}

type Cache = HashMap<(&'static str, usize), Prepared>;

fn answer(opened: &OpenLibrary, cache: &mut Cache, line: &str) -> WorkerAnswer {
    let ask = serde_json::from_str::<Ask>(line).ok();
    let Some((row, Ask { size, time, .. })) =
        ask.and_then(|ask| Some((rows::find(&ask.row)?, ask)))
    else {
        return WorkerAnswer::Wrong(format!("the request {line:?} is not valid"));
    };
    if size > MAX_SIZE || time > MAX_SLICE {
        return WorkerAnswer::Wrong("the request is too large".to_owned());
    }
    let prepared = match cache.entry((row.name, size)) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => match opened.prepare(row, size) {
            Ok(prepared) => entry.insert(prepared),
            Err(reason) => return WorkerAnswer::Absent(reason.to_string()),
        },
    };
    match prepared.repeat_for(time) {
        Ok(slice) => WorkerAnswer::Measured(slice),
        Err(reason) => WorkerAnswer::Wrong(reason.to_string()),
    }
}

fn report(answer: &WorkerAnswer) -> Result<(), BenchError> {
    write_line(&mut io::stdout().lock(), answer).map_err(BenchError::system("answer a request"))
}

/// Writes a value as one line of JSON.
fn write_line(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *to, value)?;
    writeln!(to)?;
    to.flush()
}

// ---- the parent -----------------------------------------------------------------------------------

/// A running child, which ends with its value.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    pub(super) name: String,
    /// Version and view of the processor.
    pub(super) description: String,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    _child: OwnedChild,
}

impl WorkerProcess {
    /// Starts an implementation on a core; `Err` in the inner result is the reason why it is missing.
    pub(super) fn start(
        implementation: &Implementation,
        core: usize,
    ) -> Result<Result<Self, LibraryError>, BenchError> {
        let binary = std::env::current_exe().map_err(BenchError::system("find this program"))?;
        let mut command = Command::new(binary);
        command.args(["bench", "sizes-worker"]);
        if let Some(path) = &implementation.library {
            command.arg("--libcrypto").arg(path);
        }
        if let Some(interface) = implementation.kernel {
            command.args(["--kernel", interface.name()]);
        }
        command
            .env_remove("OPENSSL_CONF")
            .env_remove("OPENSSL_ia32cap")
            .env_remove("OPENSSL_armcap")
            .envs(implementation.variable)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = cores::pinned(core, || OwnedChild::spawn(&mut command))?
            .map_err(BenchError::system("start this program again"))?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(BenchError::Setup("a child has no standard streams".into()));
        };
        let mut worker = Self {
            name: implementation.name.clone(),
            description: String::new(),
            requests,
            answers: BufReader::new(answers),
            _child: child,
        };
        match worker.answer()? {
            WorkerAnswer::Ready(description) => {
                worker.description = description;
                Ok(Ok(worker))
            }
            WorkerAnswer::Absent(reason) => Ok(Err(LibraryError::Failed(reason))),
            other => Err(worker.problem("gave an unexpected answer", format!("{other:?}"))),
        }
    }

    /// Has it compute for `time`; `Err` in the inner result is the reason why it lacks the operation.
    ///
    /// # Errors
    /// [`BenchError::Wrong`] if its output was wrong, or the child is gone.
    pub(super) fn measure(
        &mut self,
        row: &str,
        size: usize,
        time: Duration,
    ) -> Result<Result<TimeSlice, LibraryError>, BenchError> {
        let ask = Ask { row: row.to_owned(), size, time };
        write_line(&mut self.requests, &ask).map_err(BenchError::system("ask a child"))?;
        match self.answer()? {
            WorkerAnswer::Measured(slice) if slice.operations > 0 => Ok(Ok(slice)),
            WorkerAnswer::Absent(reason) => Ok(Err(LibraryError::Failed(reason))),
            WorkerAnswer::Wrong(reason) => {
                Err(BenchError::Wrong(format!("{} in {row}: {reason}", self.name)))
            }
            other => Err(self.problem("gave an unexpected answer", format!("{other:?}"))),
        }
    }

    fn answer(&mut self) -> Result<WorkerAnswer, BenchError> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(BenchError::system("read a child's answer"))?;
        if line.is_empty() {
            return Err(self.problem("ended without an answer", String::new()));
        }
        serde_json::from_str(&line)
            .map_err(|_| self.problem("gave an answer that is not valid", line))
    }

    fn problem(&self, problem: &str, log: String) -> BenchError {
        BenchError::Child { name: self.name.clone(), problem: problem.to_owned(), log }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_answers_requests_and_refuses_what_is_not_valid() {
        let mut cache = Cache::new();
        let aws_lc = OpenLibrary::open(None).expect("AWS-LC");
        let mut ask = |line: &str| answer(&aws_lc, &mut cache, line);
        let typed = |row: &str, size, micros| {
            let time = Duration::from_micros(micros);
            serde_json::to_string(&Ask { row: row.to_owned(), size, time }).expect("JSON")
        };
        let WorkerAnswer::Measured(slice) = ask(&typed("aes-256-gcm", 1420, 500)) else {
            panic!("not measured");
        };
        assert!(slice.operations > 0 && slice.check.is_some(), "{slice:?}");
        assert!(matches!(ask(&typed("dsa-2048-sign", 0, 500)), WorkerAnswer::Absent(_)));
        for wrong in [
            String::new(),
            "{}".to_owned(),
            typed("abacus", 16, 500),
            typed("sha256", 99_999_999, 500),
            typed("sha256", 16, 99_999_999_999),
        ] {
            assert!(matches!(ask(&wrong), WorkerAnswer::Wrong(_)), "{wrong:?}");
        }
    }
}
