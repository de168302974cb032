// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! QAT devices: whether they are there, up, healthy, and in the right place.

use super::super::{Facts, Found, Program};
use crate::qat::Device;
use crate::qat::formats::Heartbeat;
use crate::qat::ids::{Generation, IDENTITIES};

/// Requests that one ring of a kernel instance holds, as drivers configure it
/// (`Cy0NumConcurrentSymRequests = 512`).
const RING: u64 = 512;

pub(super) fn down(facts: &Facts<'_>) -> Option<Found> {
    let down: Vec<&Device> = facts
        .devices()
        .filter(|device| device.up == Some(false))
        .collect();
    let first = down.first()?;
    Some(
        Found::critical(format!("{} QAT device(s) are down", down.len()))
            .seen(
                down.iter()
                    .map(|device| format!("{}: {} is down", folder(device), device.model)),
            )
            .means(
                "Nothing reaches the device: everything is computed by the processor, if the program \
                 falls back at all.",
            )
            .fix("dmesg | grep -i -e qat -e adf        # why: firmware, power management, errors")
            .fix(restart(first)),
    )
}

fn folder(device: &Device) -> String {
    format!("sys/bus/pci/devices/{}", device.address)
}

fn restart(device: &Device) -> String {
    match device.generation {
        Generation::Gen1 | Generation::Gen2 => {
            "adf_ctl restart        # Intel's driver; drops the tunnels that use it".to_owned()
        }
        _ => format!("echo up > /{}/qat/state", folder(device)),
    }
}

pub(super) fn driver(facts: &Facts<'_>) -> Option<Found> {
    let bare: Vec<&Device> = facts
        .devices()
        .filter(|device| device.driver.is_none())
        .collect();
    let first = bare.first()?;
    let module = IDENTITIES
        .iter()
        .find(|row| row.device == first.device_id)
        .map_or_else(
            || "intel_qat".to_owned(),
            |row| format!("qat_{}", row.class),
        );
    let blacklisted: Vec<String> = ["blacklist", "install"]
        .into_iter()
        .flat_map(|name| facts.settings(Program::Modprobe, name))
        .filter(|(_, setting)| {
            let what = setting.words().next().unwrap_or_default();
            what == module || what == "intel_qat"
        })
        .map(super::super::quote)
        .collect();
    let is_blacklisted = !blacklisted.is_empty();
    let found = Found::warning(format!("{} QAT device(s) have no driver", bare.len()))
        .seen(
            bare.iter()
                .map(|device| format!("{}: {}, no driver", folder(device), device.model)),
        )
        .seen(blacklisted)
        .means("The device is plugged in and does nothing.");
    Some(if !first.driver_in_tree {
        found.fix(format!(
            "Linux has no driver for {}: install Intel's package (hardware version 1.x)",
            first.model
        ))
    } else if is_blacklisted {
        found.fix(
            "remove the line unless Intel's own package is meant to take the device: then \
             `systemctl start qat`",
        )
    } else {
        found
            .fix(format!("modprobe {module}"))
            .fix("if it fails: dmesg | grep -i qat; firmware in /lib/firmware; in the BIOS, QuickAssist enabled")
    })
}

/// Processors with QAT on the chip, whichever model: by a part of what `/proc/cpuinfo` calls them.
///
/// Source: Intel's product pages of the Atom C3000 family. Models of the Xeon line differ.
const WITH_QAT: [&str; 4] = ["C3558", "C3758", "C3858", "C3958"];

pub(super) fn absent(facts: &Facts<'_>) -> Option<Found> {
    let cpu = facts.cpu()?;
    let model = cpu.model.as_deref()?;
    let qat = facts.qat()?;
    let has = WITH_QAT.iter().any(|name| model.contains(name));
    if !has || cpu.hypervisor.is_some() || !qat.devices.is_empty() {
        return None;
    }
    Some(
        Found::notice("the processor has QAT and no device is seen")
            .seen([
                format!("proc/cpuinfo: {model}"),
                "sys/bus/pci/devices: no device of QAT".to_owned(),
            ])
            .means("It is switched off in the firmware's setup, or hidden.")
            .fix("BIOS: Advanced, Chipset or Socket Configuration: Intel QuickAssist Technology, enabled")
            .fix("lspci -nn | grep 0b40        # class of co-processors"),
    )
}

