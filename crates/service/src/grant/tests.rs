// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

use std::collections::BTreeMap;

use proptest::collection::{btree_map, btree_set};
use proptest::prelude::*;

use super::*;
use crate::rates::{MAX_BYTES, MAX_OPS};

/// A grant and its encoding, signed with the key of RFC 8032 section 7.1, test 1. A change of these bytes breaks
/// every pool in which managers and nodes are of different versions.
const FIXTURE: &[u8] = include_bytes!("../../tests/data/grant-v1");

/// The secret of RFC 8032 section 7.1, test 1, as PKCS#8 (RFC 8410 section 7).
fn signer() -> GrantSigner {
    let secret = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
    let head = "302e020100300506032b657004220420";
    let pkcs8 = hex::decode([head, secret].concat()).unwrap();
    GrantSigner::from_pkcs8(&pkcs8).unwrap()
}

fn keys() -> GrantKeys {
    GrantKeys::new([signer().key()]).unwrap()
}

fn grant() -> Grant {
    let class = |text: &str| text.parse().unwrap();
    Grant {
        id: *b"0123456789abcdef",
        revision: 42,
        not_before_ms: 1_800_000_000_000,
        expires_ms: 1_800_000_030_000,
        tenant: "acme".to_owned(),
        weight: 2,
        priority: Priority::High,
        node: "node-1".to_owned(),
        fence: 7,
        rates: Rates {
            ops: Rate::per_second(5000),
            bytes: Rate { per_second: 1_000_000, burst: 250_000 },
            classes: BTreeMap::from([
                (class("rsa2048"), Rate::per_second(2000)),
                (class("slow"), Rate::per_second(10)),
                (class("ecdsa-sign:p-384"), Rate::UNLIMITED),
            ]),
        },
        identities: ["cert:gateway-1", "spiffe://pool/acme/*", "uid:33@node-1"]
            .map(|text| text.parse().unwrap())
            .into(),
        endpoints: ["tcp://192.0.2.1:9463".to_owned()].into(),
    }
}

#[test]
fn encoding_of_a_grant_is_the_fixture_for_ever() {
    let signed = signer().sign(grant()).unwrap();
    if std::env::var_os("MILLRACE_WRITE_FIXTURES").is_some() {
        std::fs::write("tests/data/grant-v1", signed.as_bytes()).unwrap();
    }
    assert_eq!(signed.as_bytes(), FIXTURE);
    let read = SignedGrant::from_bytes(FIXTURE).unwrap();
    assert_eq!(*read.verify(&keys()).unwrap(), grant());
    assert_eq!(
        signer().key().to_string(),
        "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    );
}

#[test]
fn every_changed_byte_of_a_grant_is_noticed() {
    for at in 0..FIXTURE.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut changed = FIXTURE.to_vec();
            changed[at] ^= flip;
            let verified = SignedGrant::from_bytes(&changed)
                .and_then(|signed| signed.verify(&keys()).cloned());
            assert!(verified.is_err(), "byte {at} with {flip:#x}");
        }
    }
}

#[test]
fn every_truncation_and_every_extra_byte_of_a_grant_is_an_error() {
    for end in 0..FIXTURE.len() {
        assert!(SignedGrant::from_bytes(&FIXTURE[..end]).is_err(), "{end} bytes");
    }
    let longer = [FIXTURE, &[0]].concat();
    assert_eq!(SignedGrant::from_bytes(&longer).unwrap_err(), GrantError::Damaged("signature"));
}

#[test]
fn grant_of_another_signer_is_refused() {
    let (other, pkcs8) = GrantSigner::generate().unwrap();
    let signed = other.sign(grant()).unwrap();
    assert!(matches!(signed.verify(&keys()), Err(GrantError::UntrustedKey(_))));
    let both = GrantKeys::new([signer().key(), other.key()]).unwrap();
    assert!(signed.verify(&both).is_ok());
    let again = GrantSigner::from_pkcs8(&pkcs8).unwrap();
    assert_eq!(again.key(), other.key());
}

#[test]
fn signature_of_the_same_bytes_without_the_domain_is_refused() {
    let signer = signer();
    let mut bytes = FIXTURE[..FIXTURE.len() - SIGNATURE_LEN].to_vec();
    let signature = signer.pair.sign(&bytes);
    bytes.extend_from_slice(signature.as_ref());
    let signed = SignedGrant::from_bytes(&bytes).unwrap();
    assert_eq!(signed.verify(&keys()), Err(GrantError::Signature));
}

#[test]
fn grant_of_a_later_version_says_upgrade() {
    let mut later = FIXTURE.to_vec();
    later[MAGIC.len()] = 2;
    let error = SignedGrant::from_bytes(&later).unwrap_err();
    assert_eq!(error, GrantError::Version(2));
    assert!(error.to_string().contains("upgrade millrace"));
}

