// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Configuration of the provider, from two sources with the same keys.
//!
//! 1. The provider's section of `openssl.cnf`, key by key.
//! 2. A file of its own, TOML, with the same keys: `$MILLRACE_CLIENT_CONF`, or what
//!    `millrace_config` in the section names, or [`DEFAULT_FILE`] if it exists. An application that
//!    loads the module by its name (OpenVPN with `providers`) sees only this one.
//!
//! The section takes precedence over the file, the file over the defaults. A file that names the nodes (`pool`) is
//! checked once a second while there are jobs. A change of the nodes takes effect without a restart, a change of other
//! keys with the next one.
//!
//! [`millrace_edge::settings`] lists the keys with their defaults and meaning.
//!
//! An unknown key is an error in both. The section also has keys of OpenSSL.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millrace_client::{Endpoint, Hedge, NodeSource, PoolConfig};
use millrace_edge::bulk_sizes;
use millrace_edge::settings::{self, DEFAULT_MODE, DEFAULT_SOCKET, LocalChoice, ValueForm};
use millrace_hostfs::ordinary::{self, Links};
use serde::Deserialize;

use crate::algorithms::{KeyType, Primitive};
use crate::error::{Error, Reason, Result};

/// The file that is read if nothing else is named.
pub const DEFAULT_FILE: &str = "/etc/millrace/client.toml";

/// File of measured costs if nothing else is named, provided that its folder exists.
const DEFAULT_CHOICE_FILE: &str = "/var/lib/millrace/local-choice.tsv";

/// Environment variable with the path of the configuration file.
pub const FILE_VARIABLE: &str = "MILLRACE_CLIENT_CONF";

/// Bound on the file, in bytes: it has a dozen short keys.
const MAX_FILE_LEN: usize = 64 * 1024;

/// Longest deadline: longer than any server waits for a handshake.
const MAX_DEADLINE_MS: u64 = 60_000;

/// The keys that may stand in the provider's section, without OpenSSL's own.
pub fn section_keys() -> impl Iterator<Item = &'static str> {
    settings::keys().filter(|(_, takes)| *takes != ValueForm::OfOpenssl).map(|(key, _)| key)
}

/// How an operation waits for the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// Pause if the application can be paused.
    Async,
    /// Always block.
    Sync,
    /// Never ask the pool.
    Off,
}

/// Results that are verified with the public key. RSA signatures always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Samples of the other signatures, and all of a node that is new or was wrong before.
    On,
    /// Every signature.
    All,
}

/// When AWS-LC computes a primitive in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalUse {
    /// Never: the installed OpenSSL does.
    Off,
    /// If it was measured to be faster than the installed OpenSSL.
    IfFaster,
    /// Without a measurement.
    Always,
}

/// Checked configuration of the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Nodes that the provider may use.
    pub nodes: Vec<Endpoint>,
    /// Time limit of a job that only the pool can do.
    pub deadline: Duration,
    /// Time limit of a job that this process can do itself, after which it does.
    pub fallback_after: Duration,
    /// Whether this process may do a pooled operation itself.
    pub fallback: bool,
    /// Rule for sending a job to a second node, too.
    pub hedge: Hedge,
    /// How an operation waits for the pool.
    pub mode: WaitMode,
    /// Whether each key type is offered, by its index.
    pub algorithms: [bool; KeyType::ALL.len()],
    /// When each primitive is computed in this process, by its index.
    pub local: [LocalUse; Primitive::ALL.len()],
    /// Whether key pairs are made ahead of their use.
    pub pairs_ahead: bool,
    /// File of measured costs. `None` if costs are not kept.
    pub choice_file: Option<PathBuf>,
    /// File of the sizes from which the kernel's ciphers pay. `None` if they are not used.
    pub kernel_bulk: Option<PathBuf>,
    /// Results that are verified.
    pub verify: Verify,
    /// The file that names the nodes, if one does: a change of it takes effect in running processes.
    pub file: Option<PoolFile>,
}

/// The file that names the nodes, with the section whose keys stand above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolFile {
    path: PathBuf,
    section: Vec<(String, String)>,
}

