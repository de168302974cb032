// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Recipes that are often copied, and why they are rejected here.

use crate::advise::facts::{AdviseFacts, Aes, QatUse};
use crate::advise::{AdviseRequest, Goal, RejectedAlternative, Subject};

/// The recipes that concern this machine and request.
pub(crate) fn alternatives(
    facts: &AdviseFacts,
    request: &AdviseRequest,
) -> Vec<RejectedAlternative> {
    let concerning = RECIPES.iter().filter(|(subject, concerns, ..)| {
        subject.is_none_or(|subject| subject == request.subject) && concerns(facts, request.goal)
    });
    let rejected = concerning.map(|(.., recipe, reason)| RejectedAlternative {
        recipe: (*recipe).to_owned(),
        reason: (*reason).to_owned(),
    });
    rejected.collect()
}

/// The subject (`None` for each), whether the recipe concerns a machine and a goal, the recipe, and why it is
/// rejected.
type Recipe = (Option<Subject>, Concerns, &'static str, &'static str);

type Concerns = fn(&AdviseFacts, Goal) -> bool;

const ALWAYS: Concerns = |_, _| true;

fn has_aes(facts: &AdviseFacts) -> bool {
    matches!(facts.aes, Aes::Wide | Aes::Instructions)
}

const IPSEC: Option<Subject> = Some(Subject::Ipsec);
const OPENVPN: Option<Subject> = Some(Subject::Openvpn);
const TLS: Option<Subject> = Some(Subject::Tls);

#[rustfmt::skip]
const RECIPES: [Recipe; 16] = [
    (IPSEC, |facts, _| facts.qat != QatUse::None && facts.gcm_device.is_none(),
        "AES-128-GCM as the best cipher for QAT",
        "the kernel's own driver registers no AES-GCM, so such a tunnel never uses the device; AES-GCM \
         may still be the fastest cipher, on the processor"),
    (IPSEC, |facts, _| has_aes(facts),
        "ChaCha20-Poly1305 as the fastest cipher without QAT",
        "that holds for processors without AES instructions; this one has them"),
    (IPSEC, ALWAYS,
        "3DES, SHA-1, MD5, and the groups 2 and 5 (MODP of 1024 and 1536 bits)",
        "all are broken or forbidden (RFC 8247, RFC 8221, RFC 9395), and none is faster than the choices \
         above: 3DES is the slowest of all"),
    (IPSEC, ALWAYS,
        "group 14 (MODP of 2048 bits)",
        "still allowed, but an order of magnitude slower than X25519, and weaker"),
    (IPSEC, ALWAYS,
        "dead-peer detection every 30 s with a time-out of 120 s, to reduce load",
        "only silent tunnels are probed, so probes cause no load; IKEv2 ignores the time-out, and a long \
         interval only delays the detection of a dead peer"),
    (IPSEC, |_, goal| goal == Goal::Throughput,
        "no perfect forward secrecy (pfs disable) for throughput",
        "one exchange an hour is negligible beside an hour of packets, and without it one stolen key \
         opens every hour"),
    (IPSEC, |_, goal| goal == Goal::Latency,
        "a truncated ICV (aes128gcm64) for latency",
        "it saves 8 bytes of a packet and no time, and forging a packet takes 2^64 times fewer guesses"),
    (IPSEC, |_, goal| goal == Goal::Security,
        "group 16 (MODP of 4096 bits) for security",
        "it is about as strong as P-256 at many times the cost; P-384 is stronger and faster"),
    (OPENVPN, ALWAYS,
        "a static key, LZO and no integrity, over bonded TAP interfaces",
        "one stolen key opens everything ever recorded, compression reveals the content, and packets can \
         be forged; OpenVPN 2.7 supports neither, and TAP excludes DCO, which gains more than bonding"),
    (OPENVPN, ALWAYS,
        "cipher none, to see what the hardware can",
        "with AES instructions it saves only a tenth: the cost is per packet"),
    (OPENVPN, ALWAYS,
        "engine devcrypto, afalg or qatengine",
        "OpenSSL 4.0 has no ENGINEs; those of /dev/crypto and AF_ALG never had AES-GCM, and QAT's leaves \
         packets below 2048 bytes to the processor by default"),
    (OPENVPN, |facts, _| has_aes(facts),
        "ChaCha20-Poly1305, because guides list it at nearly the throughput of AES-GCM",
        "measured inside a tunnel, it cost 1.5 times as much as AES-GCM with AES instructions"),
    (TLS, ALWAYS,
        "TLS 1.0 and 1.1, RC4 or 3DES for old clients",
        "all are forbidden (RFC 8996, RFC 7465), and clients that support nothing else no longer exist"),
    (TLS, ALWAYS,
        "suites with RSA key exchange (AES128-SHA) because they are the fastest",
        "no forward secrecy: a thief of the key can decrypt all recorded traffic"),
    (TLS, ALWAYS,
        "early data (0-RTT) for latency",
        "an attacker can replay it; only an application that knows this can allow it"),
    (None, |_, goal| goal == Goal::Latency,
        "idle=poll and processor.max_cstate=1 on the kernel's command line",
        "idle processors at full power take turbo from the busy ones, and on a hypervisor they occupy \
         whole processors; a service gets low latency through /dev/cpu_dma_latency"),
];
