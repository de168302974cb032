// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace up`: a node with everything embedded. It assembles backends, engine, key store, service and
//! listeners, and waits for signals. The crates service and server implement the node.

use std::fmt::Write as _;
use std::fs;
use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Error, Result, anyhow};
use millrace_engine::backend::Backend;
use millrace_engine::{BackendEvent, Engine, EngineConfig, Observer};
use millrace_manager::managed_node::ManagedNode;
use millrace_operation::BackendKind;
use millrace_server::config::{NodeConfig, QatConfig, TcpConfig, TlsFiles};
use millrace_server::listener::{Inherited, ListenError};
use millrace_server::tls::{
    CertificateError, check_files, ensure_node_certificates, revocation_list,
};
use millrace_server::{Node, NodeHandle, ReloadError, ReloadReport, StartError};
use millrace_service::keys::Reloaded;
use millrace_service::settings::{LogControl, WrongLogFilter};
use millrace_service::store::{KekError, KeyStore, StoreError};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::args::{InsideManagerArgs, NodeRunArgs, UpArgs, UpCommandArgs};
use crate::backends;
use crate::commands::managed::inside::InsideManager;
use crate::commands::managed::node::prepare;
use crate::exit::{ContextCode, Failure, chain, fail, listed};
use crate::harden;
use crate::passed_sockets;
use crate::placement;
use crate::progress;
use crate::service_manager::{self, WatchdogProgress};
use crate::settings::{self, Settings};
use crate::terminal::styled;

/// Tasks that a busy thread of the runtime runs before it checks the sockets for data. A task takes up to 100
/// µs under load, so with the runtime's default, 61, an identity's only job waits milliseconds beside a
/// flood. A check costs about 1 µs.
const TASKS_PER_SOCKET_CHECK: u32 = 4;

/// Runs until a signal ends it.
pub(crate) fn run(args: &UpCommandArgs) -> Result<()> {
    let UpCommandArgs { up, manager } = args;
    if up.check {
        return check(up);
    }
    serve_as(up, None, manager.with_manager.then_some(manager))
}

/// Runs a node until a signal ends it: alone, in a managed pool (`managed`), or with the manager of its pool inside.
pub(crate) fn serve_as(
    args: &UpArgs,
    managed: Option<&NodeRunArgs>,
    inside: Option<&InsideManagerArgs>,
) -> Result<()> {
    let start = Start::prepare(args, managed, inside)?;
    let engine = start.engine.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .event_interval(TASKS_PER_SOCKET_CHECK)
        .on_thread_start(placement::run_promptly)
        .build()
        .context("starting the runtime")?;
    let result = runtime.block_on(start.serve(args));
    engine.stop();
    result
}

/// A node whose files were read and whose engine runs, before it opens a socket.
struct Start {
    inherited: Inherited,
    /// As it was read, to compare with at a reload.
    typed: NodeConfig,
    config: NodeConfig,
    log: LogFilter,
    store: KeyStore,
    engine: Engine,
    manager: Option<InsideManager>,
    managed: Option<ManagedNode>,
}

impl Start {
    /// Memory is locked before any secret is read; the capacity is measured before the engine of the node runs.
    fn prepare(
        args: &UpArgs,
        managed: Option<&NodeRunArgs>,
        inside: Option<&InsideManagerArgs>,
    ) -> Result<Self> {
        let inherited = passed_sockets::take()?;
        let read = Settings::for_node(args)?;
        let log = start_log(&read.node.settings.log_filter, read.node.json_log)?;
        harden::process(args.lock_memory)?;
        let store = read.open_own_store().map_err(coded_of_store)?;
        let manager = inside.map(|inside| InsideManager::prepare(inside, &read)).transpose()?;
        let own = manager.as_ref().map(|manager| manager.node_args(args));
        let managed = managed
            .or(own.as_ref())
            .map(|args| prepare(args, &read, || start_engine(&read.node)))
            .transpose()?;
        let Settings { node: mut config, tls } = read;
        let typed = config.clone();
        if let Some(listener) = &inherited.tcp
            && config.tcp.is_none()
        {
            let address = listener.local_addr().context("an inherited socket")?;
            config.tcp = Some(settings::tcp(address, None, &tls));
        }
        make_certificates(&mut config, &tls).context("making certificates for the TCP listener")?;
        let engine = start_engine(&config)?;
        Ok(Self { inherited, typed, config, log, store, engine, manager, managed })
    }

