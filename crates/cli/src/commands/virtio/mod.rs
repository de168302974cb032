// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace virtio`: virtio-crypto devices for virtual machines. `run` is the front process, the hidden `device` the
//! process with the devices and their engine.

pub(in crate::commands) mod status;

use std::env;
use std::fs;
use std::mem;
use std::os::unix::process::CommandExt;
use std::path::{self, Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use millrace_client::{Endpoint, Pool, PoolConfig, ReportSource, TlsConfig};
use millrace_engine::{Engine, EngineConfig};
use millrace_server::config::{LogFormat, NodeConfig, Pin};
use millrace_service::Service;
use millrace_service::settings::Settings;
use millrace_service::store::{KekSource, KeyStore};
use millrace_virtio::confine::confine;
use millrace_virtio::control::{self, ControlAnswer, ControlRequest};
use millrace_virtio::device::{DeviceLimits, LimitsChange};
use millrace_virtio::front::{
    DeviceOrders, Front, FrontSettings, HANDOVER, HandedState, wait_for_end,
};
use millrace_virtio::job_target::ServiceTarget;
use millrace_virtio::node::NodeTarget;
use millrace_virtio::recipe;
use millrace_virtio::vhost::{Devices, ListenError, SocketSettings, StateKey, TargetOpener};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{
    Monitor, VirtioCommand, VirtioDrainArgs, VirtioLimitArgs, VirtioRecipeArgs, VirtioRunArgs,
    VirtioSocketArgs, VirtioThrottleArgs,
};
use crate::backends;
use crate::exit::{ContextCode, Failure, fail};
use crate::harden;
use crate::output;
use crate::placement;
use crate::processes::log::start_log;
use crate::service_manager;

/// Interval of checks whether the last machine has disconnected: the end is late by no more.
const POLL: Duration = Duration::from_millis(200);

/// Runs one subcommand.
pub(crate) fn run(command: &VirtioCommand) -> Result<()> {
    match command {
        VirtioCommand::Run(args) if args.print_capabilities => {
            // The answer that QEMU's documentation of vhost-user backends asks for (docs/interop/vhost-user.json).
            output::print("{\n  \"type\": \"crypto\"\n}\n")
        }
        VirtioCommand::Run(args) => serve(args),
        VirtioCommand::Device(args) => device(args),
        VirtioCommand::Drain(args) => drain(args),
        VirtioCommand::Status(args) => status::show(args),
        VirtioCommand::Throttle(args) => throttle(args),
        VirtioCommand::Recipe(args) => recipe(args),
    }
}

fn recipe(args: &VirtioRecipeArgs) -> Result<()> {
    let print = match args.monitor {
        Monitor::Qemu => recipe::qemu,
        Monitor::Libvirt => recipe::libvirt,
        Monitor::CloudHypervisor => recipe::cloud_hypervisor,
    };
    output::print(&print(&args.socket.socket_path, args.queues.data_queues))
}

/// The socket with this number.
fn socket(args: &VirtioSocketArgs, number: u16) -> PathBuf {
    if args.socket_count == 1 {
        return args.first.socket_path.clone();
    }
    let mut path = args.first.socket_path.clone().into_os_string();
    path.push(number.to_string());
    path.into()
}

/// The socket of `status` and `throttle` beside the first socket of a process.
fn control_socket(first: &Path) -> PathBuf {
    let mut path = first.as_os_str().to_owned();
    path.push(".control");
    path.into()
}

/// The identity of a device: the one that all of the process share, or its own.
fn identity(args: &VirtioRunArgs, path: &Path) -> Result<Arc<str>> {
    let own = path.file_name().unwrap_or_default().to_string_lossy();
    let identity = format!("vm:{}", args.identity.as_deref().unwrap_or(&own));
    if !millrace_service::store::valid_identity(&identity) {
        let message =
            format!("{identity:?} is not an identity: use printable ASCII without blanks");
        return Err(fail(Failure::Usage, message));
    }
    Ok(identity.into())
}

const fn limits_change(args: &VirtioLimitArgs) -> LimitsChange {
    LimitsChange { ops: args.ops, bps: args.bps }
}

fn settings(args: &VirtioRunArgs) -> Result<Vec<SocketSettings>> {
    let mut limits = DeviceLimits::default();
    limits_change(&args.limits).apply(&mut limits);
    let one = |number| {
        let path = socket(&args.sockets, number);
        Ok(SocketSettings {
            identity: identity(args, &path)?,
            path,
            data_queues: args.queues.data_queues,
            limits,
        })
    };
    (0..args.sockets.socket_count).map(one).collect()
}

/// Holds the sockets, and runs the process with the devices again when it ends.
fn serve(args: &VirtioRunArgs) -> Result<()> {
    start_log(&args.log, LogFormat::Text)?;
    harden::process()?;
    nodes(args)?;
    state_key(args)?;
    let handed = match env::var_os(HANDOVER) {
        Some(_) => Some(HandedState::receive().context("taking over from the former program")?),
        None => None,
    };
    let settings = FrontSettings {
        devices: settings(args)?,
        control: control_socket(&args.sockets.first.socket_path),
        folder: folder(args),
        program: Box::new(device_program),
    };
    let front = Front::start(settings, handed).map_err(to_exit_error)?;
    note!("millrace virtio is up");
    for socket in front.sockets() {
        note!("  device       {}", socket.display());
    }
    let control = control_socket(&args.sockets.first.socket_path);
    note!("  control      {}", control.display());
    note!("next: millrace virtio recipe qemu; millrace virtio status");
    service_manager::notify(service_manager::READY);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let ended = runtime.block_on(until_ended(&front));
    front.end();
    ended
}

/// The folder for the sockets between the two processes.
fn folder(args: &VirtioRunArgs) -> PathBuf {
    let mut path = args.sockets.first.socket_path.as_os_str().to_owned();
    path.push(".d");
    path.into()
}

/// The device process: this program, also when its file has been replaced, with the same options.
fn device_program() -> Command {
    let mut program = Command::new("/proc/self/exe");
    let mut is_named = false;
    for word in env::args_os().skip(1) {
        let is_verb = !is_named && word == "run";
        is_named |= is_verb;
        program.arg(if is_verb { "device".into() } else { word });
    }
    // A signal of a terminal is for the front process.
    program.env_remove(HANDOVER).process_group(0);
    program
}

/// The program that this process was started with, as it is installed now.
fn new_program() -> Result<Command> {
    let mut words = env::args_os();
    let name = words.next().context("this process has no name")?;
    let works = Command::new(&name)
        .args(["virtio", "run", "--print-capabilities"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("starting {}", name.display()))?;
    if !works.success() {
        bail!("{} does not work: {works}", name.display());
    }
    let mut program = Command::new(name);
    program.args(words);
    Ok(program)
}

/// The nodes that the options name. Their status names the device by its first socket.
fn nodes(args: &VirtioRunArgs) -> Result<Option<PoolConfig>> {
    if args.pool.is_empty() {
        return Ok(None);
    }
    let tls = TlsConfig {
        ca: args.certs.join("ca.pem"),
        cert: args.certs.join("cert.pem"),
        key: args.certs.join("key.pem"),
        server_name: None,
    };
    let endpoints: Vec<Endpoint> =
        args.pool.iter().map(|endpoint| endpoint.clone().with_tls(tls.clone())).collect();
    let first = args.sockets.first.socket_path.file_name().unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    let agent = format!("millrace-virtio/{version} {}", first.display());
    let config = PoolConfig::new(endpoints).agent(agent);
    let checked = config.check();
    checked.or_fail(Failure::Usage, || "the nodes cannot be used".to_owned())?;
    Ok(Some(config))
}

/// The key under which states of devices move.
fn state_key(args: &VirtioRunArgs) -> Result<Option<StateKey>> {
    let read = |path: &PathBuf| {
        let key = StateKey::read(path);
        key.or_fail(Failure::Usage, || format!("{}: no key for --state-key", path.display()))
    };
    args.state_key.as_ref().map(read).transpose()
}

/// Runs the devices behind the sockets that the front process passed on.
fn device(args: &VirtioRunArgs) -> Result<()> {
    start_log(&args.log, LogFormat::Text)?;
    // Before any key arrives.
    harden::process()?;
    let orders = DeviceOrders::receive()
        .context("`millrace virtio run` starts this command, with its sockets as standard input")?;
    let end = orders.end()?;
    let mut config = EngineConfig::default();
    config.workers = args.workers.map_or(config.workers, usize::from);
    config.placement = Some(placement::for_workers(
        Pin::Auto,
        args.worker_priority.unwrap_or_default(),
        config.workers,
    ));
    let qat = backends::qat_settings(NodeConfig::default().qat)?;
    let engine = Engine::start(config, backends::chosen(args.backends.as_deref(), &qat)?)
        .context("starting the engine")?;
    // The threads of the rings inherit it: a lone request does not wait for the scheduler slices of another's flood.
    placement::run_promptly();
    // It stays empty: guests bring their keys.
    let store = KeyStore::open(folder(args).join("keys"), &KekSource::Absent);
    let store = store.context("starting the service")?;
    let service = Service::new("virtio", Settings::default(), engine, store)
        .context("starting the service")?;
    let devices = Devices::with_state_key(state_key(args)?);
    let counted = devices.clone();
    let report = ReportSource::new(move || counted.report());
    let nodes = nodes(args)?.map(|config| Pool::new(config.report(report)));
    let pools = pools(service, nodes.clone());
    for (settings, listener, journal) in orders.devices {
        devices
            .serve(Arc::clone(&pools), settings, listener, journal)
            .context("starting a device")?;
    }
    let answering = devices.clone();
    control::answer_at(orders.control, move |request| control::answer_for(&answering, request))
        .context("starting the control socket")?;
    // Everything that needs files or other programs has been done.
    if let Err(error) = confine() {
        tracing::warn!(%error, "this process keeps all of its system calls");
    }
    let mut last = devices.report();
    wait_for_end(&end, || {
        let now = devices.report();
        if now != mem::replace(&mut last, now)
            && let Some(nodes) = &nodes
        {
            // What was computed in place is no job of the nodes.
            nodes.report_soon();
        }
    });
    Ok(())
}

fn pools(service: Service, nodes: Option<Pool>) -> TargetOpener {
    Arc::new(move |identity, sink| {
        let local = ServiceTarget::open(&service, identity, Arc::clone(&sink))?;
        let Some(nodes) = &nodes else {
            return Ok(Box::new(local));
        };
        Ok(Box::new(NodeTarget::new(local, nodes.clone(), sink)?))
    })
}

/// A socket that the command line names wrongly is a usage error.
fn to_exit_error(error: ListenError) -> anyhow::Error {
    match error {
        ListenError::NotASocket(_) => fail(Failure::Usage, error.to_string()),
        ListenError::InUse(_) | ListenError::Io { .. } => error.into(),
    }
}

/// Waits for a signal that ends the process, then for the last machine, or for a second signal. Another signal starts
/// the installed program in its place.
async fn until_ended(front: &Front) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("catching SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("catching SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("catching SIGHUP")?;
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => upgrade(front),
        }
    }
    service_manager::notify(service_manager::STOPPING);
    front.set_ready(false);
    let machines = front.connected();
    if machines > 0 {
        tracing::info!(
            machines,
            "ends when the last machine has disconnected; a second signal ends at once"
        );
    }
    loop {
        if front.connected() == 0 {
            return Ok(());
        }
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            () = tokio::time::sleep(POLL) => {}
        }
    }
    bail!("a second signal came while machines are connected: their requests are lost")
}

