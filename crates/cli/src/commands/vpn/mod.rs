// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace vpn`: links of many tunnels. The vpn crate has the plan, the state machine and the I/O; this module
//! has the arguments and the output.

mod choose;
mod convert;
mod keys;
mod show;

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use millrace_hostfs::generated::write::EditedFiles;
use millrace_hostfs::ordinary;
use millrace_vpn::apply::{self, AppliedLink, ApplyError, Checked, Raised, UpOptions};
use millrace_vpn::down;
use millrace_vpn::link::LinkProblems;
use millrace_vpn::plan::Folders;
use millrace_vpn::supervise::{self, LinkState, LinkStatus, Standby, read_status};

use crate::args::{
    VpnCommand, VpnConfirmArgs, VpnDownArgs, VpnFoldersArgs, VpnLinkArgs, VpnNameArgs, VpnPlanArgs,
    VpnRestartArgs, VpnRollbackArgs, VpnSuperviseArgs, VpnUpArgs,
};
use crate::exit::{Failure, fail};
use crate::output;
use crate::placement::prefer_node;

/// Bound on a link.toml, a choice.json and commands of a router, in bytes. The history and the import have the same.
const MAX_INPUT: usize = 4 << 20;

/// Time that `up` waits for the first member, without `--confirm-within`: TLS handshakes on busy cores.
const FIRST_MEMBER: Duration = Duration::from_secs(20);

/// Time until the status shows a change: the supervisor writes it once a second, later on a busy host.
const STATUS_DELAY: Duration = Duration::from_secs(2);

/// Interval of looks at the status: a tenth of that in which the supervisor writes it.
const POLL: Duration = Duration::from_millis(100);

pub(crate) fn run(command: &VpnCommand) -> Result<()> {
    match command {
        VpnCommand::Keys(args) => keys::run(args),
        VpnCommand::Plan(args) => plan(args),
        VpnCommand::Up(args) => up(args),
        VpnCommand::Status(args) => show::status(args),
        VpnCommand::Watch(args) => show::watch(args),
        VpnCommand::Bench(args) => choose::bench(args),
        VpnCommand::Confirm(args) => confirm(args),
        VpnCommand::Restart(args) => restart(args),
        VpnCommand::Down(args) => down(args),
        VpnCommand::History(args) => show::history(args),
        VpnCommand::Rollback(args) => rollback(args),
        VpnCommand::Import(args) => convert::import(args),
        VpnCommand::Export(args) => convert::export(args),
        VpnCommand::Supervise(args) => supervise(args),
    }
}

fn folders(args: &VpnFoldersArgs) -> Folders {
    let default = Folders::default();
    Folders {
        run: args.run.clone().unwrap_or(default.run),
        state: args.state.clone().unwrap_or(default.state),
    }
}

/// Problems of the declaration or the host are usage errors.
fn to_exit_error(error: ApplyError) -> anyhow::Error {
    match error {
        ApplyError::Problems(LinkProblems(_)) => fail(Failure::Usage, error.to_string()),
        other => other.into(),
    }
}

/// The text of a file, which may be a pipe.
fn read(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| ordinary::read_rest(file, MAX_INPUT, &mut bytes))
        .and_then(|()| String::from_utf8(bytes).map_err(io::Error::other))
        .map_err(|error| fail(Failure::Usage, format!("cannot read {}: {error}", path.display())))
}

fn check(args: &VpnLinkArgs) -> Result<Checked> {
    let text = read(&args.link)?;
    apply::check(&text, args.end.map(Into::into), &folders(&args.folders)).map_err(to_exit_error)
}

fn plan(args: &VpnPlanArgs) -> Result<()> {
    let checked = check(&args.link)?;
    if args.json {
        return output::print_json(&checked.plan);
    }
    print_plan(&checked)
}

