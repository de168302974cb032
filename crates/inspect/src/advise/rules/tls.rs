// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A TLS server: nginx or HAProxy on OpenSSL.

use super::limits::{RECORD_BYTES, SESSION_S};
use super::{choice, ciphers, tls_groups, tls_versions};
use crate::advise::algorithm::{Cipher, ExchangeGroup};
use crate::advise::facts::{AdviseFacts, words};
use crate::advise::handshakes::{HandshakeRun, MeasuredGain};
use crate::advise::software::since;
use crate::advise::{AdviceChoice, AdviceFormat, AdviseRequest, Goal, Topic};

/// A TLS server. Lists are in order of preference.
#[derive(Clone, Debug)]
pub(crate) struct TlsAdvice {
    pub(crate) ciphers: Vec<Cipher>,
    /// The server's order of ciphers counts, not the client's.
    pub(crate) server_order: bool,
    pub(crate) groups: Vec<ExchangeGroup>,
    /// TLS 1.2 is refused.
    pub(crate) tls13_only: bool,
    /// Sessions are resumed by tickets, which the server does not store.
    pub(crate) tickets: bool,
    /// Seconds for which a session can be resumed.
    pub(crate) lifetime_s: u32,
    /// Longest record that is sent, in bytes.
    pub(crate) record_bytes: u32,
    /// The kernel encrypts records.
    pub(crate) kernel_tls: bool,
    /// nginx accepts OpenSSL's own settings (`ssl_conf_command`, from 1.19.4 on).
    pub(crate) conf_command: bool,
}

/// The settings of a TLS server for this machine and goal, and the choices with their reasons.
pub(crate) fn decide(
    facts: &AdviseFacts,
    request: &AdviseRequest,
) -> (TlsAdvice, Vec<AdviceChoice>) {
    let (ciphers, cipher) = ciphers(facts, request);
    let nginx = facts.software.nginx.as_deref();
    // An nginx of unknown version is assumed to have 1.19.4's settings, but not later ones.
    let conf_command = nginx.is_none() || since(nginx, [1, 19, 4]);
    let server_order = ciphers.first() == Some(&Cipher::ChaCha20Poly1305);
    let reason = "older versions are deprecated (RFC 8996); 1.3 is one round trip shorter";
    let (tls13_only, protocol) = tls_versions(request.goal, reason);
    let (groups, mut group) = tls_groups(facts, request.goal, "fast on both sides");
    if can_compute(facts).is_ok() && !facts.openssl_since([3, 5, 0]) {
        let server = server(request.format);
        group = group.with(format!(
            "`millrace gateway {server} --local --pq` adds X25519MLKEM768 to this OpenSSL: its provider brings the \
             group"
        ));
    }
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
        AdviceChoice {
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
        tickets_sent(facts, request),
        handshakes(facts, request),
        choice(Topic::Records, format!("{record_bytes} bytes"), records),
        offload,
        compression(),
    ];
    let plan = TlsAdvice {
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

fn keys() -> AdviceChoice {
    choice(
        Topic::Keys,
        "ECDSA P-256 first, RSA-2048 as well for old clients",
        "a P-256 signature costs a fraction of an RSA-2048 signature; put the RSA key into a pool \
         (`millrace gateway`): a node then computes its signatures instead of this machine",
    )
}

/// The server that a format is for, as `millrace gateway` names it.
fn server(format: AdviceFormat) -> &'static str {
    match format {
        AdviceFormat::Haproxy => "haproxy",
        AdviceFormat::Nginx
        | AdviceFormat::Swanctl
        | AdviceFormat::Openvpn
        | AdviceFormat::Vyos => "nginx",
    }
}

/// The saved run, if it is from this processor.
fn measured<'a>(facts: &AdviseFacts, request: &'a AdviseRequest) -> Option<&'a HandshakeRun> {
    let run = request.handshakes.as_ref();
    run.filter(|run| run.is_from(facts.model.as_deref()))
}

