// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The configuration of a node: [`NodeConfig`], and the file that it may come from.
//!
//! Two stages. `node.toml` is parsed into the typed values (unknown keys are errors), and
//! [`NodeConfig::from_toml`] converts them, or returns one error that lists every wrong value. An unknown key or a
//! value of the wrong type is reported alone, first.
//! The caller applies flags and the environment by changing the fields of the result.
//! Every key of the file, at its default, is in [`SAMPLE`].

mod file;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_engine::{Engine, EngineConfig};
use millrace_operation::BackendKind;
use millrace_service::Service;
use millrace_service::rates::JobClass;
use millrace_service::settings::{Problems, Settings};
use millrace_service::store::{KekSource, KeyStore, StoreError};
use serde::Deserialize;
use thiserror::Error;

use self::file::NodeFile;

/// A `node.toml` with every key at its default, and the meaning of each.
pub const SAMPLE: &str = include_str!("../../node.toml");

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
    /// Settings of the engine. The composition root uses this field and those below.
    pub engine: EngineConfig,
    /// The processors on which workers run.
    pub pin: Pin,
    /// The scheduling priority of the workers.
    pub worker_priority: WorkerPriority,
    /// The backends to use, in order of preference; `None`: every compiled-in backend except `qat` and `kernel`.
    pub backends: Option<Vec<BackendKind>>,
    /// Settings of the backend qat.
    pub qat: QatConfig,
    /// Form of the log.
    pub log_format: LogFormat,
    /// Whether to lock all memory, so that no key is ever swapped to disk.
    pub lock_memory: bool,
    /// The managers of the node's pool. Only a node that joins a pool uses them.
    pub manager: MembershipConfig,
}

/// How a node joins a pool with managers. The composition root checks the forms of the texts, which are those of the
/// manager's API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipConfig {
    /// File with the managers, their authority and the node's token.
    pub access: Option<PathBuf>,
    /// Managers to ask instead of those in the access file.
    pub managers: Vec<String>,
    /// Addresses for gateways, `tcp:HOST:PORT`; empty for that of the listener.
    pub advertise: Vec<String>,
    /// Label of the node's place.
    pub zone: Option<String>,
    /// Operations per second by job class; empty for a measurement.
    pub capacity: BTreeMap<JobClass, u64>,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum LogFormat {
    /// One readable line per event
    #[default]
    Text,
    /// One JSON object per event
    Json,
}

/// Settings of the backend qat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QatConfig {
    /// File of Intel's library.
    pub library: PathBuf,
    /// File of the memory allocator of Intel's library.
    pub memory: PathBuf,
    /// Virtual functions of each card that the node takes.
    pub functions: u16,
    /// Bus addresses of the virtual functions to use, of those that the node takes; empty: all. The composition root
    /// checks their form.
    pub instances: Vec<String>,
    /// Time for an answer to a request with a key of 2048 bits.
    pub answer_time: Duration,
    /// Whether the card is offered ECDH on P-256 and X25519, too.
    pub fast_curves: bool,
}

/// A card has 16 virtual functions, and a machine some cards.
pub const MAX_QAT_FUNCTIONS: u16 = 64;

/// The longest answer time, in milliseconds: a request with a key of 8192 bits has 64 times as much, and jobs end
/// after 10 minutes at most.
pub const MAX_QAT_ANSWER_MS: u64 = 10_000;

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
        Self { path: path.into(), mode: DEFAULT_SOCKET_MODE, group: None }
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

/// The scheduling priority of the workers that compute what waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum WorkerPriority {
    /// Low if the kernel schedules the node as a separate group, as under systemd; otherwise normal.
    #[default]
    Auto,
    /// Nice value 19: workers give way to the node's sockets and express workers. Other programs that the kernel
    /// does not schedule apart come before them, too.
    Low,
    /// The priority that the node was started with.
    Normal,
}

