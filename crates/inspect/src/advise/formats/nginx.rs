// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! nginx, inside `http` or `server`.

use super::{Text, openssl_groups};
use crate::advise::Topic;
use crate::advise::algorithm::Cipher;
use crate::advise::rules::TlsPlan;

pub(super) fn write(text: &mut Text<'_>, plan: &TlsPlan) {
    text.why(0, Topic::Protocol);
    let versions = if plan.tls13_only {
        "TLSv1.3"
    } else {
        "TLSv1.2 TLSv1.3"
    };
    text.line(0, &format!("ssl_protocols {versions};"));
    text.why(0, Topic::Cipher);
    text.line(0, &format!("ssl_ciphers {};", tls12(&plan.ciphers)));
    if plan.conf_command {
        let suites = tls13(&plan.ciphers);
        text.line(0, &format!("ssl_conf_command Ciphersuites {suites};"));
    }
    let order = if plan.server_order { "on" } else { "off" };
    text.line(0, &format!("ssl_prefer_server_ciphers {order};"));
    text.why(0, Topic::Group);
    text.line(
        0,
        &format!("ssl_ecdh_curve {};", openssl_groups(&plan.groups)),
    );
    text.why(0, Topic::Keys);
    text.why(0, Topic::Resumption);
    let tickets = if plan.tickets { "on" } else { "off" };
    text.line(0, "ssl_session_cache shared:tls:20m;");
    text.line(0, &format!("ssl_session_timeout {}s;", plan.lifetime_s));
    text.line(0, &format!("ssl_session_tickets {tickets};"));
    text.why(0, Topic::Records);
    text.line(0, &format!("ssl_buffer_size {};", plan.record_bytes));
    text.why(0, Topic::Offload);
    if plan.kernel_tls {
        text.line(0, "ssl_conf_command Options KTLS;");
        text.line(0, "sendfile on;");
    }
}

/// Suites of TLS 1.2, all of them with forward secrecy.
pub(super) fn tls12(ciphers: &[Cipher]) -> String {
    let mut suites = Vec::new();
    for (end, _) in ciphers.iter().filter_map(|cipher| cipher.names().tls) {
        suites.push(format!("ECDHE-ECDSA-{end}"));
        suites.push(format!("ECDHE-RSA-{end}"));
    }
    suites.join(":")
}

/// Suites of TLS 1.3.
pub(super) fn tls13(ciphers: &[Cipher]) -> String {
    let suites = ciphers
        .iter()
        .filter_map(|cipher| Some(cipher.names().tls?.1));
    suites.collect::<Vec<&str>>().join(":")
}
