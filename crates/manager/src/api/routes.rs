// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The table of requests, and the function behind each row.

use std::collections::BTreeSet;

use aws_lc_rs::rand;
use millrace_service::overview::{MAX_ROWS, Overview, now_ms};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::auth::role_name;
use super::keys::{self, KeyView, NewKey};
use super::problem::{Code, Problem};
use super::{Call, Caller, Page, Precondition, Reply, openapi};
use crate::ManagerError;
use crate::model::holder::{GrantSet, Registered};
use crate::model::view::{Versioned, View};
use crate::model::{
    Actor, AuditEntry, AuditHead, Command, Credential, Heartbeat, Node, NodeName, NodeState,
    Placement, Principal, PrincipalName, Quota, Refusal, Registration, Role, Tenant, TenantName,
    TokenHash,
};

/// A method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Get,
    Post,
    Put,
    Delete,
}

/// Access rule of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everyone.
    Open,
    /// Everyone with a certificate or a token.
    Authenticated,
    /// A principal with this role, or one that includes it.
    Role(Role),
}

/// Endpoint of the API.
pub(super) struct Route {
    pub(super) method: Verb,
    pub(super) path: &'static str,
    pub(super) access: Access,
    /// Summary of the endpoint for the `OpenAPI` document, one sentence.
    pub(super) summary: &'static str,
    /// Schema of the body; `None` for a request without one.
    pub(super) body: Option<SchemaOf>,
    /// Schema of the answer; `None` for one without a body.
    pub(super) answer: Option<SchemaOf>,
    /// Whether the answer is a [`Page`].
    pub(super) paged: bool,
    pub(super) act: fn(&Call) -> Result<Reply, Problem>,
}

pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

const VIEWER: Access = Access::Role(Role::Viewer);
const OPERATOR: Access = Access::Role(Role::Operator);
const ADMIN: Access = Access::Role(Role::Admin);
const NODE: Access = Access::Role(Role::Node);

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

const fn row(
    method: Verb,
    path: &'static str,
    access: Access,
    act: fn(&Call) -> Result<Reply, Problem>,
    summary: &'static str,
) -> Route {
    Route { method, path, access, summary, body: None, answer: None, paged: false, act }
}

impl Route {
    const fn takes(mut self, body: SchemaOf) -> Self {
        self.body = Some(body);
        self
    }

    const fn gives(mut self, answer: SchemaOf) -> Self {
        self.answer = Some(answer);
        self
    }

    const fn paged(mut self) -> Self {
        self.paged = true;
        self
    }
}