impl NodeSource for PoolFile {
    fn stamp(&self) -> u64 {
        let Ok(meta) = std::fs::metadata(&self.path) else {
            return 0;
        };
        let mut hasher = DefaultHasher::new();
        (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()).hash(&mut hasher);
        hasher.finish()
    }

    fn nodes(&self) -> Option<Vec<Endpoint>> {
        let config = merge(read(&self.path).ok()?, &self.section).ok()?;
        config.resolve().ok().map(|config| config.nodes)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            nodes: vec![Endpoint::Unix(PathBuf::from(DEFAULT_SOCKET))],
            // Clients give up a handshake after seconds; a pool under load answers within milliseconds.
            deadline: Duration::from_secs(2),
            // A quarter of the deadline: what the process then does itself ends in time, too.
            fallback_after: Duration::from_millis(500),
            fallback: true,
            // A node that takes jobs and does none would cost its share of the handshakes otherwise.
            hedge: Hedge::Adaptive,
            mode: WaitMode::Async,
            algorithms: [true; KeyType::ALL.len()],
            // Another implementation under the application is the administrator's choice.
            local: [LocalUse::Off; Primitive::ALL.len()],
            pairs_ahead: true,
            choice_file: Some(PathBuf::from(DEFAULT_CHOICE_FILE)),
            kernel_bulk: None,
            verify: Verify::On,
            file: None,
        }
    }
}

impl Config {
    /// Whether this key type is offered.
    #[must_use]
    pub fn offers(&self, key_type: KeyType) -> bool {
        self.algorithms[key_type as usize]
    }

    /// When this primitive is computed in this process.
    #[must_use]
    pub fn local(&self, primitive: Primitive) -> LocalUse {
        self.local[primitive as usize]
    }

    /// Whether any primitive may be computed in this process.
    #[must_use]
    pub fn computes_locally(&self) -> bool {
        self.local.iter().any(|local| *local != LocalUse::Off)
    }

    /// Whether X25519 keys stay out of the pool. True whenever `local` names X25519, even where a measurement then
    /// prefers OpenSSL, so that the set of pooled keys depends on the configuration alone.
    #[must_use]
    pub fn keeps_x25519(&self) -> bool {
        self.local(Primitive::X25519) != LocalUse::Off
    }

    /// Configuration of the client's pool.
    #[must_use]
    pub fn pool(&self) -> PoolConfig {
        let nodes = PoolConfig::new(self.nodes.clone());
        match &self.file {
            Some(file) => nodes.source(Arc::new(file.clone())),
            None => nodes,
        }
        .connect_timeout(self.deadline)
        .default_deadline(self.deadline)
        .hedge(self.hedge)
        .agent(concat!("millrace-provider/", env!("CARGO_PKG_VERSION")))
    }
}

/// Values as they are written, in either source.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Typed {
    pool: Option<Words>,
    tls_ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_server_name: Option<String>,
    deadline_ms: Option<Number>,
    fallback_after_ms: Option<Number>,
    fallback: Option<Switch>,
    hedge: Option<Switch>,
    hedge_after_ms: Option<Number>,
    mode: Option<String>,
    algorithms: Option<Words>,
    local: Option<SwitchOrWords>,
    pairs_ahead: Option<Switch>,
    choice_file: Option<PathBuf>,
    kernel_bulk: Option<Switch>,
    kernel_bulk_file: Option<PathBuf>,
    verify: Option<Switch>,
}

/// `"a, b"` or `["a", "b"]`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Words {
    Line(String),
    List(Vec<String>),
}

impl Words {
    fn each(&self) -> Vec<&str> {
        match self {
            Self::Line(line) => settings::words(line).collect(),
            Self::List(list) => {
                let words = list.iter().map(|word| word.trim());
                words.filter(|word| !word.is_empty()).collect()
            }
        }
    }
}

/// `true`, `"on"`, or a list of words.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum SwitchOrWords {
    Flag(bool),
    Words(Words),
}

/// A number, or a string of its digits: `5` or `"5"`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Digits(u64),
    Text(String),
}

/// `true` or `"on"`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Switch {
    Flag(bool),
    Text(String),
}

impl Switch {
    fn text(&self) -> &str {
        match self {
            Self::Flag(true) => "on",
            Self::Flag(false) => "off",
            Self::Text(text) => text.trim(),
        }
    }
}

