// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Facts about whole machines with accelerators: one fixture each.

use std::path::Path;
use std::time::Duration;

use millrace_hostfs::Root;
use millrace_inspect::accelerators;
use millrace_inspect::kernel;
use millrace_inspect::network;
use millrace_inspect::offload_status::{self, Accelerated, Used};
use millrace_inspect::qat::formats::FirmwareHeartbeat;
use millrace_inspect::qat::ids::Generation;
use millrace_inspect::qat::{self, Qat};

fn root(fixture: &str) -> Root {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(fixture);
    Root::open(folder).expect(fixture)
}

fn qat(fixture: &str) -> Qat {
    qat::section(&root(fixture)).known.expect(fixture)
}

#[test]
fn atom_c3000_with_intels_driver_serves_ipsec() {
    let qat = qat("atom-c3000");
    assert_eq!(qat.devices.len(), 2);
    assert!(qat.service && qat.configurations.len() == 2);
    assert_eq!(qat.modules, ["qat_c3xxx", "intel_qat", "usdm_drv"]);
    let first = &qat.devices[0];
    assert_eq!((first.model.as_str(), first.generation), ("C3xxx", Generation::Gen2));
    assert_eq!((first.up, first.engines.len()), (Some(true), 6));
    assert_eq!((first.requests(), first.unanswered()), (1_563_855, 0));
    assert_eq!(first.serves_the_kernel(), Some(true));
    assert_eq!(qat.devices[1].requests(), 0, "the second one is idle");
    assert_eq!(qat.interrupts, Some(8 * (120_034 + 3)));
    let kernel = kernel::section(&root("atom-c3000")).known.expect("/proc/crypto");
    assert_eq!(kernel.devices[0].passed_over_for, []);
    let gcm = kernel.choices.iter().find(|choice| choice.algorithm == "rfc4106(gcm(aes))");
    let gcm = gcm.expect("it is asked for");
    assert_eq!(gcm.candidates[0].driver, "rfc4106-gcm-aesni", "AES-GCM never goes to the device");
}

#[test]
fn card_8970_is_up_but_the_kernel_prefers_the_processor() {
    let qat = qat("qat-8970");
    assert_eq!(qat.devices.len(), 3);
    assert!(qat.devices.iter().all(|device| device.up == Some(true)));
    assert!(qat.devices.iter().all(|device| device.heartbeat == Some(FirmwareHeartbeat::Alive)));
    assert!(qat.devices[2].link.as_ref().is_some_and(qat::PcieLink::below_its_possibilities));
    assert!(!qat.devices[0].link.as_ref().is_some_and(qat::PcieLink::below_its_possibilities));
    let kernel = kernel::section(&root("qat-8970")).known.expect("/proc/crypto");
    let device = &kernel.devices[0];
    let passed = device.passed_over_for.iter().find(|passed| passed.algorithm == "cbc(aes)");
    let passed = passed.expect("cbc(aes)");
    assert_eq!((passed.priority, passed.instead_priority), (100, 400));
    assert!(device.taken_for.contains(&"rsa".to_owned()));
}

#[test]
fn card_4xxx_has_services_functions_and_telemetry() {
    let qat = qat("qat-4xxx-16vfs");
    let functions = qat.devices.iter().filter(|device| device.virtual_function);
    assert_eq!(functions.clone().count(), 16);
    assert!(functions.clone().all(|device| device.parent.as_deref() == Some("0000:6b:00.0")));
    assert_eq!(functions.filter(|device| device.driver.is_some()).count(), 4);
    let of = |address: &str| {
        let found = qat.devices.iter().find(|device| device.address == address);
        found.expect(address)
    };
    let (crypto, compression) = (of("0000:6b:00.0"), of("0000:70:00.0"));
    assert_eq!(crypto.services, ["sym", "asym"]);
    assert_eq!(crypto.serves_the_kernel(), Some(true));
    assert_eq!(compression.serves_the_kernel(), Some(false), "odd devices compress");
    assert_eq!(
        crypto.functions.map(|functions| (functions.enabled, functions.possible)),
        Some((16, 16))
    );
    assert_eq!(crypto.telemetry["util_pke0"], 38);
    assert!(compression.telemetry.is_empty(), "telemetry that is off is not read");
    assert_eq!((crypto.resets_itself, compression.resets_itself), (Some(false), Some(true)));
    let others = accelerators::section(&root("qat-4xxx-16vfs")).known.expect("accelerators");
    assert_eq!((others.dsa[0].enabled, others.iaa[0].enabled), (true, false));
    let network = network::section(&root("qat-4xxx-16vfs")).known.expect("network");
    assert!(
        network
            .interfaces
            .iter()
            .any(|interface| interface.kind == network::InterfaceKind::Wireguard)
    );
}

