// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The options of `millrace vpn bench`.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::{CASES, LinkCase, MAX_FLOWS};
use crate::error::BenchError;
use crate::libcrypto::SYSTEM;
use crate::options::{MAX_ROUNDS, named, number, whole_seconds};
use crate::report::{ReportArgs, SvgArg};

/// The options of a measurement of links.
#[derive(Clone, Debug, Args)]
pub struct VpnArgs {
    /// List the cases, and measure none
    #[arg(long)]
    pub(crate) list: bool,
    /// Cases of --list, separated by commas [default: those without the kernel, the pool or a bond]
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide_possible_values = true, value_parser = named(&CASES, |case: &'static LinkCase| case.name))]
    pub(crate) cases: Vec<&'static LinkCase>,
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = number(1..=MAX_ROUNDS))]
    pub(crate) rounds: u64,
    /// Time per measurement
    ///
    /// Whole seconds of load.
    #[arg(long = "duration", value_name = "TIME", default_value = "4s", value_parser = whole_seconds(1..=60))]
    pub(crate) seconds: u64,
    /// Parallel TCP connections: several for each member
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = number(1..=MAX_FLOWS))]
    pub(crate) flows: usize,
    /// Skip the loss of a member of four under load
    #[arg(long)]
    pub(crate) no_loss: bool,
    #[command(flatten)]
    pub(crate) plot: SvgArg,
    #[command(flatten)]
    pub(crate) openssl: TunnelOpenSsl,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// The OpenSSL of the tunnels' processes, where it is not the system's. That of this program's own environment is
/// never theirs.
#[derive(Clone, Debug, Default, Args, Serialize)]
pub(crate) struct TunnelOpenSsl {
    /// OpenSSL configuration of the tunnels: it may load a provider [default: none]
    #[arg(long = "openssl-conf", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Folder with the tunnels' libcrypto.so.3 [default: the system's]
    #[arg(long = "libcrypto", value_name = "DIR")]
    pub(crate) libcrypto: Option<PathBuf>,
}

impl TunnelOpenSsl {
    /// The same with absolute paths.
    ///
    /// # Errors
    /// [`BenchError::Usage`]: a path does not exist.
    pub(crate) fn resolved(&self) -> Result<Self, BenchError> {
        let absolute = |path: &PathBuf, needed: PathBuf| {
            let found = needed.metadata().and_then(|_| path.canonicalize());
            found.map_err(|error| BenchError::Usage(format!("{}: {error}", needed.display())))
        };
        let config = self.config.as_ref().map(|file| absolute(file, file.clone()));
        let libcrypto = self.libcrypto.as_ref().map(|folder| absolute(folder, folder.join(SYSTEM)));
        Ok(Self { config: config.transpose()?, libcrypto: libcrypto.transpose()? })
    }
}

impl fmt::Display for TunnelOpenSsl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [("libcrypto of", &self.libcrypto), ("OPENSSL_CONF", &self.config)];
        named.into_iter().try_for_each(|(name, path)| match path {
            Some(path) => write!(f, ", {name} {}", path.display()),
            None => Ok(()),
        })
    }
}

impl VpnArgs {
    /// Prints a report as text or JSON, and writes it, as the options say.
    ///
    /// # Errors
    /// The report cannot be written.
    pub fn deliver(&self, report: &impl Serialize, text: &str) -> Result<(), BenchError> {
        self.report.output.deliver(report, text)
    }
}
