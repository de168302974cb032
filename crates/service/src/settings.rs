// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Settings that change while sessions are open: limits, quotas, admitted identities, the log filter.
//!
//! [`Settings`] are one value, replaced as a whole by [`Service::apply`](crate::Service::apply): a change
//! takes effect completely or not at all. Every replacement has a revision number. A session compares one
//! number per turn to notice a change.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use millrace_engine::Owner;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::policy::TENANT_PREFIX;
use crate::rates::{Rate, Rates};
use crate::store::valid_identity;
use crate::tenants::{Bounds, Directory, MAX_NODE_TENANTS, Priority, TenantSettings, Terms};

/// All settings of a service that can change while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Settings {
    /// Whether clients may import keys.
    pub allow_import: bool,
    /// Identities that may open a session; [`EVERYBODY`] admits every authenticated client.
    pub identities: Vec<String>,
    /// Limits of single identities; they replace those in `limits`.
    pub identity: BTreeMap<String, IdentityLimits>,
    /// Tenants, by name. A node with a manager has those of its grants instead.
    pub tenant: BTreeMap<String, TenantSettings>,
    /// Bounds on the resources of clients.
    pub limits: Limits,
    /// Log filter in the syntax of `tracing-subscriber`: `info`, `millrace_server=debug,info`.
    pub log_filter: String,
}

/// The entry of [`Settings::identities`] that admits every authenticated client.
pub const EVERYBODY: &str = "*";

/// Bound on [`Settings::identities`] and on [`Settings::identity`]: far more gateways than one node serves.
pub const MAX_IDENTITIES: usize = 10_000;

impl Default for Settings {
    fn default() -> Self {
        Self {
            allow_import: true,
            identities: vec![EVERYBODY.to_owned()],
            identity: BTreeMap::new(),
            tenant: BTreeMap::new(),
            limits: Limits::default(),
            log_filter: "info".to_owned(),
        }
    }
}

/// Limits of one identity; `None` leaves the common limit in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct IdentityLimits {
    /// Connections of this identity.
    pub connections: Option<usize>,
    /// Operations per second of this identity; 0 for no limit.
    pub quota_ops_per_second: Option<u32>,
    /// Share of a busy engine, relative to 1 for an identity without an entry. Applies to open connections,
    /// too.
    pub weight: Option<u32>,
}

/// Bounds on the resources of clients. [`Limits::default`] gives the reason for each default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "LimitsForm")]
pub struct Limits {
    /// Connections of all authenticated clients. Besides, a quarter as many may be in a TLS handshake.
    pub connections: usize,
    /// Connections of one identity. It gets fewer if it holds more than are still free.
    pub connections_per_identity: usize,
    /// Jobs in flight on one connection. More are answered `Busy`, and reading pauses.
    pub in_flight: u32,
    /// Keys open on one connection, both imported keys and keys of the node.
    pub keys: u32,
    /// Time for the TLS handshake, for the `Hello`, and for an HTTP request, each.
    pub handshake_timeout: Duration,
    /// Time within which the client has to read the data sent to it.
    pub write_timeout: Duration,
    /// Time within which a message that has begun must be complete.
    pub message_timeout: Duration,
    /// Time without messages and jobs after which a connection is closed; zero for never.
    pub idle_timeout: Duration,
    /// The longest budget of a job, and the budget of a job without one.
    pub max_budget: Duration,
    /// Operations per second of one identity, over all its connections; `None` means no limit.
    pub quota: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // An idle connection takes about 20 KiB: 80 MiB at most.
            connections: 4096,
            // A gateway with 128 worker processes, each with a spare connection and one in replacement; a
            // quarter of all connections, so that three such gateways get all their connections.
            connections_per_identity: 1024,
            // 1024 P-256 signatures take 15 ms of one core: enough to keep a node busy over any network, and
            // few enough that it can stop quickly.
            in_flight: 1024,
            // A gateway with a thousand virtual hosts. An imported RSA key takes about 20 KiB.
            keys: 1024,
            // Ten times the duration of a handshake over a slow satellite link.
            handshake_timeout: Duration::from_secs(5),
            // A client that does not read for this long has lost all its handshakes.
            write_timeout: Duration::from_secs(10),
            // A message has at most 64 KiB: 18 kbit/s. A client that needs longer holds a buffer for nothing.
            message_timeout: Duration::from_secs(30),
            // Off: a gateway may be idle at night, and TCP keepalive detects a dead peer.
            idle_timeout: Duration::ZERO,
            // Longer than any TLS client waits for its handshake.
            max_budget: Duration::from_secs(10),
            // Only an operator knows the fair rate of a gateway.
            quota: None,
        }
    }
}

