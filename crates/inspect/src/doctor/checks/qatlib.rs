// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Intel's user-space library for QAT (qatlib): its versions, its manager, and the virtual functions that processes
//! hold.

use std::collections::BTreeMap;

use crate::doctor::{Facts, Finding};
use crate::qat::library::{
    CRASH_AFTER_FAILURES, NEED_LINUX_6_1_149, is_linux_6_1_before_149, release,
};
use crate::qat::{FunctionHolder, QatDevice};

/// Memory that the library locks for each virtual function, beside the process's own buffers.
///
/// Source: the mappings of qatlib 24.02 and 26.08 (docs/backends/qat.md).
const LOCKED_BYTES: u64 = 16 << 20;

/// Installed libraries with their releases, on a machine with QAT: files, and links that are resolved already.
fn installed<'a>(facts: &Facts<'a>) -> Vec<(&'a str, &'static str)> {
    let qat = facts.qat().filter(|qat| !qat.devices.is_empty());
    let files = qat.map_or(&[][..], |qat| &qat.user_space);
    files.iter().filter_map(|file| Some((file.as_str(), release(file)?))).collect()
}

/// Installed libraries of one of these releases, as evidence.
fn of_releases(facts: &Facts<'_>, releases: &[&str]) -> Vec<String> {
    let all = installed(facts).into_iter();
    all.filter(|(_, release)| releases.contains(release))
        .map(|(file, release)| format!("{file}: qatlib {release}"))
        .collect()
}

/// Virtual functions that programs in user space can have.
fn functions<'a>(facts: &Facts<'a>) -> Vec<&'a QatDevice> {
    let devices = facts.qat().map_or(&[][..], |qat| &qat.devices);
    devices
        .iter()
        .filter(|device| device.virtual_function && device.driver.as_deref() == Some("vfio-pci"))
        .collect()
}

pub(super) fn kernel(facts: &Facts<'_>) -> Option<Finding> {
    let version = facts.system.kernel_version.as_deref()?;
    if !is_linux_6_1_before_149(version) {
        return None;
    }
    let finding =
        Finding::critical().evidence(of_releases(facts, &NEED_LINUX_6_1_149)).if_evident()?;
    Some(
        finding
            .evidence([format!("proc/version: {version}")])
            .impact("The library finds no services at the device (\"Failed to get enabled services\"): no program in user space gets an instance.")
            .advise("Install Linux 6.1.149 or later, or qatlib 26.02 or later."),
    )
}

pub(super) fn crashes(facts: &Facts<'_>) -> Option<Finding> {
    Finding::warning()
        .evidence(of_releases(facts, &CRASH_AFTER_FAILURES))
        .impact("A program that polls the library after a device failed with requests in flight ends with SIGSEGV. Millrace stops the library before it polls again; other programs (qatengine) may not.")
        .advise("Install qatlib 26.08 or later.")
        .if_evident()
}

pub(super) fn manager_missing(facts: &Facts<'_>) -> Option<Finding> {
    let manager = facts.system.qat_manager.as_ref()?;
    let functions = functions(facts);
    if manager.pid.is_some() || functions.is_empty() {
        return None;
    }
    Some(
        Finding::notice()
            .evidence([
                format!("{}: installed, does not run", manager.file),
                format!("{} virtual function(s) at vfio-pci", functions.len()),
            ])
            .impact("Each process takes virtual functions by itself, the first one up to six: later ones may find none.")
            .advise("Set QAT_POLICY=1 for each program, one virtual function of each device; Millrace does so (backend.qat.functions).")
            .run("systemctl enable --now qat        # or let the manager hand them out"),
    )
}

pub(super) fn manager_version(facts: &Facts<'_>) -> Option<Finding> {
    let manager = facts.system.qat_manager.as_ref()?;
    let pid = manager.pid?;
    let replaced = manager
        .replaced
        .then(|| format!("proc/{pid}/exe: {} was replaced after the start", manager.file));
    let own = manager.release.as_deref();
    let others = installed(facts).into_iter().filter_map(|(file, release)| {
        let own = own.filter(|own| *own != release)?;
        Some(format!("{}: {own}; {file}: {release}", manager.file))
    });
    Finding::warning()
        .evidence(replaced.into_iter().chain(others))
        .impact("The manager refuses programs with a library of another release: they get no virtual function.")
        .advise("Install the manager and the library of one release.")
        .run("systemctl restart qat        # programs that use QAT have to be restarted, too")
        .if_evident()
}

/// The processes that hold virtual functions, with the number that each holds.
fn holders<'a>(functions: &[&'a QatDevice]) -> BTreeMap<u32, (&'a FunctionHolder, u64)> {
    let mut found = BTreeMap::new();
    for holder in functions.iter().flat_map(|function| &function.holders) {
        found.entry(holder.pid).or_insert((holder, 0)).1 += 1;
    }
    found
}

pub(super) fn locked_memory(facts: &Facts<'_>) -> Option<Finding> {
    let functions = functions(facts);
    let short = holders(&functions).into_values().filter_map(|(holder, count)| {
        // No number: unlimited.
        let limit: u64 = holder.locked_memory.as_deref()?.parse().ok()?;
        let FunctionHolder { pid, name, .. } = holder;
        (limit < LOCKED_BYTES * count).then(|| {
            format!(
                "proc/{pid}/limits: {name}: Max locked memory {limit}, {count} virtual function(s)"
            )
        })
    });
    Finding::warning()
        .evidence(short)
        .impact("The library locks 16 MiB for each virtual function, and programs their buffers: mapping them fails with \"Cannot allocate memory\", and the program starts without the device.")
        .advise("`systemctl edit SERVICE`, then: [Service] LimitMEMLOCK=infinity. Containers: the runtime's limit, or the capability IPC_LOCK.")
        .if_evident()
}

pub(super) fn functions_taken(facts: &Facts<'_>) -> Option<Finding> {
    let functions = functions(facts);
    if functions.iter().any(|function| function.holders.is_empty()) {
        return None;
    }
    let held = holders(&functions).into_values();
    Finding::notice()
        .evidence(held.map(|(holder, count)| {
            let FunctionHolder { pid, name, .. } = holder;
            format!("{name} (process {pid}) holds {count} of {}", functions.len())
        }))
        .impact("Another program that wants QAT in user space finds no virtual function.")
        .advise("Give each program fewer (QAT_POLICY; Millrace: backend.qat.functions), or enable more: `millrace device virtual-functions`.")
        .if_evident()
}
