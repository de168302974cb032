// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The configuration of a node: [`NodeConfig`], and the file that it may come from.
//!
//! Two stages. `node.toml` is parsed into the typed values (unknown keys are errors), and
//! [`NodeConfig::from_toml`] converts them, or returns one error that lists everything that is wrong.
//! The caller applies flags and the environment by changing the fields of the result.
//! Every key of the file, at its default, is in [`SAMPLE`].

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_engine::{BackendKind, Engine, EngineConfig};
use serde::Deserialize;
use thiserror::Error;

use millrace_service::Service;
use millrace_service::settings::{IdentityLimits, LimitsForm, Problems, Settings};
use millrace_service::store::{KekSource, KeyStore, StoreError};

/// A `node.toml` with every key at its default, and the meaning of each.
pub const SAMPLE: &str = include_str!("../node.toml");

/// Default folder of the state.
const STATE_DIRECTORY: &str = "/var/lib/millrace";

/// Default folder of the sockets.
const RUN_DIRECTORY: &str = "/run/millrace";

/// Default port of `/metrics`, in the range that Prometheus exporters share.
const METRICS_PORT: u16 = 9464;

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The node's name, for clients' logs; at most [`MAX_NODE_NAME_LEN`] bytes.
    pub name: String,
    /// The unix socket; `None`: the node does not listen on one.
    pub unix: Option<UnixConfig>,
    /// The TCP listener, always with mutual TLS; `None`: the node does not listen on TCP.
    pub tcp: Option<TcpConfig>,
    /// The TCP address that serves `/metrics`, `/healthz` and `/status`. Loopback only.
    pub metrics: Option<SocketAddr>,
    /// The unix socket that serves the same, for `millrace status`.
    pub status_socket: Option<PathBuf>,
    /// The administration socket; `None`: the node has none.
    pub admin: Option<AdminConfig>,
    /// The settings that a reload changes in a running node.
    pub settings: Settings,
    /// Bound on the time that jobs in flight have to end after the order to stop.
    pub drain_timeout: Duration,
    /// The location of the keys. The composition root opens the store and gives the node a service over it.
    pub store: StoreConfig,
    /// Settings of the engine. The composition root uses this field and the next three.
    pub engine: EngineConfig,
    /// The processors on which workers run.
    pub pin: Pin,
    /// The backends to use, in order of preference; `None`: all that are compiled in.
    pub backends: Option<Vec<BackendKind>>,
    /// Whether to write the log as one JSON object per line instead of text.
    pub json_log: bool,
}

/// The administration socket. The kernel reports the user of each client. The mode is 0600, or 0666 where `uids`
/// names other users, who could not connect otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminConfig {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Users that may administer the node, besides root and the node's own user.
    pub uids: Vec<u32>,
}

/// A listener on a unix socket. The kernel identifies clients, as `uid:N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixConfig {
    /// Path of the socket. The node creates a missing directory.
    pub path: PathBuf,
    /// Mode of the socket. [`DEFAULT_SOCKET_MODE`] unless configured.
    pub mode: u32,
    /// Group of the socket: a name in `/etc/group`, or a number.
    pub group: Option<String>,
}

impl UnixConfig {
    /// A socket at `path`, mode 0660.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            mode: DEFAULT_SOCKET_MODE,
            group: None,
        }
    }
}

/// Owner and group may connect: permission to connect is permission to submit jobs.
pub const DEFAULT_SOCKET_MODE: u32 = 0o660;

/// A listener on TCP with mutual TLS 1.3. Clients are identified as `cert:NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Address and port; with port 0 the kernel chooses a free one.
    pub address: SocketAddr,
    /// Certificate, key and CA.
    pub tls: TlsFiles,
}

/// PEM files. The node reads them at the start and at every reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The node's certificate chain.
    pub certificate: PathBuf,
    /// The private key of the certificate. The node's user or root must own the file; if the owner is root, a
    /// group may read it.
    pub key: PathBuf,
    /// The CA that issues clients' certificates.
    pub client_ca: PathBuf,
    /// The revocation lists of the CA, if the node is to refuse revoked certificates: one per CA in the chain
    /// of a client's certificate. If a CA has no list, or an expired one, the node refuses its clients.
    pub crl: Option<PathBuf>,
}

impl TlsFiles {
    /// The paths of the files that [`crate::tls::ensure_node_certificates`] creates in a directory, without a
    /// revocation list.
    #[must_use]
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            certificate: directory.join("node.crt"),
            key: directory.join("node.key"),
            client_ca: directory.join("ca.crt"),
            crl: None,
        }
    }
}

