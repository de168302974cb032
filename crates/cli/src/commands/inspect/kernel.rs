// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect kernel`: the implementations that the kernel prefers, and cryptography in the network.

use std::time::{SystemTime, UNIX_EPOCH};

use millrace_inspect::kernel::crypto::ComputeSite;
use millrace_inspect::kernel::programs::ProgramCiphers;
use millrace_inspect::kernel::{AlgorithmCandidate, Kernel};
use millrace_inspect::network::{InterfaceKind, Network};
use millrace_inspect::section::Section;

use crate::output::{Table, joined, or};
use crate::page::{Page, plain};

/// The kernel's implementations.
pub(super) fn section(page: &mut Page, section: &Section<Kernel>) {
    page.heading("Cryptography in the kernel");
    if let Some(kernel) = &section.known {
        let choices = kernel.choices.iter();
        let taken = choices.filter_map(|choice| Some((choice, choice.candidates.first()?)));
        #[rustfmt::skip]
        page.table(&Table::of(taken, &[
            ("asked for by", &|(choice, _)| choice.for_what.clone()),
            ("algorithm", &|(choice, _)| choice.algorithm.clone()),
            ("taken", &|(_, taken)| plain(&taken.driver)),
            ("where", &|(_, taken)| place(taken)),
            (">priority", &|(_, taken)| taken.priority.to_string()),
        ]));
        for device in &kernel.devices {
            if let Some(passed) = device.passed_over_for.first() {
                let others = device.passed_over_for.len() - 1;
                let others = if others > 0 { format!(" and {others} more") } else { String::new() };
                page.remark(&format!(
                    "! {} is passed over for {}{others}: its priority is {}, that of {} is {}",
                    device.device,
                    passed.algorithm,
                    passed.priority,
                    passed.instead,
                    passed.instead_priority
                ));
            }
        }
        if kernel.fips == Some(true) {
            page.fact("FIPS", "approved algorithms only");
        }
        for_programs(page, section, &kernel.programs);
    }
    page.unread(section);
}

/// The ciphers for programs, and the sizes that were measured for them.
fn for_programs(page: &mut Page, section: &Section<Kernel>, programs: &ProgramCiphers) {
    let none = section.absence(&["proc/modules", "lib/modules"], "");
    let kinds = joined(&programs.af_alg_kinds, none);
    if !kinds.is_empty() {
        page.fact("AF_ALG has", &kinds);
    }
    for blocked in &programs.af_alg_blocked {
        page.fact("AF_ALG: kept out", &format!("{} ({})", blocked.module, plain(&blocked.by)));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    for measured in &programs.measured {
        let days = now.saturating_sub(measured.measured_unix_s) / (24 * 60 * 60);
        let here = if measured.here { "" } else { "; not this kernel or processor" };
        let system = plain(&measured.system);
        page.fact("measured", &format!("{system}, {days} days ago{here}"));
        let paying = measured.sizes.iter().filter(|size| size.least_bytes.is_some());
        page.table(&Table::of(
            paying,
            &[
                ("interface", &|size| plain(&size.interface)),
                ("algorithm", &|size| plain(&size.algorithm)),
                (">pays from, bytes", &|size| or(size.least_bytes, "never")),
            ],
        ));
        if !measured.pays() {
            page.fact("", "slower than libcrypto at every size");
        }
    }
}

fn place(candidate: &AlgorithmCandidate) -> String {
    match (&candidate.device, candidate.site) {
        (Some(device), _) => device.clone(),
        (None, ComputeSite::Instructions) => "instructions".to_owned(),
        (None, ComputeSite::Generic) => "portable code".to_owned(),
        (None, _) => "?".to_owned(),
    }
}

/// Cryptography in the network.
pub(super) fn in_network(page: &mut Page, section: &Section<Network>) {
    page.heading("Cryptography in the network");
    if let Some(network) = &section.known {
        let ktls = match &network.ktls {
            None => section.absence(&["proc/net/tls_stat"], "no").to_owned(),
            Some(stat) => {
                let count = |name: &str| stat.get(name).copied().unwrap_or(0);
                format!(
                    "yes; connections since boot: {} by the kernel, {} by a card",
                    count("TlsTxSw"),
                    count("TlsTxDevice")
                )
            }
        };
        page.fact("kernel TLS", &ktls);
        let word = |is_present, yes, no| if is_present { yes } else { no };
        page.fact(
            "IPsec",
            word(
                network.ipsec_errors.is_some(),
                "yes",
                section.absence(&["proc/net/xfrm_stat"], "no"),
            ),
        );
        let errors = network.ipsec_errors.iter().flatten().filter(|(_, count)| **count > 0);
        for (name, count) in errors {
            page.fact("", &format!("{name}: {count}"));
        }
        let not_loaded = section.absence(&["proc/modules", "sys/module"], "not loaded");
        page.fact("WireGuard", word(network.wireguard, "loaded", not_loaded));
        let openvpn = match (network.openvpn.in_tree, network.openvpn.out_of_tree) {
            (true, _) => "ovpn, for OpenVPN 2.7 and later",
            (false, true) => "ovpn-dco, for OpenVPN 2.6",
            (false, false) => not_loaded,
        };
        page.fact("OpenVPN DCO", openvpn);
        interfaces(page, network);
    }
    page.unread(section);
}

#[rustfmt::skip]
fn interfaces(page: &mut Page, network: &Network) {
    let kind = |kind| match kind {
        InterfaceKind::Card => "card",
        InterfaceKind::Wireguard => "WireGuard",
        InterfaceKind::Tun => "tunnel of a process",
        InterfaceKind::Ovpn => "OpenVPN in the kernel",
        InterfaceKind::Xfrm => "IPsec",
        InterfaceKind::Virtual => "virtual",
    };
    let offload = |has: Option<bool>| or(has.map(|has| if has { "yes" } else { "no" }), "-");
    let interfaces = network.interfaces.iter();
    let shown = interfaces.filter(|interface| interface.kind != InterfaceKind::Virtual);
    page.table(&Table::of(shown, &[
        ("interface", &|interface| plain(&interface.name)),
        ("kind", &|interface| kind(interface.kind).to_owned()),
        ("driver", &|interface| or(interface.driver.as_deref().map(plain), "-")),
        (">MTU", &|interface| or(interface.mtu_bytes, "?")),
        ("TLS offload", &|interface| offload(interface.tls_offload)),
        ("IPsec offload", &|interface| offload(interface.esp_offload)),
    ]));
}
