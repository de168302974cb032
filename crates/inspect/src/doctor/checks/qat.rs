// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! QAT devices: presence, state, health, place in the machine.

use crate::doctor::{ConfiguredProgram, Facts, Finding, Severity};
use crate::qat::QatDevice;
use crate::qat::formats::FirmwareHeartbeat;
use crate::qat::ids::{Generation, IDENTITIES};

/// Requests that one ring of a kernel instance holds, as drivers configure it
/// (`Cy0NumConcurrentSymRequests = 512`).
const RING: u64 = 512;

fn folder(device: &QatDevice) -> String {
    format!("sys/bus/pci/devices/{}", device.address)
}

/// The devices for which `matches` holds, virtual functions excluded.
fn devices<'a>(facts: &Facts<'a>, matches: impl Fn(&QatDevice) -> bool) -> Vec<&'a QatDevice> {
    facts.devices().filter(|device| matches(device)).collect()
}

fn start_command(device: &QatDevice) -> String {
    match device.generation {
        Generation::Gen1 | Generation::Gen2 => {
            "adf_ctl restart        # Intel's driver; closes the tunnels that use the device"
                .to_owned()
        }
        _ => format!("echo up > /{}/qat/state", folder(device)),
    }
}

fn driver_missing(devices: &[&QatDevice]) -> impl Iterator<Item = String> {
    devices.iter().map(|device| format!("{}: {}, no driver", folder(device), device.model))
}

pub(super) fn down(facts: &Facts<'_>) -> Option<Finding> {
    let down = devices(facts, |device| device.up == Some(false));
    let first = down.first()?;
    Finding::critical()
        .title(format!("{} QAT device(s) are down", down.len()))
        .evidence(down.iter().map(|device| format!("{}: {} is down", folder(device), device.model)))
        .impact("No request reaches the device: the processor computes everything, if the program falls back at all.")
        .run("dmesg | grep -i -e qat -e adf        # the reason: firmware, power management, errors")
        .run(start_command(first))
        .if_evident()
}

pub(super) fn driver(facts: &Facts<'_>) -> Option<Finding> {
    let bare = devices(facts, |device| device.driver.is_none());
    let first = bare.first()?;
    let row = IDENTITIES.iter().find(|row| row.device == first.device_id);
    let module = row.map_or_else(|| "intel_qat".to_owned(), |row| format!("qat_{}", row.class));
    let blacklisted = facts.blocked_by(&[&*module, "intel_qat"]);
    let is_blacklisted = !blacklisted.is_empty();
    let finding = Finding::warning()
        .title(format!("{} QAT device(s) have no driver", bare.len()))
        .evidence(driver_missing(&bare))
        .evidence(blacklisted)
        .impact("The device is plugged in and idle.");
    Some(if !first.driver_in_tree {
        finding.advise(format!(
            "Linux has no driver for {}: install Intel's package (hardware version 1.x).",
            first.model
        ))
    } else if is_blacklisted {
        finding.advise(
            "Remove the line, unless Intel's own package shall drive the device: then run `systemctl start qat`.",
        )
    } else {
        facts.loading(finding, &[&module], "").advise(
            "If it fails: read dmesg, look for the firmware in /lib/firmware, enable QuickAssist in the BIOS.",
        )
    })
}

/// Processors with QAT on the chip in every model, by part of their name in `/proc/cpuinfo`.
///
/// Source: Intel's product pages of the Atom C3000 family. Models of the Xeon line differ.
const WITH_QAT: [&str; 4] = ["C3558", "C3758", "C3858", "C3958"];

pub(super) fn absent(facts: &Facts<'_>) -> Option<Finding> {
    let cpu = facts.cpu()?;
    let model = cpu.model.as_deref()?;
    let has = WITH_QAT.iter().any(|name| model.contains(name));
    if !has || cpu.hypervisor.is_some() || !facts.qat()?.devices.is_empty() {
        return None;
    }
    Some(
        Finding::notice()
            .evidence([
                format!("proc/cpuinfo: {model}"),
                "sys/bus/pci/devices: no QAT device".to_owned(),
            ])
            .impact("QAT is switched off in the firmware setup, or hidden.")
            .advise("BIOS: Advanced, Chipset or Socket Configuration: enable Intel QuickAssist Technology.")
            .run("lspci -nn | grep 0b40        # lists co-processors"),
    )
}