/// The directory of the keys, and the key that decrypts them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// The directory of the key store.
    pub directory: PathBuf,
    /// The key-encryption key.
    pub kek: KekSource,
}

/// The processors to which workers are pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Pin {
    /// Each worker to one NUMA node, if the machine has several; otherwise the system places workers.
    #[default]
    Auto,
    /// Each worker of a class to a separate core: for a machine that runs only Millrace.
    Core,
    /// Workers are not pinned.
    Off,
}

/// Bound on the name of a node, in bytes: the bound of the wire protocol.
pub const MAX_NODE_NAME_LEN: usize = millrace_wire::MAX_NAME_LEN;

impl Default for NodeConfig {
    fn default() -> Self {
        NodeFile::default()
            .into_config()
            .expect("the defaults are valid")
    }
}

impl NodeConfig {
    /// Parses and checks a `node.toml`.
    ///
    /// # Errors
    /// A syntax error, an unknown key, or every value outside its bounds, each with its key.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let file: NodeFile = toml::from_str(text)?;
        file.into_config().map_err(ConfigError::Values)
    }

    /// Builds the service of a node with this name and these settings.
    ///
    /// # Errors
    /// If the key store cannot be read.
    pub fn service(&self, engine: Engine, store: KeyStore) -> Result<Service, StoreError> {
        Service::new(self.name.clone(), self.settings.clone(), engine, store)
    }
}

