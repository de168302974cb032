// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The candidates of `engine = "auto"` between two network namespaces of this machine, in interleaved rounds. Which
//! one is chosen is decided elsewhere.

use super::VpnArgs;
use super::cases::{BASE, CaseEngine, LinkCase};
use super::testbed::{LinkTestbed, TunnelSampling};
use crate::error::BenchError;
use crate::progress::Progress;
use crate::stats::order;

/// A candidate of `engine = "auto"` to measure.
#[derive(Clone, Debug)]
pub struct LinkToMeasure {
    /// Name of the candidate in messages.
    pub name: &'static str,
    /// Number of tunnels.
    pub members: u16,
    /// VPN implementation of the candidate.
    pub engine: CaseEngine,
    /// Cipher of OpenVPN.
    pub cipher: &'static str,
    /// Largest packet of the path, in bytes.
    pub path_mtu: u16,
    /// Bytes of the sockets' buffers; `None` for those of the system.
    pub buffers: Option<u32>,
    /// Lines of `[ipsec]` with proposals.
    pub proposals: String,
}

/// One round of a candidate.
#[derive(Clone, Copy, Debug)]
pub struct LinkRound {
    /// Rate, Mbit/s.
    pub mbit: f64,
    /// CPU seconds of the whole machine for 10^9 bytes.
    pub cpu_s_per_gb: f64,
}

/// Measures candidates; for each its rounds, or why it does not come up.
///
/// # Errors
/// [`BenchError`]; a byte that changes on its way ends the run.
pub fn measure_links(
    args: &VpnArgs,
    links: &[LinkToMeasure],
) -> Result<Vec<Result<Vec<LinkRound>, BenchError>>, BenchError> {
    let cases: Vec<LinkCase> = links.iter().map(case).collect();
    let mut progress = Progress::start(args.rounds * cases.len() as u64)?;
    progress.now("two network namespaces")?;
    let testbed = LinkTestbed::new(&cases, TunnelSampling::Off, &args.openssl)?;
    let mut measured: Vec<_> = links.iter().map(|_| Ok(Vec::new())).collect();
    for round in 0..args.rounds {
        for index in order(links.len(), round) {
            progress.now(links[index].name)?;
            if let Ok(rounds) = &mut measured[index] {
                match testbed.up(&cases[index], &links[index].proposals, &mut progress) {
                    Ok(link) => {
                        let round = link.measure(args.seconds, args.flows, &progress)?;
                        link.down()?;
                        rounds.push(LinkRound {
                            mbit: round.mbit,
                            cpu_s_per_gb: round.machine_per_gb,
                        });
                    }
                    // The kernel or a program lacks a function, which no earlier check could find out.
                    Err(error @ (BenchError::Setup(_) | BenchError::Child { .. })) => {
                        measured[index] = Err(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            progress.step();
        }
    }
    Ok(measured)
}

/// Both ends share the processors, so that no process is pinned: the scheduler gives each the same chance.
fn case(link: &LinkToMeasure) -> LinkCase {
    LinkCase {
        name: link.name,
        title: link.name,
        members: link.members,
        engine: link.engine,
        cipher: if link.engine.is_openvpn() { link.cipher } else { "" },
        path_mtu: link.path_mtu,
        cable_mtu: link.path_mtu,
        buffers: link.buffers,
        ..*BASE
    }
}