/// The form of [`Limits`] in files and JSON: numbers with the unit in their name.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct LimitsForm {
    connections: usize,
    connections_per_identity: usize,
    in_flight: u32,
    keys: u32,
    handshake_timeout_ms: u64,
    write_timeout_ms: u64,
    message_timeout_ms: u64,
    idle_timeout_ms: u64,
    max_budget_ms: u64,
    quota_ops_per_second: u32,
}

impl Default for LimitsForm {
    fn default() -> Self {
        Limits::default().into()
    }
}

impl From<Limits> for LimitsForm {
    fn from(limits: Limits) -> Self {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            connections: limits.connections,
            connections_per_identity: limits.connections_per_identity,
            in_flight: limits.in_flight,
            keys: limits.keys,
            handshake_timeout_ms: ms(limits.handshake_timeout),
            write_timeout_ms: ms(limits.write_timeout),
            message_timeout_ms: ms(limits.message_timeout),
            idle_timeout_ms: ms(limits.idle_timeout),
            max_budget_ms: ms(limits.max_budget),
            quota_ops_per_second: limits.quota.unwrap_or(0),
        }
    }
}

impl From<LimitsForm> for Limits {
    fn from(form: LimitsForm) -> Self {
        Self {
            connections: form.connections,
            connections_per_identity: form.connections_per_identity,
            in_flight: form.in_flight,
            keys: form.keys,
            handshake_timeout: Duration::from_millis(form.handshake_timeout_ms),
            write_timeout: Duration::from_millis(form.write_timeout_ms),
            message_timeout: Duration::from_millis(form.message_timeout_ms),
            idle_timeout: Duration::from_millis(form.idle_timeout_ms),
            max_budget: Duration::from_millis(form.max_budget_ms),
            quota: (form.quota_ops_per_second > 0).then_some(form.quota_ops_per_second),
        }
    }
}

/// Bound on [`Limits::connections`]: file descriptors are at most 2^20 by default, and other files need some.
pub const MAX_CONNECTIONS: usize = 500_000;
/// Bound on jobs in flight of one client: at 2 KiB each, its waiting completions take at most 128 MiB.
const MAX_IN_FLIGHT: usize = 65_536;
/// One hour: a client that needs longer is gone, and the connection holds its place for nothing.
const MAX_TIMEOUT_MS: usize = 3_600_000;
/// Ten minutes: no protocol waits longer, and adding it to any clock reading cannot overflow.
const MAX_BUDGET_MS: usize = 600_000;
/// More private-key operations per second than the fastest GPU computes.
pub const MAX_QUOTA: usize = 1_000_000;

