// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Converts flags to a key policy.

use std::fmt::Write as _;

use anyhow::{Result, anyhow};
use millrace_hostfs::{Root, accounts};
use millrace_operation::{Hash, KeyType, OperationKind};
use millrace_service::policy::{EVERY_CLIENT, KeyPolicy, TENANT_PREFIX};
use millrace_service::tenants::valid_tenant;

use crate::args::{IdentityChangeArgs, PolicyArgs};
use crate::exit::{Failure, fail};

/// `base` with the parts that the flags name replaced.
///
/// # Errors
/// A user that does not exist here, a name that no tenant can have, or an operation that no stored key may have.
pub(crate) fn apply(args: &PolicyArgs, base: KeyPolicy) -> Result<KeyPolicy> {
    let PolicyArgs {
        allow_uid,
        allow_cert,
        allow_tenant,
        allow_all,
        operations,
        hashes,
        allow_tls_premaster,
    } = args;
    let mut policy = base;
    let mut identities = identities(allow_uid, allow_cert, allow_tenant)?;
    if *allow_all {
        identities.push(EVERY_CLIENT.to_owned());
    }
    if !identities.is_empty() {
        policy.identities = identities;
    }
    if operations.contains(&OperationKind::RsaRaw) {
        let reason = "rsa-raw is never allowed on a key of the pool: a client that may use it can sign \
                      and decrypt anything; leave it out";
        return Err(fail(Failure::Usage, reason));
    }
    if !operations.is_empty() {
        policy.operations = operations.iter().copied().collect();
    }
    if !hashes.is_empty() {
        policy.hashes = hashes.iter().copied().collect();
    }
    if *allow_tls_premaster {
        policy.operations.insert(OperationKind::RsaTlsPremaster);
    }
    Ok(policy)
}

/// Adds identities to `policy` and takes others out of it. Adding one that is there, and removing one that is
/// not, changes nothing.
///
/// # Errors
/// A user that does not exist here, a name that no tenant can have, or a removal that would be without effect,
/// because `*` still admits the identity.
pub(crate) fn change_identities(args: &IdentityChangeArgs, policy: &mut KeyPolicy) -> Result<()> {
    let IdentityChangeArgs {
        add_uid,
        add_cert,
        add_tenant,
        remove_uid,
        remove_cert,
        remove_tenant,
    } = args;
    let removed = identities(remove_uid, remove_cert, remove_tenant)?;
    let added = identities(add_uid, add_cert, add_tenant)?;
    if policy.identities.iter().any(|identity| identity == EVERY_CLIENT) {
        if let Some(identity) = removed.first() {
            let message = format!(
                "the policy admits every authenticated client (*), {identity} too: name those who may use \
                 the key with --allow-uid USER and --allow-cert NAME"
            );
            return Err(fail(Failure::Usage, message));
        }
        return Ok(());
    }
    policy.identities.retain(|identity| !removed.contains(identity));
    for identity in added {
        if !policy.identities.contains(&identity) {
            policy.identities.push(identity);
        }
    }
    Ok(())
}

/// The old (`-`) and the new (`+`) line of each part in which two policies differ.
pub(crate) fn changes(before: &KeyPolicy, after: &KeyPolicy) -> String {
    let pairs = parts(before).into_iter().zip(parts(after));
    let mut text = String::new();
    for ((part, before), (_, after)) in pairs.filter(|(before, after)| before != after) {
        let _ = write!(text, "- {part} {before}\n+ {part} {after}\n");
    }
    text
}

