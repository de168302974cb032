// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Records that were changed in the store, past the managers: each change is named as what it is, and managers of a
//! version before seals, which make none, go on beside those that do.

use std::path::Path;
use std::sync::Arc;

use millrace_manager::model::audit::AuditEntry;
use millrace_manager::model::command::Command;
use millrace_manager::model::core::{Actor, LeaseTimes};
use millrace_manager::model::principal::{Credential, Principal, Role, TokenHash};
use millrace_manager::model::tenant::Tenant;
use millrace_manager::store::{MemoryStore, Store, Transaction};
use millrace_manager::vault::{KeyRights, Vault};
use millrace_manager::{MAX_FINDINGS, Manager};
use millrace_operation::{KeyError, KeyInfo, KeyType, PrivateKey};
use millrace_service::grant::{GrantKeys, GrantSigner};
use millrace_service::rates::Rate;
use serde_json::Value;

const ADMIN: Actor<'_> = Actor { name: "admin:test", role: Role::Admin };

fn check(key: &PrivateKey) -> Result<KeyInfo, KeyError> {
    Ok(KeyInfo { key_type: KeyType::Ed25519, spki: key.dangerous_pkcs8().to_vec() })
}

fn open(folder: &Path, store: &Arc<MemoryStore>, accepts: bool) -> Manager {
    let store: Arc<dyn Store> = Arc::clone(store) as Arc<dyn Store>;
    let vault = Vault::open(&folder.join("pool.kek"), Arc::clone(&store), false, check).unwrap();
    let (signer, _) = GrantSigner::generate().unwrap();
    let vault = Some(vault.accepting_records(accepts));
    let keys = GrantKeys::default();
    Manager::start_with_vault(store, signer, &keys, LeaseTimes::default(), vault).unwrap()
}

/// A manager that makes no seals, as those of the version before.
fn of_before(store: &Arc<MemoryStore>) -> Manager {
    let (signer, _) = GrantSigner::generate().unwrap();
    let store: Arc<dyn Store> = Arc::clone(store) as Arc<dyn Store>;
    Manager::start(store, signer, &GrantKeys::default(), LeaseTimes::default()).unwrap()
}

fn done(manager: &Manager, command: &Command) {
    manager.execute(ADMIN, command, None).unwrap();
}

fn tenant(name: &str, ops: u64) -> Tenant {
    let mut tenant = Tenant::new(name.parse().unwrap());
    tenant.quota.ops = Rate::per_second(ops);
    tenant
}

fn principal(name: &str) -> Principal {
    Principal {
        name: name.parse().unwrap(),
        role: Role::Admin,
        credential: Credential::Token(TokenHash::of(name)),
        expires_ms: None,
    }
}

fn import(manager: &Manager, name: &str) {
    let rights =
        KeyRights { tenants: ["acme".parse().unwrap()].into(), operations: None, hashes: None };
    let pem = "-----BEGIN PRIVATE KEY-----\nMCwgc2VjcmV0\n-----END PRIVATE KEY-----\n";
    let name = name.parse().unwrap();
    let made = manager.vault().unwrap().make(&name, pem.as_bytes(), &rights, None, 1).unwrap();
    done(manager, &Command::SetKey(made));
}

/// A pool with a tenant, a key and two administrators, of which one was removed.
fn pool(folder: &Path) -> (Arc<MemoryStore>, Manager) {
    let store = Arc::new(MemoryStore::new());
    let manager = open(folder, &store, false);
    done(&manager, &Command::CreateTenant(tenant("acme", 100)));
    import(&manager, "www");
    done(&manager, &Command::SetPrincipal(principal("alice")));
    done(&manager, &Command::SetPrincipal(principal("bob")));
    assert_eq!(found(&manager), [""; 0]);
    (store, manager)
}

fn found(manager: &Manager) -> Vec<String> {
    let findings = manager.check_records().unwrap();
    assert_eq!(findings.texts.len(), findings.count.min(MAX_FINDINGS));
    assert_eq!(findings, manager.findings());
    findings.texts
}

fn value(store: &MemoryStore, key: &str) -> Vec<u8> {
    let entries = store.read(key).unwrap().entries;
    entries.iter().find(|entry| entry.key == key).unwrap_or_else(|| panic!("{key}")).value.to_vec()
}

fn put(store: &MemoryStore, key: &str, value: impl Into<Vec<u8>>) {
    let mut transaction = Transaction::default();
    transaction.put(key, value);
    store.commit(&transaction).unwrap();
}

