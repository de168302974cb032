// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect used`: whether a device serves each running tunnel and server.

use std::thread;
use std::time::Instant;

use millrace_hostfs::Root;
use millrace_inspect::network;
use millrace_inspect::offload_status::{self, Accelerated, CounterReading, Used, Watched};
use millrace_inspect::section::Section;

use crate::args::InspectUsedArgs;
use crate::commands::status;
use crate::page::Page;
use crate::progress::while_doing;

/// The tunnels and servers, after two readings of the counters of a live machine.
pub(super) fn part(root: &Root, args: &InspectUsedArgs) -> Section<Used> {
    let watched = root.is_live().then(|| watch(root, args));
    let network = network::section(root);
    offload_status::section(root, network.known.as_ref(), watched)
}

/// Reads the counters twice.
fn watch(root: &Root, args: &InspectUsedArgs) -> Watched {
    let start = Instant::now();
    let before = counters(root, args);
    while_doing("waiting between two readings of counters", || thread::sleep(args.interval));
    before.watched(&counters(root, args), start.elapsed())
}

/// The counters of devices, and those that the node of this machine keeps for its clients, if one runs.
fn counters(root: &Root, args: &InspectUsedArgs) -> CounterReading {
    let mut counters = CounterReading::read(root);
    for edge in status::status_of(&args.socket).map_or_else(Vec::new, |status| status.edges) {
        counters.add_client(edge.identity, edge.counts.pooled);
    }
    counters
}

pub(super) fn section(page: &mut Page, section: &Section<Used>) {
    page.heading("Is it used?");
    if let Some(used) = &section.known {
        if used.subjects.is_empty() {
            page.remark("no known tunnel or server is running");
        }
        for subject in &used.subjects {
            let answer = match subject.accelerated {
                Accelerated::Yes => "yes",
                Accelerated::No => "no",
                Accelerated::Unknown => "not known",
            };
            let by = match (&subject.device, subject.accelerated) {
                (Some(device), Accelerated::Yes) => format!(", by {device}"),
                _ => String::new(),
            };
            page.heading(&subject.what);
            page.fact("accelerated", &format!("{answer}{by}"));
            page.fact_if("algorithm", subject.algorithm.as_deref());
            page.fact_if("computed by", subject.implementation.as_deref());
            subject.evidence.iter().for_each(|evidence| page.item(evidence));
        }
    }
    page.unread(section);
}
