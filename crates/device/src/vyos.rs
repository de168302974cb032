// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The commands for QAT of VyOS, read and written: `set system acceleration qat`, `delete system acceleration qat`,
//! `show system acceleration qat [status | device qat_devN config | device qat_devN flows]`.

use std::fmt::Write as _;

use millrace_hostfs::{ATTRIBUTE_BYTES, Root};
use millrace_inspect::qat::formats::FirmwareHeartbeat;
use thiserror::Error;

use crate::observe::Observed;
use crate::settings::{DeviceSettings, DeviceState, Services};

/// A line of a VyOS configuration about acceleration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VyosCommand {
    /// All devices up, for the kernel's IPsec and for programs.
    Set,
    /// All devices down.
    Delete,
    /// Prints a state.
    Show(VyosShow),
    /// `configure`, `commit`, `save`, `exit`: a change here takes effect at once, so they say nothing more.
    Session,
}

/// Information to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VyosShow {
    /// Whether there are devices.
    Summary,
    /// Each device's state.
    Status,
    /// The configuration of a device.
    Config(String),
    /// The counters of a device.
    Flows(String),
}

/// A line that is not such a command.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {text:?} {problem}; {remedy}")]
pub struct VyosError {
    /// Number of the line, from 1.
    pub line: usize,
    /// The line.
    pub text: String,
    /// Fault of the line.
    pub problem: &'static str,
    /// The line to write instead.
    pub remedy: &'static str,
}

/// Bound on lines of one input: a configuration of VyOS has some thousands.
const MAX_LINES: usize = 100_000;

const SHOWS: &str = "write show system acceleration qat, or add: status, device qat_dev0 config, device qat_dev0 flows";

/// Reads commands, one a line. Empty lines and comments say nothing.
///
/// # Errors
/// The first line that is none, with what to write.
pub fn parse(text: &str) -> Result<Vec<VyosCommand>, VyosError> {
    let mut commands = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if at == MAX_LINES {
            return Err(VyosError {
                line: at + 1,
                text: String::new(),
                problem: "there are more than 100,000 lines",
                remedy: "give the lines with `acceleration qat` alone",
            });
        }
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let command = parse_line(line).map_err(|(problem, remedy)| VyosError {
            line: at + 1,
            text: line.chars().take(120).collect(),
            problem,
            remedy,
        })?;
        commands.push(command);
    }
    Ok(commands)
}

fn parse_line(line: &str) -> Result<VyosCommand, (&'static str, &'static str)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["configure" | "commit" | "save" | "exit"] => Ok(VyosCommand::Session),
        ["set", "system", "acceleration", "qat"] => Ok(VyosCommand::Set),
        ["delete", "system", "acceleration", "qat"] => Ok(VyosCommand::Delete),
        ["set" | "delete", "system", "acceleration", "qat", ..] => Err((
            "sets more than VyOS knows",
            "write set system acceleration qat alone; services and functions: millrace device services, virtual-functions",
        )),
        ["show", "system", "acceleration", "qat", rest @ ..] => match rest {
            [] => Ok(VyosCommand::Show(VyosShow::Summary)),
            ["status"] => Ok(VyosCommand::Show(VyosShow::Status)),
            ["device", name, "config"] => {
                Ok(VyosCommand::Show(VyosShow::Config((*name).to_owned())))
            }
            ["device", name, "flows"] => Ok(VyosCommand::Show(VyosShow::Flows((*name).to_owned()))),
            _ => Err(("shows something else", SHOWS)),
        },
        ["set" | "delete" | "show", ..] => Err((
            "is not about system acceleration qat",
            "leave such lines out: only those of accelerators are read here",
        )),
        _ => Err(("is not a command of VyOS", "write set, delete or show system acceleration qat")),
    }
}

/// Settings for `set system acceleration qat`: up, for the kernel's IPsec and for programs.
#[must_use]
pub fn settings_of_set() -> DeviceSettings {
    let services: Option<Services> = "sym;asym".parse().ok();
    DeviceSettings { services, state: Some(DeviceState::Up), ..DeviceSettings::default() }
}

/// Settings for `delete system acceleration qat`.
#[must_use]
pub fn settings_of_delete() -> DeviceSettings {
    DeviceSettings { state: Some(DeviceState::Down), ..DeviceSettings::default() }
}

/// The commands that make a machine with VyOS what this one is.
#[must_use]
pub fn commands(devices: &[Observed]) -> Vec<String> {
    let any_up = devices.iter().any(|device| device.device.up == Some(true));
    any_up.then(|| "set system acceleration qat".to_owned()).into_iter().collect()
}

/// The answer to a `show`.
pub fn show(
    what: &VyosShow,
    devices: &[Observed],
    root: &Root,
) -> Result<String, crate::observe::NoSuchDevice> {
    let named = |name: &str| crate::observe::find(devices, name).map(|found| found[0]);
    Ok(match what {
        VyosShow::Summary => summary(devices),
        VyosShow::Status => status(devices),
        VyosShow::Config(name) => config(named(name)?, root),
        VyosShow::Flows(name) => flows(named(name)?),
    })
}

fn summary(devices: &[Observed]) -> String {
    if devices.is_empty() {
        return "Intel QuickAssist Technology not detected\n\nNo QAT devices found on this system.\n".to_owned();
    }
    let mut text = "Intel QuickAssist Technology acceleration detected\n\nDevices:\n".to_owned();
    for device in devices {
        let ready = if is_ready(device) { "Ready" } else { "Not ready" };
        let _ = writeln!(text, "  {}: {ready}", device.name());
    }
    let any = devices.iter().any(is_ready);
    let _ = writeln!(text, "\nStatus: {}", if any { "Available" } else { "Not available" });
    text
}

