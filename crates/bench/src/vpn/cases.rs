// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The cases: one row each.

use millrace_sampler::{NO_AES, NO_VECTORS};

/// Bound on parallel connections: what iperf3 allows.
pub(crate) const MAX_FLOWS: usize = 128;

/// MTU of an ordinary path, and of one with jumbo frames, in bytes.
const ETHERNET: u16 = 1500;
const JUMBO: u16 = 9000;

const AES256: &str = "AES-256-GCM";

/// Buffers of the tuned cases: the queue of 1000 packets of a device at MTU 1500 fits.
const BUFFERS: u32 = 1 << 20;

/// VPN implementation of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseEngine {
    /// OpenVPN processes.
    OpenVpn,
    /// One OpenVPN process; the kernel encrypts (DCO).
    Dco,
    /// strongSwan's daemon itself (kernel-libipsec).
    UserIpsec,
    /// strongSwan; the kernel encrypts.
    KernelIpsec,
    /// strongSwan with one security association per processor; the kernel encrypts.
    PerCpuSas,
    /// WireGuard, for comparison: no link of Millrace.
    WireGuard,
}

impl CaseEngine {
    /// Whether a member is an OpenVPN process.
    pub(super) fn is_openvpn(self) -> bool {
        match self {
            Self::OpenVpn | Self::Dco => true,
            Self::UserIpsec | Self::KernelIpsec | Self::PerCpuSas | Self::WireGuard => false,
        }
    }

    /// Whether the kernel encrypts packets: no process has CPU time for them.
    pub(super) fn encrypts_in_kernel(self) -> bool {
        match self {
            Self::OpenVpn | Self::UserIpsec => false,
            Self::Dco | Self::KernelIpsec | Self::PerCpuSas | Self::WireGuard => true,
        }
    }

    /// The program that a case needs.
    pub(super) fn program(self) -> &'static str {
        match self {
            Self::OpenVpn | Self::Dco => "openvpn",
            Self::UserIpsec | Self::KernelIpsec | Self::PerCpuSas => "charon-systemd",
            Self::WireGuard => "wg",
        }
    }
}

/// Link to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkCase {
    /// Name on the command line and in the report.
    pub(crate) name: &'static str,
    /// Name in tables and plots.
    pub(crate) title: &'static str,
    /// Members of the link; 0 for the cable itself.
    pub(crate) members: u16,
    pub(crate) engine: CaseEngine,
    /// OpenVPN's name of the cipher, or the ESP proposal of IPsec; empty where link.toml has no such line.
    pub(crate) cipher: &'static str,
    /// Largest outer packet of the tunnels, in bytes.
    pub(crate) path_mtu: u16,
    /// MTU of the cable, in bytes. Where it is smaller, the kernel sends outer packets in IP fragments.
    pub(crate) cable_mtu: u16,
    /// Whether each process stays on its core; otherwise it may run on any.
    pub(crate) pinned: bool,
    /// Bytes of the sockets' buffers. `None` for those of the system.
    pub(crate) buffers: Option<u32>,
    /// Packets that a tunnel's device queues. `None` for the default of link.toml.
    pub(crate) queue: Option<u32>,
    /// Whether the kernel spreads received packets over all cores (RPS), on the cable and the tunnels' devices.
    pub(crate) rps: bool,
    /// `OPENSSL_ia32cap` of both ends.
    pub(crate) mask: Option<&'static str>,
    /// Whether the private keys of both ends are in a pool: a node of the run signs.
    pub(crate) pooled: bool,
    /// Whether the members are in one bond.
    pub(crate) bridged: bool,
    /// Whether the second end's processes are on the cores of their neighbours, so that no core holds both ends of a
    /// tunnel.
    pub(crate) crossed: bool,
}

/// One process as `millrace vpn up` starts it, and moved off its core: the scheduler may give the two ends different
/// cores, which is the fairer peer on a machine that holds both.
pub(super) const BASE: &LinkCase = &case("one", "1 process", 1);

/// The case of the goals for two processes.
pub(super) const TWO_PINNED: &LinkCase =
    &LinkCase { pinned: true, ..case("two-pinned", "2 processes, pinned", 2) };

