// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Packets by the kernel's ciphers under OpenSSL (`kernel_bulk`): interfaces, filters, measured sizes, the processor.

use crate::cpu::State;
use crate::doctor::{ConfiguredProgram, Facts, Finding, Severity, quote};
use crate::kernel::crypto::ComputeSite;
use crate::kernel::programs::{MeasuredSystem, ProgramCiphers};
use crate::libcrypto::{Maker, version_numbers};
use crate::offload_status::program_of;

/// The first Linux that hides drivers of devices from `AF_ALG`.
const HIDES_DEVICES: (u32, u32, u32) = (7, 2, 0);

/// Lines that switch `kernel_bulk` on.
fn switched_on(facts: &Facts<'_>) -> Vec<String> {
    let lines = facts.settings(ConfiguredProgram::Openssl, "kernel_bulk");
    lines.filter(|(_, setting)| matches!(&*setting.value, "on" | "true")).map(quote).collect()
}

/// The ciphers for programs, where `kernel_bulk` is on, with the lines that say so.
fn used<'a>(facts: &Facts<'a>) -> Option<(&'a ProgramCiphers, Vec<String>)> {
    let lines = switched_on(facts);
    (!lines.is_empty()).then_some((&facts.kernel()?.programs, lines))
}

fn hides_devices<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    let release = facts.report.machine.known.as_ref()?.kernel.as_deref()?;
    (version_numbers(release) >= HIDES_DEVICES).then_some(release)
}

pub(super) fn interface(facts: &Facts<'_>) -> Option<Finding> {
    let (programs, lines) = used(facts)?;
    let others = facts.accelerators()?;
    // Denied is not absent.
    let looked = facts.report.kernel.absence(&["proc/modules", "lib/modules"], "");
    if !looked.is_empty()
        || others.dev_crypto
        || others.af_alg != Some(false)
        || !programs.af_alg_kinds.is_empty()
    {
        return None;
    }
    let finding = Finding::warning()
        .evidence(lines)
        .impact("The setting has no effect: OpenSSL does every packet itself.");
    let blocked = programs.af_alg_blocked.iter().map(|one| one.by.clone());
    if !programs.af_alg_blocked.is_empty() {
        return Some(finding.evidence(blocked).advise(
            "Remove kernel_bulk, and leave the lines: they close published holes of these sockets (CVE-2026-31431). \
             /dev/crypto (the package cryptodev) is another way to the kernel's ciphers.",
        ));
    }
    Some(
        finding
            .evidence([
                "proc/net/protocols: no ALG; no module algif_* in proc/modules and lib/modules".to_owned(),
                "dev/crypto: not there".to_owned(),
            ])
            .advise("Remove kernel_bulk, or install the package cryptodev.")
            .advise("Where the kernel can have the sockets: on one with the fix of CVE-2026-31431, algif_skcipher and algif_hash (CONFIG_CRYPTO_USER_API_SKCIPHER, _HASH). They carry AES-CBC, AES-CTR and hashes."),
    )
}

/// Whether a unit, or a file beside it, is a server's: `etc/systemd/system/nginx.service.d/x.conf`.
fn is_of_a_server(file: &str) -> bool {
    let unit = file.strip_prefix("etc/systemd/system/").unwrap_or_default();
    unit.split(['.', '@', '-', '/']).next().is_some_and(|name| program_of(name).is_some())
}

pub(super) fn filter(facts: &Facts<'_>) -> Option<Finding> {
    let (_, lines) = used(facts)?;
    if facts.accelerators()?.dev_crypto {
        return None;
    }
    let families = facts.settings(ConfiguredProgram::Systemd, "RestrictAddressFamilies");
    let refused = families.filter(|(file, _)| is_of_a_server(file)).filter(|(_, setting)| {
        let list = setting.value.trim();
        let names = |list: &str| list.split_whitespace().any(|word| word == "AF_ALG");
        list.strip_prefix('~').map_or_else(|| !list.is_empty() && !names(list), names)
    });
    let refused: Vec<String> = refused.map(quote).collect();
    let filtered = facts
        .system
        .servers
        .iter()
        .filter(|server| server.has_filter)
        .map(|server| format!("proc/{}/status: {}: Seccomp 2", server.pid, server.name));
    let severity = if refused.is_empty() { Severity::Notice } else { Severity::Warning };
    let finding = Finding::new(severity).evidence(refused).evidence(filtered).if_evident()?;
    Some(
        finding
            .evidence(lines)
            .impact("A service whose filter of system calls refuses AF_ALG gets no session of the kernel, and OpenSSL does its packets (millrace-kernel-bulk-failed counts them).")
            .advise("Remove kernel_bulk for this service and keep the filter: it also keeps what breaks into the service from the hole CVE-2026-31431.")
            .advise("Only on a kernel with the fix of CVE-2026-31431, which the distribution's advisory names: `systemctl edit SERVICE`, then [Service] RestrictAddressFamilies=AF_ALG beside the families that it has. Containers: a seccomp profile that lets AF_ALG through.")
            .advise("`openssl list -providers -verbose` in the service's environment counts messages by the kernel (millrace-kernel-bulk)."),
    )
}