/// Runs the installed program in this process; returns only if that is not possible.
fn upgrade(front: &Front) {
    let reason = match new_program() {
        Ok(program) => front.hand_over(program).into(),
        Err(error) => error,
    };
    tracing::error!("this process goes on with the program that it runs: {reason:#}");
}

/// Asks the running process whose first socket this is. A link to it will do.
fn ask(first: &Path, request: &ControlRequest) -> Result<ControlAnswer> {
    let named = control_socket(first);
    let path = match fs::canonicalize(first) {
        Ok(real) if !named.exists() => control_socket(&real),
        _ => named,
    };
    let answer = control::ask(&path, request);
    let answer = answer.or_fail(Failure::NoNode, || {
        format!("{}: no `millrace virtio run` answers there", path.display())
    })?;
    match answer {
        ControlAnswer::Refused(reason) => bail!(reason),
        ControlAnswer::Devices(_) | ControlAnswer::Done => Ok(answer),
    }
}

fn drain(args: &VirtioDrainArgs) -> Result<()> {
    let request = ControlRequest::Ready { ready: args.undo };
    ask(&args.socket.socket_path, &request).map(drop)
}

fn throttle(args: &VirtioThrottleArgs) -> Result<()> {
    let change = limits_change(&args.limits);
    for number in 0..args.sockets.socket_count {
        let socket = socket(&args.sockets, number);
        // The process may run in another folder.
        let socket = path::absolute(socket).context("no path")?;
        let request = ControlRequest::Throttle { socket, change };
        ask(&args.sockets.first.socket_path, &request)?;
    }
    Ok(())
}
