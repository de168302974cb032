// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The log of a process, on standard error.

use std::io;

use anyhow::Result;
use millrace_server::config::LogFormat;
use millrace_service::settings::{LogControl, WrongLogFilter};
use tracing_subscriber::EnvFilter;

use crate::exit::{ContextCode, Failure};
use crate::terminal::styled;

/// The filter of this process's log.
pub(crate) struct LogFilter(Box<dyn Fn(EnvFilter) + Send + Sync>);

impl LogControl for LogFilter {
    fn check(&self, filter: &str) -> Result<(), WrongLogFilter> {
        let checked = EnvFilter::try_new(filter);
        checked.map(drop).map_err(|error| WrongLogFilter(error.to_string()))
    }

    fn set(&self, filter: &str) {
        if let Ok(filter) = EnvFilter::try_new(filter) {
            (self.0)(filter);
        }
    }
}

/// Starts the log.
///
/// # Errors
/// The filter is wrong: a usage error.
pub(crate) fn start_log(filter: &str, format: LogFormat) -> Result<LogFilter> {
    let filter = EnvFilter::try_new(filter).or_fail(Failure::Usage, || {
        format!("the log filter {filter:?} is wrong; write error, warn, info, debug or trace")
    })?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // A line that cannot be written must not end the thread that wanted to write it.
    let log = log.log_internal_errors(false);
    match format {
        LogFormat::Json => {
            let log = log.json().with_filter_reloading();
            let handle = log.reload_handle();
            log.init();
            Ok(LogFilter(Box::new(move |filter| drop(handle.reload(filter)))))
        }
        LogFormat::Text => {
            let log = log.with_ansi(styled(&io::stderr())).with_filter_reloading();
            let handle = log.reload_handle();
            log.init();
            Ok(LogFilter(Box::new(move |filter| drop(handle.reload(filter)))))
        }
    }
}
