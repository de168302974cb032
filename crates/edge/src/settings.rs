// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The keys of the provider's section of `openssl.cnf`. `settings.tsv` has one a row; docs/guide/settings.md states
//! their defaults and meaning.

const TABLE: &str = include_str!("../settings.tsv");

/// Values that a key takes. Words are separated by commas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
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

impl Takes {
    /// Reads the columns of a row after the key.
    fn of(mut columns: impl Iterator<Item = &'static str>) -> Option<Self> {
        let (form, words) = (columns.next()?, columns.next().unwrap_or_default());
        Some(match form {
            "nodes" => Self::Nodes,
            "text" => Self::Text,
            "ms" => Self::Milliseconds(words.parse().ok()?),
            "one of" => Self::OneOf(words),
            "list" => Self::List {
                words,
                alone: columns.next().unwrap_or_default(),
            },
            "openssl" => Self::OfOpenssl,
            _ => return None,
        })
    }
}

/// The keys with what they take, in the order of their documentation.
pub fn keys() -> impl Iterator<Item = (&'static str, Takes)> {
    let rows = TABLE.lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|row| {
        let mut columns = row.split('\t');
        Some((columns.next()?, Takes::of(columns)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_understood() {
        let rows = TABLE.lines().filter(|line| !line.starts_with('#'));
        let named: Vec<&str> = rows.filter_map(|row| row.split('\t').next()).collect();
        assert_eq!(named, keys().map(|(key, _)| key).collect::<Vec<_>>());
    }
}
