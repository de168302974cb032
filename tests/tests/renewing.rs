// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `deploy/renewal-hook.sh`, with a stand-in for `millrace` that writes down what it was asked: links, the reload, and
//! refusals before the key is exchanged. `make test-install` renews real certificates under load. Debian's certbot with
//! its plugin for nginx, on a certificate of its own folder.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use millrace_testkit::skip;
use millrace_tests::artifacts::workspace;
use millrace_tests::checked::{Report, Setup, may_unshare};
use millrace_tests::edge::Edge;
use millrace_tests::nginx::certificate_lines;
use millrace_tests::pki::Identity;
use millrace_tests::process::{Process, free_port, run, text_of, under};
use millrace_tests::release;
use millrace_tests::servers::is_installed;
use tempfile::TempDir;

/// A host with a lineage, settings of the hook and the server's files.
struct Host {
    folder: TempDir,
}

impl Host {
    /// `settings` are further lines, after those that name the key and the files; `DIR` in them is the host's folder.
    fn new(settings: &str) -> Self {
        let host = Self { folder: tempfile::tempdir().expect("a folder") };
        for folder in ["bin", "live/www", "renewal", "archive", "server"] {
            fs::create_dir_all(host.at(folder)).expect("a folder");
        }
        host.put("live/www/privkey.pem", "renewed key");
        host.put("live/www/fullchain.pem", "renewed chain");
        host.put("server/stub", "former stub");
        host.put("server/chain", "former chain");
        let dir = host.folder.path().display().to_string();
        let text =
            format!("KEY=www\nCERTIFICATE=DIR/server/chain\nSTUB=DIR/server/stub\n{settings}");
        host.put("renewal/www.conf", &text.replace("DIR", &dir));
        let fake = format!(
            "#!/bin/sh\necho \"$@\" >>{dir}/asked\n[ \"$2\" != stub ] || echo renewed stub\n"
        );
        for (program, text) in [("millrace", fake.as_str()), ("sleep", "#!/bin/sh\n")] {
            host.put(&format!("bin/{program}"), text);
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(host.at(&format!("bin/{program}")), mode).expect("a mode");
        }
        host
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn put(&self, path: &str, text: &str) {
        fs::write(self.at(path), text).expect("a file");
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_default()
    }

    fn renew(&self) -> Output {
        let path = std::env::var("PATH").unwrap_or_default();
        Command::new(workspace().join("deploy/renewal-hook.sh"))
            .env("PATH", format!("{}:{path}", self.at("bin").display()))
            .env("RENEWED_LINEAGE", self.at("live/www"))
            .env("MILLRACE_RENEWAL", self.at("renewal"))
            .env("MILLRACE_SERVERS", self.at("etc"))
            .output()
            .expect("the hook")
    }
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).expect("a file").is_symlink()
}

#[test]
fn renewal_replaces_the_files_that_links_lead_to() {
    let host = Host::new("RELOAD='true && : >DIR/reloaded'\n");
    // As certbot keeps them: a link to a link, the second one relative.
    for name in ["stub", "chain"] {
        let file = host.at(&format!("server/{name}"));
        fs::rename(&file, host.at(&format!("archive/{name}1"))).expect("moved");
        symlink(format!("../archive/{name}1"), host.at(&format!("server/{name}2")))
            .expect("a link");
        symlink(host.at(&format!("server/{name}2")), &file).expect("a link");
    }
    let output = host.renew();
    assert!(output.status.success(), "{output:?}");
    for name in ["stub", "chain"] {
        assert!(is_link(&host.at(&format!("server/{name}"))), "{name} is a link no longer");
        assert!(is_link(&host.at(&format!("server/{name}2"))), "{name}2 is a link no longer");
        let text = host.text(&format!("archive/{name}1"));
        assert_eq!(text.trim_end(), format!("renewed {name}"));
    }
    assert_eq!(
        host.text("asked"),
        format!(
            "key import www {} --replace\nkey stub www\n",
            host.at("live/www/privkey.pem").display()
        )
    );
    assert!(host.at("reloaded").exists(), "RELOAD ran as a shell runs it");
    assert_eq!(
        fs::read_dir(host.at("server")).expect("a folder").count(),
        4,
        "nothing is left over"
    );
}

