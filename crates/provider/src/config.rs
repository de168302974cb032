// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Configuration of the provider: two sources, one meaning.
//!
//! 1. The provider's section of `openssl.cnf`, key by key.
//! 2. A file of its own, TOML, with the same keys: `$MILLRACE_CLIENT_CONF`, or what
//!    `millrace_config` in the section names, or [`DEFAULT_FILE`] if it exists. An application that
//!    loads the module by its name (OpenVPN with `providers`) sees only this one.
//!
//! The section wins over the file, the file over the defaults.
//!
//! | key | default | meaning |
//! |---|---|---|
//! | `pool` | `unix:/run/millrace/node.sock` | nodes: `unix:/path` or `tcp:host:port`, comma separated (a list in the file) |
//! | `tls_ca`, `tls_cert`, `tls_key` | – | PEM files for `tcp:` nodes; all three or none; readable by the worker processes |
//! | `tls_server_name` | the host | name that a node's certificate must hold |
//! | `deadline_ms` | 2000 | time limit of a job whose key only the pool has (1 to 60000) |
//! | `fallback_after_ms` | 500 | time after which a job whose key is here, too, is done here (1 to `deadline_ms`) |
//! | `hedge` | `off` | `on`: a job without an answer after `hedge_after_ms` is sent to a second node, too |
//! | `hedge_after_ms` | – | when to hedge (1 to 60000); unset: the 95th percentile of recent answers, at least 5 ms |
//! | `fallback` | `on` | `off`: never do a pooled operation here, fail instead |
//! | `mode` | `async` | `async`: pause jobs of applications that use `ASYNC_JOB`, block otherwise; `sync`: always block; `off`: do everything here |
//! | `algorithms` | all | key types that are offered, of `RSA,RSA-PSS,EC,X25519,X448,ED25519,ED448,DH,DHX,DSA,ML-DSA-44,ML-DSA-65,ML-DSA-87` |
//! | `verify` | `on` | `on`: RSA results are verified, others checked for their form; `all`: every signature is verified |
//! | `millrace_config` | – | path of the file; only in the section |
//!
//! An unknown key is an error in both. In the section OpenSSL has keys of its own ([`OPENSSL_KEYS`]).

use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_client::{Endpoint, Hedge, PoolConfig};
use serde::Deserialize;

use crate::algorithms::KeyType;
use crate::error::{Error, Reason, Result};

/// The file that is read if nothing else is named.
pub const DEFAULT_FILE: &str = "/etc/millrace/client.toml";

/// Names the configuration file.
pub const FILE_VARIABLE: &str = "MILLRACE_CLIENT_CONF";

/// Bound on the file, in bytes: it has a dozen short keys.
const MAX_FILE_LEN: u64 = 64 * 1024;

/// Longest deadline: longer than any server waits for a handshake.
const MAX_DEADLINE_MS: u64 = 60_000;

/// The keys that may stand in the provider's section.
pub const SECTION_KEYS: [&std::ffi::CStr; 14] = [
    c"pool",
    c"tls_ca",
    c"tls_cert",
    c"tls_key",
    c"tls_server_name",
    c"deadline_ms",
    c"fallback_after_ms",
    c"fallback",
    c"hedge",
    c"hedge_after_ms",
    c"mode",
    c"algorithms",
    c"verify",
    c"millrace_config",
];

/// The keys of a provider's section that OpenSSL itself reads (`config(5)`).
pub const OPENSSL_KEYS: [&str; 4] = ["module", "activate", "identity", "soft_load"];

/// How to wait for the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Pause if the application can be paused.
    Async,
    /// Always block.
    Sync,
    /// Never ask the pool.
    Off,
}

/// Which results are verified with the public key. RSA results always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// RSA; the form of the others.
    Rsa,
    /// Every signature.
    All,
}

/// What the configuration means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The nodes.
    pub nodes: Vec<Endpoint>,
    /// For keys that only the pool holds.
    pub deadline: Duration,
    /// For keys that are here too.
    pub fallback_after: Duration,
    /// Whether a pooled operation may be done here.
    pub fallback: bool,
    /// When a job is sent to a second node, too.
    pub hedge: Hedge,
    /// How to wait.
    pub mode: Mode,
    /// Whether each key type is offered, by its index.
    pub algorithms: [bool; KeyType::ALL.len()],
    /// What is verified.
    pub verify: Verify,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            nodes: vec![Endpoint::Unix(PathBuf::from("/run/millrace/node.sock"))],
            deadline: Duration::from_secs(2),
            fallback_after: Duration::from_millis(500),
            fallback: true,
            hedge: Hedge::Off,
            mode: Mode::Async,
            algorithms: [true; KeyType::ALL.len()],
            verify: Verify::Rsa,
        }
    }
}

