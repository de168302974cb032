// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A machine as files: a `/proc` with a server in it, its configuration, a socket. Each test removes one
//! thing and expects exactly the finding about it. (The proof needs a running server; see the whole-system
//! tests.)

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use millrace_hostfs::Root;

use super::pool::{
    CertificateFacts, FaultKind, KeyAnswer, KeyState, NodeAnswer, NodeFault, NodeReport,
};
use super::*;

const MASTER: u32 = 100;
const WORKER: u32 = 101;

struct Machine {
    dir: tempfile::TempDir,
    server: Server,
    /// Answer of every node about the key `www`; `None`: nodes cannot be asked.
    answer: Option<Result<KeyState, NodeFault>>,
    /// Facts about the place of the worker, besides the answers.
    place: AskedNodes,
    _socket: UnixListener,
}

impl Nodes for Machine {
    fn ask(&self, place: &ProcessContext, question: &Question) -> Option<AskedNodes> {
        assert!([0, 33].contains(&place.user.uid), "as the worker's user");
        let names: Vec<&str> = question.keys.iter().map(|key| key.name.as_str()).collect();
        assert!(names.iter().all(|name| name.starts_with("www")), "{names:?}");
        let answer = self.answer.clone()?;
        let state = |key: KeyState| NodeReport {
            name: "node-1".to_owned(),
            software: Some("millrace/1".to_owned()),
            draining: false,
            latency_us: 70,
            keys: names
                .iter()
                .map(|name| KeyAnswer { name: (*name).to_owned(), state: key.clone() })
                .collect(),
            certificates: question.tls.is_some().then(|| CertificateFacts {
                identity: "gateway-1".to_owned(),
                own_expires: i64::MAX,
                node_expires: i64::MAX,
            }),
            edges: None,
        };
        let nodes = question.nodes.iter();
        let answers =
            nodes.map(|node| NodeAnswer { node: node.clone(), answer: answer.clone().map(state) });
        Some(AskedNodes { answers: answers.collect(), ..self.place.clone() })
    }

    fn completed(&self, _: Option<&Path>) -> Result<u64, Silence> {
        Err(Silence::NoNode("not asked here".to_owned()))
    }
}

impl Machine {
    fn new(server: Server) -> Self {
        let dir = tempfile::tempdir().expect("folder");
        // Other users search the folder, too.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("mode");
        let socket = UnixListener::bind(dir.path().join("node.sock")).expect("a socket");
        let machine = Self {
            dir,
            server,
            answer: Some(Ok(KeyState::Usable)),
            place: AskedNodes::default(),
            _socket: socket,
        };
        machine.mode("node.sock", 0o666);
        machine.put("millrace.so", "");
        machine.put("openssl.cnf", &machine.cnf());
        machine.put("www.key", &stub());
        machine.put(
            "nginx.conf",
            "env OPENSSL_CONF; env LD_PRELOAD; events { worker_connections 500; }\n\
             http { server { listen 443 ssl; ssl_certificate_key www.key; } }",
        );
        let at = machine.path("");
        machine.put(
            "haproxy.cfg",
            &format!(
                "global\n ssl-mode-async\n maxconn 800\nlisten a\n maxconn 500\n bind :443 ssl crt {at}/www.key\n"
            ),
        );
        let (title, program) = match server {
            Server::Nginx => (format!("nginx: master process nginx -c {at}/nginx.conf"), "nginx"),
            Server::Haproxy => (format!("haproxy\0-W\0-f\0{at}/haproxy.cfg"), "haproxy"),
        };
        machine.process(MASTER, program, 1, &title);
        machine.process(WORKER, program, MASTER, &format!("{program}: worker process"));
        machine
    }

    fn path(&self, name: &str) -> String {
        let path = self.dir.path().join(name);
        path.to_str().expect("UTF-8").trim_end_matches('/').to_owned()
    }

