// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace gateway check` inspects real servers: it reports a correct one as good, and names the cause for
//! every other one.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use std::thread;

use millrace_tests::artifacts::artifacts;
use millrace_tests::checked::{HANDSHAKES, Report, Server, Setup, may_unshare};
use millrace_tests::drive::Tls;
use millrace_tests::edge::EdgeOptions;
use millrace_tests::haproxy::bundle;
use millrace_tests::is_root;
use millrace_tests::nginx::certificate_lines;
use millrace_tests::process::free_port;
use millrace_tests::release;
use millrace_tests::wait;
use serde_json::Value;

#[test]
fn correct_servers_pass_the_check() {
    let setup = Setup::default();
    let site = setup.pooled();
    let edge = setup.edge().write(setup.world.dir());
    let nginx = setup.nginx(&site, Some(&edge), 2, true);
    setup.check_nginx(&nginx, Some(&edge)).is_good();
    for master in [false, true] {
        let haproxy = setup.haproxy(&site, &edge, |options| options.master = master);
        // The check can read the environment of this process.
        setup.check("haproxy", haproxy.process.id(), None).is_good();
    }
}

#[test]
fn haproxy_without_the_preload_library_gets_a_warning() {
    let setup = Setup::default();
    let edge = setup.edge().write(setup.world.dir());
    let haproxy = setup.haproxy(&setup.pooled(), &edge, |options| options.preload = false);
    let report = setup.check("haproxy", haproxy.process.id(), None);
    let warned = |finding: &&Value| finding["outcome"] == "warning";
    let warnings: Vec<&Value> = report.findings().iter().filter(warned).collect();
    assert!(warnings.len() == 1 && warnings[0]["check"] == "preload", "{warnings:#?}");
    assert!(report.success, "it works: {:#}", report.report);
    report.counts("pooled", HANDSHAKES).counts("asynchronous", HANDSHAKES);
}

#[test]
fn plain_keys_with_the_property_query_pass_the_check() {
    let setup = Setup::default();
    let edge = setup.edge().preferred().write(setup.world.dir());
    let nginx = setup.nginx(&setup.plain(), Some(&edge), 1, true);
    setup.check_nginx(&nginx, Some(&edge)).is_good();
}