/// The case of the goal for a large MTU and buffers.
pub(super) const ONE_TUNED: &LinkCase = &LinkCase {
    path_mtu: JUMBO,
    cable_mtu: JUMBO,
    buffers: Some(BUFFERS),
    ..case("one-tuned", "1 process, MTU 9000, buffers", 1)
};

/// The link of which a member is killed.
pub(super) const LOSS: &LinkCase =
    &LinkCase { pinned: true, ..case("loss", "4 processes, one killed", 4) };

/// All cases, in the order of the table.
#[rustfmt::skip]
pub(crate) const CASES: [&LinkCase; 37] = [
    &case("none", "no tunnel", 0),
    &LinkCase { path_mtu: JUMBO, cable_mtu: JUMBO, ..case("none-9000", "no tunnel, MTU 9000", 0) },
    BASE,
    &LinkCase { cipher: "AES-128-GCM", ..case("one-aes128", "1 process, AES-128-GCM", 1) },
    &LinkCase { cipher: "CHACHA20-POLY1305", ..case("one-chacha", "1 process, ChaCha20-Poly1305", 1) },
    &LinkCase { mask: Some(NO_AES), ..case("one-no-aes", "1 process, AES instructions off", 1) },
    &LinkCase { pinned: true, ..case("one-pinned", "1 process, both ends on one core", 1) },
    &case("two", "2 processes", 2),
    TWO_PINNED,
    &LinkCase { pinned: true, crossed: true, ..case("two-crossed", "2 processes, pinned crosswise", 2) },
    &LinkCase { pinned: true, buffers: Some(BUFFERS), ..case("two-buffers", "2 processes, pinned, buffers", 2) },
    &LinkCase { pinned: true, ..case("four-pinned", "4 processes, pinned", 4) },
    ONE_TUNED,
    &LinkCase { path_mtu: JUMBO, ..case("one-fragments", "1 process, MTU 9000 in IP fragments", 1) },
    &LinkCase { pinned: true, path_mtu: JUMBO, cable_mtu: JUMBO, ..case("two-mtu", "2 processes, pinned, MTU 9000", 2) },
    &LinkCase { pinned: true, path_mtu: JUMBO, ..case("two-fragments", "2 processes, pinned, MTU 9000 in IP fragments", 2) },
    &LinkCase { pinned: true, path_mtu: JUMBO, cable_mtu: JUMBO, buffers: Some(BUFFERS), ..case("two-tuned", "2 processes, pinned, MTU 9000, buffers", 2) },
    &LinkCase { pinned: true, rps: true, ..case("two-rps", "2 processes, pinned, RPS", 2) },
    &LinkCase { pinned: true, queue: Some(100), ..case("two-short-queue", "2 processes, pinned, queues of 100 packets", 2) },
    &LinkCase { pinned: true, queue: Some(10_000), ..case("two-long-queue", "2 processes, pinned, queues of 10000 packets", 2) },
    &LinkCase { pooled: true, ..case("one-pool", "1 process, keys in the pool", 1) },
    &LinkCase { bridged: true, pinned: true, ..case("two-bonded", "2 processes, pinned, one bond", 2) },
    &LinkCase { engine: CaseEngine::Dco, ..case("dco", "1 process, the kernel encrypts (DCO)", 1) },
    &LinkCase { engine: CaseEngine::WireGuard, cipher: "", ..case("wireguard", "WireGuard, for comparison", 1) },
    &ipsec("ipsec-aes256", "IPsec by the daemon, AES-256-GCM", "aes256gcm16-ecp256"),
    &ipsec("ipsec-aes128", "IPsec by the daemon, AES-128-GCM", "aes128gcm16-ecp256"),
    &ipsec("ipsec-chacha", "IPsec by the daemon, ChaCha20-Poly1305", "chacha20poly1305-ecp256"),
    &ipsec("ipsec-cbc", "IPsec by the daemon, AES-256-CBC, SHA-256", "aes256-sha256-ecp256"),
    &LinkCase { mask: Some(NO_AES), ..ipsec("ipsec-no-aes", "IPsec by the daemon, AES-256-GCM, AES instructions off", "aes256gcm16-ecp256") },
    &LinkCase { mask: Some(NO_AES), ..ipsec("ipsec-aes128-no-aes", "IPsec by the daemon, AES-128-GCM, AES instructions off", "aes128gcm16-ecp256") },
    &LinkCase { mask: Some(NO_VECTORS), ..ipsec("ipsec-chacha-no-vectors", "IPsec by the daemon, ChaCha20-Poly1305, vector instructions off", "chacha20poly1305-ecp256") },
    &LinkCase { mask: Some(NO_AES), ..ipsec("ipsec-cbc-no-aes", "IPsec by the daemon, AES-256-CBC, SHA-256, AES instructions off", "aes256-sha256-ecp256") },
    &LinkCase { pooled: true, ..ipsec("ipsec-pool", "IPsec by the daemon, keys in the pool", "aes256gcm16-ecp256") },
    &LinkCase { engine: CaseEngine::KernelIpsec, ..ipsec("esp-aes256", "IPsec by the kernel, AES-256-GCM", "aes256gcm16-ecp256") },
    &LinkCase { engine: CaseEngine::KernelIpsec, ..ipsec("esp-chacha", "IPsec by the kernel, ChaCha20-Poly1305", "chacha20poly1305-ecp256") },
    &LinkCase { engine: CaseEngine::KernelIpsec, ..ipsec("esp-cbc", "IPsec by the kernel, AES-256-CBC, SHA-256", "aes256-sha256-ecp256") },
    &LinkCase { engine: CaseEngine::PerCpuSas, ..ipsec("esp-per-cpu", "IPsec by the kernel, AES-256-GCM, an SA per processor", "aes256gcm16-ecp256") },
];

