// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Chains of calls: from each role, every sequence of calls of the API on a small pool, up to a length. None leads to a
//! right that the role's row of the table of roles does not have: the use of a key, a role, or the place of a node.
//!
//! The pool has what a chain needs: tenants with keys and without, a pattern that covers another tenant's identity, a
//! removed node, a token for a node that never came. Each call is made in every state that calls before it led to, with
//! every name and every kind of body.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millrace_operation::{KeyError, KeyInfo, KeyType, PrivateKey};
use millrace_service::grant::{GrantKeys, GrantSigner};
use millrace_testkit::{is_long, wait};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::routes::ROUTES;
use super::*;
use crate::model::command::Command;
use crate::model::core::{Actor, LeaseTimes};
use crate::model::principal::{Credential, Principal, Role};
use crate::model::tenant::Tenant;
use crate::model::view::View;
use crate::store::{MemoryStore, Store, Transaction};
use crate::vault::{KeyRights, Vault};

/// Calls in a chain. With three, one can prepare, one can act, and one can make use of it; the long form has more.
const DEPTH: usize = 3;
const LONG_DEPTH: usize = 5;

/// Callers by their certificates: one of each role, a gateway with a key, and one that nothing names.
const CALLERS: [(&str, Option<Role>); 6] = [
    ("cert:admin", Some(Role::Admin)),
    ("cert:op", Some(Role::Operator)),
    ("cert:view", Some(Role::Viewer)),
    ("cert:n1", Some(Role::Node)),
    ("cert:gw-1", None),
    ("cert:mallory", None),
];

/// Identities whose rights are compared.
const IDENTITIES: [&str; 6] =
    ["cert:op", "cert:view", "cert:gw-1", "cert:gw-2", "cert:mallory", "uid:1000@n1"];

/// Takes every key, and derives a public half from it.
fn check(key: &PrivateKey) -> Result<KeyInfo, KeyError> {
    let spki = digest(&SHA256, key.dangerous_pkcs8()).as_ref().to_vec();
    Ok(KeyInfo { key_type: KeyType::Ed25519, spki })
}

fn pem(secret: &str) -> String {
    let body = STANDARD.encode(format!("0, {secret}"));
    format!("-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n")
}

type Records = BTreeMap<String, Vec<u8>>;

pub(super) struct Pool {
    runtime: Runtime,
    pub(super) api: Arc<Api>,
    pub(super) store: Arc<MemoryStore>,
    _folder: tempfile::TempDir,
}

impl Pool {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(MemoryStore::new());
        let (signer, _) = GrantSigner::generate().unwrap();
        let shared: Arc<dyn Store> = Arc::clone(&store) as Arc<dyn Store>;
        let vault =
            Vault::open(&folder.path().join("kek"), Arc::clone(&shared), false, check).unwrap();
        let keys = GrantKeys::default();
        let times = LeaseTimes::default();
        let manager = Manager::start_with_vault(shared, signer, &keys, times, Some(vault)).unwrap();
        fill(&manager);
        let runtime = Runtime::new().unwrap();
        let hosts = BTreeSet::from(["localhost".to_owned()]);
        let api = runtime.block_on(async { Api::new(manager, hosts, "chains") });
        Self { runtime, api, store, _folder: folder }
    }

    fn records(&self) -> Records {
        let entries = self.store.read("").unwrap().entries;
        entries.into_iter().map(|entry| (entry.key, entry.value.to_vec())).collect()
    }

    /// Puts the store back, and waits until the manager sees it.
    fn restore(&self, to: &Records) {
        let present = self.records();
        let mut transaction = Transaction::default();
        for (key, value) in to.iter().filter(|(key, value)| present.get(*key) != Some(value)) {
            transaction.put(key.clone(), value.clone());
        }
        for key in present.keys().filter(|key| !to.contains_key(*key)) {
            transaction.delete(key.clone());
        }
        if transaction.then.is_empty() {
            return;
        }
        let revision = self.store.commit(&transaction).unwrap();
        wait::until("the manager sees the records", || self.api.manager.revision() >= revision);
    }

    fn call(&self, caller: &str, call: &ChainCall) -> Result<Reply, Problem> {
        self.send(caller, &ROUTES[call.route], call.segment, &call.body, None)
    }

    /// Sends a request with the certificate of `caller`.
    pub(super) fn send(
        &self,
        caller: &str,
        route: &'static Route,
        segment: Option<&str>,
        body: &Value,
        idempotency_key: Option<&str>,
    ) -> Result<Reply, Problem> {
        let sent = Request::builder()
            .method(format!("{:?}", route.method).to_uppercase().as_str())
            .uri("/x")
            .header(header::CONTENT_TYPE, "application/json");
        let sent =
            idempotency_key.into_iter().fold(sent, |sent, key| sent.header("idempotency-key", key));
        let sent = sent.body(Body::from(body.to_string())).unwrap();
        let peer = Peer::of(Some(caller));
        let path = segment.iter().map(|text| (*text).to_owned()).collect();
        self.runtime.block_on(answer(&self.api, route, &peer, path, sent))
    }

    fn view<R>(&self, read: impl FnOnce(&View) -> R) -> R {
        self.api.manager.view(read)
    }
}

