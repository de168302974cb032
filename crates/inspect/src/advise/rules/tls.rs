// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A TLS server: nginx or HAProxy on OpenSSL.

use super::super::algorithm::{Cipher, Group};
use super::super::facts::{Facts, words};
use super::super::software::since;
use super::super::{Choice, Goal, Topic, Wish};
use super::{choice, ciphers, groups, names};

/// Largest record of TLS.
const LARGE_RECORD: u32 = 16_384;
/// Below a segment of TCP on the usual path: what arrives can be used.
const SMALL_RECORD: u32 = 1_370;

/// The choices, as values.
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
    /// nginx takes OpenSSL's own settings (1.19.4).
    pub(crate) conf_command: bool,
}

/// Decides.
pub(crate) fn decide(facts: &Facts, wish: &Wish) -> (TlsPlan, Vec<Choice>) {
    let (ciphers, cipher) = ciphers(facts, wish);
    let nginx = facts.software.nginx.as_deref();
    // One whose version is not known is of this decade, but is not asked for what came late in it.
    let conf_command = nginx.is_none() || since(nginx, [1, 19, 4]);
    let server_order = ciphers.first() == Some(&Cipher::ChaCha20Poly1305);
    let tls13_only = wish.goal == Goal::Security;
    let (kernel_tls, offload) = kernel_tls(facts, wish.goal, conf_command);
    let (tickets, resumption) = resumption(facts, wish.goal);
    let (record_bytes, records) = match wish.goal {
        Goal::Latency => (
            SMALL_RECORD,
            "a record is used when all of it is there: one in each segment is never waited for",
        ),
        Goal::Throughput | Goal::Security => {
            (LARGE_RECORD, "fewer records, fewer check values and calls")
        }
    };
    let hybrid = facts.openssl_since([3, 5, 0]) && !facts.fips;
    let groups = groups(facts, wish.goal, hybrid);
    let choices = vec![
        choice(
            Topic::Protocol,
            if tls13_only {
                "TLS 1.3"
            } else {
                "TLS 1.2 and 1.3"
            },
            "older versions are deprecated (RFC 8996); 1.3 is one round trip shorter",
        ),
        Choice {
            value: format!(
                "{}, {} order",
                cipher.value,
                if server_order {
                    "the server's"
                } else {
                    "the client's"
                }
            ),
            ..cipher
        },
        choice(
            Topic::Group,
            names(&groups),
            if hybrid {
                "with ML-KEM, so that what is recorded today stays secret"
            } else {
                "fast on both sides; ML-KEM beside it needs OpenSSL 3.5"
            },
        )
        .with(facts.openssl_words()),
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
        lifetime_s: if tls13_only { 600 } else { 3_600 },
        record_bytes,
        kernel_tls,
        conf_command,
    };
    (plan, choices)
}

fn keys() -> Choice {
    choice(
        Topic::Keys,
        "ECDSA P-256 first, RSA-2048 beside it for old clients",
        "a signature with P-256 costs a fraction of one with RSA-2048 by itself; pool the RSA key \
         (`millrace gateway`): that is the one whose work a shared node takes off this machine",
    )
}

fn resumption(facts: &Facts, goal: Goal) -> (bool, Choice) {
    let nginx = facts.software.nginx.as_deref();
    let (tickets, value, reason) = if goal == Goal::Security {
        (
            false,
            "by a cache, no tickets",
            "a ticket's key opens all sessions that it was given to",
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