#[test]
fn device_that_is_down_is_reported() {
    let qat = qat("qat-down");
    let device = &qat.devices[0];
    assert_eq!((device.up, device.heartbeat, device.engines.len()), (Some(false), None, 0));
    assert_eq!(
        device.serves_the_kernel(),
        Some(false),
        "sym alone has no instances for the kernel"
    );
}

#[test]
fn silent_heartbeat_and_lost_requests_are_reported() {
    let qat = qat("qat-heartbeat");
    let device = &qat.devices[0];
    assert_eq!(
        (device.heartbeat, device.heartbeats_failed),
        (Some(FirmwareHeartbeat::Silent), Some(17))
    );
    assert_eq!(device.unanswered(), 512);
    let rings: Vec<_> =
        device.rings.iter().map(|ring| (ring.name.as_str(), ring.used_bytes)).collect();
    assert_eq!(rings, [("bank_01/ring_00", 0xfe00)], "a ring without reader is nearly full");
    assert_eq!(device.errors.map(|errors| errors.fatal), Some(1));
}

fn watched(fixture: &str) -> Used {
    let root = root(fixture);
    let before = offload_status::CounterReading::read(&root);
    let watched =
        before.watched(&offload_status::CounterReading::read(&root), Duration::from_secs(1));
    let network = network::section(&root).known;
    offload_status::section(&root, network.as_ref(), Some(watched)).known.expect(fixture)
}

#[test]
fn router_with_dev_crypto_and_openvpn() {
    let others = accelerators::section(&root("devcrypto-router")).known.expect("accelerators");
    assert!(others.dev_crypto);
    let kernel = kernel::section(&root("devcrypto-router")).known.expect("/proc/crypto");
    assert_eq!(kernel.devices[0].device, "Marvell CESA");
    assert!(kernel.devices[0].taken_for.contains(&"cbc(aes)".to_owned()));
    let used = watched("devcrypto-router");
    let tunnel = &used.subjects[0];
    assert!(tunnel.what.starts_with("OpenVPN"));
    assert_eq!(tunnel.device.as_deref(), Some("the kernel (/dev/crypto)"));
    assert_ne!(tunnel.accelerated, Accelerated::Yes, "a loaded engine proves nothing");
}

#[test]
fn h100_host_with_a_pooled_nginx() {
    let others = accelerators::section(&root("h100-host")).known.expect("accelerators");
    assert_eq!(others.nvidia_driver.as_deref(), Some("580.159.04"));
    let gpu = &others.gpus[0];
    assert_eq!(gpu.model.as_deref(), Some("NVIDIA H100 80GB HBM3"));
    assert_eq!(gpu.compute_capability.as_deref(), Some("9.0"));
    let used = watched("h100-host");
    let nginx = used.subjects.iter().find(|subject| subject.what.starts_with("nginx"));
    assert_eq!(nginx.and_then(|nginx| nginx.device.as_deref()), Some("a Millrace pool"));
    let ktls =
        used.subjects.iter().find(|subject| subject.what == "kernel TLS").expect("kernel TLS");
    assert_eq!(ktls.accelerated, Accelerated::No);
}
