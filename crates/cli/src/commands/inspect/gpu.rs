// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect gpu`: graphics processors, and other accelerators except QAT.

use millrace_inspect::accelerators::{AcceleratorUnit, Accelerators};
use millrace_inspect::section::Section;

use crate::output::{Table, joined, or};
use crate::page::{Page, plain};

pub(super) fn section(page: &mut Page, section: &Section<Accelerators>) {
    page.heading("Other accelerators");
    if let Some(found) = &section.known {
        if found.gpus.is_empty() {
            page.fact("GPUs", section.absence(&["sys/bus/pci/devices"], "none of NVIDIA"));
        } else {
            gpus(page, found);
        }
        page.fact_if("driver", found.nvidia_driver.as_deref());
        let virtio = found.virtio_crypto.iter();
        let virtio = virtio.map(|device| {
            let driver = device.driver.as_deref().unwrap_or("no driver");
            format!("{} ({driver})", device.name)
        });
        page.fact(
            "virtio-crypto",
            &joined(virtio, section.absence(&["sys/bus/virtio/devices"], "none")),
        );
        let engines =
            [("DSA", &found.dsa, "copies and checksums"), ("IAA", &found.iaa, "compression")];
        for (name, engines, what) in engines {
            if !engines.is_empty() {
                let states = states(engines);
                page.fact(name, &format!("{states} ({what}, no encryption)"));
            }
        }
        let modules = ["proc/modules", "sys/module"];
        let no_dev = section.absence(&["dev/crypto", modules[0], modules[1]], "no");
        page.fact("/dev/crypto", if found.dev_crypto { "yes" } else { no_dev });
        let af_alg = match found.af_alg {
            Some(true) => "yes",
            Some(false) => section.absence(&modules, "no"),
            None => section.absence(&["proc/net/protocols"], "not known"),
        };
        page.fact("AF_ALG", af_alg);
    }
    page.unread(section);
}

#[rustfmt::skip]
fn gpus(page: &mut Page, found: &Accelerators) {
    let text = |text: &Option<String>, absent: &str| or(text.as_deref().map(plain), absent);
    page.table(&Table::of(&found.gpus, &[
        ("GPU", &|gpu| plain(&gpu.address)),
        ("model", &|gpu| text(&gpu.model, &plain(&gpu.device_id))),
        ("compute", &|gpu| text(&gpu.compute_capability, "?")),
        ("driver", &|gpu| text(&gpu.driver, "none")),
        ("NUMA", &|gpu| or(gpu.numa_node, "-")),
    ]));
}

fn states(engines: &[AcceleratorUnit]) -> String {
    let state = |enabled| if enabled { "on" } else { "off" };
    let engines = engines.iter();
    joined(engines.map(|engine| format!("{} {}", engine.name, state(engine.enabled))), "")
}
