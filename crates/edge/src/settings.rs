// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The keys of the provider's section of `openssl.cnf`. `settings.tsv` has one a row; docs/guide/settings.md states
//! their defaults and meaning. Defaults and forms that tools need, too, are here.

const TABLE: &str = include_str!("../settings.tsv");

/// Socket of the node, if `pool` is not set.
pub const DEFAULT_SOCKET: &str = "/run/millrace/node.sock";

/// Value of `mode`, if it is not set.
pub const DEFAULT_MODE: &str = "async";

/// Value of `local`, if it is not set.
pub const DEFAULT_LOCAL: &str = "off";

/// The words of a value, which commas separate.
pub fn words(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|word| !word.is_empty())
}

/// The value of `local`: which primitives the provider computes in the gateway's own process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalChoice<'a> {
    /// No primitive: `off`, or no word.
    Off,
    /// The primitives that were measured to be faster than the installed OpenSSL: `on`.
    IfFaster,
    /// Every primitive: `all`.
    All,
    /// The primitives with these names.
    Named(Vec<&'a str>),
}

impl<'a> LocalChoice<'a> {
    /// The choice that the words of the value make.
    #[must_use]
    pub fn of(words: impl IntoIterator<Item = &'a str>) -> Self {
        let words: Vec<&str> = words.into_iter().collect();
        match words[..] {
            [] | ["off"] => Self::Off,
            ["on"] => Self::IfFaster,
            ["all"] => Self::All,
            _ => Self::Named(words),
        }
    }

    /// Whether a primitive of this name may be computed there.
    #[must_use]
    pub fn has(&self, primitive: &str) -> bool {
        match self {
            Self::Off => false,
            Self::IfFaster | Self::All => true,
            Self::Named(words) => words.iter().any(|word| word.eq_ignore_ascii_case(primitive)),
        }
    }
}

/// Form of a key's value. Words are separated by commas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueForm {
    /// Endpoints of nodes.
    Nodes,
    /// A path or a name.
    Text,
    /// A number of milliseconds, at least 1 and at most this.
    Milliseconds(u64),
    /// One of these words.
    OneOf(&'static str),
    /// Some of `words`, or one of `alone`.
    List {
        /// Words that may stand together.
        words: &'static str,
        /// Words that stand alone.
        alone: &'static str,
    },
    /// OpenSSL reads it.
    OfOpenssl,
}

impl ValueForm {
    /// Reads the columns of a row after the key.
    fn of(mut columns: impl Iterator<Item = &'static str>) -> Option<Self> {
        let form = columns.next()?;
        let words = columns.next().unwrap_or_default();
        Some(match form {
            "nodes" => Self::Nodes,
            "text" => Self::Text,
            "ms" => Self::Milliseconds(words.parse().ok()?),
            "one of" => Self::OneOf(words),
            "list" => Self::List { words, alone: columns.next().unwrap_or_default() },
            "openssl" => Self::OfOpenssl,
            _ => return None,
        })
    }
}

/// The keys with what they take, in the order of their documentation.
pub fn keys() -> impl Iterator<Item = (&'static str, ValueForm)> {
    let rows = TABLE.lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|row| {
        let mut columns = row.split('\t');
        Some((columns.next()?, ValueForm::of(columns)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_is_off_on_all_or_names() {
        let of = |value| LocalChoice::of(words(value));
        assert_eq!(of(""), LocalChoice::Off);
        assert_eq!(of(DEFAULT_LOCAL), LocalChoice::Off);
        assert_eq!(of(" on "), LocalChoice::IfFaster);
        assert_eq!(of("all"), LocalChoice::All);
        assert_eq!(of("x25519, ,b"), LocalChoice::Named(vec!["x25519", "b"]));
        assert!(of("on").has("X25519") && of("a,x25519").has("X25519"));
        assert!(!of("off").has("X25519") && !of("ML-KEM-768").has("X25519"));
    }

    #[test]
    fn every_row_of_the_table_is_understood() {
        let rows = TABLE.lines().filter(|line| !line.starts_with('#'));
        let named: Vec<&str> = rows.filter_map(|row| row.split('\t').next()).collect();
        assert_eq!(named, keys().map(|(key, _)| key).collect::<Vec<_>>());
    }
}