/// A pool with something for every chain to reach for.
fn fill(manager: &Manager) {
    let first = Actor { name: "test", role: Role::Admin };
    let done = |command: Command| manager.execute(first, &command, None).map(drop).unwrap();
    let with_role = CALLERS.iter().filter_map(|(identity, role)| Some((*identity, (*role)?)));
    // The node `n3` never came; `n2` came and was removed.
    let nodes = [("cert:n2", Role::Node), ("cert:n3", Role::Node)];
    for (identity, role) in with_role.chain(nodes) {
        done(Command::SetPrincipal(Principal {
            name: identity.trim_start_matches("cert:").parse().unwrap(),
            role,
            credential: Credential::Identity(identity.to_owned()),
            expires_ms: None,
        }));
    }
    for (name, identities) in [
        ("acme", &["cert:gw-2"][..]),
        ("wide", &["cert:*"]),
        ("narrow", &["cert:gw-1", "cert:op", "cert:view", "cert:mallory"]),
        ("empty", &[]),
    ] {
        let mut tenant = Tenant::new(name.parse().unwrap());
        tenant.identities = identities.iter().map(|text| text.parse().unwrap()).collect();
        done(Command::CreateTenant(tenant));
    }
    for (name, tenant) in [("www", "acme"), ("web", "wide"), ("vpn", "empty")] {
        let rights =
            KeyRights { tenants: [tenant.parse().unwrap()].into(), operations: None, hashes: None };
        let name = name.parse().unwrap();
        let vault = manager.vault().unwrap();
        done(Command::SetKey(
            vault.make(&name, pem("secret").as_bytes(), &rights, None, 1).unwrap(),
        ));
    }
    for name in ["n1", "n2"] {
        manager.register(&serde_json::from_value(registration(name)).unwrap()).unwrap();
    }
    done(Command::RemoveNode { node: "n2".parse().unwrap() });
}

fn registration(name: &str) -> Value {
    json!({
        "name": name, "process": 1, "former": [], "seen": 0, "addresses": ["tcp://a:1"], "zone": null,
        "capacity": { "rsa-2048": 1000 }, "features": [], "version": "1", "sealing-key": null,
    })
}

/// A call with its names and its body.
#[derive(Clone, Debug)]
struct ChainCall {
    route: usize,
    segment: Option<&'static str>,
    body: Value,
}

/// Every call: each route with every name that its path may have, and each kind of body.
fn calls() -> Vec<ChainCall> {
    let mut calls = Vec::new();
    for (route, row) in ROUTES.iter().enumerate() {
        let names: &[Option<&'static str>] = match row.path.split(['{', '}']).nth(1) {
            None => &[None],
            Some("node") => &[Some("n1"), Some("n2"), Some("n3"), Some("op")],
            Some("tenant") => {
                &[Some("acme"), Some("wide"), Some("narrow"), Some("empty"), Some("fresh")]
            }
            Some("key") => &[Some("www"), Some("fresh")],
            Some("principal") => &[Some("op"), Some("n4"), Some("n2")],
            Some(other) => panic!("names for {{{other}}} of {}", row.path),
        };
        for segment in names {
            let bodies = bodies(row, segment.unwrap_or_default());
            calls.extend(bodies.into_iter().map(|body| ChainCall {
                route,
                segment: *segment,
                body,
            }));
        }
    }
    calls
}

