// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Findings about the nodes and their keys.

use super::*;

#[test]
fn socket_and_policy_are_checked_for_the_workers() {
    let machine = Machine::new(Server::Nginx);
    machine.mode("node.sock", 0o600);
    machine.expect(CheckOutcome::Failure, "socket", "has mode 0600");
    let machine = Machine::new(Server::Nginx);
    fs::remove_file(machine.path("node.sock")).expect("removed");
    machine.expect(CheckOutcome::Failure, "socket", "is not there");
    let mut machine = Machine::new(Server::Nginx);
    machine.answer = Some(Ok(KeyState::NotThere));
    machine.expect(CheckOutcome::Failure, "policy", "does not let uid:33 use www");
    let remedy = |machine: &Machine| {
        let mut findings = machine.report().findings.into_iter();
        let bad = findings.find(|finding| finding.outcome == CheckOutcome::Failure);
        bad.and_then(|finding| finding.remedy).expect("what to do")
    };
    assert!(remedy(&machine).contains("millrace key policy www --add-uid 33"));
    machine.answer = Some(Ok(KeyState::Replaced));
    machine.expect(CheckOutcome::Failure, "policy", "another key by the name www");
    machine.answer =
        Some(Err(NodeFault { kind: FaultKind::Refused, error: "connection refused".to_owned() }));
    machine.expect(CheckOutcome::Failure, "node", "no node answers");
    machine.answer = None;
    machine.expect(CheckOutcome::Unseen, "node", "cannot be tried");
}

#[test]
fn keys_past_the_bound_of_a_check_are_not_passed_over_in_silence() {
    let machine = Machine::new(Server::Nginx);
    let serve = |count: usize| {
        let keys: String = (1..count)
            .map(|number| {
                machine.put(&format!("{number}.key"), &stub_of(&format!("www-{number}")));
                format!("ssl_certificate_key {number}.key; ")
            })
            .collect();
        let text = format!(
            "env OPENSSL_CONF; env LD_PRELOAD; events {{ worker_connections 500; }}\n\
             http {{ server {{ listen 443 ssl; ssl_certificate_key www.key; {keys} }} }}"
        );
        machine.put("nginx.conf", &text);
    };
    serve(64);
    assert_eq!(machine.report().count(CheckOutcome::Unseen), 0);
    serve(65);
    machine.expect(CheckOutcome::Unseen, "policy", "64 of 65 keys");
}

/// A machine whose nodes are elsewhere.
fn over_tcp() -> Machine {
    let machine = Machine::new(Server::Haproxy);
    let local = format!("pool = unix:{}", machine.path("node.sock"));
    let remote = ["ca", "cert", "key"].map(|name| {
        machine.put(&format!("{name}.pem"), "");
        format!("tls_{name} = {}\n", machine.path(&format!("{name}.pem")))
    });
    let remote = format!("pool = tcp:a:1,tcp:b:2\n{}", remote.concat());
    machine.change("openssl.cnf", &local, &remote);
    machine
}

#[test]
fn every_fault_of_a_tcp_node_is_named() {
    for (kind, word) in [
        (FaultKind::OtherAuthority, "another authority"),
        (FaultKind::Revoked, "is revoked"),
        (FaultKind::Expired, "has expired"),
        (FaultKind::WrongName, "another name"),
        (FaultKind::Silent, "no answer"),
        (FaultKind::Unauthorized, "refuses this identity"),
    ] {
        let mut machine = over_tcp();
        machine.answer = Some(Err(NodeFault { kind, error: "the error".to_owned() }));
        let findings = machine.report().findings;
        let bad: Vec<&CheckFinding> =
            findings.iter().filter(|finding| finding.outcome == CheckOutcome::Failure).collect();
        assert_eq!(bad.len(), 2, "one line for each node: {bad:#?}");
        for (finding, node) in bad.iter().zip(["tcp:a:1", "tcp:b:2"]) {
            assert!(finding.seen.starts_with(node) && finding.seen.contains(word), "{finding:?}");
            assert!(finding.remedy.is_some());
        }
    }
    let mut machine = over_tcp();
    machine.answer = Some(Ok(KeyState::NotThere));
    let findings = machine.report().findings;
    let remedies: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.check == "policy")
        .filter_map(|finding| finding.remedy.as_deref())
        .collect();
    assert_eq!(remedies.len(), 2);
    assert!(remedies[0].contains("--add-cert gateway-1"), "{remedies:?}");
    machine.change("openssl.cnf", "tls_cert", "# tls_cert");
    machine.expect(CheckOutcome::Failure, "certificates", "tcp: nodes need");
}

#[test]
fn certificates_that_workers_cannot_read_are_named_with_their_mode() {
    let mut machine = over_tcp();
    machine.mode("key.pem", 0o600);
    machine.answer = Some(Err(NodeFault {
        kind: FaultKind::Files,
        error: "key.pem: Permission denied".to_owned(),
    }));
    let findings = machine.report().findings;
    let bad = findings.iter().find(|finding| finding.check == "node").expect("a finding");
    let remedy = bad.remedy.as_deref().expect("what to do");
    assert!(
        remedy.contains("key.pem has mode 0600") && remedy.contains("chgrp -R 33 "),
        "{remedy}"
    );
}
