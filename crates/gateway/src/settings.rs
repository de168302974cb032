// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The input of a recipe. Its values are written to files with different quoting rules (openssl.cnf, TOML,
//! systemd, nginx, HAProxy), so only characters that need no quoting in any of them are accepted.

use std::path::{Path, PathBuf};

use millrace_operation::EndpointParts;
use strum::Display;
use thiserror::Error;

use crate::provider_keys::{self, is_endpoint};
use crate::system_conf::SystemConf;

/// The provider's own bound on nodes.
const MAX_NODES: usize = 64;

/// A refused setting. The message names the accepted form.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// An endpoint that is neither `unix:PATH` nor `tcp:HOST:PORT`.
    #[error("node {0}: write unix:/absolute/path or tcp:HOST:PORT (tcp:[ADDRESS]:PORT for IPv6)")]
    Endpoint(String),
    /// More nodes than a provider accepts.
    #[error("{0} nodes: a provider takes at most {MAX_NODES}")]
    Nodes(usize),
    /// A path or a value that would need quoting.
    #[error(
        "{what} {value:?}: letters, digits and -_.,:/@+[] are all that every configuration file takes \
         unquoted; choose another"
    )]
    Unquotable {
        /// Name of the setting.
        what: &'static str,
        /// Value that was given.
        value: String,
    },
    /// A value that the provider refuses.
    #[error("{what} {value}: give {accepted}")]
    Refused {
        /// Name of the setting.
        what: &'static str,
        /// Value that was given.
        value: String,
        /// The values that the provider accepts.
        accepted: String,
    },
    /// A relative path.
    #[error("{what} {}: give an absolute path", path.display())]
    Relative {
        /// Name of the option.
        what: &'static str,
        /// As it was given.
        path: PathBuf,
    },
}

/// Manner in which handshakes wait for the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[strum(serialize_all = "lowercase")]
pub enum HandshakeMode {
    /// The handshake is suspended and its worker serves other connections, where the application can
    #[default]
    Async,
    /// The worker blocks
    Sync,
    /// The pool is not used: OpenSSL does every operation
    Off,
}

/// The input of a recipe. [`RecipeSettings::new`] checks it.
#[derive(Clone, Debug)]
pub struct RecipeSettings {
    /// Name of a key in the pool; names of files are derived from it.
    pub key: String,
    /// The nodes, as endpoints.
    pub nodes: Vec<String>,
    /// Folder with `ca.pem`, `cert.pem` and `key.pem`, for nodes over TCP.
    pub certificates: Option<PathBuf>,
    /// Whether plain PEM keys go to the pool, too.
    pub plain_keys: bool,
    /// Whether the process itself computes what is not the pool's.
    pub local: bool,
    /// Absolute path of the provider module.
    pub module: PathBuf,
    /// The library that makes nginx asynchronous, if there is one.
    pub preload: Option<PathBuf>,
    /// The library that compresses responses, if nginx is to use it.
    pub compression: Option<PathBuf>,
    /// Way in which handshakes wait for the pool.
    pub mode: HandshakeMode,
    /// Further keys of the provider's configuration with their values, in the order of the file.
    pub provider: Vec<(&'static str, String)>,
    /// Concurrent connections that the server is sized for.
    pub connections: u32,
    /// CPU cores of the machine.
    pub cores: u32,
    /// Whether systemd starts the services.
    pub systemd: bool,
    /// Servers whose configuration a certbot on this host tests at a renewal: `nginx`, `apache`.
    pub certbot: Vec<&'static str>,
    /// The `openssl.cnf` that the generated one continues.
    pub system: Option<SystemConf>,
}

impl RecipeSettings {
    /// Checks that every value can be written to every file without quotes.
    ///
    /// # Errors
    /// The first value that cannot.
    pub fn new(settings: Self) -> Result<Self, SettingsError> {
        let Self {
            key,
            nodes,
            certificates,
            plain_keys: _,
            local: _,
            module,
            preload,
            compression,
            mode: _,
            provider,
            connections: _,
            cores: _,
            systemd: _,
            certbot: _,
            system: _,
        } = &settings;
        plain("key", key)?;
        if key.contains('/') || key.starts_with('.') {
            return Err(unquotable("key", key));
        }
        if nodes.len() > MAX_NODES {
            return Err(SettingsError::Nodes(nodes.len()));
        }
        for node in nodes {
            check_endpoint(node)?;
        }
        let paths = [
            ("module", Some(module)),
            ("preload", preload.as_ref()),
            ("compression", compression.as_ref()),
        ];
        for (what, path) in paths {
            if let Some(path) = path {
                plain_path(what, path)?;
            }
        }
        if let Some(folder) = certificates {
            plain_path("certs", folder)?;
        }
        for (name, value) in provider {
            plain(name, value)?;
            if let Some(accepted) = provider_keys::refused(name, value) {
                return Err(SettingsError::Refused { what: name, value: value.clone(), accepted });
            }
        }
        Ok(settings)
    }

