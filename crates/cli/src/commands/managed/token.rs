// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace token`: who may use the manager's API.

use anyhow::{Context, Result, anyhow};
use millrace_manager::api::{NewToken, PrincipalView, Token};
use millrace_manager::client::{Access, Condition, Write, escaped};
use millrace_manager::model::principal::Role;
use zeroize::Zeroizing;

use super::changes::print_losses;
use super::print_list;
use crate::args::{ListArgs, TokenCommand, TokenCreateArgs, TokenRemoveArgs};
use crate::exit::{Failure, fail};
use crate::manager_access::{access, client, to_exit_error};
use crate::output::{self, Table, date, or};

pub(crate) fn run(command: &TokenCommand) -> Result<()> {
    match command {
        TokenCommand::Create(args) => create(args),
        TokenCommand::List(args) => list(args),
        TokenCommand::Remove(args) => remove(args),
    }
}

fn path(name: &impl std::fmt::Display) -> String {
    format!("/v1/tokens/{}", escaped(&name.to_string()))
}

fn create(args: &TokenCreateArgs) -> Result<()> {
    let client = client(&args.access)?;
    let wanted = NewToken {
        role: args.role.into(),
        identity: args.identity.clone(),
        valid_s: args.lifetime.map(|lifetime| lifetime.as_secs()),
    };
    let made: Token = client
        .write(Write::Put, &path(&args.name), Condition::Absent, &wanted)
        .map_err(to_exit_error)?;
    if let Some(file) = &args.output {
        let given = Access {
            token: made.token.map(|token| Zeroizing::new(token).into()),
            certificate: None,
            ..access(&args.access)?
        };
        // A token whose only copy was not written serves no client, and its name would be taken.
        if let Err(error) = given.write(file) {
            let name = &args.name;
            let removed = client.write::<()>(Write::Delete, &path(name), Condition::None, &());
            return Err(match removed {
                Ok(()) => anyhow!("{error}; the token was removed again"),
                Err(_) => anyhow!("{error}; remove the token: millrace token remove {name}"),
            });
        }
        note!(
            "{} has the access of {}: copy it to the host that uses it",
            file.display(),
            made.name
        );
        return Ok(());
    }
    if args.json.json {
        return output::print_json(&made);
    }
    match &made.token {
        Some(token) => output::print(&format!("{token}\n")),
        None => {
            let identity = args.identity.as_deref().context("the manager gave no token")?;
            note!("{identity} is {}", made.name);
            Ok(())
        }
    }
}

fn list(args: &ListArgs) -> Result<()> {
    let principals: Vec<PrincipalView> =
        client(&args.access)?.list("/v1/tokens").map_err(to_exit_error)?;
    if args.json.json {
        return print_list(principals);
    }
    #[rustfmt::skip]
    let table = Table::of(&principals, &[
        ("name", &|row| row.name.to_string()),
        ("role", &|row| role_name(row.role).to_owned()),
        ("proves itself by", &|row| or(row.identity.as_ref(), "token")),
        ("expires", &|row| or(row.expires_ms.map(|ms| date(ms / 1000)), "never")),
    ]);
    table.print()
}

fn remove(args: &TokenRemoveArgs) -> Result<()> {
    let TokenRemoveArgs { name, plan, access } = args;
    let client = client(access)?;
    if plan.dry_run {
        let principals: Vec<PrincipalView> = client.list("/v1/tokens").map_err(to_exit_error)?;
        let Some(found) = principals.into_iter().find(|row| row.name == *name) else {
            return Err(fail(Failure::KeyName, format!("there is no principal {name}")));
        };
        let proof = found.identity.unwrap_or_else(|| "its token".to_owned());
        let role = format!("role {} of {proof}", role_name(found.role));
        return print_losses(&format!("remove {name}"), [role]);
    }
    client.write::<()>(Write::Delete, &path(name), Condition::None, &()).map_err(to_exit_error)?;
    note!("{name} has no access any more");
    Ok(())
}

const fn role_name(role: Role) -> &'static str {
    match role {
        Role::Admin => "admin",
        Role::Operator => "operator",
        Role::Viewer => "viewer",
        Role::Node => "node",
    }
}