    /// Opens the sockets, and serves until a signal ends the node.
    async fn serve(self, args: &UpArgs) -> Result<()> {
        let Self { inherited, typed, config, log, store, engine, manager, managed } = self;
        // Installed early: a signal during the start must not kill the process.
        let (stop, force) = stop_signals()?;
        let hangup = signal(SignalKind::hangup()).context("catching SIGHUP")?;
        let summary = Summary::of(&config);
        let name = config.name.clone();
        let service =
            progress::while_doing("loading keys", || config.service(engine.clone(), store));
        let service = service.context("starting the node")?;
        service.control_log(Box::new(log));
        let node = Node::bind_inherited(config, service, inherited).map_err(coded)?;
        let handle = node.handle();
        let (args, reloading) = (args.clone(), node.handle());
        handle.on_reload(Arc::new(move |actor| reload(&args, &typed, &reloading, actor)));
        summary.tell(&node);
        let manager = match manager {
            Some(manager) => Some(manager.start().await?),
            None => None,
        };
        let address = default_address(&node, &name);
        let managed =
            managed.map(|managed| managed.start(handle.service().clone(), address)).transpose()?;
        service_manager::notify(service_manager::READY);
        // A task of its own, so that a thread of the runtime runs it, as it runs the connections.
        tokio::spawn(sign_of_life(node.handle(), engine));
        let left = async move {
            node.run(stop).await;
            if let Some(managed) = managed {
                // A request to the manager, which blocks.
                let _ = tokio::task::spawn_blocking(|| managed.leave()).await;
            }
            if let Some(manager) = manager {
                manager.stop().await;
            }
        };
        tokio::select! {
            () = left => Ok(()),
            () = reload_on(hangup, handle) => Ok(()),
            () = force => Err(anyhow!("a second signal came while draining: jobs were dropped")),
        }
    }
}

fn start_engine(config: &NodeConfig) -> Result<Engine> {
    let mut workers = config.engine.clone();
    workers.placement = Some(placement::of(config.pin, config.worker_priority, workers.workers));
    workers.observer = Some(Arc::new(LogBackends));
    Engine::start(workers, chosen(config.backends.as_deref(), &config.qat)?)
        .context("starting the engine")
}

/// Address at which gateways reach the node, unless the operator names another.
fn default_address(node: &Node, name: &str) -> String {
    match (node.tcp_address(), node.unix_path()) {
        (Some(address), _) if address.ip().is_unspecified() => {
            format!("tcp://{name}:{}", address.port())
        }
        (Some(address), _) => format!("tcp://{address}"),
        (None, Some(path)) => format!("unix:{}", path.display()),
        (None, None) => format!("tcp://{name}"),
    }
}

/// `--check`: lists every problem for which a node with this configuration would not start.
pub(crate) fn check(args: &UpArgs) -> Result<()> {
    let Settings { node, tls } = Settings::for_node(args)?;
    let named = |problem| with_flag(problem, args);
    let mut problems: Vec<String> = node.problems().into_iter().map(named).collect();
    let filter = &node.settings.log_filter;
    if let Err(error) = EnvFilter::try_new(filter) {
        problems.push(format!("log.filter: {filter:?}: {error}"));
    }
    if let Err(error) = chosen(node.backends.as_deref(), &node.qat) {
        problems.push(format!("backends: {}", chain(&error)));
    }
    // The node makes the certificates of its private authority itself.
    if let Some(tcp) = &node.tcp
        && (tcp.tls.certificate.exists() || !is_private_authority(&tcp.tls, &tls))
        && let Err(error) = check_files(&tcp.tls)
    {
        problems.push(format!("tcp: {error}"));
    }
    if problems.is_empty() {
        eprintln!("the configuration of the node {} is valid", node.name);
        return Ok(());
    }
    let problems = problems.iter().map(String::as_str);
    let message = listed("a node would not start with this configuration", problems);
    Err(fail(Failure::Usage, message))
}

