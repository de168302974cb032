// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The few facts of a report that matter for decisions, with their evidence in words.

use super::software::{InstalledSoftware, since};
use super::{AdviseRequest, Subject};
use crate::architecture::Architecture;
use crate::cpu::State;
use crate::kernel::crypto::ComputeSite;
use crate::kernel::{AlgorithmCandidate, aes_modules};
use crate::libcrypto::{Library, Maker, version_numbers};
use crate::network::InterfaceKind;
use crate::qat::QatDevice;
use crate::qat::formats::FirmwareHeartbeat;
use crate::report::Report;

/// The kernel's name for IPsec's AES-CBC with HMAC-SHA-256.
const CBC_SHA256: &str = "authenc(hmac(sha256),cbc(aes))";

/// The kernel's name for IPsec's AES-GCM.
const GCM: &str = "rfc4106(gcm(aes))";

/// Facts about one machine.
#[derive(Clone, Debug)]
pub(crate) struct AdviseFacts {
    /// AES as the code computes it that encrypts the packets: for IPsec the kernel's, else the processor's.
    pub(crate) aes: Aes,
    pub(crate) aes_evidence: String,
    /// The command that makes the kernel use the processor's AES instructions, where it does not.
    pub(crate) load_aes: Option<String>,
    pub(crate) qat: QatUse,
    /// The processor's model name.
    pub(crate) model: Option<String>,
    /// The device that the kernel prefers for IPsec's AES-GCM.
    pub(crate) gcm_device: Option<String>,
    /// The device other than QAT that the kernel prefers for AES-CBC.
    pub(crate) cbc_device: Option<String>,
    /// `/dev/crypto` exists.
    pub(crate) dev_crypto: bool,
    /// Number of processors; 1 if unknown.
    pub(crate) processors: usize,
    /// The kernel is in FIPS mode: approved algorithms only.
    pub(crate) fips: bool,
    /// A network card that encrypts IPsec packets.
    pub(crate) esp_card: Option<String>,
    /// The smallest MTU of the network cards.
    pub(crate) mtu: Option<u32>,
    /// Kernel TLS is loaded.
    pub(crate) kernel_tls: bool,
    /// Linux 6.16's module for OpenVPN's data channel is loaded.
    pub(crate) dco_in_tree: bool,
    /// The separate module for OpenVPN 2.6 is loaded.
    pub(crate) dco_separate: bool,
    pub(crate) kernel: Option<String>,
    /// Version of the oldest shared OpenSSL; newer features are not relied on.
    pub(crate) openssl: Option<String>,
    /// Libraries that are slower than necessary, in words.
    pub(crate) slow: Vec<String>,
    pub(crate) software: InstalledSoftware,
}

/// Implementation of AES on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aes {
    /// Several blocks at once (VAES).
    Wide,
    /// One block at once (AES-NI, Arm's extension, RISC-V Zkn, …).
    Instructions,
    /// No AES instructions: tables or bit slicing.
    None,
    /// The processor has AES instructions, but the kernel computes AES in portable code.
    Portable,
    /// The implementation is not known.
    Unknown,
}

/// Use of QAT for IPsec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QatUse {
    /// No QAT device.
    None,
    /// A device that does not serve the kernel, or not well, with the reason.
    Useless(String),
    /// The kernel prefers it for AES-CBC with HMAC-SHA-256; driver and priority.
    Serves(String),
}