pub(super) fn function_driver(facts: &Facts<'_>) -> Option<Finding> {
    // On the host, functions without a driver wait for a guest.
    if facts.devices().next().is_some() {
        return None;
    }
    let all = facts.qat()?.devices.iter();
    let bare: Vec<&QatDevice> = all.filter(|device| device.driver.is_none()).collect();
    let first = bare.first()?;
    let row = IDENTITIES.iter().find(|row| row.device == first.device_id)?;
    let finding = Finding::notice()
        .evidence(driver_missing(&bare))
        .impact("The host reserved it for this machine, and nothing uses it.");
    Some(if row.in_tree {
        facts.loading(finding, &[&format!("qat_{}", row.class)], "")
    } else {
        facts.loading(finding, &["vfio-pci"], "").advise(
            "User space (qatlib, qatprovider) then drives it: the kernel has no driver for virtual functions of this \
             generation.",
        )
    })
}

pub(super) fn firmware(facts: &Facts<'_>) -> Option<Finding> {
    let names = facts.system.qat_firmware.as_ref()?;
    let file = |device: &QatDevice| {
        let row = IDENTITIES.iter().find(|row| row.device == device.device_id);
        row.map(|row| row.firmware).filter(|file| !file.is_empty())
    };
    let missing: Vec<(&QatDevice, &str)> = facts
        .devices()
        .filter(|device| device.up != Some(true) && device.driver_in_tree)
        .filter_map(|device| Some((device, file(device)?)))
        .filter(|(_, file)| !names.iter().any(|name| name.starts_with(file)))
        .collect();
    let (_, file) = missing.first()?;
    Finding::critical()
        .evidence(
            missing
                .iter()
                .map(|(device, file)| format!("{}: needs lib/firmware/{file}", folder(device))),
        )
        .impact("The driver cannot start the device without it.")
        .advise(format!(
            "Install the distribution's package with {file} (Debian: firmware-misc-nonfree or \
             firmware-intel-misc; others: linux-firmware)."
        ))
        .run("update-initramfs -u        # then load the driver again, or reboot")
        .if_evident()
}

pub(super) fn heartbeat(facts: &Facts<'_>) -> Option<Finding> {
    // A driver without heartbeat also says "silent", but counts no failed queries.
    let silent = devices(facts, |device| {
        device.heartbeat == Some(FirmwareHeartbeat::Silent) && device.heartbeats_failed != Some(0)
    });
    let first = silent.first()?;
    Finding::critical()
        .evidence(silent.iter().map(|device| {
            let address = &device.address;
            let failed = device.heartbeats_failed.unwrap_or(0);
            format!("{address}: heartbeat/status -1, queries_failed {failed}")
        }))
        .impact("Requests already accepted by the device stay unanswered: tunnels stall until the device is reset.")
        .run(format!("echo down > /{}/qat/state", folder(first)))
        .run(start_command(first))
        .advise("If it happens again: install newer firmware (package linux-firmware), then ask the hardware's maker.")
        .if_evident()
}

pub(super) fn heartbeats_failed(facts: &Facts<'_>) -> Option<Finding> {
    let answering =
        facts.devices().filter(|device| device.heartbeat != Some(FirmwareHeartbeat::Silent));
    Finding::warning()
        .evidence(answering.filter_map(|device| {
            let failed = device.heartbeats_failed.filter(|failed| *failed > 0)?;
            Some(format!("{}: heartbeat/queries_failed {failed}", device.address))
        }))
        .impact("The firmware answers now. It hung or was reset since the driver was loaded.")
        .run("dmesg | grep -i qat        # shows when, and whether it was reset")
        .advise("Install newer firmware, if there is any (package linux-firmware).")
        .if_evident()
}

