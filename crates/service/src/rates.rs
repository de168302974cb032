// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Rates of a quota or of a slice of one: operations per second in all and by job class, and bytes per
//! second, each with a burst. Values only; [`crate::quota`] counts.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use millrace_operation::{Class, KeyKind, KeyType, OperationKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bound on [`Rates::classes`]: more job classes than an operator can keep apart.
pub const MAX_CLASSES: usize = 32;

/// Operations per second, all job classes together: more than the fastest GPU computes.
pub const MAX_OPS: u64 = 100_000_000;

/// Bytes per second: the speed of a 400 Gbit/s link.
pub const MAX_BYTES: u64 = 50_000_000_000;

/// Part of the slice that a node serves after its grant has expired and no other has come: see
/// [`Rates::safe_share`].
pub const SAFE_SHARE: u64 = 4;

/// A sustained rate with a burst. In files and JSON also a plain number: the rate, with a burst of one second.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub struct Rate {
    /// Units per second; 0 for no limit.
    pub per_second: u64,
    /// Units at once; 0 for one second of the rate, at least 2.
    pub burst: u64,
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        struct Table {
            #[serde(default)]
            per_second: u64,
            #[serde(default)]
            burst: u64,
        }

        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a rate per second, or per-second and burst")]
        enum Form {
            Number(u64),
            Table(Table),
        }

        Ok(match Form::deserialize(deserializer)? {
            Form::Number(per_second) => Self::per_second(per_second),
            Form::Table(Table { per_second, burst }) => Self { per_second, burst },
        })
    }
}

impl Rate {
    /// No limit.
    pub const UNLIMITED: Self = Self { per_second: 0, burst: 0 };

    /// A rate with a burst of one second.
    #[must_use]
    pub const fn per_second(per_second: u64) -> Self {
        Self { per_second, burst: 0 }
    }

    /// Whether there is no limit.
    #[must_use]
    pub const fn is_unlimited(self) -> bool {
        self.per_second == 0
    }

    /// Units that can be used at once: [`Self::burst`], or one second of the rate. With room for a single unit, a
    /// tenant that asks now and then would lose the time between two of its jobs.
    #[must_use]
    pub const fn depth(self) -> u64 {
        if self.burst == 0 && self.per_second < 2 {
            2
        } else if self.burst == 0 {
            self.per_second
        } else {
            self.burst
        }
    }

    /// A part of the rate and of its burst; at least 1 of each, and no limit stays no limit.
    #[must_use]
    pub fn share(self, of: u64) -> Self {
        let part = |value: u64| if value == 0 { 0 } else { (value / of).max(1) };
        Self { per_second: part(self.per_second), burst: part(self.burst) }
    }
}

/// All rates of a tenant at one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Rates {
    /// Operations, all job classes together.
    pub ops: Rate,
    /// Bytes of input. A job with an input above the burst is let through when the bucket is full.
    pub bytes: Rate,
    /// Operations of single job classes, which count against `ops`, too.
    pub classes: BTreeMap<JobClass, Rate>,
}

impl Rates {
    /// Whether there is no limit at all.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        let mut classes = self.classes.values();
        self.ops.is_unlimited()
            && self.bytes.is_unlimited()
            && classes.all(|rate| rate.is_unlimited())
    }

    /// The rates that stay in force after a grant has expired, if the node is configured to continue: one part in
    /// [`SAFE_SHARE`] of each rate and burst.
    #[must_use]
    pub fn safe_share(&self) -> Self {
        Self {
            ops: self.ops.share(SAFE_SHARE),
            bytes: self.bytes.share(SAFE_SHARE),
            classes: self
                .classes
                .iter()
                .map(|(class, rate)| (*class, rate.share(SAFE_SHARE)))
                .collect(),
        }
    }

    /// Every value that is out of its bounds, after its key in a configuration.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut check = |key: &str, rate: Rate, most: u64| {
            if rate.per_second.max(rate.burst) > most {
                problems.push(format!("{key}: at most {most}"));
            }
            if rate.is_unlimited() && rate.burst > 0 {
                problems.push(format!("{key}: a burst needs a rate"));
            }
        };
        check("ops", self.ops, MAX_OPS);
        check("bytes", self.bytes, MAX_BYTES);
        for (class, rate) in &self.classes {
            check(&format!("class.{class}"), *rate, MAX_OPS);
        }
        if self.classes.len() > MAX_CLASSES {
            problems.push(format!("class: at most {MAX_CLASSES}"));
        }
        problems
    }
}

/// The jobs that one rate counts. Its text is `fast`, `medium` or `slow`, a key type (`rsa-2048`), an operation
/// (`rsa-pss-sign`), or both (`rsa-pss-sign:rsa-2048`). Dashes may be left out: `rsa2048`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
#[schemars(with = "String")]
pub enum JobClass {
    /// All jobs of a cost class of the engine.
    Cost(Class),
    /// All operations with keys of this type and size.
    Key(KeyType),
    /// An operation with any key.
    Operation(OperationKind),
    /// An operation with keys of this type and size.
    OperationWithKey(OperationKind, KeyType),
}

impl JobClass {
    /// Whether a job counts.
    #[must_use]
    pub fn counts(self, operation: OperationKind, key: KeyType) -> bool {
        match self {
            Self::Cost(class) => Class::of(key) == class,
            Self::Key(of) => key == of,
            Self::Operation(of) => operation == of,
            Self::OperationWithKey(of, with) => operation == of && key == with,
        }
    }
}

