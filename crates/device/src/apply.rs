// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Does the steps of a plan, verifies what the machine then says, and goes back to what was if a step fails or the
//! device does not come up.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use millrace_inspect::qat::formats::FirmwareHeartbeat;
use schemars::JsonSchema;
use serde::Serialize;
use thiserror::Error;

use crate::observe::Observed;
use crate::plan::{DevicePlan, DeviceStep, PlanError, plan};
use crate::settings::{DeviceSettings, DeviceState, FunctionDriver};

/// Time between two looks at the machine: a step takes hardly longer than the device needs.
const PAUSE: Duration = Duration::from_millis(20);

/// Writes to a machine's sysfs, and reads what it has become.
pub trait Sysfs {
    /// Writes a value to an existing file, by its path below the root, in one call.
    ///
    /// # Errors
    /// The kernel has no such file, or refused the value. [`Sysfs::observe`] shows what the device is then.
    fn write(&self, path: &str, value: &str) -> io::Result<()>;

    /// Reads the present state of the devices. Empty if the machine cannot be read.
    fn observe(&self) -> Vec<Observed>;
}

/// A folder that is the root of a machine: `/`, or one of a test.
#[derive(Debug)]
pub struct SysfsRoot {
    root: PathBuf,
}

impl SysfsRoot {
    /// The machine with this root.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }
}

impl Sysfs for SysfsRoot {
    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        // Not created: a file that the kernel does not have is an error, not a new file.
        let mut file = OpenOptions::new().write(true).truncate(true).open(self.root.join(path))?;
        file.write_all(format!("{value}\n").as_bytes())
    }

    fn observe(&self) -> Vec<Observed> {
        millrace_hostfs::Root::open(&self.root)
            .map_or_else(|_| Vec::new(), |root| crate::observe::observe(&root))
    }
}

/// State of a device after the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum DeviceOutcome {
    /// The device was as planned before.
    Unchanged,
    /// The device is as planned.
    Applied,
    /// The device is as it was before the run.
    RolledBack {
        /// Error of the step that failed
        reason: String,
    },
    /// The device is neither as planned nor as before.
    Broken {
        /// Error of the step that failed
        reason: String,
        /// Error of the way back
        then: String,
    },
}

impl DeviceOutcome {
    /// Whether the device is what the plan says.
    #[must_use]
    pub fn is_success(&self) -> bool {
        match self {
            Self::Unchanged | Self::Applied => true,
            Self::RolledBack { .. } | Self::Broken { .. } => false,
        }
    }
}

/// Does a plan within `limit` per wait. The state before is in the plan.
#[must_use]
pub fn apply(sysfs: &dyn Sysfs, planned: &DevicePlan, limit: Duration) -> DeviceOutcome {
    if planned.steps.is_empty() {
        return DeviceOutcome::Unchanged;
    }
    let Err(reason) = perform(sysfs, planned, limit) else {
        return DeviceOutcome::Applied;
    };
    match roll_back(sysfs, planned, limit) {
        Ok(()) => DeviceOutcome::RolledBack { reason: reason.to_string() },
        Err(then) => DeviceOutcome::Broken { reason: reason.to_string(), then: then.to_string() },
    }
}

fn roll_back(sysfs: &dyn Sysfs, planned: &DevicePlan, limit: Duration) -> Result<(), StepError> {
    let now = now(sysfs, &planned.device)?;
    let back = plan(&now, &planned.before)?;
    perform(sysfs, &back, limit)
}

/// Steps, then verification.
fn perform(sysfs: &dyn Sysfs, planned: &DevicePlan, limit: Duration) -> Result<(), StepError> {
    for step in &planned.steps {
        perform_step(sysfs, &planned.device, step, limit)?;
    }
    wait(sysfs, &planned.device, limit, |device| differences(device, &planned.after))
}

