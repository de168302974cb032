// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The keys of the provider's section of `openssl.cnf`, and their values. With a mistake in it the provider does
//! nothing: stubs are no keys then, and plain keys stay with OpenSSL, which no log says.

/// Key types that `algorithms` takes.
pub(crate) const KEY_TYPES: [&str; 13] = [
    "RSA",
    "RSA-PSS",
    "EC",
    "X25519",
    "X448",
    "ED25519",
    "ED448",
    "DH",
    "DHX",
    "DSA",
    "ML-DSA-44",
    "ML-DSA-65",
    "ML-DSA-87",
];

/// The provider's bound on times, in milliseconds.
const MAX_MS: u64 = 60_000;

/// What a key takes.
#[derive(Clone, Copy)]
enum Value {
    Nodes,
    /// A path or a name.
    Text,
    Milliseconds,
    KeyTypes,
    OneOf(&'static [&'static str]),
}

/// One row for each key of the provider, in the order of its documentation.
const KEYS: [(&str, Value); 14] = [
    ("pool", Value::Nodes),
    ("tls_ca", Value::Text),
    ("tls_cert", Value::Text),
    ("tls_key", Value::Text),
    ("tls_server_name", Value::Text),
    ("mode", Value::OneOf(&["async", "sync", "off"])),
    ("algorithms", Value::KeyTypes),
    ("fallback", Value::OneOf(&["on", "off"])),
    ("fallback_after_ms", Value::Milliseconds),
    ("deadline_ms", Value::Milliseconds),
    ("hedge", Value::OneOf(&["on", "off"])),
    ("hedge_after_ms", Value::Milliseconds),
    ("verify", Value::OneOf(&["on", "all"])),
    ("millrace_config", Value::Text),
];

/// Keys of such a section that are OpenSSL's own (config(5ssl)).
const OF_OPENSSL: [&str; 4] = ["module", "activate", "identity", "soft_load"];

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
        if OF_OPENSSL.contains(&key.as_str()) || value.contains('$') {
            return None;
        }
        let Some((_, takes)) = KEYS.iter().find(|(known, _)| known == key) else {
            return Some(Wrong::Unknown(key.clone()));
        };
        let accepted = takes.refuses(value)?;
        Some(Wrong::Value(key.clone(), value.clone(), accepted))
    };
    section.iter().filter_map(mistake).collect()
}

/// The first word of a list that is no key type.
pub(crate) fn unknown_key_type(list: &str) -> Option<&str> {
    words(list).find(|word| {
        !KEY_TYPES
            .iter()
            .any(|known| known.eq_ignore_ascii_case(word))
    })
}

fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

impl Value {
    /// What is accepted, if `value` is not.
    fn refuses(self, value: &str) -> Option<String> {
        let value = value.trim();
        match self {
            Self::Text => None,
            Self::Nodes if words(value).all(is_endpoint) && words(value).next().is_some() => None,
            Self::Nodes => Some("unix:/path and tcp:host:port, separated by commas".to_owned()),
            Self::Milliseconds => {
                let good = value
                    .parse()
                    .is_ok_and(|ms: u64| (1..=MAX_MS).contains(&ms));
                (!good).then(|| format!("1 to {MAX_MS}"))
            }
            Self::KeyTypes => unknown_key_type(value).map(|_| KEY_TYPES.join(",")),
            Self::OneOf(choices) => (!choices.contains(&value)).then(|| choices.join(" or ")),
        }
    }
}

/// Whether this names a node: `unix:/path` or `tcp:host:port`.
pub(crate) fn is_endpoint(text: &str) -> bool {
    match text.split_once(':') {
        Some(("unix", path)) => !path.is_empty(),
        Some(("tcp", address)) => address.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(key: &str, value: &str) -> Vec<Wrong> {
        check(&[(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn keys_equal_those_of_the_guide() {
        let guide = include_str!("../../../docs/guide/settings.md");
        let rows = guide.lines().take_while(|line| !line.starts_with("## "));
        let cells = rows.filter_map(|line| line.strip_prefix("| `")?.split('|').next());
        let documented: Vec<&str> = cells
            .flat_map(|cell| cell.split(','))
            .map(|key| key.trim().trim_matches('`'))
            .collect();
        assert_eq!(documented, KEYS.map(|(key, _)| key));
        assert!(guide.contains(&KEY_TYPES.join(",")));
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
            ("verify", "off"),
        ] {
            assert!(
                matches!(one(key, value)[..], [Wrong::Value(..)]),
                "{key} = {value}"
            );
        }
        for (key, value) in [
            ("activate", "1"),
            ("module", "/x.so"),
            ("mode", "sync"),
            ("pool", "unix:/a, tcp:[::1]:1"),
            ("pool", "$ENV::POOL"),
            ("deadline_ms", "60000"),
            ("algorithms", "rsa, EC"),
            ("verify", "all"),
        ] {
            assert_eq!(one(key, value), [], "{key} = {value}");
        }
    }
}