#[test]
fn plain_files_are_replaced_and_a_failed_reload_is_reported() {
    let host = Host::new("RELOAD='false && true'\n");
    let output = host.renew();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(host.text("server/stub"), "renewed stub\n");
    assert_eq!(host.text("server/chain"), "renewed chain");
}

#[test]
fn what_cannot_be_done_at_the_end_is_refused_before_the_exchange() {
    for (settings, said) in [
        ("RELOAD='true && ('\n", "RELOAD in"),
        ("RELOAD=true\nSTUB=DIR/none/stub\n", "none/stub, named in"),
        ("RELOAD=true\nCERTIFICATE=DIR/server\n", "server, named in"),
        ("RELOAD=\n", "missing in"),
    ] {
        let host = Host::new(settings);
        let output = host.renew();
        assert!(!output.status.success(), "{settings}: {output:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(said), "{settings}: {text}");
        assert_eq!(host.text("asked"), "", "{settings}: the key was exchanged");
        assert_eq!(host.text("server/stub"), "former stub");
    }
}

#[test]
fn files_of_certbot_are_refused_before_the_exchange() {
    for line in ["STUB=DIR/live/www/privkey.pem\n", "CERTIFICATE=DIR/server/linked\n"] {
        let host = Host::new(&format!("RELOAD=true\n{line}"));
        // As certbot keeps them.
        fs::rename(host.at("live/www/privkey.pem"), host.at("archive/privkey1.pem"))
            .expect("moved");
        symlink("../../archive/privkey1.pem", host.at("live/www/privkey.pem")).expect("a link");
        symlink("../live/www/fullchain.pem", host.at("server/linked")).expect("a link");
        let output = host.renew();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("is certbot's own"), "{line}: {said}");
        assert_eq!(host.text("asked"), "", "{line}: the key was exchanged");
        assert_eq!(host.text("live/www/privkey.pem"), "renewed key");
    }
}

#[test]
fn key_of_certbot_in_the_files_of_a_server_is_named() {
    let host = Host::new("RELOAD=true\n");
    fs::create_dir(host.at("etc")).expect("a folder");
    let line = format!("ssl_certificate_key {};\n", host.at("live/www/privkey.pem").display());
    host.put("etc/site.conf", &line);
    let output = host.renew();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("not used from the pool") && said.contains("etc/site.conf:1:"), "{said}");
}

/// A folder as `/etc/letsencrypt`, with one certificate that certbot renews by its plugin for nginx.
fn lineage(folder: &Path, identity: &Identity) {
    for name in ["archive/www", "live/www", "renewal"] {
        fs::create_dir_all(folder.join(name)).expect("a folder");
    }
    let mut settings = "version = 2.1.0\narchive_dir = /etc/letsencrypt/archive/www\n".to_owned();
    for name in ["privkey", "cert", "chain", "fullchain"] {
        let source =
            if name == "privkey" { &identity.key_file } else { &identity.certificate_file };
        fs::copy(source, folder.join(format!("archive/www/{name}1.pem"))).expect("a file");
        let link = folder.join(format!("live/www/{name}.pem"));
        symlink(format!("../../archive/www/{name}1.pem"), link).expect("a link");
        settings.push_str(&format!("{name} = /etc/letsencrypt/live/www/{name}.pem\n"));
    }
    settings.push_str("[renewalparams]\naccount = x\nauthenticator = webroot\ninstaller = nginx\n");
    fs::write(folder.join("renewal/www.conf"), settings).expect("a file");
}

/// An nginx whose configuration certbot may edit, in a namespace with a folder as `/etc/letsencrypt`.
struct CertbotHost {
    setup: Setup,
    edge: Edge,
    folder: PathBuf,
}