/// A problem of a key of the file, with the flag that was given in its place.
fn with_flag(problem: String, args: &UpArgs) -> String {
    let flags = [
        ("metrics.address", "--listen-metrics", args.metrics.is_some()),
        ("unix.group", "--socket-group", args.socket_group.is_some()),
        ("store.kek", "--kek-file", args.store.kek_file.is_some()),
    ];
    let of = |(key, flag, given): (&str, &str, bool)| {
        let rest = problem.strip_prefix(key).filter(|_| given)?.strip_prefix(": ")?;
        Some(format!("{flag} ({key}): {rest}"))
    };
    flags.into_iter().find_map(of).unwrap_or(problem)
}

/// Writes what happens to the backends to the log.
#[derive(Debug)]
struct LogBackends;

impl Observer for LogBackends {
    fn note(&self, backend: BackendKind, event: &BackendEvent) {
        match event {
            BackendEvent::Back => tracing::info!(%backend, "the backend {event}"),
            BackendEvent::QueueRefused(_)
            | BackendEvent::Away(_)
            | BackendEvent::Quarantined(_)
            | BackendEvent::Lost(_) => tracing::warn!(%backend, "the backend {event}"),
        }
    }
}

/// A socket or file that the configuration names wrongly is a usage error.
fn coded(error: StartError) -> Error {
    let usage = match &error {
        StartError::Listen(reason) => match reason {
            ListenError::Io { .. } | ListenError::InUse(_) => false,
            ListenError::NotASocket(_)
            | ListenError::Group { .. }
            | ListenError::GroupDenied { .. }
            | ListenError::Folder { .. } => true,
        },
        StartError::NotLoopback(_) => true,
        StartError::Address { .. } | StartError::Tls(_) => false,
    };
    if usage {
        fail(Failure::Usage, format!("starting the node: {error}"))
    } else {
        Error::new(error).context("starting the node")
    }
}

/// A key-encryption key that other users can read is a mistake of the configuration.
fn coded_of_store(error: Error) -> Error {
    match error.downcast_ref() {
        Some(StoreError::Kek(KekError::Exposed { .. })) => fail(Failure::Usage, error.to_string()),
        _ => error,
    }
}

/// Reports to a watching service manager that the node lives: the runtime runs tasks, the locks of service and
/// engine are free, and workers work.
async fn sign_of_life(node: NodeHandle, engine: Engine) {
    let Some(period) = service_manager::watchdog_interval() else {
        return;
    };
    let mut ticks = tokio::time::interval(period);
    let mut progress = WatchdogProgress::default();
    loop {
        ticks.tick().await;
        let connections = node.service().connections();
        if progress.check(&engine.stats()) {
            service_manager::notify(service_manager::ALIVE);
        } else {
            tracing::error!(
                connections,
                "jobs wait and no worker has ended one: no sign of life to the service manager"
            );
        }
    }
}

/// Reads the configuration again and applies the settings that can change in a running node: all of them, or
/// none if any is invalid.
fn reload(
    args: &UpArgs,
    running: &NodeConfig,
    node: &NodeHandle,
    actor: &str,
) -> Result<ReloadReport, ReloadError> {
    let read =
        Settings::for_node(args).map_err(|error| ReloadError::Configuration(chain(&error)))?.node;
    let service = node.service();
    service.check(&read.settings)?;
    // Files before settings: reading files may fail, applying checked settings cannot.
    let keys = node.reload()?;
    let needs_restart = restart_keys(running, &read);
    let settings = service.apply(read.settings, actor)?;
    Ok(ReloadReport { settings, keys, needs_restart })
}