impl Config {
    /// Whether this key type is offered.
    #[must_use]
    pub fn offers(&self, key_type: KeyType) -> bool {
        self.algorithms[key_type as usize]
    }

    /// The client's view of it.
    #[must_use]
    pub fn pool(&self) -> PoolConfig {
        PoolConfig::new(self.nodes.clone())
            .connect_timeout(self.deadline)
            .default_deadline(self.deadline)
            .hedge(self.hedge)
            .agent(concat!("millrace-provider/", env!("CARGO_PKG_VERSION")))
    }
}

/// What was typed, in either source.
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
        let words: Vec<&str> = match self {
            Self::Line(line) => line.split(',').map(str::trim).collect(),
            Self::List(list) => list.iter().map(|word| word.trim()).collect(),
        };
        words.into_iter().filter(|word| !word.is_empty()).collect()
    }
}

/// `5` or `"5"`.
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

/// Reads the configuration. `section` gives the values of [`SECTION_KEYS`], `variable` that of
/// [`FILE_VARIABLE`].
///
/// # Errors
/// A sentence that names the source and the key.
pub fn load(section: &[(String, String)], variable: Option<&Path>) -> Result<Config> {
    let named = section
        .iter()
        .find(|(key, _)| key == "millrace_config")
        .map(|(_, value)| value);
    let file = match (variable, named) {
        (Some(path), _) => Some(path.to_owned()),
        (None, Some(path)) => Some(PathBuf::from(path)),
        (None, None) => Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()),
    };
    let file = file.as_deref().map(read).transpose()?;
    merge(file.unwrap_or_default(), section)?.resolve()
}

/// Checks that all keys of the section have a reader.
///
/// # Errors
/// A sentence that names the first key without.
pub fn check_section(keys: &[String]) -> Result<()> {
    let ours = || SECTION_KEYS.iter().filter_map(|key| key.to_str().ok());
    let known = |key: &str| OPENSSL_KEYS.contains(&key) || ours().any(|known| known == key);
    match keys.iter().find(|key| !known(key)) {
        None => Ok(()),
        Some(key) => {
            let all: Vec<&str> = ours().collect();
            Err(bad(
                key,
                &format!("is unknown; the keys are {}", all.join(", ")),
            ))
        }
    }
}