/// Reads the configuration. `section` gives the values of [`section_keys`], `variable` that of
/// [`FILE_VARIABLE`].
///
/// # Errors
/// A value that cannot be used; the text names its source and key.
pub fn load(section: &[(String, String)], variable: Option<&Path>) -> Result<Config> {
    let named = section.iter().find(|(key, _)| key == "millrace_config").map(|(_, value)| value);
    let file = match (variable, named) {
        (Some(path), _) => Some(path.to_owned()),
        (None, Some(path)) => Some(PathBuf::from(path)),
        (None, None) => Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()),
    };
    let Some(path) = file else {
        return merge(toml::Table::new(), section)?.resolve();
    };
    let keys = read(&path)?;
    let names_nodes = keys.contains_key("pool") && !section.iter().any(|(key, _)| key == "pool");
    let config = merge(keys, section)?.resolve()?;
    let file = names_nodes.then(|| PoolFile { path, section: section.to_vec() });
    Ok(Config { file, ..config })
}

/// Refuses a section with an unknown key, whose name is in the error.
pub fn check_section(keys: &[String]) -> Result<()> {
    match keys.iter().find(|key| !settings::keys().any(|(known, _)| known == **key)) {
        None => Ok(()),
        Some(key) => {
            let all: Vec<&str> = section_keys().collect();
            let what = format!("is unknown; the keys are {}", all.join(", "));
            Err(bad(key, &what))
        }
    }
}

/// The keys of a file, which are all known.
fn read(path: &Path) -> Result<toml::Table> {
    let wrong = |what: &dyn std::fmt::Display| {
        Error::new(Reason::Config, format!("{}: {what}", path.display()))
    };
    let text =
        ordinary::read_text(path, Links::Follow, MAX_FILE_LEN).map_err(|error| wrong(&error))?;
    let _: Typed = toml::from_str(&text).map_err(|error| wrong(&error))?;
    toml::from_str(&text).map_err(|error| wrong(&error))
}

/// The keys of the section over those of the file.
fn merge(mut file: toml::Table, section: &[(String, String)]) -> Result<Typed> {
    for (key, value) in section.iter().filter(|(key, _)| key != "millrace_config") {
        file.insert(key.clone(), value.clone().into());
    }
    Typed::deserialize(file).map_err(|error| bad("section", &error.to_string()))
}

impl Typed {
    fn resolve(&self) -> Result<Config> {
        let default = Config::default();
        let deadline =
            milliseconds("deadline_ms", self.deadline_ms.as_ref())?.unwrap_or(default.deadline);
        let fallback_after = milliseconds("fallback_after_ms", self.fallback_after_ms.as_ref())?;
        let config = Config {
            nodes: self.nodes(default.nodes)?,
            deadline,
            fallback_after: fallback_after.unwrap_or(default.fallback_after).min(deadline),
            fallback: is_on("fallback", self.fallback.as_ref(), default.fallback)?,
            hedge: self.hedge()?,
            mode: match self.mode.as_deref().map_or(DEFAULT_MODE, str::trim) {
                "async" => WaitMode::Async,
                "sync" => WaitMode::Sync,
                "off" => WaitMode::Off,
                _ => return Err(bad("mode", "is async, sync or off")),
            },
            algorithms: self.algorithms()?,
            local: self.local()?,
            pairs_ahead: is_on("pairs_ahead", self.pairs_ahead.as_ref(), default.pairs_ahead)?,
            choice_file: match &self.choice_file {
                None => default.choice_file,
                Some(path) if path == Path::new("none") => None,
                Some(path) if path.is_absolute() => Some(path.clone()),
                Some(_) => return Err(bad("choice_file", "is a path from the root, or none")),
            },
            kernel_bulk: self.kernel_bulk()?,
            verify: match self.verify.as_ref().map(Switch::text) {
                None | Some("on") => Verify::On,
                Some("all") => Verify::All,
                Some(_) => return Err(bad("verify", "is on or all; it cannot be switched off")),
            },
            file: None,
        };
        config.pool().check().map_err(|error| bad("pool", &error.to_string()))?;
        Ok(config)
    }

