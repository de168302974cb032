// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What `--dry-run` prints: the parts of a record that would change, and the records that would go.

use std::fmt::{Display, Write as _};

use anyhow::Result;
use millrace_manager::api::KeyView;
use millrace_manager::client::ManagerClient;
use millrace_manager::model::name::TenantName;
use millrace_manager::model::tenant::Tenant;
use millrace_service::rates::Rate;

use crate::manager_access::to_exit_error;
use crate::output::{self, joined};

/// A part of a record: its name and its value.
pub(super) type Part = (&'static str, String);

/// The parts of a tenant.
pub(super) fn parts(tenant: &Tenant) -> Vec<Part> {
    let Tenant { name: _, weight, priority, quota, identities, placement } = tenant;
    let limit = |units: u64| if units == 0 { "none".to_owned() } else { units.to_string() };
    let classes = quota.classes.iter();
    let classes = classes.map(|(class, rate)| format!("{class}={}", limit(rate.per_second)));
    let burst =
        |rate: &Rate| if rate.burst == 0 { "one second".to_owned() } else { limit(rate.burst) };
    vec![
        ("ops", limit(quota.ops.per_second)),
        ("ops at once", burst(&quota.ops)),
        ("bytes", limit(quota.bytes.per_second)),
        ("classes", joined(classes, "none")),
        ("weight", weight.to_string()),
        ("priority", priority.name().to_owned()),
        ("identities", joined(identities.iter().map(|identity| identity.as_str()), "none")),
        ("spread", placement.spread.to_string()),
        ("nodes", joined(&placement.nodes, "all")),
        ("zones", joined(&placement.zones, "none")),
        ("over-commit", if placement.over_commit { "on" } else { "off" }.to_owned()),
    ]
}

/// Prints the parts in which two states of `record` differ, the former value first.
pub(super) fn print_changes(record: impl Display, before: &[Part], after: &[Part]) -> Result<()> {
    let mut text = format!("would change {record}\n");
    for ((name, before), (_, after)) in before.iter().zip(after) {
        if before != after {
            let _ = writeln!(text, "  {name} {before} -> {after}");
        }
    }
    output::print(&text)
}

/// Prints what would be done, with a row for each record that would go.
pub(super) fn print_losses(done: &str, losses: impl IntoIterator<Item = String>) -> Result<()> {
    let mut text = format!("would {done}\n");
    for loss in losses {
        let _ = writeln!(text, "- {loss}");
    }
    output::print(&text)
}

/// The keys of which `is_its` says that they belong to a tenant of interest.
pub(super) fn keys_of(
    client: &ManagerClient,
    is_its: impl Fn(&TenantName) -> bool,
) -> Result<Vec<KeyView>> {
    let mut keys: Vec<KeyView> = client.list("/v1/keys").map_err(to_exit_error)?;
    keys.retain(|key| key.tenants.iter().any(&is_its));
    Ok(keys)
}
