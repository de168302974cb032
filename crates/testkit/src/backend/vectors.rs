// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Known answers in `vectors` at the root of the repository, from C2SP/wycheproof and from
//! draft-irtf-cfrg-rsa-guidance.

use std::path::Path;

use serde_json::Value;

/// One file of known answers in Wycheproof's format.
#[derive(Clone, Debug)]
pub struct Vectors {
    /// Groups of tests, each with one key.
    pub groups: Vec<Value>,
    /// Number of tests in all groups.
    pub number_of_tests: usize,
}

impl Vectors {
    /// Loads `vectors/wycheproof/<name>_test.json`.
    ///
    /// # Panics
    /// If the file is missing, has another format, or has fewer tests than it announces.
    #[must_use]
    pub fn wycheproof(name: &str) -> Self {
        Self::load(&format!("wycheproof/{name}_test.json"))
    }

    /// Loads the known answers of implicit rejection.
    ///
    /// # Panics
    /// As [`Self::wycheproof`].
    #[must_use]
    pub fn implicit_rejection() -> Self {
        Self::load("rsa_guidance/implicit_rejection_test.json")
    }

    fn load(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors").join(name);
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file: Value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let groups = file["testGroups"].as_array().expect("a list of groups").clone();
        let number_of_tests = groups.iter().map(|group| tests(group).len()).sum();
        assert_eq!(file["numberOfTests"].as_u64(), u64::try_from(number_of_tests).ok(), "{name}");
        Self { groups, number_of_tests }
    }
}

/// The tests of a group.
///
/// # Panics
/// If there is no list of tests.
#[must_use]
pub fn tests(group: &Value) -> &[Value] {
    group["tests"].as_array().expect("a list of tests")
}

/// A field of hexadecimal digits.
///
/// # Panics
/// If there is no such field.
#[must_use]
pub fn bytes(value: &Value, field: &str) -> Vec<u8> {
    hex::decode(text(value, field)).expect("hexadecimal digits")
}

/// A text field.
///
/// # Panics
/// If there is no such field.
#[must_use]
pub fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("no field {field}"))
}