pub(super) fn function_driver(facts: &Facts<'_>) -> Option<Found> {
    // On the host, functions without a driver wait for a guest.
    if facts.devices().next().is_some() {
        return None;
    }
    let bare: Vec<&Device> = facts
        .qat()
        .map_or(&[][..], |qat| &qat.devices)
        .iter()
        .collect();
    let bare: Vec<&Device> = bare
        .into_iter()
        .filter(|device| device.driver.is_none())
        .collect();
    let first = bare.first()?;
    let row = IDENTITIES
        .iter()
        .find(|row| row.device == first.device_id)?;
    Some(
        Found::notice("a virtual function of QAT was given to this machine and has no driver")
            .seen(bare.iter().map(|device| format!("{}: {}, no driver", folder(device), device.model)))
            .means("The host set it aside for this machine, and nothing uses it.")
            .fix(if row.in_tree {
                format!("modprobe qat_{}", row.class)
            } else {
                "modprobe vfio-pci; user space (qatlib, qatprovider) drives it: the kernel has no driver for functions of this generation".to_owned()
            }),
    )
}

pub(super) fn firmware(facts: &Facts<'_>) -> Option<Found> {
    let names = facts.system.qat_firmware.as_ref()?;
    let lacking: Vec<(&Device, &str)> = facts
        .devices()
        .filter(|device| device.up != Some(true) && device.driver_in_tree)
        .filter_map(|device| {
            // Source: MODULE_FIRMWARE of the drivers.
            let file = match device.device_id {
                0x0435 => "qat_895xcc.bin",
                0x37c8 => "qat_c62x.bin",
                0x19e2 => "qat_c3xxx.bin",
                0x4940 | 0x4942 => "qat_4xxx.bin",
                0x4944 => "qat_402xx.bin",
                0x4946 => "qat_420xx.bin",
                0x4948 => "qat_6xxx.bin",
                _ => return None,
            };
            let there = names.iter().any(|name| name.starts_with(file));
            (!there).then_some((device, file))
        })
        .collect();
    let (_, file) = lacking.first()?;
    Some(
        Found::critical("the firmware of a QAT device is not installed")
            .seen(
                lacking
                    .iter()
                    .map(|(device, file)| format!("{}: wants lib/firmware/{file}", folder(device))),
            )
            .means("The driver cannot start the device without it.")
            .fix(format!(
                "install the distribution's package with {file} (Debian: firmware-misc-nonfree or \
                 firmware-intel-misc; others: linux-firmware)"
            ))
            .fix("update-initramfs -u; modprobe the driver again, or reboot"),
    )
}

pub(super) fn heartbeat(facts: &Facts<'_>) -> Option<Found> {
    let silent: Vec<&Device> = facts
        .devices()
        // A driver without heartbeat says the same, and counts no failed queries.
        .filter(|device| {
            device.heartbeat == Some(Heartbeat::Silent) && device.heartbeats_failed != Some(0)
        })
        .collect();
    let first = silent.first()?;
    Some(
        Found::critical("the firmware of a QAT device does not answer its heartbeat")
            .seen(silent.iter().map(|device| {
                let failed = device.heartbeats_failed.unwrap_or(0);
                format!(
                    "{}: heartbeat/status -1, queries_failed {failed}",
                    device.address
                )
            }))
            .means(
                "Requests that it has taken are not answered: tunnels stall until the device is reset.",
            )
            .fix(format!("echo down > /{}/qat/state", folder(first)))
            .fix(restart(first))
            .fix("if it comes again: newer firmware (package linux-firmware), then the hardware's maker"),
    )
}

pub(super) fn heartbeats_failed(facts: &Facts<'_>) -> Option<Found> {
    let failed: Vec<String> = facts
        .devices()
        .filter(|device| device.heartbeat != Some(Heartbeat::Silent))
        .filter_map(|device| {
            let failed = device.heartbeats_failed.filter(|failed| *failed > 0)?;
            Some(format!(
                "{}: heartbeat/queries_failed {failed}",
                device.address
            ))
        })
        .collect();
    (!failed.is_empty()).then(|| {
        Found::warning("the firmware of a QAT device did not answer at times")
            .seen(failed)
            .means("It answers now. It has hung or been reset since the driver was loaded.")
            .fix("dmesg | grep -i qat        # when, and whether it was reset")
            .fix("newer firmware, if there is some (package linux-firmware)")
    })
}

