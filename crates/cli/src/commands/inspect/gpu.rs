// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect gpu`: graphics processors, and other accelerators except QAT.

use anyhow::Result;
use millrace_inspect::accelerators::{self, Accelerators, Engine};
use millrace_inspect::report::{ReportParts, Section};

use super::open;
use crate::args::InspectGpuArgs;
use crate::output::{self, Table};
use crate::page::{Page, plain};

pub(super) fn run(args: &InspectGpuArgs) -> Result<()> {
    let root = open(&args.tree)?;
    let found = accelerators::section(&root);
    if args.tree.json {
        return output::print_json(&ReportParts {
            accelerators: Some(found),
            ..ReportParts::none(&root)
        });
    }
    let mut page = Page::new();
    section(&mut page, &found);
    page.print()
}

/// The accelerators.
pub(super) fn section(page: &mut Page, section: &Section<Accelerators>) {
    page.heading("Other accelerators");
    if let Some(found) = &section.known {
        if found.gpus.is_empty() {
            page.fact("GPUs", "none of NVIDIA");
        } else {
            gpus(page, found);
        }
        page.fact_if("driver", found.nvidia_driver.as_deref());
        let bound = |name: &str, driver: Option<&str>| {
            format!("{name} ({})", driver.unwrap_or("no driver"))
        };
        let virtio: Vec<String> = found
            .virtio_crypto
            .iter()
            .map(|device| bound(&device.name, device.driver.as_deref()))
            .collect();
        let none = || "none".to_owned();
        page.fact(
            "virtio-crypto",
            &virtio
                .into_iter()
                .reduce(|all, one| format!("{all}, {one}"))
                .unwrap_or_else(none),
        );
        for (name, engines) in [("DSA", &found.dsa), ("IAA", &found.iaa)] {
            if !engines.is_empty() {
                let what = if name == "DSA" {
                    "copies and checksums"
                } else {
                    "compression"
                };
                page.fact(
                    name,
                    &format!("{} ({what}, no encryption)", states(engines)),
                );
            }
        }
        page.fact("/dev/crypto", if found.dev_crypto { "yes" } else { "no" });
        page.fact(
            "AF_ALG",
            found
                .af_alg
                .map_or("not known", |has| if has { "yes" } else { "no" }),
        );
    }
    page.unread(section);
}

fn gpus(page: &mut Page, found: &Accelerators) {
    let mut table = Table::new(&["GPU", "model", "compute", "driver", "NUMA"]);
    for gpu in &found.gpus {
        let text = |text: &Option<String>| text.as_deref().map_or_else(|| "?".to_owned(), plain);
        table.row(vec![
            plain(&gpu.address),
            gpu.model
                .as_deref()
                .map_or_else(|| plain(&gpu.device_id), plain),
            text(&gpu.compute_capability),
            gpu.driver
                .as_deref()
                .map_or_else(|| "none".to_owned(), plain),
            gpu.numa_node
                .map_or_else(|| "-".to_owned(), |node| node.to_string()),
        ]);
    }
    page.table(&table);
}

fn states(engines: &[Engine]) -> String {
    let state = |engine: &Engine| {
        let state = if engine.enabled { "on" } else { "off" };
        format!("{} {state}", engine.name)
    };
    engines.iter().map(state).collect::<Vec<_>>().join(", ")
}
