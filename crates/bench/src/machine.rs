// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Which machine, kernel, versions and commit a figure belongs to.

use std::env;
use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::process::{output_of, which};

/// Instruction-set extensions that decide how fast the operations are.
const FLAGS_THAT_MATTER: &[&str] = &[
    "avx2",
    "adx",
    "bmi2",
    "avx512f",
    "avx512ifma",
    "vaes",
    "sha_ni",
    "asimd",
    "sve",
];

/// A machine and what runs on it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) cpu_flags: Vec<String>,
    pub(crate) hypervisor: bool,
    pub(crate) memory_mib: u64,
    pub(crate) kernel: String,
    pub(crate) system: String,
    pub(crate) openssl: String,
    pub(crate) haproxy: String,
    pub(crate) nginx: String,
    pub(crate) millrace: String,
    pub(crate) commit: String,
    pub(crate) date: String,
}

impl Machine {
    /// Describes this machine.
    pub(crate) fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let flags = field(&cpuinfo, "flags").or_else(|| field(&cpuinfo, "Features"));
        let flags: Vec<&str> = flags.unwrap_or_default().split_ascii_whitespace().collect();
        Self {
            cpu: field(&cpuinfo, "model name")
                .unwrap_or("unknown")
                .to_owned(),
            cores: cpuinfo
                .lines()
                .filter(|line| line.starts_with("processor"))
                .count(),
            cpu_flags: FLAGS_THAT_MATTER
                .iter()
                .filter(|flag| flags.contains(flag))
                .map(|flag| (*flag).to_owned())
                .collect(),
            hypervisor: flags.contains(&"hypervisor"),
            memory_mib: memory_mib(),
            kernel: first_line("/proc/sys/kernel/osrelease"),
            system: system(),
            openssl: version("openssl", &["version"]),
            haproxy: version("haproxy", &["-v"]),
            nginx: version("nginx", &["-v"]),
            millrace: env!("CARGO_PKG_VERSION").to_owned(),
            commit: commit(),
            date: version("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
        }
    }

    /// Two lines for people.
    pub(crate) fn describe(&self) -> String {
        let virtualised = if self.hypervisor {
            ", virtual machine"
        } else {
            ""
        };
        format!(
            "{} ({} cores{virtualised}; {}), {} MiB, Linux {}, {}\n\
             {}; {}; {}; millrace {} at {}; {}",
            self.cpu,
            self.cores,
            self.cpu_flags.join(" "),
            self.memory_mib,
            self.kernel,
            self.system,
            self.openssl,
            self.haproxy,
            self.nginx,
            self.millrace,
            self.commit,
            self.date,
        )
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text
        .lines()
        .find(|line| line.split(':').next().is_some_and(|k| k.trim() == name))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

fn first_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").to_owned()
}

fn memory_mib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib =
        field(&text, "MemTotal").and_then(|value| value.split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

fn system() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(
        || "unknown".to_owned(),
        |name| name.trim_matches('"').to_owned(),
    )
}

fn version(program: &str, args: &[&str]) -> String {
    let text = which(program).and_then(|path| output_of(&path, args));
    let first = text.as_deref().and_then(|text| text.lines().next());
    first.map_or_else(|| format!("no {program}"), str::to_owned)
}

/// The commit of the working tree that holds the running binary, with a mark if the tree differs.
fn commit() -> String {
    let found = env::current_exe().ok().and_then(|binary| {
        let folder = binary.parent()?.to_str()?.to_owned();
        let git = which("git")?;
        output_of(
            Path::new(&git),
            &[
                "-C",
                &folder,
                "describe",
                "--always",
                "--dirty",
                "--abbrev=12",
            ],
        )
    });
    found.unwrap_or_else(|| "an unknown commit".to_owned())
}
