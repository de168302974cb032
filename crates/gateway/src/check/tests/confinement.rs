// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Findings about what confines the server.

use super::*;

#[test]
fn lines_of_the_unit_that_stop_the_provider_are_named() {
    let machine = Machine::new(Server::Nginx);
    let at = machine.path("");
    let folder = at.rsplit_once('/').expect("a path").0;
    for (lines, word, cure) in [
        ("RestrictAddressFamilies=AF_INET AF_INET6", "node's socket", "=AF_UNIX"),
        (&format!("InaccessiblePaths=-{at}"), "it hides", "take the path out"),
        (&format!("TemporaryFileSystem={folder}:ro"), "it hides", &format!("BindPaths={at}")),
    ] {
        let found = confined(&machine, &format!("[Service]\n{lines}\n"), "unit");
        assert_eq!(found.len(), 1, "{lines}: {found:?}");
        let finding = &found[0];
        assert_eq!(finding.outcome, CheckOutcome::Failure, "{finding:?}");
        let line = lines.split(':').next().expect("a line").replace("=-", "=");
        let is_named = finding.seen.starts_with(&line) && finding.seen.contains("nginx.service");
        assert!(is_named && finding.seen.contains(word), "{finding:?}");
        let remedy = finding.remedy.as_deref().expect("what to do");
        assert!(remedy.contains(cure) && remedy.contains("systemctl edit"), "{finding:?}");
    }
    for harmless in [
        "RestrictAddressFamilies=AF_UNIX AF_INET\nPrivateNetwork=yes\nIPAddressDeny=any",
        &format!("TemporaryFileSystem={folder}\nBindPaths={at}"),
        "ProtectSystem=strict\nProtectHome=yes\nPrivateTmp=no\nInaccessiblePaths=/srv",
        "",
    ] {
        let found = confined(&machine, &format!("[Service]\n{harmless}\n"), "unit");
        assert!(found.is_empty(), "{harmless}: {found:?}");
    }
    machine.change("openssl.cnf", &format!("unix:{at}/node.sock"), "unix:/tmp/mr/node.sock");
    let found = confined(&machine, "[Service]\nPrivateTmp=yes\n", "unit");
    assert_eq!(found.len(), 1, "{found:?}");
    let seen = "PrivateTmp=yes of nginx.service: it hides /tmp/mr/node.sock";
    assert!(found[0].seen == seen, "{found:?}");
    machine.change("openssl.cnf", "unix:/tmp/mr/node.sock", "tcp:node-1:7433");
    for (lines, cure) in [
        ("RestrictAddressFamilies=AF_UNIX", "AF_INET AF_INET6"),
        ("PrivateNetwork=yes", "by its socket"),
        ("IPAddressDeny=any", "IPAddressAllow="),
    ] {
        let found = confined(&machine, &format!("[Service]\n{lines}\n"), "unit");
        assert_eq!(found.len(), 1, "{lines}: {found:?}");
        assert!(found[0].seen.starts_with(lines), "{found:?}");
        assert!(
            found[0].remedy.as_deref().is_some_and(|remedy| remedy.contains(cure)),
            "{found:?}"
        );
    }
}

#[test]
fn socket_that_a_unit_hides_has_the_unit_as_its_cause() {
    let machine = Machine::new(Server::Nginx);
    let at = machine.path("");
    fs::remove_file(machine.path("node.sock")).expect("removed");
    let unit = format!("[Service]\nInaccessiblePaths={at}\n");
    let sockets = confined(&machine, &unit, "socket");
    assert!(!sockets.is_empty());
    for finding in sockets {
        let remedy = finding.remedy.as_deref().expect("what to do");
        assert!(remedy.contains("line of the unit above") && finding.run.is_empty(), "{finding:?}");
    }
}

#[test]
fn server_in_secure_mode_is_a_failure() {
    let machine = Machine::new(Server::Nginx);
    let auxv = |secure: u64| -> Vec<u8> {
        let pairs = [16, 0x1234, 23, secure, 0, 0];
        pairs.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect()
    };
    for (secure, expected) in [(0, 0), (1, 1)] {
        fs::write(machine.path("proc/100/auxv"), auxv(secure)).expect("a file");
        let report = machine.report();
        let found = report.findings.iter().filter(|finding| finding.check == "secure-mode");
        let found: Vec<_> = found.collect();
        assert_eq!(found.len(), expected, "{report:#?}");
        assert!(found.iter().all(|finding| finding.run[0].starts_with("setcap -r ")), "{found:?}");
    }
}

