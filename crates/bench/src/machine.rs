// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Machine, kernel, versions and commit to which a figure belongs.

use std::env;
use std::process::Command;

use millrace_hostfs::child::find_program;
use millrace_hostfs::{Root, TABLE_BYTES};
use millrace_inspect::cpu::CpuInfo;
use millrace_inspect::machine;
use schemars::JsonSchema;
use serde::Serialize;

use crate::process::output_of;

/// Instruction-set extensions that decide how fast the operations are.
#[rustfmt::skip]
const FLAGS_THAT_MATTER: [&str; 9] = [
    "avx2", "adx", "bmi2", "avx512f", "avx512ifma", "vaes", "sha_ni", "asimd", "sve",
];

/// A machine and what runs on it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct MachineRecord {
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

impl MachineRecord {
    /// Reads processor, memory, kernel and versions; what cannot be read says `unknown`.
    pub(crate) fn here() -> Self {
        let root = Root::open("/").ok();
        let read = |root: &Root| root.text("proc/cpuinfo", TABLE_BYTES).ok();
        let cpuinfo = CpuInfo::parse(&root.as_ref().and_then(read).unwrap_or_default());
        let machine = root.and_then(|root| machine::section(&root).known);
        let machine = machine.unwrap_or_default();
        let unknown = || "unknown".to_owned();
        Self {
            cpu: cpuinfo.field("model name").unwrap_or("unknown").to_owned(),
            cores: cpuinfo.processors,
            cpu_flags: FLAGS_THAT_MATTER
                .iter()
                .filter(|flag| cpuinfo.flags.contains(**flag))
                .map(|flag| (*flag).to_owned())
                .collect(),
            hypervisor: cpuinfo.flags.contains("hypervisor"),
            memory_mib: machine.memory_kib.unwrap_or(0) / 1024,
            kernel: machine.kernel.unwrap_or_else(unknown),
            system: machine.system.unwrap_or_else(unknown),
            openssl: version("openssl", &["version"]),
            haproxy: version("haproxy", &["-v"]),
            nginx: version("nginx", &["-v"]),
            millrace: env!("CARGO_PKG_VERSION").to_owned(),
            commit: commit(),
            date: version("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
        }
    }

    /// Whether the libraries use AVX-512 IFMA here: the processor has it, and no mask turns it off.
    pub(crate) fn uses_ifma(&self) -> bool {
        let mask = env::var("OPENSSL_ia32cap").unwrap_or_default();
        let masked = mask.split(':').any(|word| word == "~0x200000");
        self.cpu_flags.iter().any(|flag| flag == "avx512ifma") && !masked
    }

    /// Two lines of text.
    pub(crate) fn describe(&self) -> String {
        let Self { cpu, cores, memory_mib, kernel, system, .. } = self;
        let virtualised = if self.hypervisor { ", virtual machine" } else { "" };
        let versions = [&self.openssl, &self.haproxy, &self.nginx].map(String::as_str);
        format!(
            "{cpu} ({cores} cores{virtualised}; {}), {memory_mib} MiB, Linux {kernel}, {system}\n\
             {}; millrace {} at {}; {}",
            self.cpu_flags.join(" "),
            versions.join("; "),
            self.millrace,
            self.commit,
            self.date,
        )
    }
}

fn version(program: &str, args: &[&str]) -> String {
    let path = find_program(program);
    path.map_or_else(
        || format!("no {program}"),
        |path| first_line(program, Command::new(path).args(args)),
    )
}

/// The first line that a program prints; `no PROGRAM` if it does not run.
pub(crate) fn first_line(program: &str, command: &mut Command) -> String {
    let text = output_of(program, command).ok();
    let first = text.and_then(|text| Some(text.lines().next()?.to_owned()));
    first.unwrap_or_else(|| format!("no {program}"))
}

/// The commit of the working tree that holds the running binary, with a mark if the tree differs.
fn commit() -> String {
    let found = env::current_exe().ok().and_then(|binary| {
        let mut git = Command::new("git");
        git.arg("-C").arg(binary.parent()?);
        git.args(["describe", "--always", "--dirty", "--abbrev=12"]);
        Some(output_of("git", &mut git).ok()?.trim().to_owned())
    });
    found.unwrap_or_else(|| "an unknown commit".to_owned())
}
