// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace doctor`: the checks of the inspect crate as a page, as JSON, or as one line for monitoring.

mod page;

use anyhow::Result;
use millrace_inspect::doctor::{self, CHECKS, Check, Diagnosis, Severity, diagnose};
use serde_json::json;

use crate::args::DoctorArgs;
use crate::commands::inspect;
use crate::exit::{self, Failure, fail};
use crate::output::{self, Table};
use crate::progress::while_doing;

/// Exit codes for monitoring; the long help documents them.
const WARNINGS: u8 = 10;
const CRITICAL: u8 = 11;
/// Exit code: the machine could not be examined.
const UNKNOWN: u8 = 12;
/// Exit code of a monitoring plugin for the state "unknown".
const PLUGIN_UNKNOWN: u8 = 3;

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    if args.list {
        return list(args.json);
    }
    if args.nagios {
        return match diagnosis(args) {
            Ok(diagnosis) => plugin(&diagnosis),
            Err(error) => {
                output::print(&format!("MILLRACE UNKNOWN - {error:#}\n"))?;
                Err(exit::exit_with(PLUGIN_UNKNOWN))
            }
        };
    }
    let diagnosis = diagnosis(args)?;
    if args.json {
        output::print_json(&diagnosis)?;
    } else {
        page::print(&diagnosis)?;
    }
    if diagnosis.undecided().is_some() {
        return Err(exit::exit_with(UNKNOWN));
    }
    match diagnosis.worst() {
        Some(Severity::Critical) => Err(exit::exit_with(CRITICAL)),
        Some(Severity::Warning) => Err(exit::exit_with(WARNINGS)),
        Some(Severity::Notice) | None => Ok(()),
    }
}

fn diagnosis(args: &DoctorArgs) -> Result<Diagnosis> {
    let selection = &args.selection;
    let wanted =
        doctor::select(&selection.only).map_err(|error| fail(Failure::Usage, error.to_string()))?;
    let root = inspect::open(&selection.tree)?;
    let mut diagnosis = while_doing("examining", || diagnose(&root, wanted));
    diagnosis.findings.retain(|found| found.severity <= selection.severity);
    Ok(diagnosis)
}

fn list(as_json: bool) -> Result<()> {
    if as_json {
        let row = |check: &Check| json!({ "id": check.id, "about": check.title });
        return output::print_json(&CHECKS.iter().map(row).collect::<Vec<_>>());
    }
    #[rustfmt::skip]
    let table = Table::of(CHECKS, &[
        ("check", &|check| check.id.to_owned()),
        ("finds", &|check| check.title.to_owned()),
    ]);
    table.print()
}

/// Prints one line and returns an exit code, as monitoring plugins (Nagios, Icinga, Naemon) do.
fn plugin(diagnosis: &Diagnosis) -> Result<()> {
    let (word, code) = match diagnosis.worst() {
        _ if diagnosis.undecided().is_some() => ("UNKNOWN", PLUGIN_UNKNOWN),
        Some(Severity::Critical) => ("CRITICAL", 2),
        Some(Severity::Warning) => ("WARNING", 1),
        Some(Severity::Notice) | None => ("OK", 0),
    };
    let findings = diagnosis.findings.iter();
    let serious = findings.filter(|found| found.severity != Severity::Notice);
    let ids: Vec<&str> = serious.map(|found| found.id.as_str()).collect();
    let unread = diagnosis.unread.len();
    let summary = match diagnosis.undecided() {
        Some(reason) => reason.to_owned(),
        None if !ids.is_empty() => ids.join(", "),
        None if unread == 0 => format!("{} checks", diagnosis.checks),
        None => format!("{} checks, {unread} unread", diagnosis.checks),
    };
    output::print(&format!(
        "MILLRACE {word} - {summary} | critical={} warning={} notice={} unread={unread}\n",
        diagnosis.count(Severity::Critical),
        diagnosis.count(Severity::Warning),
        diagnosis.count(Severity::Notice)
    ))?;
    match code {
        0 => Ok(()),
        code => Err(exit::exit_with(code)),
    }
}
