// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The private keys of a pool: nodes get those of their tenants, sealed to each, and the store opens none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millrace_manager::model::command::{Command, Refusal};
use millrace_manager::model::core::{Actor, LeaseTimes};
use millrace_manager::model::holder::GrantSet;
use millrace_manager::model::keys::{MAX_POOL_KEYS, PoolKey};
use millrace_manager::model::name::{KeyName, NodeName};
use millrace_manager::model::node::{Heartbeat, Registration};
use millrace_manager::model::principal::Role;
use millrace_manager::model::tenant::Tenant;
use millrace_manager::sealing::{SealingError, SealingPair};
use millrace_manager::store::{self, Store};
use millrace_manager::vault::{KeyRights, Vault, VaultError, describe};
use millrace_manager::{Manager, ManagerError};
use millrace_operation::{KeyError, KeyInfo, KeyType, PrivateKey};
use millrace_service::grant::{GrantKeys, GrantSigner};

const ADMIN: Actor<'_> = Actor { name: "admin:test", role: Role::Admin };

/// Takes every key, and derives a public half from it.
fn check(key: &PrivateKey) -> Result<KeyInfo, KeyError> {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, key.dangerous_pkcs8());
    Ok(KeyInfo { key_type: KeyType::Ed25519, spki: hash.as_ref().to_vec() })
}

/// A private key whose bytes can be searched for. It begins as a SEQUENCE does, with the digit 0.
fn pem(number: usize) -> String {
    let secret = format!("0, the secret of key {number:04}");
    format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(secret))
}

fn vault(folder: &Path, store: &Arc<dyn Store>, renew: bool) -> Result<Vault, VaultError> {
    Vault::open(&folder.join("pool.kek"), Arc::clone(store), renew, check)
}

fn start(store: &Arc<dyn Store>, vault: Vault) -> Manager {
    let (signer, _) = GrantSigner::generate().unwrap();
    let times = LeaseTimes { ttl: Duration::from_secs(60), allowance: Duration::from_millis(100) };
    let keys = GrantKeys::default();
    Manager::start_with_vault(Arc::clone(store), signer, &keys, times, Some(vault)).unwrap()
}

fn rights(tenants: &[&str]) -> KeyRights {
    KeyRights {
        tenants: tenants.iter().map(|name| name.parse().unwrap()).collect(),
        operations: None,
        hashes: None,
    }
}

fn import(manager: &Manager, name: &str, number: usize, tenants: &[&str]) -> PoolKey {
    let name: KeyName = name.parse().unwrap();
    let before = manager.view(|view| view.keys.get(&name).map(|key| key.value.clone()));
    let vault = manager.vault().unwrap();
    let pem = pem(number);
    let rights = rights(tenants);
    let key = vault.make(&name, pem.as_bytes(), &rights, before.as_ref(), 1000).unwrap();
    manager.execute(ADMIN, &Command::SetKey(key.clone()), None).unwrap();
    key
}

/// A node without a key store.
struct Node {
    name: NodeName,
    pair: SealingPair,
    fence: u64,
    applied: u64,
    keys: BTreeMap<KeyName, u64>,
}

impl Node {
    fn join(manager: &Manager, name: &str) -> Self {
        let pair = SealingPair::generate().unwrap();
        let name: NodeName = name.parse().unwrap();
        let registration = Registration {
            name: name.clone(),
            process: 1,
            former: Vec::new(),
            seen: 0,
            addresses: ["tcp://192.0.2.1:9463".to_owned()].into(),
            zone: None,
            capacity: [("rsa2048".parse().unwrap(), 10_000)].into(),
            features: BTreeSet::new(),
            version: "0.1.0".to_owned(),
            sealing_key: Some(pair.public_text()),
        };
        let fence = manager.register(&registration).unwrap().lease.fence;
        Self { name, pair, fence, applied: 0, keys: BTreeMap::new() }
    }

    fn beat(&mut self, manager: &Manager) -> Result<GrantSet, ManagerError> {
        let set = manager.heartbeat(&Heartbeat {
            node: self.name.clone(),
            fence: self.fence,
            applied: self.applied,
            clock_ms: 1_000_000,
            load: millrace_manager::model::node::Load::default(),
            health: millrace_manager::model::node::Health::default(),
            keys: self.keys.clone(),
        })?;
        self.applied = set.revision;
        Ok(set)
    }

