// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The keys of the provider's section of `openssl.cnf` and of its own file. `settings.tsv` has one a row, with its
//! default and meaning. Defaults and forms that tools need, too, are here.

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
    rows().filter_map(|row| {
        let mut columns = row.split('\t');
        Some((columns.next()?, ValueForm::of(columns)?))
    })
}

fn rows() -> impl Iterator<Item = &'static str> {
    TABLE.lines().filter(|line| !line.starts_with('#'))
}

/// The provider's own file with every key at its default, and the meaning of each.
#[must_use]
pub fn sample() -> String {
    let mut text = SAMPLE_HEAD.to_owned();
    for row in rows() {
        let columns: Vec<&str> = row.split('\t').collect();
        let [key, form, words, alone, default, meaning] = columns[..] else {
            continue;
        };
        let listed = words.replace(',', ", ");
        let range = match form {
            "one of" => format!(" One of {listed}."),
            "list" => format!(" {}, or some of {listed}.", alone.replace(',', ", ")),
            "ms" => format!(" 1 to {words}."),
            _ => String::new(),
        };
        if !meaning.is_empty() {
            text.push('\n');
            comment(&mut text, &format!("{meaning}{range}"));
        }
        match default.strip_prefix("#: ") {
            Some(example) => text.push_str(&format!("#: {key} = {example}\n")),
            None if default.is_empty() => text.push_str(&format!("# {key}\n")),
            None => text.push_str(&format!("{key} = {default}\n")),
        }
    }
    text
}

const SAMPLE_HEAD: &str = "\
# Settings of the provider in a gateway: /etc/millrace/client.toml, or the file that
# MILLRACE_CLIENT_CONF or millrace_config in openssl.cnf names. Every key is here at its
# default. Lines that begin with \"#: \" are examples of keys without a default. The same
# keys in the provider's section of openssl.cnf come before those of this file.
";

/// Columns of a comment in a sample.
const COMMENT_COLUMNS: usize = 88;

/// Adds a text as lines of a comment.
fn comment(out: &mut String, text: &str) {
    let mut columns = 0;
    for word in text.split(' ') {
        if columns > 0 && columns + 1 + word.len() <= COMMENT_COLUMNS {
            out.push(' ');
            columns += 1 + word.len();
        } else {
            out.push_str(if columns == 0 { "# " } else { "\n# " });
            columns = 2 + word.len();
        }
        out.push_str(word);
    }
    out.push('\n');
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
        let named: Vec<&str> = rows().filter_map(|row| row.split('\t').next()).collect();
        assert_eq!(named, keys().map(|(key, _)| key).collect::<Vec<_>>());
        let sample = sample();
        for (key, form) in keys().filter(|(_, form)| *form != ValueForm::OfOpenssl) {
            assert!(
                sample.contains(&format!("{key} = ")) || sample.contains(&format!("# {key}\n"))
            );
            if let ValueForm::List { words: list, .. } = form {
                assert!(words(list).all(|word| sample.contains(word)), "{key}");
            }
        }
    }
}
