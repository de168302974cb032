// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Recipes that are often copied, and why they are rejected here.

use super::super::facts::{Aes, Facts, QatUse};
use super::super::{Goal, RejectedAlternative, Request, Subject};

/// The recipes that concern this machine and request.
pub(crate) fn alternatives(facts: &Facts, request: &Request) -> Vec<RejectedAlternative> {
    let mut notes = match request.subject {
        Subject::Ipsec => ipsec(facts, request.goal),
        Subject::Openvpn => openvpn(facts),
        Subject::Tls => TLS.to_vec(),
    };
    if request.goal == Goal::Latency {
        notes.push((
            "idle=poll and processor.max_cstate=1 on the kernel's command line",
            "idle processors at full power take turbo from the busy ones, and on a hypervisor they occupy whole \
             processors; a service gets low latency through /dev/cpu_dma_latency",
        ));
    }
    notes
        .into_iter()
        .map(|(recipe, reason)| RejectedAlternative {
            recipe: recipe.to_owned(),
            reason: reason.to_owned(),
        })
        .collect()
}

/// A recipe, and why it is rejected.
type Note = (&'static str, &'static str);

fn ipsec(facts: &Facts, goal: Goal) -> Vec<Note> {
    let mut notes: Vec<Note> = Vec::new();
    if facts.qat != QatUse::None && facts.gcm_device.is_none() {
        notes.push((
            "AES-128-GCM as the best cipher for QAT",
            "the kernel's own driver registers no AES-GCM, so such a tunnel never uses the device; AES-GCM may \
             still be the fastest cipher, on the processor",
        ));
    }
    if matches!(facts.aes, Aes::Wide | Aes::Instructions) {
        notes.push((
            "ChaCha20-Poly1305 as the fastest without QAT",
            "that is true of processors without AES instructions; this one has them",
        ));
    }
    notes.extend([
        (
            "3DES, SHA-1, MD5, and the groups 2 and 5 (MODP of 1024 and 1536 bits)",
            "all are broken or forbidden (RFC 8247, RFC 8221, RFC 9395), and none is faster than the choices \
             above: 3DES is the slowest of all",
        ),
        (
            "group 14 (MODP of 2048 bits)",
            "still allowed, but an order of magnitude slower than X25519, and weaker",
        ),
        (
            "dead-peer detection every 30 s with a time-out of 120 s, to reduce load",
            "only silent tunnels are probed, so probes cause no load; IKEv2 ignores the time-out, and a long \
             interval only delays the detection of a dead peer",
        ),
        match goal {
            Goal::Throughput => (
                "no perfect forward secrecy (pfs disable) for throughput",
                "one exchange an hour is negligible beside an hour of packets, and without it one stolen key \
                 opens every hour",
            ),
            Goal::Latency => (
                "a short check value (aes128gcm64) for latency",
                "it saves 8 bytes of a packet and no time, and forging a packet takes 2^64 times fewer guesses",
            ),
            Goal::Security => (
                "group 16 (MODP of 4096 bits) for security",
                "it is about as strong as P-256 at many times the cost; P-384 is stronger and faster",
            ),
        },
    ]);
    notes
}

fn openvpn(facts: &Facts) -> Vec<Note> {
    let mut notes: Vec<Note> = vec![
        (
            "a static key, LZO and no integrity, over bonded TAP interfaces",
            "one stolen key opens everything ever recorded, compression reveals the content, and packets can be \
             forged; OpenVPN 2.7 supports neither, and TAP excludes DCO, which gains more than bonding",
        ),
        (
            "cipher none, to see what the hardware can",
            "with AES instructions it saves only a tenth: the cost is per packet",
        ),
        (
            "engine devcrypto, afalg or qatengine",
            "OpenSSL 4.0 has no ENGINEs; those of /dev/crypto and AF_ALG never had AES-GCM, and QAT's leaves \
             packets below 2048 bytes to the processor by default",
        ),
    ];
    if matches!(facts.aes, Aes::Wide | Aes::Instructions) {
        notes.push((
            "ChaCha20-Poly1305 because a table shows it nearly as fast",
            "measured inside a tunnel, it cost 1.5 times as much as AES-GCM with AES instructions",
        ));
    }
    notes
}

const TLS: [Note; 3] = [
    (
        "TLS 1.0 and 1.1, RC4 or 3DES for old clients",
        "all are forbidden (RFC 8996, RFC 7465), and clients that support nothing else no longer exist",
    ),
    (
        "suites with RSA key exchange (AES128-SHA) because they are the fastest",
        "no forward secrecy: a thief of the key can decrypt all recorded traffic",
    ),
    (
        "early data (0-RTT) for latency",
        "an attacker can replay it; only an application that knows this can allow it",
    ),
];
