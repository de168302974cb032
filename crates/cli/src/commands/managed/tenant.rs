// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace tenant`.

use anyhow::{Error, Result};
use millrace_manager::api::Code;
use millrace_manager::api::TenantGrants;
use millrace_manager::client::{ClientError, Condition, ManagerClient, Write};
use millrace_manager::model::name::TenantName;
use millrace_manager::model::tenant::{Quota, Tenant};
use millrace_service::rates::Rate;

use super::changes::{keys_of, parts, print_changes, print_losses};
use super::{addresses, limits, print_list, tenant_path};
use crate::args::{
    AccessArgs, DryRunArg, JsonArg, ListArgs, OnOff, QuotaValues, TenantCommand, TenantCreateArgs,
    TenantPlaceArgs, TenantRemoveArgs, TenantSetArgs, TenantShowArgs, TenantValues,
};
use crate::exit::{Failure, fail};
use crate::manager_access::{client, to_exit_error};
use crate::output::{self, Table, joined};
use crate::page::facts;

pub(crate) fn run(command: &TenantCommand) -> Result<()> {
    match command {
        TenantCommand::Create(args) => create(args),
        TenantCommand::List(args) => list(args),
        TenantCommand::Show(args) => show(args),
        TenantCommand::Set(args) => set(args),
        TenantCommand::Place(args) => place(args),
        TenantCommand::Addresses(args) => addresses::run(args),
        TenantCommand::Remove(args) => remove(args),
    }
}

fn create(args: &TenantCreateArgs) -> Result<()> {
    let client = client(&args.access)?;
    let mut tenant = Tenant::new(args.name.clone());
    apply(&mut tenant, &args.values);
    let made = client.write(Write::Put, &tenant_path(&args.name), Condition::Absent, &tenant);
    finish(&made.map_err(to_exit_error)?, args.json.json, "made")
}

fn set(args: &TenantSetArgs) -> Result<()> {
    if args.changes_nothing() {
        return Err(names_no_change("tenant set"));
    }
    change(&args.name, &args.access, args.plan, args.json, |tenant| {
        apply(tenant, &args.values);
        tenant.identities.extend(args.add_identity.iter().cloned());
        tenant.identities.retain(|identity| !args.remove_identity.contains(identity));
    })
}

fn place(args: &TenantPlaceArgs) -> Result<()> {
    if args.changes_nothing() {
        return Err(names_no_change("tenant place"));
    }
    change(&args.name, &args.access, args.plan, args.json, |tenant| {
        let placement = &mut tenant.placement;
        placement.spread = args.spread.unwrap_or(placement.spread);
        placement.over_commit = args.over_commit.map_or(placement.over_commit, OnOff::is_on);
        if !args.node.is_empty() {
            placement.nodes = args.node.iter().cloned().collect();
        }
        if !args.zone.is_empty() {
            placement.zones.clone_from(&args.zone);
        }
    })
}

fn names_no_change(command: &str) -> Error {
    let message =
        format!("no value is named: `millrace {command} --help` lists those that can change");
    fail(Failure::Usage, message)
}

/// Tries of a change that another writer overtakes.
const TRIES: u32 = 3;

/// Reads a tenant, changes it, and writes it; again if it was changed in between. A manager that is cut off from the
/// store shows the tenant as it was: the manager that took the write and refused it is asked next.
fn change(
    name: &TenantName,
    access: &AccessArgs,
    plan: DryRunArg,
    json: JsonArg,
    change: impl Fn(&mut Tenant),
) -> Result<()> {
    let client = client(access)?;
    let mut tries = 0;
    loop {
        tries += 1;
        let found = client.get_revised::<Tenant>(&tenant_path(name)).map_err(to_exit_error)?;
        let mut tenant = found.value.clone();
        change(&mut tenant);
        if plan.dry_run && json.json {
            return output::print_json(&tenant);
        }
        if tenant == found.value {
            note!("nothing to change: tenant {name} has these values already");
            return if json.json { output::print_json(&tenant) } else { Ok(()) };
        }
        if plan.dry_run {
            let record = format!("tenant {name}");
            return print_changes(record, &parts(&found.value), &parts(&tenant));
        }
        let condition = found.etag.as_deref().map_or(Condition::None, Condition::Matches);
        match client.write(Write::Put, &tenant_path(name), condition, &tenant) {
            Err(error) if tries < TRIES && is_overtaken(&error) => {}
            changed => return finish(&changed.map_err(to_exit_error)?, json.json, "set"),
        }
    }
}

fn is_overtaken(error: &ClientError) -> bool {
    error.problem().is_some_and(|problem| problem.code == Code::Changed)
}