/// Keys of the file that differ from the running node and take effect only after a restart. A new field of
/// [`NodeConfig`] must be considered here, or this function does not compile.
fn restart_keys(running: &NodeConfig, read: &NodeConfig) -> Vec<String> {
    let NodeConfig {
        name,
        unix,
        tcp,
        metrics,
        status_socket,
        admin,
        settings: _,
        drain_timeout,
        store,
        engine,
        pin,
        worker_priority,
        backends,
        qat,
        json_log,
    } = running;
    let limits =
        |engine: &EngineConfig| (engine.workers, engine.queue_limit, engine.session_queue_limit);
    #[rustfmt::skip]
    let differs = [
        ("name", *name != read.name),
        ("drain-timeout-ms", *drain_timeout != read.drain_timeout),
        ("backends", *backends != read.backends),
        ("backend.qat", *qat != read.qat),
        ("unix", *unix != read.unix),
        ("tcp", *tcp != read.tcp),
        ("metrics", *metrics != read.metrics || *status_socket != read.status_socket),
        ("admin", *admin != read.admin),
        ("store", *store != read.store),
        ("engine", limits(engine) != limits(&read.engine) || *pin != read.pin || *worker_priority != read.worker_priority),
        ("log.format", *json_log != read.json_log),
    ];
    let differs = differs.into_iter().filter(|(_, differs)| *differs);
    differs.map(|(key, _)| key.to_owned()).collect()
}

/// Reloads on each SIGHUP. Never returns.
async fn reload_on(mut hangup: Signal, node: NodeHandle) {
    while hangup.recv().await.is_some() {
        let node = node.clone();
        match tokio::task::spawn_blocking(move || node.reload_all("SIGHUP")).await {
            Ok(Ok(report)) => {
                let ReloadReport { settings, keys, needs_restart } = report;
                let Reloaded { changed, removed, broken } = keys;
                tracing::info!(
                    settings_revision = settings.revision,
                    settings_changed = settings.changes.join("; "),
                    keys_changed = changed,
                    keys_removed = removed,
                    keys_broken = broken,
                    "reloaded"
                );
                if !needs_restart.is_empty() {
                    let keys = needs_restart.join(", ");
                    tracing::warn!(keys, "these settings changed and hold after a restart");
                }
            }
            Ok(Err(error)) => {
                let problems = error.to_string();
                tracing::warn!(problems, "cannot reload: the former settings stay in force");
            }
            Err(error) => tracing::error!(%error, "a reload panicked"),
        }
    }
    std::future::pending().await
}

/// The filter of this process's log.
pub(crate) struct LogFilter(Box<dyn Fn(EnvFilter) + Send + Sync>);

impl LogControl for LogFilter {
    fn check(&self, filter: &str) -> Result<(), WrongLogFilter> {
        let checked = EnvFilter::try_new(filter);
        checked.map(drop).map_err(|error| WrongLogFilter(error.to_string()))
    }

    fn set(&self, filter: &str) {
        if let Ok(filter) = EnvFilter::try_new(filter) {
            (self.0)(filter);
        }
    }
}

/// Starts the log on standard error.
pub(crate) fn start_log(filter: &str, json: bool) -> Result<LogFilter> {
    let filter = EnvFilter::try_new(filter)
        .or_fail(Failure::Usage, || format!("the log filter {filter:?} is wrong"))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    if json {
        let log = log.json().with_filter_reloading();
        let handle = log.reload_handle();
        log.init();
        return Ok(LogFilter(Box::new(move |filter| drop(handle.reload(filter)))));
    }
    let log = log.with_ansi(styled(&io::stderr())).with_filter_reloading();
    let handle = log.reload_handle();
    log.init();
    Ok(LogFilter(Box::new(move |filter| drop(handle.reload(filter)))))
}

/// Backends that are used only where they are named: qat takes cards away from other programs, and kernel hands keys to
/// a driver and its device.
const BY_NAME_ONLY: [BackendKind; 2] = [BackendKind::Qat, BackendKind::Kernel];