fn print_plan(checked: &Checked) -> Result<()> {
    let choice = checked.plan.choice.as_ref().map(choose::page);
    let comments = choice.iter().flat_map(|page| page.lines());
    let comments: String = comments.map(|line| format!("# {line}\n")).collect();
    output::print(&format!("{comments}{}", checked.plan.text()))
}

fn up(args: &VpnUpArgs) -> Result<()> {
    let mut checked = check(&args.link)?;
    let link_folders = folders(&args.link.folders);
    if args.resume {
        let asked = checked.text.clone();
        checked = apply::resume(checked, &link_folders).map_err(to_exit_error)?;
        if checked.text != asked {
            note!(
                "note: {} was not confirmed: the configuration that was confirmed last comes up",
                args.link.link.display()
            );
        }
    }
    if args.plan.dry_run {
        return print_plan(&checked);
    }
    if let Some(choice) = &checked.plan.choice {
        note!("engine auto: {}", choice.chosen.title());
    }
    for note in &checked.plan.notes {
        note!("note: {note}");
    }
    let options = UpOptions {
        edited: EditedFiles::with_force(args.force),
        confirm_within: args.confirm_within,
    };
    let Raised { applied, waits, .. } = apply_plan(&checked, &args.link.folders, options)?;
    let generation = applied.generation;
    let name = &checked.plan.layout.name;
    if args.no_wait {
        let until = if waits { ", until it is confirmed or its time is over" } else { "" };
        note!(
            "configuration {generation} of link {name} is applied{until}: millrace vpn status {name}"
        );
        return Ok(());
    }
    wait_until_up(name, generation, args.confirm_within, &link_folders)
}

fn confirm(args: &VpnConfirmArgs) -> Result<()> {
    let VpnNameArgs { name, folders: args } = &args.link;
    let generation = apply::confirm(name, &folders(args)).map_err(to_exit_error)?;
    note!("configuration {generation} of link {name} is confirmed");
    Ok(())
}

fn rollback(args: &VpnRollbackArgs) -> Result<()> {
    let VpnRollbackArgs { link, to, plan } = args;
    let folders = folders(&link.folders);
    let applied = AppliedLink::load(&folders, &link.name)?
        .ok_or_else(|| ApplyError::NotUp(link.name.clone()))?;
    let former = apply::former(&link.name, &folders)?;
    let Some(to) = to.or(former.filter(|former| *former != applied.generation)) else {
        let message = format!("link {} has no former configuration", link.name);
        return Err(fail(Failure::Failed, message));
    };
    let side = applied.layout.side;
    let checked = apply::check_former(&link.name, to, side, &folders).map_err(to_exit_error)?;
    if plan.dry_run {
        return print_plan(&checked);
    }
    let raised = apply_plan(&checked, &link.folders, UpOptions::default())?;
    wait_until_up(&link.name, raised.applied.generation, None, &folders)
}

/// Applies a plan, and starts the supervisor if none runs.
fn apply_plan(checked: &Checked, args: &VpnFoldersArgs, options: UpOptions) -> Result<Raised> {
    let folders = folders(args);
    let name = &checked.plan.layout.name;
    let raised = apply::up(checked, &folders, options).map_err(to_exit_error)?;
    if !raised.is_supervised {
        start_supervisor(name, args, &folders, Standby::No)?;
    }
    if raised.waits {
        start_supervisor(name, args, &folders, Standby::WhileUnconfirmed)?;
    }
    Ok(raised)
}

