// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Requests that an attacker makes, with and without rights: each is answered within the API's closed set of
//! reasons, and none breaks the pool.

use std::sync::LazyLock;

use aws_lc_rs::digest::digest;
use millrace_service::grant::{GrantKeys, GrantSigner};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::routes::ROUTES;
use super::*;
use crate::model::command::Command;
use crate::model::core::{Actor, LeaseTimes};
use crate::model::principal::{Credential, Principal, Role};
use crate::store::MemoryStore;

/// Callers: an administrator, the node `n1`, a gateway, and one without a certificate.
const CALLERS: [Option<&str>; 4] = [Some("cert:admin"), Some("cert:n1"), Some("cert:gw"), None];

struct Attacked {
    runtime: Runtime,
    api: Arc<Api>,
}

static ATTACKED: LazyLock<Attacked> = LazyLock::new(Attacked::new);

impl Attacked {
    fn new() -> Self {
        let (signer, _) = GrantSigner::generate().unwrap();
        let store = Arc::new(MemoryStore::new());
        let manager =
            Manager::start(store, signer, &GrantKeys::default(), LeaseTimes::default()).unwrap();
        for (name, role) in [("admin", Role::Admin), ("n1", Role::Node)] {
            let principal = Principal {
                name: name.parse().unwrap(),
                role,
                credential: Credential::Identity(format!("cert:{name}")),
                expires_ms: None,
            };
            let first = Actor { name: "test", role: Role::Admin };
            let command = Command::SetPrincipal(principal);
            manager.execute(first, &command, None).unwrap();
        }
        let runtime = Runtime::new().unwrap();
        let hosts = BTreeSet::from(["localhost".to_owned()]);
        let api = runtime.block_on(async { Api::new(manager, hosts, "attacked") });
        Self { runtime, api }
    }
}

/// A valid body of each request with one.
fn valid_body(path: &str) -> Value {
    let capacity = json!({ "rsa-2048": 1000 });
    let registration = json!({
        "name": "n1", "process": 1, "former": [], "seen": 0, "addresses": ["tcp://a:1"], "zone": "z",
        "capacity": capacity, "features": [], "version": "1", "sealing-key": null,
    });
    let quota = json!({ "ops": { "per-second": 100, "burst": 0 }, "classes": {} });
    let placement = json!({ "spread": 2, "nodes": [], "zones": [], "over-commit": false });
    match path.rsplit('/').next().unwrap_or_default() {
        "register" => registration,
        "heartbeat" => json!({ "heartbeat": {
            "node": "n1", "fence": 1, "applied": 0, "clock-ms": 1, "load": {}, "health": "good", "keys": {},
        }, "overview": null }),
        "leave" => json!({ "fence": 1 }),
        "quota" => json!({ "quota": quota }),
        "placement" => placement,
        "{key}" => json!({
            "private-key": "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n",
            "tenants": ["acme"], "operations": ["ecdsa-sign"], "hashes": ["sha256"],
        }),
        "{principal}" => json!({ "role": "viewer", "identity": null, "valid_s": 60 }),
        _ => json!({ "name": "acme", "weight": 1, "priority": "normal", "quota": quota,
            "identities": ["cert:gw"], "placement": placement }),
    }
}

/// Values that no schema allows everywhere.
fn hostile_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!(-1)),
        Just(json!(u64::MAX)),
        Just(json!(1e308)),
        Just(json!({})),
        Just(json!([[[[]]]])),
        Just(json!("x".repeat(100_000))),
        Just(json!("../../etc/passwd\u{0}")),
        ".{0,40}".prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
    ]
}

/// Puts `value` at the place that the steps lead to.
fn replace(document: &mut Value, steps: &[usize], value: Value) {
    let Some((step, rest)) = steps.split_first() else {
        *document = value;
        return;
    };
    let inner = match document {
        Value::Object(fields) if !fields.is_empty() => {
            let index = step % fields.len();
            fields.values_mut().nth(index)
        }
        Value::Array(items) if !items.is_empty() => {
            let index = step % items.len();
            items.get_mut(index)
        }
        _ => None,
    };
    match inner {
        Some(inner) => replace(inner, rest, value),
        None => *document = value,
    }
}

fn body(path: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let valid = valid_body(path);
    let changed = (proptest::collection::vec(any::<usize>(), 0..4), hostile_value());
    let with_field = (".{0,20}", hostile_value());
    let (one, other, third) = (valid.clone(), valid.clone(), valid);
    prop_oneof![
        1 => Just(one.to_string().into_bytes()),
        4 => changed.prop_map(move |(at, value)| {
            let mut document = other.clone();
            replace(&mut document, &at, value);
            document.to_string().into_bytes()
        }),
        2 => with_field.prop_map(move |(name, value)| {
            let mut document = third.clone();
            document[name] = value;
            document.to_string().into_bytes()
        }),
        1 => proptest::collection::vec(any::<u8>(), 0..300),
        1 => Just(b"[".repeat(100_000)),
    ]
}

fn header_value() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("*".to_owned()),
        Just("\"1\"".to_owned()),
        Just("\"99999999999999999999\"".to_owned()),
        Just("Bearer mrt_0".to_owned()),
        "[ -~]{0,60}",
    ]
}