/// The private key of a gateway in a situation.
#[derive(Clone, Copy)]
enum Keys {
    /// A stub, and who may use the key.
    Stub(&'static str),
    /// A plain key.
    Plain,
}

/// Something that is wrong with a gateway.
struct Situation {
    name: &'static str,
    keys: Keys,
    /// Changes the provider's configuration before the start.
    edge: fn(EdgeOptions) -> EdgeOptions,
    /// Changes the text of `openssl.cnf` before the start.
    conf: (&'static str, &'static str),
    /// Done while the server runs.
    then: fn(&mut Setup),
    /// The finding: outcome, check, words.
    finding: (&'static str, &'static str, &'static str),
}

const STUB: Keys = Keys::Stub("--allow-all");

/// A handshake without a node ends by this deadline.
fn without_node(edge: EdgeOptions) -> EdgeOptions {
    edge.with("deadline_ms", 3000)
}

/// A situation of the server itself is in the tests below.
const SITUATIONS: [Situation; 11] = {
    const fn as_it_is(edge: EdgeOptions) -> EdgeOptions {
        edge
    }
    const fn nothing(_: &mut Setup) {}
    const fn of(
        name: &'static str,
        keys: Keys,
        finding: (&'static str, &'static str, &'static str),
    ) -> Situation {
        Situation { name, keys, edge: as_it_is, conf: ("", ""), then: nothing, finding }
    }
    [
        of("plain key", Keys::Plain, ("failure", "keys", "no property query")),
        of("policy", Keys::Stub("--allow-uid 4242"), ("failure", "policy", "does not let uid:")),
        Situation {
            conf: ("millrace.so", "missing.so"),
            edge: EdgeOptions::preferred,
            ..of("module", Keys::Plain, ("failure", "provider", "missing.so does not exist"))
        },
        Situation {
            edge: |edge| edge.with("mode", "sync"),
            ..of("mode = sync", STUB, ("warning", "waiting", "mode = sync"))
        },
        Situation {
            edge: |edge| edge.preferred().with("mode", "off"),
            ..of("mode = off", Keys::Plain, ("failure", "openssl.cnf", "mode = off"))
        },
        Situation {
            edge: |edge| edge.preferred().with("modde", "off"),
            ..of("unknown key", Keys::Plain, ("failure", "openssl.cnf", "`modde`"))
        },
        Situation {
            edge: |edge| edge.preferred().with("hedge", "perhaps"),
            ..of("bad value", Keys::Plain, ("failure", "openssl.cnf", "hedge = perhaps"))
        },
        Situation {
            conf: ("[default_section]\nactivate = 1", "[default_section]"),
            edge: EdgeOptions::preferred,
            ..of("default off", Keys::Plain, ("failure", "openssl.cnf", "`default`"))
        },
        Situation {
            edge: without_node,
            then: |setup| setup.node.kill(),
            ..of("node killed", STUB, ("failure", "node", "no node answers"))
        },
        Situation {
            edge: without_node,
            then: |setup| setup.node.stop(),
            ..of("node stopped", STUB, ("failure", "socket", "is not there"))
        },
        Situation {
            edge: without_node,
            then: |setup| {
                let owner_only = fs::Permissions::from_mode(0o600);
                fs::set_permissions(setup.node.socket(), owner_only).expect("permissions");
            },
            ..of("socket closed", STUB, ("failure", "socket", "has mode 0600"))
        },
    ]
};

#[test]
fn cause_of_every_broken_nginx_is_named() {
    every_cause_is_named(Server::Nginx);
}

#[test]
fn cause_of_every_broken_haproxy_is_named() {
    every_cause_is_named(Server::Haproxy);
}

/// A check waits for workers to settle and for reports to arrive, most of its time: all situations at once.
fn every_cause_is_named(server: Server) {
    thread::scope(|scope| {
        for situation in &SITUATIONS {
            thread::Builder::new()
                .name(format!("{server:?}: {}", situation.name))
                .spawn_scoped(scope, || cause_is_named(server, situation))
                .expect("thread");
        }
    });
}

fn cause_is_named(server: Server, situation: &Situation) {
    if situation.name == "socket closed" && !is_root() {
        millrace_testkit::skip!("workers are other users than this one only for root");
    }
    // A server with a stub or without `default` does not start: see the next test.
    let mut setup = Setup::default();
    let site = match situation.keys {
        Keys::Stub(policy) => setup.pooled_for(policy),
        Keys::Plain => setup.plain(),
    };
    let edge = (situation.edge)(setup.edge()).write(setup.world.dir());
    let text = fs::read_to_string(&edge.conf).expect("openssl.cnf");
    let (from, to) = situation.conf;
    let rewrite = || fs::write(&edge.conf, text.replace(from, to)).expect("openssl.cnf");
    let (outcome, check, word) = situation.finding;
    if situation.name == "default off" {
        // OpenSSL reads it at the start, the check now.
        let running = setup.start(server, &site, &edge);
        rewrite();
        let report = setup.check_running(&running, &edge);
        report.has(outcome, check, word);
        return;
    }
    if !from.is_empty() {
        rewrite();
    }
    let running = setup.start(server, &site, &edge);
    (situation.then)(&mut setup);
    let report = setup.check_running(&running, &edge);
    report.has(outcome, check, word);
    assert_eq!(report.success, outcome == "warning", "{:#}", report.report);
}

#[test]
fn nginx_without_the_preload_library_blocks() {
    let setup = Setup::default();
    let edge = setup.edge().write(setup.world.dir());
    let nginx = setup.nginx(&setup.pooled(), Some(&edge), 1, false);
    let report = setup.check_nginx(&nginx, Some(&edge));
    report.fails("waiting", "not in nginx").counts("pooled", HANDSHAKES).counts("asynchronous", 0);
}

#[test]
fn haproxy_that_blocks_or_forbids_threads_is_reported() {
    let setup = Setup::default();
    let edge = setup.edge().write(setup.world.dir());
    let site = setup.pooled();
    let haproxy = setup.haproxy(&site, &edge, |options| options.mode_async = false);
    setup.check("haproxy", haproxy.process.id(), None).fails("waiting", "no ssl-mode-async");
    if !is_root() {
        millrace_testkit::skip!("HAProxy forbids itself threads only where it drops root");
    }
    let haproxy = setup.haproxy(&site, &edge, |options| options.may_start_threads = false);
    setup.check("haproxy", haproxy.process.id(), None).fails("threads", "may not start threads");
}

#[test]
fn server_that_was_started_without_the_environment_is_reported() {
    let setup = Setup::default();
    let edge = setup.edge().preferred().write(setup.world.dir());
    let nginx = setup.nginx(&setup.plain(), None, 1, true);
    setup
        .check_nginx(&nginx, None)
        .fails("environment", "OPENSSL_CONF")
        .fails("provider", "not loaded");
    // OpenSSL loads the provider with the file that the unit names, so the file is not the cause.
    if release::root().is_none() {
        setup.check_nginx(&nginx, Some(&edge)).fails("provider", "without this environment");
        // Code of another user must not run as root.
        if !is_root() {
            return;
        }
        chown(&edge.conf, Some(65534), None).expect("given away");
        setup.check_nginx(&nginx, Some(&edge)).fails("provider", "OpenSSL's program is not run");
    }
}

/// A server with a stub does not start if OpenSSL does not load the provider.
#[test]
fn cause_of_a_server_that_does_not_start_is_named() {
    if !may_unshare() {
        millrace_testkit::skip!("namespaces are not permitted here");
    }
    if release::root().is_some() {
        millrace_testkit::skip!("the servers' own tests are those of this machine");
    }
    let setup = Setup::default();
    let site = setup.pooled();
    let dir = setup.world.dir();
    let edge = setup.edge().write(dir);
    let text = fs::read_to_string(&edge.conf).expect("openssl.cnf");
    let at = dir.display();
    let mut temporary = String::new();
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        temporary.push_str(&format!(" {kind}_temp_path {at}/temp-{kind};"));
    }
    let nginx = format!(
        "pid {at}/x.pid; error_log {at}/x.log; user nobody nogroup; events {{}} http {{ {temporary}\n\
         access_log off; server {{ listen 127.0.0.1:{} ssl; {} }} }}\n",
        free_port(),
        certificate_lines(dir, "www", &site)
    );
    let haproxy = format!(
        "global\n user nobody\n group nogroup\n ssl-mode-async\n insecure-fork-wanted\ndefaults\n mode http\n\
         \x20timeout client 1s\n timeout connect 1s\n timeout server 1s\n\
         frontend a\n bind 127.0.0.1:{} ssl crt {}\n http-request return status 200\n",
        free_port(),
        bundle(dir, "www", &site)
    );
    for (server, config) in [("nginx", nginx), ("haproxy", haproxy)] {
        let file = dir.join(format!("{server}.conf"));
        fs::write(&file, config).expect("configuration");
        for (conf, check, word) in [
            (text.clone(), "process", "is running"),
            (text.replace("millrace.so", "missing.so"), "provider", "missing.so does not exist"),
            (
                text.replace("[millrace_section]", "[millrace_section]\nmode = maybe"),
                "openssl.cnf",
                "mode = maybe",
            ),
        ] {
            let broken = check != "process";
            fs::write(&edge.conf, conf).expect("openssl.cnf");
            // A namespace in which no other server runs.
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "--mount-proc"]);
            command.arg(&artifacts().millrace);
            command.args(["gateway", "check", server, "--json", "--server-config"]);
            command.arg(&file).arg("--openssl-conf").arg(&edge.conf);
            let report = Report::of(&mut command);
            report.fails("process", "is running");
            let outcome = if broken { "failure" } else { "ok" };
            let start = if broken { "fails" } else { "passes" };
            report.has(outcome, "start", start);
            report.has("ok", "node", &setup.node.endpoint());
            if broken {
                report.fails(check, word);
            }
        }
    }
}

