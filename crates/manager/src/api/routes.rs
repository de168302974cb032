// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The table of requests, and the function behind each row.

use millrace_service::overview::{ClientRow, KeyLine, NodeRow, Overview, TenantLine, now_ms};

use super::auth::{Access, Caller, fresh_token};
use super::call::{Call, Page, Precondition, Reply};
use super::keys::{self, KeyView, NewKey};
use super::openapi;
use super::problem::{Code, Problem};
use super::route::{Route, Verb, of, row};
use super::views::{
    HeartbeatReport, Leave, NewToken, NodeView, PrincipalView, QuotaBody, RecordFindings,
    TenantGrants, Token,
};
use crate::Findings;
use crate::model::audit::{AuditEntry, AuditHead};
use crate::model::command::Command;
use crate::model::holder::{GrantSet, Registered};
use crate::model::name::{NodeName, PrincipalName, TenantName};
use crate::model::node::Registration;
use crate::model::principal::{Credential, Principal, Role, TokenHash};
use crate::model::tenant::{Placement, Tenant};
use crate::model::view::Versioned;

const VIEWER: Access = Access::Role(Role::Viewer);
const OPERATOR: Access = Access::Role(Role::Operator);
const ADMIN: Access = Access::Role(Role::Admin);
const NODE: Access = Access::Role(Role::Node);

/// The API.
#[rustfmt::skip]
pub(super) const ROUTES: &[Route] = &[
    row(Verb::Get,    "/v1/openapi.json", Access::Open, openapi, "This document"),
    row(Verb::Get,    "/healthz", Access::Open, healthz, "Whether the manager reaches its store"),
    row(Verb::Get,    "/metrics", VIEWER, metrics, "Metrics in the text format of Prometheus"),
    row(Verb::Get,    "/v1/state", VIEWER, state, "What the page shows").gives(of::<Overview>),
    row(Verb::Get,    "/v1/state/nodes", VIEWER, state_nodes, "All nodes as the page shows them").gives(of::<Page<NodeRow>>).paged(),
    row(Verb::Get,    "/v1/state/tenants", VIEWER, state_tenants, "All tenants as the page shows them").gives(of::<Page<TenantLine>>).paged(),
    row(Verb::Get,    "/v1/state/clients", VIEWER, state_clients, "The clients that nodes report, at most 50 of each").gives(of::<Page<ClientRow>>).paged(),
    row(Verb::Get,    "/v1/state/keys", VIEWER, state_keys, "The keys that nodes report, at most 50 of each").gives(of::<Page<KeyLine>>).paged(),
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
    row(Verb::Get,    "/v1/audit/findings", VIEWER, audit_findings, "Records and entries that are not what a manager wrote, compared now").gives(of::<RecordFindings>),
    row(Verb::Get,    "/v1/audit/head", VIEWER, audit_head, "Number and hash of the newest audit entry").gives(of::<AuditHead>),
];

fn not_found(kind: &str, name: &dyn std::fmt::Display) -> Problem {
    Problem::new(Code::NotFound, format!("there is no {kind} {name}"))
}

/// The `OpenAPI` document of the API, as indented JSON with a final line break.
#[must_use]
pub fn openapi_document() -> String {
    openapi::document(ROUTES)
}

fn openapi(_: &Call) -> Result<Reply, Problem> {
    Ok(Reply::text("application/json", openapi_document()))
}

fn healthz(call: &Call) -> Result<Reply, Problem> {
    call.api.manager.ask_store()?;
    Ok(Reply::text("text/plain", "ready\n".to_owned()))
}

fn metrics(call: &Call) -> Result<Reply, Problem> {
    let overview = call.api.state.whole();
    let altered = call.api.manager.findings().count;
    let super::Api { manager, metrics, connections, .. } = &*call.api;
    let text = manager.view(|view| metrics.render(view, &overview, altered, connections));
    Ok(Reply::text("text/plain; version=0.0.4", text))
}

fn state(call: &Call) -> Result<Reply, Problem> {
    Reply::json(&call.api.state.overview())
}

/// A page of the rows of the overview; `key` sorts them, and no two have the same.
fn state_page<T: serde::Serialize>(
    call: &Call,
    rows: fn(Overview) -> Vec<T>,
    key: fn(&T) -> String,
) -> Result<Reply, Problem> {
    let mut rows = rows(call.api.state.whole());
    rows.sort_by_cached_key(key);
    call.page(rows, key)
}

fn state_nodes(call: &Call) -> Result<Reply, Problem> {
    state_page(call, |overview| overview.nodes, |row| row.name.clone())
}

fn state_tenants(call: &Call) -> Result<Reply, Problem> {
    state_page(call, |overview| overview.tenants, |row| row.name.clone())
}

