// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! All sections of a machine as one report. Names of fields carry their units (`_khz`, `_bytes`); the JSON schema is
//! `docs/reference/inspect.schema.json`.

use millrace_hostfs::Root;
use schemars::JsonSchema;
use serde::Serialize;

use crate::accelerators::{self, Accelerators};
use crate::cpu::{self, Cpu};
use crate::kernel::{self, Kernel};
use crate::libcrypto::{self, Libraries, Timed};
use crate::machine::{self, Machine};
use crate::network::{self, Network};
use crate::offload_status::Used;
use crate::qat::{self, Qat};
use crate::section::Section;

/// All facts about a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Version of this format; it grows when a field changes its meaning or disappears
    pub format: u32,
    /// True for the machine itself, false for a folder or bundle
    pub live: bool,
    /// Maker, system, kernel, memory
    pub machine: Section<Machine>,
    /// The processors
    pub cpu: Section<Cpu>,
    /// The crypto libraries
    pub libcrypto: Section<Libraries>,
    /// The implementations that the kernel prefers
    pub kernel: Section<Kernel>,
    /// Intel QAT
    pub qat: Section<Qat>,
    /// Other accelerators
    pub accelerators: Section<Accelerators>,
    /// Cryptography in the network
    pub network: Section<Network>,
}

impl Report {
    /// The current version of the JSON format.
    pub const FORMAT: u32 = 1;

    /// Reads all sections.
    #[must_use]
    pub fn of(root: &Root) -> Self {
        let cpu = cpu::section(root);
        Self {
            format: Self::FORMAT,
            live: root.is_live(),
            machine: machine::section(root),
            libcrypto: libcrypto::section(root, cpu.known.as_ref()),
            cpu,
            kernel: kernel::section(root),
            qat: qat::section(root),
            accelerators: accelerators::section(root),
            network: network::section(root),
        }
    }
}

/// The JSON of `millrace inspect`: all sections, or those of one part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(title = "Report")]
pub struct ReportParts {
    /// Version of this format; it grows when a field changes its meaning or disappears
    pub format: u32,
    /// True for the machine itself, false for a folder or bundle
    pub live: bool,
    /// Maker, system, kernel, memory
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<Section<Machine>>,
    /// The processors
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Section<Cpu>>,
    /// The crypto libraries
    #[serde(skip_serializing_if = "Option::is_none")]
    pub libcrypto: Option<Section<Libraries>>,
    /// Speeds measured with `openssl speed` (`inspect openssl --timed`)
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timed: Option<Section<Vec<Timed>>>,
    /// The implementations that the kernel prefers
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Section<Kernel>>,
    /// Intel QAT
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qat: Option<Section<Qat>>,
    /// Other accelerators
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerators: Option<Section<Accelerators>>,
    /// Cryptography in the network
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Section<Network>>,
    /// Whether a device serves each tunnel and server (`inspect used`)
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<Section<Used>>,
}

impl ReportParts {
    /// No section of a machine.
    #[must_use]
    pub fn none(root: &Root) -> Self {
        Self { format: Report::FORMAT, live: root.is_live(), ..Self::default() }
    }
}

impl From<Report> for ReportParts {
    fn from(report: Report) -> Self {
        Self {
            format: report.format,
            live: report.live,
            machine: Some(report.machine),
            cpu: Some(report.cpu),
            libcrypto: Some(report.libcrypto),
            timed: None,
            kernel: Some(report.kernel),
            qat: Some(report.qat),
            accelerators: Some(report.accelerators),
            network: Some(report.network),
            used: None,
        }
    }
}
