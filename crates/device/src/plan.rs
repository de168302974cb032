// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The steps from what a device is to what it shall be.
//!
//! The order is the kernel's (`adf_sysfs.c`, `adf_sriov.c`, `pci-sysfs.c` of Linux 6.18): services change only while
//! a device is down, going down takes its virtual functions with it, and their number changes only from 0.

use schemars::JsonSchema;
use serde::Serialize;
use thiserror::Error;

use crate::observe::Observed;
use crate::settings::{DeviceSettings, DeviceState, FunctionDriver, Services};

/// One change of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceStep {
    /// Makes this number of virtual functions; 0 removes all.
    VirtualFunctions(u32),
    /// Starts or stops the device.
    State(DeviceState),
    /// Sets what it computes.
    Services(Services),
    /// Sets whether the kernel resets it after a fatal error.
    AutoReset(bool),
    /// Gives its virtual functions a driver.
    FunctionDriver(FunctionDriver),
}

/// The steps of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DevicePlan {
    /// Bus address
    pub device: String,
    /// Settings before the change
    pub before: DeviceSettings,
    /// Settings after the change
    pub after: DeviceSettings,
    /// The steps, in order; none if it is so already
    pub steps: Vec<DeviceStep>,
    /// The processes that lose a virtual function by that
    pub ends: Vec<String>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// Generation 1 or 2.
    #[error(
        "{device} is of a generation that sysfs does not configure: edit its /etc/*_dev*.conf and run `adf_ctl \
         restart` (Intel's driver package)"
    )]
    OldGeneration {
        /// Bus address.
        device: String,
    },
    /// No driver, so no files.
    #[error("{device} has no driver: run `modprobe {module}`")]
    NoDriver {
        /// Bus address.
        device: String,
        /// The module to load.
        module: String,
    },
    /// No driver, because a line keeps its module out.
    #[error(
        "{device} has no driver, since a line keeps {module} out, as mitigations of published holes do ({line}): read \
         why before you remove it"
    )]
    DriverKeptOut {
        /// Bus address.
        device: String,
        /// The module of its driver.
        module: String,
        /// The line, with its file.
        line: String,
    },
    /// The driver has no such file.
    #[error(
        "{device}: this kernel has no file qat/{file}: it needs Linux {since} or later (`uname -r` prints yours)"
    )]
    NoFile {
        /// Bus address.
        device: String,
        /// Name of the file in the device's folder `qat`.
        file: &'static str,
        /// The first version with it.
        since: &'static str,
    },
    /// More virtual functions than the device has.
    #[error(
        "{device} has at most {possible} virtual functions, not {wanted}: lower virtual-functions"
    )]
    TooManyFunctions {
        /// Bus address.
        device: String,
        /// Requested number of virtual functions.
        wanted: u32,
        /// Number of virtual functions that the device has.
        possible: u32,
    },
    /// Functions of a device that is down.
    #[error(
        "{device} shall be down and have {wanted} virtual functions: a device that is down has none"
    )]
    FunctionsOfDown {
        /// Bus address.
        device: String,
        /// Requested number of virtual functions.
        wanted: u32,
    },
}