/// The backends in the configured order, or every compiled-in backend except those of [`BY_NAME_ONLY`].
pub(crate) fn chosen(
    kinds: Option<&[BackendKind]>,
    qat: &QatConfig,
) -> Result<Vec<Arc<dyn Backend>>> {
    let mut built_in = backends::configured(qat);
    let Some(kinds) = kinds else {
        built_in.retain(|backend| !BY_NAME_ONLY.contains(&backend.describe().kind));
        return Ok(built_in);
    };
    let find = |kind: &BackendKind| {
        let found = built_in.iter().find(|backend| backend.describe().kind == *kind);
        let missing = || {
            let message = format!(
                "this binary has no backend {kind}: remove it from --backends, or from `backends` in node.toml"
            );
            fail(Failure::Usage, message)
        };
        found.cloned().ok_or_else(missing)
    };
    kinds.iter().map(find).collect()
}

/// Creates certificates if the node uses its private authority, and then configures that authority's
/// revocation list, too.
fn make_certificates(config: &mut NodeConfig, folder: &Path) -> Result<(), CertificateError> {
    let Some(tcp) = &config.tcp else {
        return Ok(());
    };
    if !is_private_authority(&tcp.tls, folder) {
        return Ok(());
    }
    ensure_node_certificates(folder, &certificate_names(config, tcp))?;
    let list = revocation_list(folder);
    if let Some(tcp) = &mut config.tcp
        && tcp.tls.crl.is_none()
        && list.exists()
    {
        tcp.tls.crl = Some(list);
    }
    Ok(())
}

/// Whether a node makes these files, with an authority of its own in this folder.
fn is_private_authority(files: &TlsFiles, folder: &Path) -> bool {
    let made = TlsFiles { crl: files.crl.clone(), ..TlsFiles::in_directory(folder) };
    *files == made
}

/// Names and addresses under which clients may reach this node.
fn certificate_names(config: &NodeConfig, tcp: &TcpConfig) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let dns = config.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte));
    if dns && !names.contains(&config.name) {
        names.push(config.name.clone());
    }
    let address = tcp.address.ip();
    if !address.is_unspecified() && !names.contains(&address.to_string()) {
        names.push(address.to_string());
    }
    names
}

