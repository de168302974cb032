// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace device`: accelerator cards. The crate device plans and applies; this module asks, prints and keeps files.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use millrace_device::apply::{DeviceOutcome, Sysfs, SysfsRoot};
use millrace_device::change::{self, RecordError};
use millrace_device::kernel_use::kernel_uses;
use millrace_device::observe::{Observed, ObservedFunction, find};
use millrace_device::plan::{DevicePlan, plan};
use millrace_device::policy::{DevicePolicy, MAX_POLICY_BYTES};
use millrace_device::settings::{DeviceSettings, DeviceState};
use millrace_device::vyos::{self, VyosCommand};
use millrace_hostfs::Root;
use millrace_hostfs::ordinary::{self, Links};
use millrace_inspect::kernel;
use millrace_inspect::qat::formats::FirmwareHeartbeat;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{
    ChangedRootArg, DeviceChangeArgs, DeviceCommand, DeviceReadArgs, DeviceVyosArgs, OnOff,
};
use crate::exit::{Failure, exit_with, fail, listed};
use crate::output::{self, Table, joined, or};
use crate::page::{Page, plain};
use crate::progress::while_doing;

/// The policy below the root.
const POLICY: &str = "etc/millrace/devices.toml";

const NO_DEVICE: &str = "no QAT device on this machine: `millrace doctor` says if one is hidden";

pub(crate) fn run(command: &DeviceCommand) -> Result<()> {
    let none = DeviceSettings::default;
    match command {
        DeviceCommand::List(args) => list(&args.read),
        DeviceCommand::Show(args) => show(&args.read, &args.device),
        DeviceCommand::Enable(args) => {
            let auto_reset = args.auto_reset.map(OnOff::is_on);
            let wanted = DeviceSettings { state: Some(DeviceState::Up), auto_reset, ..none() };
            change(&args.change, &args.device, &wanted, args.save)
        }
        DeviceCommand::Disable(args) => {
            let wanted = DeviceSettings { state: Some(DeviceState::Down), ..none() };
            change(&args.change, &args.device, &wanted, args.save)
        }
        DeviceCommand::Services(args) => {
            let wanted = DeviceSettings { services: Some(args.services.clone()), ..none() };
            change(&args.change, &args.device, &wanted, args.save)
        }
        DeviceCommand::VirtualFunctions(args) => {
            let wanted = DeviceSettings {
                virtual_functions: Some(args.count),
                function_driver: args.driver.map(Into::into),
                ..none()
            };
            change(&args.change, &args.device, &wanted, args.save)
        }
        DeviceCommand::Apply(args) => {
            let policy = read_policy(&args.change)?.ok_or_else(|| {
                let path = policy_path(&args.change);
                let message = format!(
                    "there is no policy {}: `millrace sample devices` prints one",
                    path.display()
                );
                fail(Failure::Usage, message)
            })?;
            let planned = plans(&args.change, |device| Some(policy.of(&device.device.address)))?;
            perform(&args.change, &planned)
        }
        DeviceCommand::Rollback(args) => rollback(&args.change),
        DeviceCommand::Vyos(args) => run_vyos(args),
    }
}

fn open(tree: &ChangedRootArg) -> Result<Root> {
    Root::open(&tree.root).with_context(|| format!("opening {}", tree.root.display()))
}

fn observe(tree: &ChangedRootArg) -> Vec<Observed> {
    SysfsRoot::new(&tree.root).observe()
}

/// The devices of a name, which may be `all`.
fn found<'a>(devices: &'a [Observed], name: &str) -> Result<Vec<&'a Observed>> {
    if devices.is_empty() {
        return Err(fail(Failure::Failed, NO_DEVICE));
    }
    find(devices, name).map_err(|error| fail(Failure::Usage, error.to_string()))
}

fn list(args: &DeviceReadArgs) -> Result<()> {
    open(&args.tree)?;
    let devices = observe(&args.tree);
    if args.json {
        return output::print_json(&devices);
    }
    if devices.is_empty() {
        note!("{NO_DEVICE}");
        return Ok(());
    }
    table(&devices).print()
}

