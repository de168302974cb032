// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Settings that switch instructions off for programs that load OpenSSL: variables like `OPENSSL_ia32cap` in
//! the environment of services. Only lines with such a variable are read and kept in a bundle.

use millrace_hostfs::systemd;
use schemars::JsonSchema;
use serde::Serialize;

use crate::section::SectionReader;

/// A setting that switches instructions off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Mask {
    /// Name of the environment variable
    pub variable: String,
    /// The value that the file gives it
    pub value: String,
    /// The file that sets it
    pub file: String,
}

/// Variables that switch instructions off.
pub(super) const VARIABLES: &[&str] = &[
    "OPENSSL_ia32cap",
    "OPENSSL_armcap",
    "OPENSSL_ppccap",
    "OPENSSL_s390xcap",
    "OPENSSL_riscvcap",
];

/// Files that set environments.
const FILES: &[&str] =
    &["etc/environment", "etc/profile", "etc/rc.local", "etc/systemd/system.conf"];
/// Folders of such files; for systemd also their subfolders `*.d`.
const FOLDERS: &[&str] = &[
    "etc/profile.d",
    "etc/default",
    "etc/sysconfig",
    "etc/environment.d",
    "etc/init.d",
    "etc/systemd/system",
    "usr/local/lib/systemd/system",
];
/// Bound on files; an ordinary system has fewer.
const MAX_FILES: usize = 2_048;
/// Longest value that is reported, in characters: a mask with all five words of OpenSSL 3.5 has 99.
const MAX_VALUE: usize = 120;

pub(super) fn find(reader: &mut SectionReader<'_>) -> Vec<Mask> {
    let mut files: Vec<String> = FILES.iter().map(|file| (*file).to_owned()).collect();
    for folder in FOLDERS {
        if folder.ends_with("systemd/system") {
            files.extend(systemd::files_in(folder, |folder| reader.names(folder)));
        } else {
            files.extend(reader.names(folder).iter().map(|name| format!("{folder}/{name}")));
        }
    }
    let mut masks = Vec::new();
    for file in reader.first("files with variables of OpenSSL", files, MAX_FILES) {
        for line in reader.lines_with_if_there(&file, VARIABLES) {
            masks.extend(parse(&line).map(|(variable, value)| Mask {
                variable,
                value,
                file: file.clone(),
            }));
        }
    }
    masks
}

/// `Environment="OPENSSL_ia32cap=~0x2"`, `export OPENSSL_armcap=0`, `OPENSSL_armcap=0 openvpn …`.
fn parse(line: &str) -> Option<(String, String)> {
    let line = line.trim_start();
    if line.starts_with('#') || line.starts_with(';') {
        return None;
    }
    VARIABLES.iter().find_map(|variable| {
        let (_, rest) = line.split_once(variable)?;
        let value = rest.strip_prefix('=')?;
        let end = |c: char| c.is_whitespace() || c == '"' || c == '\'' || c == ';';
        let value: String = value
            .trim_start_matches(['"', '\''])
            .split(end)
            .next()?
            .chars()
            .take(MAX_VALUE)
            .collect();
        Some(((*variable).to_owned(), value))
    })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn settings_are_found_in_every_dialect() {
        let cases = [
            ("OPENSSL_ia32cap=~0x200000200000000", Some("~0x200000200000000")),
            ("Environment=\"OPENSSL_ia32cap=~0x2\" \"X=1\"", Some("~0x2")),
            ("export OPENSSL_armcap='0'", Some("0")),
            ("OPENSSL_armcap=0 /usr/sbin/openvpn", Some("0")),
            ("# OPENSSL_armcap=0", None),
            ("OPENSSL_armcap", None),
            ("OPENSSL_armcap_x=1", None),
        ];
        for (line, value) in cases {
            assert_eq!(parse(line).map(|(_, value)| value).as_deref(), value, "{line}");
        }
    }
}
