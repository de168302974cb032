// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A tunnel of WireGuard between the namespaces of a run, to compare with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use millrace_hostfs::child::{self, ChildLimits};

use super::cases::LinkCase;
use super::namespace::{CABLE, INNER, LINK, Namespace};
use crate::error::BenchError;
use crate::process::{need, output_of};

/// Port of both ends.
const PORT: u16 = 51820;

/// Bytes that WireGuard adds to a packet by IPv4: 20 and 8 of IP and UDP, 16 of its header, 16 of the tag; and 20 more
/// for IPv6, as `wg-quick` computes.
const OVERHEAD: u16 = 80;

/// Limits of `wg pubkey`, which prints 44 characters at once.
const AT_ONCE: ChildLimits = ChildLimits { time: Duration::from_secs(10), output_bytes: 4096 };

fn device() -> String {
    format!("{LINK}-0")
}

fn key_file(folder: &Path, end: usize) -> PathBuf {
    folder.join(format!("wireguard-{end}.key"))
}

/// Brings both ends up, with their keys in `folder`, which only this user may read.
pub(super) fn up(ends: &[Namespace; 2], folder: &Path, case: &LinkCase) -> Result<(), BenchError> {
    let wg = need("wg", "wireguard-tools")?;
    let mut public = Vec::new();
    for end in [0, 1] {
        let file = key_file(folder, end);
        let key = output_of("wg genkey", Command::new(&wg).arg("genkey"))?;
        fs::write(&file, &key).map_err(BenchError::file("write", &file))?;
        public.push(public_key(&wg, &key)?);
    }
    let device = device();
    for (end, namespace) in ends.iter().enumerate() {
        let peer = 1 - end;
        namespace.ip(&format!("link add dev {device} type wireguard"))?;
        let mut set = namespace.tied_command(&wg);
        set.args(["set", &device, "listen-port", &PORT.to_string(), "private-key"])
            .arg(key_file(folder, end))
            .args(["peer", &public[peer], "allowed-ips", "0.0.0.0/0", "endpoint"])
            .arg(format!("{}:{PORT}", CABLE[peer]));
        output_of("wg set", &mut set)?;
        namespace.ip(&format!("address add {}/24 dev {device}", INNER[end]))?;
        namespace.ip(&format!("link set dev {device} mtu {} up", case.path_mtu - OVERHEAD))?;
    }
    Ok(())
}

fn public_key(wg: &Path, key: &str) -> Result<String, BenchError> {
    let mut command = Command::new(wg);
    command.arg("pubkey").stdout(Stdio::piped()).stderr(Stdio::null());
    let output = child::run(&mut command, key.as_bytes(), AT_ONCE)
        .map_err(|error| BenchError::Setup(format!("wg pubkey {error}")))?;
    if !output.status.success() {
        return Err(BenchError::Setup(format!("wg pubkey failed ({})", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Takes both ends down.
pub(super) fn down([a, b]: &[Namespace; 2]) -> Result<(), BenchError> {
    let remove = format!("link delete dev {}", device());
    // The second end goes down, too, when the first cannot.
    let first = a.ip(&remove);
    b.ip(&remove).and(first)
}
