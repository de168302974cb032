// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Findings about the libraries in the server and its environment.

use super::*;

#[test]
fn static_openssl_is_reported() {
    let machine = Machine::new(Server::Nginx);
    machine.put("proc/101/maps", "1000-2000 r-xp 00000000 fe:00 7 /usr/sbin/nginx\n");
    let report = machine.report();
    let openssl = &report.findings[1];
    assert_eq!((openssl.check, openssl.outcome), ("openssl", CheckOutcome::Failure));
    assert!(openssl.seen.contains("no shared OpenSSL"), "{openssl:?}");
}

#[test]
fn unsuitable_libraries_are_findings() {
    let machine = Machine::new(Server::Nginx);
    machine.change("proc/101/maps", "libcrypto.so.3", "libcrypto.so.1.1");
    machine.expect(CheckOutcome::Failure, "openssl", "OpenSSL 1.1");
    let machine = Machine::new(Server::Nginx);
    machine.change("proc/101/maps", "libssl.so.3\n", "libssl.so.3 (deleted)\n");
    machine.expect(CheckOutcome::Warning, "openssl", "was replaced");
    let machine = Machine::new(Server::Nginx);
    machine.change("proc/101/maps", "millrace.so\n", "millrace.so (deleted)\n");
    machine.expect(CheckOutcome::Warning, "provider", "was replaced");
    let machine = Machine::new(Server::Haproxy);
    machine.change(
        "proc/101/maps",
        "libssl.so.3\n",
        "libssl.so.3\n1-2 r 0 0:0 7 /lib/ld-musl-x86_64.so.1\n",
    );
    machine.expect(CheckOutcome::Warning, "openssl", "musl");
}

#[test]
fn missing_preload_fails_nginx_and_warns_haproxy() {
    let machine = Machine::new(Server::Nginx);
    machine.change("proc/101/maps", "libmillrace_preload.so", "other.so");
    machine.expect(CheckOutcome::Failure, "waiting", "not in nginx");
    machine.change("proc/100/environ", "A=1", "LD_PRELOAD=/x/libmillrace_preload.so");
    machine.expect(CheckOutcome::Failure, "waiting", "LD_PRELOAD=/x/libmillrace_preload.so");
    let machine = Machine::new(Server::Haproxy);
    machine.change("proc/101/maps", "libmillrace_preload.so", "other.so");
    machine.expect(CheckOutcome::Warning, "preload", "loses memory");
    machine.change("haproxy.cfg", "ssl-mode-async", "# ssl-mode-async");
    machine.expect(CheckOutcome::Failure, "waiting", "no ssl-mode-async");
}

#[test]
fn missing_openssl_conf_is_reported() {
    let machine = Machine::new(Server::Nginx);
    machine.put("proc/100/environ", "A=1\0");
    machine.change("proc/101/maps", "millrace.so\n", "other.so\n");
    let failures: Vec<&str> = machine
        .report()
        .findings
        .iter()
        .filter(|finding| finding.outcome == CheckOutcome::Failure)
        .map(|finding| finding.check)
        .collect();
    assert_eq!(failures[0], "environment", "the cause comes first: {failures:?}");
}

/// Unit files are read from the root of the machine, so this test passes their content directly.
#[test]
fn effect_of_systemd_on_the_environment_is_reported() {
    let machine = Machine::new(Server::Nginx);
    machine.change("proc/101/maps", "millrace.so\n", "other.so\n");
    let judged = |change: &dyn Fn(&mut evidence::Evidence)| {
        let options = machine.options();
        let mut report = machine.report();
        report.findings.clear();
        let Gathered::Evidence(mut evidence) = evidence::gather(&options, &mut report) else {
            panic!("it runs")
        };
        change(&mut evidence);
        let _ = judge::judge(&options, &evidence, &machine, &mut report);
        let about = |finding: &CheckFinding| finding.check == "environment";
        report.findings.into_iter().filter(about).collect::<Vec<_>>()
    };
    let unset = judged(&|evidence| {
        evidence.openssl_conf.value = None;
        evidence.openssl_conf.unset_by = Some(PathBuf::from("/etc/x.conf"));
    });
    assert_eq!((unset.len(), unset[0].outcome), (1, CheckOutcome::Failure));
    let remedy = unset[0].remedy.as_deref().expect("what to do");
    assert!(remedy.starts_with("take OPENSSL_CONF out of UnsetEnvironment= in /etc/x.conf"));
    let unread = judged(&|evidence| {
        evidence.unread = vec!["EnvironmentFile=/etc/v in /u: not text".to_owned()];
    });
    let outcomes: Vec<CheckOutcome> = unread.iter().map(|finding| finding.outcome).collect();
    assert_eq!(outcomes, [CheckOutcome::Unseen, CheckOutcome::Good], "{unread:?}");
    assert!(unread[0].seen.contains("/etc/v") && unread[0].remedy.is_some());
}

#[test]
fn missing_module_is_reported() {
    let machine = Machine::new(Server::Nginx);
    machine.change("proc/101/maps", "millrace.so\n", "other.so\n");
    machine.change("openssl.cnf", "millrace.so", "missing/millrace.so");
    machine.expect(CheckOutcome::Failure, "provider", "missing/millrace.so does not exist");
    machine.change("openssl.cnf", "missing/", "");
    machine.expect(CheckOutcome::Failure, "provider", "not loaded");
}
