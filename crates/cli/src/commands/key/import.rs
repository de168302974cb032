// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace key import` of one key: reads, verifies, then stores. It writes nothing before all checks have passed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use millrace_operation::KeyType;
use millrace_service::policy::KeyPolicy;
use millrace_service::store::pem::{MAX_PEM_LEN, read_private_key};
use millrace_service::store::{IfExists, KeyMeta, KeyStore, MAX_NAME_LEN, StoreError, valid_name};
use zeroize::Zeroizing;

use crate::args::KeyImportArgs;
use crate::backends::check_key;
use crate::exit::{ContextCode, Failure, fail};
use crate::output;
use crate::owned_store::OwnedStore;
use crate::settings::Settings;

use super::policy;
use super::view::spki_sha256;

/// Time that a running node has to serve the key. It looks every half second, and loading a key takes
/// milliseconds.
const NODE_TAKES: Duration = Duration::from_secs(15);

/// Pause between questions to the node: 150 of them at most within [`NODE_TAKES`].
const POLL: Duration = Duration::from_millis(100);

pub(super) fn run(args: &KeyImportArgs) -> Result<()> {
    // The others belong to a folder.
    let KeyImportArgs { name, file, from_dir: _, stubs: _, json: _, replace, plan, policy, store } =
        args;
    let (Some(name), Some(file)) = (name, file) else {
        return Err(fail(Failure::Usage, "name the key and its file, or --from-dir DIR"));
    };
    // Wrong options are reported before the key is read.
    policy::apply(policy, KeyPolicy::signing([]))?;
    if !valid_name(name) {
        let name = name.chars().take(MAX_NAME_LEN).collect();
        return Err(fail(Failure::Usage, StoreError::Name { name }.to_string()));
    }
    let pem = read(file)?;
    let refused = || format!("the key in {} was refused", describe(file));
    let key = read_private_key(&pem).or_fail(Failure::KeyRefused, refused)?;
    let info = check_key(&key).or_fail(Failure::KeyRefused, refused)?;
    let settings = Settings::for_keys(store)?;
    if plan.dry_run {
        return would_import(args, name, &settings, info.key_type);
    }
    let store = settings.open_store()?;
    let before = if *replace { present(&store, name)? } else { None };
    let kept = before.clone().map(|meta| kept_policy(&store, meta, info.key_type)).transpose()?;
    let policy = policy::apply(policy, kept.unwrap_or_else(|| KeyPolicy::signing([])))?;
    policy::check_fits(&policy, info.key_type)?;
    let if_exists = if *replace { IfExists::Replace } else { IfExists::Fail };
    let meta = store.act(|keys| keys.import(name, &key, info, policy, if_exists))?;
    report(&meta, before.as_ref());
    wait_for_node(&settings, &store, &[meta])
}

/// Says which policy the key would have. The present key is read without its seal, and nothing is written.
fn would_import(
    args: &KeyImportArgs,
    name: &str,
    settings: &Settings,
    key_type: KeyType,
) -> Result<()> {
    let store = settings.look_at_store()?;
    let present = match store.act(|keys| Ok(keys.describe(name)))? {
        Ok(meta) if args.replace => Some(meta),
        Ok(_) => return store.act(|_| Err(StoreError::Exists { name: name.to_owned() })),
        Err(StoreError::NoSuchKey { .. }) => None,
        Err(error) => return store.act(|_| Err(error)),
    };
    let done = if present.is_some() { "replace" } else { "import" };
    let kept = present.clone().map(|meta| kept_policy(&store, meta, key_type)).transpose()?;
    let after = policy::apply(&args.policy, kept.unwrap_or_else(|| KeyPolicy::signing([])))?;
    policy::check_fits(&after, key_type)?;
    let after = in_effect(&after, key_type);
    let before = match present {
        Some(meta) => in_effect(&meta.policy, meta.info.key_type),
        None => in_effect(&KeyPolicy::signing([]), key_type),
    };
    let changes = policy::changes(&before, &after);
    output::print(&format!("would {done} {name} ({key_type})\n{changes}"))
}

/// The key that is replaced, with its authentic policy where the store is unlocked; `None` if there is none.
pub(super) fn present(store: &OwnedStore, name: &str) -> Result<Option<KeyMeta>> {
    let find = |keys: &KeyStore| match keys.kek() {
        Some(_) => keys.load(name).map(|(_, meta)| meta),
        None => keys.describe(name),
    };
    match store.act(|keys| Ok(find(keys)))? {
        Ok(meta) => Ok(Some(meta)),
        Err(StoreError::NoSuchKey { .. }) => Ok(None),
        Err(error) => {
            let advice = format!(
                "the policy of {name} cannot be kept: remove the key first (millrace key remove {name})"
            );
            Err(anyhow!(error).context(advice))
        }
    }
}