pub(super) fn stuck(facts: &Facts<'_>) -> Option<Finding> {
    let mut proven = false;
    let mut open = Vec::new();
    for device in facts.devices() {
        let earlier = facts.earlier.and_then(|qat| {
            let mut devices = qat.devices.iter();
            devices.find(|earlier| earlier.address == device.address)
        });
        for engine in &device.engines {
            let unanswered = engine.requests.saturating_sub(engine.responses);
            let before = earlier.and_then(|earlier| {
                let mut engines = earlier.engines.iter();
                engines.find(|before| before.engine == engine.engine)
            });
            // Responses between the two readings show that the others are in progress.
            let moves = before.is_some_and(|before| before.responses != engine.responses);
            if unanswered == 0 || moves {
                continue;
            }
            proven |= before.is_some_and(|before| before.requests > before.responses);
            open.push(format!(
                "{}: engine {}: {} requests, {} responses, {unanswered} open",
                device.address, engine.engine, engine.requests, engine.responses
            ));
        }
    }
    let finding = if proven {
        Finding::critical()
            .title("a QAT device does not answer requests that it has accepted")
            .impact("No response came between two readings: packets of these requests are lost, and their buffers are \
                not freed.")
    } else {
        Finding::warning()
            .impact("The requests are in progress if the device is busy; they are lost if they stay open while nothing \
                runs.")
    };
    finding
        .evidence(open)
        .run("millrace inspect qat --interval 5s        # do the open requests go away?")
        .advise("If not, reset the device (write down, then up, to /sys/bus/pci/devices/ADDRESS/qat/state; Intel's \
            driver: adf_ctl reset).")
        .if_evident()
}

pub(super) fn ring_pressure(facts: &Facts<'_>) -> Option<Finding> {
    let full = facts.devices().filter(|device| device.unanswered() >= RING);
    Finding::warning()
        .evidence(full.map(|device| {
            format!("{}: {} requests open at once", device.address, device.unanswered())
        }))
        .impact(format!(
            "A ring of a kernel instance holds {RING} requests; once it is full, the device rejects new requests \
             (\"ring full\") and the caller queues or drops them."
        ))
        .advise("Spread the load: another device, or more instances (NumberCyInstances; one per sending processor).")
        .advise("Intel's driver: raise CyNumConcurrentSymRequests in /etc/*_dev*.conf, then `adf_ctl restart`.")
        .if_evident()
}

/// Evidence of one error counter.
fn counted(
    facts: &Facts<'_>,
    name: &str,
    count: impl Fn(&QatDevice) -> Option<u64>,
) -> Vec<String> {
    let counted = facts.devices().filter_map(|device| {
        let count = count(device).filter(|count| *count > 0)?;
        Some(format!("{}/qat_ras/{name}: {count}", folder(device)))
    });
    counted.collect()
}

/// Adds the commands that reset the error counters; Intel's own driver has none.
fn with_reset(finding: Finding, facts: &Facts<'_>) -> Finding {
    let counting =
        facts.devices().filter(|device| device.errors.is_some_and(|errors| errors.any()));
    let commands = counting.map(|device| {
        format!(
            "echo 1 > /{}/qat_ras/reset_error_counters        # once the cause is removed",
            folder(device)
        )
    });
    commands.fold(finding, Finding::run)
}

pub(super) fn errors_fatal(facts: &Facts<'_>) -> Option<Finding> {
    let finding = Finding::critical()
        .evidence(counted(facts, "errors_fatal", |device| {
            // Intel's driver counts in its table of firmware counters and does not distinguish kinds.
            let events = device.engines.iter().filter_map(|engine| engine.ras_events).reduce(u64::saturating_add);
            device.errors.map(|errors| errors.fatal).or(events)
        }))
        .impact("Each error took the device down with all of its requests: a hardware fault, or memory or a bus that \
            damages data.")
        .run("dmesg | grep -i -e qat -e aer -e edac")
        .advise("If errors come again after a reset: replace the device; until then stop using it.")
        .if_evident()?;
    Some(with_reset(finding, facts))
}

pub(super) fn errors_nonfatal(facts: &Facts<'_>) -> Option<Finding> {
    let finding = Finding::warning()
        .evidence(counted(facts, "errors_nonfatal", |device| {
            device.errors.map(|errors| errors.nonfatal)
        }))
        .impact("Requests failed; the device continued.")
        .run("dmesg | grep -i -e qat -e aer")
        .advise("Reset the counters, and watch whether errors come again (millrace watch).")
        .if_evident()?;
    Some(with_reset(finding, facts))
}

