// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace sample`: a configuration file with every key. That of a link by IPsec has the proposals of this host. They
//! are in the file because both ends share it: ends that each compute their own may have none in common.

use std::fmt::Display;

use anyhow::Result;
use millrace_hostfs::Root;
use millrace_inspect::advise::{AdviseRequest, Goal, Subject, advise, software};
use millrace_inspect::report::Report;
use millrace_vpn::link;
use millrace_vpn::proposal::{EspProposal, IkeProposal, expand};

use crate::args::{SampleCommand, SampleEngine, SampleLinkArgs, SampleMode};
use crate::exit::{Failure, fail};
use crate::output;
use crate::progress::while_doing;
use crate::samples::{CLIENT, DEVICES, NODE};

pub(crate) fn run(command: &SampleCommand) -> Result<()> {
    match command {
        SampleCommand::Node => output::print(&(NODE.text)()),
        SampleCommand::Devices => output::print(&(DEVICES.text)()),
        SampleCommand::Client => output::print(&(CLIENT.text)()),
        SampleCommand::Link(SampleLinkArgs { engine, mode }) => match (engine, mode) {
            (SampleEngine::Openvpn, SampleMode::Routed) => output::print(link::SAMPLE),
            (SampleEngine::Openvpn, SampleMode::Bridged) => output::print(link::SAMPLE_BRIDGED),
            (SampleEngine::Ipsec, SampleMode::Routed) => ipsec_link(),
            (SampleEngine::Ipsec, SampleMode::Bridged) => {
                Err(fail(Failure::Usage, "IPsec carries no Ethernet frames: --engine openvpn"))
            }
        },
    }
}

fn ipsec_link() -> Result<()> {
    let root = Root::open("/")?;
    let request = AdviseRequest { goal: Goal::Security, ..AdviseRequest::of(Subject::Ipsec) };
    let advice = while_doing("examining", || {
        advise(&Report::of(&root), &software::section(&root), &request)
    });
    output::print(&filled(link::SAMPLE_IPSEC, &advice.configuration))
}

/// A sample whose lines with proposals are those of a swanctl.conf; a line without any stays.
fn filled(sample: &str, swanctl: &str) -> String {
    let value = |key: &str| {
        let mut lines = swanctl.lines().filter_map(|line| line.trim().strip_prefix(key));
        lines.find_map(|rest| rest.trim_start().strip_prefix("= "))
    };
    let ike: Vec<IkeProposal> = value("proposals").map_or_else(Vec::new, expand);
    let esp: Vec<EspProposal> = value("esp_proposals").map_or_else(Vec::new, expand);
    let mut text = String::new();
    for line in sample.lines() {
        let new = if line.starts_with("#: ike = ") {
            list("ike", &ike)
        } else if line.starts_with("#: esp = ") {
            list("esp", &esp)
        } else {
            None
        };
        text.push_str(new.as_deref().unwrap_or(line));
        text.push('\n');
    }
    text
}

fn list(key: &str, proposals: &[impl Display]) -> Option<String> {
    let quoted: Vec<String> = proposals.iter().map(|proposal| format!("\"{proposal}\"")).collect();
    (!quoted.is_empty()).then(|| format!("{key} = [{}]", quoted.join(", ")))
}

#[cfg(test)]
mod tests {
    use millrace_vpn::link::VpnLink;

    use super::*;

    #[test]
    fn sample_has_the_proposals_of_the_advice_and_is_a_link() {
        // A processor without AES instructions.
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../inspect/fixtures/arm-a15-router");
        let root = Root::open(fixture).expect("a fixture");
        let request = AdviseRequest { goal: Goal::Security, ..AdviseRequest::of(Subject::Ipsec) };
        let advice = advise(&Report::of(&root), &software::section(&root), &request);
        let text = filled(link::SAMPLE_IPSEC, &advice.configuration);
        let link = VpnLink::parse(&text).expect("a link");
        let link::LinkEngine::Ipsec(settings) = &link.engine else {
            panic!("{text}");
        };
        let first = settings.esp[0].to_string();
        assert!(advice.configuration.contains(&format!("esp_proposals = {first}")), "{text}");
        assert!(settings.ike.len() > 1 && settings.esp.len() > 1, "{text}");
        assert_eq!(filled(link::SAMPLE_IPSEC, ""), link::SAMPLE_IPSEC);
    }
}
