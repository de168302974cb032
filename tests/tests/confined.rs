// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What the environment of a server refuses: filters of system calls, namespaces, limits, capabilities of files. The
//! check asks from the server's place and names the cause; the first line that the provider writes names it, too.

use std::path::Path;
use std::process::{Command, Output};

use millrace_testkit::refused_calls::{RefusedCall, with_refused_calls};
use millrace_testkit::skip;
use millrace_tests::checked::{Report, Setup, may_unshare};
use millrace_tests::drive::Tls;
use millrace_tests::edge::{Edge, EdgeOptions};
use millrace_tests::is_root;
use millrace_tests::nginx::Nginx;
use millrace_tests::node::{Node, NodeOptions};
use millrace_tests::openssl::{Pooled, text};
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{free_port, run};
use millrace_tests::release;

/// Numbers of the families and errors of Linux on every processor of ours.
const AF_UNIX: i32 = 1;
const AF_ALG: i32 = 38;
const EPERM: i32 = 1;
const EACCES: i32 = 13;
const EAFNOSUPPORT: i32 = 97;

/// A case: what is refused, and the words of cause and cure in the first line.
type Refusal = (Option<RefusedCall>, [&'static str; 2]);

#[test]
fn first_line_of_the_provider_names_what_refuses_it_and_the_cure() {
    let pooled = Pooled::start(KeyKind::P256);
    let short = |edge: EdgeOptions| edge.preferred().with("deadline_ms", 300);
    let edge = pooled.edge(short);
    let missing = format!("unix:{}/hidden/node.sock", pooled.world.dir().display());
    let hidden = short(EdgeOptions::to(missing)).write(pooled.world.dir());
    let digest = pooled.file("digest", &[7; 32]);
    let sign = |edge: &Edge, key: &Path| -> Output {
        let words = ["pkeyutl", "-sign", "-inkey", text(key), "-in", text(&digest)];
        edge.openssl(&words).output().expect("openssl")
    };
    let cases: [Refusal; 6] = [
        (None, ["BindPaths=", "hides the path"]),
        (
            Some(RefusedCall::socket(AF_UNIX, EAFNOSUPPORT)),
            ["RestrictAddressFamilies=", "remedy: RestrictAddressFamilies=AF_UNIX"],
        ),
        (Some(RefusedCall::socket(AF_UNIX, EPERM)), ["SystemCallFilter=", "@network-io"]),
        (Some(RefusedCall::socket(AF_UNIX, EACCES)), ["security module", "remedy: allow it"]),
        (Some(RefusedCall::connect(EACCES)), ["the modes allow it", "node.sock rw,"]),
        (Some(RefusedCall::eventfd(EPERM)), ["SystemCallFilter=", "@system-service"]),
    ];
    for (refused, words) in cases {
        let edge = if refused.is_none() { &hidden } else { &edge };
        for (key, succeeds) in [(&pooled.stub, false), (&pooled.identity.key_file, true)] {
            let output = with_refused_calls(refused.as_slice(), || sign(edge, key));
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.success(), succeeds, "{refused:?}: {said}");
            let lines: Vec<&str> =
                said.lines().filter(|line| line.starts_with("millrace: ")).collect();
            let [line] = lines[..] else { panic!("{refused:?}: one line, not {said}") };
            assert!(words.iter().all(|word| line.contains(word)), "{refused:?}: {line}");
            // The error queue of a server with a stub has the same cause, and no advice that contradicts it.
            if !succeeds {
                let queue = said.lines().find(|line| line.contains(":error:"));
                let queue = queue.unwrap_or_else(|| panic!("no error in {said}"));
                assert!(queue.contains(words[0]) && !queue.contains("is the node up"), "{queue}");
            }
        }
    }
    // A pool that answers gets no line.
    let output = sign(&edge, &pooled.stub);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// The line of the provider in nginx's log, after a handshake.
fn line_of(setup: &Setup, nginx: &Nginx, port: u16) -> String {
    let _ = setup.world.client.handshake((std::net::Ipv4Addr::LOCALHOST, port).into(), Tls::V13);
    let log = nginx.log();
    let mut lines = log.lines().filter(|line| line.contains("millrace: "));
    lines.next().unwrap_or_else(|| panic!("no line of the provider in {log}")).to_owned()
}

#[test]
fn filter_of_the_server_is_the_filter_of_the_question() {
    if !is_root() {
        skip!("only root reads the filters of a process");
    }
    let setup = Setup::default();
    let edge = setup.edge().preferred().write(setup.world.dir());
    let plain = setup.plain();
    let port = free_port();
    let refused = [RefusedCall::socket(AF_UNIX, EAFNOSUPPORT)];
    let nginx = with_refused_calls(&refused, || setup.nginx_at(port, &plain, Some(&edge), 1, true));
    let report = setup.check_nginx(&nginx, Some(&edge));
    report
        .fails("node", "a socket of the family AF_UNIX")
        .fails("node", "RestrictAddressFamilies=");
    report.has("ok", "confinement", "under the 1 filter of system calls");
    let line = line_of(&setup, &nginx, port);
    assert!(line.contains("RestrictAddressFamilies=AF_UNIX"), "{line}");
    assert!(line.contains("OpenSSL does what the pool does not"), "{line}");
    // A filter that forbids nothing that the provider needs.
    let harmless = [RefusedCall::socket(AF_ALG, EAFNOSUPPORT), RefusedCall::memory_file(EPERM)];
    let nginx = with_refused_calls(&harmless, || setup.nginx(&plain, Some(&edge), 1, true));
    setup.check_nginx(&nginx, Some(&edge)).is_good();
}

#[test]
fn namespaces_and_limits_of_the_server_are_those_of_the_question() {
    if !may_unshare() {
        skip!("namespaces are not permitted here");
    }
    if release::root().is_some() {
        skip!("the release under test is in a namespace of mounts itself");
    }
    let setup = Setup::default();
    let edge = setup.edge().preferred().write(setup.world.dir());
    let plain = setup.plain();
    let folder = setup.node.socket().parent().expect("a folder").display().to_string();
    let hide = "mount -t tmpfs none \"$0\" && exec \"$@\"";
    let port = free_port();
    let mounts = ["unshare", "--mount", "sh", "-c", hide, &folder];
    let nginx = setup.nginx_by(&mounts, port, &plain, Some(&edge), 1, true);
    look(&setup, &nginx, &edge).fails("socket", "is not there");
    let line = line_of(&setup, &nginx, port);
    assert!(line.contains("hides the path") && line.contains("BindPaths="), "{line}");
    drop(nginx);

    let limit = ["prlimit", "--nproc=1"];
    let nginx = setup.nginx_by(&limit, free_port(), &plain, Some(&edge), 1, true);
    look(&setup, &nginx, &edge).fails("limits", "LimitNPROC");
    drop(nginx);

    let own = setup.world.identity(KeyKind::P256);
    let tls = Some((own.certificate_file, own.key_file, setup.world.authority.file.clone()));
    let options = NodeOptions { tcp: true, tls, ..NodeOptions::default() };
    let remote = Node::start_with(setup.world.dir(), "remote", &options);
    let certificates = setup.world.authority.client("gateway-1", 2001, 2099);
    std::fs::copy(&setup.world.authority.file, certificates.join("ca.pem")).expect("authority");
    let edge =
        EdgeOptions { certificates: Some(certificates), ..EdgeOptions::to(remote.tcp_endpoint()) };
    let edge = edge.preferred().write(setup.world.dir());
    let nginx = setup.nginx_by(&["unshare", "--net"], free_port(), &plain, Some(&edge), 1, true);
    let report = look(&setup, &nginx, &edge);
    report.fails("node", "may not reach it").fails("node", "PrivateNetwork=");
}

/// The check without handshakes, since nothing listens at port 1: after those it waits for reports.
fn look(setup: &Setup, nginx: &Nginx, edge: &Edge) -> Report {
    let mut check = setup.node.command(&["gateway", "check", "nginx", "--json"]);
    check.args(["--connect", "127.0.0.1:1", "--pid", &nginx.master().to_string()]);
    Report::of(check.arg("--openssl-conf").arg(&edge.conf))
}

#[test]
fn server_with_capabilities_of_its_file_is_named() {
    if !is_root() || release::root().is_some() {
        skip!("capabilities of files need root and a program of this machine");
    }
    let setup = Setup::default();
    let edge = setup.edge().preferred().write(setup.world.dir());
    let dir = setup.world.dir().display().to_string();
    let program = format!("{dir}/nginx");
    let grant = format!("setcap cap_net_bind_service+ep {program}");
    let copied = format!("cp /usr/sbin/nginx {program} && {grant}");
    if !run(Command::new("sh").args(["-c", &copied])).status.success() {
        skip!("this file system has no capabilities of files");
    }
    let start = format!(
        "chown -R 65533:65533 {dir}; {grant}; shift  # a change of the owner takes the capabilities
         exec setpriv --reuid=65533 --regid=65533 --clear-groups {program} \"$@\""
    );
    let user = ["sh", "-c", &start, "sh"];
    let nginx = setup.nginx_by(&user, free_port(), &setup.plain(), Some(&edge), 1, true);
    let report = look(&setup, &nginx, &edge);
    report.fails("secure-mode", "has capabilities of its file").fails("secure-mode", &program);
}

#[test]
fn provider_without_memory_files_and_kernel_ciphers_computes_all_the_same() {
    let setup = Setup::default();
    let refused = [RefusedCall::memory_file(EPERM), RefusedCall::socket(AF_ALG, EAFNOSUPPORT)];
    let edge = EdgeOptions::local().with("kernel_bulk", "on").write(setup.world.dir());
    let nginx = with_refused_calls(&refused, || setup.nginx(&setup.plain(), Some(&edge), 1, true));
    let report = setup.check_nginx(&nginx, Some(&edge));
    report.has("unseen", "local", "memory files");
    assert!(report.success, "{:#}", report.report);
}