/// The steps that make `observed` what `wanted` says.
pub fn plan(observed: &Observed, wanted: &DeviceSettings) -> Result<DevicePlan, PlanError> {
    let before = observed.settings();
    check(observed, &before, wanted)?;
    let up = before.state == Some(DeviceState::Up);
    let stays_up = wanted.state.or(before.state) == Some(DeviceState::Up);
    let services =
        wanted.services.clone().filter(|services| !services.are(&observed.device.services));
    let goes_down = up && (services.is_some() || !stays_up);
    let enabled = before.virtual_functions.unwrap_or(0);
    let functions = if stays_up { wanted.virtual_functions.unwrap_or(enabled) } else { 0 };
    let removes = enabled > 0 && (goes_down || functions != enabled);
    let driver = wanted.function_driver.or(before.function_driver);
    let mut steps = Vec::new();
    if removes {
        steps.push(DeviceStep::VirtualFunctions(0));
    }
    if goes_down {
        steps.push(DeviceStep::State(DeviceState::Down));
    }
    steps.extend(services.map(DeviceStep::Services));
    if stays_up && (goes_down || !up) {
        steps.push(DeviceStep::State(DeviceState::Up));
    }
    let reset = wanted.auto_reset.filter(|reset| before.auto_reset != Some(*reset));
    steps.extend(reset.map(DeviceStep::AutoReset));
    let remaining = if removes { 0 } else { enabled };
    if functions != remaining {
        steps.push(DeviceStep::VirtualFunctions(functions));
    }
    let rebinds = functions != remaining || before.function_driver != driver;
    if functions > 0 && rebinds {
        steps.extend(driver.map(DeviceStep::FunctionDriver));
    }
    let unbinds = functions > 0 && before.function_driver != driver;
    let ends = observed.holders().filter(|_| removes || unbinds);
    Ok(DevicePlan {
        device: observed.device.address.clone(),
        ends: ends
            .map(|(function, holder)| {
                format!("{} ({}) has {}", holder.name, holder.pid, function.address)
            })
            .collect(),
        after: DeviceSettings {
            virtual_functions: before.virtual_functions.map(|_| functions),
            function_driver: driver.filter(|_| functions > 0),
            ..wanted.clone().or(&before)
        },
        before,
        steps,
    })
}

fn check(
    observed: &Observed,
    before: &DeviceSettings,
    wanted: &DeviceSettings,
) -> Result<(), PlanError> {
    let device = || observed.device.address.clone();
    if *wanted == DeviceSettings::default() {
        return Ok(());
    }
    if !observed.is_configured_by_sysfs() {
        return Err(PlanError::OldGeneration { device: device() });
    }
    if observed.device.driver.is_none() {
        let module = observed.device.module();
        return Err(match observed.kept_out_by.first() {
            Some(line) => PlanError::DriverKeptOut { device: device(), module, line: line.clone() },
            None => PlanError::NoDriver { device: device(), module },
        });
    }
    let files = [
        (
            wanted.state.is_some() || wanted.services.is_some(),
            before.state.is_some(),
            "state",
            "6.0",
        ),
        (wanted.services.is_some(), !observed.device.services.is_empty(), "cfg_services", "6.0"),
        (wanted.auto_reset.is_some(), before.auto_reset.is_some(), "auto_reset", "6.8"),
    ];
    if let Some((_, _, file, since)) = files.into_iter().find(|(wants, has, ..)| *wants && !has) {
        return Err(PlanError::NoFile { device: device(), file, since });
    }
    let possible = observed.device.functions.map_or(0, |functions| functions.possible);
    match wanted.virtual_functions {
        Some(wanted) if wanted > possible => {
            Err(PlanError::TooManyFunctions { device: device(), wanted, possible })
        }
        Some(count) if count > 0 && wanted.state == Some(DeviceState::Down) => {
            Err(PlanError::FunctionsOfDown { device: device(), wanted: count })
        }
        Some(_) | None => Ok(()),
    }
}

impl DeviceStep {
    /// Shell command for the step; the commands for virtual functions are per function.
    #[must_use]
    pub fn command(&self, device: &str) -> String {
        let folder = format!("/sys/bus/pci/devices/{device}");
        match self {
            Self::VirtualFunctions(count) => format!("echo {count} > {folder}/sriov_numvfs"),
            Self::State(state) => format!("echo {} > {folder}/qat/state", state.text()),
            Self::Services(services) => format!("echo '{services}' > {folder}/qat/cfg_services"),
            Self::AutoReset(on) => {
                format!("echo {} > {folder}/qat/auto_reset", if *on { "on" } else { "off" })
            }
            Self::FunctionDriver(FunctionDriver::VfioPci) => {
                format!(
                    "for f in {folder}/virtfn*; do driverctl --nosave set-override $(basename $(readlink $f)) vfio-pci; done"
                )
            }
            Self::FunctionDriver(FunctionDriver::None) => {
                format!(
                    "for f in {folder}/virtfn*; do basename $(readlink $f) > $f/driver/unbind; done"
                )
            }
        }
    }
}
