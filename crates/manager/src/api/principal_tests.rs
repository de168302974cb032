// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Principals that are not who they seem, and lists that are longer than a screen.

use std::time::Duration;

use millrace_service::overview::{MAX_ROWS, TenantLine, VerdictLevel};
use millrace_service::rates::Rate;
use millrace_testkit::wait;
use serde_json::{Value, json};

use super::chain_tests::Pool;
use super::routes::ROUTES;
use super::*;
use crate::model::command::Command;
use crate::model::core::Actor;
use crate::model::principal::{Credential, Principal};
use crate::model::tenant::Tenant;
use crate::model::view::Table;
use crate::store::{Store, Transaction};

fn route(method: Verb, path: &str) -> &'static Route {
    ROUTES.iter().find(|row| row.method == method && row.path == path).unwrap()
}

const TOKENS: &str = "/v1/tokens/{principal}";

#[test]
fn principal_that_was_made_again_gets_no_answer_of_its_predecessor() {
    let pool = Pool::new();
    let dora = json!({ "role": "admin", "identity": "cert:dora", "valid_s": null });
    let make = || {
        pool.send("cert:admin", route(Verb::Put, TOKENS), Some("dora"), &dora, None).unwrap();
    };
    let robot = json!({ "role": "viewer", "identity": null, "valid_s": null });
    let ask = || pool.send("cert:dora", route(Verb::Put, TOKENS), Some("robot"), &robot, Some("k"));
    make();
    let first = ask().unwrap();
    assert!(first.body.contains(auth::TOKEN_PREFIX) && first.is_secret);
    assert_eq!(ask().unwrap(), first, "a repetition");
    pool.send("cert:admin", route(Verb::Delete, TOKENS), Some("dora"), &Value::Null, None).unwrap();
    make();
    assert_ne!(ask().unwrap().body, first.body, "another one of that name");
}

#[test]
fn administrator_that_was_added_in_the_store_has_no_rights() {
    let pool = Pool::new();
    for role in [Role::Admin, Role::Viewer] {
        let name = format!("mallory-{role:?}").to_lowercase();
        let principal = Principal {
            name: name.parse().unwrap(),
            role,
            credential: Credential::Identity(format!("cert:{name}")),
            expires_ms: None,
        };
        let mut transaction = Transaction::default();
        let record = serde_json::to_vec(&principal).unwrap();
        transaction.put(Table::Principal.key(&name), record);
        let revision = pool.store.commit(&transaction).unwrap();
        wait::until("the manager sees it", || pool.api.manager.revision() >= revision);
    }
    let ask =
        |caller: &str, path| pool.send(caller, route(Verb::Get, path), None, &Value::Null, None);
    for path in ["/v1/tokens", "/v1/tenants", "/v1/state"] {
        let refused = ask("cert:mallory-admin", path).unwrap_err();
        assert_eq!(refused.code, Code::Forbidden);
        let reason = "administrator mallory-admin was changed outside of the manager";
        assert!(refused.detail.contains(reason), "{refused}");
    }
    assert!(ask("cert:admin", "/v1/tokens").is_ok());
    let found = ask("cert:admin", "/v1/audit/findings").unwrap();
    for name in ["mallory-admin", "mallory-viewer"] {
        let text = format!("principal {name} was added outside of the manager");
        assert!(found.body.contains(&text), "{}", found.body);
    }
    let overview = pool.api.state.overview();
    assert_eq!(overview.verdict.level, VerdictLevel::Critical);
    assert!(overview.verdict.text.contains("was added outside"), "{}", overview.verdict.text);
    let metrics = ask("cert:admin", "/metrics").unwrap();
    assert!(metrics.body.contains("millrace_manager_altered_records 2"), "{}", metrics.body);
}

#[test]
fn tenant_past_the_bound_of_a_screen_is_counted_judged_and_listed() {
    let pool = Pool::new();
    let first = Actor { name: "test", role: Role::Admin };
    let before = pool.api.manager.view(|view| view.tenants.len());
    for number in before..=MAX_ROWS {
        let mut tenant = Tenant::new(format!("zz-{number:02}").parse().unwrap());
        tenant.quota.ops = Rate::per_second(10);
        if number == MAX_ROWS {
            // The last one by name, on a node that does not exist.
            tenant.placement.nodes = ["n3".parse().unwrap()].into();
        }
        pool.api.manager.execute(first, &Command::CreateTenant(tenant), None).unwrap();
    }
    let last = format!("zz-{MAX_ROWS}");
    let starving = || {
        let whole = pool.api.state.whole();
        whole.tenants.iter().filter(|row| row.serving == 0).count()
    };
    wait::until("all but one are placed", || starving() == 1);
    let overview = pool.api.state.overview();
    assert_eq!((overview.tenants.len(), overview.totals.tenants), (MAX_ROWS, MAX_ROWS + 1));
    assert_eq!(overview.tenants[0].name, last, "one with a finding comes first");
    assert_eq!(overview.verdict.level, VerdictLevel::Critical);
    assert!(overview.verdict.text.starts_with(&format!("no node serves tenant {last}")));
    let all =
        pool.send("cert:view", route(Verb::Get, "/v1/state/tenants"), None, &Value::Null, None);
    let all: Page<TenantLine> = serde_json::from_str(&all.unwrap().body).unwrap();
    assert_eq!(all.items.len(), MAX_ROWS + 1);
    let metrics = pool.send("cert:view", route(Verb::Get, "/metrics"), None, &Value::Null, None);
    let body = metrics.unwrap().body.clone();
    for tenant in ["zz-49", &last] {
        let line = format!("millrace_pool_tenant_nodes{{tenant=\"{tenant}\"}}");
        assert!(body.contains(&line), "{line}");
    }
    // It is an event of the manager, too, within the second that its state is looked at.
    let seen = || {
        let events = pool.api.state.overview().events;
        events.iter().any(|event| event.text == format!("no node serves tenant {last}"))
    };
    wait::until("the event", seen);
}

#[test]
fn answers_with_tokens_are_dropped_without_another_request() {
    let pool = Pool::new();
    let robot = json!({ "role": "viewer", "identity": null, "valid_s": null });
    let ask =
        || pool.send("cert:admin", route(Verb::Put, TOKENS), Some("robot"), &robot, Some("k"));
    let first = ask().unwrap();
    assert_eq!(ask().unwrap(), first);
    pool.api.answered.forget(Instant::now() + Duration::from_secs(61));
    assert_ne!(ask().unwrap().body, first.body);
}