/// Error of [`NodeConfig::from_toml`].
#[derive(Debug, Error)]
pub enum ConfigError {
    /// Invalid TOML, or an unknown key, with its position.
    #[error(transparent)]
    Syntax(#[from] toml::de::Error),
    /// Values outside their bounds.
    #[error("{0}")]
    Values(Problems),
}

/// `node.toml` as written: every value optional or at its default, unchecked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct NodeFile {
    name: Option<String>,
    allow_import: bool,
    drain_timeout_ms: u64,
    backends: Option<Vec<String>>,
    unix: UnixFile,
    tcp: Option<TcpFile>,
    metrics: MetricsFile,
    admin: AdminFile,
    store: StoreFile,
    identities: Vec<String>,
    identity: BTreeMap<String, IdentityLimits>,
    limits: LimitsForm,
    engine: EngineFile,
    log: LogFile,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct UnixFile {
    enabled: bool,
    path: PathBuf,
    mode: String,
    group: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct TcpFile {
    address: SocketAddr,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    crl: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct MetricsFile {
    enabled: bool,
    address: SocketAddr,
    socket: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct StoreFile {
    directory: PathBuf,
    kek: String,
    create_kek: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct AdminFile {
    enabled: bool,
    socket: PathBuf,
    uids: Vec<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct EngineFile {
    workers: Option<usize>,
    pin: Pin,
    queue_limit: Option<usize>,
    session_queue_limit: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct LogFile {
    filter: String,
    format: String,
}

impl Default for NodeFile {
    fn default() -> Self {
        let settings = Settings::default();
        Self {
            name: None,
            allow_import: settings.allow_import,
            // Twice the longest operation behind a full queue, and below the 90 s after which systemd kills
            // the process.
            drain_timeout_ms: 10_000,
            backends: None,
            unix: UnixFile::default(),
            tcp: None,
            metrics: MetricsFile::default(),
            admin: AdminFile::default(),
            store: StoreFile::default(),
            identities: settings.identities,
            identity: settings.identity,
            limits: settings.limits.into(),
            engine: EngineFile::default(),
            log: LogFile::default(),
        }
    }
}

impl Default for UnixFile {
    fn default() -> Self {
        let path = Path::new(RUN_DIRECTORY).join("node.sock");
        Self {
            enabled: true,
            path,
            mode: format!("{DEFAULT_SOCKET_MODE:04o}"),
            group: None,
        }
    }
}

impl Default for MetricsFile {
    fn default() -> Self {
        Self {
            enabled: true,
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), METRICS_PORT),
            socket: Path::new(RUN_DIRECTORY).join("status.sock"),
        }
    }
}

impl Default for StoreFile {
    fn default() -> Self {
        let state = Path::new(STATE_DIRECTORY);
        let kek = state.join("kek").display().to_string();
        Self {
            directory: state.join("keys"),
            kek,
            create_kek: false,
        }
    }
}

impl Default for AdminFile {
    fn default() -> Self {
        Self {
            enabled: true,
            socket: Path::new(RUN_DIRECTORY).join("admin.sock"),
            uids: Vec::new(),
        }
    }
}

impl Default for LogFile {
    fn default() -> Self {
        Self {
            filter: Settings::default().log_filter,
            format: "text".to_owned(),
        }
    }
}

impl NodeFile {
    /// Checks all values. Returns the configuration, or every problem of the file.
    fn into_config(self) -> Result<NodeConfig, Problems> {
        let mut problems = Vec::new();
        let name = self.name.unwrap_or_else(host_name);
        if name.is_empty() || name.len() > MAX_NODE_NAME_LEN || name.contains(char::is_control) {
            problems.push(format!(
                "name: must have 1 to {MAX_NODE_NAME_LEN} printable bytes"
            ));
        }
        let json_log = match self.log.format.as_str() {
            "text" => false,
            "json" => true,
            other => {
                problems.push(format!("log.format: {other:?} is neither text nor json"));
                false
            }
        };
        let settings = Settings {
            allow_import: self.allow_import,
            identities: self.identities,
            identity: self.identity,
            limits: self.limits.into(),
            log_filter: self.log.filter,
        };
        problems.extend(settings.problems());
        let tls = self.store.directory.with_file_name("tls");
        let config = NodeConfig {
            name,
            unix: self.unix.into_config(&mut problems),
            tcp: self.tcp.map(|tcp| tcp.into_config(&tls, &mut problems)),
            metrics: self.metrics.enabled.then_some(self.metrics.address),
            status_socket: self.metrics.enabled.then_some(self.metrics.socket),
            admin: self.admin.enabled.then_some(AdminConfig {
                socket: self.admin.socket,
                uids: self.admin.uids,
            }),
            settings,
            drain_timeout: Duration::from_millis(self.drain_timeout_ms),
            store: self.store.into_config(),
            pin: self.engine.pin,
            engine: self.engine.into_config(&mut problems),
            backends: self.backends.map(|names| backends(&names, &mut problems)),
            json_log,
        };
        if config.unix.is_none() && config.tcp.is_none() {
            problems
                .push("unix.enabled: there is no [tcp] either, so no client could connect".into());
        }
        if let Some(address) = config.metrics.filter(|address| !address.ip().is_loopback()) {
            problems.push(format!(
                "metrics.address: {address} is not a loopback address, and metrics have no \
                 authentication; put a proxy in front"
            ));
        }
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(Problems(problems))
        }
    }
}

impl UnixFile {
    fn into_config(self, problems: &mut Vec<String>) -> Option<UnixConfig> {
        let mode = u32::from_str_radix(&self.mode, 8)
            .ok()
            .filter(|mode| *mode <= 0o777);
        if mode.is_none() {
            problems.push(format!(
                "unix.mode: {:?} is not an octal mode like \"0660\"",
                self.mode
            ));
        }
        if !self.path.is_absolute() {
            problems.push(format!(
                "unix.path: {} is not absolute",
                self.path.display()
            ));
        }
        let mode = mode.unwrap_or(DEFAULT_SOCKET_MODE);
        self.enabled.then_some(UnixConfig {
            path: self.path,
            mode,
            group: self.group,
        })
    }
}

impl TcpFile {
    /// Files that are not named are in `tls`, the folder of the private authority.
    fn into_config(self, tls: &Path, problems: &mut Vec<String>) -> TcpConfig {
        let made = TlsFiles::in_directory(tls);
        let given = [&self.certificate, &self.key, &self.client_ca];
        let count = given.iter().filter(|path| path.is_some()).count();
        if count != 0 && count != given.len() {
            problems.push(
                "tcp: certificate, key and client-ca belong together; give all three or none"
                    .to_owned(),
            );
        }
        let tls = TlsFiles {
            certificate: self.certificate.unwrap_or(made.certificate),
            key: self.key.unwrap_or(made.key),
            client_ca: self.client_ca.unwrap_or(made.client_ca),
            crl: self.crl,
        };
        TcpConfig {
            address: self.address,
            tls,
        }
    }
}

impl StoreFile {
    fn into_config(self) -> StoreConfig {
        let kek = if self.kek == CREDENTIAL {
            KekSource::Credential
        } else {
            KekSource::File {
                path: self.kek.into(),
                create: self.create_kek,
            }
        };
        StoreConfig {
            directory: self.directory,
            kek,
        }
    }
}

/// The value of `store.kek` that selects the systemd credential.
const CREDENTIAL: &str = "credential";

impl EngineFile {
    fn into_config(self, problems: &mut Vec<String>) -> EngineConfig {
        let mut config = EngineConfig::default();
        let settings = [
            ("workers", self.workers, &mut config.workers),
            ("queue-limit", self.queue_limit, &mut config.queue_limit),
            (
                "session-queue-limit",
                self.session_queue_limit,
                &mut config.session_queue_limit,
            ),
        ];
        for (key, value, setting) in settings {
            match value {
                Some(0) => problems.push(format!("engine.{key}: must be above 0")),
                Some(value) => *setting = value,
                None => {}
            }
        }
        config
    }
}

fn backends(names: &[String], problems: &mut Vec<String>) -> Vec<BackendKind> {
    let mut kinds = Vec::new();
    for name in names {
        match BackendKind::ALL.iter().find(|kind| kind.name() == name) {
            Some(kind) => kinds.push(*kind),
            None => problems.push(format!("backends: there is no backend {name:?}")),
        }
    }
    if names.is_empty() {
        problems.push("backends: leave it out to use all, or name at least one".to_owned());
    }
    kinds
}

/// The host name, cut to the bound on node names.
fn host_name() -> String {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_string_lossy();
    let name: String = name
        .chars()
        .filter(char::is_ascii_graphic)
        .take(MAX_NODE_NAME_LEN)
        .collect();
    if name.is_empty() {
        "node".to_owned()
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> String {
        NodeConfig::from_toml(text).unwrap_err().to_string()
    }

    #[test]
    fn sample_holds_every_key_at_its_default() {
        let sample = NodeConfig::from_toml(SAMPLE).unwrap();
        let default = NodeConfig::default();
        assert_eq!(format!("{sample:?}"), format!("{default:?}"));
        // Keys without a default are comments in the sample; they must parse as well.
        let all: String = SAMPLE
            .lines()
            .map(|line| line.strip_prefix("#: ").unwrap_or(line).to_owned() + "\n")
            .collect();
        let config = NodeConfig::from_toml(&all).unwrap();
        assert!(config.tcp.is_some() && config.backends.is_some());
    }

    #[test]
    fn unknown_key_is_an_error_with_its_line() {
        let text = problems("name = \"a\"\n[limits]\nconnection = 3\n");
        assert!(
            text.contains("line 3") && text.contains("connection"),
            "{text}"
        );
    }

    #[test]
    fn all_problems_are_listed_at_once() {
        let text = problems(
            "backends = [\"gpu\"]\n[unix]\nenabled = false\nmode = \"9\"\n\
             [metrics]\naddress = \"0.0.0.0:1\"\n[limits]\nkeys = 0\nmax-budget-ms = 999999999\n\
             quota-ops-per-second = 1000001\n",
        );
        for part in [
            "gpu",
            "unix.mode",
            "unix.enabled",
            "loopback",
            "limits.keys",
            "max-budget",
            "quota-ops",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn pin_values_are_parsed() {
        for (value, pin) in [("auto", Pin::Auto), ("core", Pin::Core), ("off", Pin::Off)] {
            let config = NodeConfig::from_toml(&format!("[engine]\npin = {value:?}\n")).unwrap();
            assert_eq!(config.pin, pin);
        }
        assert_eq!(NodeConfig::default().pin, Pin::Auto);
        let text = problems("[engine]\npin = \"always\"\n");
        assert!(text.contains("always") && text.contains("auto"), "{text}");
    }

    #[test]
    fn tls_files_must_be_given_together() {
        let text = problems("[tcp]\naddress = \"127.0.0.1:0\"\nkey = \"/x\"\n");
        assert!(text.contains("belong together"), "{text}");
        let config = NodeConfig::from_toml("[tcp]\naddress = \"[::]:7400\"\n").unwrap();
        let tls = config.tcp.unwrap().tls;
        assert!(tls.key.ends_with("tls/node.key") && tls.crl.is_none());
        let text = "[tcp]\naddress = \"[::]:7400\"\ncrl = \"/x/ca.crl\"\n";
        let tls = NodeConfig::from_toml(text).unwrap().tcp.unwrap().tls;
        assert_eq!(tls.crl.as_deref(), Some(Path::new("/x/ca.crl")));
        assert!(
            tls.key.ends_with("tls/node.key"),
            "independent of the others"
        );
    }

    #[test]
    fn key_encryption_key_may_be_a_systemd_credential() {
        let config = NodeConfig::from_toml("[store]\nkek = \"credential\"\n").unwrap();
        assert_eq!(config.store.kek, KekSource::Credential);
    }
}
