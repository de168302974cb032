// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The target servers accept and run what `millrace gateway` prints and writes. If a server rejects a file,
//! the command restores the previous one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use millrace_tests::artifacts::artifacts;
use millrace_tests::gateway::Site;
use millrace_tests::node::Node;
use millrace_tests::openssl;
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{Process, free_port, listens, run, succeed, text_of};
use millrace_tests::release;
use millrace_tests::world::World;
use serde_json::Value;

/// A folder in place of `/`, and a running node.
struct Machine {
    world: World,
    node: Node,
    root: PathBuf,
}

impl Machine {
    fn new() -> Self {
        let world = World::new();
        let node = world.node("node-1");
        let root = world.dir().join("root");
        let identity = world.identity(KeyKind::Rsa2048);
        let site = Site::with_stub(&identity, &node.import("www", &identity));
        let machine = Self { world, node, root };
        machine.put("etc/nginx/www.crt", &site.certificate_pem);
        machine.put("etc/nginx/www.key", &site.key_pem);
        machine.put("etc/haproxy/www.pem", &site.certificate_pem);
        machine.put("etc/haproxy/www.pem.key", &site.key_pem);
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn put(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, text).expect("a file");
    }

    fn gateway(&self, words: &[&str]) -> Output {
        let mut command = std::process::Command::new(&artifacts().millrace);
        command.arg("gateway").args(words);
        command.args(["--pool", &self.node.endpoint()]);
        if !words.contains(&"--provider") {
            command.arg("--provider").arg(&artifacts().provider);
        }
        if !words.contains(&"--preload") {
            command.arg("--preload").arg(&artifacts().preload);
        }
        if words.contains(&"--write") {
            command.arg("--root").arg(&self.root);
        }
        run(&mut command)
    }

