// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect qat`: Intel QAT, device by device; with a time, its counters as rates.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use millrace_inspect::qat::formats::Heartbeat;
use millrace_inspect::qat::{self, Device, Qat};
use millrace_inspect::report::{ReportParts, Section};

use super::open;
use crate::args::InspectQatArgs;
use crate::output::{self, Table};
use crate::page::{Page, plain};
use crate::progress::while_doing;

pub(super) fn run(args: &InspectQatArgs) -> Result<()> {
    let root = open(&args.tree)?;
    let found = qat::section(&root);
    if args.tree.json {
        return output::print_json(&ReportParts {
            qat: Some(found),
            ..ReportParts::none(&root)
        });
    }
    let mut page = Page::new();
    section(&mut page, &found, true);
    if let (Some(seconds), Some(before)) = (args.seconds, &found.known) {
        let start = Instant::now();
        while_doing("waiting between two readings", || {
            thread::sleep(Duration::from_secs(seconds))
        });
        let after = qat::section(&root).known.unwrap_or_default();
        rates(&mut page, before, &after, start.elapsed());
    }
    page.print()
}

/// The devices; engines and telemetry in `detail`.
pub(super) fn section(page: &mut Page, section: &Section<Qat>, detail: bool) {
    page.heading("Intel QAT");
    if let Some(qat) = &section.known {
        if qat.devices.is_empty() {
            page.remark("no device and no virtual function");
        } else {
            devices(page, qat);
        }
        if !qat.modules.is_empty() {
            page.fact("modules", &qat.modules.join(", "));
        }
        if qat.service {
            page.fact("service", "Intel's qat_service is installed");
        }
        for configuration in &qat.configurations {
            page.fact("configured by", &configuration.file);
        }
        if !qat.user_space.is_empty() {
            page.fact("user space", &qat.user_space.join(", "));
        }
        if detail {
            qat.devices
                .iter()
                .for_each(|device| in_detail(page, device));
        }
    }
    page.unread(section);
}

fn devices(page: &mut Page, qat: &Qat) {
    let columns = [
        "device",
        "model",
        "state",
        "services",
        "kernel",
        ">requests",
        ">open",
        "heartbeat",
    ];
    let mut table = Table::new(&columns);
    for device in qat.devices.iter().filter(|device| !device.virtual_function) {
        let counters = |value: u64| match device.engines.is_empty() {
            true => "?".to_owned(),
            false => value.to_string(),
        };
        table.row(vec![
            plain(&device.address),
            device.model.clone(),
            state(device).to_owned(),
            plain(&device.services.join(";")),
            match device.serves_the_kernel() {
                Some(true) => "yes",
                Some(false) => "no",
                None => "?",
            }
            .to_owned(),
            counters(device.requests()),
            counters(device.unanswered()),
            match device.heartbeat {
                Some(Heartbeat::Alive) => "alive",
                Some(Heartbeat::Silent) => "silent",
                None => "?",
            }
            .to_owned(),
        ]);
    }
    page.table(&table);
    let functions = qat.devices.iter().filter(|device| device.virtual_function);
    let bound = functions
        .clone()
        .filter(|device| device.driver.is_some())
        .count();
    if functions.clone().count() > 0 {
        page.fact(
            "functions",
            &format!("{} virtual, {bound} with a driver", functions.count()),
        );
    }
    page.remark(
        "kernel: usable by IPsec and dm-crypt in its current configuration. requests: accepted by its \
         firmware since start (a count, not bytes). open: not answered yet.",
    );
}

fn state(device: &Device) -> &'static str {
    match (device.up, &device.driver) {
        (Some(true), _) => "up",
        (Some(false), _) => "down",
        (None, None) => "no driver",
        (None, Some(_)) => "?",
    }
}

fn in_detail(page: &mut Page, device: &Device) {
    if device.virtual_function {
        return;
    }
    page.heading(&format!("{} ({})", plain(&device.address), device.model));
    page.fact_if("driver", device.driver.as_deref());
    if !device.driver_in_tree {
        page.fact("", "Linux has no driver for it, but Intel's package does");
    }
    let number = |value: Option<u64>| value.map(|value| value.to_string());
    page.fact_if(
        "NUMA node",
        number(device.numa_node.map(u64::from)).as_deref(),
    );
    if let Some(link) = &device.link {
        let less = if link.below_its_possibilities() {
            format!(
                ", less than its {} x{}",
                link.possible_speed, link.possible_width
            )
        } else {
            String::new()
        };
        page.fact("bus", &format!("{} x{}{less}", link.speed, link.width));
    }
    page.fact_if("ring pairs", number(device.ring_pairs).as_deref());
    if let Some(functions) = device.functions {
        let (enabled, possible) = (functions.enabled, functions.possible);
        page.fact("functions", &format!("{enabled} of {possible}"));
    }
    if let Some(errors) = device.errors {
        let (correctable, nonfatal, fatal) = (errors.correctable, errors.nonfatal, errors.fatal);
        page.fact(
            "errors",
            &format!("{correctable} corrected, {nonfatal} uncorrected, {fatal} fatal"),
        );
    }
    if let Some(resets) = device.resets_itself {
        page.fact("auto reset", if resets { "on" } else { "off" });
    }
    page.fact_if(
        "unanswered",
        number(device.heartbeats_failed)
            .map(|n| n + " heartbeats")
            .as_deref(),
    );
    if !device.engines.is_empty() {
        let mut table = Table::new(&["engine", ">requests", ">responses"]);
        for engine in &device.engines {
            table.row(vec![
                engine.engine.to_string(),
                engine.requests.to_string(),
                engine.responses.to_string(),
            ]);
        }
        page.table(&table);
    }
    if !device.rings.is_empty() {
        let mut table = Table::new(&["ring", ">waiting", ">size", ">full"]);
        for ring in &device.rings {
            table.row(vec![
                plain(&ring.name),
                format!("{} bytes", ring.used_bytes),
                format!("{} bytes", ring.size_bytes),
                format!(
                    "{} %",
                    ring.used_bytes.saturating_mul(100) / ring.size_bytes
                ),
            ]);
        }
        page.table(&table);
    }
    if !device.telemetry.is_empty() {
        let mut table = Table::new(&["telemetry", ">value"]);
        for (name, value) in &device.telemetry {
            table.row(vec![plain(name), value.to_string()]);
        }
        page.table(&table);
    }
}

fn rates(page: &mut Page, before: &Qat, after: &Qat, elapsed: Duration) {
    page.heading("While we watched");
    let mut table = Table::new(&["device", ">requests/s", ">open"]);
    for device in &after.devices {
        let earlier = before
            .devices
            .iter()
            .find(|earlier| earlier.address == device.address);
        let Some(earlier) = earlier.filter(|_| !device.engines.is_empty()) else {
            continue;
        };
        let moved = device.requests().saturating_sub(earlier.requests());
        let rate = moved as f64 / elapsed.as_secs_f64();
        table.row(vec![
            plain(&device.address),
            format!("{rate:.0}"),
            device.unanswered().to_string(),
        ]);
    }
    page.table(&table);
}