/// Bound on the worker threads per class, also of `millrace virtio`: above the cores of any machine that it was
/// built for.
pub const MAX_WORKERS: usize = 1024;

/// Bound on the name of a node, in bytes: the bound of the wire protocol.
pub const MAX_NODE_NAME_LEN: usize = millrace_wire::MAX_NAME_LEN;

impl Default for NodeConfig {
    fn default() -> Self {
        NodeFile::default().into_config().expect("the defaults are valid")
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

    /// Every reason for which a node with these values would not start, each with its key: those that a file may
    /// have, and those that flags bring. Reads no key and no certificate.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.settings.problems();
        if let Some(address) = self.metrics.filter(|address| !address.ip().is_loopback()) {
            problems.push(not_loopback(address));
        }
        if let Some(group) = self.unix.as_ref().and_then(|unix| unix.group.as_ref())
            && group_id(group).is_none()
        {
            problems.push(format!("unix.group: there is no group {group:?} in /etc/group"));
        }
        if let KekSource::File { path, create: false } = &self.store.kek
            && fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        {
            problems.push(format!("store.kek: {} does not exist", path.display()));
        }
        problems
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

fn not_loopback(address: SocketAddr) -> String {
    format!(
        "metrics.address: {address} is not a loopback address, and metrics have no authentication; put a proxy in \
         front"
    )
}

/// The number of a group: `name` itself if it is one, or that of the name in `/etc/group`. NSS is not used, because
/// it would load foreign libraries into the process that holds the keys.
#[must_use]
pub fn group_id(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let groups = fs::read_to_string("/etc/group").ok()?;
    let mut lines = groups.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| {
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::file::{MAX_ADMIN_UIDS, MAX_QUEUE_LIMIT};
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
        assert!(text.contains("line 3") && text.contains("connection"), "{text}");
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
    fn limits_of_queues_workers_and_administrators_have_a_maximum() {
        let engine = |key: &str, value: usize| format!("[engine]\n{key} = {value}\n");
        for (key, most) in [
            ("workers", MAX_WORKERS),
            ("queue-limit", MAX_QUEUE_LIMIT),
            ("session-queue-limit", MAX_QUEUE_LIMIT),
        ] {
            assert!(NodeConfig::from_toml(&engine(key, most)).is_ok(), "{key}");
            for wrong in [0, most + 1] {
                assert!(problems(&engine(key, wrong)).contains(key), "{key} {wrong}");
            }
        }
        let admin = |count: usize| format!("[admin]\nuids = {:?}\n", vec![33; count]);
        assert!(NodeConfig::from_toml(&admin(MAX_ADMIN_UIDS)).is_ok());
        assert!(problems(&admin(MAX_ADMIN_UIDS + 1)).contains("admin.uids"));
    }

    #[test]
    fn settings_of_qat_have_bounds() {
        let qat = |line: &str| format!("[backend.qat]\n{line}\n");
        for good in ["functions = 64", "answer-ms = 10000", "fast-curves = true"] {
            assert!(NodeConfig::from_toml(&qat(good)).is_ok(), "{good}");
        }
        for (bad, named) in [
            ("functions = 0", "backend.qat.functions"),
            ("functions = 65", "backend.qat.functions"),
            ("answer-ms = 0", "backend.qat.answer-ms"),
            ("answer-ms = 10001", "backend.qat.answer-ms"),
            ("verification = false", "verification"),
        ] {
            assert!(problems(&qat(bad)).contains(named), "{bad}");
        }
        assert!(problems("[backend.cuda]\n").contains("cuda"));
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
        assert!(tls.key.ends_with("tls/node.key"), "independent of the others");
    }

    #[test]
    fn key_encryption_key_may_be_a_systemd_credential() {
        let config = NodeConfig::from_toml("[store]\nkek = \"credential\"\n").unwrap();
        assert_eq!(config.store.kek, KekSource::Credential);
    }
}