    fn plan(&self, application: &str, words: &[&str]) -> Value {
        let words: Vec<&str> = [application, "--json"].iter().chain(words).copied().collect();
        let output = self.gateway(&words);
        assert!(output.status.success(), "{}", text_of(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// The lines for the user's own file, with the paths of this test in place of those under `/`.
    fn snippet(&self, plan: &Value) -> String {
        let text = plan["snippets"][0]["contents"].as_str().expect("a snippet");
        let etc = format!("{}/etc/", self.root.display());
        let text = text.replace("/etc/nginx/", &format!("{etc}nginx/"));
        text.replace("/etc/haproxy/", &format!("{etc}haproxy/"))
    }

    /// The user's nginx.conf, with the snippet in it.
    fn nginx_conf(&self, snippet: &str) -> String {
        let at = self.root.display();
        let mut temporary = format!("http {{ access_log {at}/access.log;");
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            temporary.push_str(&format!(" {kind}_temp_path {at}/temp-{kind};"));
        }
        format!(
            "pid {at}/nginx.pid;\nerror_log {at}/error.log;\n{}",
            snippet.replace("http {", &temporary)
        )
    }
}

/// Runs `nginx -t` as the generated drop-in does.
fn nginx_accepts(machine: &Machine) {
    let mut command = release::command("nginx");
    command.arg("-t").arg("-c").arg(machine.path("etc/nginx/nginx.conf"));
    command.env("OPENSSL_CONF", machine.path("etc/millrace/openssl.cnf"));
    command.env("LD_PRELOAD", &artifacts().preload);
    let _ = succeed(&mut command);
}

#[test]
fn nginx_accepts_the_printed_configuration() {
    let machine = Machine::new();
    for words in [&[][..], &["--mode", "sync"], &["--connections", "100000"], &["--plain-keys"]] {
        let plan = machine.plan("nginx", words);
        for file in plan["files"].as_array().expect("files") {
            let path = file["path"].as_str().expect("a path").trim_start_matches('/');
            machine.put(path, file["contents"].as_str().expect("contents"));
        }
        machine.put("etc/nginx/nginx.conf", &machine.nginx_conf(&machine.snippet(&plan)));
        nginx_accepts(&machine);
    }
}

#[test]
fn haproxy_accepts_the_printed_configuration() {
    let machine = Machine::new();
    for words in [&[][..], &["--mode", "sync"], &["--plain-keys"]] {
        let plan = machine.plan("haproxy", words);
        let cnf = plan["files"][0]["contents"].as_str().expect("openssl.cnf");
        machine.put("etc/millrace/openssl.cnf", cnf);
        let backend = "defaults\n    mode http\n    timeout connect 1s\n    timeout server 1s\n";
        let config = format!("{}\n{backend}backend app\n", machine.snippet(&plan));
        machine.put("etc/haproxy/haproxy.cfg", &config);
        let mut command = release::command("haproxy");
        command.arg("-c").arg("-f").arg(machine.path("etc/haproxy/haproxy.cfg"));
        command.env("OPENSSL_CONF", machine.path("etc/millrace/openssl.cnf"));
        let _ = succeed(&mut command);
    }
}

fn write(machine: &Machine, words: &[&str]) -> Output {
    let words: Vec<&str> = ["nginx", "--write"].iter().chain(words).copied().collect();
    machine.gateway(&words)
}

fn written(machine: &Machine) -> Vec<PathBuf> {
    [
        "etc/millrace/openssl.cnf",
        "etc/nginx/millrace.conf",
        "etc/systemd/system/nginx.service.d/millrace.conf",
    ]
    .iter()
    .map(|name| machine.path(name))
    .filter(|path| path.exists())
    .collect()
}

#[test]
fn write_shows_tests_and_applies_changes_once() {
    if release::root().is_some() {
        millrace_testkit::skip!("the servers' own tests are those of this machine");
    }
    let machine = Machine::new();
    let snippet = machine.snippet(&machine.plan("nginx", &[]));
    let without = snippet.replace("include millrace.conf;", "");
    machine.put("etc/nginx/nginx.conf", &machine.nginx_conf(&without));
    let dry = write(&machine, &["--dry-run"]);
    assert!(dry.status.success() && written(&machine).is_empty(), "{}", text_of(&dry));
    let first = write(&machine, &[]);
    let text = text_of(&first);
    assert!(first.status.success() && written(&machine).len() == 3, "{text}");
    assert!(
        text.contains("nginx -t: passed") || text.contains("nginx -t: fails, as it did"),
        "{text}"
    );
    assert!(text.contains("openssl list -providers: passed"), "{text}");
    assert!(text.contains("include millrace.conf;"), "the line that is still missing: {text}");
    machine.put("etc/nginx/nginx.conf", &machine.nginx_conf(&snippet));
    nginx_accepts(&machine);
    let second = text_of(&write(&machine, &[]));
    assert!(second.contains("nothing to do") && !second.contains("include"), "{second}");
    // A changed setting: the command shows the changed lines and tests the result again.
    let third = text_of(&write(&machine, &["--deadline", "300ms"]));
    assert!(
        third.contains("+ deadline_ms = 300\n") && third.contains("nginx -t: passed"),
        "{third}"
    );
}

#[test]
fn files_that_the_server_rejects_are_restored() {
    if release::root().is_some() {
        millrace_testkit::skip!("the servers' own tests are those of this machine");
    }
    let machine = Machine::new();
    machine.put(
        "etc/nginx/nginx.conf",
        &machine.nginx_conf("include mill*.conf;\nevents {}\nhttp {\n}\n"),
    );
    for (flag, file, test) in [
        ("--provider", "/nonexistent/millrace.so", "openssl list -providers"),
        ("--preload", "/nonexistent/preload.so", "nginx -t"),
    ] {
        let output = write(&machine, &[flag, file]);
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(
            text.contains(&format!("{test} fails")) && text.contains("nothing was changed"),
            "{text}"
        );
        assert!(written(&machine).is_empty(), "{:?}", written(&machine));
    }
    // The command restores the previous file.
    assert!(write(&machine, &[]).status.success());
    let cnf = fs::read_to_string(machine.path("etc/millrace/openssl.cnf")).expect("written");
    assert_eq!(write(&machine, &["--provider", "/nonexistent/millrace.so"]).status.code(), Some(1));
    let after = fs::read_to_string(machine.path("etc/millrace/openssl.cnf")).expect("still there");
    assert_eq!(cnf, after);
}

#[test]
fn foreign_files_are_not_overwritten() {
    let machine = Machine::new();
    machine.put("etc/nginx/millrace.conf", "env MINE;\n");
    let refused = write(&machine, &[]);
    let text = text_of(&refused);
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(text.contains("--force") && text.contains("not ours"), "{text}");
    assert_eq!(written(&machine), [machine.path("etc/nginx/millrace.conf")]);
    let output = write(&machine, &["--force", "--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let copy = answer["saved"][0].as_str().expect("a copy");
    assert_eq!(fs::read_to_string(Path::new(copy)).expect("a copy"), "env MINE;\n");
    assert!(machine.world.dir().exists());
}

#[test]
fn certificates_that_are_missing_stop_the_write() {
    let machine = Machine::new();
    let pool = ["--pool", "tcp:node-1:7433", "--certs", "/etc/millrace/gateway-1"];
    let words = |first: &[&'static str]| [first, &pool].concat();
    let output = machine.gateway(&words(&["haproxy", "--write"]));
    let text = text_of(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("gateway-1/ca.pem") && text.contains("cert client"), "{text}");
    assert!(!machine.path("etc/millrace/openssl.cnf").exists());
    for file in ["ca.pem", "cert.pem", "key.pem"] {
        machine.put(&format!("etc/millrace/gateway-1/{file}"), "");
    }
    let text = text_of(&machine.gateway(&words(&["haproxy", "--write"])));
    let drop_in = machine.path("etc/systemd/system/haproxy.service.d/millrace.conf");
    let drop_in = fs::read_to_string(drop_in).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(
        drop_in.contains("\nBindReadOnlyPaths=/etc/millrace/gateway-1:/var/lib/haproxy/etc/"),
        "{drop_in}"
    );
}

/// A strict policy, and the provider of old algorithms.
const SYSTEM_CNF: &str = "\
openssl_conf = conf
config_diagnostics = 1

[conf]
providers = list
ssl_conf = tls

[list]
default = first
legacy = old

[first]
activate = 1

[old]
activate = 1

[tls]
system_default = policy

[policy]
MinProtocol = TLSv1.3
CipherString = DEFAULT:@SECLEVEL=3
Groups = P-384
";

#[test]
fn policy_and_providers_of_the_system_stay_in_force() {
    let machine = Machine::new();
    machine.put("etc/ssl/openssl.cnf", SYSTEM_CNF);
    let mut command = std::process::Command::new(&artifacts().millrace);
    command.args(["gateway", "openssl", "--local", "--write", "--root"]).arg(&machine.root);
    let said = succeed(command.arg("--provider").arg(&artifacts().provider));
    assert!(said.contains("before:\n    the provider `millrace` is loaded\n"), "{said}");
    // The file of this test in place of that under `/`.
    let conf = machine.path("etc/millrace/openssl.cnf");
    let system = machine.path("etc/ssl/openssl.cnf");
    let generated = fs::read_to_string(&conf).expect("written");
    let here = generated.replace("/etc/ssl/openssl.cnf", openssl::text(&system));
    assert_ne!(here, generated);
    fs::write(&conf, here).expect("a file");
    let with = |words: &[&str]| {
        let mut command = openssl::plain(words);
        command.env("OPENSSL_CONF", &conf);
        command
    };
    let providers = succeed(&mut with(&["list", "-providers"]));
    for name in ["default", "legacy", "millrace"] {
        assert!(providers.contains(&format!("  {name}\n")), "{providers}");
    }
    let digest = with(&["dgst", "-md4", openssl::text(&system)]);
    assert!(succeed(&mut { digest }).contains("MD4"));

    let identity = machine.world.identity(KeyKind::P256);
    let port = free_port();
    let mut server = with(&["s_server", "-www", "-accept", &format!("127.0.0.1:{port}")]);
    server.arg("-cert").arg(&identity.certificate_file).arg("-key").arg(&identity.key_file);
    let log = machine.world.dir().join("s_server.log");
    let mut server = Process::start("s_server", server, &log);
    server.wait_ready(|| listens(port));
    for (options, accepted) in [
        (&["-groups", "P-384"][..], true),
        (&["-groups", "X25519"], false),
        (&["-groups", "P-384", "-tls1_2"], false),
    ] {
        let mut client = openssl::plain(&["s_client", "-quiet", "-ign_eof"]);
        let page = openssl::get(client.args(options), port);
        let page = text_of(&page);
        assert_eq!(page.contains("HTTP/1.0 200"), accepted, "{options:?}: {page}");
    }
    server.kill();

    let weak = machine.world.identity(KeyKind::Rsa2048);
    let mut server = with(&["s_server", "-www", "-accept", &format!("127.0.0.1:{}", free_port())]);
    server.arg("-cert").arg(&weak.certificate_file).arg("-key").arg(&weak.key_file);
    let refused = text_of(&run(&mut server));
    assert!(refused.contains("key too small"), "{refused}");
}

#[test]
fn unknown_key_types_are_refused() {
    let machine = Machine::new();
    let output = machine.gateway(&["haproxy", "--algorithms", "RSA,FOO"]);
    let text = text_of(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("RSA,FOO: give none, or some of RSA,"), "{text}");
}
