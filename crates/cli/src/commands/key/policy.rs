// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Converts flags to a key policy.

use std::fs;

use anyhow::{Context, Result};
use millrace_engine::policy::EVERY_CLIENT;
use millrace_engine::{KeyPolicy, KeyType, OperationKind};

use crate::args::{IdentityChangeArgs, PolicyArgs};
use crate::exit::{Failure, fail};

/// `base` with the parts that the flags name replaced.
///
/// # Errors
/// A user that does not exist here, or an operation that no stored key may have.
pub(crate) fn apply(args: &PolicyArgs, base: KeyPolicy) -> Result<KeyPolicy> {
    let PolicyArgs {
        allow_uid,
        allow_cert,
        allow_all,
        operations,
        hashes,
        allow_tls_premaster,
    } = args;
    let mut policy = base;
    let mut identities = identities(allow_uid, allow_cert)?;
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
/// A user that does not exist here, or a removal that would be without effect, because `*` admits the identity
/// all the same.
pub(crate) fn change_identities(args: &IdentityChangeArgs, policy: &mut KeyPolicy) -> Result<()> {
    let IdentityChangeArgs {
        add_uid,
        add_cert,
        remove_uid,
        remove_cert,
    } = args;
    let removed = identities(remove_uid, remove_cert)?;
    let added = identities(add_uid, add_cert)?;
    if policy
        .identities
        .iter()
        .any(|identity| identity == EVERY_CLIENT)
    {
        if let Some(identity) = removed.first() {
            let message = format!(
                "the policy admits every authenticated client (*), {identity} too: name those who may use \
                 the key with --allow-uid USER and --allow-cert NAME"
            );
            return Err(fail(Failure::Usage, message));
        }
        return Ok(());
    }
    policy
        .identities
        .retain(|identity| !removed.contains(identity));
    for identity in added {
        if !policy.identities.contains(&identity) {
            policy.identities.push(identity);
        }
    }
    Ok(())
}

fn identities(users: &[String], certificates: &[String]) -> Result<Vec<String>> {
    let users = users.iter().map(|user| identity_of_user(user));
    let certificates = certificates.iter().map(|name| Ok(format!("cert:{name}")));
    users.chain(certificates).collect()
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
        format!("a {key_type} key has none of these operations, but: {possible}"),
    ))
}

/// `uid:33` for `33` and for the name of the local user with that number.
fn identity_of_user(user: &str) -> Result<String> {
    if let Ok(uid) = user.parse::<u32>() {
        return Ok(format!("uid:{uid}"));
    }
    let users = fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
    let uid = uid_of(user, &users).ok_or_else(|| {
        let message =
            format!("there is no local user {user} in /etc/passwd: give the number instead");
        fail(Failure::Usage, message)
    })?;
    Ok(format!("uid:{uid}"))
}

fn uid_of(user: &str, passwd: &str) -> Option<u32> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(user))
            .then(|| fields.nth(1)?.parse().ok())
            .flatten()
    })
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

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn identities_are_added_once_and_removed_without_touching_others() {
        let mut policy = KeyPolicy::signing(["*"]);
        policy.identities = words(&["uid:33", "cert:gateway-1"]);
        let args = IdentityChangeArgs {
            add_uid: words(&["33", "root"]),
            add_cert: words(&["gateway-2"]),
            remove_cert: words(&["gateway-1", "unknown"]),
            ..IdentityChangeArgs::default()
        };
        change_identities(&args, &mut policy).unwrap();
        assert_eq!(policy.identities, ["uid:33", "uid:0", "cert:gateway-2"]);
    }

    #[test]
    fn removal_from_a_policy_for_every_client_is_refused() {
        let mut policy = KeyPolicy::signing(["*"]);
        policy.identities = words(&["*"]);
        let args = IdentityChangeArgs {
            remove_uid: words(&["33"]),
            ..IdentityChangeArgs::default()
        };
        let error = change_identities(&args, &mut policy).unwrap_err();
        assert!(error.to_string().contains("--allow-uid"), "{error}");
        assert_eq!(policy.identities, ["*"]);
    }

    #[test]
    fn premaster_operation_is_added_and_raw_rsa_refused() {
        let args = PolicyArgs {
            allow_tls_premaster: true,
            ..PolicyArgs::default()
        };
        let policy = apply(&args, KeyPolicy::signing(["*"])).unwrap();
        assert!(policy.operations.contains(OperationKind::RsaTlsPremaster));
        assert!(policy.operations.contains(OperationKind::RsaPssSign));
        let args = PolicyArgs {
            operations: vec![OperationKind::RsaRaw],
            ..PolicyArgs::default()
        };
        assert!(apply(&args, KeyPolicy::signing(["*"])).is_err());
    }

    #[test]
    fn policy_without_any_possible_operation_is_refused() {
        let mut policy = KeyPolicy::signing(["*"]);
        policy.operations = [OperationKind::EcdsaSign].into_iter().collect();
        assert!(check_fits(&policy, KeyType::Rsa { bits: 2048 }).is_err());
        assert!(check_fits(&policy, KeyType::Ec(millrace_engine::Curve::P256)).is_ok());
    }

    #[test]
    fn users_are_found_by_their_exact_name() {
        let passwd = "root:x:0:0::/root:/bin/sh\nwww-data:x:33:33::/:/bin/false\nbroken\n";
        assert_eq!(uid_of("www-data", passwd), Some(33));
        assert_eq!(uid_of("www", passwd), None);
        assert_eq!(uid_of("broken", passwd), None);
    }
}
