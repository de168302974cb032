// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The signals that stop a process.

use std::future::Future;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::service_manager;

/// Two futures: the first SIGTERM or SIGINT, and the one after it.
pub(crate) fn stop_signals() -> Result<(impl Future<Output = ()>, impl Future<Output = ()>)> {
    let mut first = Stop::listen()?;
    let mut second = Stop::listen()?;
    let stop = async move {
        first.next().await;
        tracing::info!("draining; a second signal stops at once");
        service_manager::notify(service_manager::STOPPING);
    };
    let force = async move {
        second.next().await;
        second.next().await;
    };
    Ok((stop, force))
}

struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn listen() -> Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("catching SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("catching SIGINT")?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
