// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect qat`: Intel QAT, device by device; with a time, its counters as rates.

use std::thread;
use std::time::{Duration, Instant};

use millrace_hostfs::Root;
use millrace_inspect::qat::formats::FirmwareHeartbeat;
use millrace_inspect::qat::{self, Qat, QatDevice};
use millrace_inspect::section::Section;

use crate::output::{Table, or};
use crate::page::{Page, plain};
use crate::progress::while_doing;

/// Reads the devices again after some time, and adds the rates.
pub(super) fn watch(page: &mut Page, root: &Root, before: &Qat, interval: Duration) {
    let start = Instant::now();
    while_doing("waiting between two readings", || thread::sleep(interval));
    let after = qat::section(root).known.unwrap_or_default();
    rates(page, before, &after, start.elapsed());
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
            qat.devices.iter().for_each(|device| in_detail(page, device));
        }
    }
    page.unread(section);
}

fn devices(page: &mut Page, qat: &Qat) {
    let counters = |device: &QatDevice, value: u64| {
        or(Some(value).filter(|_| !device.engines.is_empty()), "?")
    };
    let kernel = |serves: bool| if serves { "yes" } else { "no" };
    let heartbeat = |heartbeat| match heartbeat {
        FirmwareHeartbeat::Alive => "alive",
        FirmwareHeartbeat::Silent => "silent",
    };
    let (functions, devices): (Vec<&QatDevice>, Vec<_>) =
        qat.devices.iter().partition(|device| device.virtual_function);
    #[rustfmt::skip]
    page.table(&Table::of(devices, &[
        ("device", &|device| plain(&device.address)),
        ("model", &|device| device.model.clone()),
        ("state", &|device| state(device).to_owned()),
        ("services", &|device| plain(&device.services.join(";"))),
        ("kernel", &|device| or(device.serves_the_kernel().map(kernel), "?")),
        (">requests", &|device| counters(device, device.requests())),
        (">open", &|device| counters(device, device.unanswered())),
        ("heartbeat", &|device| or(device.heartbeat.map(heartbeat), "?")),
    ]));
    if !functions.is_empty() {
        let bound = functions.iter().filter(|device| device.driver.is_some());
        let all = functions.len();
        let bound = bound.count();
        page.fact("functions", &format!("{all} virtual, {bound} with a driver"));
    }
    page.remark(
        "kernel: usable by IPsec and dm-crypt in its current configuration. requests: accepted by its \
         firmware since start (a count, not bytes). open: not answered yet.",
    );
}

fn state(device: &QatDevice) -> &'static str {
    match (device.up, &device.driver) {
        (Some(true), _) => "up",
        (Some(false), _) => "down",
        (None, None) => "no driver",
        (None, Some(_)) => "?",
    }
}

fn in_detail(page: &mut Page, device: &QatDevice) {
    if device.virtual_function {
        return;
    }
    page.heading(&format!("{} ({})", plain(&device.address), device.model));
    page.fact_if("driver", device.driver.as_deref());
    if !device.driver_in_tree {
        page.fact("", "Linux has no driver for it, but Intel's package does");
    }
    let number = |value: Option<u64>| value.map(|value| value.to_string());
    page.fact_if("NUMA node", number(device.numa_node.map(u64::from)).as_deref());
    if let Some(link) = &device.link {
        let less = if link.below_its_possibilities() {
            format!(", less than its {} x{}", link.possible_speed, link.possible_width)
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
        number(device.heartbeats_failed).map(|n| n + " heartbeats").as_deref(),
    );
    #[rustfmt::skip]
    let tables = [
        Table::of(&device.engines, &[
            ("engine", &|engine| engine.engine.to_string()),
            (">requests", &|engine| engine.requests.to_string()),
            (">responses", &|engine| engine.responses.to_string()),
        ]),
        Table::of(&device.rings, &[
            ("ring", &|ring| plain(&ring.name)),
            (">waiting", &|ring| format!("{} bytes", ring.used_bytes)),
            (">size", &|ring| format!("{} bytes", ring.size_bytes)),
            (">full", &|ring| format!("{} %", ring.used_bytes.saturating_mul(100) / ring.size_bytes)),
        ]),
        Table::of(&device.telemetry, &[
            ("telemetry", &|(name, _)| plain(name)),
            (">value", &|(_, value)| value.to_string()),
        ]),
    ];
    for table in tables.iter().filter(|table| !table.is_empty()) {
        page.table(table);
    }
}

fn rates(page: &mut Page, before: &Qat, after: &Qat, elapsed: Duration) {
    page.heading("While we watched");
    let moved = after.devices.iter().filter_map(|device| {
        let mut earlier = before.devices.iter();
        let earlier = earlier.find(|earlier| earlier.address == device.address)?;
        let moved = device.requests().saturating_sub(earlier.requests());
        (!device.engines.is_empty()).then_some((device, moved))
    });
    #[rustfmt::skip]
    page.table(&Table::of(moved, &[
        ("device", &|(device, _)| plain(&device.address)),
        (">requests/s", &|(_, moved)| format!("{:.0}", *moved as f64 / elapsed.as_secs_f64())),
        (">open", &|(device, _)| device.unanswered().to_string()),
    ]));
}
