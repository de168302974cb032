// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The advice for each fixture, goal and format, word by word (`tests/golden/advise/NAME.txt`), and
//! properties of all advice.
//!
//! `MILLRACE_UPDATE_GOLDEN=1 cargo test -p millrace-inspect --test advise` accepts what changed.

mod support;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use millrace_hostfs::Root;
use millrace_inspect::advise::sizes::Sizes;
use millrace_inspect::advise::{
    Advice, AdviceFormat, AdviseRequest, Goal, Subject, Topic, advise, software,
};
use millrace_inspect::kernel::crypto::ComputeSite;
use millrace_inspect::report::Report;
use millrace_inspect::section::Section;
use support::{fixtures, folder, stale};

const SUBJECTS: [Subject; 3] = [Subject::Ipsec, Subject::Openvpn, Subject::Tls];
const GOALS: [Goal; 3] = [Goal::Throughput, Goal::Latency, Goal::Security];

/// Words that may occur in rejected recipes, but never in a choice.
const FORBIDDEN: [&str; 23] = [
    "3des",
    "des-cbc",
    "blowfish",
    "bf-cbc",
    "rc4",
    "md5",
    "sha1",
    "sha-1",
    "modp1024",
    "modp1536",
    "modp768",
    "dh-group2 ",
    "dh-group5 ",
    "dh-group 2 ",
    "dh-group 5 ",
    "lzo",
    "lz4",
    "secret",
    "null",
    "tlsv1.0",
    "tlsv1.1",
    "sslv3",
    "cipher none",
];

/// A fixture, read once.
struct Seen {
    name: String,
    report: Report,
    software: Section<software::InstalledSoftware>,
}

impl Seen {
    fn of(name: &str) -> Self {
        let root = Root::open(folder("fixtures").join(name)).expect(name);
        Self {
            name: name.to_owned(),
            report: Report::of(&root),
            software: software::section(&root),
        }
    }

    /// This machine with programs of other versions.
    fn with(mut self, strongswan: &str, openvpn: &str, nginx: &str) -> Self {
        self.software.known = Some(software::InstalledSoftware {
            strongswan: Some(strongswan.to_owned()),
            openvpn: Some(openvpn.to_owned()),
            nginx: Some(nginx.to_owned()),
            haproxy: None,
        });
        self
    }

    fn advice(&self, subject: Subject, goal: Goal, format: AdviceFormat) -> Advice {
        let request = AdviseRequest { goal, format, ..AdviseRequest::of(subject) };
        advise(&self.report, &self.software, &request)
    }

    fn all(&self) -> Vec<Advice> {
        let mut all = Vec::new();
        for subject in SUBJECTS {
            for goal in GOALS {
                for format in subject.formats() {
                    all.push(self.advice(subject, goal, *format));
                }
            }
        }
        all
    }
}

fn value(advice: &Advice, topic: Topic) -> &str {
    let found = advice.choices.iter().find(|choice| choice.topic == topic);
    &found.expect("a choice").value
}

/// All test machines: the fixtures, without versions and with the newest versions.
fn machines() -> Vec<Seen> {
    let seen = fixtures()
        .into_iter()
        .flat_map(|name| [Seen::of(&name), Seen::of(&name).with("6.0.4", "2.7.0", "1.29.1")]);
    seen.collect()
}

fn shown(seen: &Seen) -> String {
    let mut text = String::new();
    for advice in seen.all() {
        let (subject, goal, format) = (advice.subject, advice.goal, advice.written_for);
        let _ = writeln!(text, "==== {subject:?}, {goal:?}, {format:?}");
        if format == subject.formats()[0] {
            for first in &advice.first {
                let _ = writeln!(text, "first: {first}");
            }
            for choice in &advice.choices {
                let _ = writeln!(text, "{}: {}", choice.topic.name(), choice.value);
                for evidence in &choice.evidence {
                    let _ = writeln!(text, "  {evidence}");
                }
            }
            for rejected in &advice.rejected_alternatives {
                let _ = writeln!(text, "rejected: {}", rejected.recipe);
            }
        }
        let _ = writeln!(text, "\n{}", advice.configuration);
    }
    text
}

#[test]
fn advice_equals_the_golden_files() {
    let stale = stale("tests/golden/advise", "txt", |fixture| shown(&Seen::of(fixture)));
    assert!(
        stale.is_empty(),
        "advice for {stale:?} changed: see the head of this file for how to accept that"
    );
}