fn finish(tenant: &Tenant, json: bool, done: &str) -> Result<()> {
    if json {
        return output::print_json(tenant);
    }
    note!("tenant {} is {done}: {}", tenant.name, limits(&tenant.quota));
    if tenant.identities.is_empty() {
        note!("next: millrace tenant set {} --add-identity cert:NAME", tenant.name);
    }
    Ok(())
}

fn apply(tenant: &mut Tenant, values: &TenantValues) {
    apply_quota(&mut tenant.quota, &values.quota);
    tenant.weight = values.weight.unwrap_or(tenant.weight);
    tenant.priority = values.priority.unwrap_or(tenant.priority);
    if !values.identity.is_empty() {
        tenant.identities = values.identity.iter().cloned().collect();
    }
}

fn apply_quota(quota: &mut Quota, values: &QuotaValues) {
    let QuotaValues { ops, ops_burst, bytes, class } = values;
    if let Some(ops) = ops {
        quota.ops = Rate::per_second(*ops);
    }
    if let Some(burst) = ops_burst {
        quota.ops.burst = *burst;
    }
    if let Some(bytes) = bytes {
        quota.bytes = Rate::per_second(*bytes);
    }
    for row in class {
        if row.ops == 0 {
            quota.classes.remove(&row.class);
        } else {
            quota.classes.insert(row.class, Rate::per_second(row.ops));
        }
    }
}

fn list(args: &ListArgs) -> Result<()> {
    let tenants: Vec<Tenant> = client(&args.access)?.list("/v1/tenants").map_err(to_exit_error)?;
    if args.json.json {
        return print_list(tenants);
    }
    #[rustfmt::skip]
    let table = Table::of(&tenants, &[
        ("tenant", &|tenant| tenant.name.to_string()),
        (">weight", &|tenant| tenant.weight.to_string()),
        ("priority", &|tenant| tenant.priority.name().to_owned()),
        ("quota", &|tenant| limits(&tenant.quota)),
        (">identities", &|tenant| tenant.identities.len().to_string()),
        (">spread", &|tenant| tenant.placement.spread.to_string()),
    ]);
    table.print()
}

fn show(args: &TenantShowArgs) -> Result<()> {
    let client = client(&args.access)?;
    let tenant: Tenant = client.get(&tenant_path(&args.name)).map_err(to_exit_error)?;
    if args.json.json {
        return output::print_json(&tenant);
    }
    let grants: TenantGrants =
        client.get(&format!("{}/grants", tenant_path(&args.name))).map_err(to_exit_error)?;
    output::print(&facts(&[
        ("tenant", tenant.name.to_string()),
        ("quota", limits(&tenant.quota)),
        ("weight", tenant.weight.to_string()),
        ("priority", tenant.priority.name().to_owned()),
        ("identities", joined(tenant.identities.iter().map(|identity| identity.as_str()), "")),
    ]))?;
    output::print("\n")?;
    addresses::table(&grants).print()
}

fn remove(args: &TenantRemoveArgs) -> Result<()> {
    let TenantRemoveArgs { name, plan, access } = args;
    let client = client(access)?;
    if plan.dry_run {
        return would_remove(&client, name);
    }
    client
        .write::<()>(Write::Delete, &tenant_path(name), Condition::None, &())
        .map_err(to_exit_error)?;
    note!("tenant {name} is removed");
    Ok(())
}

/// Says which slices end, or for which keys the managers would refuse.
fn would_remove(client: &ManagerClient, name: &TenantName) -> Result<()> {
    let grants: TenantGrants =
        client.get(&format!("{}/grants", tenant_path(name))).map_err(to_exit_error)?;
    let keys = keys_of(client, |tenant| tenant == name)?;
    if !keys.is_empty() {
        let message = format!(
            "tenant {name} cannot be removed while it has keys: {}",
            joined(keys.iter().map(|key| &key.name), "")
        );
        return Err(fail(Failure::KeyName, message));
    }
    let slices = grants.nodes.iter();
    let slices = slices.map(|row| format!("slice at {}: {}", row.node, limits(&row.slice)));
    print_losses(&format!("remove tenant {name}"), slices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::ClassRateArg;

    #[test]
    fn quota_values_that_are_not_named_stay() {
        let mut quota = Quota::default();
        assert_eq!(limits(&quota), "no limit");
        let class = |text: &str, ops| ClassRateArg { class: text.parse().unwrap(), ops };
        let first = QuotaValues {
            ops: Some(5000),
            class: vec![class("rsa2048", 2000), class("p-256", 9)],
            ..QuotaValues::default()
        };
        apply_quota(&mut quota, &first);
        assert!(limits(&quota).starts_with("5000 ops/s, "), "{}", limits(&quota));
        let second =
            QuotaValues { bytes: Some(7), class: vec![class("p256", 0)], ..QuotaValues::default() };
        apply_quota(&mut quota, &second);
        assert_eq!(limits(&quota), "5000 ops/s, 7 bytes/s, rsa-2048 2000 ops/s");
    }
}