#[test]
fn limit_on_processes_that_is_reached_is_a_failure() {
    let machine = Machine::new(Server::Nginx);
    machine.put(
        "proc/101/limits",
        "Max open files   4096   4096   files\nMax processes   2   2   processes\n",
    );
    machine.expect(CheckOutcome::Failure, "limits", "LimitNPROC=2");
    machine.change("proc/101/limits", "2   2", "3   3");
    let report = machine.report();
    assert!(!report.findings.iter().any(|finding| finding.check == "limits"), "{report:#?}");
}

#[test]
fn profile_that_cannot_be_taken_and_does_not_name_the_provider_is_a_warning() {
    let mut machine = Machine::new(Server::Nginx);
    machine.put("proc/101/attr/current", "/usr/sbin/nginx (enforce)\n");
    machine.put("etc/apparmor.d/usr.sbin.nginx", "profile /usr/sbin/nginx flags=(attach) {\n}\n");
    machine.answer = None;
    let found = confined(&machine, "", "confinement");
    assert_eq!((found.len(), found[0].outcome), (1, CheckOutcome::Warning), "{found:?}");
    let run = found[0].run.join("\n");
    let rule = format!("{} rw,", machine.path("node.sock"));
    assert!(run.contains(&rule) && run.contains("local/usr.sbin.nginx"), "{run}");
    machine.put("etc/apparmor.d/local/usr.sbin.nginx", "/etc/millrace/** r,\n");
    assert!(confined(&machine, "", "confinement").is_empty());
}

/// The first lines of Debian's profiles, and what their rules allow of the files in question: nothing.
#[test]
fn file_that_a_profile_denies_is_a_failure_with_the_rules_that_cure_it() {
    let mut machine = Machine::new("unbound".parse().expect("a name"));
    let header = "profile unbound /usr/sbin/unbound flags=(attach_disconnected) {\n}\n";
    machine.put("etc/apparmor.d/usr.sbin.unbound", header);
    machine.put("etc/apparmor.d/usr.sbin.named", "profile named /usr/sbin/named {\n}\n");
    machine.put("proc/101/attr/current", "unbound (enforce)\n");
    machine.change("proc/101/maps", "millrace.so\n", "other.so\n");
    machine.place.denied = vec![machine.path("openssl.cnf").into()];
    let found = confined(&machine, "", "confinement");
    assert_eq!((found.len(), found[0].outcome), (1, CheckOutcome::Failure), "{found:?}");
    let seen = &found[0].seen;
    assert!(
        seen.contains("profile unbound denies the server") && seen.contains("openssl.cnf"),
        "{seen}"
    );
    let run = found[0].run.join("\n");
    assert!(run.contains(">> /etc/apparmor.d/local/usr.sbin.unbound"), "{run}");
    assert!(run.contains("apparmor_parser -r /etc/apparmor.d/usr.sbin.unbound"), "{run}");
    // The provider is missing because of it.
    let provider = confined(&machine, "", "provider");
    assert!(
        provider[0].remedy.as_deref().is_some_and(|text| text.contains("AppArmor")),
        "{provider:?}"
    );
    // A file whose mode excludes the user is not the profile's doing.
    machine.mode("openssl.cnf", 0o600);
    let found = confined(&machine, "", "confinement");
    assert_eq!((found.len(), found[0].outcome), (1, CheckOutcome::Good), "{found:?}");
    // A profile that only watches denies nothing.
    machine.mode("openssl.cnf", 0o644);
    machine.put("proc/101/attr/current", "unbound (complain)\n");
    assert!(confined(&machine, "", "confinement").is_empty());
}