pub(super) fn errors_correctable(facts: &Facts<'_>) -> Option<Finding> {
    Finding::notice()
        .evidence(counted(facts, "errors_correctable", |device| {
            device.errors.map(|errors| errors.correctable)
        }))
        .impact("No data was lost. Many corrected errors announce uncorrectable ones.")
        .run("millrace watch        # do they grow?")
        .if_evident()
}

pub(super) fn auto_reset(facts: &Facts<'_>) -> Option<Finding> {
    let off = devices(facts, |device| device.resets_itself == Some(false));
    let finding = Finding::notice()
        .evidence(off.iter().map(|device| format!("{}/qat/auto_reset: off", folder(device))))
        .impact("This is the default: after a fatal error the device is down until it is reset by hand.")
        .if_evident()?;
    let commands = off.iter().map(|device| format!("echo on > /{}/qat/auto_reset", folder(device)));
    Some(commands.fold(finding, Finding::run))
}

pub(super) fn link(facts: &Facts<'_>) -> Option<Finding> {
    let slow = facts.devices().filter_map(|device| {
        let link = device.link.as_ref().filter(|link| link.below_its_possibilities())?;
        Some(format!(
            "{}: {} x{}, could be {} x{}",
            folder(device),
            link.speed,
            link.width,
            link.possible_speed,
            link.possible_width
        ))
    });
    Finding::warning()
        .evidence(slow)
        .impact("The bus limits bulk encryption: half the lanes carry half the bytes. Private-key operations are not \
            affected.")
        .advise("Use another slot (all lanes wired, directly at a processor), or raise the slot's speed in the BIOS \
            (not \"Gen1\").")
        .if_evident()
}

pub(super) fn numa(facts: &Facts<'_>) -> Option<Finding> {
    let nodes: Vec<u32> = facts.devices().filter_map(|device| device.numa_node).collect();
    let cards = facts.system.card_nodes.iter();
    let far = cards.filter(|(_, node)| !nodes.is_empty() && !nodes.contains(node));
    let finding = Finding::notice()
        .evidence(far.map(|(name, node)| format!("sys/class/net/{name}/device/numa_node: {node}")))
        .if_evident()?;
    Some(
        finding
            .evidence(nodes.iter().map(|node| format!("a QAT device is on node {node}")))
            .impact("Packets cross the link between the sockets twice: to the device and back.")
            .advise("Put the card and the device at one socket, or steer the card's queues and the program to the \
                device's node (numactl, RPS)."),
    )
}

pub(super) fn idle(facts: &Facts<'_>) -> Option<Finding> {
    let up = devices(facts, |device| device.up == Some(true) && !device.engines.is_empty());
    let busy = up.iter().find(|device| device.requests() > 0)?;
    // Starting a device takes a few requests; a device for compression cannot share this load.
    let idle: Vec<String> = up
        .iter()
        .filter(|device| {
            device.requests() == 0 && device.serves_the_kernel() == busy.serves_the_kernel()
        })
        .map(|device| format!("{}: 0 requests", device.address))
        .collect();
    (!idle.is_empty()).then(|| {
        Finding::notice()
            .evidence([format!("{}: {} requests", busy.address, busy.requests())])
            .evidence(idle)
            .impact("The second device is up and idle: the capacity is that of one device.")
            .advise("Kernel (IPsec): an association stays at the device that was nearest and least used at its \
                creation. More associations, created on processors of both nodes, spread.")
            .advise("User space: instances of every device in the program's section of /etc/*_dev*.conf, or a virtual \
                function of each device.")
    })
}