    fn kernel_bulk(&self) -> Result<Option<PathBuf>> {
        let path = match &self.kernel_bulk_file {
            None => PathBuf::from(bulk_sizes::DEFAULT_FILE),
            Some(path) if path.is_absolute() => path.clone(),
            Some(_) => return Err(bad("kernel_bulk_file", "is a path from the root")),
        };
        Ok(is_on("kernel_bulk", self.kernel_bulk.as_ref(), false)?.then_some(path))
    }

    fn hedge(&self) -> Result<Hedge> {
        let after = milliseconds("hedge_after_ms", self.hedge_after_ms.as_ref())?;
        Ok(match (is_on("hedge", self.hedge.as_ref(), true)?, after) {
            (false, _) => Hedge::Off,
            (true, Some(after)) => Hedge::After(after),
            (true, None) => Hedge::Adaptive,
        })
    }

    fn nodes(&self, default: Vec<Endpoint>) -> Result<Vec<Endpoint>> {
        let Some(words) = &self.pool else {
            return Ok(default);
        };
        let tls = self.tls()?;
        let mut nodes = Vec::new();
        for text in words.each() {
            let endpoint: Endpoint =
                text.parse().map_err(|error| bad("pool", &format!("{text}: {error}")))?;
            nodes.push(match (&endpoint, &tls) {
                (Endpoint::Tcp { .. }, None) => {
                    return Err(bad("pool", "tcp nodes need tls_ca, tls_cert and tls_key"));
                }
                (Endpoint::Tcp { .. }, Some(tls)) => endpoint.with_tls(tls.clone()),
                _ => endpoint,
            });
        }
        Ok(nodes)
    }

    fn tls(&self) -> Result<Option<millrace_client::TlsConfig>> {
        match (&self.tls_ca, &self.tls_cert, &self.tls_key) {
            (Some(ca), Some(cert), Some(key)) => Ok(Some(millrace_client::TlsConfig {
                ca: ca.clone(),
                cert: cert.clone(),
                key: key.clone(),
                server_name: self.tls_server_name.clone(),
            })),
            (None, None, None) => Ok(None),
            _ => Err(bad("tls_ca", "tls_cert and tls_key belong together: give all three or none")),
        }
    }

    fn algorithms(&self) -> Result<[bool; KeyType::ALL.len()]> {
        let Some(words) = &self.algorithms else {
            return Ok([true; KeyType::ALL.len()]);
        };
        let mut offered = [false; KeyType::ALL.len()];
        if words.each() == ["none"] {
            return Ok(offered);
        }
        for word in words.each() {
            let key_type = KeyType::from_name(word).ok_or_else(|| {
                let names: Vec<&str> = KeyType::ALL.iter().map(|known| known.name()).collect();
                bad("algorithms", &format!("{word} is none of {}", names.join(", ")))
            })?;
            offered[key_type as usize] = true;
        }
        Ok(offered)
    }

    fn local(&self) -> Result<[LocalUse; Primitive::ALL.len()]> {
        let words = match &self.local {
            None => Vec::new(),
            Some(SwitchOrWords::Flag(flag)) => vec![if *flag { "on" } else { "off" }],
            Some(SwitchOrWords::Words(words)) => words.each(),
        };
        let mut local = [LocalUse::Off; Primitive::ALL.len()];
        let named = match LocalChoice::of(words) {
            LocalChoice::Off => return Ok(local),
            LocalChoice::IfFaster => return Ok([LocalUse::IfFaster; Primitive::ALL.len()]),
            LocalChoice::All => return Ok([LocalUse::Always; Primitive::ALL.len()]),
            LocalChoice::Named(words) => words,
        };
        for word in named {
            let primitive = Primitive::from_name(word).ok_or_else(|| {
                let names: Vec<&str> = Primitive::ROWS.iter().map(|row| row.name).collect();
                bad("local", &format!("{word} is none of on, all, off, {}", names.join(", ")))
            })?;
            local[primitive as usize] = LocalUse::Always;
        }
        Ok(local)
    }
}

fn is_on(key: &str, switch: Option<&Switch>, default: bool) -> Result<bool> {
    match switch.map(Switch::text) {
        None => Ok(default),
        Some("on") => Ok(true),
        Some("off") => Ok(false),
        Some(_) => Err(bad(key, "is on or off")),
    }
}

