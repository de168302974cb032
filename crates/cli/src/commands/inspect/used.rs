// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect used`: whether a device serves each running tunnel and server.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use millrace_hostfs::Root;
use millrace_inspect::network;
use millrace_inspect::offload_status::{self, Answer, Counters, Moved, Used};
use millrace_inspect::report::Section;

use super::{open, print_part};
use crate::args::InspectUsedArgs;
use crate::page::Page;
use crate::progress::while_doing;

pub(super) fn run(args: &InspectUsedArgs) -> Result<()> {
    let root = open(&args.tree)?;
    let moved = root
        .is_live()
        .then(|| watch(&root, Duration::from_secs(args.seconds)));
    let network = network::section(&root);
    let found = offload_status::section(&root, network.known.as_ref(), moved);
    if args.tree.json {
        return print_part(&root, "used", &found);
    }
    let mut page = Page::new();
    section(&mut page, &found);
    page.print()
}

/// The counters that moved within `time`.
fn watch(root: &Root, time: Duration) -> (Vec<Moved>, u64) {
    let start = Instant::now();
    let before = Counters::read(root);
    while_doing("waiting between two readings of counters", || {
        thread::sleep(time)
    });
    let moved = before.moved(&Counters::read(root));
    (
        moved,
        u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
    )
}

fn section(page: &mut Page, section: &Section<Used>) {
    page.heading("Is it used?");
    if let Some(used) = &section.known {
        if used.subjects.is_empty() {
            page.remark("no known tunnel or server is running");
        }
        for subject in &used.subjects {
            let answer = match subject.accelerated {
                Answer::Yes => "yes",
                Answer::No => "no",
                Answer::Unknown => "not known",
            };
            let by = match (&subject.device, subject.accelerated) {
                (Some(device), Answer::Yes) => format!(", by {device}"),
                _ => String::new(),
            };
            page.heading(&subject.what);
            page.fact("accelerated", &format!("{answer}{by}"));
            page.fact_if("algorithm", subject.algorithm.as_deref());
            page.fact_if("computed by", subject.implementation.as_deref());
            subject
                .evidence
                .iter()
                .for_each(|evidence| page.remark(&format!("- {evidence}")));
        }
    }
    page.unread(section);
}
