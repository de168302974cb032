// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace key`: manages the keys that the node serves.
//!
//! These commands work on the key store itself, so they need no running node, but the rights of its user. A
//! running node applies the change within a second. The output never contains a secret.

pub(super) mod import;
pub(super) mod import_folder;
pub(super) mod policy;
pub(super) mod view;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, anyhow};

use millrace_operation::stub::Stub;
use millrace_service::keys::KeyReport;
use millrace_service::store::{KeyMeta, KeyStore};

use crate::args::{
    KeyCommand, KeyListArgs, KeyPolicyArgs, KeyRemoveArgs, KeyShowArgs, KeyStoreArgs, KeyStubArgs,
};
use crate::output;
use crate::owned_store::OwnedStore;
use crate::settings::Settings;

use view::KeyView;

pub(crate) fn run(command: &KeyCommand) -> Result<()> {
    match command {
        KeyCommand::Import(args) => match &args.from_dir {
            Some(folder) => import_folder::run(args, folder),
            None => import::run(args),
        },
        KeyCommand::List(args) => list(args),
        KeyCommand::Show(args) => show(args),
        KeyCommand::Remove(args) => remove(args),
        KeyCommand::Policy(args) => change_policy(args),
        KeyCommand::Stub(args) => write_stub(args),
    }
}

fn list(args: &KeyListArgs) -> Result<()> {
    let settings = Settings::for_keys(&args.store)?;
    let (store, unverified) = settings.view_store()?;
    let node = settings.running_node(&store, None);
    let mut views: Vec<KeyView> = Vec::new();
    let mut unusable = 0_usize;
    let mut left = BTreeSet::new();
    for entry in store.act(KeyStore::list)? {
        let meta = match entry {
            Ok(meta) => meta,
            Err(error) => {
                unusable += 1;
                note!("warning: {error}");
                continue;
            }
        };
        let view = view_of(&store, meta, node.as_ref())?;
        unusable += usize::from(view.problem.is_some());
        match views.last_mut() {
            Some(key) if view.is_former_of(key) => key.former.push(view),
            _ if view.replaced.is_some() => {
                left.insert(view.name().to_owned());
            }
            _ => views.push(view),
        }
    }
    for name in left {
        // They serve no client.
        note!("warning: {name} has former versions and no current one: millrace key remove {name}");
    }
    if args.json {
        output::print_json(&views)?;
    } else {
        view::table(&views).print()?;
        if views.is_empty() {
            note!("no keys yet: millrace key import NAME FILE");
        }
    }
    if let Some(reason) = unverified.filter(|_| !views.is_empty()) {
        note!("note: not verified: {reason}");
    }
    if unusable > 0 {
        return Err(anyhow!("{unusable} files in {} cannot be used", store.directory().display()));
    }
    Ok(())
}

/// The view of a version of a key: verified if the store is unlocked, with what the running node says of it.
fn view_of(store: &OwnedStore, meta: KeyMeta, node: Option<&KeyReport>) -> Result<KeyView> {
    let (meta, mut problem) = store.verify(meta)?;
    let kek = meta.kek.to_string();
    if let Some(node) = node.filter(|node| problem.is_none() && node.kek.as_ref() != Some(&kek)) {
        problem = Some(format!(
            "the node {} has another key-encryption key ({}, the key {kek})",
            node.node,
            node.kek.as_deref().unwrap_or("-"),
        ));
    }
    Ok(KeyView::new(&meta, problem, node))
}

/// The current version of one key with its former ones.
fn view_of_name(args: &KeyStoreArgs, name: &str) -> Result<KeyView> {
    let settings = Settings::for_keys(args)?;
    let (store, unverified) = settings.view_store()?;
    let meta = store.act(|keys| keys.describe(name))?;
    let node = settings.running_node(&store, Some(name));
    let mut view = view_of(&store, meta, node.as_ref())?;
    for meta in store.act(|keys| keys.former(name))? {
        match meta {
            Ok(meta) => view.former.push(view_of(&store, meta, node.as_ref())?),
            Err(error) => note!("warning: {error}"),
        }
    }
    if let Some(reason) = unverified {
        note!("note: not verified: {reason}");
    }
    Ok(view)
}

