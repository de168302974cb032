// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The provider's configuration: its section of `openssl.cnf`, and its own file.

use std::path::{Path, PathBuf};

use millrace_edge::settings::{DEFAULT_LOCAL, DEFAULT_MODE, DEFAULT_SOCKET, LocalChoice, words};
use millrace_hostfs::Unavailable;
use millrace_hostfs::maps::file_name;
use millrace_hostfs::openssl_cnf::{self, Cnf};

use super::{Failure, Good, Unseen};
use crate::check::evidence::Evidence;
use crate::check::pool::ProviderTls;
use crate::check::{CheckOptions, CheckReport};
use crate::provider_keys::{self, Wrong};
use crate::system_conf::is_on;

/// The provider's part of `openssl.cnf`, and of its own file.
pub(in crate::check) struct Provider {
    pub(super) module: Option<String>,
    pub(super) activated: bool,
    pub(super) default_activated: bool,
    pub(super) preferred: bool,
    pub(super) mode: String,
    /// Whether something is computed in the process.
    pub(in crate::check) local: bool,
    /// The setting `local` as it is written.
    local_words: String,
    /// Whether no key goes to a pool, on purpose.
    pub(in crate::check) poolless: bool,
    pub(in crate::check) nodes: Vec<String>,
    /// The files for `tcp:` nodes. `None` unless all three are set.
    pub(in crate::check) tls: Option<ProviderTls>,
    /// Mistakes in the section.
    wrong: Vec<Wrong>,
}

impl Provider {
    /// `None` if no section belongs to the provider.
    pub(in crate::check) fn of(options: &CheckOptions, evidence: &Evidence) -> Option<Self> {
        let (_, Ok(cnf)) = evidence.cnf.as_ref()? else {
            return None;
        };
        let client = evidence.client.as_ref();
        let client = client.and_then(|(_, table)| table.as_ref().ok());
        Self::in_section(cnf, Some(&options.server.to_string()), client)
    }

    /// The provider of an `openssl.cnf`, for an application that may have a separate section.
    pub(in crate::check) fn in_section(
        cnf: &Cnf,
        application: Option<&str>,
        client: Option<&toml::Table>,
    ) -> Option<Self> {
        let own = application.and_then(|name| cnf.value(openssl_cnf::DEFAULT, name));
        let init = own.or_else(|| cnf.value(openssl_cnf::DEFAULT, "openssl_conf"))?;
        let list = cnf.section(cnf.value(init, "providers")?)?;
        let is_ours = |name: &str, section: &str| {
            let module = cnf.value(section, "module").unwrap_or("");
            name == "millrace" || file_name(Path::new(module)).contains("millrace")
        };
        let named = |wanted: &dyn Fn(&str, &str) -> bool| {
            let found = list.iter().find(|(name, section)| wanted(name, section));
            found.map(|(_, section)| section.as_str())
        };
        let section = named(&is_ours)?;
        // Where policy has FIPS's provider, it stands in for the default one.
        let computes = |name: &str| matches!(name, "default" | "fips");
        let mut active =
            list.iter().filter(|(name, section)| computes(name) && is_active(cnf, section));
        let setting = |key: &str| {
            let own = client.and_then(|table| table.get(key)).map(toml_text);
            cnf.value(section, key).map(str::to_owned).or(own)
        };
        Some(Self {
            module: cnf.value(section, "module").map(str::to_owned),
            activated: is_active(cnf, section),
            default_activated: active.next().is_some(),
            preferred: prefers(cnf, init),
            wrong: provider_keys::check(cnf.section(section).unwrap_or_default()),
            ..Self::with(&setting)
        })
    }

    /// Whether a primitive is computed in the process.
    pub(in crate::check) fn computes(&self, primitive: &str) -> bool {
        LocalChoice::of(words(&self.local_words)).has(primitive)
    }

    /// The provider of an application that loads it by its name.
    pub(in crate::check) fn in_file(table: &toml::Table) -> Self {
        Self::with(&|key| table.get(key).map(toml_text))
    }

    fn with(setting: &dyn Fn(&str) -> Option<String>) -> Self {
        let nodes = setting("pool").unwrap_or_else(|| format!("unix:{DEFAULT_SOCKET}"));
        let mode = setting("mode").unwrap_or_else(|| DEFAULT_MODE.to_owned());
        let local_words = setting("local").unwrap_or_else(|| DEFAULT_LOCAL.to_owned());
        let local = LocalChoice::of(words(&local_words)) != LocalChoice::Off;
        let offers_none = setting("algorithms").is_some_and(|list| list.trim() == "none");
        Self {
            module: None,
            activated: true,
            default_activated: true,
            preferred: false,
            poolless: local && mode == "off" && offers_none,
            mode,
            local,
            local_words,
            nodes: words(&nodes).map(str::to_owned).collect(),
            tls: tls_files(setting),
            wrong: Vec::new(),
        }
    }
}

