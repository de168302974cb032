// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! link.toml: any text is a link with a plan of each end, or a list of problems.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_vpn::candidate::EngineCandidate;
use millrace_vpn::host::Host;
use millrace_vpn::link::{Side, VpnLink};
use millrace_vpn::plan::{Folders, LinkMember, LinkPlan};

fuzz_target!(|text: &str| {
    if let Ok(link) = VpnLink::parse(text) {
        let host = Host { processors: vec![0], ..Host::default() };
        for candidate in EngineCandidate::ALL {
            let link = link.as_candidate(candidate);
            for side in Side::ALL {
                let plan = LinkPlan::new(&link, side, &host, &Folders::default());
                assert_eq!(plan.layout.members.len(), usize::from(link.members));
                assert!(!plan.text().is_empty());
                let all: Vec<&LinkMember> = plan.layout.members.iter().collect();
                let devices: Vec<String> = all.iter().map(|member| member.device.clone()).collect();
                if plan.layout.bond.is_some() {
                    // A bond that has its members already stays as it is.
                    assert!(plan.layout.over(&all, &all, &devices).is_empty());
                    assert!(!plan.layout.over(&all[..1], &all, &[]).is_empty());
                }
            }
        }
    } else if let Err(problems) = VpnLink::parse(text) {
        assert!(!problems.0.is_empty());
    }
});
