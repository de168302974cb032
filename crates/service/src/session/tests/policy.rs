// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Operations that a client may use: by its features, and by the policy of a key.

use millrace_operation::MlDsaInput;
use millrace_wire::FEATURE_ML_DSA;

use super::*;

const ML_DSA: Operation = Operation::MlDsaSign { input: MlDsaInput::Message };

/// Replies to an `OpenKey` and to an `ImportKey` of an ML-DSA key, after a hello with these features.
fn ml_dsa_replies(features: u64) -> (Client, NodeMessage, NodeMessage) {
    let mut client = Client::silent(rules());
    client.say(ClientMessage::Hello(Hello {
        min_version: 1,
        max_version: 1,
        features,
        agent: "test".to_owned(),
    }));
    let opened = client.say(open("ml-dsa")).replies.remove(0);
    client.say(import());
    let mut effects = Effects::default();
    let key = ("key-imported", info(KeyType::MlDsa(MlDsaSet::MlDsa44)));
    client.state.imported(8, Ok(key), &mut effects);
    (client, opened, effects.replies.remove(0))
}

#[test]
fn ml_dsa_keys_are_hidden_from_a_client_without_the_feature() {
    let (mut client, opened, imported) = ml_dsa_replies(FEATURE_REPORTS);
    let refused = |message, expected| matches!(message, NodeMessage::KeyRefused { reason, .. } if reason == expected);
    assert!(refused(opened, KeyRefusal::NoSuchKey));
    assert!(refused(imported, KeyRefusal::Key(KeyError::NotOffered)));
    // The session continues; a job that names the operation anyway is refused alone.
    let handle = client.handle("mine");
    let effects = client.say(submit([job(1, handle, ML_DSA)]));
    assert_eq!(effects.refused, [(1, JobError::NotOffered)]);
}

#[test]
fn ml_dsa_keys_are_opened_for_a_client_with_the_feature() {
    let (mut client, opened, imported) = ml_dsa_replies(FEATURE_ML_DSA);
    for message in [opened, imported] {
        let NodeMessage::KeyOpened { handle, operations, .. } = message else {
            panic!("{message:?}")
        };
        assert!(operations.iter().eq([OperationKind::MlDsaSign]));
        let effects = client.say(submit([job(u64::from(handle), handle, ML_DSA)]));
        assert_eq!((effects.jobs.len(), effects.refused.len()), (1, 0));
    }
}

/// Every operation with every hash and padding that a client could ask for, for each key.
fn all_operations() -> Vec<Operation> {
    let hashes = || Digest::ALL.iter().copied();
    let pairs = || hashes().flat_map(move |hash| hashes().map(move |mgf_hash| (hash, mgf_hash)));
    let pkcs1 = hashes().map(|hash| Operation::RsaPkcs1Sign { hash });
    let ecdsa = hashes().map(|hash| Operation::EcdsaSign { hash });
    let pss =
        pairs().map(|(hash, mgf_hash)| Operation::RsaPssSign { hash, mgf_hash, salt_len: 32 });
    let oaep = pairs().map(|(hash, mgf_hash)| Operation::RsaOaepDecrypt {
        hash,
        mgf_hash,
        label: Vec::new(),
    });
    let plain = [
        Operation::RsaPkcs1Decrypt,
        Operation::RsaRaw,
        Operation::Ecdh,
        Operation::X25519,
        Operation::Ed25519Sign,
    ];
    pkcs1.chain(ecdsa).chain(pss).chain(oaep).chain(plain).collect()
}

/// Policies that differ in each dimension, with the identities that they name.
fn policies() -> Vec<KeyPolicy> {
    let identities: [&[&str]; 5] =
        [&["tenant:acme"], &["tenant:other"], &["uid:1"], &["uid:2", "tenant:acme"], &[]];
    let operations: [&[OperationKind]; 4] = [
        &[OperationKind::RsaPssSign],
        &[OperationKind::RsaPkcs1Sign, OperationKind::EcdsaSign],
        &[OperationKind::RsaOaepDecrypt, OperationKind::RsaPkcs1Decrypt],
        OperationKind::ALL,
    ];
    let hashes: [&[Digest]; 2] = [&[Digest::Sha256], &[Digest::Sha256, Digest::Sha384]];
    let mut policies = Vec::new();
    for identities in identities {
        for operations in operations {
            for hashes in hashes {
                policies.push(KeyPolicy {
                    identities: identities.iter().map(|&name| name.to_owned()).collect(),
                    operations: operations.iter().copied().collect(),
                    hashes: hashes.iter().copied().collect(),
                });
            }
        }
    }
    policies
}

#[test]
fn exactly_what_a_policy_allows_is_done_for_tenant_key_operation_hash_and_padding() {
    let keys = [
        ("rsa", KeyType::Rsa { bits: 2048 }),
        ("p256", KeyType::Ec(Curve::P256)),
        ("ed25519", KeyType::Ed25519),
    ];
    let operations = all_operations();
    let mut allowed = 0;
    let mut denied = 0;
    for policy in policies() {
        for (identity, tenant) in
            [("uid:1", None), ("uid:2", Some("acme")), ("uid:3", Some("other"))]
        {
            let mut client = Client::silent(Rules { max_keys: 10, ..rules() });
            let mut settings = Settings::default();
            if let Some(tenant) = tenant {
                let tenant_settings = crate::tenants::TenantSettings {
                    identities: [identity.parse().unwrap()].into(),
                    ..Default::default()
                };
                settings.tenant.insert(tenant.to_owned(), tenant_settings);
            }
            let directory = crate::tenants::Directory::of_settings("n", &settings.tenant);
            let terms = settings.terms(identity, &directory).unwrap();
            let account = Arc::new(Account::new(terms, client.now));
            client.state = SessionState::new(Arc::new(rules()), identity.into(), account);
            let entries = keys.map(|(name, key_type)| {
                Arc::new(KeyEntry::new(name, name, info(key_type), policy.clone()))
            });
            client.keys = entries.into_iter().collect();
            client.say(hello());
            let named = |name: &str| policy.identities.iter().any(|known| known == name);
            let admitted =
                named(identity) || tenant.is_some_and(|tenant| named(&format!("tenant:{tenant}")));
            for (name, key_type) in keys {
                let effects = client.say(open(name));
                let handle = match &effects.replies[0] {
                    NodeMessage::KeyOpened { handle, .. } => *handle,
                    NodeMessage::KeyRefused { reason, .. } => {
                        assert_eq!(*reason, KeyRefusal::NoSuchKey);
                        assert!(!admitted, "{identity} {policy:?}");
                        continue;
                    }
                    other => panic!("{other:?}"),
                };
                assert!(admitted, "{identity} {policy:?}");
                for operation in &operations {
                    let kind = operation.kind();
                    let by_policy = policy.operations.contains(kind)
                        && operation
                            .hashes()
                            .into_iter()
                            .flatten()
                            .all(|hash| policy.hashes.contains(hash))
                        && kind.fits(key_type)
                        && kind != OperationKind::RsaRaw;
                    let refusal = client.refusal(handle, operation.clone());
                    assert_eq!(
                        refusal.is_none(),
                        by_policy,
                        "{identity} {name} {operation:?} {policy:?}"
                    );
                    allowed += u32::from(by_policy);
                    denied += u32::from(!by_policy);
                }
            }
        }
    }
    assert!(allowed > 100 && denied > 3_000, "{allowed} allowed, {denied} denied");
}