/// The keys of a file, which are all known.
fn read(path: &Path) -> Result<toml::Table> {
    let wrong = |what: &dyn std::fmt::Display| {
        Error::new(Reason::Config, format!("{}: {what}", path.display()))
    };
    let meta = std::fs::metadata(path).map_err(|error| wrong(&error))?;
    if !meta.is_file() || meta.len() > MAX_FILE_LEN {
        return Err(wrong(&"not a regular file of at most 64 KiB"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    let _: Typed = toml::from_str(&text).map_err(|error| wrong(&error))?;
    toml::from_str(&text).map_err(|error| wrong(&error))
}

/// The keys of the section over those of the file.
fn merge(mut file: toml::Table, section: &[(String, String)]) -> Result<Typed> {
    let keys = section.iter().filter(|(key, _)| key != "millrace_config");
    file.extend(keys.map(|(key, value)| (key.clone(), value.clone().into())));
    Typed::deserialize(file).map_err(|error| bad("section", &error.to_string()))
}

impl Typed {
    fn resolve(&self) -> Result<Config> {
        let default = Config::default();
        let deadline = milliseconds("deadline_ms", self.deadline_ms.as_ref())?;
        let deadline = deadline.unwrap_or(default.deadline);
        let fallback_after = milliseconds("fallback_after_ms", self.fallback_after_ms.as_ref())?;
        let config = Config {
            nodes: self.nodes(default.nodes)?,
            deadline,
            fallback_after: fallback_after
                .unwrap_or(default.fallback_after)
                .min(deadline),
            fallback: match self.fallback.as_ref().map(Switch::text) {
                None | Some("on") => true,
                Some("off") => false,
                Some(_) => return Err(bad("fallback", "is on or off")),
            },
            hedge: self.hedge()?,
            mode: match self.mode.as_deref().map(str::trim) {
                None | Some("async") => Mode::Async,
                Some("sync") => Mode::Sync,
                Some("off") => Mode::Off,
                Some(_) => return Err(bad("mode", "is async, sync or off")),
            },
            algorithms: self.algorithms()?,
            verify: match self.verify.as_ref().map(Switch::text) {
                None | Some("on") => Verify::Rsa,
                Some("all") => Verify::All,
                Some(_) => return Err(bad("verify", "is on or all; it cannot be switched off")),
            },
        };
        config
            .pool()
            .check()
            .map_err(|error| bad("pool", &error.to_string()))?;
        Ok(config)
    }

    fn hedge(&self) -> Result<Hedge> {
        let after = milliseconds("hedge_after_ms", self.hedge_after_ms.as_ref())?;
        match (self.hedge.as_ref().map(Switch::text), after) {
            (None | Some("off"), _) => Ok(Hedge::Off),
            (Some("on"), Some(after)) => Ok(Hedge::After(after)),
            (Some("on"), None) => Ok(Hedge::Adaptive),
            (Some(_), _) => Err(bad("hedge", "is on or off")),
        }
    }

    fn nodes(&self, default: Vec<Endpoint>) -> Result<Vec<Endpoint>> {
        let Some(words) = &self.pool else {
            return Ok(default);
        };
        let tls = self.tls()?;
        let node = |text: &str| -> Result<Endpoint> {
            let endpoint: Endpoint = text
                .parse()
                .map_err(|error| bad("pool", &format!("{text}: {error}")))?;
            match (&endpoint, &tls) {
                (Endpoint::Tcp { .. }, None) => {
                    Err(bad("pool", "tcp nodes need tls_ca, tls_cert and tls_key"))
                }
                (Endpoint::Tcp { .. }, Some(tls)) => Ok(endpoint.with_tls(tls.clone())),
                _ => Ok(endpoint),
            }
        };
        words.each().into_iter().map(node).collect()
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
            _ => Err(bad(
                "tls_ca",
                "tls_cert and tls_key belong together: give all three or none",
            )),
        }
    }

    fn algorithms(&self) -> Result<[bool; KeyType::ALL.len()]> {
        let Some(words) = &self.algorithms else {
            return Ok([true; KeyType::ALL.len()]);
        };
        let mut offered = [false; KeyType::ALL.len()];
        for word in words.each() {
            let key_type = KeyType::from_name(word).ok_or_else(|| {
                let names: Vec<&str> = KeyType::ALL.iter().map(|known| known.name()).collect();
                bad(
                    "algorithms",
                    &format!("{word} is none of {}", names.join(", ")),
                )
            })?;
            offered[key_type as usize] = true;
        }
        Ok(offered)
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
        _ => Err(bad(key, "is a number of milliseconds from 1 to 60000")),
    }
}

fn bad(key: &str, what: &str) -> Error {
    Error::new(
        Reason::Config,
        format!("configuration of the provider: {key} {what}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(pairs: &[(&str, &str)]) -> Result<Config> {
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        merge(toml::Table::new(), &pairs)?.resolve()
    }

    #[test]
    fn empty_section_gives_the_defaults() {
        let config = section(&[]).expect("defaults");
        assert_eq!(config.nodes.len(), 1);
        assert!(config.fallback);
        assert_eq!(config.mode, Mode::Async);
        assert!(config.algorithms.iter().all(|offered| *offered));
    }

    #[test]
    fn hedging_is_off_or_after_a_time_or_adaptive() {
        let hedge = |pairs: &[(&str, &str)]| section(pairs).expect("good").hedge;
        let after = ("hedge_after_ms", "30");
        assert_eq!(hedge(&[]), Hedge::Off);
        assert_eq!(hedge(&[after]), Hedge::Off);
        assert_eq!(hedge(&[("hedge", "off"), after]), Hedge::Off);
        assert_eq!(hedge(&[("hedge", "on")]), Hedge::Adaptive);
        let time = Duration::from_millis(30);
        assert_eq!(hedge(&[("hedge", "on"), after]), Hedge::After(time));
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
            ("tls_ca", "/x"),
        ] {
            let pairs = [
                (key, value),
                (
                    "pool",
                    if key == "tls_ca" {
                        "tcp:a:1"
                    } else {
                        "unix:/x"
                    },
                ),
            ];
            let pairs = if key == "pool" {
                &pairs[..1]
            } else {
                &pairs[..]
            };
            let error = section(pairs).expect_err(key);
            assert!(error.text.contains(key), "{error}");
        }
    }
}