#[rustfmt::skip]
fn table(devices: &[Observed]) -> Table {
    Table::of(devices, &[
        ("device", &|observed| plain(&observed.device.address)),
        ("name", &|observed| observed.name()),
        ("model", &|observed| observed.device.model.clone()),
        ("state", &|observed| on_or_off(observed.device.up, "up", "down")),
        ("services", &|observed| plain(&observed.device.services.join(";"))),
        ("functions", &|observed| functions(observed)),
        ("driver", &|observed| drivers(observed)),
        ("heartbeat", &|observed| heartbeat(observed.device.heartbeat).to_owned()),
        ("auto reset", &|observed| on_or_off(observed.device.resets_itself, "on", "off")),
        ("held by", &|observed| holders(observed.functions.iter())),
    ])
}

fn on_or_off(state: Option<bool>, on: &str, off: &str) -> String {
    or(state.map(|is_on| if is_on { on } else { off }), "?")
}

const fn heartbeat(heartbeat: Option<FirmwareHeartbeat>) -> &'static str {
    match heartbeat {
        Some(FirmwareHeartbeat::Alive) => "alive",
        Some(FirmwareHeartbeat::Silent) => "silent",
        None => "?",
    }
}

fn functions(observed: &Observed) -> String {
    match observed.device.functions {
        Some(count) => format!("{} of {}", count.enabled, count.possible),
        None => "?".to_owned(),
    }
}

fn drivers(observed: &Observed) -> String {
    let drivers = observed.functions.iter().map(|function| function.driver.as_deref());
    let names: BTreeSet<&str> = drivers.map(|driver| driver.unwrap_or("none")).collect();
    plain(&joined(names, "-"))
}

fn holders<'a>(functions: impl Iterator<Item = &'a ObservedFunction>) -> String {
    let holders = functions.flat_map(|function| &function.holders);
    plain(&joined(holders.map(|holder| format!("{} ({})", holder.name, holder.pid)), "-"))
}

fn show(args: &DeviceReadArgs, name: &str) -> Result<()> {
    let root = open(&args.tree)?;
    let devices = observe(&args.tree);
    let found = found(&devices, name)?;
    if args.json {
        return output::print_json(&found);
    }
    let mut page = Page::new();
    for observed in found {
        page.heading(&format!("{} ({})", plain(&observed.device.address), observed.name()));
        page.table(&table(std::slice::from_ref(observed)));
        if !observed.functions.is_empty() {
            #[rustfmt::skip]
            page.table(&Table::of(&observed.functions, &[
                ("function", &|function| plain(&function.address)),
                ("driver", &|function| plain(function.driver.as_deref().unwrap_or("none"))),
                ("file", &|function| or(function.group.as_ref().map(|group| format!("/dev/vfio/{}", plain(group))), "no IOMMU")),
                ("held by", &|function| holders(std::iter::once(*function))),
            ]));
        }
    }
    let uses = kernel::section(&root).known.map(|kernel| kernel_uses(&kernel)).unwrap_or_default();
    if !uses.is_empty() {
        page.heading("In the kernel (IPsec, disks)");
        #[rustfmt::skip]
        page.table(&Table::of(&uses, &[
            ("algorithm", &|used| plain(&used.algorithm)),
            ("card's driver", &|used| plain(&used.driver)),
            (">priority", &|used| used.priority.to_string()),
            ("kernel prefers", &|used| plain(&used.preferred)),
            (">its priority", &|used| used.preferred_priority.to_string()),
            ("by the card", &|used| if used.by_card { "yes" } else { "no" }.to_owned()),
        ]));
        let mut warnings: Vec<&str> =
            uses.iter().filter_map(|used| used.warning.as_deref()).collect();
        warnings.dedup();
        warnings.iter().for_each(|warning| page.item(warning));
    }
    page.print()
}

fn policy_path(change: &DeviceChangeArgs) -> PathBuf {
    change.policy.clone().unwrap_or_else(|| change.tree.root.join(POLICY))
}

/// The policy. `None` if there is no file.
fn read_policy(change: &DeviceChangeArgs) -> Result<Option<DevicePolicy>> {
    let path = policy_path(change);
    let named = || path.display().to_string();
    let text = match ordinary::read_text(&path, Links::Follow, MAX_POLICY_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(named),
    };
    let policy = DevicePolicy::from_toml(&text);
    policy.map(Some).map_err(|error| {
        let error = error.to_string();
        fail(Failure::Usage, listed(&named(), error.lines()))
    })
}

