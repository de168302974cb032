// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Tenants: who pays. Each identity belongs to at most one tenant; its name, weight, priority and rates come from
//! `node.toml` or from grants.
//!
//! An identity without a tenant is a tenant of its own, without a name. Its weight and quota are those of its own entry
//! in the settings, and its priority is [`Priority::Normal`].

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use millrace_engine::{Owner, PriorityLevel};
use millrace_operation::coded_enum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy::TENANT_PREFIX;
use crate::rates::{JobClass, Rate, Rates};
use crate::store::{MAX_IDENTITY_LEN, valid_identity};

/// Bound on the name of a tenant, in bytes: a DNS label.
pub const MAX_TENANT_LEN: usize = 63;

/// Bound on the identities of one tenant: more gateways than one tenant has at one node.
pub const MAX_TENANT_IDENTITIES: usize = 1024;

/// Bound on the tenants of a node, its own or those with a grant: each has a row in `/status` and about 30 lines in
/// `/metrics`.
pub const MAX_NODE_TENANTS: usize = 1000;

/// Whether `name` may name a tenant: letters, digits, `-` and `_`, the first one a letter or a digit. It is a label
/// of metrics and part of `tenant:NAME` in key policies.
#[must_use]
pub fn valid_tenant(name: &str) -> bool {
    (1..=MAX_TENANT_LEN).contains(&name.len())
        && !name.starts_with(['-', '_'])
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

coded_enum! {
    /// The order in which tenants are served when a node is busy. Within a priority, weights decide.
    #[derive(Default, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Priority {
        /// Before all others, within the tenant's rates.
        High = 0x01 "high",
        /// The default.
        #[default]
        Normal = 0x02 "normal",
        /// With what the others leave, and a small part in any case.
        Low = 0x03 "low",
    }
}

impl Priority {
    /// Level of the engine's queue for this priority.
    pub(crate) fn level(self) -> PriorityLevel {
        match self {
            Self::High => PriorityLevel::High,
            Self::Normal => PriorityLevel::Normal,
            Self::Low => PriorityLevel::Low,
        }
    }
}

/// Identities of a tenant: an exact identity, or all that begin with the text before a final `*`. A unix peer at one
/// node of a pool is `uid:N@NODE`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
#[schemars(with = "String")]
pub struct IdentityPattern(String);

impl IdentityPattern {
    /// The text of the pattern.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Length of the match: the longest pattern that matches decides, an exact one before all others. `None` if the
    /// identity does not match.
    #[must_use]
    pub fn matches(&self, identity: &str) -> Option<usize> {
        match self.0.strip_suffix('*') {
            Some(prefix) => identity.starts_with(prefix).then_some(prefix.len()),
            None => (self.0 == identity).then_some(usize::MAX),
        }
    }
}

/// The text is not a pattern of identities.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an identity such as cert:gateway-1, spiffe://pool/gateway or uid:33@node-1, nor the beginning of one \
     that ends in *"
)]
pub struct NoPattern(pub String);

impl Borrow<str> for IdentityPattern {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for IdentityPattern {
    type Err = NoPattern;

    fn from_str(text: &str) -> Result<Self, NoPattern> {
        let known = ["cert:", "spiffe:", "uid:"]
            .iter()
            .any(|kind| text.len() > kind.len() && text.starts_with(kind));
        let star = text.find('*').is_none_or(|at| at + 1 == text.len());
        if known && star && valid_identity(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NoPattern(text.chars().take(MAX_IDENTITY_LEN).collect()))
        }
    }
}