impl AdviseFacts {
    /// Extracts the facts from a report.
    pub(crate) fn of(
        report: &Report,
        software: &InstalledSoftware,
        request: &AdviseRequest,
    ) -> Self {
        let (mut aes, mut aes_evidence) = aes(report);
        let mut load_aes = None;
        let in_kernel = request.subject == Subject::Ipsec && request.kernel_esp;
        if let (true, Aes::Wide | Aes::Instructions, Some(driver)) =
            (in_kernel, aes, portable_aes(report))
        {
            aes = Aes::Portable;
            aes_evidence = format!("{aes_evidence}, but the kernel computes AES with {driver}");
            let cpu = report.cpu.known.as_ref();
            let modules = aes_modules(cpu.and_then(|cpu| cpu.architecture));
            load_aes = Some(format!("modprobe -a {}", modules.join(" ")));
        }
        let machine = report.machine.known.as_ref();
        let network = report.network.known.as_ref();
        let accelerators = report.accelerators.known.as_ref();
        let libraries = report.libcrypto.known.as_ref().map_or(&[][..], |known| &known.libraries);
        let cards = network.map_or(&[][..], |known| &known.interfaces);
        let cbc = winner(report, "cbc(aes)");
        let device = |found: &AlgorithmCandidate| {
            let name = found.device.clone()?;
            let driver = &found.driver;
            let priority = found.priority;
            (found.site == ComputeSite::Device)
                .then(|| format!("{name} ({driver}, priority {priority})"))
        };
        Self {
            aes,
            aes_evidence,
            load_aes,
            qat: qat(report),
            model: report.cpu.known.as_ref().and_then(|cpu| cpu.model.clone()),
            gcm_device: winner(report, GCM).and_then(device),
            cbc_device: cbc.and_then(device).filter(|name| !name.contains("QAT")),
            dev_crypto: accelerators.is_some_and(|known| known.dev_crypto),
            processors: report.cpu.known.as_ref().and_then(|cpu| cpu.processors).unwrap_or(1),
            fips: report.kernel.known.as_ref().and_then(|known| known.fips) == Some(true),
            esp_card: cards
                .iter()
                .find(|card| card.esp_offload == Some(true))
                .map(|card| card.name.clone()),
            mtu: cards
                .iter()
                .filter(|card| card.kind == InterfaceKind::Card)
                .filter_map(|card| card.mtu_bytes)
                .min(),
            kernel_tls: network.is_some_and(|known| known.ktls.is_some()),
            dco_in_tree: network.is_some_and(|known| known.openvpn.in_tree),
            dco_separate: network.is_some_and(|known| known.openvpn.out_of_tree),
            kernel: machine.and_then(|known| known.kernel.clone()),
            openssl: openssl(libraries),
            slow: slow(libraries),
            software: software.clone(),
        }
    }

    /// Whether the kernel's release is known and at least this.
    pub(crate) fn kernel_since(&self, wanted: [u32; 3]) -> bool {
        since(self.kernel.as_deref(), wanted)
    }

    /// Whether every shared OpenSSL is known and at least this.
    pub(crate) fn openssl_since(&self, wanted: [u32; 3]) -> bool {
        since(self.openssl.as_deref(), wanted)
    }

    pub(crate) fn openssl_words(&self) -> String {
        words("OpenSSL", self.openssl.as_deref())
    }
}

/// `strongSwan 6.0.1`, or that its version is unknown.
pub(crate) fn words(program: &str, version: Option<&str>) -> String {
    let known = version.map(|version| format!("{program} {version}"));
    known.unwrap_or_else(|| format!("the version of {program} is unknown"))
}

fn aes(report: &Report) -> (Aes, String) {
    let Some(cpu) = &report.cpu.known else {
        return (Aes::Unknown, "the processor is unknown".to_owned());
    };
    let design = cpu
        .design
        .clone()
        .or_else(|| cpu.model.clone())
        .unwrap_or_else(|| "the processor".to_owned());
    let has = |name: &str| cpu.state(name) == State::Present;
    let (narrow, wide): (&[&str], &str) = match cpu.architecture {
        Some(Architecture::X86 | Architecture::X86_64) => (&["aes-ni"], "vaes"),
        Some(Architecture::Riscv64 | Architecture::Riscv32) => (&["zkne", "zvkned"], "zvkned"),
        _ => (&["aes"], ""),
    };
    let states = || narrow.iter().map(|name| cpu.state(name));
    if has(wide) && states().any(|state| state == State::Present) {
        (Aes::Wide, format!("{design} has {wide}"))
    } else if let Some(name) = narrow.iter().find(|name| has(name)) {
        (Aes::Instructions, format!("{design} has {name}"))
    } else if cpu.features.is_empty() || states().all(|state| state == State::Unknown) {
        (Aes::Unknown, format!("whether {design} has AES instructions is unknown"))
    } else {
        (Aes::None, format!("{design} has no AES instructions"))
    }
}