#[test]
fn address_of_another_host_needs_no_local_server() {
    if !may_unshare() {
        millrace_testkit::skip!("namespaces are not permitted here");
    }
    let setup = Setup::default();
    let edge = setup.edge().write(setup.world.dir());
    let port = free_port();
    let _nginx = setup.nginx_at(port, &setup.pooled(), Some(&edge), 1, true);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc"]);
    command.arg(&artifacts().millrace);
    command.args(["gateway", "check", "nginx", "--json", "--connect"]);
    command.arg(format!("127.0.0.1:{port}")).arg("--socket").arg(setup.node.socket());
    let report = Report::of(&mut command);
    report.has("unseen", "process", "is only seen from outside").counts("pooled", HANDSHAKES);
    assert!(report.success, "{:#}", report.report);
}

#[test]
fn node_that_came_back_passes_the_check() {
    let mut setup = Setup::default();
    let edge = without_node(setup.edge()).write(setup.world.dir());
    let port = free_port();
    let nginx = setup.nginx_at(port, &setup.pooled(), Some(&edge), 1, true);
    setup.node.kill();
    setup.check_nginx(&nginx, Some(&edge)).fails("node", "no node answers").fails("handshakes", "");
    setup.node.up();
    // After repeated failures to connect, a client waits before it tries again.
    let address = (Ipv4Addr::LOCALHOST, port).into();
    let handshake = || setup.world.client.handshake(address, Tls::V13);
    wait::until("nginx has found the node again", || handshake().is_ok());
    setup.check_nginx(&nginx, Some(&edge)).is_good();
}