    fn put(&self, name: &str, text: &str) {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().expect("folder")).expect("folders");
        fs::write(path, text).expect("file");
    }

    fn mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).expect("mode");
    }

    fn change(&self, name: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.path(name)).expect("file");
        assert!(text.contains(from), "{name}: {text}");
        self.put(name, &text.replace(from, to));
    }

    fn cnf(&self) -> String {
        format!(
            "openssl_conf = init\n[init]\nproviders = all\n[all]\ndefault = d\nmillrace = m\n\
             [d]\nactivate = 1\n[m]\nmodule = {at}/millrace.so\nactivate = 1\npool = unix:{at}/node.sock\n\
             [algorithms]\ndefault_properties = ?provider=millrace\n",
            at = self.path("")
        )
    }

    fn process(&self, pid: u32, name: &str, parent: u32, title: &str) {
        let file = |what: &str, text: &str| self.put(&format!("proc/{pid}/{what}"), text);
        file(
            "status",
            &format!(
                "Name:\t{name}\nPPid:\t{parent}\nUid:\t33\t33\t33\t33\nGid:\t33\t33\t33\t33\nGroups:\t33\n"
            ),
        );
        file("cmdline", &format!("{title}\0"));
        file("environ", &format!("A=1\0OPENSSL_CONF={}\0", self.path("openssl.cnf")));
        file("limits", "Max open files   4096   4096   files\n");
        let mapped = [
            "/usr/lib/libssl.so.3".to_owned(),
            "/usr/lib/libcrypto.so.3".to_owned(),
            "/usr/lib/libmillrace_preload.so".to_owned(),
            self.path("millrace.so"),
        ];
        let line = |path: &String| format!("1000-2000 r-xp 00000000 fe:00 7 {path}\n");
        file("maps", &mapped.iter().map(line).collect::<String>());
        let root = self.dir.path().join(format!("proc/{pid}/root"));
        symlink("/", root).expect("link");
    }

    fn options(&self) -> CheckOptions {
        CheckOptions {
            server: self.server,
            pid: None,
            connect: None,
            server_name: None,
            config: None,
            openssl_conf: None,
            handshakes: 0,
            compression_only: false,
            proc: self.dir.path().join("proc"),
        }
    }

    fn report(&self) -> CheckReport {
        run(&self.options(), self)
    }

    /// Asserts that the only finding with this outcome is about this check.
    #[track_caller]
    fn expect(&self, outcome: CheckOutcome, check: &str, word: &str) {
        let report = self.report();
        let found: Vec<&CheckFinding> =
            report.findings.iter().filter(|finding| finding.outcome == outcome).collect();
        let good = found.len() == 1 && found[0].check == check && found[0].seen.contains(word);
        assert!(good, "{outcome:?} {check} {word}: {:#?}", report.findings);
        let remedy = found[0].remedy.as_deref().unwrap_or("");
        assert!(outcome == CheckOutcome::Unseen || remedy.len() > 10, "what to do: {remedy}");
        let worse = report.findings.iter().filter(|other| other.outcome > outcome).count();
        assert_eq!(worse, 0, "{:#?}", report.findings);
    }
}

fn stub() -> String {
    stub_of("www")
}

fn stub_of(name: &str) -> String {
    millrace_operation::stub::Stub::new(name, b"x").expect("a stub").to_pem()
}

#[test]
fn correct_server_has_no_findings() {
    for server in [Server::Nginx, Server::Haproxy] {
        let report = Machine::new(server).report();
        let good = report.findings.iter().all(|finding| finding.outcome == CheckOutcome::Good);
        assert!(good, "{:#?}", report.findings);
        assert_eq!(report.pid, Some(MASTER));
        let checks: Vec<&str> = report.findings.iter().map(|finding| finding.check).collect();
        let expected = [
            "process",
            "openssl",
            "environment",
            "openssl.cnf",
            "provider",
            "waiting",
            "descriptors",
            "keys",
            "node",
        ];
        assert_eq!(checks, expected);
    }
}