fn milliseconds(key: &str, number: Option<&Number>) -> Result<Option<Duration>> {
    let value = match number {
        None => return Ok(None),
        Some(Number::Digits(value)) => Some(*value),
        Some(Number::Text(text)) => text.trim().parse().ok(),
    };
    match value {
        Some(value) if (1..=MAX_DEADLINE_MS).contains(&value) => {
            Ok(Some(Duration::from_millis(value)))
        }
        _ => Err(bad(key, &format!("is a number of milliseconds from 1 to {MAX_DEADLINE_MS}"))),
    }
}

fn bad(key: &str, what: &str) -> Error {
    Error::new(Reason::Config, format!("configuration of the provider: {key} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(pairs: &[(&str, &str)]) -> Result<Config> {
        let pairs: Vec<_> =
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        merge(toml::Table::new(), &pairs)?.resolve()
    }

    #[test]
    fn every_row_of_the_table_is_a_key_of_the_parser_and_the_reverse() {
        let file = toml::from_str::<toml::Table>("unknown = 1").expect("TOML");
        let error = merge(file, &[]).expect_err("unknown key").text;
        let (_, parsed) = error.split_once("expected one of").expect("the keys of the parser");
        let parsed: std::collections::BTreeSet<&str> =
            parsed.split('`').skip(1).step_by(2).collect();
        let listed = section_keys().filter(|key| *key != "millrace_config");
        assert_eq!(parsed, listed.collect());
        let types: Vec<&str> = KeyType::ALL.iter().map(|known| known.name()).collect();
        let primitives: Vec<&str> = Primitive::ROWS.iter().map(|row| row.name).collect();
        for (key, takes) in settings::keys() {
            let (names, words) = match takes {
                ValueForm::Milliseconds(most) => {
                    assert_eq!(most, MAX_DEADLINE_MS, "{key}");
                    continue;
                }
                ValueForm::OneOf(words) => (None, words),
                ValueForm::List { words, alone } => (Some(words), alone),
                ValueForm::Nodes | ValueForm::Text | ValueForm::OfOpenssl => continue,
            };
            if let Some(names) = names {
                let known = if key == "local" { &primitives } else { &types };
                assert_eq!(names.split(',').collect::<Vec<_>>(), **known, "{key}");
            }
            for word in words.split(',') {
                section(&[(key, word)]).unwrap_or_else(|error| panic!("{key} = {word}: {error}"));
            }
        }
    }

    #[test]
    fn empty_section_gives_the_defaults() {
        let config = section(&[]).expect("defaults");
        assert_eq!(config.nodes.len(), 1);
        assert!(config.fallback);
        assert_eq!(config.mode, WaitMode::Async);
        assert!(config.algorithms.iter().all(|offered| *offered));
    }

    #[test]
    fn hedging_is_off_or_after_a_time_or_adaptive() {
        let hedge = |pairs: &[(&str, &str)]| section(pairs).expect("good").hedge;
        let after = ("hedge_after_ms", "30");
        assert_eq!(hedge(&[]), Hedge::Adaptive);
        assert_eq!(hedge(&[("hedge", "off"), after]), Hedge::Off);
        assert_eq!(hedge(&[("hedge", "on")]), Hedge::Adaptive);
        let time = Duration::from_millis(30);
        for pairs in [&[("hedge", "on"), after][..], &[after]] {
            assert_eq!(hedge(pairs), Hedge::After(time));
        }
    }

    #[test]
    fn local_is_off_or_on_or_all_or_a_list_of_primitives() {
        let local = |value: &str| section(&[("local", value)]).expect("good").local;
        assert_eq!(local("off"), [LocalUse::Off; Primitive::ALL.len()]);
        assert_eq!(local("on"), [LocalUse::IfFaster; Primitive::ALL.len()]);
        assert_eq!(local("all"), [LocalUse::Always; Primitive::ALL.len()]);
        let mut two = [LocalUse::Off; Primitive::ALL.len()];
        two[Primitive::X25519 as usize] = LocalUse::Always;
        two[Primitive::Tls13Kdf as usize] = LocalUse::Always;
        assert_eq!(local("x25519, tls13-kdf"), two);
        let none = section(&[("algorithms", "none")]).expect("good");
        assert!(!none.algorithms.contains(&true));
        let file = toml::from_str("local = true").expect("TOML");
        let config = merge(file, &[]).expect("merged").resolve().expect("good");
        assert!(config.keeps_x25519());
    }

    #[test]
    fn choice_file_is_a_path_from_the_root_or_none() {
        let file =
            |value: &str| section(&[("choice_file", value)]).map(|config| config.choice_file);
        assert_eq!(file("none").expect("good"), None);
        assert_eq!(file("/x/y").expect("good"), Some(PathBuf::from("/x/y")));
        assert!(file("y").is_err());
    }

    #[test]
    fn kernel_is_not_used_unless_it_is_switched_on() {
        let file = |pairs: &[(&str, &str)]| section(pairs).expect("good").kernel_bulk;
        let path = ("kernel_bulk_file", "/x/y");
        assert_eq!(file(&[]), None);
        assert_eq!(file(&[path]), None);
        assert_eq!(file(&[("kernel_bulk", "off"), path]), None);
        assert_eq!(file(&[("kernel_bulk", "on"), path]), Some(PathBuf::from("/x/y")));
        assert!(file(&[("kernel_bulk", "on")]).is_some(), "the default file");
    }

    #[test]
    fn section_overrides_the_file() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("client.toml");
        std::fs::write(
            &path,
            "pool = [\"unix:/a\", \"unix:/b\"]\ndeadline_ms = 700\nfallback = false\n",
        )
        .expect("write");
        let pairs = [("deadline_ms".to_owned(), "900".to_owned())];
        let config = load(&pairs, Some(&path)).expect("config");
        assert_eq!(config.nodes.len(), 2);
        assert_eq!(config.deadline, Duration::from_millis(900));
        assert!(!config.fallback);
    }

    #[test]
    fn unknown_key_of_the_file_is_named_in_the_error() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("client.toml");
        std::fs::write(&path, "deadline = 700\n").expect("write");
        let error = load(&[], Some(&path)).expect_err("unknown key");
        assert!(error.text.contains("deadline"), "{error}");
        assert!(error.text.contains("client.toml"), "{error}");
        assert!(load(&[], Some(Path::new("/nonexistent/client.toml"))).is_err());
        let socket = dir.path().join("socket");
        let _socket = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let error = load(&[], Some(&socket)).expect_err("a socket").text;
        assert!(error.contains("it is a socket"), "{error}");
        for (length, is_read) in [(MAX_FILE_LEN, true), (MAX_FILE_LEN + 1, false)] {
            std::fs::write(&path, "#".repeat(length)).expect("write");
            assert_eq!(load(&[], Some(&path)).is_ok(), is_read, "{length}");
        }
    }

    #[test]
    fn unknown_key_of_the_section_is_named_in_the_error() {
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        assert!(check_section(&keys(&[])).is_ok());
        assert!(check_section(&keys(&["module", "activate", "pool", "millrace_config"])).is_ok());
        let error = check_section(&keys(&["activate", "falback"])).expect_err("unknown key");
        assert!(error.text.contains("falback is unknown"), "{error}");
        assert!(error.text.contains("fallback_after_ms"), "{error}");
    }

    #[test]
    fn value_out_of_range_or_incomplete_is_refused() {
        for (key, value) in [
            ("pool", "http://x"),
            ("pool", "tcp:host:1"),
            ("pool", ""),
            ("deadline_ms", "0"),
            ("deadline_ms", "soon"),
            ("fallback", "maybe"),
            ("hedge", "auto"),
            ("hedge_after_ms", "0"),
            ("mode", "fast"),
            ("verify", "off"),
            ("algorithms", "RSA,AES"),
            ("algorithms", "RSA,none"),
            ("local", "X25519,AES"),
            ("local", "on,X25519"),
            ("pairs_ahead", "8"),
            ("choice_file", "choice.tsv"),
            ("kernel_bulk", "always"),
            ("kernel_bulk_file", "bulk.tsv"),
            ("tls_ca", "/x"),
        ] {
            let pairs =
                [(key, value), ("pool", if key == "tls_ca" { "tcp:a:1" } else { "unix:/x" })];
            let pairs = if key == "pool" { &pairs[..1] } else { &pairs[..] };
            let error = section(pairs).expect_err(key);
            assert!(error.text.contains(key), "{error}");
        }
    }
}
