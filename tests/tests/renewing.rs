// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `deploy/renewal-hook.sh`, with a stand-in for `millrace` that writes down what it was asked: links, the reload, and
//! refusals before the key is exchanged. `make test-install` renews real certificates under load.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use millrace_tests::artifacts::workspace;
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
