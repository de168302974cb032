// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Servers that take a key in a way of their own: nginx by a URI, HAProxy at run time, Dovecot in processes without the
//! environment of their parent.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_testkit::skip;
use millrace_tests::artifacts::workspace;
use millrace_tests::checked::{Setup, may_unshare};
use millrace_tests::drive::Tls;
use millrace_tests::edge::Edge;
use millrace_tests::gateway::Site;
use millrace_tests::haproxy::{Haproxy, HaproxyOptions, bundle};
use millrace_tests::nginx::{Nginx, NginxOptions};
use millrace_tests::openssl::{plain, text};
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{Process, free_port, listens, run, succeed, text_of};
use millrace_tests::{is_root, release, wait};

/// Debian sid's nginx in an unpacked folder: `None` without a network to the mirror.
fn new_nginx() -> Option<String> {
    let output = Command::new(workspace().join("scripts/new-nginx.sh")).output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| folder.trim().to_owned())
}

/// `nginx -t` of a server with this key.
fn nginx_tests(root: &str, setup: &Setup, edge: &Edge, key: &str) -> (bool, String) {
    let conf = setup.world.dir().join("test.conf");
    let certificate = setup.identity.certificate_file.display();
    let server = format!(
        "server {{ listen 1 ssl; ssl_certificate {certificate}; ssl_certificate_key {key}; }}"
    );
    fs::write(&conf, format!("pid none.pid;\nevents {{}}\nhttp {{ {server} }}\n")).expect("a file");
    let mut command = Command::new(workspace().join("scripts/in-root.sh"));
    command.args([root, "nginx", "-t", "-e", "stderr", "-p"]).arg(setup.world.dir());
    let output = run(edge.apply(command.arg("-c").arg(&conf)));
    (output.status.success(), text_of(&output))
}

#[test]
fn key_uri_with_its_public_half_starts_nginx_while_no_node_answers() {
    if !may_unshare() {
        skip!("namespaces are not permitted here");
    }
    if release::root().is_some() {
        skip!("the release under test is in a namespace of mounts itself");
    }
    let Some(root) = new_nginx() else {
        skip!("no nginx of Debian sid");
    };
    let mut setup = Setup::default();
    let _ = setup.pooled();
    let edge = setup.edge().with("deadline_ms", 5000).write(setup.world.dir());
    let uri = succeed(&mut setup.node.command(&["key", "stub", "www", "--uri"]));
    let uri = format!("store:{}", uri.trim());
    let (passes, said) = nginx_tests(&root, &setup, &edge, "store:millrace:www");
    assert!(passes, "a node answers: {said}");

    setup.node.stop();
    let (passes, said) = nginx_tests(&root, &setup, &edge, "store:millrace:www");
    assert!(!passes && said.contains("millrace:www"), "{said}");
    let (passes, said) = nginx_tests(&root, &setup, &edge, &uri);
    assert!(passes, "{said}");

    let port = free_port();
    let certificate = setup.identity.certificate_file.display();
    let http = format!(
        "server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {certificate}; ssl_certificate_key {uri}; return 200 ok; }}"
    );
    let in_root = workspace().join("scripts/in-root.sh").display().to_string();
    let options = NginxOptions {
        preload: false,
        launcher: vec![in_root, root],
        ..NginxOptions::asynchronous(&edge, http)
    };
    let _nginx = Nginx::start(setup.world.dir(), &options, &[port]);
    setup.node.up();
    setup.node.wait_for_store();
    setup.world.client.handshakes((Ipv4Addr::LOCALHOST, port).into(), Tls::V13, 3);
    assert_eq!(setup.node.served().rsa_signatures(), 3);
}