/// A link of OpenVPN processes with the defaults of link.toml.
#[rustfmt::skip]
const fn case(name: &'static str, title: &'static str, members: u16) -> LinkCase {
    LinkCase { name, title, members, engine: CaseEngine::OpenVpn, cipher: AES256, path_mtu: ETHERNET, cable_mtu: ETHERNET, pinned: false, buffers: None, queue: None, rps: false, mask: None, pooled: false, bridged: false, crossed: false }
}

/// An IPsec link whose daemon encrypts, or the kernel.
const fn ipsec(name: &'static str, title: &'static str, cipher: &'static str) -> LinkCase {
    LinkCase { engine: CaseEngine::UserIpsec, cipher, ..case(name, title, 1) }
}

/// The cases of a run for which none were named: those that every host with OpenVPN runs, and with strongSwan those
/// that it encrypts itself. What needs a kernel's modules or our provider, and what was tried and did not pay, is
/// measured by name.
pub(crate) fn usual_cases(has_strongswan: bool) -> Vec<&'static LinkCase> {
    let usual = |case: &&&LinkCase| {
        let engine = match case.engine {
            CaseEngine::OpenVpn => true,
            CaseEngine::UserIpsec => has_strongswan,
            CaseEngine::Dco
            | CaseEngine::KernelIpsec
            | CaseEngine::PerCpuSas
            | CaseEngine::WireGuard => false,
        };
        engine && !case.pooled && !case.bridged && !case.rps && case.queue.is_none()
    };
    CASES.iter().filter(usual).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_of_their_own_and_the_goals_are_among_them() {
        let mut names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
        for needed in [BASE, TWO_PINNED, ONE_TUNED] {
            assert!(names.contains(&needed.name), "{}", needed.name);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
    }

    #[test]
    fn usual_cases_need_neither_a_kernel_nor_programs_that_are_not_there() {
        let engines = |has_strongswan| {
            let cases = usual_cases(has_strongswan).into_iter();
            cases.map(|case| case.engine).collect::<Vec<_>>()
        };
        assert!(engines(false).iter().all(|engine| *engine == CaseEngine::OpenVpn));
        let with = engines(true);
        assert!(with.contains(&CaseEngine::UserIpsec));
        assert!(!with.contains(&CaseEngine::KernelIpsec) && !with.contains(&CaseEngine::Dco));
    }
}
