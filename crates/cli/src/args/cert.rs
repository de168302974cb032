// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Arguments of `millrace cert`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{DryRunArg, StoreArgs, output_folder};

/// Issue and revoke the TLS certificates of nodes and clients.
#[derive(Debug, Subcommand)]
pub(crate) enum CertCommand {
    Authority(CertAuthorityArgs),
    Node(CertNodeArgs),
    Client(CertClientArgs),
    List(CertListArgs),
    Revoke(CertRevokeArgs),
}

const AUTHORITY_EXAMPLE: &str = "\
Examples:
  millrace cert authority
  millrace cert authority --state /root/authority

The first `up --listen-tcp` and every `cert` command make one, too. One kept
off the nodes, in a folder of its own, needs --state with each command.";

/// Make the authority that signs all certificates; keeps one that exists
#[derive(Debug, Args)]
#[command(after_long_help = AUTHORITY_EXAMPLE)]
pub(crate) struct CertAuthorityArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

const NODE_EXAMPLE: &str = "\
Examples:
  millrace cert node node-2.example.net --address 192.0.2.2 -o node-2/
  scp -pr node-2 root@node-2:/var/lib/millrace/tls
  ssh root@node-2 chown -R --reference=/var/lib/millrace /var/lib/millrace/tls

Then start that node with --listen-tcp or [tcp]. It trusts the clients of the
same authority. The files belong to the user of that node, mode 0600.";

/// Issue the certificate of another node, signed by this authority
#[derive(Debug, Args)]
#[command(after_long_help = NODE_EXAMPLE)]
pub(crate) struct CertNodeArgs {
    /// Host name under which clients reach the node
    pub(crate) name: String,
    /// Further name or address of the node; repeatable
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) address: Vec<String>,
    /// Folder for ca.crt, ca.crl, node.crt and node.key; created if missing
    #[arg(short, long, value_name = "DIR", value_parser = output_folder())]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

const CERT_EXAMPLE: &str = "\
Examples:
  millrace cert client gateway-1 -o gateway-1/ --group haproxy
  millrace key policy www --allow-cert gateway-1

Carry ca.pem, cert.pem and key.pem to the gateway. The name is the client's
identity: `--allow-cert NAME` grants keys to it.";

/// Issue a client certificate, signed by the node's own authority
#[derive(Debug, Args)]
#[command(after_long_help = CERT_EXAMPLE)]
pub(crate) struct CertClientArgs {
    /// Identity of the client
    pub(crate) name: String,
    /// Folder for ca.pem, cert.pem and key.pem; created if missing
    #[arg(short, long, value_name = "DIR", value_parser = output_folder())]
    pub(crate) output: PathBuf,
    /// Group that may read the files: that of the gateway's workers
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// List the certificates of this authority: its own, its node's, and those of clients
///
/// The node is the one that shares its folder. Revoked certificates are listed,
/// too.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  millrace cert list --json")]
pub(crate) struct CertListArgs {
    /// Print JSON (schema: share/doc/millrace/certs.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

const CERT_REVOKE_EXAMPLE: &str = "\
Examples:
  millrace cert revoke gateway-1
  systemctl reload millrace

A node refuses the certificate, and ends its open connections, from its next
reload (SIGHUP) on. Copy the list, tls/ca.crl in the state folder, to each
further node and reload it, too.";

/// Revoke a client's certificate
#[derive(Debug, Args)]
#[command(after_long_help = CERT_REVOKE_EXAMPLE)]
pub(crate) struct CertRevokeArgs {
    /// Identity of the client
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) plan: DryRunArg,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}
