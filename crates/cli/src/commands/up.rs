// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace up`: a node with everything embedded. It assembles backends, engine, key store and listeners,
//! and waits for signals. The server crate implements the node.

use std::fmt::Write as _;
use std::fs;
use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Error, Result, anyhow};
use millrace_engine::{Backend, BackendKind, Engine};
use millrace_server::config::{NodeConfig, TcpConfig, TlsFiles};
use millrace_server::listener::ListenError;
use millrace_server::node::{ReloadReport, StartError};
use millrace_server::tls::{CertificateError, ensure_node_certificates, revocation_list};
use millrace_server::{Node, NodeHandle};
use millrace_service::Reloaded;
use millrace_service::settings::LogControl;
use millrace_service::store::{KekError, StoreError};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::args::UpArgs;
use crate::backends;
use crate::exit::{ContextCode, Failure, chain, fail};
use crate::harden;
use crate::inherit;
use crate::notify::{self, Progress};
use crate::placement;
use crate::progress;
use crate::settings::{self, Settings};
use crate::terminal::styled;

/// Tasks that a busy thread of the runtime runs before it checks the sockets for data. A task takes up to 100
/// µs under load, so with the runtime's default, 61, an identity's only job waits milliseconds beside a
/// flood. A check costs about 1 µs.
const TASKS_PER_SOCKET_CHECK: u32 = 4;