#[derive(Clone, Debug)]
struct HostileRequest {
    route: &'static str,
    index: usize,
    caller: usize,
    segment: String,
    query: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

fn request() -> impl Strategy<Value = HostileRequest> {
    let name = prop_oneof![
        3 => Just("n1".to_owned()),
        3 => Just("acme".to_owned()),
        1 => Just("admin".to_owned()),
        2 => ".{0,80}",
    ];
    let query = prop_oneof![
        Just(String::new()),
        Just("limit=0&after=%".to_owned()),
        Just("limit=1000&after=18446744073709551615".to_owned()),
        "[ -~]{0,60}",
    ];
    let header = prop_oneof![
        Just("if-match"),
        Just("if-none-match"),
        Just("idempotency-key"),
        Just("authorization"),
        Just("content-type"),
    ];
    let headers = proptest::collection::vec((header, header_value()), 0..3);
    (0..ROUTES.len(), 0..CALLERS.len(), name, query, headers).prop_flat_map(
        |(index, caller, segment, query, headers)| {
            let route = ROUTES[index].path;
            body(route).prop_map(move |body| HostileRequest {
                route,
                index,
                caller,
                segment: segment.clone(),
                query: query.clone(),
                headers: headers.clone(),
                body,
            })
        },
    )
}

fn send(attacked: &Attacked, request: &HostileRequest) -> Result<Reply, Problem> {
    let HostileRequest { index, caller, segment, query, headers, body, .. } = request;
    let route = &ROUTES[*index];
    let peer = Peer::of(CALLERS[*caller]);
    let plain: String = query.chars().filter(|letter| !" \"<>#\\^`{|}".contains(*letter)).collect();
    let mut sent = Request::builder()
        .method(format!("{:?}", route.method).to_uppercase().as_str())
        .uri(format!("/x?{plain}"))
        .header(header::CONTENT_TYPE, "application/json");
    for (name, value) in headers {
        sent = sent.header(*name, value);
    }
    let sent = sent.body(Body::from(body.clone())).unwrap();
    let path = vec![segment.clone()];
    let answered = answer(&attacked.api, route, &peer, path, sent);
    attacked.runtime.block_on(answered)
}

/// A digest of all records.
fn records() -> Vec<u8> {
    ATTACKED.api.manager.view(|view| {
        let text = format!("{:?} {:?} {:?}", view.tenants, view.principals, view.keys);
        digest(&SHA256, text.as_bytes()).as_ref().to_vec()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn hostile_requests_are_answered_and_change_nothing_without_rights(request in request()) {
        let before = records();
        let access = ROUTES[request.index].access;
        let reply = send(&ATTACKED, &request);
        let is_admin = request.caller == 0
            && !request.headers.iter().any(|(name, _)| *name == "authorization");
        match &reply {
            Ok(reply) => {
                prop_assert!(reply.body.len() < 8 << 20);
                prop_assert!(request.caller != 3 || access == Access::Open, "without a certificate");
            }
            Err(problem) => {
                prop_assert!(problem.status < 500, "{}: {problem:?}", request.route);
                prop_assert!(problem.detail.len() <= 1027, "{} bytes", problem.detail.len());
            }
        }
        if !is_admin {
            prop_assert_eq!(before, records(), "{:?}", reply);
        }
        let damaged = ATTACKED.api.manager.view(|view| view.damaged.len());
        prop_assert_eq!(damaged, 0);
    }
}

#[test]
fn authorization_without_a_bearer_token_gives_no_rights_of_the_certificate() {
    let tokens = |headers: &[&'static str]| {
        let route = "/v1/tokens";
        let index = ROUTES.iter().position(|row| row.path == route).unwrap();
        let headers = headers.iter().map(|text| ("authorization", (*text).to_owned()));
        let request = HostileRequest {
            route,
            index,
            caller: 0,
            segment: "n1".to_owned(),
            query: String::new(),
            headers: headers.collect(),
            body: Vec::new(),
        };
        send(&ATTACKED, &request).map_err(|problem| problem.code)
    };
    assert!(tokens(&[]).is_ok(), "the certificate is an administrator's");
    for sent in [&[""][..], &["*"], &["Basic YTpi"], &["Bearer mrt_0"], &["Bearer mrt_0", "*"]] {
        assert_eq!(tokens(sent), Err(Code::Unauthenticated), "{sent:?}");
    }
}

#[test]
fn valid_bodies_of_the_attack_are_taken() {
    let attacked = Attacked::new();
    let taken = |index: usize, caller| {
        let route = ROUTES[index].path;
        let request = HostileRequest {
            route,
            index,
            caller,
            segment: if route.contains("{node}") { "n1" } else { "probe" }.to_owned(),
            query: String::new(),
            headers: Vec::new(),
            body: {
                let mut body = valid_body(route);
                if body["name"] == "acme" {
                    body["name"] = json!("probe");
                    body["identities"] = json!([]);
                }
                body.to_string().into_bytes()
            },
        };
        send(&attacked, &request)
    };
    let index = |suffix: &str, method: Verb| {
        let fits = |route: &Route| route.path.ends_with(suffix) && route.method == method;
        ROUTES.iter().position(fits).unwrap()
    };
    for (suffix, method, caller) in [
        ("/register", Verb::Post, 1),
        ("/{tenant}", Verb::Put, 0),
        ("/quota", Verb::Put, 0),
        ("/placement", Verb::Put, 0),
        ("/{principal}", Verb::Put, 0),
        ("/{principal}", Verb::Delete, 0),
        ("/{tenant}", Verb::Delete, 0),
    ] {
        let reply = taken(index(suffix, method), caller);
        assert!(reply.is_ok(), "{suffix}: {reply:?}");
    }
}
