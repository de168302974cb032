// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A node with everything embedded. It assembles backends, engine, key store, service and listeners, and waits for
//! signals. The crates service and server implement the node.

mod certificates;
mod check;
mod reload;
mod summary;

use std::sync::Arc;

use anyhow::{Context, Error, Result, anyhow};
use millrace_engine::{BackendEvent, Engine, Observer};
use millrace_manager::managed_node::ManagedNode;
use millrace_operation::BackendKind;
use millrace_server::config::NodeConfig;
use millrace_server::listener::{Inherited, ListenError};
use millrace_server::{Node, NodeHandle, ReloadError, StartError};
use millrace_service::store::{KekError, KeyStore, StoreError};
use tokio::signal::unix::{SignalKind, signal};

use self::certificates::make_certificates;
pub(crate) use self::check::check;
use self::reload::{reload, reload_on};
use self::summary::Summary;
use super::inside::InsideManager;
use super::log::{LogFilter, start_log};
use super::member;
use super::signals::stop_signals;
use crate::args::InsideManagerArgs;
use crate::backends;
use crate::exit::{Failure, chain, fail};
use crate::harden;
use crate::passed_sockets;
use crate::placement;
use crate::progress;
use crate::service_manager::{self, WatchdogProgress};
use crate::settings::{self, Settings};

/// Tasks that a busy thread of the runtime runs before it checks the sockets for data. A task takes up to 100
/// µs under load, so with the runtime's default, 61, an identity's only job waits milliseconds beside a
/// flood. A check costs about 1 µs.
const TASKS_PER_SOCKET_CHECK: u32 = 4;

/// The managers of a node.
pub(crate) enum Managers<'a> {
    /// None: the configuration of the node says who may use it.
    None,
    /// Those that the settings name.
    Elsewhere,
    /// One in the process of the node.
    Inside(&'a InsideManagerArgs),
}

/// Runs a node until a signal ends it. `read` reads its settings, now and at each reload.
pub(crate) fn serve(
    read: impl Fn() -> Result<Settings> + Send + Sync + 'static,
    managers: &Managers<'_>,
) -> Result<()> {
    let start = Start::prepare(read()?, managers)?;
    let engine = start.engine.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .event_interval(TASKS_PER_SOCKET_CHECK)
        .on_thread_start(placement::run_promptly)
        .build()
        .context("starting the runtime")?;
    let result = runtime.block_on(start.serve(read));
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
    fn prepare(read: Settings, managers: &Managers<'_>) -> Result<Self> {
        let inherited = passed_sockets::take()?;
        let node = &read.node;
        let log = start_log(&node.settings.log_filter, node.log_format)?;
        harden::process()?;
        if node.lock_memory {
            harden::lock_memory()?;
        }
        let store = read.open_own_store().map_err(store_exit_error)?;
        let manager = match managers {
            Managers::Inside(args) => Some(InsideManager::prepare(args, node)?),
            Managers::None | Managers::Elsewhere => None,
        };
        let managed = match (managers, &manager) {
            (Managers::None, _) => None,
            (_, None) => Some(member::prepare(node, &node.manager, || start_engine(node))?),
            (_, Some(own)) => {
                Some(member::prepare(node, &own.membership(), || start_engine(node))?)
            }
        };
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
    async fn serve(
        self,
        read: impl Fn() -> Result<Settings> + Send + Sync + 'static,
    ) -> Result<()> {
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
        let node = Node::bind_inherited(config, service, inherited).map_err(start_exit_error)?;
        let handle = node.handle();
        let reloading = node.handle();
        handle.on_reload(Arc::new(move |actor| {
            let read = read().map_err(|error| ReloadError::Configuration(chain(&error)))?;
            reload(read.node, &typed, &reloading, actor)
        }));
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
    workers.placement =
        Some(placement::for_workers(config.pin, config.worker_priority, workers.workers));
    workers.observer = Some(Arc::new(LogBackends));
    Engine::start(workers, backends::chosen(config.backends.as_deref(), &config.qat)?)
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
fn start_exit_error(error: StartError) -> Error {
    let usage = match &error {
        StartError::Listen(reason) => match reason {
            ListenError::Io { .. } | ListenError::InUse(_) => false,
            ListenError::NotASocket(_)
            | ListenError::Group { .. }
            | ListenError::GroupDenied { .. }
            | ListenError::Folder { .. }
            | ListenError::Untrusted(_) => true,
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
fn store_exit_error(error: Error) -> Error {
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