fn delete(store: &MemoryStore, key: &str) {
    let mut transaction = Transaction::default();
    transaction.delete(key);
    store.commit(&transaction).unwrap();
}

/// Changes a field of a record, past the managers.
fn edit(store: &MemoryStore, key: &str, field: &str, to: Value) {
    let mut record: Value = serde_json::from_slice(&value(store, key)).unwrap();
    record[field] = to;
    put(store, key, record.to_string());
}

#[test]
fn each_record_that_is_changed_in_the_store_is_named() {
    type Change = fn(&MemoryStore);
    let entry = |seq: u64| format!("millrace-audit/{seq:020}");
    let changes: [(&str, Change); 9] = [
        ("key www was changed outside of the manager", |store| {
            edit(store, "millrace/key/www", "tenants", serde_json::json!(["acme", "mallory"]));
        }),
        ("tenant acme was changed outside of the manager", |store| {
            edit(store, "millrace/tenant/acme", "identities", serde_json::json!(["cert:mallory"]));
        }),
        ("principal mallory was added outside of the manager", |store| {
            let record = serde_json::to_vec(&principal("mallory")).unwrap();
            put(store, "millrace/principal/mallory", record);
        }),
        ("principal bob was removed outside of the manager", |store| {
            delete(store, "millrace/principal/bob");
        }),
        // The seal of another record fits none.
        ("principal mallory was changed outside of the manager", |store| {
            put(store, "millrace/principal/mallory", value(store, "millrace/principal/alice"));
            put(
                store,
                "millrace-seal/principal/mallory",
                value(store, "millrace-seal/principal/alice"),
            );
        }),
        ("the seals of the pool's records are missing", |store| {
            delete(store, "millrace-seal/head")
        }),
        ("entry 2 of the audit log was changed after it was written", |store| {
            edit(store, &format!("millrace-audit/{:020}", 2), "actor", "nobody".into());
        }),
        ("entry 2 of the audit log is damaged: it was changed in the store, outside", |store| {
            put(store, &format!("millrace-audit/{:020}", 2), "{");
        }),
        ("entry 3 of the audit log is missing", |store| {
            delete(store, &format!("millrace-audit/{:020}", 3));
        }),
    ];
    for (expected, change) in changes {
        let folder = tempfile::tempdir().unwrap();
        let (store, manager) = pool(folder.path());
        change(&store);
        manager.stop();
        // The manager that starts reads the whole log.
        let manager = open(folder.path(), &store, false);
        let texts = found(&manager);
        assert_eq!(texts.len(), 1, "{expected}: {texts:?}");
        assert!(texts[0].starts_with(expected), "{expected}: {texts:?}");
        manager.stop();
        if expected.starts_with("entry") {
            continue;
        }
        let accepting = open(folder.path(), &store, true);
        assert_eq!(found(&accepting), [""; 0], "{expected}");
        assert_eq!(accepting.audit(5, 9).unwrap().last().unwrap().action, "records-seal");
        accepting.stop();
    }
    assert_eq!(entry(7).len(), "millrace-audit/".len() + 20);
}

#[test]
fn record_that_is_put_back_with_its_former_seal_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (store, manager) = pool(folder.path());
    let keys = ["millrace/principal/bob", "millrace-seal/principal/bob"];
    let former = keys.map(|key| value(&store, key));
    let name = "bob".parse().unwrap();
    done(&manager, &Command::RemovePrincipal { principal: name });
    assert_eq!(found(&manager), [""; 0]);
    for (key, value) in keys.into_iter().zip(former) {
        put(&store, key, value);
    }
    assert_eq!(found(&manager), ["principal bob was changed outside of the manager"]);
    // A write through the manager is what an administrator answers with.
    done(&manager, &Command::SetPrincipal(principal("bob")));
    assert_eq!(found(&manager), [""; 0]);
    manager.stop();
}

