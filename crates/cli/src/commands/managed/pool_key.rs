// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace pool key`: the private keys that managers give to nodes.

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millrace_manager::api::{KeyView, NewKey};
use millrace_manager::client::{Condition, Write, escaped};
use millrace_operation::stub::Stub;
use millrace_operation::{Hash, OperationKind};
use millrace_service::store::pem::read_private_key;
use zeroize::Zeroize;

use super::{client, coded};
use crate::args::{
    ListArgs, PoolKeyCommand, PoolKeyImportArgs, PoolKeyRemoveArgs, PoolKeyStubArgs,
};
use crate::commands::key::{import, put_stub};
use crate::exit::{ContextCode, Failure, fail};
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
    import::check(&key).or_fail(Failure::KeyRefused, refused)?;
    let text = std::str::from_utf8(&pem).or_fail(Failure::KeyRefused, refused)?;
    let new = NewKey {
        private_key: text.to_owned(),
        tenants: args.tenant.iter().cloned().collect(),
        operations: names(&args.operations, OperationKind::name),
        hashes: names(&args.hashes, Hash::name),
    };
    pem.zeroize();
    let condition = if args.replace { Condition::None } else { Condition::Absent };
    let made: KeyView =
        client.write(Write::Put, &path(&args.name), condition, &new).map_err(coded)?;
    if args.json.json {
        return output::print_json(&made);
    }
    let name = &made.name;
    eprintln!(
        "the pool has {name} ({}) for {}: their nodes get it with their next heartbeat\n\
         next: millrace pool key stub {name} for each gateway",
        made.key_type,
        joined(&made.tenants, "")
    );
    if made.former > 0 {
        eprintln!("the former stub works until millrace pool key remove {name} --former");
    }
    Ok(())
}

fn names<T: Copy>(values: &[T], name: fn(T) -> &'static str) -> Vec<String> {
    values.iter().map(|value| name(*value).to_owned()).collect()
}

fn list(args: &ListArgs) -> Result<()> {
    let keys: Vec<KeyView> = client(&args.access)?.list("/v1/keys").map_err(coded)?;
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
    let key: KeyView = client(&args.access)?.get(&path(&args.name)).map_err(coded)?;
    let spki = STANDARD.decode(&key.spki).context("the manager's answer has no public half")?;
    let stub = Stub::new(key.name.as_str(), &spki);
    let unnamed = || format!("{} cannot be named by a stub", key.name);
    let stub = stub.ok_or_else(|| fail(Failure::Failed, unnamed()))?;
    put_stub(&stub.to_pem(), args.output.as_deref())
}

fn remove(args: &PoolKeyRemoveArgs) -> Result<()> {
    let client = client(&args.access)?;
    let name = &args.name;
    if args.former {
        let path = format!("{}/forget-former", path(name));
        let _: KeyView = client.write(Write::Post, &path, Condition::None, &()).map_err(coded)?;
        eprintln!("the former versions of {name} end with the nodes' next heartbeats");
        return Ok(());
    }
    client.write::<()>(Write::Delete, &path(name), Condition::None, &()).map_err(coded)?;
    eprintln!("{name} is removed: nodes delete it with their next heartbeat");
    Ok(())
}
