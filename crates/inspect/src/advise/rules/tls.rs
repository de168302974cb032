// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A TLS server: nginx or HAProxy on OpenSSL.

use super::super::algorithm::{Cipher, Group};
use super::super::facts::{Facts, words};
use super::super::software::since;
use super::super::{Choice, Goal, Request, Topic};
use super::limits::{RECORD_BYTES, SESSION_S};
use super::{choice, ciphers, tls_groups, tls_versions};

#[derive(Clone, Debug)]
pub(crate) struct TlsPlan {
    pub(crate) ciphers: Vec<Cipher>,
    pub(crate) server_order: bool,
    pub(crate) groups: Vec<Group>,
    pub(crate) tls13_only: bool,
    pub(crate) tickets: bool,
    pub(crate) lifetime_s: u32,
    pub(crate) record_bytes: u32,
    pub(crate) kernel_tls: bool,
    /// nginx accepts OpenSSL's own settings (1.19.4).
    pub(crate) conf_command: bool,
}

pub(crate) fn decide(facts: &Facts, request: &Request) -> (TlsPlan, Vec<Choice>) {
    let (ciphers, cipher) = ciphers(facts, request);
    let nginx = facts.software.nginx.as_deref();
    // An nginx of unknown version is assumed to have 1.19.4's settings, but not later ones.
    let conf_command = nginx.is_none() || since(nginx, [1, 19, 4]);
    let server_order = ciphers.first() == Some(&Cipher::ChaCha20Poly1305);
    let reason = "older versions are deprecated (RFC 8996); 1.3 is one round trip shorter";
    let (tls13_only, protocol) = tls_versions(request.goal, reason);
    let (groups, group) = tls_groups(facts, request.goal, "fast on both sides");
    let (kernel_tls, offload) = kernel_tls(facts, request.goal, conf_command);
    let (tickets, resumption) = resumption(facts, request.goal);
    let record_bytes = RECORD_BYTES.of(request.goal);
    let records = match request.goal {
        Goal::Latency => {
            "a record is usable once all of it has arrived: one per segment never waits"
        }
        Goal::Throughput | Goal::Security => "fewer records, check values and calls",
    };
    let choices = vec![
        protocol,
        Choice {
            value: format!(
                "{}, {} order",
                cipher.value,
                if server_order { "server" } else { "client" }
            ),
            ..cipher
        },
        group,
        keys(),
        resumption,
        choice(Topic::Records, format!("{record_bytes} bytes"), records),
        offload,
    ];
    let plan = TlsPlan {
        ciphers,
        server_order,
        groups,
        tls13_only,
        tickets,
        lifetime_s: SESSION_S.of(request.goal),
        record_bytes,
        kernel_tls,
        conf_command,
    };
    (plan, choices)
}

fn keys() -> Choice {
    choice(
        Topic::Keys,
        "ECDSA P-256 first, RSA-2048 as well for old clients",
        "a P-256 signature costs a fraction of an RSA-2048 signature; put the RSA key into a pool \
         (`millrace gateway`): a node then computes its signatures instead of this machine",
    )
}

fn resumption(facts: &Facts, goal: Goal) -> (bool, Choice) {
    let nginx = facts.software.nginx.as_deref();
    let (tickets, value, reason) = if goal == Goal::Security {
        (
            false,
            "by a cache, no tickets",
            "a stolen ticket key decrypts all sessions that used it",
        )
    } else if since(nginx, [1, 23, 2]) {
        (
            true,
            "by a shared cache and tickets",
            "a resumed session costs no private-key operation; this nginx replaces the tickets' keys \
             itself",
        )
    } else {
        (
            false,
            "by a shared cache, no tickets",
            "a resumed session costs no private-key operation; nginx before 1.23.2, and HAProxy, keep \
             one ticket key until they restart",
        )
    };
    let choice = choice(Topic::Resumption, value, reason).with(words("nginx", nginx));
    (tickets, choice)
}

fn kernel_tls(facts: &Facts, goal: Goal, conf_command: bool) -> (bool, Choice) {
    let nginx = facts.software.nginx.as_deref();
    let can = facts.kernel_tls
        && facts.openssl_since([3, 0, 0])
        && (nginx.is_none() || since(nginx, [1, 21, 4]))
        && conf_command;
    let (on, value, reason) = match (can, goal) {
        (true, Goal::Throughput) => (
            true,
            "kernel TLS in nginx",
            "files go to the wire without a copy into the program (sendfile); a proxy gains little. \
             Needs a libssl that was built with it, and is ignored otherwise",
        ),
        (true, _) => (
            false,
            "none",
            "kernel TLS gains throughput of files, nothing else",
        ),
        (false, _) => (
            false,
            "none",
            "kernel TLS needs the module tls, OpenSSL 3.0 built with it, and nginx 1.21.4",
        ),
    };
    let loaded = if facts.kernel_tls { "is" } else { "is not" };
    let choice = choice(Topic::Offload, value, reason)
        .with(format!("the module tls {loaded} loaded"))
        .with(facts.openssl_words())
        .with(words("nginx", nginx));
    (on, choice)
}
