// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The doctor, on machines where each check reports its problem and on machines without the problem.

mod agreement;
mod cases;
mod machine;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use millrace_hostfs::Root;
use millrace_inspect::doctor::advisories::{ADVISORIES, Advisory, advisory};
use millrace_inspect::doctor::{
    CHECKS, Diagnosis, Finding, Observation, Remedy, Severity, diagnose, system,
};

use self::cases::{A9_LIBRARY, CASES, Case, OPENVPN, QAT_FOLDER, SWANCTL};
use self::machine::Change::{self, Edit, File, Gone, Link};
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
fn every_check_reports_its_case_and_no_healthy_machine() {
    let mut wrong = Vec::new();
    for Case { id, fires, silent } in CASES {
        match found(&examine(*fires), id) {
            None => wrong.push(format!("{id} reports nothing on its case")),
            Some(finding) => {
                let full = !finding.title.is_empty()
                    && !finding.evidence.is_empty()
                    && !finding.impact.is_empty()
                    && !finding.remedy.is_empty();
                if !full {
                    wrong.push(format!("{id} leaves something empty: {finding:?}"));
                }
            }
        }
        if let Some(finding) = found(&examine(*silent), id) {
            wrong.push(format!(
                "{id} reports a problem on a healthy machine: {:?}",
                finding.evidence
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_check_has_a_case_and_a_unique_id() {
    let cases: BTreeSet<&str> = CASES.iter().map(|case| case.id).collect();
    let checks: BTreeSet<&str> = CHECKS.iter().map(|check| check.id).collect();
    assert_eq!(cases, checks);
    assert_eq!(checks.len(), CHECKS.len(), "an id occurs twice");
}

#[test]
fn guide_lists_every_check() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/doctor.md");
    let guide = fs::read_to_string(guide).expect("docs/guide/doctor.md");
    let row =
        |check: &millrace_inspect::doctor::Check| format!("| `{}` | {} |", check.id, check.title);
    let missing: Vec<String> = CHECKS.iter().map(row).filter(|row| !guide.contains(row)).collect();
    assert!(missing.is_empty(), "not in the guide:\n{}", missing.join("\n"));
}

#[test]
fn findings_are_sorted_and_selected_by_check() {
    let folder = build(("qat-heartbeat", &[]));
    let root = Root::open(folder.path()).expect("a root");
    let all = diagnose(&root, |_| true);
    assert_eq!(all.worst(), Some(Severity::Critical));
    assert!(all.findings.is_sorted_by_key(|finding| finding.severity));
    let one = diagnose(&root, |check| check.id == "qat-link");
    assert_eq!((one.checks, one.findings.len()), (1, 0));
}

/// The manager's file was replaced by a package while it ran: its release is unknown then.
#[test]
fn manager_of_functions_that_was_replaced_is_restarted() {
    let diagnosis = examine((
        "qat-4xxx-16vfs",
        &[
            File("usr/sbin/qatmgr", "\0QAT_SOFTWARE_VERSION=26.8.0\0"),
            File("proc/78/comm", "qatmgr\n"),
            Link("proc/78/exe", "/usr/sbin/qatmgr (deleted)"),
        ],
    ));
    let finding = found(&diagnosis, "qatlib-manager-version").expect("a finding");
    assert_eq!(finding.evidence, ["proc/78/exe: usr/sbin/qatmgr was replaced after the start"]);
    let restart =
        |remedy: &Remedy| matches!(remedy, Remedy::Run(command) if command.contains("restart qat"));
    assert!(finding.remedy.iter().any(restart), "{finding:?}");
}

/// Two readings tell requests that hang from requests in progress.
#[test]
fn requests_answered_between_two_readings_are_not_stuck() {
    const COUNTERS: &str = "sys/kernel/debug/qat_4xxx_0000:6b:00.0/fw_counters";
    let folder = build(("qat-heartbeat", &[]));
    let root = Root::open(folder.path()).expect("a root");
    let mut observation = Observation::start(&root);
    let stuck = |observation: &Observation<'_>| {
        let diagnosis = observation.diagnosis(|check| check.id == "qat-stuck");
        diagnosis.findings.first().map(|finding| finding.severity)
    };
    assert!(observation.has_open_requests());
    assert_eq!(stuck(&observation), Some(Severity::Warning), "one reading proves nothing");
    observation.repeat();
    assert_eq!(stuck(&observation), Some(Severity::Critical));
    let text = fs::read_to_string(folder.path().join(COUNTERS)).expect("counters");
    let moved = text.replace("69488", "69999");
    assert_ne!(moved, text);
    fs::write(folder.path().join(COUNTERS), moved).expect("counters");
    observation.repeat();
    assert_eq!(stuck(&observation), None);
}

/// The first words of commands in remedies; all of them are programs of a Debian system or ours.
const PROGRAMS: &[&str] = &[
    "adf_ctl",
    "awk",
    "cpupower",
    "crconf",
    "dmesg",
    "echo",
    "grep",
    "head",
    "journalctl",
    "lsof",
    "lspci",
    "millrace",
    "modprobe",
    "mount",
    "nft",
    "ps",
    "sort",
    "sysctl",
    "systemctl",
    "uniq",
    "update-initramfs",
];

/// Why a `Remedy::Run` cannot be copied into a shell, if so.
fn not_runnable(command: &str) -> Option<String> {
    let output = Command::new("sh").args(["-n", "-c", command]).output().expect("sh");
    if !output.status.success() {
        return Some(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let code = command.split("        # ").next().unwrap_or_default();
    if code.contains(['…', '\n']) {
        return Some("it has a placeholder or several lines".to_owned());
    }
    for part in code.split(['|', ';']) {
        // Neither of these separates commands inside quotes.
        let quoted = part.matches('\'').count() % 2 == 1;
        let first = part.split_whitespace().next().unwrap_or_default();
        if !quoted && !PROGRAMS.contains(&first) {
            return Some(format!("{first:?} is not a known program"));
        }
        let placeholder =
            |word: &str| word.len() > 3 && !quoted && word.chars().all(|c| c.is_ascii_uppercase());
        if let Some(word) = part.split_whitespace().find(|word| placeholder(word)) {
            return Some(format!("{word} is a placeholder"));
        }
    }
    None
}

#[test]
fn commands_in_remedies_can_be_copied_into_a_shell() {
    let mut commands = 0;
    let mut wrong = Vec::new();
    for case in CASES {
        for finding in examine(case.fires).findings {
            for remedy in finding.remedy {
                let text = match &remedy {
                    Remedy::Run(command) => {
                        commands += 1;
                        wrong.extend(not_runnable(command).map(|why| format!("{command}: {why}")));
                        continue;
                    }
                    Remedy::Advice(advice) => advice,
                };
                if let [first, ..] = text.split(' ').collect::<Vec<_>>()[..]
                    && PROGRAMS.contains(&first)
                    && not_runnable(text).is_none()
                {
                    wrong.push(format!("{text}: a command given as advice"));
                }
            }
        }
    }
    assert!(commands > 50, "{commands} commands");
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn advice_and_placeholders_are_not_runnable() {
    for prose in [
        "do  modprobe vfio-pci; user space (qatlib) drives it",
        "systemctl restart SERVICE",
        "ip link set dev TUNNEL mtu 1420",
        "echo 1 > /sys/bus/pci/devices/…/state",
        "modprobe x; then reboot",
    ] {
        assert!(not_runnable(prose).is_some(), "{prose}");
    }
    assert_eq!(not_runnable("echo 'sym;asym' > /sys/x        # a comment"), None);
}

/// Addresses become part of commands, so a tree must not choose them freely.
#[test]
fn device_folder_that_is_no_bus_address_is_ignored() {
    let folder = build((
        "no-accelerator",
        &[
            File("sys/bus/pci/devices/0000:00:05.0; reboot/vendor", "0x8086\n"),
            File("sys/bus/pci/devices/0000:00:05.0; reboot/device", "0x4940\n"),
        ],
    ));
    let root = Root::open(folder.path()).expect("a root");
    let diagnosis = diagnose(&root, |check| check.id.starts_with("qat-"));
    assert_eq!(diagnosis.findings, []);
}

/// OpenSSL 4 has no ENGINEs, so the configured one is an error, not a remark.
/// Sizes of another kernel, libcrypto or processor do not hold; the finding names what there is.
#[test]
fn sizes_that_were_measured_elsewhere_are_named() {
    let here = ["Linux 5.15.167", "OpenSSL 3.0.20 7 Apr 2026", "ARMv7 Processor rev 1 (v7l)"];
    let elsewhere = ["Linux 5.15.168", "OpenSSL 3.0.21 9 Jun 2026", "ARMv7 Processor rev 2 (v7l)"];
    for other in 0..here.len() {
        let mut parts = here;
        parts[other] = elsewhere[other];
        let row = format!("{}\taf-alg\taes-cbc\t1500\t1764000000\n", parts.join("; "));
        let changes = vec![cases::KERNEL_BULK, File(cases::BULK_SIZES, row.leak())];
        let diagnosis = examine(("arm-a9-router", changes.leak()));
        let finding = found(&diagnosis, "kernel-bulk-sizes").expect("a finding");
        assert!(finding.evidence.iter().any(|line| line.contains(elsewhere[other])), "{finding:?}");
    }
}

#[test]
fn kernel_that_pays_at_no_size_is_a_notice() {
    let row = "Linux 5.15.167; OpenSSL 3.0.20 7 Apr 2026; ARMv7 Processor rev 1 (v7l)\taf-alg\taes-cbc\t-\t1764000000\n";
    let changes = vec![cases::KERNEL_BULK, File(cases::BULK_SIZES, row)];
    let diagnosis = examine(("arm-a9-router", changes.leak()));
    let finding = found(&diagnosis, "kernel-bulk-sizes").expect("a finding");
    assert!(finding.severity == Severity::Notice && finding.title.contains("slower at every size"));
}

/// A device whose driver the kernel hides from programs serves none of them.
#[test]
fn device_that_linux_hides_from_programs_does_not_silence_the_processor() {
    let driver = "name : cbc(aes)\ndriver : virtio_crypto_aes_cbc\npriority : 500\nselftest : passed\ninternal : no\n";
    for (release, hidden) in [("7.1.9\n", false), ("7.2.0\n", true)] {
        let changes = vec![
            cases::KERNEL_BULK,
            File("proc/crypto", driver),
            File("proc/sys/kernel/osrelease", release),
        ];
        let diagnosis = examine(("aes-ni-vm", changes.leak()));
        assert_eq!(found(&diagnosis, "kernel-bulk-processor").is_some(), hidden, "{release}");
    }
}

/// A filter may allow the family: its kind is not visible.
#[test]
fn filter_of_system_calls_on_a_server_is_a_notice() {
    let changes = vec![
        cases::KERNEL_BULK,
        File("proc/77/comm", "nginx\n"),
        File(
            "proc/77/limits",
            "Max open files            1024              524288               files     \n",
        ),
        File("proc/77/status", "Name:\tnginx\nSeccomp:\t2\n"),
    ];
    let diagnosis = examine(("no-accelerator", changes.leak()));
    let finding = found(&diagnosis, "kernel-bulk-filter").expect("a finding");
    assert_eq!(finding.severity, Severity::Notice);
}

#[test]
fn engine_with_openssl_4_is_critical() {
    let diagnosis = examine((
        "arm-a9-router",
        &[
            Edit(A9_LIBRARY, "OpenSSL 3.0.20", "OpenSSL 4.0.10"),
            File(OPENVPN, "engine devcrypto\n"),
        ],
    ));
    let finding = found(&diagnosis, "openssl-engine").expect("a finding");
    assert_eq!(finding.severity, Severity::Critical, "{:?}", finding.evidence);
}

#[test]
fn systemd_accepts_the_doctor_units() {
    let program = Path::new("/usr/bin/systemd-analyze");
    if !program.exists() {
        millrace_testkit::skip!("no systemd-analyze");
    }
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["millrace-doctor.service", "millrace-doctor.timer"] {
        let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name);
        let text = fs::read_to_string(unit).expect("a unit");
        // A program that exists, and no manual page.
        let text = text
            .replace("/usr/bin/millrace ", "/bin/true ")
            .replace("Documentation=man:millrace-doctor(1)\n", "");
        fs::write(folder.path().join(name), text).expect("a unit");
    }
    let output = Command::new(program)
        .args(["verify", "--recursive-errors=no"])
        .arg(folder.path().join("millrace-doctor.service"))
        .arg(folder.path().join("millrace-doctor.timer"))
        .output()
        .expect("systemd-analyze");
    let said = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("millrace-doctor")).collect();
    assert!(ours.is_empty(), "{ours:#?}");
}

#[test]
fn services_without_kernel_instances_are_reported() {
    for services in ["sym\n", "dc\n", "asym\n"] {
        let folder = build(("qat-heartbeat", &[Gone("sys/kernel/debug")]));
        fs::write(folder.path().join(QAT_FOLDER).join("cfg_services"), services).expect("services");
        let diagnosis = diagnose(&Root::open(folder.path()).expect("a root"), |_| true);
        assert!(found(&diagnosis, "qat-no-kernel-instances").is_some(), "{services}");
    }
}

#[test]
fn secrets_appear_neither_in_diagnosis_nor_bundle() {
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
            File("etc/haproxy/haproxy.cfg", "listen s\n  stats auth admin:hunter2hunter2\n"),
        ],
    ));
    let root = Root::open(folder.path()).expect("a root").recording();
    let system = system::section(&root);
    let text = serde_json::to_string(&system).expect("JSON");
    assert!(text.contains("dpd_delay") && text.contains("comp-lzo"));
    let mut bundle = Vec::new();
    root.into_record().write_bundle(&mut bundle).expect("a bundle");
    let replay = Root::from_bundle(bundle.as_slice()).expect("a bundle");
    let mut kept = String::new();
    for path in [SWANCTL, OPENVPN, "etc/haproxy/haproxy.cfg"] {
        kept.push_str(&replay.text(path, 1 << 20).unwrap_or_default());
    }
    assert!(kept.contains("dpd_delay") && kept.contains("comp-lzo"), "{kept}");
    for secret in ["hunter2", "MIGHAgEA"] {
        assert!(!text.contains(secret) && !kept.contains(secret), "{secret}: {kept}");
    }
    assert_eq!(system::section(&replay).known, system.known);
    // No bundle contains the kernel's command line; a section contains only the parameters that checks judge.
    assert!(system.known.is_some_and(|system| system.boot.is_empty()));
}

const LINES: &str = "lib/modules/6.1.0-28-amd64/modules.dep";
const ALL_KINDS: &str = "kernel/crypto/algif_aead.ko.xz: kernel/crypto/af_alg.ko.xz\n\
                         kernel/crypto/algif_hash.ko.xz: kernel/crypto/af_alg.ko.xz\n\
                         kernel/crypto/algif_skcipher.ko.xz: kernel/crypto/af_alg.ko.xz\n\
                         kernel/crypto/af_alg.ko.xz:\n";
const BUILT_IN: &str = "lib/modules/6.1.0-28-amd64/modules.builtin";

/// The kinds that AF_ALG has on a machine, and the lines that keep kinds out.
fn af_alg(changes: Vec<Change>) -> (Vec<String>, usize) {
    let all = [vec![File("proc/modules", ""), File("proc/cmdline", "ro\n")], changes].concat();
    let folder = build(("no-accelerator", Box::leak(all.into_boxed_slice())));
    let root = Root::open(folder.path()).expect("a root");
    let kernel = millrace_inspect::kernel::section(&root).known.expect("a kernel");
    (kernel.programs.af_alg_kinds, kernel.programs.af_alg_blocked.len())
}

/// The mitigations of CVE-2026-31431 as distributions and its finders published them.
#[test]
fn kinds_that_a_published_mitigation_keeps_out_are_not_there() {
    let dep = || File(LINES, ALL_KINDS);
    let conf = |text| File("etc/modprobe.d/disable-algif.conf", text);
    let cmdline = |text| File("proc/cmdline", text);
    let all = ["aead", "hash", "skcipher"];
    let rest = ["hash", "skcipher"];
    assert_eq!(af_alg(vec![dep()]), (all.map(str::to_owned).to_vec(), 0));
    for change in [
        conf("install algif_aead /bin/false\n"),
        conf("install algif-aead /usr/bin/false\n"),
        conf("blacklist algif_aead\n"),
        cmdline("ro module_blacklist=algif_aead\n"),
        cmdline("ro modprobe.blacklist=algif_aead\n"),
        cmdline("ro initcall_blacklist=algif_aead_init\n"),
    ] {
        assert_eq!(
            af_alg(vec![dep(), change]),
            (rest.map(str::to_owned).to_vec(), 1),
            "{change:?}"
        );
    }
    // The sockets as a whole.
    assert_eq!(af_alg(vec![dep(), conf("install af_alg /bin/false\n")]), (vec![], 1));
    // A module that is loaded already is there, whatever the files say, and so is code that is built in, which only
    // the kernel's own parameter keeps out.
    let loaded = File(
        "proc/modules",
        "algif_aead 16384 0 - Live 0x0\naf_alg 32768 1 algif_aead, Live 0x0\n",
    );
    let (kinds, _) = af_alg(vec![dep(), loaded, conf("install algif_aead /bin/false\n")]);
    assert_eq!(kinds, all);
    let built_in = File(BUILT_IN, "kernel/crypto/algif_aead.ko\nkernel/crypto/af_alg.ko\n");
    let (kinds, _) = af_alg(vec![built_in, conf("install algif_aead /bin/false\n")]);
    assert_eq!(kinds, ["aead"]);
    let (kinds, _) = af_alg(vec![built_in, cmdline("initcall_blacklist=algif_aead_init\n")]);
    assert!(kinds.is_empty(), "{kinds:?}");
}

/// Where lines of the machine keep modules out, no remedy loads them, and the lines are evidence.
#[test]
fn no_remedy_undoes_a_mitigation() {
    let blocked = "install algif_skcipher /bin/false\ninstall algif_aead /bin/false\ninstall algif_hash /bin/false\n\
                   install virtio_crypto /bin/false\nblacklist aesni_intel\n";
    let line = File("etc/modprobe.d/mitigation.conf", blocked);
    for id in ["kernel-bulk-interface", "virtio-crypto-driver", "kernel-portable-aes"] {
        let case = CASES.iter().find(|case| case.id == id).expect("a case");
        let (machine, changes) = case.fires;
        let changes = Box::leak([changes, &[line]].concat().into_boxed_slice());
        let diagnosis = examine((machine, changes));
        let finding = found(&diagnosis, id).expect("a finding");
        let quoted = finding
            .evidence
            .iter()
            .any(|line| line.starts_with("etc/modprobe.d/mitigation.conf: "));
        assert!(quoted, "{finding:?}");
        let loads =
            |remedy: &Remedy| matches!(remedy, Remedy::Run(text) if text.contains("modprobe"));
        assert!(!finding.remedy.iter().any(loads), "{finding:?}");
    }
}

/// The modules and settings that a remedy loads or relaxes, as the table of advisories spells them.
fn loaded_or_relaxed(text: &str) -> Vec<String> {
    const MARKS: &[(&str, &str)] = &[
        ("RestrictAddressFamilies", "RestrictAddressFamilies"),
        ("seccomp", "RestrictAddressFamilies"),
        ("LimitMEMLOCK", "LimitMEMLOCK"),
        ("IPC_LOCK", "LimitMEMLOCK"),
        ("LimitNOFILE", "LimitNOFILE"),
        ("worker_rlimit_nofile", "LimitNOFILE"),
        ("notrack", "notrack"),
        ("nft add", "nft add rule"),
        ("crconf", "crconf"),
        ("mount -t debugfs", "debugfs"),
        ("mount ", "debugfs"),
    ];
    let marked =
        MARKS.iter().filter(|(mark, _)| text.contains(mark)).map(|(_, row)| (*row).to_owned());
    let mut found: Vec<String> = marked.collect();
    let code = text.split("        # ").next().unwrap_or_default();
    for (command, end) in [("modprobe ", "modprobe"), ("sysctl ", "sysctl"), ("insmod ", "insmod")]
    {
        let Some((_, words)) = code.split_once(command) else { continue };
        let words = words.split_whitespace().map(|word| word.trim_matches(['`', '.', ',', ';']));
        if end == "sysctl" {
            found.extend(words.filter_map(|word| Some(word.split_once('=')?.0.to_owned())));
        } else {
            let names = words.filter(|word| !word.starts_with('-') && !word.contains('='));
            found.extend(names.map(str::to_owned));
        }
    }
    found.extend(
        code.split(' ')
            .filter(|word| word.starts_with("algif_"))
            .map(|word| word.trim_matches(['`', '.', ',', ';']).to_owned()),
    );
    found
}

#[test]
fn every_remedy_that_loads_or_relaxes_something_was_read_against_advisories() {
    let mut seen = BTreeSet::new();
    for case in CASES {
        for finding in examine(case.fires).findings {
            for remedy in finding.remedy {
                let (Remedy::Run(text) | Remedy::Advice(text)) = remedy;
                seen.extend(loaded_or_relaxed(&text));
            }
        }
    }
    assert!(seen.len() > 8, "{seen:?}");
    assert!(!seen.contains("algif_aead"), "CVE-2026-31431");
    let unread: Vec<_> = seen.iter().filter(|one| advisory(one).is_none()).collect();
    assert!(unread.is_empty(), "no row in doctor/advisories.rs: {unread:?}");

    // A remedy in a branch that no case takes stands in the source.
    let checks = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/doctor/checks");
    for entry in fs::read_dir(checks).expect("checks").map(Result::unwrap) {
        let text = fs::read_to_string(entry.path()).expect("a source");
        assert!(!text.contains("modprobe "), "{}: use Facts::loading", entry.path().display());
        for line in text.lines().filter(|line| line.contains(".run(") || line.contains(".advise("))
        {
            let unread = loaded_or_relaxed(line)
                .into_iter()
                .find(|one| !one.contains('{') && advisory(one).is_none());
            assert_eq!(unread, None, "{line}");
        }
        for named in text.split("loading(").skip(1).filter_map(|rest| rest.split(')').next()) {
            for module in named.split('"').skip(1).step_by(2).filter(|word| word.contains('_')) {
                if module.starts_with("CONFIG_") {
                    continue;
                }
                let name = module.split([' ', '{']).next().unwrap_or_default();
                assert!(advisory(name).is_some(), "no row for {module}");
            }
        }
    }
}

#[test]
fn advisories_have_a_day_and_the_guide_has_their_table() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/doctor.md");
    let guide = fs::read_to_string(guide).expect("docs/guide/doctor.md");
    for Advisory { remedy, read, date } in ADVISORIES {
        let row = format!("| `{remedy}` | {read} | {date} |");
        assert!(guide.contains(&row), "not in the guide: {row}");
        let numbers: Vec<usize> = date.split('-').filter_map(|part| part.parse().ok()).collect();
        assert!(matches!(numbers[..], [2026..=2100, 1..=12, 1..=31]), "{date}");
    }
}