impl Settings {
    /// Every problem of the values, each with its key in `node.toml`.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let form = LimitsForm::from(self.limits.clone());
        let ms = |time: u64| usize::try_from(time).unwrap_or(usize::MAX);
        let count = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
        #[rustfmt::skip]
        let bounds = [
            ("connections", form.connections, 1, MAX_CONNECTIONS),
            ("connections-per-identity", form.connections_per_identity, 1, usize::MAX),
            ("in-flight", count(form.in_flight), 1, MAX_IN_FLIGHT),
            ("keys", count(form.keys), 1, usize::MAX),
            ("handshake-timeout-ms", ms(form.handshake_timeout_ms), 1, MAX_TIMEOUT_MS),
            ("write-timeout-ms", ms(form.write_timeout_ms), 1, MAX_TIMEOUT_MS),
            ("message-timeout-ms", ms(form.message_timeout_ms), 1, MAX_TIMEOUT_MS),
            ("max-budget-ms", ms(form.max_budget_ms), 1, MAX_BUDGET_MS),
            ("quota-ops-per-second", count(form.quota_ops_per_second), 0, MAX_QUOTA),
        ];
        for (key, value, least, most) in bounds {
            if value < least {
                problems.push(format!("limits.{key}: must be above 0"));
            } else if value > most {
                problems.push(format!("limits.{key}: at most {most}"));
            }
        }
        if self.identities.is_empty() {
            problems.push("identities: leave it out to admit all, or name at least one".to_owned());
        }
        if self.identities.len().max(self.identity.len()) > MAX_IDENTITIES {
            problems.push(format!("identities: at most {MAX_IDENTITIES}"));
        }
        for name in self.identities.iter().chain(self.identity.keys()) {
            if !valid_identity(name) {
                problems.push(format!("identities: {name:?} is not an identity like uid:33"));
            }
        }
        for (name, limits) in &self.identity {
            let quota = limits.quota_ops_per_second.unwrap_or(0);
            if limits.weight.is_some_and(|weight| !(1..=Owner::MAX_WEIGHT).contains(&weight)) {
                problems.push(format!("identity.{name:?}.weight: 1 to {}", Owner::MAX_WEIGHT));
            }
            if count(quota) > MAX_QUOTA {
                problems
                    .push(format!("identity.{name:?}.quota-ops-per-second: at most {MAX_QUOTA}"));
            }
        }
        problems.extend(self.tenant_problems());
        problems
    }

    fn tenant_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.tenant.len() > MAX_NODE_TENANTS {
            problems.push(format!("tenant: at most {MAX_NODE_TENANTS}"));
        }
        let mut owners = BTreeMap::new();
        for (name, tenant) in &self.tenant {
            problems.extend(tenant.problems(name));
            for pattern in &tenant.identities {
                if let Some(other) = owners.insert(pattern, name) {
                    problems.push(format!(
                        "tenant.{name}.identities: {pattern} belongs to tenant {other}"
                    ));
                }
            }
        }
        // Patterns of unix peers at this node decide like all others, whatever its name.
        let directory = Directory::of_settings("", &self.tenant);
        for (identity, limits) in &self.identity {
            let IdentityLimits { connections: _, quota_ops_per_second, weight } = limits;
            let party = self.terms(identity, &directory).map(|terms| terms.party.clone());
            if let Some(tenant) = party.filter(|party| **party != **identity)
                && (quota_ops_per_second.is_some() || weight.is_some())
            {
                problems.push(format!(
                    "identity.{identity:?}: quota-ops-per-second and weight are those of {tenant}; leave them out \
                     here"
                ));
            }
        }
        problems
    }

    /// Whether clients with this identity may open sessions.
    #[must_use]
    pub fn admits(&self, identity: &str) -> bool {
        self.identities.iter().any(|name| name == EVERYBODY || name == identity)
    }

    /// Operations per second of this identity.
    pub(crate) fn quota(&self, identity: &str) -> Option<u32> {
        let own = self.identity.get(identity).and_then(|own| own.quota_ops_per_second);
        own.map_or(self.limits.quota, |rate| (rate > 0).then_some(rate))
    }

    /// Share of a busy engine that this identity gets, relative to others.
    pub(crate) fn weight(&self, identity: &str) -> u32 {
        self.identity.get(identity).and_then(|own| own.weight).unwrap_or(1)
    }

    /// The terms of an identity without a tenant.
    pub(crate) fn terms_of_identity(&self, identity: &str) -> Terms {
        let ops = self.quota(identity).map_or(0, u64::from);
        Terms {
            party: identity.into(),
            weight: self.weight(identity),
            priority: Priority::Normal,
            rates: Rates { ops: Rate::per_second(ops), ..Rates::default() },
            bounds: Bounds::default(),
        }
    }

    /// The terms of an identity; `None` if the node serves only tenants, and it belongs to none.
    pub(crate) fn terms(&self, identity: &str, directory: &Directory) -> Option<Arc<Terms>> {
        match directory.tenant_of(identity) {
            Some(terms) => Some(Arc::clone(terms)),
            None if directory.is_closed() => None,
            None => Some(Arc::new(self.terms_of_identity(identity))),
        }
    }

    /// The terms of a party by its name, if it is a tenant of this node or an identity.
    pub(crate) fn terms_of_party(&self, party: &str, directory: &Directory) -> Option<Arc<Terms>> {
        if party.starts_with(TENANT_PREFIX) {
            directory.tenant(party).cloned()
        } else {
            Some(Arc::new(self.terms_of_identity(party)))
        }
    }

    /// Whether an identity that holds `held` of `open` connections may have another one, if its party holds
    /// `of_party`. Besides the limits of identity and tenant, a party may not hold more connections than are still
    /// free, so busy parties converge to equal shares and a new one always finds room. Connections in a handshake
    /// count as free: their identity is not known yet.
    pub(crate) fn has_room(
        &self,
        identity: &str,
        held: usize,
        of_party: usize,
        bounds: &Bounds,
        open: usize,
    ) -> bool {
        let own = self.identity.get(identity).and_then(|own| own.connections);
        let most = own.unwrap_or(self.limits.connections_per_identity);
        let left = self.limits.connections.saturating_sub(open);
        let of_tenant = bounds.connections;
        held < most && of_party <= left && (of_tenant == 0 || of_party < of_tenant)
    }

    /// The settings that differ from `before`, by key: `limits.in-flight: 1024 → 64`.
    #[must_use]
    pub fn changes_since(&self, before: &Self) -> Vec<String> {
        let former = serde_json::to_value(before).unwrap_or_default();
        let present = serde_json::to_value(self).unwrap_or_default();
        let mut changes = Vec::new();
        compare("", &former, &present, &mut changes);
        for change in &mut changes {
            // As the file names it.
            if let Some(rest) = change.strip_prefix("log-filter") {
                *change = format!("log.filter{rest}");
            }
        }
        changes
    }
}

