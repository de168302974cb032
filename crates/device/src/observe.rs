// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The devices of a machine. `millrace-inspect` reads them; this module joins physical devices with their virtual
//! functions, and finds the devices that a command names.

use millrace_hostfs::Root;
use millrace_inspect::kernel::blocked;
use millrace_inspect::qat::formats::full_address;
use millrace_inspect::qat::ids::Generation;
use millrace_inspect::qat::{self, FunctionHolder, QatDevice};
use schemars::JsonSchema;
use serde::Serialize;
use thiserror::Error;

use crate::settings::{DeviceSettings, DeviceState, FunctionDriver};

/// A physical device and its virtual functions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Observed {
    /// Its number among the physical devices of this machine, by bus address; VyOS calls it `qat_devN`
    pub number: usize,
    /// The device as `inspect` reports it
    pub device: QatDevice,
    /// Its virtual functions, by bus address
    pub functions: Vec<ObservedFunction>,
    /// The lines of this machine that keep its driver's module out; empty for a device with a driver
    pub kept_out_by: Vec<String>,
}

/// A virtual function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ObservedFunction {
    /// Bus address
    pub address: String,
    /// Its driver; null if it has none
    pub driver: Option<String>,
    /// Number of its IOMMU group, which is its file in /dev/vfio; null without an IOMMU
    pub group: Option<String>,
    /// The processes that have it open; root sees all
    pub holders: Vec<FunctionHolder>,
}

/// Reads the devices.
#[must_use]
pub fn observe(root: &Root) -> Vec<Observed> {
    let all = qat::section(root).known.unwrap_or_default().devices;
    let (functions, physical): (Vec<QatDevice>, Vec<QatDevice>) =
        all.into_iter().partition(|device| device.virtual_function);
    let is_driven = |device: &QatDevice| device.driver.is_some();
    let blocked = if physical.iter().all(is_driven) { Vec::new() } else { blocked::of_root(root) };
    let mut devices = Vec::new();
    for (number, device) in physical.into_iter().enumerate() {
        let own = functions.iter().filter(|one| one.parent.as_ref() == Some(&device.address)).map(
            |function| ObservedFunction {
                address: function.address.clone(),
                driver: function.driver.clone(),
                group: function.group.clone(),
                holders: function.holders.clone(),
            },
        );
        let module = (!is_driven(&device)).then(|| device.module());
        let lines = blocked.iter().filter(|line| module.as_ref() == Some(&line.module));
        let kept_out_by = lines.map(|line| line.by.clone()).collect();
        devices.push(Observed { number, functions: own.collect(), device, kept_out_by });
    }
    devices
}

impl Observed {
    /// Name of the device in VyOS.
    #[must_use]
    pub fn name(&self) -> String {
        format!("qat_dev{}", self.number)
    }

    /// Whether sysfs configures it: drivers of the kernel's tree from generation 4 on.
    #[must_use]
    pub fn is_configured_by_sysfs(&self) -> bool {
        match self.device.generation {
            Generation::Gen1 | Generation::Gen2 => false,
            Generation::Gen4 | Generation::Gen6 => true,
        }
    }

    /// State of the device, as settings; unknown or mixed values are `None`.
    #[must_use]
    pub fn settings(&self) -> DeviceSettings {
        let state = self.device.up.map(|up| if up { DeviceState::Up } else { DeviceState::Down });
        let driver = |driver: FunctionDriver| {
            let mut functions = self.functions.iter();
            functions.all(|function| function.driver.as_deref() == driver.name())
        };
        let drivers = [FunctionDriver::VfioPci, FunctionDriver::None];
        DeviceSettings {
            services: self.device.services.join(";").parse().ok(),
            state,
            virtual_functions: self.device.functions.map(|functions| functions.enabled),
            function_driver: drivers
                .into_iter()
                .find(|candidate| !self.functions.is_empty() && driver(*candidate)),
            auto_reset: self.device.resets_itself,
        }
    }

    /// The processes that have one of its functions open.
    pub fn holders(&self) -> impl Iterator<Item = (&ObservedFunction, &FunctionHolder)> {
        let functions = self.functions.iter();
        functions.flat_map(|function| function.holders.iter().map(move |holder| (function, holder)))
    }
}

/// A name that is not a device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no device {name:?}: {}", if .known.is_empty() {
    "this machine has no QAT device with a driver (`millrace doctor` says why)".to_owned()
} else {
    format!("name one of {}, or all", .known.join(", "))
})]
pub struct NoSuchDevice {
    /// The given name.
    pub name: String,
    /// The devices that there are.
    pub known: Vec<String>,
}

/// The devices that a name means: a bus address with or without its domain, `qat_devN`, or `all`.
pub fn find<'a>(devices: &'a [Observed], name: &str) -> Result<Vec<&'a Observed>, NoSuchDevice> {
    let is_named = |observed: &&Observed| {
        name == "all" || observed.device.address == full_address(name) || observed.name() == name
    };
    let found: Vec<&Observed> = devices.iter().filter(is_named).collect();
    if found.is_empty() {
        let known = devices.iter().map(|observed| observed.device.address.clone());
        return Err(NoSuchDevice { name: name.to_owned(), known: known.collect() });
    }
    Ok(found)
}
