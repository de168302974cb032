// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect kernel`: the implementations that the kernel prefers, and cryptography in the network.

use anyhow::Result;
use millrace_inspect::kernel::crypto::Engine;
use millrace_inspect::kernel::{self, Candidate, Kernel};
use millrace_inspect::network::{self, InterfaceKind, Network};
use millrace_inspect::report::{ReportParts, Section};

use super::open;
use crate::args::InspectKernelArgs;
use crate::output::{self, Table};
use crate::page::{Page, plain};

pub(super) fn run(args: &InspectKernelArgs) -> Result<()> {
    let root = open(&args.tree)?;
    let (kernel, network) = (kernel::section(&root), network::section(&root));
    if args.tree.json {
        return output::print_json(&ReportParts {
            kernel: Some(kernel),
            network: Some(network),
            ..ReportParts::none(&root)
        });
    }
    let mut page = Page::new();
    section(&mut page, &kernel);
    in_network(&mut page, &network);
    page.print()
}

/// The kernel's implementations.
pub(super) fn section(page: &mut Page, section: &Section<Kernel>) {
    page.heading("Cryptography in the kernel");
    if let Some(kernel) = &section.known {
        let mut table = Table::new(&["asked for by", "algorithm", "taken", "where", ">priority"]);
        for choice in &kernel.choices {
            let Some(taken) = choice.candidates.first() else {
                continue;
            };
            table.row(vec![
                choice.for_what.clone(),
                choice.algorithm.clone(),
                plain(&taken.driver),
                place(taken),
                taken.priority.to_string(),
            ]);
        }
        page.table(&table);
        for device in &kernel.devices {
            if let Some(passed) = device.passed_over_for.first() {
                let others = device.passed_over_for.len() - 1;
                let others = if others > 0 {
                    format!(" and {others} more")
                } else {
                    String::new()
                };
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
    }
    page.unread(section);
}

fn place(candidate: &Candidate) -> String {
    match (&candidate.device, candidate.engine) {
        (Some(device), _) => device.clone(),
        (None, Engine::Instructions) => "instructions".to_owned(),
        (None, Engine::Generic) => "portable code".to_owned(),
        (None, _) => "?".to_owned(),
    }
}

/// Cryptography in the network.
pub(super) fn in_network(page: &mut Page, section: &Section<Network>) {
    page.heading("Cryptography in the network");
    if let Some(network) = &section.known {
        let ktls = match &network.ktls {
            None => "no".to_owned(),
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
        page.fact(
            "IPsec",
            if network.ipsec_errors.is_some() {
                "yes"
            } else {
                "no"
            },
        );
        let errors = network
            .ipsec_errors
            .iter()
            .flatten()
            .filter(|(_, count)| **count > 0);
        for (name, count) in errors {
            page.fact("", &format!("{name}: {count}"));
        }
        page.fact(
            "WireGuard",
            if network.wireguard {
                "loaded"
            } else {
                "not loaded"
            },
        );
        let openvpn = match (network.openvpn.in_tree, network.openvpn.out_of_tree) {
            (true, _) => "ovpn, for OpenVPN 2.7 and later",
            (false, true) => "ovpn-dco, for OpenVPN 2.6",
            (false, false) => "not loaded",
        };
        page.fact("OpenVPN DCO", openvpn);
        interfaces(page, network);
    }
    page.unread(section);
}

fn interfaces(page: &mut Page, network: &Network) {
    let mut table = Table::new(&[
        "interface",
        "kind",
        "driver",
        ">MTU",
        "TLS offload",
        "IPsec offload",
    ]);
    let shown = |kind| kind != InterfaceKind::Virtual;
    for interface in network
        .interfaces
        .iter()
        .filter(|interface| shown(interface.kind))
    {
        let offload = |has: Option<bool>| match has {
            Some(true) => "yes",
            Some(false) => "no",
            None => "-",
        };
        let kind = match interface.kind {
            InterfaceKind::Card => "card",
            InterfaceKind::Wireguard => "WireGuard",
            InterfaceKind::Tun => "tunnel of a process",
            InterfaceKind::Ovpn => "OpenVPN in the kernel",
            InterfaceKind::Xfrm => "IPsec",
            InterfaceKind::Virtual => "virtual",
        };
        table.row(vec![
            plain(&interface.name),
            kind.to_owned(),
            interface
                .driver
                .as_deref()
                .map_or_else(|| "-".to_owned(), plain),
            interface
                .mtu_bytes
                .map_or_else(|| "?".to_owned(), |mtu| mtu.to_string()),
            offload(interface.tls_offload).to_owned(),
            offload(interface.esp_offload).to_owned(),
        ]);
    }
    page.table(&table);
}