fn tls_files(setting: &dyn Fn(&str) -> Option<String>) -> Option<ProviderTls> {
    let file = |key| setting(key).map(PathBuf::from);
    Some(ProviderTls {
        ca: file("tls_ca")?,
        cert: file("tls_cert")?,
        key: file("tls_key")?,
        server_name: setting("tls_server_name"),
    })
}

/// Converts `"a"`, `["a", "b"]` or `true` to the text of a section.
fn toml_text(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Boolean(true) => "on".to_owned(),
        toml::Value::Boolean(false) => "off".to_owned(),
        toml::Value::Array(values) => {
            let words: Vec<&str> = values.iter().filter_map(toml::Value::as_str).collect();
            words.join(",")
        }
        other => other.to_string(),
    }
}

fn is_active(cnf: &Cnf, section: &str) -> bool {
    cnf.value(section, "activate").is_some_and(is_on)
}

fn prefers(cnf: &Cnf, init: &str) -> bool {
    let algorithms = cnf.value(init, "alg_section");
    let query = algorithms.and_then(|section| cnf.value(section, "default_properties"));
    query
        .is_some_and(|query| query.contains("provider=millrace") || query.contains("millrace.pool"))
}

pub(super) fn openssl_cnf(
    evidence: &Evidence,
    provider: Option<&Provider>,
    report: &mut CheckReport,
) {
    const CHECK: &str = "openssl.cnf";
    let Some((path, cnf)) = &evidence.cnf else {
        return report.add(CHECK, Failure, "there is no openssl.cnf", evidence.write());
    };
    let shown = path.display();
    if let Err(error) = cnf {
        let outcome = if *error == Unavailable::Denied { Unseen } else { Failure };
        let seen = format!("{shown}: {error}");
        return report.add(CHECK, outcome, seen, evidence.write());
    }
    if let Some((path, Err(error))) = &evidence.client {
        let seen = format!("{}: {error}", path.display());
        let remedy = "the provider refuses to load with it: correct it or remove it";
        return report.add(CHECK, Failure, seen, remedy);
    }
    let Some(provider) = provider else {
        let seen =
            format!("{shown} has no section for the provider that its openssl_conf leads to");
        return report.add(CHECK, Failure, seen, evidence.write());
    };
    for wrong in &provider.wrong {
        let (seen, what) = wrong.seen_and_remedy();
        let remedy = evidence.restart().worded(|restart| format!("{what}, then {restart}"));
        report.add(CHECK, Failure, format!("{shown}: {seen}"), remedy);
    }
    let remedy = |what: &str| {
        evidence.restart().worded(|restart| format!("{what} in {shown}, then {restart}"))
    };
    match provider.hindrance() {
        Some((seen, what)) => {
            report.add(CHECK, Failure, format!("{shown} {seen}"), remedy(what));
        }
        None if provider.poolless => {
            let seen =
                format!("{shown}, no pool: what is computed in the process is counted below");
            report.add(CHECK, Good, seen, None);
        }
        None => {
            let seen = format!("{shown}, nodes {}", provider.nodes.join(", "));
            report.add(CHECK, Good, seen, None);
        }
    }
}

impl Wrong {
    fn seen_and_remedy(&self) -> (String, &'static str) {
        match self {
            Self::Unknown(key) => (
                format!(
                    "`{key}` is not a setting of the provider, which does nothing with this file"
                ),
                "correct its name: `millrace sample client` prints every key",
            ),
            Self::Value(key, value, accepted) => (
                format!(
                    "{key} = {value}: the provider does nothing with this file; it takes {accepted}"
                ),
                "correct it",
            ),
        }
    }
}

impl Provider {
    /// Why the file leaves the provider without work, and what to do about it.
    fn hindrance(&self) -> Option<(&'static str, &'static str)> {
        if !self.activated {
            Some(("does not activate the provider", "set activate = 1"))
        } else if !self.default_activated {
            Some((
                "does not activate `default`: naming a provider turns it off",
                "list `default` beside `millrace` and activate it",
            ))
        } else if self.mode == "off" && !self.poolless {
            Some(("has mode = off: nothing goes to the pool", "remove mode"))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Provider;

    #[test]
    fn values_of_a_file_mean_what_they_mean_to_the_provider() {
        let read = |text: &str| Provider::in_file(&text.parse().expect("TOML"));
        let bare = read("");
        assert_eq!(bare.nodes, ["unix:/run/millrace/node.sock"]);
        assert!(!bare.local && bare.mode == "async");
        for (text, computes) in [
            ("local = true", true),
            ("local = \"all\"", true),
            ("local = [\"x25519\", \"TLS13-KDF\"]", true),
            ("local = \"TLS13-KDF\"", false),
            ("local = false", false),
            ("local = \"\"", false),
        ] {
            assert_eq!(read(text).computes("X25519"), computes, "{text}");
        }
        assert!(read("local = \"TLS13-KDF\"").local && !read("local = \"\"").local);
        assert!(read("mode = \"off\"\nlocal = true\nalgorithms = \"none\"").poolless);
    }
}
