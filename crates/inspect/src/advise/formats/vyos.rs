// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The `set` commands of VyOS 1.4 and later.

use super::{Text, openssl_groups, openvpn_ciphers};
use crate::advise::Topic;
use crate::advise::algorithm::Cipher;
use crate::advise::rules::{IpsecPlan, OpenvpnPlan, REKEY_PACKETS};

pub(super) fn ipsec(text: &mut Text<'_>, plan: &IpsecPlan) {
    const ESP: &str = "set vpn ipsec esp-group MILLRACE";
    const IKE: &str = "set vpn ipsec ike-group MILLRACE";
    const PEER: &str = "set vpn ipsec site-to-site peer PEER";
    text.remark(
        0,
        "Replace PEER and vti0 by your own names, and add addresses and certificates.",
    );
    let group = plan
        .groups
        .iter()
        .find_map(|group| group.names().vyos)
        .unwrap_or(19);
    let hybrid = plan.groups.iter().any(|group| group.names().vyos.is_none());
    if hybrid || plan.per_cpu || plan.card {
        text.remark(
            0,
            "VyOS has no setting for ML-KEM, security associations per processor, or a card's offload; \
             to use them, write swanctl.conf.",
        );
    }
    text.why(0, Topic::Cipher);
    text.line(0, &format!("{ESP} mode tunnel"));
    for (number, cipher) in plan.esp.iter().enumerate() {
        let number = number + 1;
        let name = cipher.names().vyos;
        text.line(0, &format!("{ESP} proposal {number} encryption {name}"));
        if number == 1 {
            text.remark(
                0,
                "VyOS silently ignores a proposal without hash, although AES-GCM does not use it.",
            );
        }
        text.line(0, &format!("{ESP} proposal {number} hash sha256"));
    }
    text.why(0, Topic::Lifetime);
    text.line(0, &format!("{ESP} lifetime {}", plan.esp_rekey_s));
    text.line(0, &format!("{ESP} life-packets {}", REKEY_PACKETS));
    text.why(0, Topic::Group);
    text.line(0, &format!("{ESP} pfs dh-group{group}"));
    text.why(0, Topic::Protocol);
    text.line(0, &format!("{IKE} key-exchange ikev2"));
    text.line(0, &format!("{IKE} lifetime {}", plan.ike_rekey_s));
    text.why(0, Topic::Prf);
    for (number, cipher) in plan.ike.iter().enumerate() {
        let number = number + 1;
        let (name, hash) = (cipher.names().vyos, plan.prf.word());
        text.line(0, &format!("{IKE} proposal {number} dh-group {group}"));
        text.line(0, &format!("{IKE} proposal {number} encryption {name}"));
        text.line(0, &format!("{IKE} proposal {number} hash {hash}"));
        text.line(0, &format!("{IKE} proposal {number} prf prf{hash}"));
    }
    text.why(0, Topic::DeadPeers);
    text.line(0, &format!("{IKE} dead-peer-detection action restart"));
    let delay = plan.dpd_delay_s;
    text.line(0, &format!("{IKE} dead-peer-detection interval {delay}"));
    text.why(0, Topic::Authentication);
    text.line(0, &format!("{PEER} authentication mode x509"));
    text.line(0, &format!("{PEER} ike-group MILLRACE"));
    text.line(0, &format!("{PEER} default-esp-group MILLRACE"));
    text.why(0, Topic::ReplayWindow);
    text.line(0, &format!("{PEER} replay-window {}", plan.replay_window));
    text.why(0, Topic::Mtu);
    text.line(0, &format!("set interfaces vti vti0 mtu {}", plan.mtu));
    text.line(
        0,
        &format!("set interfaces vti vti0 ip adjust-mss {}", plan.mss),
    );
}

pub(super) fn openvpn(text: &mut Text<'_>, plan: &OpenvpnPlan) {
    const TUN: &str = "set interfaces openvpn vtun0";
    text.remark(0, "Add mode, addresses and tls certificates.");
    text.line(0, &format!("{TUN} device-type tun"));
    text.line(0, &format!("{TUN} protocol udp"));
    text.why(0, Topic::Offload);
    if plan.dco {
        text.line(0, &format!("{TUN} offload dco"));
    }
    text.why(0, Topic::Cipher);
    let option = |cipher: &Cipher| match cipher {
        Cipher::Aes128Gcm => Some("aes128gcm"),
        Cipher::Aes256Gcm => Some("aes256gcm"),
        Cipher::ChaCha20Poly1305 | Cipher::Aes256CbcSha256 => None,
    };
    if plan.ciphers.first() == Some(&Cipher::ChaCha20Poly1305) {
        let names = openvpn_ciphers(&plan.ciphers);
        text.remark(
            0,
            "VyOS has no setting for ChaCha20-Poly1305, so this passes OpenVPN's own option.",
        );
        text.line(0, &format!("{TUN} openvpn-option '--data-ciphers {names}'"));
    } else {
        for name in plan.ciphers.iter().filter_map(option) {
            text.line(0, &format!("{TUN} encryption data-ciphers {name}"));
        }
    }
    text.why(0, Topic::Protocol);
    let version = if plan.tls13_only { "1.3" } else { "1.2" };
    text.line(0, &format!("{TUN} tls tls-version-min {version}"));
    text.why(0, Topic::Mtu);
    text.line(
        0,
        &format!("{TUN} openvpn-option '--tun-mtu {}'", plan.tun_mtu),
    );
    text.why(0, Topic::DeadPeers);
    text.line(0, &format!("{TUN} keep-alive interval {}", plan.ping_s));
    let count = plan.restart_s / plan.ping_s.max(1);
    text.line(0, &format!("{TUN} keep-alive failure-count {count}"));
    text.why(0, Topic::Lifetime);
    text.line(
        0,
        &format!("{TUN} openvpn-option '--reneg-sec {}'", plan.rekey_s),
    );
    text.why(0, Topic::Group);
    let groups = openssl_groups(&plan.groups);
    text.line(
        0,
        &format!("{TUN} openvpn-option '--tls-groups {}'", groups),
    );
    text.why(0, Topic::Compression);
    text.line(0, &format!("{TUN} openvpn-option '--allow-compression no'"));
}
