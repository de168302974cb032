// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! OpenVPN 2.6 and later.

use super::{Text, openssl_groups, openvpn_ciphers};
use crate::advise::Topic;
use crate::advise::rules::OpenvpnPlan;

pub(super) fn write(text: &mut Text<'_>, plan: &OpenvpnPlan) {
    text.remark(
        0,
        "For both ends. Add: server or remote, ca (or peer-fingerprint), cert, key, tls-crypt.",
    );
    text.why(0, Topic::Offload);
    text.line(0, "dev tun");
    text.line(0, "proto udp");
    text.line(0, "topology subnet");
    if !plan.dco {
        text.remark(
            0,
            "Nothing in this configuration excludes DCO: no TAP, no compression, no fragment.",
        );
    }
    text.why(0, Topic::Mtu);
    text.line(0, &format!("tun-mtu {}", plan.tun_mtu));
    match plan.mssfix {
        0 => text.line(0, "mssfix 0"),
        bytes => text.line(0, &format!("mssfix {bytes} mtu")),
    }
    text.why(0, Topic::Cipher);
    text.line(
        0,
        &format!("data-ciphers {}", openvpn_ciphers(&plan.ciphers)),
    );
    text.why(0, Topic::Protocol);
    let version = if plan.tls13_only { "1.3" } else { "1.2" };
    text.line(0, &format!("tls-version-min {version}"));
    text.why(0, Topic::Group);
    text.line(0, &format!("tls-groups {}", openssl_groups(&plan.groups)));
    text.remark(
        0,
        "With these groups the server needs no Diffie-Hellman parameters: dh none.",
    );
    text.why(0, Topic::Authentication);
    text.why(0, Topic::Lifetime);
    text.line(0, &format!("reneg-sec {}", plan.rekey_s));
    text.why(0, Topic::DeadPeers);
    let (ping, restart) = (plan.ping_s, plan.restart_s);
    text.line(0, &format!("keepalive {ping} {restart}"));
    text.why(0, Topic::Compression);
    text.line(0, "allow-compression no");
    text.line(0, "persist-tun");
    text.line(0, "persist-key");
}
