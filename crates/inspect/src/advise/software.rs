// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Installed versions of the programs to configure, from the package database.
//!
//! A program refuses a whole configuration for one unknown setting, so the rules use only features that the
//! installed version is known to have.

use millrace_hostfs::Root;
use schemars::JsonSchema;
use serde::Serialize;

use crate::libcrypto::version_numbers;
use crate::section::{Section, SectionReader};

/// Package databases: of Debian (also Ubuntu, VyOS), OpenWrt, and Alpine.
const DATABASES: [&str; 3] = ["var/lib/dpkg/status", "usr/lib/opkg/status", "lib/apk/db/installed"];

/// Debian's mark of a package that is removed except for its configuration.
const REMOVED: &str = "Status: deinstall";

/// Longest version that is accepted, in bytes: Debian's longest have about 30. The text goes into the report.
const MAX_VERSION: usize = 64;

/// Versions; none if a program is not installed or no database lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct InstalledSoftware {
    /// strongSwan
    pub strongswan: Option<String>,
    /// OpenVPN
    pub openvpn: Option<String>,
    /// nginx
    pub nginx: Option<String>,
    /// HAProxy
    pub haproxy: Option<String>,
}

/// Reads the package databases.
#[must_use]
pub fn section(root: &Root) -> Section<InstalledSoftware> {
    let mut reader = SectionReader::new(root);
    let mut software = InstalledSoftware::default();
    for database in DATABASES {
        // Only these lines: a bundle must not list the other packages of a machine.
        let words =
            ["strongswan", "libcharon", "openvpn", "nginx", "haproxy", REMOVED, "Version: ", "V:"];
        for (package, version) in packages(&reader.lines_with_if_there(database, &words)) {
            let place = match package {
                "openvpn" | "openvpn-openssl" | "openvpn-mbedtls" => &mut software.openvpn,
                "nginx" | "nginx-core" | "nginx-full" | "nginx-ssl" => &mut software.nginx,
                "haproxy" => &mut software.haproxy,
                "strongswan" | "libstrongswan" | "strongswan-charon" | "strongswan-swanctl" => {
                    &mut software.strongswan
                }
                _ => continue,
            };
            place.get_or_insert_with(|| version.to_owned());
        }
    }
    reader.section(Some(software))
}

/// Names and versions, in lines of `Package:` and `Version:` (`P:` and `V:` on Alpine).
fn packages(lines: &[String]) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut package = None;
    for line in lines {
        if let Some(name) = either(line, "Package: ", "P:") {
            package = Some(name);
        } else if line.starts_with(REMOVED) {
            package = None;
        } else if let Some(version) = either(line, "Version: ", "V:") {
            // Debian's epoch is not part of the program's version.
            let version = version.split_once(':').map_or(version, |(_, rest)| rest);
            if let Some(package) = package.take()
                && version.len() <= MAX_VERSION
            {
                found.push((package, version));
            }
        }
    }
    found
}

fn either<'a>(line: &'a str, one: &str, other: &str) -> Option<&'a str> {
    let rest = line.strip_prefix(one).or_else(|| line.strip_prefix(other))?;
    Some(rest.trim())
}

/// Whether a version is known and at least `wanted`.
pub(crate) fn since(version: Option<&str>, wanted: [u32; 3]) -> bool {
    version.is_some_and(|version| version_numbers(version) >= wanted.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_belongs_to_the_package_above() {
        let text = "Package: openvpn\nVersion: 2:2.6.14-1\nVersion: 9\nPackage: nginx\nVersion: 1.22.1-9\nPackage: strongswan\nStatus: deinstall ok config-files\nVersion: 5.9\nP:haproxy\nV:3.0.1-r0\n";
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        assert_eq!(
            packages(&lines),
            [("openvpn", "2.6.14-1"), ("nginx", "1.22.1-9"), ("haproxy", "3.0.1-r0")]
        );
    }

    #[test]
    fn versions_compare_by_numbers() {
        assert!(since(Some("6.13.0-rc1"), [6, 13, 0]));
        assert!(since(Some("6.12.48+deb13"), [6, 12, 48]));
        assert!(!since(Some("6.9"), [6, 13, 0]));
        assert!(!since(Some("99999999999999999999"), [1, 0, 0]));
        assert!(!since(None, [0, 0, 0]));
    }
}
