// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The settings of servers that checks judge. Only lines with the names in [`PLACES`] are read from each file,
//! so that neither a report nor a bundle contains anything else of it.

use millrace_hostfs::{haproxy, nginx, openssl_cnf, systemd};
use schemars::JsonSchema;
use serde::Serialize;

use super::places::{ConfiguredProgram, PLACES, Place};
use crate::section::SectionReader;

/// Bound on the files of one program: a gateway with more tunnels repeats the same settings.
const MAX_FILES: usize = 512;
/// Bound on the settings of one file: a file with 100 tunnels has five each that checks judge.
const MAX_SETTINGS: usize = 512;
/// Longest value, in characters; the rest is cut. The longest that a check judges is a list of TLS ciphers.
const MAX_VALUE: usize = 1_024;

/// The settings of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FileSettings {
    /// The program that reads the file
    pub program: ConfiguredProgram,
    /// The file, relative to the root
    pub file: String,
    /// The settings in the order of the file
    pub settings: Vec<Setting>,
}

/// A directive or option that checks judge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Setting {
    /// Directive or option, as the file spells it
    pub name: String,
    /// Its arguments, cut to a bound
    pub value: String,
}

impl FileSettings {
    /// The settings in this text that checks judge.
    #[must_use]
    pub fn read(program: ConfiguredProgram, text: &str) -> Vec<Setting> {
        let is_known = |name: &str| {
            let mut places = PLACES.iter().filter(|place| place.program == program);
            places.any(|place| place.names.split(' ').any(|known| known == name))
        };
        text.lines()
            .flat_map(|line| parse_line(program, line))
            .filter(|setting| is_known(&setting.name))
            .collect()
    }
}

impl Setting {
    /// The words of the value.
    pub(super) fn words(&self) -> impl Iterator<Item = &str> {
        self.value
            .split(|c: char| c.is_whitespace() || c == ',' || c == ':')
            .filter(|word| !word.is_empty())
    }

    /// The value in seconds: `30`, `30s`, `2m`.
    pub(super) fn seconds(&self) -> Option<u64> {
        let value = self.value.trim();
        let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let number: u64 = digits.trim().parse().ok()?;
        let factor = match &value[digits.len()..] {
            "" | "s" => 1,
            "m" => 60,
            "h" => 3600,
            _ => return None,
        };
        number.checked_mul(factor)
    }

    /// The first number of the value.
    pub(super) fn number(&self) -> Option<u64> {
        self.value.split_whitespace().next()?.parse().ok()
    }
}

/// Finds the settings of all programs.
pub(super) fn find(reader: &mut SectionReader<'_>) -> Vec<FileSettings> {
    let mut found: Vec<FileSettings> = Vec::new();
    for place in &PLACES {
        for file in files(reader, place) {
            // Two paths may lead to the same file.
            if found.iter().any(|known| known.file == file) {
                continue;
            }
            let names: Vec<&str> = place.names.split(' ').collect();
            let lines = reader.lines_with_if_there(&file, &names);
            let settings = FileSettings::read(place.program, &lines.join("\n"));
            let settings = reader.first(&file, settings, MAX_SETTINGS);
            if !settings.is_empty() {
                found.push(FileSettings { program: place.program, file, settings });
            }
        }
    }
    found
}

fn files(reader: &mut SectionReader<'_>, place: &Place) -> Vec<String> {
    let mut files = Vec::new();
    for path in place.paths.split(' ') {
        let Some(folder) = path.strip_suffix('/') else {
            files.push(path.to_owned());
            continue;
        };
        if place.program == ConfiguredProgram::Systemd {
            files.extend(systemd::files_in(folder, |folder| reader.names(folder)));
        } else {
            let names =
                reader.names(folder).into_iter().filter(|name| name.ends_with(place.suffix));
            files.extend(names.map(|name| format!("{folder}/{name}")));
        }
    }
    reader.first(place.paths, files, MAX_FILES)
}

/// The settings in a line. Lines are read alone: a report has only those with a name in [`PLACES`].
fn parse_line(program: ConfiguredProgram, line: &str) -> Vec<Setting> {
    match program {
        ConfiguredProgram::Nginx => nginx::Lexer::new(line)
            .filter_map(|statement| match statement {
                nginx::Statement::Directive(words) | nginx::Statement::Unfinished(words) => {
                    setting_of(&words)
                }
                nginx::Statement::Open(_) | nginx::Statement::Close => None,
            })
            .collect(),
        ConfiguredProgram::Haproxy => Vec::from_iter(setting_of(&haproxy::words(line))),
        ConfiguredProgram::Openssl => {
            let assignment = openssl_cnf::assignment(line);
            Vec::from_iter(assignment.map(|(name, value)| setting(name, &value)))
        }
        ConfiguredProgram::Strongswan => {
            let line = line.split('#').next().unwrap_or_default();
            let pieces = line.split([';', '{', '}']);
            pieces.filter_map(name_and_value).collect()
        }
        ConfiguredProgram::Limits => Vec::from_iter(limit(line)),
        ConfiguredProgram::Openvpn | ConfiguredProgram::Systemd | ConfiguredProgram::Certbot => {
            Vec::from_iter(name_and_value(line))
        }
    }
}

