// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The edge of one test: an `openssl.cnf` that loads the provider into a program, and the folder that
//! holds the module.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::artifacts::artifacts;

/// Settings with which a program reaches the pool.
#[derive(Clone, Debug, Default)]
pub struct EdgeOptions {
    /// Endpoints of the nodes; without one, a file has to name them.
    pub nodes: Vec<String>,
    /// Folder with `ca.pem`, `cert.pem` and `key.pem`, for nodes over TCP that are named `localhost` in
    /// their certificates.
    pub certificates: Option<PathBuf>,
    /// `default_properties` prefer the provider: plain PEM keys go to the pool, too.
    pub preferred: bool,
    /// `default_properties` prefer what is computed in the process.
    pub local: bool,
    /// The provider stands before OpenSSL's own in the file.
    pub first: bool,
    /// The provider's module; default: this tree's.
    pub provider: Option<PathBuf>,
    /// Further lines of the provider's section; they replace `PATIENT`.
    pub settings: Vec<(&'static str, String)>,
}

/// Time limits of the provider unless a test sets its own: long enough that a busy machine reaches none of
/// them. Tests of the limits themselves set short ones.
const PATIENT: [(&str, &str); 2] = [("deadline_ms", "30000"), ("fallback_after_ms", "30000")];

impl EdgeOptions {
    /// A configuration in which keys that name the pool use this node.
    #[must_use]
    pub fn to(endpoint: String) -> Self {
        Self { nodes: vec![endpoint], ..Self::default() }
    }

    /// A configuration in which everything that can be is computed in the process, and nothing in a pool.
    #[must_use]
    pub fn local() -> Self {
        let options = Self { local: true, ..Self::default() };
        let options = options.with("local", "all").with("mode", "off");
        options.with("algorithms", "none")
    }

    /// These options, with plain PEM keys in the pool, too.
    #[must_use]
    pub fn preferred(mut self) -> Self {
        self.preferred = true;
        self
    }

    /// Adds a setting of the provider.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl ToString) -> Self {
        self.settings.push((key, value.to_string()));
        self
    }

    /// Writes the files.
    ///
    /// # Panics
    /// If they cannot be written.
    #[must_use]
    pub fn write(self, dir: &Path) -> Edge {
        let modules = dir.join("modules");
        fs::create_dir_all(&modules).expect("folder for modules");
        let module = modules.join("millrace.so");
        if !module.exists() {
            let provider = self.provider.as_ref();
            symlink(provider.unwrap_or_else(|| &artifacts().provider), &module)
                .expect("link to the provider");
        }
        let mut number = 0;
        let conf = loop {
            let conf = dir.join(format!("openssl-{number}.cnf"));
            if !conf.exists() {
                break conf;
            }
            number += 1;
        };
        fs::write(&conf, self.text(&module)).expect("openssl.cnf");
        Edge { conf, modules }
    }

    fn text(&self, module: &Path) -> String {
        let mut text = "openssl_conf = init\n[init]\nproviders = providers\n".to_owned();
        if self.preferred || self.local {
            text.push_str("alg_section = algorithms\n");
        }
        let (one, two) = if self.first { ("millrace", "default") } else { ("default", "millrace") };
        let _ = write!(
            text,
            "[providers]\n{one} = {one}_section\n{two} = {two}_section\n\
             [default_section]\nactivate = 1\n\
             [millrace_section]\nmodule = {}\nactivate = 1\n",
            module.display(),
        );
        if !self.nodes.is_empty() {
            let _ = writeln!(text, "pool = {}", self.nodes.join(","));
        }
        if let Some(certificates) = &self.certificates {
            let dir = certificates.display();
            let _ = write!(
                text,
                "tls_ca = {dir}/ca.pem\ntls_cert = {dir}/cert.pem\ntls_key = {dir}/key.pem\n\
                 tls_server_name = localhost\n"
            );
        }
        for (key, value) in &self.settings {
            let _ = writeln!(text, "{key} = {value}");
        }
        let is_set = |key: &str| self.settings.iter().any(|(set, _)| *set == key);
        for (key, value) in PATIENT.iter().filter(|(key, _)| !is_set(key)) {
            let _ = writeln!(text, "{key} = {value}");
        }
        let preferred = if self.local {
            "?millrace.local=yes"
        } else {
            "?provider=millrace,?millrace.pool=yes"
        };
        let _ = writeln!(text, "[algorithms]\ndefault_properties = {preferred}");
        text
    }
}

/// A written configuration.
#[derive(Clone, Debug)]
pub struct Edge {
    /// The `openssl.cnf`.
    pub conf: PathBuf,
    /// The folder with `millrace.so`.
    pub modules: PathBuf,
}

impl Edge {
    /// Makes a program use the pool.
    pub fn apply<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("OPENSSL_CONF", &self.conf).env("OPENSSL_MODULES", &self.modules)
    }

    /// The `openssl` program, using the pool.
    #[must_use]
    pub fn openssl(&self, arguments: &[&str]) -> Command {
        let mut command = crate::release::command("openssl");
        self.apply(&mut command).args(arguments);
        command
    }
}