fn compare(key: &str, before: &Value, after: &Value, changes: &mut Vec<String>) {
    if let (Value::Object(before), Value::Object(after)) = (before, after) {
        let keys = before.keys().chain(after.keys().filter(|key| !before.contains_key(*key)));
        for name in keys {
            let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
            let of =
                |map: &serde_json::Map<String, Value>| map.get(name).cloned().unwrap_or_default();
            compare(&key, &of(before), &of(after), changes);
        }
    } else if before != after {
        changes.push(format!("{key}: {before} → {after}"));
    }
}

/// The settings of one session.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Name of the node, for the welcome.
    pub node: String,
    /// Whether the client may import keys.
    pub allow_import: bool,
    /// Bound on the jobs in flight.
    pub max_in_flight: u32,
    /// Bound on the open keys.
    pub max_keys: u32,
    /// Bound on the budget of a job.
    pub max_budget: Duration,
}

impl Rules {
    pub(crate) fn of(node: &str, settings: &Settings) -> Self {
        let limits = &settings.limits;
        Self {
            node: node.to_owned(),
            allow_import: settings.allow_import,
            max_in_flight: limits.in_flight,
            max_keys: limits.keys,
            max_budget: limits.max_budget,
        }
    }
}

/// The settings in force, with their revision.
#[derive(Clone, Debug)]
pub struct SettingsSnapshot {
    /// Number of the change: 1 at the start, incremented by each change.
    pub revision: u64,
    /// Settings as they were given.
    pub settings: Settings,
    pub(crate) rules: Arc<Rules>,
    pub(crate) directory: Arc<Directory>,
}

impl SettingsSnapshot {
    /// Settings of the node named `name`, with the tenants that it serves.
    pub(crate) fn of(revision: u64, name: &str, settings: Settings, directory: Directory) -> Self {
        Self {
            revision,
            rules: Arc::new(Rules::of(name, &settings)),
            directory: Arc::new(directory),
            settings,
        }
    }

    /// The terms of an identity; `None` if it is not admitted.
    pub(crate) fn terms(&self, identity: &str) -> Option<Arc<Terms>> {
        let admitted = self.settings.admits(identity);
        admitted.then(|| self.settings.terms(identity, &self.directory)).flatten()
    }
}

/// Result of a change of the settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// The revision now in force.
    pub revision: u64,
    /// The changed settings; empty if the new ones equal the old ones.
    pub changes: Vec<String>,
}

/// Refused settings, one line for each problem. The previous settings stay in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problems(pub Vec<String>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

/// A log filter that cannot be used; with the reason in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WrongLogFilter(pub String);

/// Control over the filter of the process's log, which the service does not own.
pub trait LogControl: Send + Sync {
    /// Checks a filter before it is set.
    fn check(&self, filter: &str) -> Result<(), WrongLogFilter>;
    /// Sets a filter that passed [`Self::check`].
    fn set(&self, filter: &str);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: &str = "uid:1";

    /// Whether there is room for an identity that is its own party.
    fn has_room(settings: &Settings, identity: &str, held: usize, open: usize) -> bool {
        settings.has_room(identity, held, held, &Bounds::default(), open)
    }

    /// The connections of each of `identities` after all have requested, in turn, more than there are.
    fn shares(settings: &Settings, identities: usize) -> Vec<usize> {
        let mut held = vec![0; identities];
        for _ in 0..=settings.limits.connections {
            for one in 0..identities {
                let open = held.iter().sum();
                if has_room(settings, ME, held[one], open) {
                    held[one] += 1;
                }
            }
        }
        held
    }

    #[test]
    fn identity_alone_gets_all_connections_configured_for_one() {
        let settings = Settings::default();
        let most = settings.limits.connections_per_identity;
        assert_eq!(shares(&settings, 1), [most]);
        assert_eq!(shares(&settings, 3), [most; 3], "three leave a quarter");
    }

