// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Compression of a running nginx's responses: the library that does it, and its ratio.

use millrace_edge::compression::{
    Counter, CounterSnapshot, EngineCounters, EngineKind, MAX_BYTES, MEMORY_NAME,
};
use millrace_hostfs::process::Proc;

use super::evidence::Evidence;
use super::{CheckFinding, CheckOptions, CheckOutcome, CheckReport, Server};

/// Identifier of the finding.
const CHECK: &str = "compression";

/// Adds a finding if the compression library is loaded; without it there is nothing to check.
pub(super) fn judge(options: &CheckOptions, report: &mut CheckReport) {
    if let Some(found) = counted(options, report) {
        report.findings.push(finding(&found));
    }
}

/// Adds a finding in any case: the caller asks for the library, so one that is not loaded is a failure.
pub(super) fn require(
    options: &CheckOptions,
    evidence: Option<&Evidence>,
    report: &mut CheckReport,
) {
    let found = counted(options, report);
    if let Some(running) = evidence.and_then(|evidence| evidence.running.as_ref()) {
        let master = running.master.pid;
        let workers = running.workers.len();
        report.add(
            "process",
            CheckOutcome::Good,
            format!("master {master}, {workers} worker(s)"),
            None,
        );
    }
    report.findings.push(match found {
        Some(found) => finding(&found),
        None if report.pid.is_none() => {
            let seen = format!("no {} is running here", options.server);
            let remedy = format!("start {}", options.server);
            CheckFinding::new(CHECK, CheckOutcome::Failure, seen, remedy)
        }
        None => {
            let remedy = "LD_PRELOAD names it: `millrace gateway nginx --compression=only --write` prints how; then \
                          restart nginx, since a reload is not enough; as root, since others cannot see it";
            let seen = "the compression library is not loaded, or not visible to this user";
            CheckFinding::new(CHECK, CheckOutcome::Failure, seen, remedy)
        }
    });
}

/// The counters of the library, if it is loaded into an nginx.
fn counted(options: &CheckOptions, report: &CheckReport) -> Option<CounterSnapshot> {
    let pid = report.pid.filter(|_| options.server == Server::Nginx)?;
    let memory = Proc::open(&options.proc).ok()?.memory_file(pid, MEMORY_NAME, MAX_BYTES)?;
    CounterSnapshot::parse(&memory.bytes)
}

fn finding(found: &CounterSnapshot) -> CheckFinding {
    let wrong = [Counter::WrongIsal, Counter::WrongLibdeflate, Counter::WrongQat];
    let wrong: u64 = wrong.into_iter().map(|counter| found.get(counter)).sum();
    if wrong + found.get(Counter::Panics) > 0 {
        let seen =
            format!("{wrong} wrong outputs were found and replaced; their engine is in quarantine");
        let remedy =
            "run `millrace compression --json`, suspect the memory of this machine, and report it";
        return CheckFinding::new(CHECK, CheckOutcome::Failure, seen, remedy);
    }
    let streams = found.get(Counter::Streams);
    if streams == 0 {
        let remedy = "ask for a page with `curl --compressed`; is there `gzip on` for its type?";
        let seen = "the library is loaded, and no response was compressed yet";
        return CheckFinding::new(CHECK, CheckOutcome::Warning, seen, remedy);
    }
    let (input, output) = found.bytes();
    let of = |engine| found.get(EngineCounters::of(engine).input);
    let share = |engine| 100.0 * of(engine) as f64 / input.max(1) as f64;
    let seen = format!(
        "{streams} responses, {:.1} MB to {:.1} MB (ratio {:.2}); ISA-L {:.0} %, libdeflate {:.0} %, QAT {:.0} %, \
         stored {:.0} %, zlib {:.0} %",
        input as f64 / 1e6,
        output as f64 / 1e6,
        input as f64 / output.max(1) as f64,
        share(EngineKind::Isal),
        share(EngineKind::Libdeflate),
        share(EngineKind::Qat),
        share(EngineKind::Stored),
        share(EngineKind::System)
    );
    if found.get(Counter::MoreMemory) > 0 {
        let remedy =
            "this zlib needs more memory than nginx sets aside: look for alerts in the error log";
        return CheckFinding::new(CHECK, CheckOutcome::Warning, seen, remedy);
    }
    let missed = [Counter::QatAway, Counter::QatLate, Counter::FailedQat];
    let missed: u64 = missed.into_iter().map(|counter| found.get(counter)).sum();
    if missed > found.get(Counter::QatChunks) {
        let seen = format!("{seen}; the QAT card missed {missed} chunks");
        let remedy =
            "`millrace compression` says why; the error log has the reason from the card's library";
        return CheckFinding::new(CHECK, CheckOutcome::Warning, seen, remedy);
    }
    CheckFinding::new(CHECK, CheckOutcome::Good, seen, None)
}

#[cfg(test)]
mod tests {
    use millrace_edge::compression::Counters;

    use super::*;

    /// A memory file with these counters.
    fn snapshot(values: &[(Counter, u64)]) -> CounterSnapshot {
        let counters = Counters::private();
        for (counter, value) in values {
            counters.add(*counter, *value);
        }
        counters.snapshot()
    }

    #[test]
    fn compression_is_judged_by_what_was_counted() {
        let outcome = |values: &[(Counter, u64)]| finding(&snapshot(values)).outcome;
        assert_eq!(outcome(&[]), CheckOutcome::Warning);
        assert_eq!(outcome(&[(Counter::Streams, 3), (Counter::IsalIn, 9)]), CheckOutcome::Good);
        assert_eq!(
            outcome(&[(Counter::Streams, 3), (Counter::WrongIsal, 1)]),
            CheckOutcome::Failure
        );
        assert_eq!(
            outcome(&[(Counter::Streams, 3), (Counter::MoreMemory, 1)]),
            CheckOutcome::Warning
        );
        assert_eq!(
            outcome(&[(Counter::Streams, 3), (Counter::WrongQat, 1)]),
            CheckOutcome::Failure
        );
        // The first chunks of each worker come before its library has started.
        for (missed, wanted) in [(8, CheckOutcome::Good), (11, CheckOutcome::Warning)] {
            let values =
                [(Counter::Streams, 30), (Counter::QatChunks, 10), (Counter::QatAway, missed)];
            assert_eq!(outcome(&values), wanted, "{missed}");
        }
    }
}