    fn beat_until(&mut self, manager: &Manager, done: impl Fn(&GrantSet) -> bool) -> GrantSet {
        let start = Instant::now();
        loop {
            let set = self.beat(manager).unwrap();
            if done(&set) {
                return set;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{set:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn secrets(&self, set: &GrantSet) -> Vec<String> {
        let opened = set.sealed_keys.iter().flat_map(|sealed| {
            let bundle = self.pair.open(&self.name, set.fence, set.revision, sealed).unwrap();
            bundle.versions
        });
        opened.map(|key| String::from_utf8(key.dangerous_pkcs8().to_vec()).unwrap()).collect()
    }
}

/// Two nodes, and a tenant on `a` alone.
fn pool(manager: &Manager) -> (Node, Node) {
    let a = Node::join(manager, "a");
    let b = Node::join(manager, "b");
    let mut tenant = Tenant::new("acme".parse().unwrap());
    tenant.placement.spread = 1;
    tenant.placement.nodes = ["a".parse().unwrap()].into();
    manager.execute(ADMIN, &Command::CreateTenant(tenant), None).unwrap();
    (a, b)
}

#[test]
fn key_goes_to_the_nodes_of_its_tenant_and_leaves_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = store::open("memory:").unwrap();
    let manager = start(&store, vault(folder.path(), &store, false).unwrap());
    let (mut a, mut b) = pool(&manager);
    let key = import(&manager, "www", 1, &["acme"]);
    let set = a.beat_until(&manager, |set| !set.grants.is_empty());
    assert_eq!(set.keys, [(key.name.clone(), key.version)]);
    assert_eq!(a.secrets(&set), ["0, the secret of key 0001"]);
    let other = b.pair.open(&b.name, set.fence, set.revision, &set.sealed_keys[0]);
    assert_eq!(other.unwrap_err(), SealingError::Open);
    let other = b.beat(&manager).unwrap();
    assert_eq!((other.keys.len(), other.sealed_keys.len()), (0, 0));

    // A node that has the version does not get it again; a new version comes with the former one.
    a.keys.insert(key.name.clone(), key.version);
    assert_eq!(a.beat(&manager).unwrap().sealed_keys.len(), 0);
    let renewed = import(&manager, "www", 2, &[]);
    assert!(renewed.version > key.version && renewed.tenants == key.tenants);
    let set = a.beat(&manager).unwrap();
    assert_eq!(a.secrets(&set), ["0, the secret of key 0002", "0, the secret of key 0001"]);

    // The tenant moves, and its keys with it.
    let node = "a".parse().unwrap();
    let drain = Command::DrainNode { node, drain: true };
    manager.execute(ADMIN, &drain, None).unwrap();
    let mut tenant = Tenant::new("acme".parse().unwrap());
    tenant.placement.spread = 1;
    manager.execute(ADMIN, &Command::SetTenant(tenant), None).unwrap();
    let set = a.beat_until(&manager, |set| set.grants.is_empty());
    assert_eq!((set.keys.len(), set.sealed_keys.len()), (0, 0));
    a.beat(&manager).unwrap();
    let set = b.beat_until(&manager, |set| !set.grants.is_empty());
    assert_eq!(b.secrets(&set).len(), 2);

    // A removed node gets nothing.
    let node = "b".parse().unwrap();
    manager.execute(ADMIN, &Command::RemoveNode { node }, None).unwrap();
    let refused = b.beat(&manager).unwrap_err();
    assert!(matches!(refused, ManagerError::Refused(Refusal::Removed(_))));
    manager.stop();
}

#[test]
fn answer_has_at_most_64_keys_and_the_next_is_due_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = store::open("memory:").unwrap();
    let manager = start(&store, vault(folder.path(), &store, false).unwrap());
    let (mut a, _) = pool(&manager);
    for number in 0..65 {
        import(&manager, &format!("key-{number}"), number, &["acme"]);
    }
    let set = a.beat_until(&manager, |set| !set.grants.is_empty());
    assert_eq!((set.keys.len(), set.sealed_keys.len()), (65, 64));
    assert!(set.next_ms <= 200, "{}", set.next_ms);
    let got = set.sealed_keys.iter();
    a.keys = got.map(|key| (key.name.clone(), key.version)).collect();
    let set = a.beat(&manager).unwrap();
    assert_eq!(set.sealed_keys.len(), 1);
    manager.stop();
}

#[test]
fn pool_has_room_for_a_thousand_keys_and_one_more_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = store::open("memory:").unwrap();
    let manager = start(&store, vault(folder.path(), &store, false).unwrap());
    let _ = pool(&manager);
    let first = import(&manager, "key-0", 0, &["acme"]);
    let set = |number: usize| {
        let name = format!("key-{number}").parse().unwrap();
        let command = Command::SetKey(PoolKey { name, version: 2000, ..first.clone() });
        manager.execute(ADMIN, &command, None)
    };
    for number in 1..MAX_POOL_KEYS {
        set(number).unwrap();
    }
    let refused = set(MAX_POOL_KEYS).unwrap_err();
    assert!(matches!(refused, ManagerError::Refused(Refusal::TooMany(..))), "{refused}");
    set(0).expect("a replacement needs no room");
    let stale = set(0).unwrap_err();
    assert!(stale.to_string().contains("version: higher"), "{stale}");
    manager.stop();
}

#[test]
fn tenant_with_keys_is_not_removed_and_a_key_needs_its_tenants() {
    let folder = tempfile::tempdir().unwrap();
    let store = store::open("memory:").unwrap();
    let manager = start(&store, vault(folder.path(), &store, false).unwrap());
    let _ = pool(&manager);
    let key = import(&manager, "www", 1, &["acme"]);
    let tenant = || "acme".parse().unwrap();
    let remove = Command::RemoveTenant { tenant: tenant() };
    let refused = manager.execute(ADMIN, &remove, None).unwrap_err();
    assert!(refused.to_string().contains("millrace pool key remove www"), "{refused}");
    let command = Command::RemoveKey { key: key.name };
    manager.execute(ADMIN, &command, None).unwrap();
    manager.execute(ADMIN, &remove, None).unwrap();
    let vault = manager.vault().unwrap();
    let name = "www".parse().unwrap();
    let orphan = vault.make(&name, pem(1).as_bytes(), &rights(&["acme"]), None, 1).unwrap();
    let refused = manager.execute(ADMIN, &Command::SetKey(orphan), None);
    assert!(matches!(refused.unwrap_err(), ManagerError::Refused(Refusal::NotFound(..))));
    manager.stop();
}

#[test]
fn neither_the_stores_file_nor_the_audit_log_has_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool.db");
    let store = store::open(&format!("sqlite:{}", path.display())).unwrap();
    let manager = start(&store, vault(folder.path(), &store, false).unwrap());
    let _ = pool(&manager);
    import(&manager, "www", 7, &["acme"]);
    let audit = format!("{:?}", manager.audit(1, 100).unwrap());
    assert!(audit.contains("key-set"), "{audit}");
    manager.stop();
    drop((manager, store));
    let mut bytes = audit.into_bytes();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        bytes.extend(std::fs::read(entry.unwrap().path()).unwrap());
    }
    let secret = "0, the secret of key 0007";
    let forms = [secret.to_owned(), STANDARD.encode(secret), hex::encode(secret)];
    for form in forms {
        let found = bytes.windows(form.len()).any(|part| part == form.as_bytes());
        assert!(!found, "{form}");
    }
}

