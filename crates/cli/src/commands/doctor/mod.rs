// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace doctor`: the checks of the inspect crate, as a page, as JSON, or as one line for monitoring.

mod page;

use std::thread;
use std::time::Duration;

use anyhow::Result;
use millrace_hostfs::Root;
use millrace_inspect::doctor::{CHECKS, Check, Diagnosis, Severity, judge, system};
use millrace_inspect::qat;
use millrace_inspect::report::Report;
use serde_json::json;

use crate::args::{DoctorArgs, WatchArgs};
use crate::commands::watch;
use crate::exit::{self, Failure, fail};
use crate::output::{self, Table};
use crate::progress::while_doing;

/// Exit codes for monitoring; the long help says them.
const WARNINGS: u8 = 10;
const CRITICAL: u8 = 11;
/// That of monitoring plugins, where nothing could be found out.
const PLUGIN_UNKNOWN: u8 = 3;
/// Between two looks at a device with open requests: a request takes microseconds.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Runs the command.
pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    if args.list {
        return list(args.json);
    }
    if args.watch {
        return watch::run(&WatchArgs {
            root: args.root.clone(),
            json: args.json,
            only: args.only.clone(),
            severity: args.severity,
            again: args.again.clone(),
        });
    }
    if args.again.interval.is_some() || args.again.count.is_some() || !args.again.alert.is_empty() {
        let message = "--interval, --count and --alert go with --watch";
        return Err(fail(Failure::Usage, message));
    }
    let least = Severity::from(args.severity);
    if args.nagios {
        return match diagnosis(args, least) {
            Ok(diagnosis) => plugin(&diagnosis),
            Err(error) => {
                output::print(&format!("MILLRACE UNKNOWN - {error:#}\n"))?;
                Err(exit::exit_with(PLUGIN_UNKNOWN))
            }
        };
    }
    let diagnosis = diagnosis(args, least)?;
    if args.json {
        output::print_json(&diagnosis)?;
    } else {
        page::print(&diagnosis)?;
    }
    match diagnosis.worst() {
        Some(Severity::Critical) => Err(exit::exit_with(CRITICAL)),
        Some(Severity::Warning) => Err(exit::exit_with(WARNINGS)),
        Some(Severity::Notice) | None => Ok(()),
    }
}

fn diagnosis(args: &DoctorArgs, least: Severity) -> Result<Diagnosis> {
    let wanted = chosen(&args.only)?;
    let root = Root::open(&args.root).map_err(|error| fail(Failure::Usage, error.to_string()))?;
    let mut diagnosis = while_doing("examining", || examine(&root, wanted));
    diagnosis.findings.retain(|found| found.severity <= least);
    Ok(diagnosis)
}

fn examine(root: &Root, wanted: impl Fn(&Check) -> bool) -> Diagnosis {
    let mut report = Report::of(root);
    let system = system::section(root);
    let first = report.qat.known.clone().unwrap_or_default();
    let open = first.devices.iter().any(|device| device.unanswered() > 0);
    if !(root.is_live() && open) {
        return judge(&report, &system, None, wanted);
    }
    // What is on its way is answered by then.
    thread::sleep(BETWEEN_LOOKS);
    report.qat = qat::section(root);
    judge(&report, &system, Some(&first), wanted)
}

/// Takes the checks of these ids, or all if none is named.
///
/// # Errors
/// There is no such check.
pub(in crate::commands) fn chosen(only: &[String]) -> Result<impl Fn(&Check) -> bool + use<>> {
    let known = |id: &&String| CHECKS.iter().any(|check| check.id == **id);
    if let Some(unknown) = only.iter().find(|id| !known(id)) {
        let message = format!("there is no check {unknown:?}: `millrace doctor --list` names them");
        return Err(fail(Failure::Usage, message));
    }
    let only = only.to_vec();
    Ok(move |check: &Check| only.is_empty() || only.iter().any(|id| id == check.id))
}

fn list(as_json: bool) -> Result<()> {
    if as_json {
        let row = |check: &Check| json!({ "id": check.id, "about": check.about });
        return output::print_json(&CHECKS.iter().map(row).collect::<Vec<_>>());
    }
    let mut table = Table::new(&["check", "what it looks for"]);
    for check in CHECKS {
        table.row(vec![check.id.to_owned(), check.about.to_owned()]);
    }
    table.print()
}

/// One line and an exit code, as monitoring plugins (Nagios, Icinga, Naemon) give.
fn plugin(diagnosis: &Diagnosis) -> Result<()> {
    let count = |severity| {
        let findings = diagnosis.findings.iter();
        findings.filter(|found| found.severity == severity).count()
    };
    let (critical, warning) = (count(Severity::Critical), count(Severity::Warning));
    let notice = count(Severity::Notice);
    let (word, code) = match diagnosis.worst() {
        Some(Severity::Critical) => ("CRITICAL", 2),
        Some(Severity::Warning) => ("WARNING", 1),
        Some(Severity::Notice) | None => ("OK", 0),
    };
    let ids: Vec<&str> = diagnosis
        .findings
        .iter()
        .filter(|found| found.severity != Severity::Notice)
        .map(|found| found.id.as_str())
        .collect();
    let said = if ids.is_empty() {
        format!("{} checks", diagnosis.checks)
    } else {
        ids.join(", ")
    };
    output::print(&format!(
        "MILLRACE {word} - {said} | critical={critical} warning={warning} notice={notice}\n"
    ))?;
    match code {
        0 => Ok(()),
        code => Err(exit::exit_with(code)),
    }
}