    #[test]
    fn busy_identities_leave_room_for_a_newcomer() {
        let settings = Settings::default();
        let connections = settings.limits.connections;
        for identities in [4, 10, 100] {
            let held = shares(&settings, identities);
            let least = held.iter().min().unwrap();
            let most = held.iter().max().unwrap();
            let left = connections - held.iter().sum::<usize>();
            let share = connections / (identities + 1);
            assert!(most - least <= 1, "{held:?}");
            assert!(least.abs_diff(share) <= 1 && left + 2 >= *most, "{left}: {held:?}");
            assert!(has_room(&settings, ME, 0, connections - left));
        }
    }

    #[test]
    fn identity_with_more_connections_than_are_free_gets_no_more() {
        let mut settings = Settings::default();
        settings.limits.connections = 8;
        settings.limits.connections_per_identity = 8;
        assert!(has_room(&settings, ME, 4, 4));
        assert!(!has_room(&settings, ME, 5, 5));
        assert!(has_room(&settings, ME, 0, 7) && has_room(&settings, ME, 1, 7));
        assert!(!has_room(&settings, ME, 2, 7));
        settings.limits.connections_per_identity = 2;
        assert!(has_room(&settings, ME, 1, 1) && !has_room(&settings, ME, 2, 2));
        settings.limits.connections = 1;
        assert!(has_room(&settings, ME, 0, 0), "the only one");
    }

    #[test]
    fn limits_of_an_identity_replace_the_common_ones() {
        let mut settings = Settings::default();
        settings.limits.quota = Some(100);
        let own =
            IdentityLimits { connections: Some(1), quota_ops_per_second: Some(0), weight: None };
        settings.identity.insert(ME.to_owned(), own);
        assert_eq!(settings.quota(ME), None);
        assert_eq!(settings.quota("uid:2"), Some(100));
        assert!(!has_room(&settings, ME, 1, 1) && has_room(&settings, "uid:2", 1, 1));
    }

    #[test]
    fn identities_of_a_tenant_share_its_connections() {
        let mut settings = Settings::default();
        settings.limits.connections = 8;
        let bounds = |connections| Bounds { connections, ..Bounds::default() };
        assert!(settings.has_room(ME, 0, 4, &bounds(0), 4));
        assert!(!settings.has_room(ME, 0, 5, &bounds(0), 5), "as one identity");
        assert!(!settings.has_room(ME, 0, 2, &bounds(2), 2));
        assert!(settings.has_room(ME, 0, 1, &bounds(2), 1));
    }

    #[test]
    fn problems_of_tenants_are_listed_with_their_key() {
        let mut settings = Settings::default();
        let tenant = |identity: &str| TenantSettings {
            identities: [identity.parse().unwrap()].into(),
            ..TenantSettings::default()
        };
        settings.tenant.insert("acme".to_owned(), tenant("uid:*"));
        assert!(settings.problems().is_empty());
        settings.tenant.insert("other".to_owned(), tenant("uid:*"));
        let own = IdentityLimits { weight: Some(2), ..IdentityLimits::default() };
        settings.identity.insert(ME.to_owned(), own);
        let text = Problems(settings.problems()).to_string();
        for part in [
            "tenant.other.identities: uid:* belongs to tenant acme",
            "weight are those of tenant:acme",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn every_problem_is_listed_with_its_key() {
        let mut settings = Settings::default();
        settings.limits.keys = 0;
        settings.limits.write_timeout = Duration::from_millis(3_600_001);
        settings.limits.quota = Some(1_000_001);
        settings.identities = vec!["has blank".to_owned()];
        let text = Problems(settings.problems()).to_string();
        for part in [
            "limits.keys: must",
            "limits.write-timeout-ms: at most 3600000",
            "limits.quota-ops-per-second: at most",
            "has blank",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(Settings::default().problems().is_empty());
    }

    #[test]
    fn changes_name_the_key_and_both_values() {
        let before = Settings::default();
        let mut after = before.clone();
        after.limits.in_flight = 64;
        after.log_filter = "debug".to_owned();
        let own = IdentityLimits { connections: Some(1), quota_ops_per_second: None, weight: None };
        after.identity.insert(ME.to_owned(), own);
        let changes = after.changes_since(&before);
        assert!(changes.contains(&"limits.in-flight: 1024 → 64".to_owned()), "{changes:?}");
        assert!(changes.contains(&"log.filter: \"info\" → \"debug\"".to_owned()), "{changes:?}");
        assert_eq!(changes.len(), 3, "{changes:?}");
    }
}