#[test]
fn manager_without_the_pools_key_encryption_key_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let store = store::open("memory:").unwrap();
    let manager = start(&store, vault(folder.path(), &store, false).unwrap());
    let (mut a, _) = pool(&manager);
    import(&manager, "www", 1, &["acme"]);
    let file = folder.path().join("pool.kek");
    let saved = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let error = vault(folder.path(), &store, false).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, VaultError::Missing { .. }), "{text}");
    assert!(text.contains("pool.kek") && text.contains("--new-kek"), "{text}");
    assert!(!file.exists(), "no other one is made");

    let elsewhere = tempfile::tempdir().unwrap();
    let error = vault(elsewhere.path(), &store, false).unwrap_err();
    assert!(matches!(error, VaultError::Missing { .. }), "{error}");
    std::fs::write(&file, [7; 32]).unwrap();
    let error = vault(folder.path(), &store, false).unwrap_err();
    assert!(
        matches!(error, VaultError::Kek(_)) || matches!(error, VaultError::OtherKek { .. }),
        "{error}"
    );
    std::fs::write(&file, saved).unwrap();

    // It is lost: the pool continues with a new one, the keys under the former one reach no node until they are
    // replaced.
    std::fs::remove_file(&file).unwrap();
    let renewed = start(&store, vault(folder.path(), &store, true).unwrap());
    let set = a.beat_until(&renewed, |set| !set.grants.is_empty());
    assert_eq!((set.keys.len(), set.sealed_keys.len()), (1, 0));
    let refused = manager.vault().unwrap().make(
        &"api".parse().unwrap(),
        pem(3).as_bytes(),
        &rights(&["acme"]),
        None,
        1,
    );
    assert!(matches!(refused, Err(VaultError::OtherKek { .. })));
    import(&renewed, "www", 2, &[]);
    let set = a.beat(&renewed).unwrap();
    assert_eq!(a.secrets(&set), ["0, the secret of key 0002"]);
    manager.stop();
    renewed.stop();
}

#[test]
fn record_with_tenants_that_its_seal_does_not_name_reaches_no_node() {
    let folder = tempfile::tempdir().unwrap();
    let store = store::open("memory:").unwrap();
    let manager = start(&store, vault(folder.path(), &store, false).unwrap());
    let (mut a, _) = pool(&manager);
    let key = import(&manager, "www", 1, &["acme"]);
    let mallory = Tenant::new("mallory".parse().unwrap());
    manager.execute(ADMIN, &Command::CreateTenant(mallory), None).unwrap();
    let mut changed = key.clone();
    changed.version += 1;
    changed.tenants.insert("mallory".parse().unwrap());
    manager.execute(ADMIN, &Command::SetKey(changed), None).unwrap();
    let set = a.beat_until(&manager, |set| !set.grants.is_empty());
    assert_eq!((set.keys.len(), set.sealed_keys.len()), (1, 0));
    assert_eq!(describe(&key.sealed).unwrap().policy.identities, ["tenant:acme"]);
    manager.stop();
}
