// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace pool key`: the private keys that managers give to nodes.

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millrace_manager::api::{KeyView, NewKey};
use millrace_manager::client::{Condition, ManagerClient, Write, escaped};
use millrace_operation::stub::Stub;
use millrace_operation::{Hash, KeyInfo, OperationKind};
use millrace_service::policy::KeyPolicy;
use millrace_service::store::pem::read_private_key;
use zeroize::Zeroize;

use super::changes::{print_changes, print_losses};
use crate::args::{
    ListArgs, PoolKeyCommand, PoolKeyImportArgs, PoolKeyRemoveArgs, PoolKeyStubArgs,
};
use crate::backends::check_key;
use crate::commands::key::view::sha256;
use crate::commands::key::{import, put_stub};
use crate::exit::{ContextCode, Failure, fail};
use crate::manager_access::{client, to_exit_error};
use crate::output::{self, Table, date, joined};

pub(super) fn run(command: &PoolKeyCommand) -> Result<()> {
    match command {
        PoolKeyCommand::Import(args) => give(args),
        PoolKeyCommand::List(args) => list(args),
        PoolKeyCommand::Stub(args) => stub(args),
        PoolKeyCommand::Remove(args) => remove(args),
    }
}

fn path(name: &impl std::fmt::Display) -> String {
    format!("/v1/keys/{}", escaped(&name.to_string()))
}

fn give(args: &PoolKeyImportArgs) -> Result<()> {
    let client = client(&args.access)?;
    let mut pem = import::read(&args.file)?;
    let refused = || format!("the key in {} was refused", import::describe(&args.file));
    // A wrong file is reported before anything of it leaves this machine.
    let key = read_private_key(&pem).or_fail(Failure::KeyRefused, refused)?;
    let info = check_key(&key).or_fail(Failure::KeyRefused, refused)?;
    let text = std::str::from_utf8(&pem).or_fail(Failure::KeyRefused, refused)?;
    let new = NewKey {
        private_key: text.to_owned(),
        tenants: args.tenant.iter().cloned().collect(),
        operations: names(&args.operations, OperationKind::name),
        hashes: names(&args.hashes, Hash::name),
    };
    pem.zeroize();
    if args.plan.dry_run {
        return would_give(&client, args, &new, &info);
    }
    let condition = if args.replace { Condition::None } else { Condition::Absent };
    let made: KeyView =
        client.write(Write::Put, &path(&args.name), condition, &new).map_err(to_exit_error)?;
    if args.json.json {
        return output::print_json(&made);
    }
    let name = &made.name;
    note!(
        "the pool has {name} ({}) for {}: their nodes get it with their next heartbeat\n\
         next: millrace pool key stub {name} for each gateway",
        made.key_type,
        joined(&made.tenants, "")
    );
    if made.former > 0 {
        note!("the former stub works until millrace pool key remove {name} --former");
    }
    Ok(())
}

/// Says what the pool would have then. Values that no option names stay, as in the managers.
fn would_give(
    client: &ManagerClient,
    args: &PoolKeyImportArgs,
    new: &NewKey,
    info: &KeyInfo,
) -> Result<()> {
    let name = &args.name;
    let public = sha256(&info.spki);
    let found: Vec<KeyView> = client.list("/v1/keys").map_err(to_exit_error)?;
    let Some(present) = found.iter().find(|key| key.name == *name) else {
        let done = format!("import {name} ({}) for {}", info.key_type, joined(&new.tenants, ""));
        return print_losses(&done, []);
    };
    if !args.replace {
        let message = format!("there is a key {name} already: replace it with --replace");
        return Err(fail(Failure::KeyName, message));
    }
    let tenants = if new.tenants.is_empty() { &present.tenants } else { &new.tenants };
    let key_type = info.key_type.to_string();
    let hashes = if new.hashes.is_empty() { &present.hashes } else { &new.hashes };
    let operations = if !new.operations.is_empty() {
        new.operations.clone()
    } else if is_same_kind(&present.key_type, &key_type) {
        present.operations.clone()
    } else {
        let all = KeyPolicy::signing([]).operations;
        let fitting = all.iter().filter(|kind| kind.fits(info.key_type));
        fitting.map(|kind| kind.name().to_owned()).collect()
    };
    let before = [
        ("type", present.key_type.clone()),
        ("public half", present.public.clone()),
        ("tenants", joined(&present.tenants, "none")),
        ("operations", joined(&present.operations, "all")),
        ("hashes", joined(&present.hashes, "all")),
    ];
    let after = [
        ("type", key_type),
        ("public half", public),
        ("tenants", joined(tenants, "none")),
        ("operations", joined(operations, "all")),
        ("hashes", joined(hashes, "all")),
    ];
    print_changes(format!("key {name}"), &before, &after)
}

/// Whether two types differ in their size alone, which only RSA keys do.
fn is_same_kind(one: &str, other: &str) -> bool {
    one == other || [one, other].iter().all(|name| name.starts_with("rsa-"))
}

fn names<T: Copy>(values: &[T], name: fn(T) -> &'static str) -> Vec<String> {
    values.iter().map(|value| name(*value).to_owned()).collect()
}

fn list(args: &ListArgs) -> Result<()> {
    let keys: Vec<KeyView> = client(&args.access)?.list("/v1/keys").map_err(to_exit_error)?;
    if args.json.json {
        return output::print_json(&keys);
    }
    #[rustfmt::skip]
    let table = Table::of(&keys, &[
        ("name", &|key| key.name.to_string()),
        ("type", &|key| key.key_type.clone()),
        ("tenants", &|key| joined(&key.tenants, "")),
        ("public half", &|key| key.public.chars().take(16).collect()),
        (">former", &|key| key.former.to_string()),
        ("imported", &|key| date(key.created)),
        ("sealed under", &|key| key.kek.clone()),
    ]);
    table.print()
}

fn stub(args: &PoolKeyStubArgs) -> Result<()> {
    let key: KeyView = client(&args.access)?.get(&path(&args.name)).map_err(to_exit_error)?;
    let spki = STANDARD.decode(&key.spki).context("the manager's answer has no public half")?;
    let stub = Stub::new(key.name.as_str(), &spki)
        .with_context(|| format!("{} cannot be named by a stub", key.name))?;
    put_stub(&stub, args.uri, args.output.as_deref())
}

fn remove(args: &PoolKeyRemoveArgs) -> Result<()> {
    let PoolKeyRemoveArgs { name, former, plan, access } = args;
    let client = client(access)?;
    if plan.dry_run {
        let key: KeyView = client.get(&path(name)).map_err(to_exit_error)?;
        let versions = format!("{} former versions", key.former);
        if *former {
            return print_losses(&format!("remove {versions} of {name}"), []);
        }
        let tenants = key.tenants.iter().map(|tenant| format!("use by tenant {tenant}"));
        return print_losses(&format!("remove {name} and {versions}"), tenants);
    }
    if *former {
        let path = format!("{}/forget-former", path(name));
        let _: KeyView =
            client.write(Write::Post, &path, Condition::None, &()).map_err(to_exit_error)?;
        note!("the former versions of {name} end with the nodes' next heartbeats");
        return Ok(());
    }
    client.write::<()>(Write::Delete, &path(name), Condition::None, &()).map_err(to_exit_error)?;
    note!("{name} is removed: nodes delete it with their next heartbeat");
    Ok(())
}