impl fmt::Display for JobClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cost(class) => f.write_str(class.name()),
            Self::Key(key) => write!(f, "{key}"),
            Self::Operation(operation) => f.write_str(operation.name()),
            Self::OperationWithKey(operation, key) => write!(f, "{}:{key}", operation.name()),
        }
    }
}

/// The text names no job class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no job class: use fast, medium, slow, a key type such as rsa-2048, or an operation such as ecdsa-sign"
)]
pub struct NoJobClass(pub String);

impl FromStr for JobClass {
    type Err = NoJobClass;

    fn from_str(text: &str) -> Result<Self, NoJobClass> {
        let wrong = || NoJobClass(text.to_owned());
        if let Some((operation, key)) = text.split_once(':') {
            let operation = operation_of(operation).ok_or_else(wrong)?;
            let key = key_type_of(key).filter(|key| operation.fits(*key));
            return Ok(Self::OperationWithKey(operation, key.ok_or_else(wrong)?));
        }
        let cost = Class::ALL.into_iter().find(|class| class.name() == text);
        cost.map(Self::Cost)
            .or_else(|| key_type_of(text).map(Self::Key))
            .or_else(|| operation_of(text).map(Self::Operation))
            .ok_or_else(wrong)
    }
}

fn operation_of(text: &str) -> Option<OperationKind> {
    let plain = without_dashes(text);
    let mut kinds = OperationKind::ALL.iter().copied();
    kinds.find(|kind| without_dashes(kind.name()) == plain)
}

fn key_type_of(text: &str) -> Option<KeyType> {
    let plain = without_dashes(text);
    KeyKind::ALL.iter().find_map(|kind| {
        let bits = plain.strip_prefix(&without_dashes(kind.name()))?;
        match (kind.sizes(), bits) {
            (None, "") => kind.with_bits(0),
            (Some(_), bits) if !bits.starts_with('+') => kind.with_bits(bits.parse().ok()?),
            _ => None,
        }
    })
}

fn without_dashes(text: &str) -> String {
    text.replace('-', "")
}

impl Serialize for JobClass {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for JobClass {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_class_is_read_as_it_is_written() {
        let keys = || KeyKind::ALL.iter().flat_map(|kind| kind.extremes());
        let kinds = || OperationKind::ALL.iter().copied();
        let both = kinds().flat_map(|kind| {
            let keys = keys().filter(move |key| kind.fits(*key));
            keys.map(move |key| JobClass::OperationWithKey(kind, key))
        });
        let all = (Class::ALL.into_iter().map(JobClass::Cost))
            .chain(keys().map(JobClass::Key))
            .chain(kinds().map(JobClass::Operation))
            .chain(both);
        for class in all {
            let text = class.to_string();
            assert_eq!(text.parse(), Ok(class), "{text}");
            assert_eq!(without_dashes(&text).parse(), Ok(class), "{text}");
        }
    }

    #[test]
    fn text_that_names_no_job_class_is_refused() {
        for wrong in [
            "",
            "rsa",
            "rsa-1024",
            "rsa2048x",
            "rsa+2048",
            "p-256-1",
            "rsa-pss-sign:p-256",
            "rsa-pss-sign:",
            ":rsa-2048",
        ] {
            assert!(wrong.parse::<JobClass>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn job_counts_in_each_class_that_names_it() {
        let sign = OperationKind::RsaPssSign;
        let key = KeyType::Rsa { bits: 2048 };
        for (class, counts) in [
            ("medium", true),
            ("fast", false),
            ("rsa2048", true),
            ("rsa-4096", false),
            ("rsa-pss-sign", true),
            ("rsa-pkcs1-sign", false),
            ("rsa-pss-sign:rsa-2048", true),
            ("rsa-pss-sign:rsa-3072", false),
        ] {
            let class: JobClass = class.parse().unwrap();
            assert_eq!(class.counts(sign, key), counts, "{class}");
        }
    }

    #[test]
    fn safe_share_is_a_quarter_and_at_least_one_operation() {
        let mut rates = Rates { ops: Rate::per_second(4000), ..Rates::default() };
        let class = "rsa2048".parse().unwrap();
        rates.classes.insert(class, Rate { per_second: 3, burst: 2 });
        let safe = rates.safe_share();
        assert_eq!(safe.ops, Rate::per_second(1000));
        assert!(safe.bytes.is_unlimited());
        assert_eq!(safe.classes[&class], Rate { per_second: 1, burst: 1 });
    }

    #[test]
    fn rate_is_a_number_or_a_table_in_json() {
        let read =
            |text: &str| serde_json::from_str::<Rate>(text).map_err(|error| error.to_string());
        assert_eq!(read("5"), Ok(Rate::per_second(5)));
        let table = Rate { per_second: 5, burst: 2 };
        assert_eq!(read("{\"per-second\": 5, \"burst\": 2}"), Ok(table));
        assert_eq!(read(&serde_json::to_string(&table).unwrap()), Ok(table));
        let wrong = read("{\"per-minute\": 5}").unwrap_err();
        assert!(wrong.contains("expected a rate per second"), "{wrong}");
    }

    #[test]
    fn values_out_of_bounds_are_named() {
        let mut rates = Rates {
            ops: Rate::per_second(MAX_OPS + 1),
            bytes: Rate { per_second: 0, burst: 5 },
            classes: BTreeMap::new(),
        };
        let class: JobClass = "slow".parse().unwrap();
        rates.classes.insert(class, Rate::per_second(MAX_OPS + 1));
        let text = rates.problems().join("\n");
        for part in ["ops: at most", "bytes: a burst", "class.slow: at most"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(Rates::default().problems().is_empty());
    }
}
