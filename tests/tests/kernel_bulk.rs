// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! An OpenVPN tunnel whose packets one end has computed by /dev/crypto, by a stand-in for its device, and the other by
//! OpenSSL's own code.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_edge::bulk_sizes;
use millrace_testkit::skip;
use millrace_tests::artifacts::workspace;
use millrace_tests::edge::{Edge, EdgeOptions};
use millrace_tests::openvpn::{End, Traffic, Tunnel};
use millrace_tests::pki::KeyKind;
use millrace_tests::process;
use millrace_tests::release;
use millrace_tests::servers::is_installed;
use millrace_tests::world::World;

/// Offsets in the file that the stand-in shares: `struct controls` of `tests/cryptodev/device.c`.
const FAIL_FROM: u64 = 0;
const OPERATIONS: usize = 16;
const FAILED: usize = 24;

/// Size from which packets go to the device: the answers of a TCP connection are shorter, its data are longer.
const LEAST: usize = 500;

/// The device, for one process.
struct Device {
    library: PathBuf,
    controls: PathBuf,
}

impl Device {
    fn new(dir: &Path) -> Result<Self, String> {
        let (library, controls) = (dir.join("device.so"), dir.join("controls"));
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .arg(&library)
            .arg(workspace().join("tests/cryptodev/device.c"))
            .args(["-lcrypto", "-lpthread", "-ldl"])
            .output();
        let compiled = compiled.map_err(|error| format!("no C compiler: {error}"))?;
        if !compiled.status.success() {
            return Err(String::from_utf8_lossy(&compiled.stderr).into_owned());
        }
        fs::write(&controls, [0; 4096]).map_err(|error| error.to_string())?;
        Ok(Self { library, controls })
    }

    fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("LD_PRELOAD", self.library.clone()), ("MILLRACE_CRYPTODEV", self.controls.clone())]
    }

    fn fail_from(&self, operation: u32) {
        let file = OpenOptions::new().write(true).open(&self.controls).expect("controls");
        file.write_all_at(&operation.to_ne_bytes(), FAIL_FROM).expect("written");
    }

    fn get(&self, at: usize) -> u64 {
        let bytes = fs::read(&self.controls).expect("controls");
        u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
    }
}

/// A configuration in which packets of [`LEAST`] bytes and more go to the device.
fn edge(world: &World) -> Edge {
    let file = world.dir().join("kernel-bulk.tsv");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    let version = process::succeed(release::command("openssl").arg("version"));
    // `openssl version` says the library's behind its own.
    let libcrypto = version
        .split("(Library: ")
        .nth(1)
        .map_or(&*version, |rest| rest.trim_end_matches([')', '\n']));
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").expect("the processors");
    let system = bulk_sizes::system(&kernel, libcrypto, &cpuinfo);
    let mut rows = String::new();
    for algorithm in ["aes-cbc", "aes-gcm", "hmac-sha1", "hmac-sha256"] {
        rows.push_str(&format!("{system}\tdev-crypto\t{algorithm}\t{LEAST}\t1\n"));
    }
    fs::write(&file, rows).expect("the file of sizes");
    let options = EdgeOptions { local: true, ..EdgeOptions::default() };
    let options = options.with("kernel_bulk", "on").with("kernel_bulk_file", file.display());
    options.with("mode", "off").with("algorithms", "none").write(world.dir())
}

#[test]
fn openvpn_carries_traffic_by_the_kernels_ciphers_and_goes_on_when_they_fail() {
    if !is_installed("openvpn", "openvpn") {
        return;
    }
    if !Traffic::is_possible() {
        skip!("no network device for a VPN: it needs root, its capabilities and /dev/net/tun");
    }
    let page: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
    // A packet is one operation, or two with a separate MAC.
    for (cipher, operations) in [("AES-256-CBC", 2), ("AES-256-GCM", 1)] {
        let world = World::new();
        let device = match Device::new(world.dir()) {
            Ok(device) => device,
            Err(reason) => skip!("{reason}"),
        };
        let edge = edge(&world);
        let [server, client] = [KeyKind::Rsa2048, KeyKind::P256].map(|kind| world.identity(kind));
        // Not in the kernel's own OpenVPN, where it can do that.
        let lines = format!("data-ciphers {cipher}\nauth SHA256\ndisable-dco");
        let end =
            End { edge: Some(&edge), environment: device.environment(), ..End::plain(&server) };
        let (end, stock) = (end.with(&lines), End::plain(&client).with(&lines));
        let traffic = Traffic::start(world.dir(), &world.authority, end, stock, &page);
        assert!(traffic.fetch() == page, "{cipher}");
        let Tunnel { client, .. } = &traffic.tunnel;
        let said = format!("Data Channel: cipher '{cipher}'");
        assert!(client.log().contains(&said), "{said}: {}", client.log());
        let done = device.get(OPERATIONS);
        let packets = page.len() as u64 / 1500;
        assert!(done > packets * operations, "{cipher}: {done}");
        assert_eq!(device.get(FAILED), 0, "{cipher}");
        // It fails in the middle of the next page, and from then on.
        device.fail_from(u32::try_from(done + packets / 3).expect("a number of operations"));
        assert!(traffic.fetch() == page, "{cipher}, while the device fails");
        assert!(device.get(FAILED) > 0, "{cipher}");
    }
}