/// Two futures: the first SIGTERM or SIGINT, and the one after it.
pub(crate) fn stop_signals() -> Result<(impl Future<Output = ()>, impl Future<Output = ()>)> {
    let pair = || -> Result<(Signal, Signal)> {
        let terminate = signal(SignalKind::terminate()).context("catching SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("catching SIGINT")?;
        Ok((terminate, interrupt))
    };
    let (mut first, mut second) = (pair()?, pair()?);
    let stop = async move {
        either(&mut first).await;
        tracing::info!("draining; a second signal stops at once");
        service_manager::notify(service_manager::STOPPING);
    };
    let force = async move {
        either(&mut second).await;
        either(&mut second).await;
    };
    Ok((stop, force))
}

/// Waits for one of the two.
async fn either((terminate, interrupt): &mut (Signal, Signal)) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// The addresses of the node and the next steps for the operator.
struct Summary {
    json: bool,
    name: String,
    store: String,
}

impl Summary {
    fn of(config: &NodeConfig) -> Self {
        Self {
            json: config.json_log,
            name: config.name.clone(),
            store: config.store.directory.display().to_string(),
        }
    }

    /// Prints it: as text for a person, as one event for a log.
    fn tell(self, node: &Node) {
        let handle = node.handle();
        let status = handle.status();
        let Self { json, name, store } = self;
        let unix = node.unix_path().map(|path| {
            let mode = fs::symlink_metadata(path).map_or(0, |file| file.mode() & 0o777);
            format!("{} (mode {mode:04o})", path.display())
        });
        let tcp = node.tcp_address().map(|address| address.to_string());
        let metrics = node.metrics_address().map(|address| format!("http://{address}/metrics"));
        if json {
            tracing::info!(name, unix, tcp, metrics, keys = status.keys, store, "listening");
            return;
        }
        let mut text = format!("millrace node {name} is up\n");
        let facts = [
            ("unix socket", unix),
            ("tcp", tcp.map(|tcp| format!("{tcp} (mutual TLS; millrace cert client NAME -o DIR)"))),
            ("metrics", metrics),
            ("backends", Some(usable(&handle))),
            ("keys", Some(format!("{} in {store}", status.keys))),
        ];
        for (fact, value) in facts.into_iter().filter_map(|(fact, value)| Some((fact, value?))) {
            let _ = writeln!(text, "  {fact:<12} {value}");
        }
        let next =
            if status.keys == 0 { "millrace key import NAME FILE" } else { "millrace status" };
        let _ = writeln!(text, "next: {next}, millrace gateway haproxy");
        eprint!("{text}");
    }
}

fn usable(handle: &NodeHandle) -> String {
    let backends = handle.status().backends.into_iter();
    let words: Vec<String> = backends
        .map(|backend| match backend.unusable {
            None => format!("{} ({})", backend.backend, backend.version),
            Some(reason) => format!("not {}: {reason}", backend.backend),
        })
        .collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;

    #[test]
    fn every_changed_key_that_needs_a_restart_is_named() {
        let running = NodeConfig::default();
        for (text, key) in [
            ("name = \"other\"", "name"),
            ("drain-timeout-ms = 1", "drain-timeout-ms"),
            ("backends = [\"software\"]", "backends"),
            ("[backend.qat]\nanswer-ms = 7", "backend.qat"),
            ("[unix]\nmode = \"0600\"", "unix"),
            ("[tcp]\naddress = \"127.0.0.1:0\"", "tcp"),
            ("[metrics]\naddress = \"127.0.0.1:1\"", "metrics"),
            ("[metrics]\nsocket = \"/x\"", "metrics"),
            ("[admin]\nuids = [7]", "admin"),
            ("[store]\ndirectory = \"/x\"", "store"),
            ("[engine]\nworkers = 1023", "engine"),
            ("[engine]\nqueue-limit = 7", "engine"),
            ("[engine]\nsession-queue-limit = 7", "engine"),
            ("[engine]\npin = \"off\"", "engine"),
            ("[engine]\nworker-priority = \"low\"", "engine"),
            ("[log]\nformat = \"json\"", "log.format"),
        ] {
            let read = NodeConfig::from_toml(text).expect("a configuration");
            assert_eq!(restart_keys(&running, &read), [key], "{text}");
        }
        for text in ["", "allow-import = true", "[limits]\nkeys = 7", "[log]\nfilter = \"warn\""] {
            let read = NodeConfig::from_toml(text).expect("a configuration");
            assert!(restart_keys(&running, &read).is_empty(), "{text}");
        }
    }

    #[test]
    fn help_of_backends_names_those_that_are_left_out_by_default() {
        let kinds = |backends: Vec<Arc<dyn Backend>>| -> Vec<BackendKind> {
            let kinds = backends.iter().map(|backend| backend.describe().kind);
            kinds.collect()
        };
        let qat = NodeConfig::default().qat;
        let default = kinds(chosen(None, &qat).expect("backends"));
        let mut left_out = kinds(backends::all());
        left_out.retain(|kind| !default.contains(kind));
        let left_out: Vec<&str> = left_out.iter().map(|kind| kind.name()).collect();
        let wanted = format!("[default: all usable ones but {}]", left_out.join(", "));
        let root = Cli::definition();
        let up = root.find_subcommand("up");
        let virtio = root.find_subcommand("virtio");
        let virtio = virtio.and_then(|command| command.find_subcommand("run"));
        for command in [up, virtio] {
            let command = command.expect("a command");
            let name = command.get_name();
            let mut options = command.get_arguments();
            let option = options.find(|argument| argument.get_id() == "backends");
            let help = option.and_then(clap::Arg::get_help).map(ToString::to_string);
            let help = help.expect("a help");
            assert!(help.contains(&wanted), "{name}: {help}, not {wanted}");
        }
    }
}