fn bodies(row: &Route, name: &str) -> Vec<Value> {
    let quota = json!({ "ops": { "per-second": 100, "burst": 0 }, "classes": {} });
    if row.body.is_none() {
        return vec![Value::Null];
    }
    match row.path.rsplit('/').next().unwrap_or_default() {
        "register" => vec![registration(name)],
        "heartbeat" => vec![json!({ "heartbeat": {
            "node": name, "fence": 1, "applied": 0, "clock-ms": 1, "load": {}, "health": "good", "keys": {},
        }, "overview": null })],
        "leave" => vec![json!({ "fence": 1 })],
        "quota" => vec![json!({ "quota": quota })],
        "placement" => [json!([]), json!(["n1"]), json!(["n3"])]
            .map(|nodes| json!({ "spread": 1, "nodes": nodes, "zones": [], "over-commit": true }))
            .to_vec(),
        "{key}" => ["acme", "narrow", "fresh"]
            .map(|tenant| json!({ "private-key": pem("another"), "tenants": [tenant] }))
            .to_vec(),
        "{principal}" => ["admin", "operator", "node"]
            .map(|role| json!({ "role": role, "identity": "cert:mallory", "valid_s": null }))
            .to_vec(),
        "{tenant}" => {
            let identities = [
                json!([]),
                json!(["cert:mallory"]),
                json!(["cert:gw-1", "cert:op", "cert:view"]),
                json!(["cert:*"]),
                json!(["cert:gw-2"]),
                json!(["uid:*"]),
            ];
            let tenant = |identities: Value| json!({ "name": name, "identities": identities });
            identities.map(tenant).to_vec()
        }
        other => panic!("a body for {other} of {}", row.path),
    }
}

/// The rights that a chain could lead to: identities with keys, identities with roles, nodes that get keys.
fn rights(view: &View) -> BTreeSet<String> {
    let mut rights = BTreeSet::new();
    for identity in IDENTITIES {
        let patterns = view.tenants.values().flat_map(|tenant| {
            let all = tenant.value.identities.iter();
            all.filter_map(|pattern| Some((pattern.matches(identity)?, &tenant.value.name)))
        });
        let Some((_, tenant)) = patterns.max() else { continue };
        let keys = view.keys.values().filter(|key| key.value.tenants.contains(tenant));
        rights.extend(
            keys.map(|key| format!("{identity} uses {} of {}", key.value.name, key.value.public)),
        );
    }
    for principal in view.principals.values().map(|principal| &principal.value) {
        rights.insert(format!("{:?} is {:?}", principal.credential, principal.role));
        let removed = view.node(&principal.name.as_str().parse().unwrap());
        if principal.role == Role::Node && removed.is_none_or(|node| !node.removed) {
            rights.insert(format!("{} gets the keys of the tenants placed on it", principal.name));
        }
    }
    rights
}

/// The records on which later calls depend: two stores with the same text are one state.
fn state(view: &View) -> String {
    let tenants = view.tenants.values().map(|tenant| &tenant.value);
    let tenants: Vec<_> =
        tenants.map(|tenant| (&tenant.name, &tenant.identities, &tenant.placement.nodes)).collect();
    let keys = view.keys.values().map(|key| &key.value);
    let keys: Vec<_> =
        keys.map(|key| (&key.name, &key.public, &key.tenants, key.former.len())).collect();
    let nodes = view.nodes.iter().map(|(name, node)| (name, node.value.removed, node.value.drain));
    let nodes: Vec<_> = nodes.collect();
    format!("{tenants:?} {keys:?} {nodes:?} {:?}", rights(view))
}

/// The findings of a walk.
#[derive(Default)]
struct Walk {
    states: usize,
    /// Indexes of routes that were answered with success.
    answered: BTreeSet<usize>,
    /// Rights that were not there at the start, each with the chain that led to it.
    gained: BTreeMap<String, Vec<String>>,
}

