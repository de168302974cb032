// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Names that have been checked: they are parts of keys in the store, of metrics and of tables.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use millrace_service::tenants::valid_tenant;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bound on the name of a node, a zone, a key or a principal, in bytes: a DNS label.
pub const MAX_NAME_LEN: usize = 63;

/// Pattern of [`NodeName`] and its like, for the schema.
const PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$";

/// The text is not a name of this kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a name of a {kind}: use 1 to {MAX_NAME_LEN} letters, digits, '-', '_' (and '.', but not in \
     tenants), a letter or a digit first"
)]
pub struct NoName {
    /// Kind of the thing to be named.
    pub kind: &'static str,
    /// The text, cut to a length that fits a line.
    pub text: String,
}

fn valid_label(text: &str) -> bool {
    (1..=MAX_NAME_LEN).contains(&text.len())
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text of the name.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NoName;

            fn from_str(text: &str) -> Result<Self, NoName> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(NoName {
                        kind: $kind,
                        text: text.chars().take(80).collect(),
                    })
                }
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": PATTERN })
            }
        }
    };
}

name!(
    /// Name of a node of the pool.
    NodeName,
    "node",
    valid_label
);
name!(
    /// Name of a tenant.
    TenantName,
    "tenant",
    valid_tenant
);
name!(
    /// Label of the place of a node: rack, room, region. Placement spreads a tenant over zones.
    Zone,
    "zone",
    valid_label
);
name!(
    /// Name of a key of the pool.
    KeyName,
    "key",
    valid_label
);
name!(
    /// Name of a user or program of the manager's API.
    PrincipalName,
    "principal",
    valid_label
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_their_key_in_the_store_are_refused() {
        let long = "n".repeat(MAX_NAME_LEN);
        for right in ["a", "node-1", "rack7.example", &long] {
            assert!(right.parse::<NodeName>().is_ok(), "{right}");
        }
        for wrong in ["", "-a", ".", "..", "a/b", "a b", "é", "a\0", &format!("{long}n")] {
            assert!(wrong.parse::<NodeName>().is_err(), "{wrong}");
        }
        assert!("a.b".parse::<TenantName>().is_err(), "a tenant is a label of metrics");
    }
}
