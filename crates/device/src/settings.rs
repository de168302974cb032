// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Settings of a device. Each is optional: an omitted one stays as it is.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The values of `cfg_services`, each with what it is for.
///
/// Source: `Documentation/ABI/testing/sysfs-driver-qat` of Linux 6.18, without the orders that mean the same.
#[rustfmt::skip]
pub const SERVICES: [(&str, &str); 10] = [
    ("asym", "public-key operations: the backend qat, with twice as many instances"),
    ("sym;asym", "the kernel's crypto (IPsec, disks) and public-key operations"),
    ("sym", "symmetric ciphers in user space; nothing for the kernel"),
    ("dc", "compression"),
    ("dcc", "compression chained with hashes"),
    ("asym;dc", "public-key operations and compression"),
    ("sym;dc", "symmetric ciphers in user space and compression"),
    ("decomp", "decompression alone (6xxx)"),
    ("asym;decomp", "public-key operations and decompression (6xxx)"),
    ("sym;decomp", "symmetric ciphers and decompression (6xxx)"),
];

/// The services of a device: one of [`SERVICES`], in any order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct Services(String);

impl Services {
    /// Value of `cfg_services`.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Whether these services, as the kernel lists them, are the same. The order has no meaning.
    #[must_use]
    pub fn are(&self, listed: &[String]) -> bool {
        let mut own: Vec<&str> = self.0.split(';').collect();
        let mut listed: Vec<&str> = listed.iter().map(String::as_str).collect();
        own.sort_unstable();
        listed.sort_unstable();
        own == listed
    }
}

/// No device has these services.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there are no services {0:?}; name one of {known}", known = known_services())]
pub struct UnknownServices(String);

fn known_services() -> String {
    SERVICES.map(|(services, _)| services).join(", ")
}

impl FromStr for Services {
    type Err = UnknownServices;

    fn from_str(text: &str) -> Result<Self, UnknownServices> {
        let parts: Vec<String> =
            text.split([';', ',']).map(|part| part.trim().to_owned()).collect();
        let found = SERVICES
            .iter()
            .map(|(services, _)| Self((*services).to_owned()))
            .find(|services| services.are(&parts));
        found.ok_or_else(|| UnknownServices(text.to_owned()))
    }
}

impl TryFrom<String> for Services {
    type Error = UnknownServices;

    fn try_from(text: String) -> Result<Self, UnknownServices> {
        text.parse()
    }
}

impl From<Services> for String {
    fn from(services: Services) -> Self {
        services.0
    }
}

impl fmt::Display for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a device serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceState {
    /// The device serves.
    Up,
    /// The device does not serve, and its virtual functions are gone.
    Down,
}

impl DeviceState {
    /// Value of `state`.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// The driver of the virtual functions of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FunctionDriver {
    /// User space drives them: qatlib, and the backend qat.
    VfioPci,
    /// None: they wait for a virtual machine.
    None,
}

impl FunctionDriver {
    /// The name of the driver; none for none.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::VfioPci => Some("vfio-pci"),
            Self::None => None,
        }
    }
}

/// Wanted settings of a device. Settings that are `None` stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct DeviceSettings {
    /// Services that it computes
    #[serde(skip_serializing_if = "Option::is_none")]
    pub services: Option<Services>,
    /// Whether it serves
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<DeviceState>,
    /// Number of its virtual functions
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtual_functions: Option<u32>,
    /// Their driver
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function_driver: Option<FunctionDriver>,
    /// Whether the kernel resets it after a fatal error
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_reset: Option<bool>,
}

impl DeviceSettings {
    /// These settings, and those of `other` where this has none.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        let Self { services, state, virtual_functions, function_driver, auto_reset } = self;
        Self {
            services: services.or_else(|| other.services.clone()),
            state: state.or(other.state),
            virtual_functions: virtual_functions.or(other.virtual_functions),
            function_driver: function_driver.or(other.function_driver),
            auto_reset: auto_reset.or(other.auto_reset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_read_in_any_order_and_others_are_refused_with_the_list() {
        for (text, own) in [
            ("asym", "asym"),
            ("asym;sym", "sym;asym"),
            ("dc;asym", "asym;dc"),
            ("sym,asym", "sym;asym"),
        ] {
            assert_eq!(
                text.parse::<Services>().map(|found| found.text().to_owned()),
                Ok(own.to_owned())
            );
        }
        for text in ["", "cy", "sym;sym", "asym;dcc", "asym;", "ASYM"] {
            let error = text.parse::<Services>().expect_err("no such services").to_string();
            assert!(error.contains("name one of asym, sym;asym"), "{error}");
        }
    }
}