fn state_clients(call: &Call) -> Result<Reply, Problem> {
    let key = |row: &ClientRow| format!("{} {} {}", row.node, row.identity, row.agent);
    state_page(call, |overview| overview.clients, key)
}

fn state_keys(call: &Call) -> Result<Reply, Problem> {
    let key = |row: &KeyLine| format!("{} {} {}", row.node, row.name, row.fingerprint);
    state_page(call, |overview| overview.keys, key)
}

fn nodes(call: &Call) -> Result<Reply, Problem> {
    let all = call.api.manager.view_with_silent(|view, silent| {
        let nodes = view.nodes.iter();
        let nodes = nodes.map(|(name, node)| NodeView::of(view, silent, name, &node.value));
        nodes.collect::<Vec<_>>()
    });
    call.page(all, |node| node.name.to_string())
}

fn node(call: &Call) -> Result<Reply, Problem> {
    let name = call.name::<NodeName>()?;
    let found = call.api.manager.view_with_silent(|view, silent| {
        let found = view.nodes.get(&name)?;
        Some((NodeView::of(view, silent, &name, &found.value), found.revision))
    });
    let (node, revision) = found.ok_or_else(|| not_found("node", &name))?;
    Ok(Reply::json(&node)?.at(revision))
}

fn remove_node(call: &Call) -> Result<Reply, Problem> {
    let node = call.name()?;
    call.change(Command::RemoveNode { node })?;
    Ok(Reply::empty())
}

fn drain(call: &Call) -> Result<Reply, Problem> {
    let node = call.name()?;
    call.change(Command::DrainNode { node, drain: true })?;
    Ok(Reply::empty())
}

fn undrain(call: &Call) -> Result<Reply, Problem> {
    let node = call.name()?;
    call.change(Command::DrainNode { node, drain: false })?;
    Ok(Reply::empty())
}

fn readmit(call: &Call) -> Result<Reply, Problem> {
    let node = call.name()?;
    call.change(Command::ReadmitNode { node })?;
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
        // A node may be of another version, or defective.
        let mut overview = overview.shortened();
        overview.nodes.truncate(1);
        call.api.state.take(name, overview);
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
    let revision = call.change(command)?;
    let reply = Reply::json(&tenant)?.at(revision);
    Ok(if create { reply.created() } else { reply })
}

fn remove_tenant(call: &Call) -> Result<Reply, Problem> {
    let tenant = call.name()?;
    call.change(Command::RemoveTenant { tenant })?;
    Ok(Reply::empty())
}

fn put_quota(call: &Call) -> Result<Reply, Problem> {
    let name = call.name::<TenantName>()?;
    let QuotaBody { quota } = call.body()?;
    let tenant = name.clone();
    let revision = call.change(Command::SetQuota { tenant, quota })?;
    let found = find_tenant(call, &name)?;
    Ok(Reply::json(&found.value)?.at(revision))
}

fn put_placement(call: &Call) -> Result<Reply, Problem> {
    let name = call.name::<TenantName>()?;
    let placement = call.body()?;
    let tenant = name.clone();
    let revision = call.change(Command::Place { tenant, placement })?;
    let found = find_tenant(call, &name)?;
    Ok(Reply::json(&found.value)?.at(revision))
}

fn tenant_grants(call: &Call) -> Result<Reply, Problem> {
    let name = call.name::<TenantName>()?;
    find_tenant(call, &name)?;
    Reply::json(&call.api.manager.view(|view| TenantGrants::of(view, &name)))
}

fn own_grants(call: &Call) -> Result<Reply, Problem> {
    let identity = match &call.caller {
        Caller::Certificate(identity) => identity.to_string(),
        Caller::Principal(principal) => format!("cert:{}", principal.value.name),
        Caller::Anonymous => String::new(),
    };
    let found = call.api.manager.view(|view| {
        let matching = view.tenants.values().filter_map(|tenant| {
            let patterns = tenant.value.identities.iter();
            let best = patterns.filter_map(|pattern| pattern.matches(&identity)).max()?;
            Some((best, &tenant.value.name))
        });
        matching.max().map(|(_, name)| TenantGrants::of(view, name))
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
    let revision = call.change(Command::SetPrincipal(principal))?;
    let is_secret = token.is_some();
    let made =
        Token { name, role: wanted.role, token: token.map(|token| token.to_string()), expires_ms };
    Ok(Reply::json(&made)?.at(revision).created().secret(is_secret))
}

fn remove_principal(call: &Call) -> Result<Reply, Problem> {
    let principal = call.name()?;
    call.change(Command::RemovePrincipal { principal })?;
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

fn audit_findings(call: &Call) -> Result<Reply, Problem> {
    let Findings { count, texts } = call.api.manager.check_records()?;
    Reply::json(&RecordFindings { count, texts })
}

fn audit_head(call: &Call) -> Result<Reply, Problem> {
    Reply::json(&call.api.manager.view(|view| view.audit_head.value))
}
