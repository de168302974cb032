// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A machine as files: a `/proc` with a server in it, its configuration, a socket. Each test removes one
//! thing and expects exactly the finding about it. (The proof needs a running server; see the whole-system
//! tests.) The tests of each file of `judge` are in a file of that name.

mod confinement;
mod libraries;
mod provider;
mod reach;
mod server;

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
        let (title, program) = match &machine.server {
            Server::Nginx => (format!("nginx: master process nginx -c {at}/nginx.conf"), "nginx"),
            Server::Haproxy => (format!("haproxy\0-W\0-f\0{at}/haproxy.cfg"), "haproxy"),
            Server::Other(name) => (format!("{name}\0-d"), name.as_str()),
        };
        let (title, program) = (title, program.to_owned());
        machine.process(MASTER, &program, 1, &title);
        machine.process(WORKER, &program, MASTER, &format!("{program}: worker process"));
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
            server: self.server.clone(),
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
fn unreadable_facts_are_unknown() {
    let machine = Machine::new(Server::Nginx);
    fs::remove_file(machine.path("proc/101/maps")).expect("removed");
    let report = machine.report();
    assert_eq!(report.count(CheckOutcome::Failure), 0, "{:#?}", report.findings);
    assert_eq!(report.count(CheckOutcome::Unseen), 3);
}

#[test]
fn other_program_is_judged_without_its_own_configuration() {
    let machine = Machine::new("unbound".parse().expect("a name"));
    let report = machine.report();
    let checks: Vec<&str> = report.findings.iter().map(|finding| finding.check).collect();
    assert_eq!(checks, ["process", "openssl", "environment", "openssl.cnf", "provider", "node"]);
    assert!(
        report.findings.iter().all(|finding| finding.outcome == CheckOutcome::Good),
        "{report:#?}"
    );
    machine.change("proc/100/environ", "OPENSSL_CONF", "OTHER");
    machine.change("proc/101/maps", "millrace.so\n", "other.so\n");
    let findings = machine.report().findings;
    let missing =
        findings.iter().find(|finding| finding.check == "environment").expect("a finding");
    assert_eq!(missing.run, ["millrace gateway openssl --write"], "{missing:?}");
    assert!(matches!("openresty".parse(), Ok(Server::Nginx)));
    for bad in ["", "../unbound", "-x", "a b", "unbound\n"] {
        assert!(bad.parse::<Server>().is_err(), "{bad:?}");
    }
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
    let label = evidence.proc.security_label(WORKER).ok();
    evidence.profile = apparmor::Profile::of_label(&evidence.root, label);
    evidence.unit = "nginx.service".to_owned();
    evidence.running.as_mut().expect("it runs").by_unit = true;
    let _ = judge::judge(&machine.options(), &evidence, machine, &mut report);
    report.findings.into_iter().filter(|finding| finding.check == check).collect()
}
