// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Trees with arbitrary files in place of the expected ones: an inspection always ends, with a report.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Instant;

use millrace_hostfs::Root;
use millrace_inspect::doctor::diagnose;
use millrace_inspect::report::{Report, ReportParts};
use millrace_testkit::wait::SOON;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::RngSeed;
use rustix::fs::{CWD, Mode};

/// The trees to damage: together they have every kind of file that is read.
const FIXTURES: &[&str] =
    &["aes-ni-vm", "arm-a15-router", "atom-c3000", "qat-8970", "devcrypto-router"];
/// Damage to one file.
#[derive(Clone, Debug)]
enum Damage {
    Bytes(Vec<u8>),
    Repeated(Vec<u8>, u16),
    Cut(Index),
    Flip(Index, u8),
    NoNewlines,
    Empty,
    Gone,
    Fifo,
    Folder,
    Loop,
    Away,
    Sparse,
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200).prop_map(Damage::Bytes),
        (prop::collection::vec(any::<u8>(), 1..40), any::<u16>())
            .prop_map(|(bytes, times)| Damage::Repeated(bytes, times)),
        ("[0-9:,\\-+ \n\t.a-z]{0,80}").prop_map(|text| Damage::Bytes(text.into_bytes())),
        any::<Index>().prop_map(Damage::Cut),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Flip(at, byte)),
        Just(Damage::NoNewlines),
        Just(Damage::Empty),
        Just(Damage::Gone),
        Just(Damage::Fifo),
        Just(Damage::Folder),
        Just(Damage::Loop),
        Just(Damage::Away),
        Just(Damage::Sparse),
    ]
}

/// Replaces a file, unless an earlier damage replaced it by something else.
fn inflict(damage: &Damage, path: &Path) {
    const ORDINARY: u64 = 1 << 20;
    let metadata = path.symlink_metadata();
    let content = match metadata {
        Ok(metadata) if metadata.is_file() && metadata.len() < ORDINARY => fs::read(path).unwrap(),
        _ => return,
    };
    fs::remove_file(path).unwrap();
    match damage {
        Damage::Bytes(bytes) => fs::write(path, bytes).unwrap(),
        Damage::Repeated(bytes, times) => fs::write(path, bytes.repeat((*times).into())).unwrap(),
        Damage::Cut(at) => fs::write(path, &content[..at.index(content.len() + 1)]).unwrap(),
        Damage::Flip(at, byte) => {
            let mut content = content;
            if !content.is_empty() {
                let at = at.index(content.len());
                content[at] = *byte;
            }
            fs::write(path, content).unwrap();
        }
        Damage::NoNewlines => {
            let content: Vec<u8> = content.into_iter().filter(|byte| *byte != b'\n').collect();
            fs::write(path, content).unwrap();
        }
        Damage::Empty => fs::write(path, "").unwrap(),
        Damage::Gone => {}
        Damage::Fifo => rustix::fs::mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).unwrap(),
        Damage::Folder => fs::create_dir(path).unwrap(),
        Damage::Loop => symlink(path.file_name().unwrap(), path).unwrap(),
        Damage::Away => symlink("../../../../../../../../../../dev/zero", path).unwrap(),
        Damage::Sparse => File::create(path).unwrap().set_len(10 << 30).unwrap(),
    }
}

/// Files that only the doctor reads, added to each tree.
#[rustfmt::skip]
const SETTINGS: &[(&str, &str)] = &[
    ("etc/swanctl/swanctl.conf", "connections { a { dpd_delay = 1s\n proposals = 3des-md5 } }\n"),
    ("etc/openvpn/a.conf", "dev tap0\ncipher BF-CBC\nkeepalive 1 2\nmssfix 0\n"),
    ("etc/nginx/nginx.conf", "http { server { listen 443 ssl backlog=9; ssl_ciphers RC4; } }\n"),
    ("etc/modprobe.d/a.conf", "blacklist intel_qat\n"),
    ("proc/77/comm", "nginx\n"),
    ("proc/77/limits", "Max core file size  unlimited  unlimited  bytes\nMax open files  9  9  files\n"),
    ("proc/cmdline", "ro idle=poll clearcpuid=aes\n"),
    ("proc/sys/fs/file-nr", "9\t0\t10\n"),
    ("proc/sys/net/netfilter/nf_conntrack_max", "10\n"),
    ("proc/sys/net/netfilter/nf_conntrack_count", "10\n"),
    ("sys/class/thermal/thermal_zone0/temp", "99000\n"),
    ("sys/class/thermal/thermal_zone0/trip_point_0_type", "hot\n"),
    ("sys/class/thermal/thermal_zone0/trip_point_0_temp", "100000\n"),
    ("lib/firmware/qat_x.bin", "x"),
];

fn add_settings(folder: &Path, files: &mut Vec<PathBuf>) {
    for (path, text) in SETTINGS {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if !path.exists() {
            files.push(path.clone());
        }
        fs::write(path, text).unwrap();
    }
}

/// Copies a tree; gives the files in it.
fn copy(from: &Path, to: &Path, files: &mut Vec<PathBuf>) {
    fs::create_dir_all(to).unwrap();
    let mut entries: Vec<_> = from.read_dir().unwrap().map(|entry| entry.unwrap()).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let target = to.join(entry.file_name());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            copy(&entry.path(), &target, files);
            continue;
        }
        if kind.is_symlink() {
            symlink(fs::read_link(entry.path()).unwrap(), &target).unwrap();
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
        files.push(target);
    }
}

proptest! {
    // The same cases in every run, so that a failure can be reproduced.
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::with_cases(48)
    })]

    #[test]
    fn hostile_tree_always_yields_a_report(
        fixture in prop::sample::select(FIXTURES),
        damages in prop::collection::vec((any::<Index>(), damage()), 1..12),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Vec::new();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(fixture);
        copy(&from, folder.path(), &mut files);
        add_settings(folder.path(), &mut files);
        for (which, damage) in &damages {
            let path: &PathBuf = which.get(&files);
            inflict(damage, path);
        }
        let begun = Instant::now();
        let root = Root::open(folder.path()).unwrap().recording();
        let report = Report::of(&root);
        prop_assert!(serde_json::to_string(&ReportParts::from(report)).is_ok());
        let diagnosis = diagnose(&root, |_| true);
        prop_assert!(serde_json::to_string(&diagnosis).is_ok());
        // The files that were read make a bundle that can be read back.
        let mut bundle = Vec::new();
        root.into_record().write_bundle(&mut bundle).unwrap();
        prop_assert!(Root::from_bundle(bundle.as_slice()).is_ok());
        prop_assert!(begun.elapsed() < SOON, "it took {:?}", begun.elapsed());
    }
}