/// The policy that the next version of a key keeps. A former version that cannot be verified counts for nothing.
pub(super) fn kept_policy(
    store: &OwnedStore,
    meta: KeyMeta,
    key_type: KeyType,
) -> Result<KeyPolicy> {
    let mut former = Vec::new();
    for version in store.act(|keys| keys.former(&meta.name))?.into_iter().flatten() {
        let (version, problem) = store.verify(version)?;
        former.extend(
            problem.is_none().then_some((version.info.key_type, version.policy.operations)),
        );
    }
    Ok(meta.policy.renewed(meta.info.key_type, key_type, former))
}

/// A policy without operations that a type of key does not have.
pub(super) fn in_effect(policy: &KeyPolicy, key_type: KeyType) -> KeyPolicy {
    let operations = policy.operations.iter().filter(|kind| kind.fits(key_type)).collect();
    KeyPolicy { operations, ..policy.clone() }
}

/// Says what was done, and what is left to do.
fn report(meta: &KeyMeta, before: Option<&KeyMeta>) {
    let KeyMeta { name, info, .. } = meta;
    let key_type = info.key_type;
    let identities = meta.policy.identities.join(", ");
    let done = if before.is_some() { "replaced" } else { "imported" };
    if identities.is_empty() {
        note!(
            "{done} {name} ({key_type}): no client may use it yet\n\
             next: millrace key policy {name} --add-uid USER (on this machine) or --add-cert NAME (over TCP)"
        );
    } else {
        note!("{done} {name} ({key_type}) for {identities}");
    }
    let Some(before) = before else {
        return;
    };
    let from = before.info.key_type;
    let changes =
        policy::changes(&in_effect(&before.policy, from), &in_effect(&meta.policy, key_type));
    if !changes.is_empty() {
        note!(
            "its policy is another one now ({from} before; an option of `millrace key policy {name}` changes it):\n{}",
            changes.trim_end()
        );
    }
    note!(
        "next: millrace key stub {name} for each gateway; the former stub works until\n      \
         millrace key remove {name} --former"
    );
}

/// Waits until the running node, if there is one, serves the keys.
pub(super) fn wait_for_node(
    settings: &Settings,
    store: &OwnedStore,
    metas: &[KeyMeta],
) -> Result<()> {
    let (name, pause) = match metas {
        [meta] => (Some(meta.name.as_str()), POLL),
        // The node lists all its keys then.
        _ => (None, 10 * POLL),
    };
    let wanted: Vec<_> = metas.iter().map(|meta| (&meta.name, spki_sha256(meta))).collect();
    let mut end = Instant::now() + NODE_TAKES;
    let mut fewest = usize::MAX;
    loop {
        let Some(node) = settings.running_node(store, name) else {
            return Ok(());
        };
        let current = node.keys.iter().filter(|row| !row.former);
        let rows: HashMap<_, _> = current.map(|row| (&row.name, row)).collect();
        let missing = wanted.iter().filter(|(name, hash)| {
            rows.get(name)
                .is_none_or(|row| row.spki_sha256.as_ref() != Some(hash) || row.problem.is_some())
        });
        let missing: Vec<_> = missing.collect();
        let Some((name, _)) = missing.first() else {
            let them = if let [_] = metas { "it" } else { "them" };
            note!("the node {} serves {them}", node.node);
            return Ok(());
        };
        if missing.len() < fewest {
            // It is at work.
            fewest = missing.len();
            end = Instant::now() + NODE_TAKES;
        }
        if Instant::now() < end {
            thread::sleep(pause);
            continue;
        }
        let reason = rows.get(name).and_then(|row| row.problem.as_deref());
        let reason = reason.unwrap_or("it has not loaded it; its log says more");
        let others = match missing.len() - 1 {
            0 => String::new(),
            others => format!(" (nor {others} others)"),
        };
        bail!("{name} is stored, but the node {} does not serve it{others}: {reason}", node.node);
    }
}

/// Reads a file, or standard input for `-`, into memory that is zeroised. It reads at most one byte above the
/// bound on PEM files, enough to detect a larger file.
pub(crate) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let limit = MAX_PEM_LEN + 1;
    // Reserves the full size: growing would leave copies of the key in freed memory.
    let mut pem = Zeroizing::new(Vec::with_capacity(limit));
    let bounded = u64::try_from(limit).unwrap_or(u64::MAX);
    let outcome = if path == Path::new("-") {
        io::stdin().lock().take(bounded).read_to_end(&mut pem)
    } else {
        File::open(path).and_then(|file| file.take(bounded).read_to_end(&mut pem))
    };
    outcome.or_fail(Failure::Usage, || format!("cannot read {}", describe(path)))?;
    Ok(pem)
}

pub(crate) fn describe(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}