fn tickets_sent(facts: &AdviseFacts, request: &AdviseRequest) -> AdviceChoice {
    let value = match request.format {
        AdviceFormat::Haproxy => {
            "one per handshake: NumTickets = 1 in openssl.cnf, section system_default"
        }
        AdviceFormat::Nginx
        | AdviceFormat::Swanctl
        | AdviceFormat::Openvpn
        | AdviceFormat::Vyos => "one per handshake: ssl_conf_command NumTickets 1",
    };
    let reason = "OpenSSL sends two, and each costs a key derivation, an encryption and a write: 6 % of the CPU \
                  time of a P-256 handshake (measured). A client with one ticket resumes one connection at a time, and gets a \
                  new ticket with it; a stateful ticket names a session in the cache";
    let run = measured(facts, request);
    match run.and_then(|run| run.gain("one-ticket", server(request.format))) {
        Some(MeasuredGain::Less(words) | MeasuredGain::None(words)) => {
            choice(Topic::Tickets, value, reason).with(words)
        }
        None => choice(Topic::Tickets, value, reason),
    }
}

/// Why the provider cannot compute handshakes here.
fn can_compute(facts: &AdviseFacts) -> Result<(), &'static str> {
    if facts.fips {
        return Err("the kernel is in FIPS mode, and these primitives are not validated");
    }
    if !facts.openssl_since([3, 0, 0]) {
        return Err("`millrace gateway --local` needs OpenSSL 3.0");
    }
    Ok(())
}

/// The figure decides, if there is one from this processor.
fn handshakes(facts: &AdviseFacts, request: &AdviseRequest) -> AdviceChoice {
    const BY_OPENSSL: &str = "by OpenSSL alone";
    if let Err(reason) = can_compute(facts) {
        return choice(Topic::Handshakes, BY_OPENSSL, reason).with(facts.openssl_words());
    }
    let server = server(request.format);
    let options = if facts.openssl_since([3, 5, 0]) { "--local" } else { "--local --pq" };
    let value = format!("in the server's process: `millrace gateway {server} {options} --write`");
    let reason = "AWS-LC computes key exchange and key schedule, and OpenSSL's look-ups come from a cache; no node, no \
                  key moved, --remove undoes it";
    match measured(facts, request).and_then(|run| run.gain("local", server)) {
        Some(MeasuredGain::Less(words)) => choice(Topic::Handshakes, value, reason).with(words),
        Some(MeasuredGain::None(words)) => {
            let reason = "the last measurement on this machine shows no gain by local primitives";
            choice(Topic::Handshakes, BY_OPENSSL, reason).with(words)
        }
        None => choice(Topic::Handshakes, value, reason).with(format!(
            "not measured on this machine: `millrace bench tls --local --servers {server}` shows the gain before \
             anything is changed"
        )),
    }
}

fn compression() -> AdviceChoice {
    choice(
        Topic::Compression,
        "static files beforehand, responses at level 1, nothing confidential",
        "a file that `millrace compress` has compressed costs nothing to send compressed and is shorter than any level \
         of gzip makes it: no accelerator beats that; for responses, `millrace gateway nginx --compression` needs a \
         quarter of zlib's time; a response with a token and text of an attacker stays uncompressed (BREACH)",
    )
}

fn resumption(facts: &AdviseFacts, goal: Goal) -> (bool, AdviceChoice) {
    let nginx = facts.software.nginx.as_deref();
    let (tickets, value, reason) = if goal == Goal::Security {
        (
            false,
            "by a cache; tickets of TLS 1.3 are stateful",
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
            "by a shared cache; tickets of TLS 1.3 are stateful",
            "a resumed session costs no private-key operation; nginx before 1.23.2, and HAProxy, keep \
             one ticket key until they restart",
        )
    };
    let choice = choice(Topic::Resumption, value, reason).with(words("nginx", nginx));
    (tickets, choice)
}

fn kernel_tls(facts: &AdviseFacts, goal: Goal, conf_command: bool) -> (bool, AdviceChoice) {
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
        (true, _) => (false, "none", "kernel TLS gains throughput of files, nothing else"),
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