/// The API.
#[rustfmt::skip]
pub(super) const ROUTES: &[Route] = &[
    row(Verb::Get,    "/v1/openapi.json", Access::Open, openapi_document, "This document"),
    row(Verb::Get,    "/healthz", Access::Open, healthz, "Whether the manager reaches its store"),
    row(Verb::Get,    "/metrics", VIEWER, metrics, "Metrics in the text format of Prometheus"),
    row(Verb::Get,    "/v1/state", VIEWER, state, "What the page shows").gives(of::<Overview>),
    row(Verb::Get,    "/v1/nodes", VIEWER, nodes, "The nodes").gives(of::<Page<NodeView>>).paged(),
    row(Verb::Get,    "/v1/nodes/{node}", VIEWER, node, "A node").gives(of::<NodeView>),
    row(Verb::Delete, "/v1/nodes/{node}", OPERATOR, remove_node, "Remove a node: it loses its slices and keys"),
    row(Verb::Post,   "/v1/nodes/{node}/drain", OPERATOR, drain, "Move all tenants away from a node"),
    row(Verb::Post,   "/v1/nodes/{node}/undrain", OPERATOR, undrain, "Let a node take tenants again"),
    row(Verb::Post,   "/v1/nodes/{node}/readmit", ADMIN, readmit, "Let a removed node register again"),
    row(Verb::Post,   "/v1/nodes/{node}/register", NODE, register, "Register a node").takes(of::<Registration>).gives(of::<Registered>),
    row(Verb::Post,   "/v1/nodes/{node}/heartbeat", NODE, heartbeat, "Renew the lease of a node").takes(of::<HeartbeatReport>).gives(of::<GrantSet>),
    row(Verb::Post,   "/v1/nodes/{node}/leave", NODE, leave, "End the lease of a node that has stopped serving").takes(of::<Leave>),
    row(Verb::Get,    "/v1/tenants", VIEWER, tenants, "The tenants").gives(of::<Page<Tenant>>).paged(),
    row(Verb::Get,    "/v1/tenants/{tenant}", VIEWER, tenant, "A tenant").gives(of::<Tenant>),
    row(Verb::Put,    "/v1/tenants/{tenant}", OPERATOR, put_tenant, "Make a tenant (if-none-match: *) or replace its values").takes(of::<Tenant>).gives(of::<Tenant>),
    row(Verb::Delete, "/v1/tenants/{tenant}", OPERATOR, remove_tenant, "Remove a tenant"),
    row(Verb::Put,    "/v1/tenants/{tenant}/quota", OPERATOR, put_quota, "Set the quota of a tenant").takes(of::<QuotaBody>).gives(of::<Tenant>),
    row(Verb::Put,    "/v1/tenants/{tenant}/placement", OPERATOR, put_placement, "Say where a tenant is served").takes(of::<Placement>).gives(of::<Tenant>),
    row(Verb::Get,    "/v1/tenants/{tenant}/grants", VIEWER, tenant_grants, "The nodes of a tenant and its slices").gives(of::<TenantGrants>),
    row(Verb::Get,    "/v1/grants/self", Access::Authenticated, own_grants, "The nodes of the tenant that the caller's certificate belongs to").gives(of::<TenantGrants>),
    row(Verb::Get,    "/v1/keys", VIEWER, keys::keys, "The private keys of the pool, without the keys").gives(of::<Page<KeyView>>).paged(),
    row(Verb::Get,    "/v1/keys/{key}", VIEWER, keys::key, "A key, without its private half").gives(of::<KeyView>),
    row(Verb::Put,    "/v1/keys/{key}", ADMIN, keys::put_key, "Give the pool a private key (if-none-match: *) or replace one: the former one stays as a former version").takes(of::<NewKey>).gives(of::<KeyView>),
    row(Verb::Post,   "/v1/keys/{key}/forget-former", ADMIN, keys::forget_former, "End the former versions of a key").gives(of::<KeyView>),
    row(Verb::Delete, "/v1/keys/{key}", ADMIN, keys::remove_key, "Remove a key with all its versions"),
    row(Verb::Get,    "/v1/tokens", ADMIN, principals, "The principals, without their tokens").gives(of::<Page<PrincipalView>>).paged(),
    row(Verb::Put,    "/v1/tokens/{principal}", ADMIN, put_principal, "Make or replace a principal; a new token is in the answer, and nowhere else").takes(of::<NewToken>).gives(of::<Token>),
    row(Verb::Delete, "/v1/tokens/{principal}", ADMIN, remove_principal, "Remove a principal"),
    row(Verb::Get,    "/v1/audit", VIEWER, audit, "The audit log, oldest entry first; `after` is a number").gives(of::<Page<AuditEntry>>).paged(),
    row(Verb::Get,    "/v1/audit/head", VIEWER, audit_head, "Number and hash of the newest audit entry").gives(of::<AuditHead>),
];

/// A node as the API shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeView {
    /// Name of the node.
    pub name: NodeName,
    /// State in the pool.
    pub state: NodeState,
    /// Its record.
    pub node: Node,
    /// Tenants that are placed on it.
    pub tenants: BTreeSet<TenantName>,
    /// Capacity that no tenant holds, in parts per million.
    pub free_ppm: u64,
}

/// Report that a node sends every few seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatReport {
    /// Report of the node, for the lease and the grants.
    pub heartbeat: Heartbeat,
    /// For the page. A report in the form of another version is left out, and the heartbeat counts.
    #[serde(default, deserialize_with = "readable")]
    pub overview: Option<Overview>,
}

