// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The harness of the whole-system tests: everything in them is real. A node is `millrace up`, a
//! gateway is Debian's HAProxy or nginx with the provider under it, a client is rustls, curl,
//! GnuTLS or Python. Faults are injected in between: [`proxy`] sits on the socket between provider and node
//! and delays, cuts, freezes or falsifies frames.
//!
//! - [`artifacts`]: finds the binary and the provider, and builds them when they are missing or stale.
//! - [`process`], [`wait`]: children that end with their owner; conditions that are polled.
//! - [`node`], [`edge`], [`gateway`]: a pool node, an `openssl.cnf`, HAProxy and nginx.
//! - [`nginx`], [`haproxy`]: the same two with any configuration; nginx with the preload library.
//! - [`checked`]: the same two under `millrace gateway check`, and assertions about its report.
//! - [`release`]: programs of this machine, or of an unpacked Debian release.
//! - [`openssl`]: OpenSSL's own programs, with and without the provider.
//! - [`servers`], [`openvpn`]: Apache, lighttpd and stunnel; two ends of a VPN.
//! - [`link`]: both ends of a link of many tunnels, and connections through it.
//! - [`pool`]: managers, members and operators of a managed pool.
//! - [`pki`]: keys and certificates of one test.
//! - [`drive`], [`clients`]: handshakes from Rust, and from programs of other projects.
//! - [`handshakes`]: the same driver as a program, for `make test-install`.
//! - [`load`]: clients that only load a node, each as a user of its own, or over any stream.
//! - [`compiled`]: programs in C that use OpenSSL as a server does.
//! - [`crowd`]: clients that only take places.
//! - [`local`]: counters of what a server computes itself.
//! - [`machine`]: a device for virtual machines, and a guest that loads it.
//! - [`memory`]: searches processes, logs and answers for private keys.
//! - [`operations`]: cryptographic requests, done with and without the provider.
//! - [`web`]: pages over HTTP, compressed and not, and the counters of the library that compresses.
//! - [`vectors`]: Wycheproof files as values.
//! - [`world`]: what nearly every test starts with.
//!
//! No test here uses a fixed port, sleeps to synchronise, or asserts an absolute time. Tests that
//! take minutes run only with `MILLRACE_LONG=1`.
#![forbid(unsafe_code)]

pub mod artifacts;
pub mod checked;
pub mod clients;
pub mod cluster;
pub mod compiled;
pub mod crowd;
pub mod drive;
pub mod edge;
pub mod gateway;
pub mod handshakes;
pub mod haproxy;
pub mod link;
pub mod load;
pub mod local;
pub mod machine;
pub mod memory;
pub mod network;
pub mod nginx;
pub mod node;
pub mod openssl;
pub mod openvpn;
pub mod operations;
pub mod pki;
pub mod pool;
pub mod process;
pub mod proxy;
pub mod release;
pub mod servers;
pub mod vectors;
pub mod web;
pub mod world;

use millrace_testkit::skip;
pub use millrace_testkit::{is_long, wait};

/// The size of a test: `long` with `MILLRACE_LONG=1`, else `short`.
#[must_use]
pub fn scaled(short: usize, long: usize) -> usize {
    if is_long() { long } else { short }
}

/// Whether this process is root, which changing users requires.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether this process may read the memory of a process of any user; records a skip if not. In a container
/// root may lack the capability.
#[must_use]
pub fn may_read_memory() -> bool {
    /// `capabilities(7)` has no names for these.
    const CAP_SYS_PTRACE: u32 = 19;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    let may = is_root() && bits.is_some_and(|bits| bits >> CAP_SYS_PTRACE & 1 == 1);
    if !may {
        skip::record(file!(), "no CAP_SYS_PTRACE: reading the memory of another process needs it");
    }
    may
}

/// A directory of one test, that other users (workers of a gateway) can enter. Removed on drop.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn temp_dir() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::Builder::new().prefix("millrace-").tempdir().expect("temporary directory");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))
        .expect("permissions of the temporary directory");
    dir
}