fn show(args: &KeyShowArgs) -> Result<()> {
    let view = view_of_name(&args.store, &args.name)?;
    print_view(&view, args.json)?;
    match view.problem {
        None => Ok(()),
        Some(problem) => Err(anyhow!("{} cannot be used: {problem}", args.name)),
    }
}

fn print_view(view: &KeyView, json: bool) -> Result<()> {
    if json { output::print_json(view) } else { output::print(&view.page()) }
}

fn remove(args: &KeyRemoveArgs) -> Result<()> {
    let KeyRemoveArgs { name, former, plan, store } = args;
    let store = Settings::for_keys(store)?.look_at_store()?;
    if plan.dry_run {
        let files = store.act(|keys| keys.files_of(name))?;
        let count = files.former.len();
        let mut text = format!("would remove {count} former versions of {name}\n");
        if !*former {
            text = format!("would remove {name} and {count} former versions\n");
        }
        for file in files.current.iter().filter(|_| !*former).chain(&files.former) {
            let _ = writeln!(text, "- {}", file.display());
        }
        return output::print(&text);
    }
    if !*former {
        store.act(|keys| keys.remove(name))?;
        note!("removed {name}");
        return Ok(());
    }
    store.act(|keys| keys.files_of(name))?;
    match store.act(|keys| keys.remove_former(name))? {
        0 => note!("{name} has no former versions"),
        1 => note!("removed the former version of {name}; its stub no longer works"),
        count => {
            note!("removed {count} former versions of {name}; their stubs no longer work");
        }
    }
    Ok(())
}

fn change_policy(args: &KeyPolicyArgs) -> Result<()> {
    if args.changes_nothing() {
        let view = view_of_name(&args.store, &args.name)?;
        return print_view(&view, args.json);
    }
    let store = Settings::for_keys(&args.store)?.open_store()?;
    let (_, meta) = store.act(|keys| keys.load(&args.name))?;
    let mut policy = policy::apply(&args.policy, meta.policy.clone())?;
    policy::change_identities(&args.identities, &mut policy)?;
    policy::check_fits(&policy, meta.info.key_type)?;
    if policy == meta.policy {
        note!("nothing to change: {} has this policy already", args.name);
    } else if args.plan.dry_run {
        let changes = policy::changes(&meta.policy, &policy);
        return output::print(&format!("would change the policy of {}\n{changes}", args.name));
    } else {
        store.act(|keys| keys.set_policy(&args.name, policy))?;
        note!("changed the policy of {}", args.name);
    }
    let view = view_of_name(&args.store, &args.name)?;
    print_view(&view, args.json)
}

fn write_stub(args: &KeyStubArgs) -> Result<()> {
    let (store, _) = Settings::for_keys(&args.store)?.view_store()?;
    // The public half is not a secret: the stub is also made without the key-encryption key.
    let meta = store.act(|keys| keys.describe(&args.name))?;
    let (meta, problem) = store.verify(meta)?;
    if let Some(problem) = problem {
        note!("warning: no node can use this key: {problem}");
    }
    put_stub(&stub_of(&meta)?, args.uri, args.output.as_deref())
}

/// Writes a stub, or its URI, to a file or to standard output.
pub(super) fn put_stub(stub: &Stub, as_uri: bool, path: Option<&Path>) -> Result<()> {
    let text = if as_uri { format!("{}\n", stub.to_uri()) } else { stub.to_pem() };
    let Some(path) = path else {
        return output::print(&text);
    };
    output::put(path, &text)?;
    note!("wrote {}: give it to the application as its private key", path.display());
    Ok(())
}

/// The stub that replaces the key on a gateway: its name and public half, no secret.
fn stub_of(meta: &KeyMeta) -> Result<Stub> {
    let stub = Stub::new(&meta.name, &meta.info.spki);
    stub.with_context(|| format!("{} cannot be named by a stub", meta.name))
}