/// One change of named devices.
fn change(
    change: &DeviceChangeArgs,
    name: &str,
    wanted: &DeviceSettings,
    save: bool,
) -> Result<()> {
    let devices = observe(&change.tree);
    let found = found(&devices, name)?;
    let addresses: Vec<String> =
        found.iter().map(|observed| observed.device.address.clone()).collect();
    let planned = plans(change, |observed| {
        addresses.contains(&observed.device.address).then(|| wanted.clone())
    })?;
    perform(change, &planned)?;
    if save && !change.plan.dry_run {
        save_policy(change, name, &addresses, wanted)?;
    }
    Ok(())
}

/// Adds the settings to the policy. The former file is kept beside it, with its comments.
fn save_policy(
    change: &DeviceChangeArgs,
    name: &str,
    addresses: &[String],
    wanted: &DeviceSettings,
) -> Result<()> {
    let path = policy_path(change);
    let mut policy = read_policy(change)?.unwrap_or_default();
    if name == "all" {
        policy.qat = wanted.clone().or(&policy.qat);
        for own in policy.device.values_mut() {
            *own = forget(own, wanted);
        }
    } else {
        for address in addresses {
            let own = policy.device.remove(address).unwrap_or_default();
            policy.device.insert(address.clone(), wanted.clone().or(&own));
        }
    }
    let text = format!(
        "# Written by `millrace device`; `millrace sample devices` explains the keys.\n{}",
        policy.to_toml()
    );
    keep_former(&path).with_context(|| format!("writing {}", path.display()))?;
    output::replace(&path, &text)?;
    note!("saved to {}", path.display());
    Ok(())
}

/// Settings that remain in a device's own section once all devices are `wanted`.
fn forget(own: &DeviceSettings, wanted: &DeviceSettings) -> DeviceSettings {
    DeviceSettings {
        services: own.services.clone().filter(|_| wanted.services.is_none()),
        state: own.state.filter(|_| wanted.state.is_none()),
        virtual_functions: own.virtual_functions.filter(|_| wanted.virtual_functions.is_none()),
        function_driver: own.function_driver.filter(|_| wanted.function_driver.is_none()),
        auto_reset: own.auto_reset.filter(|_| wanted.auto_reset.is_none()),
    }
}

/// Makes the folder of a policy file, and copies the file that is there beside it.
fn keep_former(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    match fs::copy(path, path.with_extension("toml.before")) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The plans of the devices for which there are settings.
fn plans(
    change: &DeviceChangeArgs,
    wanted: impl Fn(&Observed) -> Option<DeviceSettings>,
) -> Result<Vec<DevicePlan>> {
    open(&change.tree)?;
    recover(change)?;
    let devices = observe(&change.tree);
    let planned = devices.iter().filter_map(|observed| Some(plan(observed, &wanted(observed)?)));
    let (good, bad): (Vec<_>, Vec<_>) = planned.partition(Result::is_ok);
    let problems: Vec<String> =
        bad.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect();
    if !problems.is_empty() {
        return Err(fail(Failure::Usage, problems.join("\n")));
    }
    Ok(good.into_iter().filter_map(Result::ok).collect())
}

/// The result of a change of one device.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DeviceChange<'a> {
    /// The planned steps
    plan: &'a DevicePlan,
    /// The result; null if only the plan was asked for
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<DeviceOutcome>,
}

/// Shows the plans, and does them. The state before is kept for `rollback`.
fn perform(change: &DeviceChangeArgs, planned: &[DevicePlan]) -> Result<()> {
    if planned.is_empty() {
        return Err(fail(Failure::Failed, NO_DEVICE));
    }
    let commands =
        planned.iter().flat_map(|plan| plan.steps.iter().map(|step| step.command(&plan.device)));
    let commands: Vec<String> = commands.collect();
    if !change.json {
        commands.iter().try_for_each(|command| output::print(&format!("{}\n", plain(command))))?;
    }
    let ends: Vec<&str> =
        planned.iter().flat_map(|plan| plan.ends.iter().map(String::as_str)).collect();
    if !ends.is_empty() && !change.force && !change.plan.dry_run {
        let message = format!(
            "this takes virtual functions from programs: {}; end them, or add --force",
            ends.join(", ")
        );
        return Err(fail(Failure::Failed, plain(&message)));
    }
    let root = &change.tree.root;
    let machine = SysfsRoot::new(root);
    let mut outcomes = Vec::new();
    if !change.plan.dry_run {
        let work = || change::change(&machine, planned, change.wait, root);
        outcomes = while_doing("changing a card", work)?;
    }
    let mut outcomes = outcomes.into_iter();
    let result = |plan| DeviceChange { plan, result: outcomes.next() };
    let results: Vec<DeviceChange<'_>> = planned.iter().map(result).collect();
    if change.json {
        output::print_json(&results)?;
    }
    let mut all_well = true;
    for DeviceChange { plan, result } in &results {
        let Some(result) = result else {
            if plan.steps.is_empty() {
                note!("{}: nothing to change", plain(&plan.device));
            }
            continue;
        };
        all_well &= result.is_success();
        note!("{}: {}", plain(&plan.device), plain(&sentence(result)));
    }
    if all_well { Ok(()) } else { Err(exit_with(1)) }
}

