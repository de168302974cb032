// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The advisories that were read for each remedy that loads a module, widens a limit or opens a filter, and when: a
//! remedy must not open a hole. One of the doctor without a row fails the tests, a text of any crate or guide that says
//! `modprobe` fails `cargo xtask tidy`; `docs/guide/doctor.md` has the same table.

/// Something that a remedy loads or relaxes, and the advisories that were read about it.
#[derive(Clone, Copy, Debug)]
pub struct Advisory {
    /// The module, setting or command, as remedies spell it; a `*` at the end stands for any rest
    pub remedy: &'static str,
    /// The advisories, and what follows from them for the remedy
    pub read: &'static str,
    /// The day on which they were read: year, month, day
    pub date: &'static str,
}

const fn row(remedy: &'static str, read: &'static str, date: &'static str) -> Advisory {
    Advisory { remedy, read, date }
}

/// The table, by remedy.
#[rustfmt::skip]
pub const ADVISORIES: &[Advisory] = &[
    row("aes_ce_blk", "none; no interface to programs", "2026-11-28"),
    row("aesni_intel", "none; no interface to programs", "2026-11-28"),
    row("algif_hash", "none of its own; only on a kernel with the fixes of CVE-2026-31431 and CVE-2026-46033, whose way in is the same socket", "2026-11-28"),
    row("algif_skcipher", "as algif_hash; algif_aead (CVE-2026-31431, exploited) is in no remedy", "2026-11-28"),
    row("bonding", "CVE-2026-43456, CVE-2026-23171: need the right to change network devices; fixed by kernel updates", "2026-11-28"),
    row("crconf", "none; needs root, changes a priority", "2026-11-28"),
    row("debugfs", "none; mounted with mode 0700, refused under lockdown", "2026-11-28"),
    row("esp4", "CVE-2026-43284, with a public exploit: only on a kernel with the fix (Linux 5.10.255, 5.15.205, 6.1.171, 6.6.138, 6.12.87, 6.18.28, 7.0.5); mitigations keep it out", "2026-11-28"),
    row("fs.file-max", "none; a bound on memory", "2026-11-28"),
    row("ghash_*", "none; no interface to programs", "2026-11-28"),
    row("LimitMEMLOCK", "none; that service may lock all memory", "2026-11-28"),
    row("LimitNOFILE", "none; that service may open more files", "2026-11-28"),
    row("net.core.somaxconn", "none; a bound on memory", "2026-11-28"),
    row("net.netfilter.nf_conntrack_max", "none; a bound on memory", "2026-11-28"),
    row("nft add rule", "none; changes a TCP option", "2026-11-28"),
    row("notrack", "none; a stateful rule no longer sees these packets: only where none needs it", "2026-11-28"),
    row("pkcs8_key_parser", "none of its own; CVE-2026-43492 (a program with a key hangs a processor) is fixed by kernel updates", "2026-11-28"),
    row("qat_*", "Intel-SA-01387 is of the Windows driver; none open for Linux", "2026-11-28"),
    row("RestrictAddressFamilies", "CVE-2026-31431: a filter without AF_ALG is a published mitigation; the remedy is to keep it, and to open it only on a fixed kernel", "2026-11-28"),
    row("tun", "CVE-2026-46321, CVE-2026-46322: programs with /dev/net/tun and /dev/vhost-net leak memory; fixed by kernel updates", "2026-11-28"),
    row("usdm_drv", "none open; out of the tree, gives programs memory that a device reaches: only users of QAT's group may open it", "2026-11-28"),
    row("vfio-pci", "CVE-2026-43130: the host hangs if a device with ATS goes away; fixed by kernel updates", "2026-11-28"),
    row("virtio_crypto", "CVE-2026-23229: concurrent requests hang; fixed by kernel updates", "2026-11-28"),
    row("vm.nr_hugepages", "none; reserves memory", "2026-11-28"),
];

/// The row for something that a remedy loads or relaxes.
#[must_use]
pub fn advisory(remedy: &str) -> Option<&'static Advisory> {
    let is_of = |row: &&Advisory| match row.remedy.strip_suffix('*') {
        Some(start) => remedy.starts_with(start),
        None => row.remedy == remedy,
    };
    ADVISORIES.iter().find(is_of)
}