#[test]
fn grant_out_of_bounds_is_not_signed() {
    type Change = fn(&mut Grant);
    let wrong: [(&str, Change); 8] = [
        ("lifetime", |g| g.expires_ms = g.not_before_ms),
        ("lifetime", |g| g.expires_ms += 25 * 3_600_000),
        ("tenant", |g| g.tenant = "a b".to_owned()),
        ("weight", |g| g.weight = 0),
        ("weight", |g| g.weight = 1001),
        ("node", |g| g.node.clear()),
        ("rates", |g| g.rates.ops.per_second = MAX_OPS + 1),
        ("endpoint", |g| g.endpoints = ["a b".to_owned()].into()),
    ];
    for (what, change) in wrong {
        let mut grant = grant();
        change(&mut grant);
        let error = signer().sign(grant).unwrap_err();
        assert_eq!(error, GrantError::Damaged(what));
    }
}

#[test]
fn repeated_or_unordered_identities_are_no_grant() {
    let signed = signer().sign(grant()).unwrap();
    let text = b"cert:gateway-1";
    let at = signed.bytes.windows(text.len()).position(|part| part == text).unwrap();
    let mut bytes = signed.bytes;
    bytes[at..at + text.len()].copy_from_slice(b"uid:9999999999");
    assert_eq!(SignedGrant::from_bytes(&bytes).unwrap_err(), GrantError::Damaged("identity"));
}

#[test]
fn key_file_has_one_key_a_line() {
    let one = GrantKey([1; 32]);
    let two = GrantKey([2; 32]);
    let text = format!("# the pool's manager\n\n{one}\n  {two}\n{one}\n");
    let keys: GrantKeys = text.parse().unwrap();
    assert_eq!(keys.as_slice(), [one, two]);
    assert_eq!(keys.to_string().parse(), Ok(keys));
    for wrong in ["ed25519:", "rsa:00", &format!("{one}00")] {
        assert!(wrong.parse::<GrantKeys>().is_err(), "{wrong}");
    }
    let many = (0..9).map(|n| GrantKey([n; 32]));
    assert_eq!(GrantKeys::new(many), Err(GrantKeyError::TooMany));
}

#[test]
fn grant_survives_json() {
    let signed = signer().sign(grant()).unwrap();
    let json = serde_json::to_string(&signed).unwrap();
    assert_eq!(serde_json::from_str::<SignedGrant>(&json).unwrap(), signed);
    let json = serde_json::to_string(&grant()).unwrap();
    assert_eq!(serde_json::from_str::<Grant>(&json).unwrap(), grant());
}

fn any_rate(most: u64) -> impl Strategy<Value = Rate> {
    (0..=most, 0..=most).prop_map(|(per_second, burst)| Rate {
        per_second,
        burst: if per_second == 0 { 0 } else { burst },
    })
}

fn any_class() -> impl Strategy<Value = JobClass> {
    prop::sample::select(vec![
        "fast",
        "slow",
        "rsa-2048",
        "rsa-3072",
        "p-256",
        "ed25519",
        "ecdsa-sign",
        "rsa-pss-sign:rsa-4096",
    ])
    .prop_map(|text| text.parse().unwrap())
}

prop_compose! {
    fn any_grant()(
        id: [u8; 16],
        revision: u64,
        not_before_ms in 0..u64::from(u32::MAX) * 1000,
        lifetime_ms in 1..86_400_000_u64,
        tenant in "[a-z0-9][a-z0-9_-]{0,62}",
        weight in 1..=Owner::MAX_WEIGHT,
        priority in prop::sample::select(Priority::ALL),
        node in "[a-z0-9 .]{1,32}",
        fence: u64,
        ops in any_rate(MAX_OPS),
        bytes in any_rate(MAX_BYTES),
        classes in btree_map(any_class(), any_rate(MAX_OPS), 0..6),
        identities in btree_set("(cert|uid):[!-)+-~]{1,20}\\*?", 0..6),
        endpoints in btree_set("tcp://[a-z0-9.:]{1,30}", 0..MAX_ENDPOINTS),
    ) -> Grant {
        Grant {
            id, revision, not_before_ms, expires_ms: not_before_ms + lifetime_ms, tenant, weight, priority, node,
            fence, rates: Rates { ops, bytes, classes },
            identities: identities.iter().map(|text| text.parse().unwrap()).collect(),
            endpoints,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn grant_is_read_as_it_was_signed_and_has_one_encoding(grant in any_grant()) {
        let signed = signer().sign(grant.clone()).unwrap();
        let read = SignedGrant::from_bytes(signed.as_bytes()).unwrap();
        prop_assert_eq!(read.verify(&keys()).unwrap(), &grant);
        prop_assert_eq!(grant.encode().unwrap(), &signed.as_bytes()[..signed.as_bytes().len() - KEY_ID_LEN - SIGNATURE_LEN]);
    }

    #[test]
    fn bytes_are_no_grant_or_encode_to_themselves(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(read) = SignedGrant::from_bytes(&bytes) {
            let again = read.dangerous_unverified().encode().unwrap();
            prop_assert_eq!(&again[..], &bytes[..again.len()]);
        }
    }
}