/// Makes every chain of a caller.
fn walk(pool: &Pool, caller: &str, depth: usize) -> Walk {
    let calls = calls();
    let start = pool.records();
    let before = pool.view(rights);
    let mut walk = Walk::default();
    let mut seen = BTreeSet::from([pool.view(state)]);
    let mut frontier: Vec<(Records, Vec<String>)> = vec![(start.clone(), Vec::new())];
    for _ in 0..depth {
        let mut next = Vec::new();
        for (records, chain) in &frontier {
            for call in &calls {
                pool.restore(records);
                let Ok(reply) = pool.call(caller, call) else { continue };
                walk.answered.insert(call.route);
                let row = &ROUTES[call.route];
                let is_secret = reply.body.contains(auth::TOKEN_PREFIX)
                    || reply.body.contains("PRIVATE KEY")
                    || reply.body.contains(&STANDARD.encode("0, secret"));
                assert!(!is_secret, "{caller} gets a secret from {}", row.path);
                let state = pool.view(state);
                if !seen.insert(state) {
                    continue;
                }
                let step =
                    format!("{:?} {} {:?} {}", row.method, row.path, call.segment, call.body);
                let chain = [&chain[..], &[step]].concat();
                for right in pool.view(rights).difference(&before) {
                    walk.gained.entry(right.clone()).or_insert_with(|| chain.clone());
                }
                next.push((pool.records(), chain));
            }
        }
        frontier = next;
    }
    walk.states = seen.len();
    pool.restore(&start);
    walk
}

/// The rows of the table of calls in the guide: each role with the calls of which it is the least.
fn table_of_calls() -> Vec<String> {
    let rows = [
        (Access::Open, "everyone"),
        (Access::Authenticated, "any certificate or token"),
        (Access::Role(Role::Viewer), "`viewer`"),
        (Access::Role(Role::Operator), "`operator`"),
        (Access::Role(Role::Admin), "`admin`"),
        (Access::Role(Role::Node), "`node`"),
    ];
    let rows = rows.into_iter().map(|(access, role)| {
        let calls = ROUTES.iter().filter(|row| row.access == access);
        let mut calls: Vec<String> = calls
            .map(|row| format!("`{} {}`", format!("{:?}", row.method).to_uppercase(), row.path))
            .collect();
        if access == Access::Role(Role::Viewer) {
            calls.push("`GET /v1/events`".to_owned());
        }
        format!("| {role} | {} |", calls.join(", "))
    });
    rows.collect()
}

#[test]
fn table_of_roles_in_the_guide_has_every_call() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/pool.md");
    let guide = std::fs::read_to_string(path).unwrap();
    let lines: BTreeSet<&str> = guide.lines().collect();
    for row in table_of_calls() {
        assert!(lines.contains(&*row), "docs/guide/pool.md lacks the row\n{row}");
    }
}

#[test]
fn no_chain_of_calls_leads_a_role_to_a_right_that_it_lacks() {
    let pool = Pool::new();
    let mut answered = BTreeSet::new();
    for (caller, role) in CALLERS.into_iter().filter(|(_, role)| *role != Some(Role::Admin)) {
        let walk = walk(&pool, caller, if is_long() { LONG_DEPTH } else { DEPTH });
        println!("{caller} ({role:?}): {} states", walk.states);
        assert!(walk.gained.is_empty(), "{caller} gained {:#?}", walk.gained);
        answered.extend(walk.answered);
    }
    // One call of the administrator shows that the walk would notice: it reaches each kind of right.
    let walk = walk(&pool, "cert:admin", 1);
    for kind in ["cert:mallory uses www", "cert:gw-1 uses web", "is Admin", "n2 gets the keys"] {
        assert!(
            walk.gained.keys().any(|right| right.contains(kind)),
            "{kind}: {:?}",
            walk.gained.keys()
        );
    }
    answered.extend(walk.answered);
    // A call that is refused for its form tries nothing.
    let untried: Vec<&str> = (0..ROUTES.len())
        .filter(|index| !answered.contains(index))
        .map(|index| ROUTES[index].path)
        .collect();
    assert_eq!(
        untried,
        ["/v1/nodes/{node}/heartbeat", "/v1/nodes/{node}/leave"],
        "for their fence"
    );
}