#[test]
fn forbidden_algorithms_are_never_chosen() {
    for seen in machines() {
        for advice in seen.all() {
            let lines = advice.configuration.lines();
            let settings = lines.filter(|line| !line.trim_start().starts_with('#'));
            let values = advice.choices.iter().map(|choice| choice.value.as_str());
            for chosen in settings.chain(values) {
                let lower = format!("{} ", chosen.to_lowercase());
                for word in FORBIDDEN {
                    assert!(!lower.contains(word), "{}: {word} in {chosen}", seen.name);
                }
            }
        }
    }
}

#[test]
fn every_choice_has_a_reason_and_no_comment_ends_early() {
    for seen in machines() {
        for advice in seen.all() {
            let mut topics = BTreeSet::new();
            for choice in &advice.choices {
                assert!(!choice.value.is_empty() && choice.reason.len() > 10, "{choice:?}");
                assert!(topics.insert(choice.topic), "{:?} twice", choice.topic);
            }
            let comments = advice.configuration.lines();
            let mut comments = comments.filter(|line| line.trim_start().starts_with('#'));
            assert!(comments.all(|line| line.len() <= 100));
            assert!(advice.configuration.is_ascii());
        }
    }
}

#[test]
fn devices_are_chosen_only_where_they_win() {
    let cipher = |fixture: &str, goal| {
        let advice = Seen::of(fixture).advice(Subject::Ipsec, goal, AdviceFormat::Swanctl);
        value(&advice, Topic::Cipher).to_owned()
    };
    let device = "AES-256-CBC with HMAC-SHA-256, then AES-256-GCM";
    assert_eq!(cipher("atom-c3000", Goal::Throughput), device);
    assert!(cipher("atom-c3000", Goal::Latency).starts_with("AES-128-GCM"));
    assert!(cipher("atom-c3000", Goal::Security).starts_with("AES-256-GCM"));
    // Behind the processor since the kernel lowered its priority; down; silent.
    for fixture in ["qat-4xxx-16vfs", "qat-8970", "qat-down", "qat-heartbeat"] {
        let advice =
            Seen::of(fixture).advice(Subject::Ipsec, Goal::Throughput, AdviceFormat::Swanctl);
        assert!(value(&advice, Topic::Cipher).starts_with("AES-128-GCM"), "{fixture}");
        assert!(advice.first.iter().any(|first| first.contains("QAT")), "{fixture}");
    }
    for fixture in ["arm-a9-router", "arm-a15-router", "devcrypto-router", "no-accelerator"] {
        assert!(cipher(fixture, Goal::Throughput).starts_with("ChaCha20-Poly1305"), "{fixture}");
    }
}

/// Some makers' own drivers support AES-GCM.
#[test]
fn device_with_aes_gcm_is_chosen() {
    let mut seen = Seen::of("atom-c3000");
    let kernel = seen.report.kernel.known.as_mut().expect("the kernel");
    let mut choices = kernel.choices.iter_mut();
    let gcm = choices.find(|choice| choice.algorithm == "rfc4106(gcm(aes))");
    let gcm = gcm.and_then(|choice| choice.candidates.first_mut());
    let gcm = gcm.expect("a candidate");
    gcm.site = ComputeSite::Device;
    gcm.device = Some("Intel QAT".to_owned());
    let advice = seen.advice(Subject::Ipsec, Goal::Throughput, AdviceFormat::Swanctl);
    assert!(value(&advice, Topic::Cipher).starts_with("AES-128-GCM"));
    assert_eq!(value(&advice, Topic::ReplayWindow), "2040 packets");
    assert!(advice.rejected_alternatives.iter().all(|note| !note.recipe.contains("for QAT")));
}

#[test]
fn fips_mode_gets_approved_algorithms_only() {
    let mut seen = Seen::of("aes-ni-vm").with("6.0.4", "2.7.0", "1.29.1");
    let kernel = seen.report.kernel.known.as_mut().expect("the kernel");
    kernel.fips = Some(true);
    for advice in seen.all() {
        let lines = advice.configuration.lines();
        let settings: Vec<String> = lines
            .filter(|line| !line.trim_start().starts_with('#'))
            .map(str::to_lowercase)
            .collect();
        for word in ["chacha", "25519", "mlkem", "dh-group31", "dh-group 31"] {
            assert!(settings.iter().all(|line| !line.contains(word)), "{word}");
        }
    }
}

