// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace tenant` and `millrace quota`.

use anyhow::Result;
use millrace_manager::api::{Code, TenantGrants};
use millrace_manager::client::{ClientError, Condition, ManagerClient, Write, escaped};
use millrace_manager::model::tenant::{Quota, Tenant};
use millrace_service::rates::Rate;

use super::{addresses, client, coded, print_list};
use crate::args::{
    ListArgs, OnOff, QuotaCommand, QuotaSetArgs, QuotaValues, TenantCommand, TenantCreateArgs,
    TenantNameArgs, TenantPlaceArgs, TenantSetArgs, TenantShowArgs, TenantValues,
};
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

pub(crate) fn run_quota(command: &QuotaCommand) -> Result<()> {
    match command {
        QuotaCommand::Set(args) => set_quota(args),
    }
}

/// The path of a tenant.
pub(super) fn path(name: &impl std::fmt::Display) -> String {
    format!("/v1/tenants/{}", escaped(&name.to_string()))
}

fn create(args: &TenantCreateArgs) -> Result<()> {
    let client = client(&args.access)?;
    let mut tenant = Tenant::new(args.name.clone());
    apply(&mut tenant, &args.values);
    let made = client.write(Write::Put, &path(&args.name), Condition::Absent, &tenant);
    finish(&made.map_err(coded)?, args.json.json, "made")
}

fn set(args: &TenantSetArgs) -> Result<()> {
    let client = client(&args.access)?;
    change(&client, &args.name, args.json.json, |tenant| {
        apply(tenant, &args.values);
        tenant.identities.extend(args.add_identity.iter().cloned());
        tenant.identities.retain(|identity| !args.remove_identity.contains(identity));
    })
}

fn set_quota(args: &QuotaSetArgs) -> Result<()> {
    let client = client(&args.access)?;
    change(&client, &args.name, args.json.json, |tenant| {
        apply_quota(&mut tenant.quota, &args.quota)
    })
}

fn place(args: &TenantPlaceArgs) -> Result<()> {
    let client = client(&args.access)?;
    change(&client, &args.name, args.json.json, |tenant| {
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

/// Tries of a change that another writer overtakes.
const TRIES: u32 = 3;

/// Reads a tenant, changes it, and writes it; again if it was changed in between. A manager that is cut off from the
/// store shows the tenant as it was: the manager that took the write and refused it is asked next.
fn change(
    client: &ManagerClient,
    name: &impl std::fmt::Display,
    json: bool,
    change: impl Fn(&mut Tenant),
) -> Result<()> {
    let mut tries = 0;
    loop {
        tries += 1;
        let found = client.get_revised::<Tenant>(&path(name)).map_err(coded)?;
        let mut tenant = found.value;
        change(&mut tenant);
        let condition = found.etag.as_deref().map_or(Condition::None, Condition::Matches);
        let changed = client.write(Write::Put, &path(name), condition, &tenant);
        let overtaken = |error: &ClientError| {
            error.problem().is_some_and(|problem| problem.code == Code::Changed)
        };
        match changed {
            Err(error) if tries < TRIES && overtaken(&error) => {}
            changed => return finish(&changed.map_err(coded)?, json, "set"),
        }
    }
}

fn finish(tenant: &Tenant, json: bool, done: &str) -> Result<()> {
    if json {
        return output::print_json(tenant);
    }
    eprintln!("tenant {} is {done}: {}", tenant.name, limits(&tenant.quota));
    if tenant.identities.is_empty() {
        eprintln!("next: millrace tenant set {} --add-identity cert:NAME", tenant.name);
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

/// `5000 ops/s, rsa-2048 2000 ops/s`.
pub(super) fn limits(quota: &Quota) -> String {
    let mut words = Vec::new();
    if !quota.ops.is_unlimited() {
        words.push(format!("{} ops/s", quota.ops.per_second));
    }
    if !quota.bytes.is_unlimited() {
        words.push(format!("{} bytes/s", quota.bytes.per_second));
    }
    let classes = quota.classes.iter().filter(|(_, rate)| !rate.is_unlimited());
    words.extend(classes.map(|(class, rate)| format!("{class} {} ops/s", rate.per_second)));
    joined(words, "no limit")
}

fn list(args: &ListArgs) -> Result<()> {
    let tenants: Vec<Tenant> = client(&args.access)?.list("/v1/tenants").map_err(coded)?;
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
    let tenant: Tenant = client.get(&path(&args.name)).map_err(coded)?;
    if args.json.json {
        return output::print_json(&tenant);
    }
    let grants: TenantGrants =
        client.get(&format!("{}/grants", path(&args.name))).map_err(coded)?;
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

fn remove(args: &TenantNameArgs) -> Result<()> {
    let client = client(&args.access)?;
    client.write::<()>(Write::Delete, &path(&args.name), Condition::None, &()).map_err(coded)?;
    eprintln!("tenant {} is removed", args.name);
    Ok(())
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