pub(super) fn stuck(facts: &Facts<'_>) -> Option<Found> {
    let mut proven = false;
    let open: Vec<String> = facts
        .devices()
        .flat_map(|device| {
            let earlier = facts.earlier.and_then(|qat| {
                let mut devices = qat.devices.iter();
                devices.find(|earlier| earlier.address == device.address)
            });
            device.engines.iter().filter_map(move |engine| {
                let open = engine.requests.saturating_sub(engine.responses);
                if open == 0 {
                    return None;
                }
                let before = earlier.and_then(|earlier| {
                    let mut engines = earlier.engines.iter();
                    engines.find(|before| before.engine == engine.engine)
                });
                // Answers came meanwhile: they are on their way.
                if before.is_some_and(|before| before.responses != engine.responses) {
                    return None;
                }
                let text = format!(
                    "{}: engine {}: {} requests, {} responses, {open} open",
                    device.address, engine.engine, engine.requests, engine.responses
                );
                Some((
                    text,
                    before.is_some_and(|before| before.requests > before.responses),
                ))
            })
        })
        .map(|(text, still)| {
            proven |= still;
            text
        })
        .collect();
    if open.is_empty() {
        return None;
    }
    let found = if proven {
        Found::critical("a QAT device does not answer requests that it has taken")
    } else {
        Found::warning("a QAT device has requests that are not answered")
    };
    Some(
        found
            .seen(open)
            .means(if proven {
                "No answer came between two looks: packets of these requests are lost, and their buffers \
                 are not given back."
            } else {
                "On their way, if it is busy; lost, if they are still open when nothing runs."
            })
            .fix("millrace inspect qat --seconds 5        # do the open ones go away?")
            .fix("if not: reset the device (echo down, then up, > /sys/bus/pci/devices/…/qat/state; Intel's driver: adf_ctl reset)"),
    )
}

pub(super) fn ring_pressure(facts: &Facts<'_>) -> Option<Found> {
    let full: Vec<String> = facts
        .devices()
        .filter(|device| device.unanswered() >= RING)
        .map(|device| {
            format!(
                "{}: {} requests open at once",
                device.address,
                device.unanswered()
            )
        })
        .collect();
    (!full.is_empty()).then(|| {
        Found::warning("a QAT device has as many open requests as a ring holds")
            .seen(full)
            .means(format!(
                "A ring of a kernel instance holds {RING} requests; what comes when it is full is sent \
                 back to the caller (\"ring full\"), who queues or drops."
            ))
            .fix("spread the work: another device, or more instances (NumberCyInstances; one per processor that sends)")
            .fix("Intel's driver: raise CyNumConcurrentSymRequests in /etc/*_dev*.conf, then adf_ctl restart")
    })
}

fn counted(facts: &Facts<'_>, name: &str, count: impl Fn(&Device) -> Option<u64>) -> Vec<String> {
    facts
        .devices()
        .filter_map(|device| {
            let count = count(device).filter(|count| *count > 0)?;
            Some(format!("{}/qat_ras/{name}: {count}", folder(device)))
        })
        .collect()
}

pub(super) fn errors_fatal(facts: &Facts<'_>) -> Option<Found> {
    let seen = counted(facts, "errors_fatal", |device| {
        // Intel's driver counts in its table of firmware counters, and tells no kinds apart.
        let events = device.engines.iter().filter_map(|engine| engine.ras_events);
        let events = events.reduce(u64::saturating_add);
        device.errors.map(|errors| errors.fatal).or(events)
    });
    (!seen.is_empty()).then(|| {
        Found::critical("a QAT device counts fatal errors")
            .seen(seen)
            .means("Each took the device down, with every request that it had: a hardware fault, or memory or a bus that damages data.")
            .fix("dmesg | grep -i -e qat -e AER -e EDAC")
            .fix("if they come again after a reset: exchange the device; until then take its services away from it")
            .fix("echo 1 > /sys/bus/pci/devices/…/qat_ras/reset_error_counters        # once it is dealt with")
    })
}

pub(super) fn errors_nonfatal(facts: &Facts<'_>) -> Option<Found> {
    let seen = counted(facts, "errors_nonfatal", |device| {
        device.errors.map(|errors| errors.nonfatal)
    });
    (!seen.is_empty()).then(|| {
        Found::warning("a QAT device counts errors that it could not correct")
            .seen(seen)
            .means("Requests failed; the device went on.")
            .fix("dmesg | grep -i -e qat -e AER")
            .fix("echo 1 > /sys/bus/pci/devices/…/qat_ras/reset_error_counters, and watch whether they come again")
    })
}