#[test]
fn router_engine_is_judged_at_the_packet_size() {
    let seen = Seen::of("devcrypto-router");
    let said = |packet_bytes| {
        let request = AdviseRequest { packet_bytes, ..AdviseRequest::of(Subject::Ipsec) };
        let advice = advise(&seen.report, &seen.software, &request);
        let cipher = advice.choices.into_iter().find(|choice| choice.topic == Topic::Cipher);
        cipher.expect("a cipher").evidence.join(" ")
    };
    assert!(said(1_400).contains("was 1.6 times as fast"), "{}", said(1_400));
    assert!(said(64).contains("slower than its processor"));
}

#[test]
fn slow_libraries_come_first() {
    let advice = Seen::of("arm-a15-router").advice(
        Subject::Openvpn,
        Goal::Throughput,
        AdviceFormat::Openvpn,
    );
    assert!(advice.first[0].contains("usr/lib/libcrypto.so.3"), "{:?}", advice.first);
}

#[test]
fn newer_programs_get_newer_features() {
    let new = || Seen::of("h100-host").with("6.0.4", "2.7.0", "1.29.1");
    let mut seen = new();
    if let Some(machine) = seen.report.machine.known.as_mut() {
        machine.kernel = Some("6.16.3".to_owned());
    }
    let text = |subject, format| seen.advice(subject, Goal::Throughput, format).configuration;
    assert!(text(Subject::Ipsec, AdviceFormat::Swanctl).contains("per_cpu_sas = yes"));
    assert!(text(Subject::Openvpn, AdviceFormat::Vyos).contains("offload dco"));
    assert!(text(Subject::Tls, AdviceFormat::Nginx).contains("ssl_session_tickets on"));
    // OpenVPN 2.6 cannot use the kernel's own module.
    let old = seen.with("5.9.8", "2.6.14", "1.22.1");
    let advice = old.advice(Subject::Openvpn, Goal::Throughput, AdviceFormat::Vyos);
    assert!(!advice.configuration.contains("offload dco"));
    assert!(
        !new()
            .advice(Subject::Ipsec, Goal::Throughput, AdviceFormat::Swanctl)
            .configuration
            .contains("per_cpu")
    );
}

#[test]
fn measurement_outranks_a_rule() {
    let saved = |gcm: f64, chacha: f64| {
        let row = |algorithm: &str, middle: f64| {
            serde_json::json!({
                "algorithm": algorithm, "size": 1420, "implementation": "openssl",
                "micros": [middle * 0.95, middle, middle * 1.05],
            })
        };
        let rows =
            [row("aes-128-gcm", gcm), row("aes-256-gcm", gcm), row("chacha20-poly1305", chacha)];
        let run = serde_json::json!({"format": "millrace-bench-sizes-1", "described": "a machine", "measured": rows});
        Sizes::parse(run.to_string().as_bytes()).expect("a run")
    };
    let advice = |fixture: &str, gcm, chacha| {
        let seen = Seen::of(fixture);
        let request = AdviseRequest {
            sizes: Some(saved(gcm, chacha)),
            ..AdviseRequest::of(Subject::Openvpn)
        };
        advise(&seen.report, &seen.software, &request)
    };
    let slower = advice("aes-ni-vm", 3.0, 1.0);
    assert!(value(&slower, Topic::Cipher).starts_with("ChaCha20"));
    let faster = advice("arm-a9-router", 1.0, 3.0);
    assert!(value(&faster, Topic::Cipher).starts_with("AES-128-GCM"));
    // A run of another processor decides nothing.
    let seen = Seen::of("arm-a9-router");
    let row = serde_json::json!({"algorithm": "aes-128-gcm", "size": 1420, "implementation": "openssl", "micros": [1.0]});
    let mut other = row.clone();
    other["algorithm"] = "chacha20-poly1305".into();
    other["micros"] = serde_json::json!([2.0]);
    let run = serde_json::json!({"format": "millrace-bench-sizes-1", "machine": {"cpu": "another"}, "measured": [row, other]});
    let request = AdviseRequest {
        sizes: Sizes::parse(run.to_string().as_bytes()).ok(),
        ..AdviseRequest::of(Subject::Openvpn)
    };
    let foreign = advise(&seen.report, &seen.software, &request);
    assert!(value(&foreign, Topic::Cipher).starts_with("ChaCha20"));
    let same = advice("arm-a9-router", 1.0, 1.02);
    assert!(value(&same, Topic::Cipher).starts_with("ChaCha20"));
    let cipher = same.choices.iter().find(|choice| choice.topic == Topic::Cipher);
    let evidence = cipher.expect("a cipher").evidence.join(" ");
    assert!(evidence.contains("no measurable difference"), "{evidence}");
}