fn setting(name: &str, value: &str) -> Setting {
    Setting { name: name.to_owned(), value: value.chars().take(MAX_VALUE).collect() }
}

fn setting_of(words: &[String]) -> Option<Setting> {
    let (name, arguments) = words.split_first()?;
    Some(setting(name, &arguments.join(" ")))
}

/// `<domain> <type> <item> <value>`
fn limit(line: &str) -> Option<Setting> {
    let line = line.trim();
    let mut words = line.split_ascii_whitespace().take_while(|word| !word.starts_with('#')).skip(1);
    let kind = words.next()?;
    let item = words.next()?;
    let value = words.next()?;
    Some(setting(item, &format!("{value} ({kind})")))
}

/// `name value` or `name = value`, without comments.
fn name_and_value(piece: &str) -> Option<Setting> {
    let piece = piece.trim();
    if piece.is_empty() || piece.starts_with(['#', ';', '!']) {
        return None;
    }
    let piece = piece.split(" #").next().unwrap_or_default().trim_end();
    let separator = |c: char| c.is_whitespace() || c == '=';
    let (name, value) = piece.split_once(separator).unwrap_or((piece, ""));
    Some(setting(name, value.trim_start_matches(separator).trim_matches('"')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(program: ConfiguredProgram, line: &str) -> Vec<(String, String)> {
        let settings = FileSettings::read(program, line).into_iter();
        settings.map(|s| (s.name, s.value)).collect()
    }

    #[test]
    fn settings_of_every_program_are_read() {
        let pair = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        assert_eq!(
            one(ConfiguredProgram::Openvpn, "cipher AES-256-GCM # x"),
            pair("cipher", "AES-256-GCM")
        );
        assert_eq!(one(ConfiguredProgram::Openvpn, "comp-lzo"), pair("comp-lzo", ""));
        assert_eq!(one(ConfiguredProgram::Openvpn, "; comp-lzo"), []);
        assert_eq!(
            one(ConfiguredProgram::Strongswan, "   esp_proposals = aes256-sha256"),
            pair("esp_proposals", "aes256-sha256")
        );
        assert_eq!(
            one(ConfiguredProgram::Systemd, "LimitCORE=infinity"),
            pair("LimitCORE", "infinity")
        );
        assert_eq!(
            one(ConfiguredProgram::Limits, "*  soft core unlimited"),
            pair("core", "unlimited (soft)")
        );
        let nginx =
            one(ConfiguredProgram::Nginx, "server { listen 443 ssl; ssl_protocols TLSv1; }");
        assert!(nginx.contains(&("listen".to_owned(), "443 ssl".to_owned())));
        assert!(nginx.contains(&("ssl_protocols".to_owned(), "TLSv1".to_owned())));
    }

    #[test]
    fn quoted_text_is_not_a_directive() {
        let names = |program, line| {
            one(program, line).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let log = "log_format a '$x; ssl_protocols TLSv1; }' ; # listen 1;";
        assert!(names(ConfiguredProgram::Nginx, log).is_empty());
        let ciphers = "ssl_ciphers \"HIGH:!aNULL;\"; listen '[::]:443' ssl;";
        let expected = [("ssl_ciphers", "HIGH:!aNULL;"), ("listen", "[::]:443 ssl")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(one(ConfiguredProgram::Nginx, ciphers), expected);
        let bind = "  bind :443 ssl crt \"/a # b\" # maxconn 5";
        let expected = ("bind".to_owned(), ":443 ssl crt /a # b".to_owned());
        assert_eq!(one(ConfiguredProgram::Haproxy, bind), [expected]);
        let cipher = "CipherString = \"DEFAULT # x\" # MinProtocol = TLSv1";
        let expected = ("CipherString".to_owned(), "DEFAULT # x".to_owned());
        assert_eq!(one(ConfiguredProgram::Openssl, cipher), [expected]);
    }

    #[test]
    fn times_are_read_in_their_units() {
        let seconds = |value: &str| {
            let setting = Setting { name: String::new(), value: value.to_owned() };
            setting.seconds()
        };
        assert_eq!(seconds("30"), Some(30));
        assert_eq!(seconds("2m"), Some(120));
        assert_eq!(seconds("never"), None);
        assert_eq!(seconds("99999999999999999999"), None);
    }
}