pub(super) fn errors_correctable(facts: &Facts<'_>) -> Option<Found> {
    let seen = counted(facts, "errors_correctable", |device| {
        device.errors.map(|errors| errors.correctable)
    });
    (!seen.is_empty()).then(|| {
        Found::notice("a QAT device counts errors that it corrected")
            .seen(seen)
            .means("Nothing was lost. Many of them announce those that cannot be corrected.")
            .fix("watch whether they grow: millrace watch")
    })
}

pub(super) fn auto_reset(facts: &Facts<'_>) -> Option<Found> {
    let off: Vec<&Device> = facts
        .devices()
        .filter(|device| device.resets_itself == Some(false))
        .collect();
    let first = off.first()?;
    Some(
        Found::notice("a QAT device stays down after a fatal error")
            .seen(
                off.iter()
                    .map(|device| format!("{}/qat/auto_reset: off", folder(device))),
            )
            .means("The default: it is down until somebody resets it by hand.")
            .fix(format!("echo on > /{}/qat/auto_reset", folder(first))),
    )
}

pub(super) fn link(facts: &Facts<'_>) -> Option<Found> {
    let slow: Vec<String> = facts
        .devices()
        .filter_map(|device| {
            let link = device
                .link
                .as_ref()
                .filter(|link| link.below_its_possibilities())?;
            Some(format!(
                "{}: {} x{}, could be {} x{}",
                folder(device),
                link.speed,
                link.width,
                link.possible_speed,
                link.possible_width
            ))
        })
        .collect();
    (!slow.is_empty()).then(|| {
        Found::warning("the bus of a QAT device is slower than the device")
            .seen(slow)
            .means("Bulk encryption is bound by the bus: half the lanes are half the bytes. Private-key operations do not notice.")
            .fix("another slot (all lanes wired, directly at a processor), or the slot's speed in the BIOS (not \"Gen1\")")
    })
}

pub(super) fn numa(facts: &Facts<'_>) -> Option<Found> {
    let nodes: Vec<u32> = facts
        .devices()
        .filter_map(|device| device.numa_node)
        .collect();
    if nodes.is_empty() {
        return None;
    }
    let far: Vec<String> = facts
        .system
        .card_nodes
        .iter()
        .filter(|(_, node)| !nodes.contains(node))
        .map(|(name, node)| format!("sys/class/net/{name}/device/numa_node: {node}"))
        .collect();
    (!far.is_empty()).then(|| {
        Found::notice("no QAT device is on the NUMA node of a network card")
            .seen(far)
            .seen(nodes.iter().map(|node| format!("a QAT device is on node {node}")))
            .means("Packets cross the sockets' link twice: once to the device and once back.")
            .fix("put the card and the device at one socket, or steer the card's queues and the program to the device's node (numactl, RPS)")
    })
}

pub(super) fn idle(facts: &Facts<'_>) -> Option<Found> {
    let up: Vec<&Device> = facts
        .devices()
        .filter(|device| device.up == Some(true) && !device.engines.is_empty())
        .collect();
    let busy = up.iter().find(|device| device.requests() > 0)?;
    // The start of a device already takes some; a device for compression is not for this work.
    let same = |device: &&&Device| {
        device.requests() == 0 && device.serves_the_kernel() == busy.serves_the_kernel()
    };
    let idle: Vec<&&Device> = up.iter().filter(same).collect();
    (!idle.is_empty()).then(|| {
        Found::notice("one QAT device does all the work")
            .seen([format!("{}: {} requests", busy.address, busy.requests())])
            .seen(idle.iter().map(|device| format!("{}: 0 requests", device.address)))
            .means("The other one is up and idle: the capacity is that of one device.")
            .fix("kernel (IPsec): an association stays at the device that was near and least used when it was made; more associations, made on processors of both nodes, spread")
            .fix("user space: instances of every device in the program's section of /etc/*_dev*.conf, or a virtual function of each")
    })
}

