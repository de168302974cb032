// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Arguments of `millrace status`.

use std::path::PathBuf;

use clap::Args;

use super::{ConfigArg, SocketArg};

const STATUS_EXAMPLE: &str = "\
Examples:
  millrace status
  millrace status --sessions
  millrace status --gateway
  millrace status --json | jq .keys";

/// Show the node's keys, connections, operations and latencies
#[derive(Debug, Args)]
#[command(after_long_help = STATUS_EXAMPLE)]
pub(crate) struct StatusArgs {
    /// Print JSON (schema: share/doc/millrace/status.schema.json)
    ///
    /// With --sessions: share/doc/millrace/sessions.schema.json. With --gateway:
    /// share/doc/millrace/pool.schema.json.
    #[arg(long)]
    pub(crate) json: bool,
    /// List the open sessions instead: client, software, age, jobs in flight
    ///
    /// Asks the administration socket, so it needs the rights of the node's
    /// user or of root.
    #[arg(long)]
    pub(crate) sessions: bool,
    /// Ask every node of this gateway's pool instead [default file: /etc/millrace/openssl.cnf]
    ///
    /// FILE is an openssl.cnf or a client.toml. The keys are those of the
    /// stubs that the configurations of HAProxy and nginx on this machine name.
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        default_missing_value = millrace_gateway::system_conf::OPENSSL_CNF,
        conflicts_with = "sessions"
    )]
    pub(crate) gateway: Option<PathBuf>,
    /// User as whom to ask [default: that of the server with stubs, for root]
    #[arg(long, value_name = "USER", requires = "gateway")]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) config: ConfigArg,
    #[command(flatten)]
    pub(crate) socket: SocketArg,
}
