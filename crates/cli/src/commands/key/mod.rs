// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace key`: manages the keys that the node serves.
//!
//! These commands work on the key store itself, so they need no running node, but the rights of its user. A
//! running node applies the change within a second. The output never contains a secret.

mod import;
mod policy;
pub(super) mod view;

use std::fs;
use std::io::Write as _;

use anyhow::{Context, Result, anyhow};

use millrace_client::stub::Stub;
use millrace_service::store::{KeyMeta, KeyStore};

use crate::args::{
    KeyCommand, KeyListArgs, KeyPolicyArgs, KeyRemoveArgs, KeyShowArgs, KeyStubArgs,
};
use crate::output::{self, Table};
use crate::settings::Settings;

use view::KeyView;

pub(crate) fn run(command: &KeyCommand) -> Result<()> {
    match command {
        KeyCommand::Import(args) => import::run(args),
        KeyCommand::List(args) => list(args),
        KeyCommand::Show(args) => show(args),
        KeyCommand::Remove(args) => remove(args),
        KeyCommand::Policy(args) => change_policy(args),
        KeyCommand::Stub(args) => write_stub(args),
    }
}

fn list(args: &KeyListArgs) -> Result<()> {
    let store = Settings::for_store(&args.store)?.look_at_store()?;
    let mut views = Vec::new();
    let mut damaged = 0_usize;
    for entry in store.act(KeyStore::list)? {
        match entry {
            Ok(meta) => views.push(KeyView::new(&meta)),
            Err(error) => {
                damaged += 1;
                eprintln!("warning: {error}");
            }
        }
    }
    if args.json {
        output::print_json(&views)?;
    } else {
        let mut table = Table::new(&["name", "type", "imported", "identities", "operations"]);
        for view in &views {
            table.row(view.row());
        }
        table.print()?;
        if views.is_empty() {
            eprintln!("no keys yet: millrace key import NAME FILE");
        }
    }
    if damaged > 0 {
        return Err(anyhow!(
            "{damaged} files in {} cannot be used",
            store.directory().display()
        ));
    }
    Ok(())
}

fn show(args: &KeyShowArgs) -> Result<()> {
    let store = Settings::for_store(&args.store)?.open_store()?;
    // Opening the seal proves that the displayed data is what was imported.
    let (_, meta) = store.act(|keys| keys.load(&args.name))?;
    if args.stub {
        return output::print(&stub_of(&meta)?);
    }
    print_view(&KeyView::new(&meta), args.json)
}

fn print_view(view: &KeyView, json: bool) -> Result<()> {
    if json {
        output::print_json(view)
    } else {
        output::print(&view.page())
    }
}

fn remove(args: &KeyRemoveArgs) -> Result<()> {
    let store = Settings::for_store(&args.store)?.look_at_store()?;
    store.act(|keys| keys.remove(&args.name))?;
    eprintln!("removed {}", args.name);
    Ok(())
}

fn change_policy(args: &KeyPolicyArgs) -> Result<()> {
    let store = Settings::for_store(&args.store)?.open_store()?;
    let (_, meta) = store.act(|keys| keys.load(&args.name))?;
    let mut policy = policy::apply(&args.policy, meta.policy.clone())?;
    policy::change_identities(&args.identities, &mut policy)?;
    policy::check_fits(&policy, meta.info.key_type)?;
    let meta = if policy == meta.policy {
        meta
    } else {
        let meta = store.act(|keys| keys.set_policy(&args.name, policy))?;
        eprintln!("changed the policy of {}", args.name);
        meta
    };
    print_view(&KeyView::new(&meta), args.json)
}

fn write_stub(args: &KeyStubArgs) -> Result<()> {
    let store = Settings::for_store(&args.store)?.open_store()?;
    let (_, meta) = store.act(|keys| keys.load(&args.name))?;
    let pem = stub_of(&meta)?;
    let Some(path) = &args.output else {
        return output::print(&pem);
    };
    let mut file = fs::File::create(path).with_context(|| format!("making {}", path.display()))?;
    file.write_all(pem.as_bytes())
        .with_context(|| format!("writing {}", path.display()))?;
    eprintln!(
        "wrote {}: give it to the application as its private key",
        path.display()
    );
    Ok(())
}

/// The PEM block that replaces the key on a gateway: its name and public half, no secret.
fn stub_of(meta: &KeyMeta) -> Result<String> {
    let stub = Stub::new(&meta.name, &meta.info.spki);
    let stub = stub.with_context(|| format!("{} cannot be named by a stub", meta.name))?;
    Ok(stub.to_pem())
}