/// Whether a measurement is of this machine and one of its OpenSSLs.
fn is_current(facts: &Facts<'_>, measured: &MeasuredSystem) -> bool {
    let all = facts.libraries().map_or(&[][..], |found| &found.libraries);
    let mut ours = all.iter().filter(|library| library.identity.maker == Maker::OpenSsl).peekable();
    let unknown = ours.peek().is_none();
    let is_measured = |version: &str| measured.system.contains(&format!("; OpenSSL {version} "));
    measured.here
        && (unknown
            || ours.any(|library| library.identity.version.as_deref().is_some_and(is_measured)))
}

pub(super) fn sizes(facts: &Facts<'_>) -> Option<Finding> {
    let (programs, lines) = used(facts)?;
    let file = &programs.sizes_file;
    let mut current =
        programs.measured.iter().filter(|measured| is_current(facts, measured)).peekable();
    let command =
        "millrace bench sizes --implementations openssl,af-alg,dev-crypto --save-crossovers";
    if current.peek().is_some() {
        return (!current.any(MeasuredSystem::pays)).then(|| {
            Finding::notice()
                .title("kernel_bulk is on, and the kernel was measured to be slower at every size")
                .evidence(lines)
                .evidence([format!("{file}: no size for this kernel and libcrypto")])
                .impact("OpenSSL does every packet itself; each context costs a look at the sizes.")
                .advise("Remove kernel_bulk.")
        });
    }
    let others = programs.measured.iter().map(|other| format!("{file}: {}", other.system));
    let none = programs.measured.is_empty().then(|| format!("{file}: no measured sizes"));
    Some(
        Finding::warning()
            .evidence(lines)
            .evidence(none.into_iter().chain(others))
            .impact("Nothing goes to the kernel: sizes hold for one release of the kernel, one of libcrypto and one processor, and there are none for these.")
            .run(format!("{command} /{file}"))
            .advise("Measure again after each update of the kernel or of OpenSSL."),
    )
}

pub(super) fn processor(facts: &Facts<'_>) -> Option<Finding> {
    let (_, lines) = used(facts)?;
    let cpu = facts.cpu()?;
    let instructions =
        ["aes-ni", "aes"].into_iter().find(|name| cpu.state(name) == State::Present)?;
    let kernel = facts.kernel()?;
    let hidden = hides_devices(facts)
        .filter(|_| facts.accelerators().is_some_and(|found| !found.dev_crypto));
    let modes = ["cbc(aes)", "ctr(aes)", "gcm(aes)"].into_iter();
    let taken: Vec<_> = modes.filter_map(|mode| Some((mode, kernel.preferred(mode)?))).collect();
    let on_device = taken.iter().any(|(_, taken)| taken.site == ComputeSite::Device);
    if on_device && hidden.is_none() {
        return None;
    }
    let hidden = hidden.map(|release| {
        format!("proc/sys/kernel/osrelease: {release}: AF_ALG has no drivers of devices")
    });
    Some(
        Finding::warning()
            .evidence(lines)
            .evidence([format!("proc/cpuinfo: {instructions}")])
            .evidence(taken.iter().map(|(mode, taken)| format!("proc/crypto: {mode}: {}", taken.driver)))
            .evidence(hidden)
            .impact("The kernel encrypts with the instructions that OpenSSL uses, or in slower code, and each message costs system calls beside it.")
            .advise("Remove kernel_bulk; where sizes were saved, OpenSSL was slower than it is with these instructions: `millrace inspect openssl` says why."),
    )
}
