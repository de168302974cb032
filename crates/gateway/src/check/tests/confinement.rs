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
    machine.change("openssl.cnf", &format!("unix:{at}/node.sock"), "tcp:node-1:7433");
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
fn profile_that_does_not_name_the_provider_is_a_warning() {
    let machine = Machine::new(Server::Nginx);
    machine.put("proc/101/attr/current", "/usr/sbin/nginx (enforce)\n");
    machine.put("etc/apparmor.d/usr.sbin.nginx", "profile /usr/sbin/nginx flags=(attach) {\n}\n");
    let found = confined(&machine, "", "confinement");
    assert_eq!((found.len(), found[0].outcome), (1, CheckOutcome::Warning), "{found:?}");
    let run = found[0].run.join("\n");
    let rule = format!("{} rw,", machine.path("node.sock"));
    assert!(run.contains(&rule) && run.contains("local/usr.sbin.nginx"), "{run}");
    machine.put("etc/apparmor.d/local/usr.sbin.nginx", "/etc/millrace/** r,\n");
    assert!(confined(&machine, "", "confinement").is_empty());
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
