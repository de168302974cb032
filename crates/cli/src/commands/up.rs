// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace up`: runs a node, alone or with the manager of its pool.

use anyhow::Result;

use crate::args::UpCommandArgs;
use crate::processes::node::{self, Managers};
use crate::settings::Settings;

pub(crate) fn run(args: &UpCommandArgs) -> Result<()> {
    let UpCommandArgs { up, manager } = args;
    if up.check {
        return node::check(&Settings::for_node(up)?, up);
    }
    let managers = if manager.with_manager { Managers::Inside(manager) } else { Managers::None };
    let up = up.clone();
    node::serve(move || Settings::for_node(&up), &managers)
}
