// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Findings as a page: the worst first, each with what was seen, what it means, what to do.

use std::io::{self, IsTerminal};

use anyhow::Result;
use millrace_inspect::doctor::{Diagnosis, Finding, Severity};

use crate::commands::inspect::page::{plain, wrapped};
use crate::output;

/// Width of what is behind the margin, on a terminal of 80.
const COLUMNS: usize = 70;
/// What commands begin with: their lines are not broken, so that they can be copied.
const COMMANDS: [&str; 12] = [
    "echo",
    "crconf",
    "sysctl",
    "modprobe",
    "nft",
    "ip",
    "dmesg",
    "systemctl",
    "cpupower",
    "millrace",
    "journalctl",
    "adf_ctl",
];

/// Writes it to standard output.
pub(super) fn print(diagnosis: &Diagnosis) -> Result<()> {
    output::print(&text(diagnosis, io::stdout().is_terminal()))
}

fn text(diagnosis: &Diagnosis, styled: bool) -> String {
    let mut page = String::new();
    for finding in &diagnosis.findings {
        one(&mut page, finding, styled);
    }
    if diagnosis.findings.is_empty() {
        page.push_str(&format!("{} checks, nothing found\n", diagnosis.checks));
    } else {
        let count = |severity| {
            let findings = diagnosis.findings.iter();
            findings.filter(|found| found.severity == severity).count()
        };
        page.push_str(&format!(
            "{} checks: critical {}, warnings {}, notices {}\n",
            diagnosis.checks,
            count(Severity::Critical),
            count(Severity::Warning),
            count(Severity::Notice)
        ));
    }
    let unread = diagnosis.unread.len();
    if unread > 0 {
        page.push_str(&format!(
            "{unread} things could not be read (--json names them); checks that need them are silent\n"
        ));
    }
    page
}

fn one(page: &mut String, finding: &Finding, styled: bool) {
    let name = finding.severity.name().to_uppercase();
    let (before, after) = match (styled, finding.severity) {
        (false, _) => ("", ""),
        (true, Severity::Critical) => ("\x1b[1;31m", "\x1b[0m"),
        (true, Severity::Warning) => ("\x1b[1;33m", "\x1b[0m"),
        (true, Severity::Notice) => ("\x1b[1m", "\x1b[0m"),
    };
    let (title, id) = (plain(&finding.title), &finding.id);
    page.push_str(&format!("{before}{name}{after}  {title}  [{id}]\n"));
    for evidence in &finding.evidence {
        entry(page, "seen", &wrapped(&plain(evidence), COLUMNS));
    }
    entry(
        page,
        "means",
        &wrapped(&plain(&finding.consequence), COLUMNS),
    );
    for remedy in &finding.remedy {
        let remedy = plain(remedy);
        let is_command = remedy
            .split(' ')
            .next()
            .is_some_and(|word| COMMANDS.contains(&word));
        let lines = if is_command {
            vec![remedy]
        } else {
            wrapped(&remedy, COLUMNS)
        };
        entry(page, "do", &lines);
    }
    page.push('\n');
}

fn entry(page: &mut String, name: &str, lines: &[String]) {
    for (index, line) in lines.iter().enumerate() {
        let name = if index == 0 { name } else { "" };
        page.push_str(&format!("  {name:<5}  {line}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_plain_and_narrow() {
        let finding = Finding {
            id: "qat-down".to_owned(),
            severity: Severity::Critical,
            title: "down\x1b[2J".to_owned(),
            evidence: vec!["sys/x: 1".to_owned()],
            consequence: "word ".repeat(40).trim().to_owned(),
            remedy: vec!["echo up > /sys/x".to_owned()],
        };
        let diagnosis = Diagnosis {
            format: 1,
            live: false,
            checks: 3,
            findings: vec![finding],
            unread: Vec::new(),
        };
        let text = text(&diagnosis, false);
        assert!(
            text.starts_with("CRITICAL  down?[2J  [qat-down]\n  seen   sys/x: 1\n  means  word")
        );
        assert!(text.contains("\n  do     echo up > /sys/x\n"));
        assert!(text.ends_with("3 checks: critical 1, warnings 0, notices 0\n"));
        assert!(text.lines().all(|line| line.len() <= 79));
    }
}
