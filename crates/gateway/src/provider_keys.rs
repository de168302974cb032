// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The keys of the provider's section of `openssl.cnf`, and their values. With a mistake in it the provider does
//! nothing: stubs are not keys then, and plain keys stay with OpenSSL, which no log says.

use millrace_edge::settings::{ValueForm, keys, words};
use millrace_operation::EndpointParts;

/// A mistake in a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// A key that does not exist.
    Unknown(String),
    /// A key, its value, and what it takes.
    Value(String, String, String),
}

/// The mistakes in a section.
pub(crate) fn check(section: &[(String, String)]) -> Vec<Wrong> {
    let mistake = |(key, value): &(String, String)| {
        let Some((_, takes)) = keys().find(|(known, _)| known == key) else {
            return Some(Wrong::Unknown(key.clone()));
        };
        if value.contains('$') {
            return None;
        }
        let accepted = refuses(takes, value)?;
        Some(Wrong::Value(key.clone(), value.clone(), accepted))
    };
    section.iter().filter_map(mistake).collect()
}

/// Values that the key `name` accepts, if it does not accept this one.
pub(crate) fn refused(name: &str, value: &str) -> Option<String> {
    let (_, takes) = keys().find(|(key, _)| *key == name)?;
    refuses(takes, value)
}

/// Accepted values, if `value` is none.
fn refuses(takes: ValueForm, value: &str) -> Option<String> {
    let value = value.trim();
    match takes {
        ValueForm::Text | ValueForm::OfOpenssl => None,
        ValueForm::Nodes if words(value).all(is_endpoint) && words(value).next().is_some() => None,
        ValueForm::Nodes => Some("unix:/path and tcp:host:port, separated by commas".to_owned()),
        ValueForm::Milliseconds(most) => {
            let good = value.parse().is_ok_and(|ms: u64| (1..=most).contains(&ms));
            (!good).then(|| format!("1 to {most}"))
        }
        ValueForm::List { words: known, alone } => {
            let is_known = |word: &str| words(known).any(|known| known.eq_ignore_ascii_case(word));
            let good = words(alone).any(|word| word == value) || words(value).all(is_known);
            (!good).then(|| format!("{}, or some of {known}", alone.replace(',', ", ")))
        }
        ValueForm::OneOf(choices) => {
            let good = words(choices).any(|choice| choice == value);
            (!good).then(|| choices.replace(',', " or "))
        }
    }
}

/// Whether this names a node: `unix:/path` or `tcp:host:port`.
pub(crate) fn is_endpoint(text: &str) -> bool {
    EndpointParts::parse(text).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(key: &str, value: &str) -> Vec<Wrong> {
        check(&[(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn unknown_keys_and_bad_values_are_named() {
        assert_eq!(one("modde", "off"), [Wrong::Unknown("modde".to_owned())]);
        for (key, value) in [
            ("mode", "asynchronous"),
            ("pool", "node-1:7433"),
            ("pool", ""),
            ("deadline_ms", "0"),
            ("deadline_ms", "60001"),
            ("deadline_ms", "2 s"),
            ("algorithms", "RSA,FOO"),
            ("local", "yes"),
            ("local", "on,X25519"),
            ("pairs_ahead", "8"),
            ("verify", "off"),
        ] {
            assert!(matches!(one(key, value)[..], [Wrong::Value(..)]), "{key} = {value}");
        }
        for (key, value) in [
            ("activate", "1"),
            ("module", "/x.so"),
            ("mode", "sync"),
            ("pool", "unix:/a, tcp:[::1]:1"),
            ("pool", "$ENV::POOL"),
            ("deadline_ms", "60000"),
            ("algorithms", "rsa, EC"),
            ("algorithms", "none"),
            ("local", "on"),
            ("local", "all"),
            ("local", "x25519, tls13-kdf"),
            ("pairs_ahead", "off"),
            ("choice_file", "/var/lib/x.tsv"),
            ("verify", "all"),
        ] {
            assert_eq!(one(key, value), [], "{key} = {value}");
        }
    }
}