#[test]
fn program_that_does_not_run_has_the_profile_that_it_would_get() {
    let machine = Machine::new("named".parse().expect("a name"));
    machine.put("etc/apparmor.d/usr.sbin.named", "profile named /usr/sbin/named {\n}\n");
    let root = Root::open(machine.dir.path()).expect("a root");
    let profile = || apparmor::Profile::of_program(&root, "/usr/sbin/named");
    assert_eq!(profile(), None, "nothing is loaded");
    for (mode, is_enforced) in [("complain", false), ("enforce", true)] {
        machine.put(
            "sys/kernel/security/apparmor/profiles",
            &format!("unbound (enforce)\nnamed ({mode})\n"),
        );
        let file = profile().map(|profile| profile.file);
        assert_eq!(file.as_deref(), is_enforced.then_some("usr.sbin.named"), "{mode}");
    }
    // Debian's named runs as `bind`: no user has its name, and root tries the files.
    let mut machine = machine;
    fs::remove_dir_all(machine.path("proc/100")).expect("removed");
    fs::remove_dir_all(machine.path("proc/101")).expect("removed");
    machine.place.denied = vec![machine.path("openssl.cnf").into()];
    let mut options = machine.options();
    options.openssl_conf = Some(machine.path("openssl.cnf").into());
    let mut report = machine.report();
    report.findings.clear();
    let Gathered::Evidence(mut evidence) = evidence::gather(&options, &mut report) else {
        panic!("a program of this machine")
    };
    evidence.profile = profile();
    let _ = judge::judge(&options, &evidence, &machine, &mut report);
    let found = report.findings.iter().find(|finding| finding.check == "confinement");
    let found = found.expect("a finding");
    assert!(found.seen.contains("profile named denies the server"), "{found:?}");
    assert!(found.seen.contains("does not start with a stub"), "{found:?}");
}

#[test]
fn selinux_that_enforces_is_a_warning() {
    let machine = Machine::new(Server::Nginx);
    machine.put("proc/101/attr/current", "system_u:system_r:httpd_t:s0\0");
    machine.put("sys/fs/selinux/enforce", "1");
    let found = confined(&machine, "", "confinement");
    assert!(found.len() == 1 && found[0].seen.contains("httpd_t"), "{found:?}");
    for (label, enforce) in [("system_u:system_r:httpd_t:s0", "0"), ("unconfined", "1")] {
        machine.put("proc/101/attr/current", label);
        machine.put("sys/fs/selinux/enforce", enforce);
        assert!(confined(&machine, "", "confinement").is_empty(), "{label}");
    }
}

#[test]
fn what_the_question_in_the_place_of_the_server_found_is_reported() {
    let mut machine = Machine::new(Server::Nginx);
    machine.place.filters = 2;
    let found = confined(&machine, "", "confinement");
    assert_eq!((found.len(), found[0].outcome), (1, CheckOutcome::Good), "{found:?}");
    machine.place.not_taken = vec!["its filters of system calls cannot be read (EPERM)".to_owned()];
    machine.place.filters = 0;
    let found = confined(&machine, "", "confinement");
    assert_eq!((found.len(), found[0].outcome), (1, CheckOutcome::Unseen), "{found:?}");
    machine.place = AskedNodes { no_thread: Some("EAGAIN".to_owned()), ..AskedNodes::default() };
    let unit = "[Service]\nLimitNPROC=1\nTasksMax=4\n";
    let found = confined(&machine, unit, "limits");
    assert!(found.len() == 1 && found[0].seen.contains("EAGAIN"), "{found:?}");
    let remedy = found[0].remedy.as_deref().unwrap_or_default();
    assert!(remedy.contains("LimitNPROC=1; TasksMax=4"), "{remedy}");
    let fault = NodeFault { kind: FaultKind::Forbidden, error: "no AF_UNIX".to_owned() };
    machine.place = AskedNodes::default();
    machine.answer = Some(Err(fault));
    for (unit, named) in [
        ("[Service]\nSystemCallFilter=~@network-io\n", "SystemCallFilter=~@network-io"),
        ("[Service]\nNoNewPrivileges=yes\n", "no line of a unit forbids it"),
    ] {
        let found = confined(&machine, unit, "node");
        let remedy = found[0].remedy.as_deref().unwrap_or_default();
        assert!(found[0].seen.contains("no AF_UNIX") && remedy.contains(named), "{found:?}");
    }
}