#[test]
fn haproxy_commits_a_stub_whose_key_no_node_has_and_the_check_of_the_guide_names_it_before() {
    let setup = Setup::default();
    let good = setup.pooled();
    let edge = setup.edge().with("deadline_ms", 1000).write(setup.world.dir());
    let port = free_port();
    let file = bundle(setup.world.dir(), "www", &good);
    let sections = format!(
        "frontend www\n  bind 127.0.0.1:{port} ssl crt {file}\n\
         \x20 http-request return status 200 content-type text/plain string ok\n"
    );
    let options = HaproxyOptions::asynchronous(&edge, sections);
    let haproxy = Haproxy::start(setup.world.dir(), &options, &[port]);
    let shake = || setup.world.client.handshake((Ipv4Addr::LOCALHOST, port).into(), Tls::V13);
    let commit = |site: &Site| {
        let pem = format!("{}{}", site.certificate_pem, site.key_pem).replace("\n\n", "\n");
        let said = haproxy.ask(&format!("set ssl cert {file} <<\n{}\n", pem.trim_end()));
        assert!(said.contains("Transaction created"), "{said}");
        haproxy.ask(&format!("commit ssl cert {file}"))
    };
    assert_eq!(shake(), Ok(()));

    let identity = setup.world.identity(KeyKind::P256);
    let stub = setup.node.import("gone", &identity);
    setup.node.remove("gone");
    let gone = Site::with_stub(&identity, &stub);
    let before = setup.world.dir().join("gone.key");
    fs::write(&before, &stub).expect("a stub");
    let said =
        text_of(&run(&mut edge.openssl(&["pkey", "-in", text(&before), "-check", "-noout"])));
    assert!(said.contains("Key is invalid") && said.contains("unusable key"), "{said}");
    assert!(commit(&gone).contains("Success"), "HAProxy asks for no signature");
    assert!(shake().is_err(), "no node has the key");

    assert!(commit(&good).contains("Success"));
    assert_eq!(shake(), Ok(()));
}

/// A Dovecot with these lines, once it listens.
fn dovecot(setup: &Setup, edge: &Edge, key: &Path, lines: &str) -> (Process, u16, PathBuf) {
    let port = free_port();
    let dir = setup.world.dir().join(format!("dovecot-{port}"));
    fs::create_dir(&dir).expect("a folder");
    let conf = format!(
        "base_dir = {at}/run\nstate_dir = {at}/state\nlog_path = {at}/log\nprotocols = imap\nlisten = 127.0.0.1\n\
         mail_location = maildir:{at}/mail\nssl = required\nssl_cert = <{certificate}\nssl_key = <{key}\n{lines}\
         passdb {{\n  driver = static\n  args = nopassword=y\n}}\n\
         service imap-login {{\n  chroot =\n  inet_listener imap {{\n    port = 0\n  }}\n\
         \x20 inet_listener imaps {{\n    port = {port}\n  }}\n}}\n",
        at = dir.display(),
        certificate = setup.identity.certificate_file.display(),
        key = key.display(),
    );
    fs::write(dir.join("dovecot.conf"), conf).expect("a file");
    let mut command = Command::new(DOVECOT);
    let mut process = Process::start(
        "dovecot",
        {
            command.arg("-F").arg("-c").arg(dir.join("dovecot.conf"));
            edge.apply(&mut command);
            command
        },
        &dir.join("output.log"),
    );
    process.wait_ready(|| listens(port));
    (process, port, dir.join("log"))
}

const DOVECOT: &str = "/usr/sbin/dovecot";

#[test]
fn dovecot_serves_a_stub_only_with_the_variable_that_its_processes_import() {
    let version = Command::new(DOVECOT).arg("--version").output();
    let is_known = version.is_ok_and(|output| output.stdout.starts_with(b"2.3"));
    if !is_root() || !is_known || release::root().is_some() {
        skip!("no Dovecot 2.3 that root starts");
    }
    let setup = Setup::default();
    let stub = setup.pooled().key_pem;
    let key = setup.world.dir().join("stub.key");
    fs::write(&key, stub).expect("a stub");
    let edge = setup.edge().write(setup.world.dir());
    let connect = |port: u16| {
        let (address, authority) = (format!("127.0.0.1:{port}"), &setup.world.authority.file);
        let words = ["s_client", "-connect", &address, "-verify_return_error", "-CAfile"];
        text_of(&run(plain(&words).arg(authority)))
    };
    let import =
        format!("import_environment = $import_environment OPENSSL_CONF={}\n", edge.conf.display());
    let (server, port, _) = dovecot(&setup, &edge, &key, &import);
    // Without a handshake s_client has "verified" as well.
    const NO_HANDSHAKE: &str = "Cipher is (NONE)";
    let said = connect(port);
    assert!(said.contains("Verify return code: 0 (ok)") && !said.contains(NO_HANDSHAKE), "{said}");
    assert_eq!(setup.node.served().rsa_signatures(), 1);
    drop(server);

    let (_server, port, log) = dovecot(&setup, &edge, &key, "");
    let said = connect(port);
    assert!(said.contains(NO_HANDSHAKE), "{said}");
    let says = || fs::read_to_string(&log).unwrap_or_default();
    // The guide quotes it: Dovecot suspects a password.
    wait::until("Dovecot says why", || says().contains("Couldn't parse private SSL key"));
    assert_eq!(setup.node.served().rsa_signatures(), 1);
}