fn parts(policy: &KeyPolicy) -> [(&'static str, String); 3] {
    let KeyPolicy { identities, operations, hashes } = policy;
    let operations: Vec<&str> = operations.iter().map(OperationKind::name).collect();
    let hashes: Vec<&str> = hashes.iter().map(Hash::name).collect();
    [
        ("identities", identities.join(" ")),
        ("operations", operations.join(" ")),
        ("hashes", hashes.join(" ")),
    ]
}

fn identities(
    users: &[String],
    certificates: &[String],
    tenants: &[String],
) -> Result<Vec<String>> {
    let users = users.iter().map(|user| identity_of_user(user));
    let certificates = certificates.iter().map(|name| Ok(format!("cert:{name}")));
    let tenants = tenants.iter().map(|name| identity_of_tenant(name));
    users.chain(certificates).chain(tenants).collect()
}

fn identity_of_tenant(name: &str) -> Result<String> {
    if valid_tenant(name) {
        return Ok(format!("{TENANT_PREFIX}{name}"));
    }
    let reason = format!("{name:?} is not a name of a tenant: letters, digits, - and _");
    Err(fail(Failure::Usage, reason))
}

/// Refuses a policy under which the key could do nothing.
///
/// # Errors
/// None of the allowed operations exists for this type of key.
pub(crate) fn check_fits(policy: &KeyPolicy, key_type: KeyType) -> Result<()> {
    if policy.operations.iter().any(|kind| kind.fits(key_type)) {
        return Ok(());
    }
    let possible: Vec<&str> = OperationKind::ALL
        .iter()
        .filter(|kind| kind.fits(key_type) && **kind != OperationKind::RsaRaw)
        .map(|kind| kind.name())
        .collect();
    let possible = possible.join(", ");
    Err(fail(
        Failure::Usage,
        format!("a {key_type} key can do none of these operations; it can do: {possible}"),
    ))
}

/// `uid:33` for `33` and for the name of the local user with that number.
fn identity_of_user(user: &str) -> Result<String> {
    if let Ok(uid) = user.parse::<u32>() {
        return Ok(format!("uid:{uid}"));
    }
    let found = accounts::user(&Root::open("/")?, user)
        .map_err(|reason| anyhow!("reading /etc/passwd: {reason}"))?;
    let account = found.ok_or_else(|| {
        let message =
            format!("there is no local user {user} in /etc/passwd: give the number instead");
        fail(Failure::Usage, message)
    })?;
    Ok(format!("uid:{}", account.uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flags_leave_the_policy_unchanged() {
        assert_eq!(
            apply(&PolicyArgs::default(), KeyPolicy::signing(["*"])).unwrap(),
            KeyPolicy::signing(["*"])
        );
    }

    #[test]
    fn identities_replace_those_before() {
        let args = PolicyArgs {
            allow_uid: vec!["33".to_owned(), "root".to_owned()],
            allow_cert: vec!["gateway-1".to_owned()],
            ..PolicyArgs::default()
        };
        let policy = apply(&args, KeyPolicy::signing(["*"])).unwrap();
        assert_eq!(policy.identities, ["uid:33", "uid:0", "cert:gateway-1"]);
    }

    #[test]
    fn tenants_are_identities_with_their_prefix() {
        let args = PolicyArgs {
            allow_cert: vec!["gateway-1".to_owned()],
            allow_tenant: vec!["acme".to_owned()],
            ..PolicyArgs::default()
        };
        let policy = apply(&args, KeyPolicy::signing(["*"])).unwrap();
        assert_eq!(policy.identities, ["cert:gateway-1", "tenant:acme"]);
        let wrong = PolicyArgs { allow_tenant: vec!["a b".to_owned()], ..PolicyArgs::default() };
        assert!(apply(&wrong, KeyPolicy::signing(["*"])).is_err());
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn identities_are_added_once_and_removed_without_touching_others() {
        let mut policy = KeyPolicy::signing(["*"]);
        policy.identities = words(&["uid:33", "cert:gateway-1", "tenant:former"]);
        let args = IdentityChangeArgs {
            add_uid: words(&["33", "root"]),
            add_cert: words(&["gateway-2"]),
            add_tenant: words(&["acme"]),
            remove_cert: words(&["gateway-1", "unknown"]),
            remove_tenant: words(&["former"]),
            ..IdentityChangeArgs::default()
        };
        change_identities(&args, &mut policy).unwrap();
        let changed = ["uid:33", "uid:0", "cert:gateway-2", "tenant:acme"];
        assert_eq!(policy.identities, changed);
    }

    #[test]
    fn removal_from_a_policy_for_every_client_is_refused() {
        let mut policy = KeyPolicy::signing(["*"]);
        policy.identities = words(&["*"]);
        let args =
            IdentityChangeArgs { remove_uid: words(&["33"]), ..IdentityChangeArgs::default() };
        let error = change_identities(&args, &mut policy).unwrap_err();
        assert!(error.to_string().contains("--allow-uid"), "{error}");
        assert_eq!(policy.identities, ["*"]);
    }

    #[test]
    fn premaster_operation_is_added_and_raw_rsa_refused() {
        let args = PolicyArgs { allow_tls_premaster: true, ..PolicyArgs::default() };
        let policy = apply(&args, KeyPolicy::signing(["*"])).unwrap();
        assert!(policy.operations.contains(OperationKind::RsaTlsPremaster));
        assert!(policy.operations.contains(OperationKind::RsaPssSign));
        let args = PolicyArgs { operations: vec![OperationKind::RsaRaw], ..PolicyArgs::default() };
        assert!(apply(&args, KeyPolicy::signing(["*"])).is_err());
    }

    #[test]
    fn policy_without_any_possible_operation_is_refused() {
        let mut policy = KeyPolicy::signing(["*"]);
        policy.operations = [OperationKind::EcdsaSign].into_iter().collect();
        assert!(check_fits(&policy, KeyType::Rsa { bits: 2048 }).is_err());
        assert!(check_fits(&policy, KeyType::Ec(millrace_operation::Curve::P256)).is_ok());
    }
}