    /// Whether a node is named by a host name, which has to be resolved.
    pub(crate) fn has_names(&self) -> bool {
        self.nodes.iter().filter_map(|node| EndpointParts::parse(node)).any(|node| match node {
            EndpointParts::Tcp { host, .. } => host.parse::<std::net::IpAddr>().is_err(),
            EndpointParts::Unix(_) => false,
        })
    }

    /// The unix sockets among the nodes.
    pub fn sockets(&self) -> impl Iterator<Item = &Path> {
        let nodes = self.nodes.iter();
        nodes.filter_map(|node| node.strip_prefix("unix:").map(Path::new))
    }
}

fn plain_path(what: &'static str, path: &Path) -> Result<(), SettingsError> {
    if !path.is_absolute() {
        return Err(SettingsError::Relative { what, path: path.to_owned() });
    }
    match path.to_str() {
        Some(text) => plain(what, text),
        None => Err(unquotable(what, &path.to_string_lossy())),
    }
}

fn plain(what: &'static str, value: &str) -> Result<(), SettingsError> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.,:/@+[]".contains(&byte);
    if !value.is_empty() && value.bytes().all(good) { Ok(()) } else { Err(unquotable(what, value)) }
}

fn unquotable(what: &'static str, value: &str) -> SettingsError {
    SettingsError::Unquotable { what, value: value.to_owned() }
}

fn check_endpoint(endpoint: &str) -> Result<(), SettingsError> {
    let relative = endpoint.strip_prefix("unix:").is_some_and(|path| !path.starts_with('/'));
    // A comma separates endpoints.
    if !is_endpoint(endpoint) || relative || endpoint.contains(',') {
        return Err(SettingsError::Endpoint(endpoint.to_owned()));
    }
    plain("node", endpoint)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn settings(nodes: &[&str]) -> RecipeSettings {
        let settings = RecipeSettings {
            key: "www".to_owned(),
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            certificates: nodes
                .iter()
                .any(|node| node.starts_with("tcp:"))
                .then(|| PathBuf::from("/etc/millrace/client")),
            plain_keys: false,
            local: false,
            module: PathBuf::from("/usr/lib/x86_64-linux-gnu/ossl-modules/millrace.so"),
            preload: Some(PathBuf::from("/usr/local/lib/millrace/libmillrace_preload.so")),
            compression: None,
            mode: HandshakeMode::Async,
            provider: Vec::new(),
            connections: 4096,
            cores: 4,
            systemd: true,
            certbot: Vec::new(),
            system: None,
        };
        RecipeSettings::new(settings).expect("settings of a test")
    }

    #[test]
    fn only_unix_and_tcp_endpoints_are_accepted() {
        for good in ["unix:/run/x", "tcp:host:1", "tcp:[::1]:7433"] {
            assert!(check_endpoint(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "unix:",
            "unix:relative",
            "tcp:host",
            "tcp::1",
            "tcp:::1:7400",
            "tcp:[::1:7400",
            "tcp:h:x",
            "udp:h:1",
            "unix:/a,/b",
            "unix:/a b",
            "unix:/a\nb",
        ] {
            assert!(check_endpoint(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn values_that_need_quotes_are_refused() {
        let with = |change: &dyn Fn(&mut RecipeSettings)| {
            let mut settings = settings(&["unix:/run/millrace/node.sock"]);
            change(&mut settings);
            RecipeSettings::new(settings)
        };
        assert!(with(&|_| ()).is_ok());
        for module in ["/usr/lib/mill race.so", "/lib/$HOME/x.so", "lib/x.so", "/a\n[x]"] {
            assert!(with(&|s| s.module = module.into()).is_err(), "{module}");
        }
        for key in ["", "../x", "a/b", ".hidden", "a;b", "a b"] {
            assert!(with(&|s| s.key = key.to_owned()).is_err(), "{key}");
        }
        for list in ["RSA\nmodule=/x", "RSA,FOO"] {
            assert!(
                with(&|s| s.provider = vec![("algorithms", list.to_owned())]).is_err(),
                "{list}"
            );
        }
    }
}
