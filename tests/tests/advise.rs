// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The target programs accept the configurations of `millrace advise`: nginx and HAProxy check them, and two ends
//! of OpenVPN connect with them. (The inspect crate's tests check swanctl.conf and the `set` commands.)

use std::fs;
use std::path::Path;
use std::process::Command;

use millrace_tests::artifacts::{artifacts, workspace};
use millrace_tests::drive::Tls;
use millrace_tests::openvpn::{End, Tunnel};
use millrace_tests::pki::{Authority, KeyKind};
use millrace_tests::process::{run, succeed, text_of};
use millrace_tests::release;

/// A processor with AES, one without, and a link with jumbo frames.
const FIXTURES: [&str; 3] = ["aes-ni-vm", "arm-a9-router", "qat-4xxx-16vfs"];
const GOALS: [&str; 3] = ["throughput", "latency", "security"];

fn advise(fixture: &str, arguments: &[&str]) -> Command {
    let root = workspace().join("crates/inspect/fixtures").join(fixture);
    let mut command = Command::new(&artifacts().millrace);
    command.arg("advise").args(arguments).arg("--root").arg(root);
    command
}

/// The configuration without the page.
fn configuration(fixture: &str, arguments: &[&str]) -> String {
    let text = succeed(advise(fixture, arguments).arg("--json"));
    let advice: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let text = advice["configuration"].as_str();
    text.expect("a configuration").to_owned()
}

fn every(what: &str, format: &str, mut check: impl FnMut(&str, &str, &str)) {
    for fixture in FIXTURES {
        for goal in GOALS {
            let text = configuration(fixture, &[what, "--goal", goal, "--format", format]);
            check(fixture, goal, &text);
        }
    }
}

/// A certificate with its key, in one file.
fn bundle(dir: &Path, authority: &Authority) -> std::path::PathBuf {
    let identity = authority.identity(KeyKind::P256);
    let file = dir.join("site.pem");
    let pem = format!("{}{}", identity.certificate_pem, identity.key_pem);
    fs::write(&file, pem).expect("a file");
    file
}

#[test]
fn nginx_accepts_the_configuration() {
    let dir = tempfile::tempdir().expect("a folder");
    let pem = bundle(dir.path(), &Authority::new(dir.path()));
    every("tls", "nginx", |fixture, goal, text| {
        let (root, pem) = (dir.path().display(), pem.display());
        let file = dir.path().join(format!("{fixture}-{goal}.conf"));
        let whole = format!(
            "pid {root}/nginx.pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n\
             client_body_temp_path {root};\nproxy_temp_path {root};\nfastcgi_temp_path {root};\n\
             uwsgi_temp_path {root};\nscgi_temp_path {root};\n{text}\nserver {{\n\
             listen unix:{root}/nginx.sock ssl;\nssl_certificate {pem};\nssl_certificate_key {pem};\n\
             }}\n}}\n"
        );
        fs::write(&file, whole).expect("a file");
        let said = succeed(release::command("nginx").arg("-t").arg("-c").arg(&file));
        assert!(said.contains("test is successful"), "{fixture}, {goal}: {said}");
    });
}

#[test]
fn haproxy_accepts_the_configuration() {
    let dir = tempfile::tempdir().expect("a folder");
    let pem = bundle(dir.path(), &Authority::new(dir.path()));
    every("tls", "haproxy", |fixture, goal, text| {
        let (root, pem) = (dir.path().display(), pem.display());
        let file = dir.path().join(format!("{fixture}-{goal}.cfg"));
        let whole = format!(
            "{text}\ndefaults\n    mode http\n    timeout client 1s\n    timeout server 1s\n    \
             timeout connect 1s\nfrontend site\n    bind unix@{root}/haproxy.sock ssl crt {pem}\n"
        );
        fs::write(&file, whole).expect("a file");
        let said = succeed(release::command("haproxy").arg("-c").arg("-f").arg(&file));
        assert!(!said.contains("ALERT"), "{fixture}, {goal}: {said}");
    });
}

#[test]
fn two_ends_of_openvpn_connect_with_the_configuration() {
    let dir = tempfile::tempdir().expect("a folder");
    let authority = Authority::new(dir.path());
    let identity = authority.identity(KeyKind::P256);
    every("openvpn", "openvpn", |fixture, goal, text| {
        // Without a network device, so that no privilege is needed.
        let lines = text.replace("dev tun\n", "");
        assert_ne!(lines, text, "the configuration names its device");
        let ends = dir.path().join(format!("{fixture}-{goal}"));
        fs::create_dir(&ends).expect("a folder");
        let tunnel = Tunnel::point_to_point(
            &ends,
            &authority,
            Tls::V13,
            End::plain(&identity).with(&lines),
            End::plain(&identity).with(&lines),
        );
        let first = if fixture == "arm-a9-router" { "CHACHA20-POLY1305" } else { "AES-" };
        let log = tunnel.client.log();
        let said = format!("Data Channel: cipher '{first}");
        assert!(log.contains(&said), "{fixture}, {goal}: {said} in\n{log}");
        assert!(!log.contains("DEPRECATED"), "{fixture}, {goal}: {log}");
    });
}

/// A saved run: OpenSSL's names of ciphers, with three rounds each.
fn saved(gcm_us: f64, chacha_us: f64) -> String {
    let row = |algorithm: &str, micros: f64| {
        serde_json::json!({
            "algorithm": algorithm, "size": 1400, "implementation": "openssl",
            "micros": [micros, micros * 1.01, micros * 1.02],
        })
    };
    let measured = [
        row("aes-128-gcm", gcm_us),
        row("aes-256-gcm", gcm_us),
        row("chacha20-poly1305", chacha_us),
    ];
    serde_json::json!({"format": "millrace-bench-sizes-1", "measured": measured}).to_string()
}

#[test]
fn saved_run_decides_and_other_files_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("sizes.json");
    let name = file.to_str().expect("text");
    fs::write(&file, saved(2.0, 1.0)).expect("a file");
    let text = configuration("aes-ni-vm", &["openvpn", "--sizes-run", name]);
    assert!(text.contains("data-ciphers CHACHA20-POLY1305:"), "{text}");
    for bad in ["", "{", "[]", "\0\0", r#"{"format":"millrace-bench-sizes-1","measured":7}"#] {
        fs::write(&file, bad).expect("a file");
        let output = run(&mut advise("aes-ni-vm", &["openvpn", "--sizes-run", name]));
        assert_eq!(output.status.code(), Some(2), "{bad}");
        assert!(text_of(&output).contains("millrace bench sizes"), "{bad}");
    }
    // Larger than any saved run: the file is not read to its end.
    let huge = fs::File::create(&file).expect("a file");
    huge.set_len(1 << 40).expect("a hole");
    for odd in [name, "/dev/zero", dir.path().to_str().expect("text")] {
        let output = run(&mut advise("aes-ni-vm", &["tls", "--sizes-run", odd]));
        assert_eq!(output.status.code(), Some(2), "{odd}");
    }
}

#[test]
fn format_of_another_subject_is_refused_with_the_possible_ones() {
    let output = run(&mut advise("aes-ni-vm", &["tls", "--format", "swanctl"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(text_of(&output).contains("tls takes --format nginx or haproxy"));
}