fn readable<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Overview>, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(value).ok())
}

/// The end of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Leave {
    /// Fence of the lease.
    pub fence: u64,
}

/// A new quota.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaBody {
    /// Rates: 0 is no limit.
    #[schemars(with = "serde_json::Value")]
    pub quota: Quota,
}

/// Nodes that serve a tenant, for its gateways.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TenantGrants {
    /// Name of the tenant.
    pub tenant: TenantName,
    /// Nodes that serve the tenant now.
    pub nodes: Vec<GrantedNode>,
    /// Whether the nodes have not the capacity for the whole quota.
    pub short: bool,
}

/// A node that serves a tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GrantedNode {
    /// Its name.
    pub node: NodeName,
    /// State in the pool.
    pub state: NodeState,
    /// Its addresses: `tcp://HOST:PORT`.
    pub addresses: BTreeSet<String>,
    /// The slice of the quota that it serves.
    #[schemars(with = "serde_json::Value")]
    pub slice: Quota,
}

/// A principal that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Its rights.
    pub role: Role,
    /// The identity of a client certificate, `cert:NAME`; without one the answer has a new token.
    #[serde(default)]
    pub identity: Option<String>,
    /// Time from now after which it is no longer valid, in seconds; without one it has no end.
    #[serde(default)]
    pub valid_s: Option<u64>,
}

/// A principal that was made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Token {
    /// Name of the principal.
    pub name: PrincipalName,
    /// Its rights.
    pub role: Role,
    /// The token. The manager keeps only its hash.
    #[serde(default)]
    pub token: Option<String>,
    /// End of its validity, in milliseconds since 1970.
    #[serde(default)]
    pub expires_ms: Option<u64>,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token")
            .field("name", &self.name)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

/// A principal without its credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PrincipalView {
    /// Name of the principal.
    pub name: PrincipalName,
    /// Its rights.
    pub role: Role,
    /// The identity of its certificate; `None` for a token.
    #[serde(default)]
    pub identity: Option<String>,
    /// End of its validity, in milliseconds since 1970.
    #[serde(default)]
    pub expires_ms: Option<u64>,
}

impl PrincipalView {
    fn of(principal: &Principal) -> Self {
        Self {
            name: principal.name.clone(),
            role: principal.role,
            identity: match &principal.credential {
                Credential::Identity(identity) => Some(identity.clone()),
                Credential::Token(_) => None,
            },
            expires_ms: principal.expires_ms,
        }
    }
}

/// Bytes of randomness in a token.
const TOKEN_BYTES: usize = 32;

/// Begin of a token, by which scanners of repositories know it.
const TOKEN_PREFIX: &str = "mrt_";

/// A new token.
///
/// # Errors
/// The system gives no random numbers.
pub fn fresh_token() -> Result<Zeroizing<String>, Problem> {
    let mut bytes = Zeroizing::new([0; TOKEN_BYTES]);
    rand::fill(&mut *bytes)
        .map_err(|_| Problem::new(Code::Internal, "the system gives no random numbers"))?;
    Ok(Zeroizing::new(format!("{TOKEN_PREFIX}{}", hex::encode(*bytes))))
}