fn sentence(result: &DeviceOutcome) -> String {
    match result {
        DeviceOutcome::Unchanged => "nothing to change".to_owned(),
        DeviceOutcome::Applied => "changed and verified".to_owned(),
        DeviceOutcome::RolledBack { reason } => {
            format!("not changed, and back to what it was: {reason}")
        }
        DeviceOutcome::Broken { reason, then } => format!(
            "not changed: {reason}; and it could not go back: {then}. Read dmesg; `millrace device rollback` tries again"
        ),
    }
}

fn rollback(change: &DeviceChangeArgs) -> Result<()> {
    let recovered = recover(change)?;
    if !recovered.is_empty() {
        let all_well = recovered.iter().all(DeviceOutcome::is_success);
        return if all_well { Ok(()) } else { Err(exit_with(1)) };
    }
    let saved = change::before(&change.tree.root).map_err(|error| match error {
        RecordError::Missing(_) => fail(Failure::Usage, error.to_string()),
        RecordError::Io { .. } | RecordError::Unusable { .. } => error.into(),
    })?;
    let planned = plans(change, |observed| saved.devices.get(&observed.device.address).cloned())?;
    perform(change, &planned)
}

/// Takes back a change whose process was killed; returns the outcome of each card. A record of no use is a note: the
/// next change writes it anew.
fn recover(change: &DeviceChangeArgs) -> Result<Vec<DeviceOutcome>> {
    if change.plan.dry_run {
        return Ok(Vec::new());
    }
    let root = &change.tree.root;
    let machine = SysfsRoot::new(root);
    match while_doing("changing a card", || change::recover(&machine, change.wait, root)) {
        Ok(outcomes) => {
            for (device, outcome) in &outcomes {
                let device = plain(device);
                let sentence = plain(&sentence(outcome));
                note!("{device}: a former change was cut short, and is taken back: {sentence}");
            }
            Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
        }
        Err(error @ RecordError::Unusable { .. }) => {
            note!("note: {}", plain(&error.to_string()));
            Ok(Vec::new())
        }
        Err(error) => Err(error.into()),
    }
}

fn run_vyos(args: &DeviceVyosArgs) -> Result<()> {
    let change = &args.change;
    let root = open(&change.tree)?;
    let devices = observe(&change.tree);
    let text = match &args.file {
        Some(file) if file == Path::new("-") => io::read_to_string(io::stdin())?,
        Some(file) => fs::read_to_string(file).with_context(|| file.display().to_string())?,
        None if args.words.is_empty() => {
            let commands = vyos::commands(&devices);
            return commands.iter().try_for_each(|command| output::print(&format!("{command}\n")));
        }
        None => args.words.join(" "),
    };
    let commands = vyos::parse(&text).map_err(|error| fail(Failure::Usage, error.to_string()))?;
    for command in commands {
        match command {
            VyosCommand::Session => {}
            VyosCommand::Show(what) => {
                let shown = vyos::show(&what, &devices, &root);
                output::print(&shown.map_err(|error| fail(Failure::Usage, error.to_string()))?)?;
            }
            VyosCommand::Set => {
                perform(change, &plans(change, |_| Some(vyos::settings_of_set()))?)?
            }
            VyosCommand::Delete => {
                perform(change, &plans(change, |_| Some(vyos::settings_of_delete()))?)?
            }
        }
    }
    Ok(())
}