/// The keys that swanctl.conf(5) of strongSwan 6.0 has, in the sections where they are used here.
fn swanctl_keys(section: &str) -> &'static [&'static str] {
    match section {
        "gateway" => &["version", "proposals", "rekey_time", "dpd_delay"],
        "local" | "remote" => &["auth"],
        "net" => &[
            "esp_proposals",
            "rekey_time",
            "rekey_packets",
            "replay_window",
            "dpd_action",
            "per_cpu_sas",
            "start_action",
            "hw_offload",
        ],
        _ => &[],
    }
}

/// strongSwan's keywords (proposal_keywords_static.txt) that may be in a proposal here.
const KEYWORDS: [&str; 14] = [
    "aes128gcm16",
    "aes256gcm16",
    "chacha20poly1305",
    "aes256",
    "sha256",
    "prfsha256",
    "prfsha384",
    "curve25519",
    "ecp256",
    "ecp384",
    "ke1_mlkem768",
    "esn",
    "noesn",
    "none",
];

#[test]
fn swanctl_uses_only_keys_and_keywords_of_strongswan() {
    for seen in machines() {
        for goal in GOALS {
            let text = seen.advice(Subject::Ipsec, goal, AdviceFormat::Swanctl).configuration;
            let mut sections: Vec<String> = Vec::new();
            for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
                if let Some(name) = line.strip_suffix(" {") {
                    sections.push(name.to_owned());
                } else if line == "}" {
                    assert!(sections.pop().is_some(), "one too many: {text}");
                } else {
                    let (key, value) = line.split_once(" = ").expect(line);
                    let section = sections.last().expect("a section");
                    assert!(swanctl_keys(section).contains(&key), "{section}.{key}");
                    if key.ends_with("proposals") {
                        for proposal in value.split(", ") {
                            assert_proposal(proposal, key == "proposals");
                        }
                    }
                }
            }
            assert!(sections.is_empty(), "not closed: {text}");
        }
    }
}

fn assert_proposal(proposal: &str, ike: bool) {
    let words: Vec<&str> = proposal.split('-').collect();
    assert!(words.iter().all(|word| KEYWORDS.contains(word)), "{proposal}");
    // IKE needs a PRF; and integrity comes with the cipher, or beside it.
    assert_eq!(words.iter().any(|word| word.starts_with("prf")), ike, "{proposal}");
    assert_eq!(words.contains(&"aes256"), words.contains(&"sha256"), "{proposal}");
}

#[test]
fn vyos_gets_a_hash_with_every_proposal() {
    for seen in machines() {
        let text = seen.advice(Subject::Ipsec, Goal::Throughput, AdviceFormat::Vyos).configuration;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.starts_with("set "), "{line}");
            if let Some((head, _)) = line.split_once(" encryption ") {
                assert!(text.contains(&format!("{head} hash ")), "{line}");
            }
        }
    }
}

#[test]
fn bundles_and_hostile_names_change_nothing() {
    let tree = tempfile::tempdir().expect("a folder");
    let status = tree.path().join("var/lib/dpkg");
    fs::create_dir_all(&status).expect("a folder");
    let evil = "Package: strongswan\nVersion: 6.0.4\r}\x1b[2J\nPackage: openvpn\nVersion: \0\n";
    fs::write(status.join("status"), evil).expect("a file");
    let root = Root::open(tree.path()).expect("a root");
    let (report, software) = (Report::of(&root), software::section(&root));
    for subject in SUBJECTS {
        let advice = advise(&report, &software, &AdviseRequest::of(subject));
        assert!(!advice.configuration.contains(['\r', '\x1b', '\0']));
    }
}