impl CertbotHost {
    fn new() -> Self {
        let setup = Setup::default();
        let folder = setup.world.dir().join("letsencrypt");
        lineage(&folder, &setup.identity);
        let edge = setup.edge().write(setup.world.dir());
        let site = setup.pooled();
        let at = setup.world.dir().display().to_string();
        let mut paths = String::new();
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            paths.push_str(&format!(" {kind}_temp_path {at}/temp-{kind};\n"));
        }
        let text = format!(
            "pid {at}/nginx.pid;\nerror_log {at}/error.log;\nuser nobody nogroup;\nworker_processes 1;\nevents {{}}\n\
             http {{\n{paths} access_log off;\n server {{\n listen 127.0.0.1:{} ssl;\n server_name localhost;\n{} }}\n}}\n",
            free_port(),
            certificate_lines(setup.world.dir(), "www", &site)
        );
        fs::create_dir(setup.world.dir().join("etc")).expect("a folder");
        let host = Self { setup, edge, folder };
        fs::write(host.config(), text).expect("a configuration");
        // Beside the configuration, as the guides have it.
        fs::write(host.config().with_file_name("www.key"), site.key_pem).expect("a stub");
        host
    }

    fn config(&self) -> PathBuf {
        self.setup.world.dir().join("etc/nginx.conf")
    }

    fn inside(&self, command: &Command) -> Command {
        let bind = "mount --bind \"$0\" /etc/letsencrypt && exec \"$@\"";
        let folder = self.folder.display().to_string();
        under(&["unshare", "--mount", "sh", "-c", bind, &folder].map(str::to_owned), command)
    }

    fn certbot(&self, words: &[&str], environment: &[(&str, &Path)]) -> String {
        let mut command = Command::new("certbot");
        command.args(words).arg("--non-interactive").arg("--nginx-server-root");
        command.arg(self.config().parent().expect("a folder"));
        for kind in ["work", "logs"] {
            command.arg(format!("--{kind}-dir")).arg(self.setup.world.dir().join(kind));
        }
        command.envs(environment.iter().copied());
        text_of(&run(&mut self.inside(&command)))
    }

    fn nginx(&self) -> Process {
        let mut command = Command::new("nginx");
        command.arg("-c").arg(self.config()).args(["-g", "daemon off;"]);
        let command = self.inside(self.edge.apply(&mut command));
        let mut process = Process::start("nginx", command, &self.setup.world.dir().join("output"));
        process.wait_ready(|| self.setup.world.dir().join("nginx.pid").exists());
        process
    }

    fn check(&self, nginx: &Process) -> Report {
        let mut check = self.setup.node.command(&["gateway", "check", "nginx", "--json"]);
        check.args(["--connect", "127.0.0.1:1", "--pid", &nginx.id().to_string()]);
        Report::of(check.arg("--openssl-conf").arg(&self.edge.conf))
    }
}

#[test]
fn installer_of_certbot_needs_the_provider_and_its_line_is_named() {
    if !may_unshare() {
        skip!("namespaces are not permitted here");
    }
    if release::root().is_some() {
        skip!("the servers' own tests are those of this machine");
    }
    if !is_installed("certbot", "certbot") {
        return;
    }
    let host = CertbotHost::new();
    let nginx = host.nginx();
    host.check(&nginx).has("warning", "certbot", "certbot.service has no OPENSSL_CONF");
    // What certbot does first at a renewal.
    let prepare = ["plugins", "--prepare"];
    let said = host.certbot(&prepare, &[]);
    const FAILED: &str = "Error while running nginx";
    assert!(said.contains(FAILED) && said.contains("cannot load certificate key"), "{said}");
    // As its drop-in has it: with OPENSSL_MODULES the library of certbot would miss its `legacy`.
    let provider = [("OPENSSL_CONF", host.edge.conf.as_path())];
    let said = host.certbot(&prepare, &provider);
    assert!(said.contains("* nginx") && !said.contains(FAILED), "{said}");
    // And what its installer does to the line of the stub.
    let install = ["install", "--nginx", "--cert-name", "www", "-d", "localhost", "--no-redirect"];
    let said = host.certbot(&install, &provider);
    assert!(said.contains("Successfully deployed"), "{said}");
    let report = host.check(&nginx);
    report.fails("certbot", "is certbot's own key").fails("certbot", "www.key is not used");
}