fn perform_step(
    sysfs: &dyn Sysfs,
    device: &str,
    step: &DeviceStep,
    limit: Duration,
) -> Result<(), StepError> {
    let folder = format!("sys/bus/pci/devices/{device}");
    let write = |file: String, value: &str| {
        sysfs.write(&file, value).map_err(|source| {
            let value = value.to_owned();
            StepError::Write { file, value, source }
        })
    };
    match step {
        DeviceStep::VirtualFunctions(count) => {
            write(format!("{folder}/sriov_numvfs"), &count.to_string())?;
            wait(sysfs, device, limit, |found| {
                let appeared = found.functions.len();
                (appeared != *count as usize)
                    .then(|| format!("{appeared} virtual functions appeared, not {count}"))
                    .into_iter()
                    .collect()
            })
        }
        DeviceStep::State(state) => {
            write(format!("{folder}/qat/state"), state.text())?;
            let wanted = DeviceSettings { state: Some(*state), ..DeviceSettings::default() };
            wait(sysfs, device, limit, |found| differences(found, &wanted))
        }
        DeviceStep::Services(services) => {
            write(format!("{folder}/qat/cfg_services"), services.text())
        }
        DeviceStep::AutoReset(on) => {
            write(format!("{folder}/qat/auto_reset"), if *on { "on" } else { "off" })
        }
        DeviceStep::FunctionDriver(driver) => {
            for function in now(sysfs, device)?.functions {
                let own = format!("sys/bus/pci/devices/{}", function.address);
                if function.driver.as_deref() == driver.name() {
                    continue;
                }
                write(format!("{own}/driver_override"), driver.name().unwrap_or_default())?;
                if function.driver.is_some() {
                    write(format!("{own}/driver/unbind"), &function.address)?;
                }
                match driver {
                    FunctionDriver::VfioPci => {
                        write("sys/bus/pci/drivers_probe".to_owned(), &function.address)?
                    }
                    FunctionDriver::None => {}
                }
            }
            Ok(())
        }
    }
}

/// Why a step, or the verification after it, failed.
#[derive(Debug, Error)]
enum StepError {
    #[error("{value:?} to /{file}: {source}{}", advice(source))]
    Write { file: String, value: String, source: io::Error },
    #[error("{0} is gone: see dmesg")]
    Gone(String),
    #[error("{device} after {} s: {}", limit.as_secs(), problems.join("; "))]
    Timeout { device: String, limit: Duration, problems: Vec<String> },
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Advice on an error that drivers give.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; run it as root",
        io::ErrorKind::NotFound => "; this kernel's driver has no such file",
        io::ErrorKind::ResourceBusy => {
            "; end the programs that use its virtual functions (millrace device list)"
        }
        io::ErrorKind::InvalidInput => {
            "; the driver refuses it: see dmesg, and whether this card has that service"
        }
        _ => "",
    }
}

fn now(sysfs: &dyn Sysfs, device: &str) -> Result<Observed, StepError> {
    let found = sysfs.observe().into_iter().find(|observed| observed.device.address == device);
    found.ok_or_else(|| StepError::Gone(device.to_owned()))
}

/// Waits until the device differs in nothing.
fn wait(
    sysfs: &dyn Sysfs,
    device: &str,
    limit: Duration,
    differs: impl Fn(&Observed) -> Vec<String>,
) -> Result<(), StepError> {
    let start = Instant::now();
    loop {
        let problems =
            now(sysfs, device).map_or_else(|gone| vec![gone.to_string()], |found| differs(&found));
        if problems.is_empty() {
            return Ok(());
        }
        if start.elapsed() >= limit {
            return Err(StepError::Timeout { device: device.to_owned(), limit, problems });
        }
        thread::sleep(PAUSE);
    }
}

/// Differences between a device and the wanted settings, one sentence each.
#[must_use]
pub fn differences(device: &Observed, wanted: &DeviceSettings) -> Vec<String> {
    let DeviceSettings { services, state, virtual_functions, function_driver, auto_reset } = wanted;
    let is = device.settings();
    let mut found = Vec::new();
    if let Some(services) = services
        && !services.are(&device.device.services)
    {
        found
            .push(format!("its services are {}, not {services}", device.device.services.join(";")));
    }
    if let Some(state) = state
        && is.state != Some(*state)
    {
        found.push(format!("it is not {}", state.text()));
    }
    if *state == Some(DeviceState::Up) && device.device.heartbeat == Some(FirmwareHeartbeat::Silent)
    {
        found.push("its firmware does not answer the heartbeat".to_owned());
    }
    if let Some(count) = virtual_functions
        && is.virtual_functions != Some(*count)
    {
        let has = is.virtual_functions.unwrap_or(0);
        found.push(format!("it has {has} virtual functions, not {count}"));
    }
    if let Some(driver) = function_driver {
        let others: Vec<&str> = device
            .functions
            .iter()
            .filter(|function| function.driver.as_deref() != driver.name())
            .map(|function| function.address.as_str())
            .collect();
        if !others.is_empty() {
            let name = driver.name().unwrap_or("none");
            found.push(format!("{} have another driver than {name}", others.join(", ")));
        }
    }
    if let Some(reset) = auto_reset
        && is.auto_reset != Some(*reset)
    {
        found.push(format!("auto_reset is not {}", if *reset { "on" } else { "off" }));
    }
    found
}
