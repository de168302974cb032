// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! strongSwan's `swanctl.conf`.

use super::Text;
use crate::advise::Topic;
use crate::advise::algorithm::Group;
use crate::advise::rules::{IpsecPlan, REKEY_PACKETS};

pub(super) fn write(text: &mut Text<'_>, plan: &IpsecPlan) {
    text.remark(
        0,
        "Add remote_addrs, certs, id and the traffic selectors. Then: swanctl --load-conns",
    );
    text.line(0, "connections {");
    text.line(4, "gateway {");
    text.why(8, Topic::Protocol);
    text.line(8, "version = 2");
    text.why(8, Topic::Prf);
    text.why(8, Topic::Group);
    text.line(8, &format!("proposals = {}", ike(plan)));
    text.line(8, &format!("rekey_time = {}s", plan.ike_rekey_s));
    text.why(8, Topic::DeadPeers);
    text.line(8, &format!("dpd_delay = {}s", plan.dpd_delay_s));
    text.why(8, Topic::Authentication);
    text.line(8, "local {");
    text.line(12, "auth = pubkey");
    text.line(8, "}");
    text.line(8, "remote {");
    text.line(12, "auth = pubkey");
    text.line(8, "}");
    text.line(8, "children {");
    text.line(12, "net {");
    child(text, plan);
    for indent in [12, 8, 4, 0] {
        text.line(indent, "}");
    }
    text.why(0, Topic::Mtu);
    text.remark(
        0,
        &format!(
            "In strongswan.conf: charon.plugins.kernel-netlink.mtu = {} and .mss = {}.",
            plan.mtu, plan.mss
        ),
    );
}

fn child(text: &mut Text<'_>, plan: &IpsecPlan) {
    text.why(16, Topic::Cipher);
    text.line(16, &format!("esp_proposals = {}", esp(plan)));
    text.why(16, Topic::Lifetime);
    text.line(16, &format!("rekey_time = {}s", plan.esp_rekey_s));
    text.line(16, &format!("rekey_packets = {}", REKEY_PACKETS));
    text.why(16, Topic::ReplayWindow);
    text.line(16, &format!("replay_window = {}", plan.replay_window));
    text.line(16, "dpd_action = restart");
    text.why(16, Topic::Processors);
    if plan.per_cpu {
        text.line(16, "per_cpu_sas = yes");
    }
    text.line(16, "start_action = trap");
    text.why(16, Topic::Offload);
    if plan.card {
        text.line(16, "hw_offload = auto");
    }
}

/// Groups offered in one proposal; the hybrid group gets a separate proposal.
fn sets(groups: &[Group]) -> Vec<String> {
    let hybrid = |group: &&Group| **group == Group::Curve25519MlKem768;
    let names = |chosen: Vec<&str>| (!chosen.is_empty()).then(|| chosen.join("-"));
    let with = groups.iter().filter(hybrid);
    let without = groups.iter().filter(|group| !hybrid(group));
    [
        names(with.map(|group| group.names().strongswan).collect()),
        names(without.map(|group| group.names().strongswan).collect()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn ike(plan: &IpsecPlan) -> String {
    let mut proposals = Vec::new();
    for groups in sets(&plan.groups) {
        for cipher in &plan.ike {
            let (cipher, prf) = (cipher.names().strongswan, plan.prf.word());
            proposals.push(format!("{cipher}-prf{prf}-{groups}"));
        }
    }
    proposals.join(", ")
}

fn esp(plan: &IpsecPlan) -> String {
    let mut proposals = Vec::new();
    for groups in sets(&plan.groups) {
        for cipher in &plan.esp {
            proposals.push(format!("{}-{groups}-esn-noesn", cipher.names().strongswan));
        }
    }
    proposals.join(", ")
}
