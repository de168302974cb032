// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace key import`: reads, verifies, then stores. It writes nothing before all checks have passed.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use millrace_operation::KeyType;
use millrace_service::policy::KeyPolicy;
use millrace_service::store::pem::{MAX_PEM_LEN, read_private_key};
use millrace_service::store::{IfExists, KeyMeta, StoreError};
use zeroize::Zeroizing;

use crate::args::KeyImportArgs;
use crate::backends::check_key;
use crate::exit::{ContextCode, Failure};
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
    let KeyImportArgs { name, file, replace, plan, policy, store } = args;
    // Wrong options are reported before the key is read.
    policy::apply(policy, KeyPolicy::signing([]))?;
    let pem = read(file)?;
    let refused = || format!("the key in {} was refused", describe(file));
    let key = read_private_key(&pem).or_fail(Failure::KeyRefused, refused)?;
    let info = check_key(&key).or_fail(Failure::KeyRefused, refused)?;
    let settings = Settings::for_keys(store)?;
    if plan.dry_run {
        return would_import(args, &settings, info.key_type);
    }
    let store = settings.open_store()?;
    let before = if *replace { former_policy(&store, name, info.key_type)? } else { None };
    let replaced = before.is_some();
    let policy = policy::apply(policy, before.unwrap_or_else(|| KeyPolicy::signing([])))?;
    policy::check_fits(&policy, info.key_type)?;
    let if_exists = if *replace { IfExists::Replace } else { IfExists::Fail };
    let meta = store.act(|keys| keys.import(name, &key, info, policy, if_exists))?;
    report(&meta, replaced);
    wait_for_node(&settings, &store, &meta)
}

/// Says which policy the key would have. The present key is read without its seal, and nothing is written.
fn would_import(args: &KeyImportArgs, settings: &Settings, key_type: KeyType) -> Result<()> {
    let name = &args.name;
    let store = settings.look_at_store()?;
    let present = match store.act(|keys| Ok(keys.describe(name)))? {
        Ok(meta) if args.replace => Some(meta),
        Ok(_) => return store.act(|_| Err(StoreError::Exists { name: name.clone() })),
        Err(StoreError::NoSuchKey { .. }) => None,
        Err(error) => return store.act(|_| Err(error)),
    };
    let done = if present.is_some() { "replace" } else { "import" };
    let before = match present {
        Some(meta) => kept_policy(meta, key_type),
        None => KeyPolicy::signing([]),
    };
    let after = policy::apply(&args.policy, before.clone())?;
    policy::check_fits(&after, key_type)?;
    let changes = policy::changes(&before, &after);
    output::print(&format!("would {done} {name} ({key_type})\n{changes}"))
}

/// The policy of the key that is replaced; `None` if there is none.
fn former_policy(store: &OwnedStore, name: &str, key_type: KeyType) -> Result<Option<KeyPolicy>> {
    match store.act(|keys| Ok(keys.load(name)))? {
        Ok((_, meta)) => Ok(Some(kept_policy(meta, key_type))),
        Err(StoreError::NoSuchKey { .. }) => Ok(None),
        Err(error) => {
            let advice = format!(
                "the policy of {name} cannot be kept: remove the key first (millrace key remove {name})"
            );
            Err(anyhow!(error).context(advice))
        }
    }
}

/// The policy that the next version of a key keeps. Its operations follow the type of the new key, where none of them
/// fits that.
fn kept_policy(meta: KeyMeta, key_type: KeyType) -> KeyPolicy {
    let mut policy = meta.policy;
    if key_type.kind() != meta.info.key_type.kind() {
        policy.operations = KeyPolicy::signing([]).operations;
    }
    policy
}

/// Says what was done, and what is left to do.
fn report(meta: &KeyMeta, replaced: bool) {
    let KeyMeta { name, info, .. } = meta;
    let key_type = info.key_type;
    let identities = meta.policy.identities.join(", ");
    let done = if replaced { "replaced" } else { "imported" };
    if identities.is_empty() {
        eprintln!(
            "{done} {name} ({key_type}): no client may use it yet\n\
             next: millrace key policy {name} --add-uid USER (on this machine) or --add-cert NAME (over TCP)"
        );
    } else {
        eprintln!("{done} {name} ({key_type}) for {identities}");
    }
    if replaced {
        eprintln!(
            "next: millrace key stub {name} for each gateway; the former stub works until\n      \
             millrace key remove {name} --former"
        );
    }
}

/// Waits until the running node, if there is one, serves the key.
fn wait_for_node(settings: &Settings, store: &OwnedStore, meta: &KeyMeta) -> Result<()> {
    let end = Instant::now() + NODE_TAKES;
    let hash = spki_sha256(meta);
    loop {
        let Some(node) = settings.running_node(store) else {
            return Ok(());
        };
        let row = node.keys.iter().find(|row| row.name == meta.name && !row.former);
        match row {
            Some(row) if row.spki_sha256.as_ref() == Some(&hash) && row.problem.is_none() => {
                eprintln!("the node {} serves it", node.node);
                return Ok(());
            }
            _ if Instant::now() < end => thread::sleep(POLL),
            row => {
                let reason = row.and_then(|row| row.problem.as_deref());
                let reason = reason.unwrap_or("it has not loaded it; its log says more");
                bail!(
                    "{} is stored, but the node {} does not serve it: {reason}",
                    meta.name,
                    node.node
                );
            }
        }
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