impl fmt::Display for IdentityPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for IdentityPattern {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for IdentityPattern {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The settings of a tenant: `[tenant.NAME]` in `node.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct TenantSettings {
    /// The identities of the tenant.
    pub identities: BTreeSet<IdentityPattern>,
    /// Share of a busy node relative to 1 for a tenant without an entry, within its priority.
    pub weight: u32,
    /// The tenant's priority.
    pub priority: Priority,
    /// Operations, all job classes together.
    pub ops: Rate,
    /// Bytes of input.
    pub bytes: Rate,
    /// Operations of single job classes.
    pub class: BTreeMap<JobClass, Rate>,
    /// Bounds on the memory that the tenant's clients take.
    pub bounds: Bounds,
}

/// Bounds on what the clients of one party hold at a node, over all their connections. [`Bounds::default`] gives the
/// reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Bounds {
    /// Jobs that have not ended; more are answered `busy`.
    pub jobs_in_flight: usize,
    /// Bytes of their inputs.
    pub bytes_in_flight: u64,
    /// Keys that the clients imported and have open.
    pub imported_keys: usize,
    /// Connections; 0 for no bound but those of `[limits]`.
    pub connections: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            // Twice what the queue of one class holds: more would only be refused there.
            jobs_in_flight: 16_384,
            // A thousand inputs of the greatest length. Those of TLS have 32 to 145 bytes.
            bytes_in_flight: 16 * 1024 * 1024,
            // At 20 KiB for an RSA key, 320 MiB.
            imported_keys: 16_384,
            connections: 0,
        }
    }
}

impl Default for TenantSettings {
    fn default() -> Self {
        Self {
            identities: BTreeSet::new(),
            weight: 1,
            priority: Priority::Normal,
            ops: Rate::UNLIMITED,
            bytes: Rate::UNLIMITED,
            class: BTreeMap::new(),
            bounds: Bounds::default(),
        }
    }
}

impl TenantSettings {
    /// The rates of the tenant.
    #[must_use]
    pub fn rates(&self) -> Rates {
        Rates { ops: self.ops, bytes: self.bytes, classes: self.class.clone() }
    }

    /// Every problem of the values of tenant `name`, each with its key in `node.toml`.
    pub(crate) fn problems(&self, name: &str) -> Vec<String> {
        let mut problems = self.rates().problems();
        if !valid_tenant(name) {
            problems
                .push(format!("the name has letters, digits, - and _, at most {MAX_TENANT_LEN}"));
        }
        if !(1..=Owner::MAX_WEIGHT).contains(&self.weight) {
            problems.push(format!("weight: 1 to {}", Owner::MAX_WEIGHT));
        }
        if self.identities.len() > MAX_TENANT_IDENTITIES {
            problems.push(format!("identities: at most {MAX_TENANT_IDENTITIES}"));
        }
        let Bounds { jobs_in_flight, bytes_in_flight, imported_keys: _, connections: _ } =
            self.bounds;
        if jobs_in_flight == 0 || bytes_in_flight == 0 {
            problems.push("bounds: jobs-in-flight and bytes-in-flight must be above 0".to_owned());
        }
        problems.into_iter().map(|problem| format!("tenant.{name}.{problem}")).collect()
    }
}

/// Party that an identity's jobs are charged to, and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// `tenant:NAME`, or the identity if it has no tenant. All identities of a party share one account.
    pub party: Arc<str>,
    /// Share of a busy node.
    pub weight: u32,
    /// Order on a busy node.
    pub priority: Priority,
    /// Limits on rates.
    pub rates: Rates,
    /// Limits on memory.
    pub bounds: Bounds,
}

impl Terms {
    fn of_tenant(name: &str, tenant: &TenantSettings) -> Self {
        Self {
            party: format!("{TENANT_PREFIX}{name}").into(),
            weight: tenant.weight,
            priority: tenant.priority,
            rates: tenant.rates(),
            bounds: tenant.bounds,
        }
    }

    /// The tenant's name, if the party is one.
    #[must_use]
    pub fn tenant(&self) -> Option<&str> {
        self.party.strip_prefix(TENANT_PREFIX)
    }
}

/// The tenants of a node, and which identity belongs to which.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Directory {
    /// Name of the node, for identities such as `uid:33@NODE`.
    node: String,
    /// Whether an identity without a tenant is refused.
    closed: bool,
    /// Terms by identity; `None` for one that belongs to a tenant which this node does not serve.
    exact: HashMap<String, Option<Arc<Terms>>>,
    /// The same by the text before the `*`, the longest first.
    prefixes: Vec<(String, Option<Arc<Terms>>)>,
    tenants: BTreeMap<Arc<str>, Arc<Terms>>,
}

impl Directory {
    /// The tenants of `node.toml`; an identity without a tenant is one of its own.
    pub(crate) fn of_settings(node: &str, tenants: &BTreeMap<String, TenantSettings>) -> Self {
        let mut directory = Self { node: node.to_owned(), ..Self::default() };
        for (name, tenant) in tenants {
            directory.add(Terms::of_tenant(name, tenant), &tenant.identities);
        }
        directory
    }

    /// A directory without tenants that refuses identities without one.
    pub(crate) fn closed(node: &str) -> Self {
        Self { node: node.to_owned(), closed: true, ..Self::default() }
    }

    /// Adds a tenant. Of two tenants with the same pattern the first one keeps it.
    pub(crate) fn add(&mut self, terms: Terms, identities: &BTreeSet<IdentityPattern>) {
        let terms = Arc::new(terms);
        self.map(identities, Some(&terms));
        self.tenants.insert(Arc::clone(&terms.party), terms);
    }

    /// Notes identities of tenants that this node does not serve: no shorter pattern gives them to another tenant.
    pub(crate) fn exclude(&mut self, identities: &BTreeSet<IdentityPattern>) {
        self.map(identities, None);
    }

    fn map(&mut self, identities: &BTreeSet<IdentityPattern>, terms: Option<&Arc<Terms>>) {
        for pattern in identities {
            match pattern.as_str().strip_suffix('*') {
                None => {
                    let exact = self.exact.entry(pattern.as_str().to_owned());
                    exact.or_insert_with(|| terms.cloned());
                }
                Some(prefix) => {
                    let place =
                        self.prefixes.partition_point(|(known, _)| known.len() >= prefix.len());
                    self.prefixes.insert(place, (prefix.to_owned(), terms.cloned()));
                }
            }
        }
    }

    /// Whether an identity without a tenant is refused.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// The terms of a tenant, by the name of its party.
    pub(crate) fn tenant(&self, party: &str) -> Option<&Arc<Terms>> {
        self.tenants.get(party)
    }

    /// All tenants, by name.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = &Arc<Terms>> {
        self.tenants.values()
    }

    /// The terms of the tenant that an identity belongs to.
    pub(crate) fn tenant_of(&self, identity: &str) -> Option<&Arc<Terms>> {
        let found = self.by_pattern(identity).or_else(|| {
            // In a pool the same user id names different users on different hosts.
            let local = identity.starts_with("uid:");
            local.then(|| self.by_pattern(&format!("{identity}@{}", self.node))).flatten()
        });
        found?.as_ref()
    }

    fn by_pattern(&self, identity: &str) -> Option<&Option<Arc<Terms>>> {
        self.exact.get(identity).or_else(|| {
            let mut prefixes = self.prefixes.iter();
            prefixes.find(|(prefix, _)| identity.starts_with(prefix)).map(|(_, terms)| terms)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[test]
    fn pattern_matches_exactly_or_by_its_beginning() {
        let matches = |pattern: &str, identity: &str| {
            let pattern: IdentityPattern = pattern.parse().unwrap();
            pattern.matches(identity)
        };
        assert_eq!(matches("cert:gw-1", "cert:gw-1"), Some(usize::MAX));
        assert_eq!(matches("cert:gw-1", "cert:gw-10"), None);
        assert_eq!(matches("cert:gw-*", "cert:gw-10"), Some(8));
        assert!(matches("cert:g*", "cert:gw-10") < matches("cert:gw-*", "cert:gw-10"));
        assert_eq!(matches("cert:gw-*", "uid:1"), None);
    }

    #[test]
    fn pattern_that_would_match_every_kind_of_identity_is_refused() {
        for wrong in ["", "*", "cert:", "c*", "cert:a*b", "cert:**", "cert:a b", "uid", "x:1"] {
            assert!(wrong.parse::<IdentityPattern>().is_err(), "{wrong}");
        }
        for right in ["cert:*", "spiffe://pool/*", "uid:33@node-1", "uid:*"] {
            assert!(right.parse::<IdentityPattern>().is_ok(), "{right}");
        }
    }

    fn settings(tenants: &[(&str, &[&str])]) -> Settings {
        let mut settings = Settings::default();
        for (name, identities) in tenants {
            let tenant = TenantSettings {
                identities: identities.iter().map(|text| text.parse().unwrap()).collect(),
                ..TenantSettings::default()
            };
            settings.tenant.insert((*name).to_owned(), tenant);
        }
        settings
    }

    #[test]
    fn identity_belongs_to_the_tenant_with_the_longest_pattern() {
        let settings = settings(&[
            ("all", &["cert:*"]),
            ("gateways", &["cert:gw-*", "uid:33@here", "uid:0"]),
            ("one", &["cert:gw-1"]),
        ]);
        let directory = Directory::of_settings("here", &settings.tenant);
        for (identity, party) in [
            ("cert:gw-1", "tenant:one"),
            ("cert:gw-10", "tenant:gateways"),
            ("cert:other", "tenant:all"),
            ("uid:33", "tenant:gateways"),
            ("uid:0", "tenant:gateways"),
            ("uid:34", "uid:34"),
            ("spiffe://pool/x", "spiffe://pool/x"),
        ] {
            let terms = settings.terms(identity, &directory).unwrap();
            assert_eq!(&*terms.party, party, "{identity}");
        }
        let elsewhere = Directory::of_settings("there", &settings.tenant);
        assert_eq!(&*settings.terms("uid:33", &elsewhere).unwrap().party, "uid:33");
    }

    #[test]
    fn identity_of_a_tenant_that_is_served_elsewhere_belongs_to_no_other() {
        let settings = settings(&[("all", &["cert:*"]), ("gateways", &["cert:gw-*"])]);
        let mut directory = Directory::of_settings("here", &settings.tenant);
        let elsewhere = ["cert:gw-1", "cert:x-*"].map(|text| text.parse().unwrap());
        directory.exclude(&elsewhere.into());
        let party = |identity: &str| directory.tenant_of(identity).map(|terms| &*terms.party);
        assert_eq!((party("cert:gw-1"), party("cert:x-7")), (None, None));
        assert_eq!(party("cert:gw-2"), Some("tenant:gateways"));
        assert_eq!(party("cert:y"), Some("tenant:all"));
    }

    #[test]
    fn closed_directory_has_terms_for_tenants_alone() {
        let settings = settings(&[("acme", &["cert:gw-1"])]);
        let mut directory = Directory::of_settings("here", &settings.tenant);
        directory.closed = true;
        assert!(settings.terms("cert:gw-1", &directory).is_some());
        assert!(settings.terms("cert:gw-2", &directory).is_none());
    }

    #[test]
    fn settings_of_a_tenant_out_of_bounds_are_named() {
        let mut settings = settings(&[("a b", &[])]);
        let tenant = settings.tenant.get_mut("a b").unwrap();
        tenant.weight = 0;
        tenant.ops = Rate { per_second: 0, burst: 1 };
        tenant.bounds.jobs_in_flight = 0;
        let text = tenant.problems("a b").join("\n");
        for part in ["a b.the name", "a b.weight: 1 to", "ops: a burst", "jobs-in-flight"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn tenant_names_are_labels() {
        for right in ["acme", "a", "7up", "a_b-c", &"t".repeat(MAX_TENANT_LEN)] {
            assert!(valid_tenant(right), "{right}");
        }
        for wrong in ["", "-a", "a.b", "a b", "é", "a:b", "*", &"t".repeat(64)] {
            assert!(!valid_tenant(wrong), "{wrong}");
        }
    }
}