impl From<ManagerError> for Problem {
    fn from(error: ManagerError) -> Self {
        match error {
            ManagerError::Refused(refusal) => refusal.into(),
            ManagerError::Store(error) if error.may_pass() => {
                Self::new(Code::Unavailable, error.to_string())
            }
            ManagerError::Store(_) | ManagerError::Grant(_) | ManagerError::Audit(_) => {
                tracing::error!(%error, "a request failed");
                Self::new(Code::Internal, error.to_string())
            }
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let code = match &refusal {
            Refusal::NotFound(..) => Code::NotFound,
            Refusal::Exists(..)
            | Refusal::IdentityTaken { .. }
            | Refusal::HasKeys { .. }
            | Refusal::TooMany(..) => Code::Conflict,
            Refusal::Changed { .. } => Code::Changed,
            Refusal::Invalid(_) => Code::Invalid,
            Refusal::Role(_) => Code::Forbidden,
            Refusal::Removed(_) => Code::Removed,
            Refusal::Fenced { .. } => Code::Fenced,
            Refusal::Damaged(_) | Refusal::Schema { .. } => Code::Internal,
        };
        Self::new(code, refusal.to_string())
    }
}

/// Carries out an administrative change in the caller's name, under the request's condition.
pub(super) fn change(call: &Call, command: Command) -> Result<u64, Problem> {
    let expected = match call.condition {
        Precondition::None => None,
        // A command that creates refuses an existing document by itself.
        Precondition::Absent => Some(0),
        Precondition::Revision(revision) => Some(revision),
    };
    change_at(call, command, expected)
}

/// Executes a command like [`change`], if the document still has the revision `expected`.
pub(super) fn change_at(
    call: &Call,
    command: Command,
    expected: Option<u64>,
) -> Result<u64, Problem> {
    let Caller::Principal(principal) = &call.caller else {
        return Err(Problem::new(Code::Forbidden, "only a principal changes the pool"));
    };
    let name = format!("{}:{}", role_name(principal.role), principal.name);
    let actor = Actor { name: &name, role: principal.role };
    Ok(call.api.manager.execute(actor, &command, expected)?)
}

fn not_found(kind: &str, name: &dyn std::fmt::Display) -> Problem {
    Problem::new(Code::NotFound, format!("there is no {kind} {name}"))
}

fn openapi_document(_: &Call) -> Result<Reply, Problem> {
    Ok(Reply::text("application/json", openapi::document()))
}

fn healthz(call: &Call) -> Result<Reply, Problem> {
    // The shortest question that only the store can answer.
    call.api.manager.audit(1, 1)?;
    Ok(Reply::text("text/plain", "ready\n".to_owned()))
}

fn metrics(call: &Call) -> Result<Reply, Problem> {
    let overview = call.api.state.overview();
    let text = call.api.manager.view(|view| call.api.metrics.render(view, &overview));
    Ok(Reply::text("text/plain; version=0.0.4", text))
}

fn state(call: &Call) -> Result<Reply, Problem> {
    Reply::json(&call.api.state.overview())
}

impl NodeView {
    fn of(view: &View, name: &NodeName, node: &Node) -> Self {
        Self {
            name: name.clone(),
            state: node.state(),
            node: node.clone(),
            tenants: view.tenants_of.get(name).cloned().unwrap_or_default(),
            free_ppm: view.free(name),
        }
    }
}

fn nodes(call: &Call) -> Result<Reply, Problem> {
    let all = call.api.manager.view(|view| {
        let nodes = view.nodes.iter().map(|(name, node)| NodeView::of(view, name, &node.value));
        nodes.collect::<Vec<_>>()
    });
    call.page(all, |node| node.name.to_string())
}

fn node(call: &Call) -> Result<Reply, Problem> {
    let name = call.name::<NodeName>()?;
    let found = call.api.manager.view(|view| {
        let found = view.nodes.get(&name)?;
        Some((NodeView::of(view, &name, &found.value), found.revision))
    });
    let (node, revision) = found.ok_or_else(|| not_found("node", &name))?;
    Ok(Reply::json(&node)?.at(revision))
}

fn remove_node(call: &Call) -> Result<Reply, Problem> {
    let node = call.name()?;
    change(call, Command::RemoveNode { node })?;
    Ok(Reply::empty())
}

fn drain(call: &Call) -> Result<Reply, Problem> {
    set_drain(call, true)
}

fn undrain(call: &Call) -> Result<Reply, Problem> {
    set_drain(call, false)
}

fn set_drain(call: &Call, drain: bool) -> Result<Reply, Problem> {
    let node = call.name()?;
    change(call, Command::DrainNode { node, drain })?;
    Ok(Reply::empty())
}

fn readmit(call: &Call) -> Result<Reply, Problem> {
    let node = call.name()?;
    change(call, Command::ReadmitNode { node })?;
    Ok(Reply::empty())
}

fn register(call: &Call) -> Result<Reply, Problem> {
    let name = call.name::<NodeName>()?;
    call.caller.require_node(name.as_str())?;
    let registration: Registration = call.body()?;
    if registration.name != name {
        return Err(Problem::new(Code::Invalid, "the name in the body is not that of the path"));
    }
    Reply::json(&call.api.manager.register(&registration)?)
}

fn heartbeat(call: &Call) -> Result<Reply, Problem> {
    let name = call.name::<NodeName>()?;
    call.caller.require_node(name.as_str())?;
    let report: HeartbeatReport = call.body()?;
    if report.heartbeat.node != name {
        return Err(Problem::new(Code::Invalid, "the name in the body is not that of the path"));
    }
    let answer = call.api.manager.heartbeat(&report.heartbeat)?;
    // Only a node with a lease is believed.
    if let Some(overview) = report.overview {
        call.api.state.take(name, bounded(overview));
    }
    Reply::json(&answer)
}

fn leave(call: &Call) -> Result<Reply, Problem> {
    let name = call.name::<NodeName>()?;
    call.caller.require_node(name.as_str())?;
    let Leave { fence } = call.body()?;
    call.api.manager.leave(&name, fence)?;
    Ok(Reply::empty())
}

/// Cuts the lists of a node's report to their bound: a node may be of another version, or defective.
fn bounded(mut overview: Overview) -> Overview {
    overview.nodes.truncate(1);
    overview.clients.truncate(MAX_ROWS);
    overview.tenants.truncate(MAX_ROWS);
    overview.keys.truncate(MAX_ROWS);
    overview.events.truncate(MAX_ROWS);
    overview
}

fn tenants(call: &Call) -> Result<Reply, Problem> {
    let all = call.api.manager.view(|view| {
        let tenants = view.tenants.values().map(|tenant| tenant.value.clone());
        tenants.collect::<Vec<_>>()
    });
    call.page(all, |tenant| tenant.name.to_string())
}

fn find_tenant(call: &Call, name: &TenantName) -> Result<Versioned<Tenant>, Problem> {
    let found = call.api.manager.view(|view| view.tenants.get(name).cloned());
    found.ok_or_else(|| not_found("tenant", name))
}

fn tenant(call: &Call) -> Result<Reply, Problem> {
    let found = find_tenant(call, &call.name()?)?;
    Ok(Reply::json(&found.value)?.at(found.revision))
}

fn put_tenant(call: &Call) -> Result<Reply, Problem> {
    let name = call.name::<TenantName>()?;
    let tenant: Tenant = call.body()?;
    if tenant.name != name {
        return Err(Problem::new(Code::Invalid, "the name in the body is not that of the path"));
    }
    let exists = call.api.manager.view(|view| view.tenants.contains_key(&name));
    let create = !exists || call.condition == Precondition::Absent;
    let command = if create {
        Command::CreateTenant(tenant.clone())
    } else {
        Command::SetTenant(tenant.clone())
    };
    let revision = change(call, command)?;
    let reply = Reply::json(&tenant)?.at(revision);
    Ok(if create { reply.created() } else { reply })
}

fn remove_tenant(call: &Call) -> Result<Reply, Problem> {
    let tenant = call.name()?;
    change(call, Command::RemoveTenant { tenant })?;
    Ok(Reply::empty())
}

fn put_quota(call: &Call) -> Result<Reply, Problem> {
    let name = call.name::<TenantName>()?;
    let QuotaBody { quota } = call.body()?;
    let tenant = name.clone();
    let revision = change(call, Command::SetQuota { tenant, quota })?;
    let found = find_tenant(call, &name)?;
    Ok(Reply::json(&found.value)?.at(revision))
}

fn put_placement(call: &Call) -> Result<Reply, Problem> {
    let name = call.name::<TenantName>()?;
    let placement = call.body()?;
    let tenant = name.clone();
    let revision = change(call, Command::Place { tenant, placement })?;
    let found = find_tenant(call, &name)?;
    Ok(Reply::json(&found.value)?.at(revision))
}

fn grants_of(view: &View, tenant: &TenantName) -> TenantGrants {
    let ledger = view.ledgers.get(tenant).map(|ledger| ledger.value.clone()).unwrap_or_default();
    let granted = ledger.entries.iter().filter_map(|entry| {
        let node = view.node(&entry.node)?;
        let slice = entry.target.clone()?;
        (node.lease.fence == entry.fence).then(|| GrantedNode {
            node: entry.node.clone(),
            state: node.state(),
            addresses: node.registration.addresses.clone(),
            slice,
        })
    });
    TenantGrants { tenant: tenant.clone(), nodes: granted.collect(), short: ledger.short }
}

fn tenant_grants(call: &Call) -> Result<Reply, Problem> {
    let name = call.name::<TenantName>()?;
    find_tenant(call, &name)?;
    Reply::json(&call.api.manager.view(|view| grants_of(view, &name)))
}

fn own_grants(call: &Call) -> Result<Reply, Problem> {
    let identity = match &call.caller {
        Caller::Certificate(identity) => identity.to_string(),
        Caller::Principal(principal) => format!("cert:{}", principal.name),
        Caller::Anonymous => String::new(),
    };
    let found = call.api.manager.view(|view| {
        let matching = view.tenants.values().filter_map(|tenant| {
            let patterns = tenant.value.identities.iter();
            let best = patterns.filter_map(|pattern| pattern.matches(&identity)).max()?;
            Some((best, &tenant.value.name))
        });
        matching.max().map(|(_, name)| grants_of(view, name))
    });
    let grants = found.ok_or_else(|| {
        let detail = format!(
            "{identity} belongs to no tenant: millrace tenant set NAME --add-identity {identity}"
        );
        Problem::new(Code::NotFound, detail)
    })?;
    Reply::json(&grants)
}

fn principals(call: &Call) -> Result<Reply, Problem> {
    let all = call.api.manager.view(|view| {
        let principals =
            view.principals.values().map(|principal| PrincipalView::of(&principal.value));
        principals.collect::<Vec<_>>()
    });
    call.page(all, |principal| principal.name.to_string())
}

fn put_principal(call: &Call) -> Result<Reply, Problem> {
    let name = call.name::<PrincipalName>()?;
    let wanted: NewToken = call.body()?;
    let expires_ms =
        wanted.valid_s.map(|seconds| now_ms().saturating_add(seconds.saturating_mul(1000)));
    let (credential, token) = match wanted.identity {
        Some(identity) => (Credential::Identity(identity), None),
        None => {
            let token = fresh_token()?;
            (Credential::Token(TokenHash::of(&token)), Some(token))
        }
    };
    let principal = Principal { name: name.clone(), role: wanted.role, credential, expires_ms };
    let revision = change(call, Command::SetPrincipal(principal))?;
    let made =
        Token { name, role: wanted.role, token: token.map(|token| token.to_string()), expires_ms };
    Ok(Reply::json(&made)?.at(revision).created())
}

fn remove_principal(call: &Call) -> Result<Reply, Problem> {
    let principal = call.name()?;
    change(call, Command::RemovePrincipal { principal })?;
    Ok(Reply::empty())
}

fn audit(call: &Call) -> Result<Reply, Problem> {
    let (limit, after) = call.window()?;
    let after: u64 = match after {
        None => 0,
        Some(text) => text
            .parse()
            .map_err(|_| Problem::new(Code::Invalid, "after: the number of an entry"))?,
    };
    let mut items = call.api.manager.audit(after.saturating_add(1), limit + 1)?;
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(|entry| entry.seq.to_string());
    Reply::json(&Page { items, next })
}

fn audit_head(call: &Call) -> Result<Reply, Problem> {
    Reply::json(&call.api.manager.view(|view| view.audit_head.value))
}