pub(super) fn unread(facts: &Facts<'_>) -> Option<Found> {
    let blind: Vec<&Device> = facts
        .devices()
        .filter(|device| {
            device.driver.is_some() && device.up != Some(false) && device.engines.is_empty()
        })
        .collect();
    if blind.is_empty() {
        return None;
    }
    let lockdown = facts.system.lockdown.as_deref();
    let locked = lockdown.filter(|mode| *mode != "none");
    let found = Found::notice("the counters of a QAT device cannot be read")
        .seen(
            blind
                .iter()
                .map(|device| format!("sys/kernel/debug/qat_*_{}: not readable", device.address)),
        )
        .seen(locked.map(|mode| format!("sys/kernel/security/lockdown: {mode}")))
        .means("Whether the device does anything, answers its heartbeat or has lost requests is not known.");
    Some(if locked.is_some() {
        found.fix("the kernel is locked down (secure boot): on kernels that forbid files of mode 0400 in debugfs there is no other way to the counters")
    } else {
        found.fix("run it as root; mount -t debugfs none /sys/kernel/debug if it is not mounted")
    })
}

pub(super) fn no_kernel_instances(facts: &Facts<'_>) -> Option<Found> {
    let all: Vec<&Device> = facts.devices().collect();
    let barren: Vec<&&Device> = all
        .iter()
        .filter(|device| device.serves_the_kernel() == Some(false))
        .collect();
    let first = barren.first()?;
    let some_serve = all
        .iter()
        .any(|device| device.serves_the_kernel() == Some(true));
    let title = "a QAT device is set up without instances for the kernel";
    let found = if some_serve {
        Found::notice(title)
    } else {
        Found::warning(title)
    };
    let found = found
        .seen(barren.iter().map(|device| {
            format!(
                "{}/qat/cfg_services: {}",
                folder(device),
                device.services.join(";")
            )
        }))
        .means(
            "IPsec and disk encryption do not reach it, though it is \"up\": `sym` alone is for user space \
             and virtual functions, `dc` is compression. By default every second device is `dc`.",
        );
    Some(match first.generation {
        Generation::Gen1 | Generation::Gen2 => found.fix(
            "/etc/*_dev*.conf: ServicesEnabled = cy, NumberCyInstances in [KERNEL] above 0; adf_ctl restart",
        ),
        _ => {
            let folder = folder(first);
            found
                .fix(format!("echo down > /{folder}/qat/state        # refused while virtual functions are in use"))
                .fix(format!("echo 'sym;asym' > /{folder}/qat/cfg_services"))
                .fix(format!("echo up > /{folder}/qat/state"))
        }
    })
}

pub(super) fn small_packets(facts: &Facts<'_>) -> Option<Found> {
    let qat = facts.qat()?;
    let module: Vec<&String> = qat
        .user_space
        .iter()
        .filter(|file| file.contains("qatengine") || file.contains("qatprovider"))
        .collect();
    let set = facts
        .settings(
            Program::Openssl,
            "SET_CRYPTO_SMALL_PACKET_OFFLOAD_THRESHOLD",
        )
        .next();
    if module.is_empty() || set.is_some() || !facts.configured(Program::Openvpn) {
        return None;
    }
    Some(
        Found::warning("QAT's engine leaves every packet of OpenVPN to the processor")
            .seen(module.into_iter().cloned())
            .seen(["no SET_CRYPTO_SMALL_PACKET_OFFLOAD_THRESHOLD in openssl.cnf: the default is 2048 bytes".to_owned()])
            .means(
                "A packet of a VPN has at most about 1500 bytes. By default AES-GCM and ChaCha20-Poly1305 are \
                 not given to the device at all (QAT_Engine, docs/qat_hw_algo.md). Below the threshold the \
                 processor is also faster: lowering it is no gain by itself.",
            )
            .fix("measure first: millrace inspect ceiling; OpenVPN's own cost is the tunnel, not the cipher")
            .fix("prefer the kernel's data channel (DCO) to an engine"),
    )
}

pub(super) fn hugepages(facts: &Facts<'_>) -> Option<Found> {
    let qat = facts.qat()?;
    let module = qat.modules.iter().find(|name| *name == "usdm_drv");
    let library = qat.user_space.iter().find(|file| file.contains("libusdm"));
    let total = facts.system.memory.get("HugePages_Total")?;
    let user = module.or(library).filter(|_| *total == 0)?;
    Some(
        Found::notice("QAT's memory driver has no huge pages")
            .seen([user.clone(), "proc/meminfo: HugePages_Total 0".to_owned()])
            .means("User-space requests use memory in pages of 4 KiB: more translations per request. It works without.")
            .fix("sysctl vm.nr_hugepages=1024        # 2 GiB; in /etc/sysctl.d to keep it")
            .fix("modprobe usdm_drv max_huge_pages=1024 max_huge_pages_per_process=16"),
    )
}
