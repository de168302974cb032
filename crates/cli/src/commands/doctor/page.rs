// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Findings as a page, the worst first: evidence, impact, commands to run, advice.

use std::io;

use anyhow::Result;
use millrace_inspect::doctor::{Diagnosis, Finding, Remedy, Severity};

use crate::output;
use crate::page::plain;
use crate::terminal::{prose_columns, styled, wrapped};

/// Columns left of the text, `  means  `, and one on the right.
const MARGIN: usize = 10;

pub(super) fn print(diagnosis: &Diagnosis) -> Result<()> {
    let columns = prose_columns() - MARGIN;
    output::print(&text(diagnosis, styled(&io::stdout()), columns))
}

/// The page; evidence, impact and advice are wrapped at `columns`.
fn text(diagnosis: &Diagnosis, styled: bool, columns: usize) -> String {
    let mut page = String::new();
    for finding in &diagnosis.findings {
        one(&mut page, finding, styled, columns);
    }
    if let Some(reason) = &diagnosis.unknown {
        for (number, line) in wrapped(reason, columns).iter().enumerate() {
            page.push_str(&format!("{:<7}  {line}\n", if number == 0 { "UNKNOWN" } else { "" }));
        }
    }
    if diagnosis.findings.is_empty() {
        page.push_str(&format!("{} checks, no findings\n", diagnosis.checks));
    } else {
        page.push_str(&format!(
            "{} checks: critical {}, warnings {}, notices {}\n",
            diagnosis.checks,
            diagnosis.count(Severity::Critical),
            diagnosis.count(Severity::Warning),
            diagnosis.count(Severity::Notice)
        ));
    }
    let unread = diagnosis.unread.len();
    if unread > 0 {
        let text = format!(
            "{unread} things could not be read (--json lists them); checks that need them report nothing"
        );
        for line in wrapped(&text, columns + MARGIN) {
            page.push_str(&format!("{line}\n"));
        }
    }
    page
}

fn one(page: &mut String, finding: &Finding, styled: bool, columns: usize) {
    let name = finding.severity.name().to_uppercase();
    let (before, after) = match (styled, finding.severity) {
        (false, _) => ("", ""),
        (true, Severity::Critical) => ("\x1b[1;31m", "\x1b[0m"),
        (true, Severity::Warning) => ("\x1b[1;33m", "\x1b[0m"),
        (true, Severity::Notice) => ("\x1b[1m", "\x1b[0m"),
    };
    let title = format!("{} [{}]", plain(&finding.title), finding.id);
    let indent = name.len() + 2;
    let lines = wrapped(&title, columns + MARGIN - indent);
    let lines = lines.join(&format!("\n{}", " ".repeat(indent)));
    page.push_str(&format!("{before}{name}{after}  {lines}\n"));
    let mut text = |name, text: &str| entry(page, name, &wrapped(&plain(text), columns));
    for evidence in &finding.evidence {
        text("seen", evidence);
    }
    text("means", &finding.impact);
    for remedy in &finding.remedy {
        match remedy {
            // Not wrapped, so that the user can copy it.
            Remedy::Run(command) => entry(page, "run", &[plain(command)]),
            Remedy::Advice(advice) => entry(page, "do", &wrapped(&plain(advice), columns)),
        }
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
    fn page_wraps_advice_but_not_commands() {
        let finding = Finding {
            id: "qat-down".to_owned(),
            severity: Severity::Critical,
            title: "down\x1b[2J".to_owned(),
            evidence: vec!["sys/x: 1".to_owned()],
            impact: "word ".repeat(40).trim().to_owned(),
            remedy: vec![
                Remedy::Run(format!("echo up > /sys/{}", "x/".repeat(40))),
                Remedy::Advice("words in prose ".repeat(6).trim().to_owned()),
            ],
        };
        let diagnosis = Diagnosis {
            format: 1,
            live: false,
            checks: 3,
            findings: vec![finding],
            unknown: None,
            unread: Vec::new(),
        };
        let text = text(&diagnosis, false, 70);
        assert!(
            text.starts_with("CRITICAL  down?[2J [qat-down]\n  seen   sys/x: 1\n  means  word")
        );
        let command = format!("\n  run    echo up > /sys/{}\n", "x/".repeat(40));
        assert!(text.contains(&command), "{text}");
        assert!(text.contains("\n  do     words"));
        assert!(text.ends_with("3 checks: critical 1, warnings 0, notices 0\n"));
        let wide: Vec<&str> = text.lines().filter(|line| line.len() > 79).collect();
        assert_eq!(wide, [command.trim_matches('\n')]);
    }
}
