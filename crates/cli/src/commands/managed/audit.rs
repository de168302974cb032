// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace audit`: the log of administrative changes. The chain is verified here, so that a defective manager cannot
//! vouch for itself.

use anyhow::{Context, Result};
use millrace_manager::api::{Code, RecordFindings};
use millrace_manager::client::ManagerClient;
use millrace_manager::model::audit::{AuditEntry, AuditHead, AuditVerifier};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::print_list;
use crate::args::AuditArgs;
use crate::exit::{Failure, fail};
use crate::manager_access::{client, to_exit_error};
use crate::output::{self, Table};

pub(crate) fn run(args: &AuditArgs) -> Result<()> {
    let client = client(&args.access)?;
    // Before the entries: one that is written while they are read is beyond the head.
    let head: AuditHead = client.get("/v1/audit/head").map_err(to_exit_error)?;
    let mut entries: Vec<AuditEntry> =
        client.list("/v1/audit?limit=1000").map_err(to_exit_error)?;
    entries.retain(|entry| entry.seq <= head.seq);
    if args.verify {
        let mut verifier = AuditVerifier::default();
        for entry in &entries {
            verifier.take(entry).context("the audit log is not whole")?;
        }
        verifier.finish(&head).context("the audit log is not whole")?;
        require_own_records(&client)?;
        return output::print(&format!(
            "{} entries, whole; the last has the hash {}\n",
            head.seq, head.hash
        ));
    }
    if args.json.json {
        return print_list(entries);
    }
    #[rustfmt::skip]
    let table = Table::of(&entries, &[
        (">number", &|entry| entry.seq.to_string()),
        ("time (UTC)", &|entry| moment(entry.time_ms)),
        ("by", &|entry| entry.actor.clone()),
        ("change", &|entry| entry.action.clone()),
        ("of", &|entry| entry.subject.clone()),
    ]);
    table.print()
}

/// Asks the manager for records that no manager wrote: only it has the key of their seals.
fn require_own_records(client: &ManagerClient) -> Result<()> {
    let found: RecordFindings = match client.get("/v1/audit/findings") {
        // A manager of an earlier version, whose records have no seals.
        Err(error) if error.problem().is_some_and(|problem| problem.code == Code::NotFound) => {
            return Ok(());
        }
        found => found.map_err(to_exit_error)?,
    };
    if found.count == 0 {
        return Ok(());
    }
    for text in &found.texts {
        note!("{text}");
    }
    let message = format!(
        "the audit log is whole, and {} findings say that records are not what a manager wrote: look at each, write it \
         anew, or start a manager once with --accept-records",
        found.count
    );
    Err(fail(Failure::Failed, message))
}

fn moment(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    let moment = OffsetDateTime::from_unix_timestamp(seconds).ok();
    moment.and_then(|moment| moment.format(&Rfc3339).ok()).unwrap_or_else(|| "-".to_owned())
}