pub(super) fn unread(facts: &Facts<'_>) -> Option<Finding> {
    let blind = facts.devices().filter(|device| {
        device.driver.is_some() && device.up != Some(false) && device.engines.is_empty()
    });
    let lockdown = facts.system.lockdown.as_deref();
    let locked = lockdown.filter(|mode| *mode != "none");
    let finding = Finding::notice()
        .evidence(
            blind.map(|device| format!("sys/kernel/debug/qat_*_{}: not readable", device.address)),
        )
        .if_evident()?
        .evidence(locked.map(|mode| format!("sys/kernel/security/lockdown: {mode}")))
        .impact("Whether the device works, answers its heartbeat or lost requests is unknown.");
    Some(if locked.is_some() {
        finding.advise("The kernel is locked down (secure boot): kernels that forbid files of mode 0400 in debugfs \
            give no other access to the counters.")
    } else {
        finding
            .advise("Run millrace as root.")
            .run("mount -t debugfs none /sys/kernel/debug        # if it is not mounted")
    })
}

pub(super) fn no_kernel_instances(facts: &Facts<'_>) -> Option<Finding> {
    let without = devices(facts, |device| device.serves_the_kernel() == Some(false));
    let first = without.first()?;
    let some_serve = facts.devices().any(|device| device.serves_the_kernel() == Some(true));
    let finding = Finding::new(if some_serve { Severity::Notice } else { Severity::Warning })
        .evidence(without.iter().map(|device| {
            format!("{}/qat/cfg_services: {}", folder(device), device.services.join(";"))
        }))
        .impact(
            "IPsec and disk encryption cannot use it, although it is \"up\": `sym` alone is for user space and \
             virtual functions, `dc` is compression. By default every second device is `dc`.",
        );
    Some(match first.generation {
        Generation::Gen1 | Generation::Gen2 => finding.advise(
            "/etc/*_dev*.conf: ServicesEnabled = cy, NumberCyInstances in [KERNEL] above 0; then `adf_ctl restart`.",
        ),
        _ => {
            let folder = folder(first);
            finding
                .run(format!("echo down > /{folder}/qat/state        # refused while virtual functions are in use"))
                .run(format!("echo 'sym;asym' > /{folder}/qat/cfg_services"))
                .run(format!("echo up > /{folder}/qat/state"))
        }
    })
}

pub(super) fn small_packets(facts: &Facts<'_>) -> Option<Finding> {
    const THRESHOLD: &str = "SET_CRYPTO_SMALL_PACKET_OFFLOAD_THRESHOLD";
    let set = facts.settings(ConfiguredProgram::Openssl, THRESHOLD).next().is_some();
    if set || !facts.configured(ConfiguredProgram::Openvpn) {
        return None;
    }
    let files = facts.qat()?.user_space.iter();
    let modules = files.filter(|file| file.contains("qatengine") || file.contains("qatprovider"));
    let finding = Finding::warning().evidence(modules.cloned()).if_evident()?;
    Some(
        finding
            .evidence([format!("no {THRESHOLD} in openssl.cnf: the default is 2048 bytes")])
            .impact(
                "A packet of a VPN has at most about 1500 bytes. By default AES-GCM and ChaCha20-Poly1305 are not \
                 sent to the device at all (QAT_Engine, docs/qat_hw_algo.md). Below the threshold the processor is \
                 also faster: lowering it is not a gain by itself.",
            )
            .run("millrace inspect ceiling        # measure first; OpenVPN's own cost is the tunnel, not the cipher")
            .advise("Prefer the kernel data channel (DCO) to an engine."),
    )
}

pub(super) fn hugepages(facts: &Facts<'_>) -> Option<Finding> {
    let qat = facts.qat()?;
    let module = qat.modules.iter().find(|name| *name == "usdm_drv");
    let library = qat.user_space.iter().find(|file| file.contains("libusdm"));
    let total = facts.system.memory.get("HugePages_Total")?;
    let user = module.or(library).filter(|_| *total == 0)?;
    let finding = Finding::notice()
        .evidence([user.clone(), "proc/meminfo: HugePages_Total 0".to_owned()])
        .impact("User-space requests use pages of 4 KiB: more address translations per request. It works without \
            huge pages.")
        .run("sysctl vm.nr_hugepages=1024        # 2 GiB; put it into /etc/sysctl.d to keep it");
    let module = "usdm_drv max_huge_pages=1024 max_huge_pages_per_process=16";
    Some(facts.loading(finding, &[module], ""))
}
