// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace sample`: a configuration file with every key. That of a link by IPsec has the proposals of this host. They
//! are in the file because both ends share it: ends that each compute their own may have none in common.

use std::fmt::Display;

use anyhow::Result;
use millrace_hostfs::Root;
use millrace_inspect::advise::{Advice, AdviseRequest, Goal, Subject, advise, software};
use millrace_inspect::report::Report;
use millrace_vpn::host::has_esp;
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
    let advice = while_doing("examining", || advice(&root));
    output::print(&filled(link::SAMPLE_IPSEC, &advice.configuration))
}

/// Proposals for a host. A kernel without ESP encrypts nothing: its slow AES is no reason against the processor's.
fn advice(root: &Root) -> Advice {
    let request = AdviseRequest {
        goal: Goal::Security,
        kernel_esp: has_esp(root) == Some(true),
        ..AdviseRequest::of(Subject::Ipsec)
    };
    advise(&Report::of(root), &software::section(root), &request)
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
        let advice = advice(&root);
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

    #[test]
    fn aes_comes_first_on_a_processor_with_its_instructions_unless_a_kernel_with_esp_ignores_them()
    {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            std::fs::write(path, text).expect("a file");
        };
        write(
            "proc/cpuinfo",
            "processor : 0\nvendor_id : GenuineIntel\nmodel name : Xeon\nflags : aes pclmulqdq avx2 vaes vpclmulqdq\n",
        );
        write(
            "proc/crypto",
            "name : cbc(aes)\ndriver : cbc(ecb(aes-fixed-time))\nmodule : kernel\npriority : 101\nrefcnt : 1\n\
             selftest : passed\ninternal : no\ntype : skcipher\n\n",
        );
        let root = Root::open(folder.path()).expect("a machine");
        let first = || {
            let text = filled(link::SAMPLE_IPSEC, &advice(&root).configuration);
            let lines = ["ike = [\"", "esp = [\""].map(|start| {
                let line = text.lines().find_map(|line| line.strip_prefix(start));
                line.unwrap_or_else(|| panic!("{start} in {text}"))
                    .split('-')
                    .next()
                    .map(str::to_owned)
            });
            lines.map(Option::unwrap_or_default)
        };
        for seen in first() {
            assert!(seen.starts_with("aes256gcm16"), "{seen}");
        }
        // Such a kernel encrypts the packets by slow code.
        write("sys/module/esp4/refcnt", "0\n");
        for seen in first() {
            assert!(seen.starts_with("chacha20poly1305"), "{seen}");
        }
    }
}
