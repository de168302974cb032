// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Recipes that are often copied, and why they are not taken here.

use super::super::facts::{Aes, Facts, QatUse};
use super::super::{Goal, Instead, Subject, Wish};

/// The notes that concern this machine and this wish.
pub(crate) fn notes(facts: &Facts, wish: &Wish) -> Vec<Instead> {
    let mut notes = match wish.subject {
        Subject::Ipsec => ipsec(facts, wish.goal),
        Subject::Openvpn => openvpn(facts),
        Subject::Tls => tls(),
    };
    if wish.goal == Goal::Latency {
        notes.push(note(
            "idle=poll and processor.max_cstate=1 on the kernel's command line",
            "idle processors at full power take the turbo from those that work, and on a hypervisor they \
             take whole processors; latency is had per service, with /dev/cpu_dma_latency",
        ));
    }
    notes
}

fn note(of: &str, because: &str) -> Instead {
    Instead {
        of: of.to_owned(),
        because: because.to_owned(),
    }
}

fn ipsec(facts: &Facts, goal: Goal) -> Vec<Instead> {
    let mut notes = Vec::new();
    if facts.qat != QatUse::None && facts.gcm_device.is_none() {
        notes.push(note(
            "AES-128-GCM as the best cipher for QAT",
            "the kernel's own driver registers no AES-GCM, so such a tunnel never reaches the device; \
             it may well be the fastest, but by the processor",
        ));
    }
    if matches!(facts.aes, Aes::Wide | Aes::Instructions) {
        notes.push(note(
            "ChaCha20-Poly1305 as the fastest without QAT",
            "that holds for processors without instructions for AES, and this one has them",
        ));
    }
    notes.push(note(
        "3DES, SHA-1, MD5, and the groups 2 and 5 (MODP of 1024 and 1536 bits)",
        "all are broken or forbidden (RFC 8247, RFC 8221, RFC 9395), and none is faster than what is \
         above: 3DES is the slowest of all",
    ));
    notes.push(note(
        "group 14 (MODP of 2048 bits)",
        "still allowed, but an order of magnitude slower than X25519, and weaker",
    ));
    notes.push(note(
        "dead-peer detection every 30 s with a time-out of 120 s, against load",
        "it asks only silent tunnels, so it has no load; IKEv2 ignores the time-out, and a long interval \
         only makes a dead peer stay unnoticed",
    ));
    match goal {
        Goal::Throughput => notes.push(note(
            "no perfect forward secrecy (pfs disable) for throughput",
            "one exchange in an hour is nothing beside its packets, and without it one stolen key opens \
             every hour",
        )),
        Goal::Latency => notes.push(note(
            "a short check value (aes128gcm64) for latency",
            "it saves 8 bytes of a packet and no time, and a forger needs 2^64 times fewer guesses",
        )),
        Goal::Security => notes.push(note(
            "group 16 (MODP of 4096 bits) for security",
            "it is about as strong as P-256, at many times the cost: P-384 is stronger and faster",
        )),
    }
    notes
}

fn openvpn(facts: &Facts) -> Vec<Instead> {
    let mut notes = vec![
        note(
            "a static key, LZO and no integrity, over bonded TAP interfaces",
            "one stolen key opens everything that was ever recorded, compression gives away what is \
             inside, and packets can be forged; OpenVPN 2.7 takes neither, and TAP excludes DCO, which \
             gains more than bonding",
        ),
        note(
            "cipher none, to see what the hardware can",
            "with AES instructions it is a tenth cheaper, not more: the cost is per packet",
        ),
        note(
            "engine devcrypto, afalg or qatengine",
            "OpenSSL 4.0 has no engines any more; those of /dev/crypto and AF_ALG never had AES-GCM, and \
             QAT's leaves packets below 2048 bytes to the processor unless told otherwise",
        ),
    ];
    if matches!(facts.aes, Aes::Wide | Aes::Instructions) {
        notes.push(note(
            "ChaCha20-Poly1305 because a table says it is nearly as fast",
            "inside a tunnel it was measured to cost 1.5 times as much as AES-GCM with AES instructions",
        ));
    }
    notes
}

fn tls() -> Vec<Instead> {
    vec![
        note(
            "TLS 1.0 and 1.1, RC4 or 3DES for old clients",
            "all are forbidden (RFC 8996, RFC 7465), and clients that know nothing else are gone",
        ),
        note(
            "suites with RSA key exchange (AES128-SHA) because they are the fastest",
            "no forward secrecy: who steals the key opens everything that was recorded",
        ),
        note(
            "early data (0-RTT) for latency",
            "what is sent so can be replayed; only an application that knows can allow it",
        ),
    ]
}