#[test]
fn static_openssl_is_reported() {
    let machine = Machine::new(Server::Nginx);
    machine.put("proc/101/maps", "1000-2000 r-xp 00000000 fe:00 7 /usr/sbin/nginx\n");
    let report = machine.report();
    let openssl = &report.findings[1];
    assert_eq!((openssl.check, openssl.outcome), ("openssl", CheckOutcome::Failure));
    assert!(openssl.seen.contains("no shared libssl"), "{openssl:?}");
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
fn missing_parts_of_openssl_cnf_are_failures() {
    for (from, to, check, word) in [
        ("[m]\n", "[m]\nmode = off\n", "openssl.cnf", "mode = off"),
        ("default = d\n", "", "openssl.cnf", "does not activate `default`"),
        (
            "activate = 1\npool",
            "activate = 0\npool",
            "openssl.cnf",
            "does not activate the provider",
        ),
        ("providers = all", "providers = none", "openssl.cnf", "no section"),
    ] {
        let machine = Machine::new(Server::Nginx);
        machine.change("openssl.cnf", from, to);
        machine.expect(CheckOutcome::Failure, check, word);
    }
    let machine = Machine::new(Server::Nginx);
    machine.change("openssl.cnf", "[m]\n", "[m]\nmode = sync\n");
    machine.expect(CheckOutcome::Warning, "waiting", "mode = sync");
    // The same through an include, and a separate section for nginx.
    let machine = Machine::new(Server::Nginx);
    machine.put("more.cnf", &machine.cnf().replace("openssl_conf", "nginx"));
    machine.put("openssl.cnf", &format!(".include {}\n", machine.path("more.cnf")));
    assert_eq!(
        machine.report().count(CheckOutcome::Failure),
        0,
        "{:#?}",
        machine.report().findings
    );
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

#[test]
fn plain_keys_need_the_property_query() {
    let machine = Machine::new(Server::Nginx);
    machine.put("www.key", "-----BEGIN PRIVATE KEY-----\n");
    machine.expect(CheckOutcome::Failure, "keys", "no property query");
    machine.change("openssl.cnf", "[init]\n", "[init]\nalg_section = algorithms\n");
    assert_eq!(machine.report().count(CheckOutcome::Failure), 0);
    machine.put("www.key", "-----BEGIN CERTIFICATE-----\n");
    assert_eq!(machine.report().count(CheckOutcome::Warning), 1);
}

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

#[test]
fn unknown_keys_and_bad_values_in_openssl_cnf_are_named() {
    let machine = Machine::new(Server::Nginx);
    machine.change("openssl.cnf", "[m]\n", "[m]\nmodde = off\n");
    machine.expect(CheckOutcome::Failure, "openssl.cnf", "`modde`");
    let machine = Machine::new(Server::Nginx);
    machine.change("openssl.cnf", "[m]\n", "[m]\ndeadline_ms = 2 s\n");
    machine.expect(CheckOutcome::Failure, "openssl.cnf", "deadline_ms = 2 s");
}

#[test]
fn server_that_does_not_run_is_judged_by_its_files() {
    let machine = Machine::new(Server::Nginx);
    fs::remove_dir_all(machine.path("proc/100")).expect("removed");
    fs::remove_dir_all(machine.path("proc/101")).expect("removed");
    machine.change("nginx.conf", "env OPENSSL_CONF;", "user 33; env OPENSSL_CONF;");
    machine.change("openssl.cnf", "millrace.so", "missing/millrace.so");
    let mut options = machine.options();
    options.openssl_conf = Some(machine.path("openssl.cnf").into());
    options.config = Some(machine.path("nginx.conf").into());
    let report = run(&options, &machine);
    let failures: Vec<&str> = report
        .findings
        .iter()
        .filter(|finding| finding.outcome == CheckOutcome::Failure)
        .map(|finding| finding.check)
        .collect();
    assert_eq!(failures, ["process", "provider"], "{:#?}", report.findings);
    options.connect = Some("gateway.example.net:443".to_owned());
    let report = run(&options, &machine);
    assert_eq!(report.findings.len(), 1, "{:#?}", report.findings);
    assert_eq!(report.findings[0].outcome, CheckOutcome::Unseen);
}

#[test]
fn provider_settings_may_be_in_a_separate_file() {
    let machine = Machine::new(Server::Nginx);
    let file = machine.path("client.toml");
    machine.change("proc/100/environ", "A=1", &format!("MILLRACE_CLIENT_CONF={file}"));
    machine.put("client.toml", "pool = [\n");
    machine.expect(CheckOutcome::Failure, "openssl.cnf", "client.toml");
    let pool = format!("pool = unix:{}", machine.path("node.sock"));
    machine.change("openssl.cnf", &pool, "");
    machine.put("client.toml", &format!("pool = [\"unix:{}\"]\n", machine.path("other.sock")));
    machine.expect(CheckOutcome::Failure, "socket", "other.sock is not there");
}

#[test]
fn nginx_without_env_directives_is_warned_about() {
    let machine = Machine::new(Server::Nginx);
    machine.change("nginx.conf", "env OPENSSL_CONF; env LD_PRELOAD;", "env OPENSSL_CONF;");
    machine.expect(CheckOutcome::Warning, "configuration", "no `env LD_PRELOAD;`");
}

#[test]
fn quic_with_keys_of_the_pool_is_warned_about() {
    let machine = Machine::new(Server::Nginx);
    machine.change("nginx.conf", "listen 443 ssl;", "listen 443 ssl; listen 443 quic;");
    machine.expect(CheckOutcome::Warning, "quic", "`listen 443 quic` with keys of the pool");
    // A key of the server's own is signed in the worker.
    machine.put("www.key", "-----BEGIN PRIVATE KEY-----\nMC4=\n-----END PRIVATE KEY-----\n");
    let findings = machine.report().findings;
    assert!(findings.iter().all(|finding| finding.check != "quic"), "{findings:#?}");
}

#[test]
fn descriptors_are_compared_with_connections() {
    let machine = Machine::new(Server::Nginx);
    machine.change("nginx.conf", "worker_connections 500", "worker_connections 4000");
    machine.expect(CheckOutcome::Warning, "descriptors", "4096 descriptors for 4000 connections");
    let machine = Machine::new(Server::Haproxy);
    machine.change("haproxy.cfg", "maxconn 800", "maxconn 765");
    machine.expect(CheckOutcome::Warning, "descriptors", "maxconn 765 in `global`");
    machine.change("haproxy.cfg", "maxconn 765", "maxconn 766");
    assert_eq!(machine.report().count(CheckOutcome::Warning), 0);
}

#[test]
fn haproxy_ulimit_n_is_warned_about_and_does_not_size_the_table() {
    let machine = Machine::new(Server::Haproxy);
    machine.change("haproxy.cfg", "maxconn 800", "maxconn 800\n ulimit-n 3000");
    machine.expect(CheckOutcome::Warning, "descriptors", "ulimit-n 3000 in `global`");
    let remedy = |machine: &Machine| {
        let findings = machine.report().findings;
        let found = findings.iter().find(|finding| finding.check == "descriptors");
        found.and_then(|finding| finding.remedy.clone()).expect("what to do")
    };
    assert!(remedy(&machine).contains("to at least 766"));
    machine.change("haproxy.cfg", "listen a\n maxconn 500", "listen a");
    assert!(remedy(&machine).contains("one and a half times"));
    machine.change("haproxy.cfg", "ulimit-n", "# ulimit-n");
    assert_eq!(machine.report().count(CheckOutcome::Warning), 0, "a comment");
}

#[test]
fn haproxy_without_the_right_to_threads_is_a_failure() {
    let machine = Machine::new(Server::Haproxy);
    machine.put("proc/101/limits", "Max processes   0   0   processes\n");
    machine.expect(CheckOutcome::Failure, "threads", "may not start threads");
    machine.change("proc/101/status", "Uid:\t33\t33", "Uid:\t0\t0");
    assert_eq!(machine.report().count(CheckOutcome::Failure), 0, "root may");
}

#[test]
fn unreadable_facts_are_unknown() {
    let machine = Machine::new(Server::Nginx);
    fs::remove_file(machine.path("proc/101/maps")).expect("removed");
    let report = machine.report();
    assert_eq!(report.count(CheckOutcome::Failure), 0, "{:#?}", report.findings);
    assert_eq!(report.count(CheckOutcome::Unseen), 3);
}

#[test]
fn server_process_is_selected_by_name_or_pid() {
    let machine = Machine::new(Server::Nginx);
    machine.process(200, "nginx-debug", 1, "nginx: master process nginx");
    machine.expect(CheckOutcome::Failure, "process", "100, 200");
    machine.process(102, "nginx", MASTER, "nginx: cache manager process");
    let mut options = machine.options();
    options.pid = Some(WORKER);
    let report = run(&options, &machine);
    assert_eq!(report.pid, Some(MASTER), "a worker stands for its master");
    assert!(report.findings[0].seen.contains("1 worker of"), "{:?}", report.findings[0]);
    options.pid = Some(7);
    assert!(run(&options, &machine).findings[0].seen.contains("no nginx with process id 7"));
    options.server = Server::Haproxy;
    options.pid = None;
    assert!(run(&options, &machine).findings[0].seen.contains("no haproxy is running"));
    // A zombie is not a server.
    machine.change("proc/200/status", "PPid:", "State:\tZ (zombie)\nPPid:");
    let report = machine.report();
    assert_eq!(report.pid, Some(MASTER), "{:#?}", report.findings);
}

#[test]
fn pool_and_stubs_are_read_from_the_files_of_a_gateway() {
    let machine = Machine::new(Server::Haproxy);
    machine.put("etc/passwd", "root:x:0:0::/:\nproxy:x:13:14::/:\n");
    machine.put(
        "etc/haproxy/haproxy.cfg",
        "global\n user proxy\nlisten a\n bind :443 ssl crt /www.key\n",
    );
    machine.put("pool.cnf", &machine.cnf().replace("unix:", "tcp:a:1, unix:"));
    let root = Root::open(machine.dir.path()).expect("folder");
    let read = |name: &str| ConfiguredPool::read(&root, Path::new(name));
    let found = read("/pool.cnf").expect("a pool");
    assert_eq!(found.question.nodes[0], "tcp:a:1");
    assert_eq!(found.question.nodes.len(), 2);
    let names: Vec<&str> = found.question.keys.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(names, ["www"]);
    assert_eq!(found.user.map(|user| (user.uid, user.gid)), Some((13, 14)));
    machine.put("client.toml", "pool = [\"unix:/x\"]\n");
    assert_eq!(read("/client.toml").expect("a pool").question.nodes, ["unix:/x"]);
    machine.put("empty.cnf", "openssl_conf = init\n");
    for bad in ["/empty.cnf", "/missing.cnf"] {
        assert!(read(bad).is_err_and(|error| error.to_string().contains(bad)), "{bad}");
    }
}

#[test]
fn compression_alone_asks_for_the_library_and_not_for_the_provider() {
    let machine = Machine::new(Server::Nginx);
    let options = CheckOptions { compression_only: true, ..machine.options() };
    let report = run(&options, &machine);
    let found: Vec<(&str, CheckOutcome)> =
        report.findings.iter().map(|finding| (finding.check, finding.outcome)).collect();
    assert_eq!(found, [("process", CheckOutcome::Good), ("compression", CheckOutcome::Failure)]);
    let remedy = report.findings[1].remedy.as_deref().unwrap_or_default();
    assert!(remedy.contains("--compression=only"), "{remedy}");
}

/// The findings of one check for a server that this unit starts.
fn confined(machine: &Machine, unit: &str, check: &str) -> Vec<CheckFinding> {
    machine.put("etc/systemd/system/nginx.service", unit);
    let mut report = machine.report();
    report.findings.clear();
    let gathered = evidence::gather(&machine.options(), &mut report);
    let Gathered::Evidence(mut evidence) = gathered else { panic!("it runs") };
    evidence.root = Root::open(machine.dir.path()).expect("a root");
    evidence.unit = "nginx.service".to_owned();
    evidence.running.as_mut().expect("it runs").by_unit = true;
    let _ = judge::judge(&machine.options(), &evidence, machine, &mut report);
    report.findings.into_iter().filter(|finding| finding.check == check).collect()
}

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

#[test]
fn plugins_of_certbot_are_reported_for_stubs_alone() {
    let machine = Machine::new(Server::Nginx);
    // The same path below the root of the unit's files.
    machine.put(machine.path("www.key").trim_start_matches('/'), &stub());
    let renewal = "etc/letsencrypt/renewal/www.conf";
    machine.put(renewal, "[renewalparams]\nauthenticator = nginx\ninstaller = None\n");
    let found = confined(&machine, "", "certbot");
    assert!(found.len() == 1 && found[0].outcome == CheckOutcome::Warning, "{found:?}");
    let unit = "etc/systemd/system/certbot.service.d/millrace.conf";
    machine.put(unit, "[Service]\nEnvironment=OPENSSL_CONF=/etc/millrace/openssl.cnf\n");
    assert!(confined(&machine, "", "certbot").is_empty());
    machine.put(unit, "[Service]\n");
    machine.put(renewal, "[renewalparams]\nauthenticator = webroot\ninstaller = None\n");
    assert!(confined(&machine, "", "certbot").is_empty());
}
