// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The commands of a pool with a manager. `manager` and `node run` run for long; all others are requests to the
//! manager's API.

mod addresses;
pub(crate) mod audit;
mod changes;
pub(crate) mod manager;
pub(crate) mod node;
pub(crate) mod pool;
mod pool_key;
pub(crate) mod tenant;
pub(crate) mod token;

use std::fmt;

use anyhow::Result;
use millrace_manager::api::Page;
use millrace_manager::client::escaped;
use millrace_manager::model::tenant::Quota;
use serde::Serialize;

use crate::output::{self, joined};

/// Prints a list in the form of the API's listings.
fn print_list<T: Serialize>(items: Vec<T>) -> Result<()> {
    output::print_json(&Page { items, next: None })
}

/// The path of a tenant.
fn tenant_path(name: &impl fmt::Display) -> String {
    format!("/v1/tenants/{}", escaped(&name.to_string()))
}

/// `5000 ops/s, rsa-2048 2000 ops/s`.
fn limits(quota: &Quota) -> String {
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