fn is_ready(device: &Observed) -> bool {
    device.device.up == Some(true) && device.device.heartbeat != Some(FirmwareHeartbeat::Silent)
}

fn status(devices: &[Observed]) -> String {
    let mut text = "QAT Device Status:\n".to_owned();
    for device in devices {
        let QatDeviceLine { state, node, kind, services, functions } = QatDeviceLine::of(device);
        let _ = write!(
            text,
            "\nDevice {}:\n  State: {state}\n  Node Id: {node}\n  Device Type: {kind}\n  Services: {services}\n  \
             Virtual functions: {functions}\n",
            device.name()
        );
    }
    let active = devices.iter().filter(|device| device.device.up == Some(true)).count();
    let _ = write!(text, "\nTotal Devices: {}\nActive Devices: {active}\n", devices.len());
    text
}

/// The words of one device.
struct QatDeviceLine {
    state: &'static str,
    node: u32,
    kind: String,
    services: String,
    functions: u32,
}

impl QatDeviceLine {
    fn of(observed: &Observed) -> Self {
        let device = &observed.device;
        Self {
            state: match device.up {
                Some(true) => "up",
                Some(false) => "down",
                None => "unknown",
            },
            node: device.numa_node.unwrap_or(0),
            kind: device.model.to_lowercase(),
            services: device.services.join(";"),
            functions: device.functions.map_or(0, |functions| functions.enabled),
        }
    }
}

/// The driver's own configuration, or what sysfs says where there is none.
fn config(observed: &Observed, root: &Root) -> String {
    let folder = "sys/kernel/debug";
    let address = &observed.device.address;
    let own = root
        .names(folder)
        .into_iter()
        .find(|name| name.starts_with("qat_") && name.ends_with(address.as_str()));
    let text =
        own.and_then(|name| root.text(&format!("{folder}/{name}/dev_cfg"), ATTRIBUTE_BYTES).ok());
    text.unwrap_or_else(|| {
        let services = observed.device.services.join(";");
        let functions = observed.device.functions.map_or(0, |functions| functions.enabled);
        format!("[GENERAL]\nServicesEnabled = {services}\n\n[SRIOV]\nNumberVirtualFunctions = {functions}\n")
    })
}

/// The firmware counts requests and answers, no bytes and no kinds.
fn flows(observed: &Observed) -> String {
    let device = &observed.device;
    let mut text = format!("QAT Device {} Flow Statistics:\n\n", observed.name());
    if device.engines.is_empty() {
        text.push_str(
            "The firmware's counters cannot be read: run as root, with debugfs mounted.\n",
        );
        return text;
    }
    let _ = writeln!(text, "Firmware Operations:");
    for engine in &device.engines {
        let _ = writeln!(
            text,
            "  Engine {}: {} requests, {} responses",
            engine.engine, engine.requests, engine.responses
        );
    }
    let errors = device.errors.map_or(0, |errors| errors.nonfatal.saturating_add(errors.fatal));
    let _ = write!(
        text,
        "  Total Operations: {}\n  Not answered yet: {}\n\nErrors: {errors}\n",
        device.requests(),
        device.unanswered()
    );
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn commands_of_vyos_are_read() {
        let text = "configure\n# a comment\nset system acceleration qat\ncommit\nsave\n\n\
                    show system acceleration qat\nshow system acceleration qat status\n\
                    show system acceleration qat device qat_dev0 config\n  show  system acceleration qat device qat_dev1 flows \n\
                    delete system acceleration qat\n";
        let shown = |name: &str| name.to_owned();
        let expected = vec![
            VyosCommand::Session,
            VyosCommand::Set,
            VyosCommand::Session,
            VyosCommand::Session,
            VyosCommand::Show(VyosShow::Summary),
            VyosCommand::Show(VyosShow::Status),
            VyosCommand::Show(VyosShow::Config(shown("qat_dev0"))),
            VyosCommand::Show(VyosShow::Flows(shown("qat_dev1"))),
            VyosCommand::Delete,
        ];
        assert_eq!(parse(text), Ok(expected));
    }

    #[test]
    fn lines_past_the_bound_are_an_error_and_not_left_out() {
        assert!(parse(&"\n".repeat(MAX_LINES)).expect("read").is_empty());
        let error = parse(&"\n".repeat(MAX_LINES + 1)).expect_err("too many");
        assert!(error.problem.contains("more than 100,000"), "{error}");
    }

    #[test]
    fn other_lines_are_named_with_their_number_and_a_remedy() {
        for (text, line, remedy) in [
            ("set system acceleration qat services asym", 1, "millrace device services"),
            ("\n\nset vpn ipsec interface eth0", 3, "leave such lines out"),
            ("show system acceleration qat device qat_dev0", 1, "qat_dev0 config"),
            ("commit\nreload", 2, "show system acceleration qat"),
        ] {
            let error = parse(text).expect_err("no such command");
            assert_eq!(error.line, line, "{text}");
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_commands_or_an_error_with_its_line(text in "\\PC{0,200}(\n\\PC{0,40}){0,5}") {
            if let Err(error) = parse(&text) {
                prop_assert!(error.line <= text.lines().count());
            }
        }
    }
}