#[test]
fn audit_log_that_was_cut_with_its_seals_shows_against_what_the_manager_noted() {
    let folder = tempfile::tempdir().unwrap();
    let (store, manager) = pool(folder.path());
    let before: Vec<_> = store.read("").unwrap().entries;
    done(&manager, &Command::SetPrincipal(principal("carol")));
    assert_eq!(found(&manager), [""; 0]);
    manager.stop();
    for entry in store.read("").unwrap().entries {
        delete(&store, &entry.key);
    }
    for entry in before {
        put(&store, &entry.key, entry.value.to_vec());
    }
    let again = open(folder.path(), &store, false);
    let texts = found(&again);
    assert!(
        texts[0].starts_with("the audit log ends with entry 4, and this manager has seen entry 5"),
        "{texts:?}"
    );
    again.stop();
    // Another manager of the pool, which noted nothing, takes it; so does this one when an operator says so.
    let accepting = open(folder.path(), &store, true);
    assert_eq!(found(&accepting), [""; 0]);
    accepting.stop();
}

#[test]
fn records_of_a_version_without_seals_are_taken_and_sealed() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(MemoryStore::new());
    let old = of_before(&store);
    done(&old, &Command::CreateTenant(tenant("acme", 100)));
    done(&old, &Command::SetPrincipal(principal("alice")));
    let new = open(folder.path(), &store, false);
    assert_eq!(found(&new), [""; 0]);
    let vouched = |manager: &Manager, name: &str| {
        let name = name.parse().unwrap();
        let revision = manager.view(|view| view.principals[&name].revision);
        manager.vouches(&name, revision).unwrap()
    };
    assert!(vouched(&new, "alice"));

    // Both write while the pool is upgraded: what the old one wrote is named, and in force.
    let revision = old.execute(ADMIN, &Command::SetTenant(tenant("acme", 200)), None).unwrap();
    done(&old, &Command::SetPrincipal(principal("carol")));
    let after = new.revision();
    let _ = new.wait(after.max(revision), std::time::Duration::from_secs(5));
    let texts = found(&new);
    assert_eq!(texts.len(), 3, "{texts:?}");
    assert!(
        texts[0].starts_with(
            "entries 4 to 5 of the audit log: written by a manager of an earlier version"
        ),
        "{texts:?}"
    );
    assert!(texts[1].contains("principal carol was added outside of the manager, or by one of an earlier version (entry 5"), "{texts:?}");
    assert!(texts[2].contains("tenant acme was changed outside of the manager, or by one of an earlier version (entry 4"), "{texts:?}");
    assert!(vouched(&new, "alice") && !vouched(&new, "carol"));
    assert_eq!(new.view(|view| view.tenants["acme"].value.quota.ops.per_second), 200);
    done(&new, &Command::SetTenant(tenant("acme", 300)));
    let texts = found(&new);
    assert_eq!(texts.len(), 2, "the record is a manager's again: {texts:?}");
    assert_eq!(new.verify_audit().unwrap(), old.verify_audit().unwrap());
    old.stop();
    new.stop();
    let accepting = open(folder.path(), &store, true);
    assert_eq!(found(&accepting), [""; 0]);
    assert!(vouched(&accepting, "carol"));
    accepting.stop();
}

#[test]
fn two_managers_of_one_pool_vouch_for_each_others_records() {
    let folder = tempfile::tempdir().unwrap();
    let (store, one) = pool(folder.path());
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::copy(folder.path().join("pool.kek"), elsewhere.path().join("pool.kek")).unwrap();
    let two = open(elsewhere.path(), &store, false);
    for (number, manager) in [&one, &two, &one, &two].into_iter().enumerate() {
        done(manager, &Command::SetTenant(tenant("acme", number as u64 + 1)));
    }
    let name = "dora".parse().unwrap();
    let revision = one.execute(ADMIN, &Command::SetPrincipal(principal("dora")), None).unwrap();
    assert!(two.vouches(&name, revision).unwrap(), "at once, without a wait for the next check");
    assert_eq!((found(&one), found(&two)), (Vec::new(), Vec::new()));
    one.stop();
    two.stop();
}

#[test]
fn damaged_entry_stands_in_the_listing_and_hides_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let (store, manager) = pool(folder.path());
    put(&store, &format!("millrace-audit/{:020}", 2), "not JSON");
    let entries: Vec<AuditEntry> = manager.audit(1, 10).unwrap();
    let seen: Vec<(u64, &str)> = entries.iter().map(|entry| (entry.seq, &*entry.action)).collect();
    let expected =
        [(1, "tenant-create"), (2, "damaged"), (3, "principal-set"), (4, "principal-set")];
    assert_eq!(seen, expected);
    let broken = manager.verify_audit().unwrap_err().to_string();
    assert!(broken.starts_with("entry 2 of the audit log is damaged"), "{broken}");
    assert_eq!(manager.ask_store(), Ok(()));
    manager.stop();
}
