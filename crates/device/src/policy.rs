// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `devices.toml`: what the cards of a machine shall be, for every start of the machine.

use std::collections::BTreeMap;

use millrace_inspect::qat::formats::is_bus_address;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::settings::DeviceSettings;

/// A policy with every key, as `millrace sample devices` prints it.
pub const SAMPLE: &str = include_str!("../devices.toml");

/// Bound on the file, in bytes: a thousand devices have 100 KiB.
pub const MAX_POLICY_BYTES: usize = 256 * 1024;

/// Settings that the devices of a machine shall have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DevicePolicy {
    /// Settings of every QAT device.
    pub qat: DeviceSettings,
    /// Settings of single devices, by bus address; they override those of every device.
    pub device: BTreeMap<String, DeviceSettings>,
}

/// Why a policy cannot be used.
#[derive(Debug, Error)]
pub enum PolicyError {
    /// Invalid TOML, an unknown key or a wrong value, with its position.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// A section of something that is not a device.
    #[error(
        "line {line}: [device.{name:?}] is not the bus address of a device, like \"0000:6b:00.0\": `millrace device \
         list` prints them"
    )]
    Address {
        /// Line of the section.
        line: usize,
        /// The value in that line.
        name: String,
    },
}

impl DevicePolicy {
    /// Parses a policy.
    ///
    /// # Errors
    /// The mistake, its line, and a correction.
    pub fn from_toml(text: &str) -> Result<Self, PolicyError> {
        let policy: Self = toml::from_str(text)?;
        if let Some(name) = policy.device.keys().find(|name| !is_bus_address(name)) {
            let line = text.lines().position(|line| line.contains(name.as_str()));
            return Err(PolicyError::Address {
                line: line.map_or(1, |at| at + 1),
                name: name.clone(),
            });
        }
        Ok(policy)
    }

    /// The text of the policy.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // Plain tables of words and numbers: there is nothing that TOML cannot write.
        toml::to_string(self).unwrap_or_default()
    }

    /// Settings that one device shall have.
    #[must_use]
    pub fn of(&self, address: &str) -> DeviceSettings {
        let own = self.device.get(address).cloned().unwrap_or_default();
        own.or(&self.qat)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::settings::{DeviceState, FunctionDriver};

    #[test]
    fn sample_has_every_key_and_a_device_comes_before_all() {
        let policy = DevicePolicy::from_toml(SAMPLE).expect("the sample");
        assert_eq!(policy, DevicePolicy::default(), "every key is a comment");
        let all: String = SAMPLE
            .lines()
            .map(|line| line.strip_prefix("#: ").unwrap_or(line).to_owned() + "\n")
            .collect();
        let policy = DevicePolicy::from_toml(&all).expect("every key");
        let settings = policy.of("0000:6b:00.0");
        assert_eq!(settings.services.map(String::from).as_deref(), Some("sym;asym"));
        assert_eq!(settings.function_driver, Some(FunctionDriver::VfioPci), "from [qat]");
        let other = policy.of("0000:70:00.0");
        assert_eq!(
            (other.state, other.virtual_functions, other.auto_reset),
            (Some(DeviceState::Up), Some(16), Some(true))
        );
        assert_eq!(DevicePolicy::from_toml(&policy.to_toml()).expect("its own text"), policy);
    }

    #[test]
    fn mistakes_are_named_with_their_line_and_a_remedy() {
        for (text, line, remedy) in [
            ("[qat]\nservices = \"cy\"\n", "line 2", "name one of"),
            ("[qat]\n\nservice = \"asym\"\n", "line 3", "services"),
            ("[qat]\nstate = \"on\"\n", "line 2", "`up` or `down`"),
            ("[qat]\nvirtual-functions = -1\n", "line 2", "u32"),
            ("[device.\"6b:00\"]\n", "line 1", "millrace device list"),
            ("[gpu]\n", "line 1", "qat"),
            ("[qat\n", "line 1", ""),
        ] {
            let error = DevicePolicy::from_toml(text).expect_err("a mistake").to_string();
            assert!(error.contains(line) && error.contains(remedy), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_policy_or_an_error(text in "[\\[\\]a-z\".= 0-9:\n-]{0,200}") {
            if let Ok(policy) = DevicePolicy::from_toml(&text) {
                prop_assert_eq!(DevicePolicy::from_toml(&policy.to_toml()).expect("its own text"), policy);
            }
        }
    }
}
