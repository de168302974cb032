// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace manager`: runs a manager, and waits for signals.

use anyhow::{Context, Result};
use millrace_server::config::LogFormat;

use crate::args::ManagerArgs;
use crate::harden;
use crate::processes::log::start_log;
use crate::processes::manager::Running;
use crate::processes::signals::stop_signals;
use crate::service_manager;

pub(crate) fn run(args: &ManagerArgs) -> Result<()> {
    start_log(args.log.as_deref().unwrap_or("info"), LogFormat::Text)?;
    harden::process()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let running = Running::prepare(args)?;
    runtime.block_on(async {
        let (stop, force) = stop_signals()?;
        let listener = running.listen().await?;
        note!("{}", running.summary());
        service_manager::notify(service_manager::READY);
        tokio::select! {
            served = running.serve(listener, stop) => served,
            () = force => Ok(()),
        }
    })?;
    running.manager.stop();
    Ok(())
}
