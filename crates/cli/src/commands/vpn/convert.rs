// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace vpn import` and `export`: links from and for routers without Millrace.

use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result};
use millrace_vpn::ipsec::{swanctl, vyos};
use millrace_vpn::link::{LinkEngine, VpnLink};

use super::{MAX_INPUT, read};
use crate::args::{VpnExportArgs, VpnFormat, VpnImportArgs};
use crate::exit::{Failure, fail};
use crate::output;

pub(super) fn import(args: &VpnImportArgs) -> Result<()> {
    let text = if args.commands == Path::new("-") {
        let mut text = String::new();
        let input = io::stdin().lock();
        input
            .take(MAX_INPUT as u64 + 1)
            .read_to_string(&mut text)
            .context("reading standard input")?;
        text
    } else {
        read(&args.commands)?
    };
    let imported = vyos::import(&text, &args.name, args.peer.as_deref())
        .map_err(|error| fail(Failure::Usage, error.to_string()))?;
    // The link is complete, or says what it lacks.
    VpnLink::parse(&imported.text).map_err(|error| fail(Failure::Usage, error.to_string()))?;
    if args.json {
        return output::print_json(&imported);
    }
    for note in &imported.notes {
        note!("note: {note}");
    }
    output::print(&imported.text)
}

pub(super) fn export(args: &VpnExportArgs) -> Result<()> {
    let link = VpnLink::parse(&read(&args.link)?)
        .map_err(|error| fail(Failure::Usage, error.to_string()))?;
    let LinkEngine::Ipsec(settings) = &link.engine else {
        let message = "only IPsec links can be exported: write engine = \"ipsec\"";
        return Err(fail(Failure::Usage, message));
    };
    let side = args.end.into();
    output::print(&match args.format {
        VpnFormat::Vyos => vyos::export(&link, settings, side),
        VpnFormat::Swanctl => swanctl::connections(&link, settings, side),
    })
}
