// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Arguments of `millrace sample`.

use clap::{Args, Subcommand, ValueEnum};

/// Print a configuration file with every key
#[derive(Debug, Subcommand)]
pub(crate) enum SampleCommand {
    /// Print a node.toml: the settings of a node
    #[command(after_long_help = "Example:\n  millrace sample node > /etc/millrace/node.toml")]
    Node,
    /// Print a devices.toml: the accelerator cards of a machine
    #[command(after_long_help = "Example:\n  millrace sample devices > /etc/millrace/devices.toml")]
    Devices,
    Link(SampleLinkArgs),
    /// Print a client.toml: the settings of the provider in a gateway
    #[command(after_long_help = "Example:\n  millrace sample client > /etc/millrace/client.toml")]
    Client,
}

const LINK_EXAMPLE: &str = "\
Examples:
  millrace sample link > link.toml
  millrace sample link --engine ipsec > link.toml
  millrace sample link --mode bridged > link.toml

With --engine ipsec the file has the proposals that suit this host.";

/// Print a link.toml: the tunnels between two hosts
#[derive(Debug, Args)]
#[command(after_long_help = LINK_EXAMPLE)]
pub(crate) struct SampleLinkArgs {
    /// Program that encrypts
    #[arg(long, value_name = "ENGINE", value_enum, default_value_t = SampleEngine::Openvpn)]
    pub(crate) engine: SampleEngine,
    /// Routes over the members, or one Ethernet segment
    #[arg(long, value_name = "MODE", value_enum, default_value_t = SampleMode::Routed)]
    pub(crate) mode: SampleMode,
}

/// Kind of the connection between the ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SampleMode {
    /// Routes over all members
    Routed,
    /// A bond of all members, with OpenVPN only
    Bridged,
}

/// Program that encrypts the packets of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SampleEngine {
    /// OpenVPN, one process per member
    Openvpn,
    /// strongSwan
    Ipsec,
}
