// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `node.toml` as written, and its conversion into a [`NodeConfig`].
//!
//! The types mirror the tables of the file, with its defaults. [`NodeFile::into_config`] checks all values and reports
//! every problem at once. No file is read and no name resolved here; what the values mean is documented at
//! [`NodeConfig`].

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_engine::EngineConfig;
use millrace_operation::BackendKind;
use millrace_service::rates::JobClass;
use millrace_service::settings::{IdentityLimits, LimitsForm, Problems, Settings};
use millrace_service::store::KekSource;
use millrace_service::tenants::TenantSettings;
use serde::Deserialize;

use super::{
    AdminConfig, DEFAULT_SOCKET_MODE, LogFormat, MAX_NODE_NAME_LEN, MAX_QAT_ANSWER_MS,
    MAX_QAT_FUNCTIONS, MAX_WORKERS, MembershipConfig, NodeConfig, Pin, QatConfig, StoreConfig,
    TcpConfig, TlsFiles, UnixConfig, WorkerPriority, not_loopback,
};

/// Default folder of the state.
const STATE_DIRECTORY: &str = "/var/lib/millrace";

/// Default folder of the sockets.
const RUN_DIRECTORY: &str = "/run/millrace";

/// Default port of `/metrics`, in the range that Prometheus exporters share.
const METRICS_PORT: u16 = 9464;

/// Bound on the queue limits. Each waiting job holds up to 16 KiB of input: 16 GiB, more than a node should hold.
pub(super) const MAX_QUEUE_LIMIT: usize = 1 << 20;

/// Bound on `admin.uids`: each connection to the socket is compared with all of them.
pub(super) const MAX_ADMIN_UIDS: usize = 64;

