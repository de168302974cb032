// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The machine as a whole: maker and model, operating system, kernel, memory. Host name and serial numbers
//! are never read.

use std::collections::BTreeMap;

use millrace_hostfs::Root;
use schemars::JsonSchema;
use serde::Serialize;

use crate::network::counters;
use crate::section::{Section, SectionReader};

/// A machine and its system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Machine {
    /// Maker and model
    pub product: Option<String>,
    /// Name and version of the operating system
    pub system: Option<String>,
    /// The kernel's release
    pub kernel: Option<String>,
    /// Memory managed by the kernel, in KiB
    pub memory_kib: Option<u64>,
}

/// Files with the name of the operating system; the first existing one counts.
const RELEASES: &[&str] = &["etc/os-release", "usr/lib/os-release", "etc/openwrt_release"];

/// Reads the facts about the machine.
#[must_use]
pub fn section(root: &Root) -> Section<Machine> {
    let mut reader = SectionReader::new(root);
    let system = RELEASES.iter().find_map(|path| reader.text_if_there(path));
    let kernel = reader.word("proc/sys/kernel/osrelease");
    let machine = Machine {
        product: product(&mut reader),
        system: system.and_then(|text| pretty_name(&text)),
        kernel: kernel.or_else(|| kernel_of_modules(&mut reader)),
        memory_kib: memory(&mut reader).get("MemTotal").copied(),
    };
    let known = machine != Machine::default();
    reader.section(known.then_some(machine))
}

fn product(reader: &mut SectionReader<'_>) -> Option<String> {
    if let Some(model) = reader.word("proc/device-tree/model") {
        return Some(model);
    }
    let mut field = |name: &str| {
        let text = reader.text_if_there(&format!("sys/class/dmi/id/{name}"))?;
        let text = text.trim();
        // Placeholders that makers of boards left in.
        let empty = ["", "To Be Filled By O.E.M.", "Default string", "System Product Name"];
        (!empty.contains(&text)).then(|| text.to_owned())
    };
    let words: Vec<String> =
        [field("sys_vendor"), field("product_name")].into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join(" "))
}

/// `PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"`, or OpenWrt's `DISTRIB_DESCRIPTION='…'`.
fn pretty_name(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| {
        let value = line.strip_prefix("PRETTY_NAME=");
        value.or_else(|| line.strip_prefix("DISTRIB_DESCRIPTION="))
    })?;
    let value = value.trim().trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_owned())
}

/// The kernel release of a tree that does not run: the only folder of modules, if there is just one.
fn kernel_of_modules(reader: &mut SectionReader<'_>) -> Option<String> {
    let mut releases = reader.names("lib/modules");
    (releases.len() == 1).then(|| releases.swap_remove(0))
}

/// The numbers of `/proc/meminfo` by name: KiB, or pages.
pub(crate) fn memory(reader: &mut SectionReader<'_>) -> BTreeMap<String, u64> {
    let text = reader.text_if_there("proc/meminfo").unwrap_or_default();
    let rows = counters(&text).into_iter();
    rows.map(|(name, value)| (name.trim_end_matches(':').to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_the_system_is_read_from_its_release_file() {
        assert_eq!(
            pretty_name("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n").as_deref(),
            Some("Debian GNU/Linux 12 (bookworm)")
        );
        assert_eq!(
            pretty_name("DISTRIB_DESCRIPTION='OpenWrt 23.05.3 r23809'\n").as_deref(),
            Some("OpenWrt 23.05.3 r23809")
        );
        assert_eq!(pretty_name("PRETTY_NAME=\n"), None);
    }
}