/// Runs until a signal ends it.
pub(crate) fn run(args: &UpArgs) -> Result<()> {
    let inherited = inherit::sockets()?;
    let read = Settings::for_node(args)?;
    let log = start_log(&read.node)?;
    // Before any secret is read.
    harden::process(args.lock_memory)?;
    let store = read.open_own_store().map_err(coded_of_store)?;
    let Settings {
        node: mut config,
        tls,
    } = read;
    let typed = config.clone();
    if let Some(listener) = &inherited.tcp
        && config.tcp.is_none()
    {
        let address = listener.local_addr().context("an inherited socket")?;
        config.tcp = Some(settings::tcp(address, None, &tls));
    }
    make_certificates(&mut config, &tls).context("making certificates for the TCP listener")?;
    let mut workers = config.engine.clone();
    workers.placement = Some(placement::of(config.pin, workers.workers));
    let engine = Engine::start(workers, chosen(config.backends.as_deref())?)
        .context("starting the engine")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .event_interval(TASKS_PER_SOCKET_CHECK)
        .on_thread_start(placement::run_promptly)
        .build()
        .context("starting the runtime")?;
    let result = runtime.block_on(async {
        // Installed early: a signal during the start must not kill the process.
        let (stop, force) = stop_signals()?;
        let hangup = signal(SignalKind::hangup()).context("catching SIGHUP")?;
        let summary = Summary::of(&config);
        let service =
            progress::while_doing("loading keys", || config.service(engine.clone(), store));
        let service = service.context("starting the node")?;
        service.control_log(Box::new(log));
        let node = Node::bind_with(config, service, inherited).map_err(coded)?;
        let handle = node.handle();
        let (args, reloading) = (args.clone(), node.handle());
        handle.on_reload(Arc::new(move |actor| {
            reload(&args, &typed, &reloading, actor)
        }));
        summary.tell(&node);
        notify::service_manager(notify::READY);
        // A task of its own, so that a thread of the runtime runs it, as it runs the connections.
        tokio::spawn(sign_of_life(node.handle(), engine.clone()));
        tokio::select! {
            () = node.run(stop) => Ok(()),
            () = reload_on(hangup, handle) => Ok(()),
            () = force => Err(anyhow!("a second signal came while draining: jobs were dropped")),
        }
    });
    engine.stop();
    result
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
        StartError::Address { .. } | StartError::Tls(_) | StartError::Store(_) => false,
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
    let Some(period) = notify::watchdog_interval() else {
        return;
    };
    let mut ticks = tokio::time::interval(period);
    let mut progress = Progress::default();
    loop {
        ticks.tick().await;
        let connections = node.service().connections();
        if progress.check(&engine.stats()) {
            notify::service_manager(notify::ALIVE);
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
) -> Result<ReloadReport, String> {
    let read = Settings::for_node(args)
        .map_err(|error| chain(&error))?
        .node;
    let service = node.service();
    service
        .check(&read.settings)
        .map_err(|error| error.to_string())?;
    // Files before settings: reading files may fail, applying checked settings cannot.
    let keys = node.reload().map_err(|error| error.to_string())?;
    let needs_restart = restart_keys(running, &read);
    let settings = service
        .apply(read.settings, actor)
        .map_err(|error| error.to_string())?;
    Ok(ReloadReport {
        settings,
        keys,
        needs_restart,
    })
}

/// Keys of the file that differ from the running node and take effect only after a restart.
fn restart_keys(running: &NodeConfig, read: &NodeConfig) -> Vec<String> {
    let engine = |config: &NodeConfig| {
        let engine = &config.engine;
        (
            engine.workers,
            engine.queue_limit,
            engine.session_queue_limit,
        )
    };
    #[rustfmt::skip]
    let differs = [
        ("name", running.name != read.name),
        ("drain-timeout-ms", running.drain_timeout != read.drain_timeout),
        ("backends", running.backends != read.backends),
        ("unix", running.unix != read.unix),
        ("tcp", running.tcp != read.tcp),
        ("metrics", running.metrics != read.metrics || running.status_socket != read.status_socket),
        ("admin", running.admin != read.admin),
        ("store", running.store != read.store),
        ("engine", engine(running) != engine(read) || running.pin != read.pin),
        ("log.format", running.json_log != read.json_log),
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
                let ReloadReport {
                    settings,
                    keys,
                    needs_restart,
                } = report;
                let Reloaded {
                    changed,
                    removed,
                    broken,
                } = keys;
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
            Ok(Err(problems)) => {
                tracing::warn!(problems, "cannot reload, what was in force stays so");
            }
            Err(error) => tracing::error!(%error, "a reload panicked"),
        }
    }
    std::future::pending().await
}

/// The filter of this process's log.
struct LogFilter(Box<dyn Fn(EnvFilter) + Send + Sync>);

impl LogControl for LogFilter {
    fn check(&self, filter: &str) -> Result<(), String> {
        let checked = EnvFilter::try_new(filter);
        checked.map(drop).map_err(|error| error.to_string())
    }

    fn set(&self, filter: &str) {
        if let Ok(filter) = EnvFilter::try_new(filter) {
            (self.0)(filter);
        }
    }
}

/// Starts the log on standard error, with the configured format and filter.
fn start_log(config: &NodeConfig) -> Result<LogFilter> {
    let filter = &config.settings.log_filter;
    let filter = EnvFilter::try_new(filter).or_fail(Failure::Usage, || {
        format!("the log filter {filter:?} is wrong")
    })?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    if config.json_log {
        let log = log.json().with_filter_reloading();
        let handle = log.reload_handle();
        log.init();
        return Ok(LogFilter(Box::new(move |filter| {
            drop(handle.reload(filter))
        })));
    }
    let log = log.with_ansi(styled(&io::stderr())).with_filter_reloading();
    let handle = log.reload_handle();
    log.init();
    Ok(LogFilter(Box::new(move |filter| {
        drop(handle.reload(filter))
    })))
}

/// The backends in the configured order, or all that are compiled in.
fn chosen(kinds: Option<&[BackendKind]>) -> Result<Vec<Arc<dyn Backend>>> {
    let built_in = backends::all();
    let Some(kinds) = kinds else {
        return Ok(built_in);
    };
    let find = |kind: &BackendKind| {
        let found = built_in
            .iter()
            .find(|backend| backend.describe().kind == *kind);
        let missing = || {
            let message = format!("backends: this binary has no backend {kind}: take it out");
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
    let made = TlsFiles {
        crl: tcp.tls.crl.clone(),
        ..TlsFiles::in_directory(folder)
    };
    if tcp.tls != made {
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

/// Names and addresses under which clients may reach this node.
fn certificate_names(config: &NodeConfig, tcp: &TcpConfig) -> Vec<String> {
    let mut names = vec![
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        "::1".to_owned(),
    ];
    let dns = config
        .name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte));
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
fn stop_signals() -> Result<(impl Future<Output = ()>, impl Future<Output = ()>)> {
    let pair = || -> Result<(Signal, Signal)> {
        let terminate = signal(SignalKind::terminate()).context("catching SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("catching SIGINT")?;
        Ok((terminate, interrupt))
    };
    let (mut first, mut second) = (pair()?, pair()?);
    let stop = async move {
        either(&mut first).await;
        tracing::info!("draining; a second signal stops at once");
        notify::service_manager(notify::STOPPING);
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
        let metrics = node
            .metrics_address()
            .map(|address| format!("http://{address}/metrics"));
        if json {
            tracing::info!(
                name,
                unix,
                tcp,
                metrics,
                keys = status.keys,
                store,
                "listening"
            );
            return;
        }
        let mut text = format!("millrace node {name} is up\n");
        let facts = [
            ("unix socket", unix),
            (
                "tcp",
                tcp.map(|tcp| format!("{tcp} (mutual TLS; millrace cert client NAME -o DIR)")),
            ),
            ("metrics", metrics),
            ("backends", Some(usable(&handle))),
            ("keys", Some(format!("{} in {store}", status.keys))),
        ];
        for (fact, value) in facts
            .into_iter()
            .filter_map(|(fact, value)| Some((fact, value?)))
        {
            let _ = writeln!(text, "  {fact:<12} {value}");
        }
        let next = if status.keys == 0 {
            "millrace key import NAME FILE"
        } else {
            "millrace status"
        };
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