/// `node.toml` as written: every value optional or at its default, unchecked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(super) struct NodeFile {
    name: Option<String>,
    allow_import: bool,
    drain_timeout_ms: u64,
    lock_memory: bool,
    backends: Option<Vec<String>>,
    backend: BackendFile,
    unix: UnixFile,
    tcp: Option<TcpFile>,
    metrics: MetricsFile,
    admin: AdminFile,
    store: StoreFile,
    manager: ManagerFile,
    identities: Vec<String>,
    identity: BTreeMap<String, IdentityLimits>,
    tenant: BTreeMap<String, TenantSettings>,
    limits: LimitsForm,
    engine: EngineFile,
    log: LogFile,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct BackendFile {
    qat: QatFile,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct QatFile {
    library: PathBuf,
    memory: PathBuf,
    functions: u16,
    instances: Vec<String>,
    answer_ms: u64,
    fast_curves: bool,
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
    worker_priority: WorkerPriority,
    queue_limit: Option<usize>,
    session_queue_limit: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct ManagerFile {
    access: Option<PathBuf>,
    managers: Vec<String>,
    advertise: Vec<String>,
    zone: Option<String>,
    capacity: BTreeMap<JobClass, u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct LogFile {
    filter: String,
    format: LogFormat,
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
            lock_memory: false,
            backends: None,
            backend: BackendFile::default(),
            unix: UnixFile::default(),
            tcp: None,
            metrics: MetricsFile::default(),
            admin: AdminFile::default(),
            store: StoreFile::default(),
            manager: ManagerFile::default(),
            identities: settings.identities,
            identity: settings.identity,
            tenant: settings.tenant,
            limits: settings.limits.into(),
            engine: EngineFile::default(),
            log: LogFile::default(),
        }
    }
}

impl Default for QatFile {
    fn default() -> Self {
        Self {
            // The names that every version since 23.08 has.
            library: PathBuf::from("libqat.so.4"),
            memory: PathBuf::from("libusdm.so.0"),
            functions: 1,
            instances: Vec::new(),
            // Two hundred times what a card needs.
            answer_ms: 100,
            fast_curves: false,
        }
    }
}

impl Default for UnixFile {
    fn default() -> Self {
        let path = Path::new(RUN_DIRECTORY).join("node.sock");
        Self { enabled: true, path, mode: format!("{DEFAULT_SOCKET_MODE:04o}"), group: None }
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
        Self { directory: state.join("keys"), kek, create_kek: false }
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
        Self { filter: Settings::default().log_filter, format: LogFormat::default() }
    }
}

impl NodeFile {
    /// Checks all values. Returns the configuration, or every problem of the file.
    pub(super) fn into_config(self) -> Result<NodeConfig, Problems> {
        let mut problems = Vec::new();
        let name = self.name.unwrap_or_else(host_name);
        if name.is_empty() || name.len() > MAX_NODE_NAME_LEN || name.contains(char::is_control) {
            problems.push(format!("name: must have 1 to {MAX_NODE_NAME_LEN} printable bytes"));
        }
        let settings = Settings {
            allow_import: self.allow_import,
            identities: self.identities,
            identity: self.identity,
            tenant: self.tenant,
            limits: self.limits.into(),
            log_filter: self.log.filter,
        };
        problems.extend(settings.problems());
        if self.admin.uids.len() > MAX_ADMIN_UIDS {
            problems.push(format!("admin.uids: at most {MAX_ADMIN_UIDS} users"));
        }
        let tls = self.store.directory.with_file_name("tls");
        let config = NodeConfig {
            name,
            unix: self.unix.into_config(&mut problems),
            tcp: self.tcp.map(|tcp| tcp.into_config(&tls, &mut problems)),
            metrics: self.metrics.enabled.then_some(self.metrics.address),
            status_socket: self.metrics.enabled.then_some(self.metrics.socket),
            admin: self
                .admin
                .enabled
                .then_some(AdminConfig { socket: self.admin.socket, uids: self.admin.uids }),
            settings,
            drain_timeout: Duration::from_millis(self.drain_timeout_ms),
            store: self.store.into_config(),
            pin: self.engine.pin,
            worker_priority: self.engine.worker_priority,
            engine: self.engine.into_config(&mut problems),
            backends: self.backends.map(|names| backends(&names, &mut problems)),
            qat: self.backend.qat.into_config(&mut problems),
            log_format: self.log.format,
            lock_memory: self.lock_memory,
            manager: self.manager.into(),
        };
        if config.unix.is_none() && config.tcp.is_none() {
            problems
                .push("unix.enabled: there is no [tcp] either, so no client could connect".into());
        }
        if let Some(address) = config.metrics.filter(|address| !address.ip().is_loopback()) {
            problems.push(not_loopback(address));
        }
        if problems.is_empty() { Ok(config) } else { Err(Problems(problems)) }
    }
}

impl QatFile {
    fn into_config(self, problems: &mut Vec<String>) -> QatConfig {
        if !(1..=MAX_QAT_FUNCTIONS).contains(&self.functions) {
            problems.push(format!(
                "backend.qat.functions: {} is not between 1 and {MAX_QAT_FUNCTIONS}",
                self.functions
            ));
        }
        if !(1..=MAX_QAT_ANSWER_MS).contains(&self.answer_ms) {
            problems.push(format!(
                "backend.qat.answer-ms: {} is not between 1 and {MAX_QAT_ANSWER_MS}",
                self.answer_ms
            ));
        }
        QatConfig {
            library: self.library,
            memory: self.memory,
            functions: self.functions,
            instances: self.instances,
            answer_time: Duration::from_millis(self.answer_ms),
            fast_curves: self.fast_curves,
        }
    }
}

impl UnixFile {
    fn into_config(self, problems: &mut Vec<String>) -> Option<UnixConfig> {
        let mode = u32::from_str_radix(&self.mode, 8).ok().filter(|mode| *mode <= 0o777);
        if mode.is_none() {
            problems.push(format!("unix.mode: {:?} is not an octal mode like \"0660\"", self.mode));
        }
        if !self.path.is_absolute() {
            problems.push(format!("unix.path: {} is not absolute", self.path.display()));
        }
        let mode = mode.unwrap_or(DEFAULT_SOCKET_MODE);
        self.enabled.then_some(UnixConfig { path: self.path, mode, group: self.group })
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
        TcpConfig { address: self.address, tls }
    }
}

impl StoreFile {
    fn into_config(self) -> StoreConfig {
        let kek = if self.kek == CREDENTIAL {
            KekSource::Credential
        } else {
            KekSource::File { path: self.kek.into(), create: self.create_kek }
        };
        StoreConfig { directory: self.directory, kek }
    }
}

/// The value of `store.kek` that selects the systemd credential.
const CREDENTIAL: &str = "credential";

impl From<ManagerFile> for MembershipConfig {
    fn from(file: ManagerFile) -> Self {
        let ManagerFile { access, managers, advertise, zone, capacity } = file;
        Self { access, managers, advertise, zone, capacity }
    }
}

impl EngineFile {
    fn into_config(self, problems: &mut Vec<String>) -> EngineConfig {
        let mut config = EngineConfig::default();
        let settings = [
            ("workers", self.workers, &mut config.workers, MAX_WORKERS),
            ("queue-limit", self.queue_limit, &mut config.queue_limit, MAX_QUEUE_LIMIT),
            (
                "session-queue-limit",
                self.session_queue_limit,
                &mut config.session_queue_limit,
                MAX_QUEUE_LIMIT,
            ),
        ];
        for (key, value, setting, most) in settings {
            match value {
                Some(value) if (1..=most).contains(&value) => *setting = value,
                Some(value) => {
                    problems.push(format!("engine.{key}: {value} is not between 1 and {most}"));
                }
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
    let name: String =
        name.chars().filter(char::is_ascii_graphic).take(MAX_NODE_NAME_LEN).collect();
    if name.is_empty() { "node".to_owned() } else { name }
}
