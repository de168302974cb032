// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The doctor, on machines where each check fires and on others where it does not.

mod cases;
mod machine;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use millrace_hostfs::Root;
use millrace_inspect::doctor::{CHECKS, Diagnosis, Finding, Severity, diagnose, judge, system};
use millrace_inspect::report::Report;

use self::cases::{A9_LIBRARY, CASES, Case, OPENVPN, QAT_FOLDER, SWANCTL};
use self::machine::Change::{Edit, File, Gone};
use self::machine::{Machine, build};

fn examine(machine: Machine) -> Diagnosis {
    let folder = build(machine);
    let root = Root::open(folder.path()).expect("a root");
    diagnose(&root, |_| true)
}

fn found<'a>(diagnosis: &'a Diagnosis, id: &str) -> Option<&'a Finding> {
    diagnosis.findings.iter().find(|finding| finding.id == id)
}

#[test]
fn every_check_fires_where_it_should_and_only_there() {
    let mut wrong = Vec::new();
    for Case { id, fires, silent } in CASES {
        match found(&examine(*fires), id) {
            None => wrong.push(format!("{id} is silent where it should fire")),
            Some(finding) => {
                let full = !finding.title.is_empty()
                    && !finding.evidence.is_empty()
                    && !finding.consequence.is_empty()
                    && !finding.remedy.is_empty();
                if !full {
                    wrong.push(format!("{id} does not say everything: {finding:?}"));
                }
            }
        }
        if let Some(finding) = found(&examine(*silent), id) {
            wrong.push(format!(
                "{id} fires where it should be silent: {:?}",
                finding.evidence
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_check_has_a_case_and_an_id_of_its_own() {
    let cases: BTreeSet<&str> = CASES.iter().map(|case| case.id).collect();
    let checks: BTreeSet<&str> = CHECKS.iter().map(|check| check.id).collect();
    assert_eq!(cases, checks);
    assert_eq!(checks.len(), CHECKS.len(), "an id is there twice");
}

#[test]
fn the_guide_names_every_check() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/doctor.md");
    let guide = fs::read_to_string(guide).expect("docs/guide/doctor.md");
    let row =
        |check: &millrace_inspect::doctor::Check| format!("| `{}` | {} |", check.id, check.about);
    let missing: Vec<String> = CHECKS
        .iter()
        .map(row)
        .filter(|row| !guide.contains(row))
        .collect();
    assert!(
        missing.is_empty(),
        "not in the guide:\n{}",
        missing.join("\n")
    );
}

#[test]
fn the_worst_is_first_and_some_may_be_left_out() {
    let folder = build(("qat-heartbeat", &[]));
    let root = Root::open(folder.path()).expect("a root");
    let all = diagnose(&root, |_| true);
    assert_eq!(all.worst(), Some(Severity::Critical));
    assert!(all.findings.is_sorted_by_key(|finding| finding.severity));
    let one = diagnose(&root, |check| check.id == "qat-link");
    assert_eq!((one.checks, one.findings.len()), (1, 0));
}

/// Two looks tell what hangs from what is on its way.
#[test]
fn requests_that_are_answered_meanwhile_are_not_stuck() {
    const COUNTERS: &str = "sys/kernel/debug/qat_4xxx_0000:6b:00.0/fw_counters";
    let folder = build(("qat-heartbeat", &[]));
    let look = || Report::of(&Root::open(folder.path()).expect("a root"));
    let system = system::section(&Root::open(folder.path()).expect("a root"));
    let before = look();
    let earlier = before.qat.known.as_ref();
    let stuck = |report: &Report| {
        let diagnosis = judge(report, &system, earlier, |check| check.id == "qat-stuck");
        diagnosis.findings.first().map(|finding| finding.severity)
    };
    assert_eq!(stuck(&before), Some(Severity::Critical));
    let text = fs::read_to_string(folder.path().join(COUNTERS)).expect("counters");
    let moved = text.replace("69488", "69999");
    assert_ne!(moved, text);
    fs::write(folder.path().join(COUNTERS), moved).expect("counters");
    assert_eq!(stuck(&look()), None);
}

/// An engine that OpenSSL does not have any more is an error, not a remark.
#[test]
fn an_engine_with_openssl_4_is_critical() {
    let diagnosis = examine((
        "arm-a9-router",
        &[
            Edit(A9_LIBRARY, "OpenSSL 3.0.20", "OpenSSL 4.0.10"),
            File(OPENVPN, "engine devcrypto\n"),
        ],
    ));
    let finding = found(&diagnosis, "openssl-engine").expect("a finding");
    assert_eq!(
        finding.severity,
        Severity::Critical,
        "{:?}",
        finding.evidence
    );
}

/// What systemd itself says of the units.
#[test]
fn units_are_well_formed() {
    let program = Path::new("/usr/bin/systemd-analyze");
    if !program.exists() {
        eprintln!("skipped: there is no systemd-analyze");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["millrace-doctor.service", "millrace-doctor.timer"] {
        let unit = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../deploy")
            .join(name);
        let text = fs::read_to_string(unit).expect("a unit");
        // A program that is there, and no manual page.
        let text = text
            .replace("/usr/bin/millrace ", "/bin/true ")
            .replace("Documentation=man:millrace-doctor(1)\n", "");
        fs::write(folder.path().join(name), text).expect("a unit");
    }
    let output = std::process::Command::new(program)
        .args(["verify", "--recursive-errors=no"])
        .arg(folder.path().join("millrace-doctor.service"))
        .arg(folder.path().join("millrace-doctor.timer"))
        .output()
        .expect("systemd-analyze");
    let said = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("millrace-doctor"))
        .collect();
    assert!(ours.is_empty(), "{ours:#?}");
}

/// Services without instances for the kernel, of either kind.
#[test]
fn services_decide_whether_the_kernel_is_served() {
    for services in ["sym\n", "dc\n", "asym\n"] {
        let folder = build(("qat-heartbeat", &[Gone("sys/kernel/debug")]));
        fs::write(
            folder.path().join(QAT_FOLDER).join("cfg_services"),
            services,
        )
        .expect("services");
        let diagnosis = diagnose(&Root::open(folder.path()).expect("a root"), |_| true);
        assert!(
            found(&diagnosis, "qat-no-kernel-instances").is_some(),
            "{services}"
        );
    }
}

/// No secret of a configuration is in a diagnosis or in a bundle.
#[test]
fn secrets_stay_where_they_are() {
    let folder = build((
        "qat-8970",
        &[
            File(
                SWANCTL,
                "connections { a { dpd_delay = 1s } }\nsecrets {\n  ike-a {\n    secret = hunter2hunter2\n  }\n}\n",
            ),
            File(
                OPENVPN,
                "comp-lzo\n<key>\n-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END PRIVATE KEY-----\n</key>\n",
            ),
            File(
                "etc/haproxy/haproxy.cfg",
                "listen s\n  stats auth admin:hunter2hunter2\n",
            ),
        ],
    ));
    let root = Root::open(folder.path()).expect("a root").recording();
    let system = system::section(&root);
    let text = serde_json::to_string(&system).expect("JSON");
    assert!(text.contains("dpd_delay") && text.contains("comp-lzo"));
    let mut bundle = Vec::new();
    root.into_record()
        .write_bundle(&mut bundle)
        .expect("a bundle");
    let replay = Root::from_bundle(bundle.as_slice()).expect("a bundle");
    let mut kept = String::new();
    for path in [SWANCTL, OPENVPN, "etc/haproxy/haproxy.cfg"] {
        kept.push_str(&replay.text(path, 1 << 20).unwrap_or_default());
    }
    assert!(
        kept.contains("dpd_delay") && kept.contains("comp-lzo"),
        "{kept}"
    );
    for secret in ["hunter2", "MIGHAgEA"] {
        assert!(
            !text.contains(secret) && !kept.contains(secret),
            "{secret}: {kept}"
        );
    }
    assert_eq!(system::section(&replay).known, system.known);
    // The kernel's command line is kept in no bundle, and of it only what is judged in a section.
    assert!(system.known.is_some_and(|system| system.boot.is_empty()));
}
