// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! devices.toml and commands of VyOS: any text is a policy or commands, or an error that names a line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_device::policy::DevicePolicy;
use millrace_device::vyos;

fuzz_target!(|text: &str| {
    if let Ok(policy) = DevicePolicy::from_toml(text) {
        let again = DevicePolicy::from_toml(&policy.to_toml());
        assert_eq!(again.ok().as_ref(), Some(&policy));
        let _ = policy.of("0000:6b:00.0");
    }
    if let Err(error) = vyos::parse(text) {
        assert!(error.line >= 1 && error.line <= text.lines().count());
    }
});
