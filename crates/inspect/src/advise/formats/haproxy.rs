// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! HAProxy, the section `global`.

use super::nginx::{tls12, tls13};
use super::{Text, openssl_groups};
use crate::advise::Topic;
use crate::advise::rules::TlsPlan;

/// Sessions that are kept: about 4 MB.
const CACHED_SESSIONS: u32 = 20_000;

pub(super) fn write(text: &mut Text<'_>, plan: &TlsPlan) {
    text.line(0, "global");
    text.why(4, Topic::Cipher);
    let suites = tls12(&plan.ciphers);
    text.line(4, &format!("ssl-default-bind-ciphers {suites}"));
    let suites = tls13(&plan.ciphers);
    text.line(4, &format!("ssl-default-bind-ciphersuites {suites}"));
    text.why(4, Topic::Group);
    let groups = openssl_groups(&plan.groups);
    text.line(4, &format!("ssl-default-bind-curves {groups}"));
    text.why(4, Topic::Protocol);
    text.remark(
        4,
        "No tickets: their key is made when HAProxy starts, and kept until it ends.",
    );
    let version = if plan.tls13_only {
        "TLSv1.3"
    } else {
        "TLSv1.2"
    };
    let mut options = format!("ssl-min-ver {version} no-tls-tickets");
    if !plan.server_order {
        options.push_str(" prefer-client-ciphers");
    }
    text.line(4, &format!("ssl-default-bind-options {options}"));
    text.why(4, Topic::Keys);
    text.remark(
        4,
        "resumption: a resumed session costs no private-key operation.",
    );
    text.line(4, &format!("tune.ssl.cachesize {CACHED_SESSIONS}"));
    text.line(4, &format!("tune.ssl.lifetime {}", plan.lifetime_s));
    text.why(4, Topic::Records);
    text.line(4, &format!("tune.ssl.maxrecord {}", plan.record_bytes));
}
