// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace advise`: prints the inspect crate's choices as a page or JSON, and the configuration.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use millrace_bench::cli::last_local_run;
use millrace_inspect::advise::handshakes::{self, HandshakeRun};
use millrace_inspect::advise::sizes::{self, Sizes};
use millrace_inspect::advise::{Advice, AdviceFormat, AdviseRequest, advise, software};
use millrace_inspect::report::Report;

use crate::args::AdviseArgs;
use crate::commands::inspect;
use crate::exit::{Failure, fail};
use crate::output;
use crate::page::{Page, plain};
use crate::progress::while_doing;

pub(crate) fn run(args: &AdviseArgs) -> Result<()> {
    let request = AdviseRequest {
        goal: args.goal,
        packet_bytes: args.packet,
        format: format(args)?,
        sizes: args.sizes_run.as_deref().map(saved_sizes).transpose()?,
        handshakes: saved_handshakes(args)?,
        ..AdviseRequest::of(args.subject)
    };
    let root = inspect::open(&args.tree)?;
    let advice = while_doing("examining", || {
        advise(&Report::of(&root), &software::section(&root), &request)
    });
    if args.json {
        return output::print_json(&advice);
    }
    page(&advice).print()?;
    output::print(&format!("\n{}", advice.configuration))
}

fn format(args: &AdviseArgs) -> Result<AdviceFormat> {
    let formats = args.subject.formats();
    let wanted = args.format.unwrap_or(formats[0]);
    if formats.contains(&wanted) {
        return Ok(wanted);
    }
    let known: Vec<String> = formats.iter().filter_map(value_name).collect();
    let subject = value_name(&args.subject).unwrap_or_default();
    let message = format!("{subject} takes --format {}", known.join(" or "));
    Err(fail(Failure::Usage, message))
}

/// The name of a value on the command line.
fn value_name(value: &impl ValueEnum) -> Option<String> {
    Some(value.to_possible_value()?.get_name().to_owned())
}

/// The run that was named, or this user's last one, where this machine is examined.
fn saved_handshakes(args: &AdviseArgs) -> Result<Option<HandshakeRun>> {
    const SAVE: &str = "`millrace bench tls --local --output FILE`";
    let parse = |bytes: &[u8]| HandshakeRun::parse(bytes);
    if let Some(path) = &args.handshakes_run {
        return saved(path, handshakes::MAX_BYTES, SAVE, parse).map(Some);
    }
    // The last run may be of another version, or absent: then there is no figure.
    let last = last_local_run().filter(|_| args.tree.root == Path::new("/"));
    Ok(last.and_then(|path| saved(&path, handshakes::MAX_BYTES, SAVE, parse).ok()))
}

fn saved_sizes(path: &Path) -> Result<Sizes> {
    const SAVE: &str = "`millrace bench sizes --output FILE`";
    saved(path, sizes::MAX_BYTES, SAVE, Sizes::parse)
}

/// Reads a saved run, which `save` makes.
fn saved<T, E: Display>(
    path: &Path,
    most: usize,
    save: &str,
    parse: impl Fn(&[u8]) -> Result<T, E>,
) -> Result<T> {
    let wrong = |error: &dyn Display| {
        let path = plain(&path.display().to_string());
        fail(Failure::Usage, format!("{path}: {error}"))
    };
    // Only regular files: a device may have no end, and opening a pipe without a writer would block.
    if !path.metadata().map_err(|error| wrong(&error))?.is_file() {
        return Err(wrong(&format!("it is not a file; save one with {save}")));
    }
    let file = File::open(path).map_err(|error| wrong(&error))?;
    let mut bytes = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(|error| wrong(&error))?;
    parse(&bytes).map_err(|error| wrong(&error))
}

fn page(advice: &Advice) -> Page {
    let mut page = Page::new();
    if !advice.first.is_empty() {
        page.heading("first");
        for first in &advice.first {
            page.remark(first);
        }
    }
    for choice in &advice.choices {
        page.heading(choice.topic.name());
        page.remark(&choice.value);
        page.remark(&format!("why: {}", choice.reason));
        for evidence in &choice.evidence {
            page.item(evidence);
        }
    }
    if !advice.rejected_alternatives.is_empty() {
        page.heading("often copied, rejected here");
        for rejected in &advice.rejected_alternatives {
            page.remark(&format!("{}: {}", rejected.recipe, rejected.reason));
        }
    }
    if !advice.unread.is_empty() {
        page.heading("not known");
        for unread in &advice.unread {
            page.remark(&format!("{} ({})", unread.what, unread.why));
        }
    }
    page
}