/// The portable driver that the kernel uses for IPsec's AES-GCM. If nothing has requested AES-GCM yet, the
/// kernel will assemble it from the AES that its other modes use.
fn portable_aes(report: &Report) -> Option<&str> {
    let kernel = report.kernel.known.as_ref()?;
    if let Some(gcm) = kernel.preferred(GCM) {
        return (gcm.site == ComputeSite::Generic).then_some(&*gcm.driver);
    }
    let modes = kernel.choices.iter().filter(|choice| choice.algorithm.contains("aes"));
    let requested = modes.filter(|choice| !choice.candidates.is_empty()).count();
    let mut portable = kernel.portable_aes();
    let (_, first) = portable.next()?;
    (1 + portable.count() == requested).then_some(&*first.driver)
}

fn winner<'a>(report: &'a Report, algorithm: &str) -> Option<&'a AlgorithmCandidate> {
    report.kernel.known.as_ref()?.preferred(algorithm)
}

fn qat(report: &Report) -> QatUse {
    let devices = report.qat.known.as_ref().map_or(&[][..], |known| &known.devices);
    // Virtual functions matter only where the device behind them is not visible.
    let some_physical = devices.iter().any(|device| !device.virtual_function);
    let devices: Vec<&QatDevice> =
        devices.iter().filter(|device| !(device.virtual_function && some_physical)).collect();
    // The kernel spreads its requests: one silent device stalls tunnels, also beside a healthy one.
    let any_silent =
        devices.iter().any(|device| device.heartbeat == Some(FirmwareHeartbeat::Silent));
    let usable = devices.iter().find(|device| qat_obstacle(device).is_none());
    let Some(usable) = usable.filter(|_| !any_silent) else {
        let mut obstacles = Vec::new();
        for device in &devices {
            if let Some(obstacle) = qat_obstacle(device) {
                obstacles.push(format!("{} {obstacle}", qat_name(device)));
            }
        }
        return if obstacles.is_empty() {
            QatUse::None
        } else {
            QatUse::Useless(obstacles.join("; "))
        };
    };
    let name = qat_name(usable);
    let Some(served) = winner(report, CBC_SHA256).filter(|found| is_qat(found)) else {
        let why = format!("{name} serves no algorithm that IPsec uses in the kernel");
        return QatUse::Useless(why);
    };
    let driver = &served.driver;
    let priority = served.priority;
    match winner(report, "cbc(aes)").filter(|found| !is_qat(found)) {
        // It is first for the combination only because the processor's implementation was not requested yet.
        Some(other) if other.priority > priority => QatUse::Useless(format!(
            "{name} has priority {priority}, below {} with {}: since August 2025 the kernel prefers the \
             processor",
            other.driver, other.priority
        )),
        _ => QatUse::Serves(format!("{name}: {driver} wins with priority {priority}")),
    }
}

fn qat_name(device: &QatDevice) -> String {
    format!("QAT {} ({})", device.model, device.address)
}

/// The reason for which a device serves no IPsec of the kernel.
fn qat_obstacle(device: &QatDevice) -> Option<&'static str> {
    if device.virtual_function {
        Some("is a virtual function, for guests and user space")
    } else if device.heartbeat == Some(FirmwareHeartbeat::Silent) {
        Some("does not answer its heartbeat")
    } else if device.up == Some(false) {
        Some("is down")
    } else if device.serves_the_kernel() == Some(false) {
        Some("has no instances for the kernel")
    } else {
        None
    }
}

fn is_qat(candidate: &AlgorithmCandidate) -> bool {
    candidate.device.as_deref().is_some_and(|device| device.contains("QAT"))
}

fn openssl(libraries: &[Library]) -> Option<String> {
    let versions = libraries
        .iter()
        .filter(|library| library.identity.maker == Maker::OpenSsl && !library.inside_program)
        .filter_map(|library| library.identity.version.clone());
    versions.min_by_key(|version| version_numbers(version))
}

fn slow(libraries: &[Library]) -> Vec<String> {
    // A few are enough here; `millrace inspect openssl` lists all.
    const MANY: usize = 3;
    let mut slow = libraries.iter().filter_map(|library| {
        let first = library.slow.first()?;
        Some(format!(
            "{} is slower than this processor allows ({}): {}",
            library.path, first.what, first.evidence
        ))
    });
    let mut first: Vec<String> = slow.by_ref().take(MANY).collect();
    let more = slow.count();
    if more > 0 {
        first
            .push(format!("{more} more libraries are slow: `millrace inspect openssl` lists them"));
    }
    first
}
