// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The kernel's ciphers for programs: kinds of algorithms of `AF_ALG`, and the sizes from which `bench sizes
//! --save-crossovers` found the kernel faster than libcrypto, which the provider goes by (`kernel_bulk`).

use millrace_edge::bulk_sizes::{self, BulkSize};
use millrace_hostfs::openssl_cnf;
use schemars::JsonSchema;
use serde::Serialize;

use super::blocked::{self, BlockedModule};
use crate::section::SectionReader;

/// Files with the provider's settings, separated by blanks.
pub(crate) const PROVIDER_SETTINGS: &str = "etc/ssl/openssl.cnf etc/pki/tls/openssl.cnf usr/local/ssl/openssl.cnf \
                                            etc/millrace/openssl.cnf etc/millrace/client.toml";

/// Systems that are shown; the file keeps fewer.
const MAX_SYSTEMS: usize = 16;

/// The kernel's ciphers and hashes as programs can use them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ProgramCiphers {
    /// Kinds of algorithms that AF_ALG has, or gets by a module of this kernel: `aead`, `hash`, `skcipher`
    pub af_alg_kinds: Vec<String>,
    /// Lines of this machine that keep kinds from AF_ALG, as mitigations of published holes do
    pub af_alg_blocked: Vec<BlockedModule>,
    /// The file with measured sizes (`kernel_bulk_file`), relative to the root
    pub sizes_file: String,
    /// Its content by system; empty if nothing was measured
    pub measured: Vec<MeasuredSystem>,
}

/// Measured sizes of one system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MeasuredSystem {
    /// Kernel, libcrypto and processor
    pub system: String,
    /// Whether kernel and processor are those of this machine
    pub here: bool,
    /// Time of the measurement, in seconds since 1970
    pub measured_unix_s: u64,
    /// Algorithms by interface
    pub sizes: Vec<MeasuredSize>,
}

/// The size from which one algorithm of one interface is faster than libcrypto.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MeasuredSize {
    /// `af-alg` or `dev-crypto`
    pub interface: String,
    /// The algorithm, such as `aes-cbc`
    pub algorithm: String,
    /// The least size of a message, in bytes; null if it is slower at every size
    pub least_bytes: Option<usize>,
}

impl MeasuredSystem {
    /// Whether any algorithm pays at some size.
    #[must_use]
    pub fn pays(&self) -> bool {
        self.sizes.iter().any(|size| size.least_bytes.is_some())
    }
}

/// Reads the facts, for a kernel of this release.
pub(super) fn read(reader: &mut SectionReader<'_>) -> ProgramCiphers {
    let release = reader.word("proc/sys/kernel/osrelease").unwrap_or_default();
    let sizes_file = sizes_file(reader);
    let text = reader.text_if_there(&sizes_file).unwrap_or_default();
    let measured = if text.is_empty() {
        Vec::new()
    } else {
        let cpuinfo = reader.table("proc/cpuinfo").unwrap_or_default();
        let found = systems(&text, |system| bulk_sizes::is_of(system, &release, &cpuinfo));
        reader.first(&sizes_file, found, MAX_SYSTEMS)
    };
    let mut af_alg_blocked = blocked::read(reader);
    af_alg_blocked.retain(|one| one.module == AF_ALG || kind_of(&one.module).is_some());
    let af_alg_kinds = af_alg_kinds(reader, &release, &af_alg_blocked);
    ProgramCiphers { af_alg_kinds, af_alg_blocked, sizes_file, measured }
}

/// The module of the sockets themselves.
const AF_ALG: &str = "af_alg";

/// The kind of algorithms that a module gives to `AF_ALG`.
fn kind_of(module: &str) -> Option<&str> {
    module.strip_prefix("algif_").filter(|kind| ["aead", "hash", "skcipher"].contains(kind))
}

/// The kinds that a program gets: of loaded modules, of code that is built in, and of modules that load at the first
/// request, unless a line of this machine keeps them out.
fn af_alg_kinds(
    reader: &mut SectionReader<'_>,
    release: &str,
    blocked: &[BlockedModule],
) -> Vec<String> {
    let loaded = reader.modules();
    let folder = format!("lib/modules/{release}");
    let mut listed = |file: &str| -> Vec<String> {
        // `kernel/crypto/algif_hash.ko.xz: kernel/crypto/af_alg.ko.xz`
        let words = ["crypto/algif_", "crypto/af_alg"];
        let lines = reader.lines_with_if_there(&format!("{folder}/{file}"), &words);
        let names = lines.iter().filter_map(|line| {
            let file = line.split(':').next()?.rsplit('/').next()?;
            Some(file.split('.').next()?.to_owned())
        });
        names.collect()
    };
    let (loadable, built_in) = (listed("modules.dep"), listed("modules.builtin"));
    let is_open = |module: &str| {
        let name = module.to_owned();
        let mut lines = blocked.iter().filter(|one| one.module == module);
        if built_in.contains(&name) {
            return !lines.any(|one| one.holds_built_in);
        }
        loaded.contains(&name) || (loadable.contains(&name) && lines.next().is_none())
    };
    // A tree may lack the line of the sockets themselves: only a line that keeps them out counts.
    let is_shut = blocked.iter().any(|one| one.module == AF_ALG) && !is_open(AF_ALG);
    let mut kinds: Vec<String> = loaded
        .iter()
        .chain(&loadable)
        .chain(&built_in)
        .filter(|module| !is_shut && is_open(module))
        .filter_map(|module| kind_of(module).map(str::to_owned))
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

fn sizes_file(reader: &mut SectionReader<'_>) -> String {
    const KEY: &str = "kernel_bulk_file";
    let named = PROVIDER_SETTINGS.split(' ').find_map(|file| {
        let lines = reader.lines_with_if_there(file, &[KEY]);
        let assigned = |line: &String| {
            openssl_cnf::assignment(line).filter(|(name, _)| *name == KEY).map(|(_, value)| value)
        };
        lines.iter().find_map(assigned)
    });
    let file = named.unwrap_or_else(|| bulk_sizes::DEFAULT_FILE.to_owned());
    file.trim_start_matches('/').to_owned()
}

/// The systems of the file, at most one more than are shown.
fn systems(text: &str, is_here: impl Fn(&str) -> bool) -> Vec<MeasuredSystem> {
    let mut systems: Vec<MeasuredSystem> = Vec::new();
    for BulkSize { system, interface, algorithm, least, measured_s } in BulkSize::all(text) {
        let known = systems.iter().position(|known| known.system == system);
        if known.is_none() && systems.len() > MAX_SYSTEMS {
            continue;
        }
        let at = known.unwrap_or_else(|| {
            let (system, here) = (system.to_owned(), is_here(system));
            systems.push(MeasuredSystem { system, here, measured_unix_s: 0, sizes: Vec::new() });
            systems.len() - 1
        });
        let of = &mut systems[at];
        of.measured_unix_s = of.measured_unix_s.max(measured_s);
        of.sizes.push(MeasuredSize {
            interface: interface.to_owned(),
            algorithm: algorithm.to_owned(),
            least_bytes: least,
        });
    }
    systems
}