/// Waits until the first member of a configuration carries traffic, or the former configuration is back.
fn wait_until_up(
    name: &str,
    generation: u64,
    confirm_within: Option<Duration>,
    folders: &Folders,
) -> Result<()> {
    let until = Instant::now() + confirm_within.unwrap_or(FIRST_MEMBER) + STATUS_DELAY;
    let run = folders.run_of(name);
    while Instant::now() < until {
        // A `down` that came second has taken the link down.
        if AppliedLink::load(folders, name)?.is_none() {
            return Err(ApplyError::NotUp(name.to_owned()).into());
        }
        let status = read_status(&run).filter(|status| status.generation >= generation);
        if status.as_ref().is_some_and(|status| status.generation > generation) {
            break;
        }
        let reached = |status: LinkStatus| {
            status.confirm_within_ms.is_none() && status.state != LinkState::Down
        };
        if status.is_some_and(reached) {
            note!("link {name} is up, configuration {generation}: millrace vpn status {name}");
            return Ok(());
        }
        thread::sleep(POLL);
    }
    if confirm_within.is_some() {
        let message = "the other end was not reached in time, and the former configuration is back";
        return Err(fail(Failure::Failed, format!("{message}: millrace vpn history {name}")));
    }
    note!("no member reaches the other end yet; they go on trying: millrace vpn status {name}");
    Ok(())
}

/// Starts the supervisor in the background, or one that takes its place if it ends.
fn start_supervisor(
    name: &str,
    args: &VpnFoldersArgs,
    folders: &Folders,
    standby: Standby,
) -> Result<()> {
    let log = folders.run_of(name).join("supervisor.log");
    // The supervisor itself writes each change to it.
    let output = File::options().create(true).append(true).open(&log);
    let output = output.with_context(|| format!("opening {}", log.display()))?;
    let errors = output.try_clone().context("sharing the log")?;
    let mut command = Command::new(env::current_exe().context("finding this program")?);
    command.args(["vpn", "supervise", name]);
    if standby == Standby::WhileUnconfirmed {
        command.arg("--standby");
    }
    for (option, folder) in [("--run", &args.run), ("--state", &args.state)] {
        if let Some(folder) = folder {
            command.arg(option).arg(fs::canonicalize(folder).unwrap_or_else(|_| folder.clone()));
        }
    }
    command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0).current_dir("/");
    command.spawn().context("starting the supervisor")?;
    Ok(())
}

fn supervise(args: &VpnSuperviseArgs) -> Result<()> {
    let standby = if args.standby { Standby::WhileUnconfirmed } else { Standby::No };
    Ok(supervise::run(&args.link.name, &folders(&args.link.folders), prefer_node, standby)?)
}

fn restart(args: &VpnRestartArgs) -> Result<()> {
    let VpnRestartArgs { link, members, no_wait } = args;
    let name = &link.name;
    let folders = folders(&link.folders);
    let run = folders.run_of(name);
    let pids = |status: &LinkStatus| -> Vec<(u16, Option<u32>)> {
        let chosen = |number: &u16| members.is_empty() || members.contains(number);
        let found = status.members.iter().filter(|member| chosen(&member.number));
        found.map(|member| (member.number, member.pid)).collect()
    };
    let before = read_status(&run).map(|status| pids(&status)).unwrap_or_default();
    apply::restart(name, members, &folders)?;
    if *no_wait {
        note!("members restart one after another: millrace vpn status {name}");
        return Ok(());
    }
    // A restart takes two or three seconds; a member that does not come back holds the others up.
    let until = Instant::now() + FIRST_MEMBER * u32::try_from(before.len().max(1)).unwrap_or(1);
    while Instant::now() < until {
        let status = read_status(&run).filter(|status| status.state == LinkState::Up);
        let is_anew = |status: LinkStatus| {
            let now = pids(&status);
            before.iter().zip(&now).all(|(old, new)| old.1 != new.1)
        };
        if status.is_some_and(is_anew) {
            note!("{} members of link {name} run anew", before.len());
            return Ok(());
        }
        thread::sleep(POLL);
    }
    let message =
        format!("not all members of link {name} are back: millrace vpn status {name} says why");
    Err(fail(Failure::Failed, message))
}

fn down(args: &VpnDownArgs) -> Result<()> {
    let name = &args.link.name;
    let folders = folders(&args.link.folders);
    if args.plan.dry_run {
        return output::print(&down::plan(name, &folders)?.text());
    }
    down::down(name, &folders)?;
    note!("link {name} is down; its configurations remain: millrace vpn history {name}");
    Ok(())
}
