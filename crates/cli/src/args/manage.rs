// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The commands of a pool with a manager: `manager`, `tenant`, `pool`, `token`, `audit`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args, Subcommand, ValueEnum};
use millrace_manager::client::ManagerUrl;
use millrace_manager::model::name::{KeyName, NodeName, PrincipalName, TenantName, Zone};
use millrace_manager::model::principal::Role;
use millrace_operation::{Hash, OperationKind};
use millrace_service::rates::JobClass;
use millrace_service::tenants::{IdentityPattern, Priority};

use super::up::grant_lifetime;
use super::{DryRunArg, OnOff, named, output_file, socket_address, time_within};

/// For every command that asks the managers of a pool.
#[derive(Clone, Debug, Args)]
pub(crate) struct AccessArgs {
    /// File with the managers, their authority and a token
    ///
    /// `millrace token create` writes one. Default: /etc/millrace/access if it
    /// exists, else that of the manager on this machine, below MILLRACE_STATE if
    /// that is set.
    #[arg(long, value_name = "FILE", env = "MILLRACE_ACCESS", hide_env_values = true)]
    pub(crate) access: Option<PathBuf>,
    /// Manager to ask instead of those in the access file; repeatable
    #[arg(
        hide_short_help = true,
        long,
        value_name = "URL",
        env = "MILLRACE_MANAGER",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub(crate) manager: Vec<ManagerUrl>,
}

/// For every command whose JSON is that of the managers' API.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct JsonArg {
    /// Print JSON (schema: share/doc/millrace/openapi.json)
    #[arg(long)]
    pub(crate) json: bool,
}

const MANAGER_EXAMPLE: &str = "\
Examples:
  millrace manager --store sqlite:/var/lib/millrace/pool.db
  millrace manager --store etcd://127.0.0.1:2379 --listen 0.0.0.0:7500

The first start makes an authority, a certificate and an administrator's
token, all in the state folder: commands on this machine, as this user, use
that token.
`millrace token create NAME --role node -o FILE` makes the access of a node.

Managers that share an etcd also share the folder tls and the files
manager/grant.key and manager/pool.kek of their state folders: copy them to a
new manager.";

/// Run a manager: membership, tenants, quotas and grants of a pool
#[derive(Clone, Debug, Args)]
#[command(after_long_help = MANAGER_EXAMPLE)]
pub(crate) struct ManagerArgs {
    /// Store of the pool's records: sqlite:PATH, or etcd://HOST:PORT,...
    ///
    /// Several managers share an etcd. etcds://HOST:PORT,...?ca=FILE&cert=FILE&key=FILE is etcd over TLS.
    /// memory: is for trials: its records are lost when the manager ends.
    #[arg(long, value_name = "STORE", env = "MILLRACE_STORE", hide_env_values = true)]
    pub(crate) store: String,
    /// Address of the manager's API and page
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7500", value_parser = socket_address)]
    pub(crate) listen: SocketAddr,
    /// Name or address under which nodes and users reach the manager; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,
    /// Name of the pool, on the page and in metrics
    #[arg(long, value_name = "NAME", default_value = "pool")]
    pub(crate) pool: String,
    /// Folder for keys, certificates and the first access [default: /var/lib/millrace as root]
    ///
    /// Another user's default is $XDG_STATE_HOME/millrace.
    #[arg(long, value_name = "DIR", env = "MILLRACE_STATE", hide_env_values = true)]
    pub(crate) state: Option<PathBuf>,
    /// Validity of a grant
    ///
    /// A node that no manager reaches continues with a quarter of its slices
    /// from then on.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = grant_lifetime)]
    pub(crate) grant_lifetime: Duration,
    /// Replace a lost manager/pool.kek; the keys sealed under it are gone
    ///
    /// Import them again with `millrace pool key import --replace`.
    #[arg(long, hide_short_help = true)]
    pub(crate) new_kek: bool,
    /// Take the pool's records as they are, although they were changed outside of the manager
    ///
    /// `millrace audit --verify` and the page name such records. Look at each of
    /// them first: an administrator may have been added.
    #[arg(long, hide_short_help = true)]
    pub(crate) accept_records: bool,
    /// Log level (error, warn, info, debug, trace), or a filter per module [default: info]
    #[arg(long, value_name = "FILTER", env = "MILLRACE_LOG", hide_env_values = true)]
    pub(crate) log: Option<String>,
}

/// For every command that lists records.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) json: JsonArg,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

/// Manage the tenants: who may use the pool, and how much of it.
#[derive(Debug, Subcommand)]
pub(crate) enum TenantCommand {
    Create(TenantCreateArgs),
    /// List the tenants
    #[command(after_long_help = "Example:\n  millrace tenant list")]
    List(ListArgs),
    Show(TenantShowArgs),
    Set(TenantSetArgs),
    Place(TenantPlaceArgs),
    Addresses(TenantAddressesArgs),
    Remove(TenantRemoveArgs),
}

const TENANT_EXAMPLE: &str = "\
Examples:
  millrace tenant create acme --ops 5000 --class rsa-2048=2000 --weight 2
  millrace tenant create acme --identity 'spiffe://pool/acme/*'

A class is a key type (rsa-2048, p-256), an operation
(ecdsa-sign) or a cost (fast, medium, slow). An identity is a client
certificate (cert:NAME, spiffe:URI) or a local user (uid:N@NODE); a final *
stands for any end.";

/// Make a tenant
#[derive(Debug, Args)]
#[command(after_long_help = TENANT_EXAMPLE)]
pub(crate) struct TenantCreateArgs {
    /// Name of the tenant
    pub(crate) name: TenantName,
    #[command(flatten)]
    pub(crate) values: TenantValues,
    #[command(flatten)]
    pub(crate) json: JsonArg,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

const TENANT_SET_EXAMPLE: &str = "\
Examples:
  millrace tenant set acme --ops 8000 --class rsa-2048=none
  millrace tenant set acme --weight 3 --add-identity cert:gateway-2

A lower quota is in force at every node within one heartbeat; a higher one as
soon as the nodes that gave up their part have said so. Jobs under way end
normally.";

/// Change the quota and other values of a tenant; those that are not named stay
#[derive(Debug, Args)]
#[command(after_long_help = TENANT_SET_EXAMPLE, mut_args(hide_in_short_help))]
pub(crate) struct TenantSetArgs {
    /// Name of the tenant
    pub(crate) name: TenantName,
    #[command(flatten)]
    pub(crate) values: TenantValues,
    /// Identity to add; repeatable
    ///
    /// The identities of a tenant may use its keys: only an administrator changes them.
    #[arg(long, value_name = "IDENTITY")]
    pub(crate) add_identity: Vec<IdentityPattern>,
    /// Identity to take away; repeatable
    #[arg(long, value_name = "IDENTITY")]
    pub(crate) remove_identity: Vec<IdentityPattern>,
    #[command(flatten)]
    pub(crate) plan: DryRunArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

impl TenantSetArgs {
    /// Whether no option names a change.
    pub(crate) fn changes_nothing(&self) -> bool {
        let Self { name: _, values, add_identity, remove_identity, plan: _, json: _, access: _ } =
            self;
        *values == TenantValues::default() && add_identity.is_empty() && remove_identity.is_empty()
    }
}

/// Leaves out of a short help that is long without them: the access file, which every command of a pool has, and the
/// option that replaces all identities.
fn hide_in_short_help(argument: Arg) -> Arg {
    let hidden = ["access", "identity"].contains(&argument.get_id().as_str())
        || argument.is_hide_short_help_set();
    argument.hide_short_help(hidden)
}

/// For the commands that make a tenant and change it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct TenantValues {
    #[command(flatten)]
    pub(crate) quota: QuotaValues,
    /// Share of a busy node, relative to other tenants [a new tenant: 1]
    #[arg(long, value_name = "N")]
    pub(crate) weight: Option<u32>,
    /// Rank at a busy node: high, normal or low [a new tenant: normal]
    #[arg(long, value_name = "PRIORITY", value_parser = named(&Priority::ALL, Priority::name), hide_possible_values = true)]
    pub(crate) priority: Option<Priority>,
    /// Identity of the tenant's gateways; repeatable
    ///
    /// `tenant set` puts these in place of all former ones.
    #[arg(long, value_name = "IDENTITY")]
    pub(crate) identity: Vec<IdentityPattern>,
}

/// The part of [`TenantValues`] that is the quota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct QuotaValues {
    /// Operations per second over all nodes; none for no limit
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    pub(crate) ops: Option<u64>,
    /// Operations at once [default: one second of --ops]
    #[arg(long, value_name = "N", value_parser = rate)]
    pub(crate) ops_burst: Option<u64>,
    /// Bytes of input per second; none for no limit
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    pub(crate) bytes: Option<u64>,
    /// Operations per second of one class; repeatable; none for no limit
    #[arg(long, value_name = "CLASS=N,…", value_delimiter = ',', value_parser = class_rate)]
    pub(crate) class: Vec<ClassRateArg>,
}

/// Remove a tenant
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  millrace tenant remove acme --dry-run")]
pub(crate) struct TenantRemoveArgs {
    /// Name of the tenant
    pub(crate) name: TenantName,
    #[command(flatten)]
    pub(crate) plan: DryRunArg,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

/// Show a tenant, its nodes and its slices
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  millrace tenant show acme")]
pub(crate) struct TenantShowArgs {
    /// Name of the tenant
    pub(crate) name: TenantName,
    #[command(flatten)]
    pub(crate) json: JsonArg,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

const PLACE_EXAMPLE: &str = "\
Examples:
  millrace tenant place acme --spread 3 --zone rack-1
  millrace tenant place acme --node node-1 --node node-2
  millrace tenant place acme --over-commit on

Values that are not named stay. `millrace tenant addresses` shows the result.";

/// Say where a tenant is served
#[derive(Debug, Args)]
#[command(after_long_help = PLACE_EXAMPLE)]
pub(crate) struct TenantPlaceArgs {
    /// Name of the tenant
    pub(crate) name: TenantName,
    /// Number of nodes, 1 to 1000 [default: 2]
    #[arg(long, value_name = "N")]
    pub(crate) spread: Option<u32>,
    /// Only this node; repeatable
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Vec<NodeName>,
    /// Zone to take first; repeatable, in this order
    #[arg(long, value_name = "ZONE")]
    pub(crate) zone: Vec<Zone>,
    /// Whether slices may exceed the free capacity of the nodes [default: off]
    #[arg(long, value_enum, value_name = "ON|OFF", hide_possible_values = true)]
    pub(crate) over_commit: Option<OnOff>,
    #[command(flatten)]
    pub(crate) plan: DryRunArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

impl TenantPlaceArgs {
    /// Whether no option names a change.
    pub(crate) fn changes_nothing(&self) -> bool {
        let Self { name: _, spread, node, zone, over_commit, plan: _, json: _, access: _ } = self;
        spread.is_none() && node.is_empty() && zone.is_empty() && over_commit.is_none()
    }
}

const ADDRESSES_EXAMPLE: &str = "\
Examples:
  millrace tenant addresses acme
  millrace tenant addresses acme --watch /etc/millrace/pool.toml

The table lists the nodes that serve the tenant and the slice of its quota at
each. --watch keeps a file with their addresses up to date. In a gateway's
openssl.cnf, `millrace_config` names that file, instead of `pool`. Running
processes of the gateway follow a change within a second, without a reload.";

/// Show the nodes that serve a tenant, or keep a file of their addresses
#[derive(Debug, Args)]
#[command(after_long_help = ADDRESSES_EXAMPLE)]
pub(crate) struct TenantAddressesArgs {
    /// Name of the tenant
    #[arg(required_unless_present = "own")]
    pub(crate) name: Option<TenantName>,
    /// The tenant that the certificate in the access file belongs to
    #[arg(long = "self", conflicts_with = "name")]
    pub(crate) own: bool,
    /// Write the addresses to FILE whenever they change; never ends
    #[arg(long, value_name = "FILE", value_parser = output_file())]
    pub(crate) watch: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

/// Show the whole pool, and manage its keys.
#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Show the verdict, the nodes and the tenants
    #[command(after_long_help = "Example:\n  millrace pool status")]
    Status(ListArgs),
    #[command(subcommand)]
    Key(PoolKeyCommand),
}

/// Manage the private keys that the pool gives to its nodes
///
/// A manager keeps them encrypted under manager/pool.kek of its state folder.
/// A node has the keys of the tenants that it serves, and no others.
#[derive(Debug, Subcommand)]
pub(crate) enum PoolKeyCommand {
    Import(PoolKeyImportArgs),
    /// List the keys
    #[command(after_long_help = "Example:\n  millrace pool key list")]
    List(ListArgs),
    Stub(PoolKeyStubArgs),
    Remove(PoolKeyRemoveArgs),
}

const POOL_KEY_IMPORT_EXAMPLE: &str = "\
Examples:
  millrace pool key import www /etc/ssl/private/www.pem --tenant acme
  openssl pkey -in old.pem | millrace pool key import www - --tenant acme
  millrace pool key import www renewed.pem --replace

The nodes that serve the tenant get the key with their next heartbeat, sealed
to each, and delete it when the tenant leaves. Clients of the tenant may sign,
decrypt OAEP and agree on keys; --operations and --hashes change that.

--replace keeps tenants, operations and hashes that no option names. Gateways
with the stub of the former key are served, too, until `millrace pool key
remove NAME --former`.";

/// Give a private key to the pool
///
/// The file is PEM: PKCS#8, PKCS#1 or SEC 1, not encrypted.
#[derive(Debug, Args)]
#[command(
    after_long_help = POOL_KEY_IMPORT_EXAMPLE,
    mut_arg("dry_run", |plan| plan.conflicts_with("json"))
)]
pub(crate) struct PoolKeyImportArgs {
    /// Name of the key in the pool
    pub(crate) name: KeyName,
    /// PEM file with the private key, or - for standard input
    pub(crate) file: PathBuf,
    /// Tenant whose clients may use the key; repeatable
    #[arg(long, value_name = "TENANT", required_unless_present = "replace")]
    pub(crate) tenant: Vec<TenantName>,
    /// Replace an existing key of the same name
    #[arg(long)]
    pub(crate) replace: bool,
    /// Allowed operations, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = named(OperationKind::ALL, OperationKind::name), hide_possible_values = true)]
    pub(crate) operations: Vec<OperationKind>,
    /// Allowed hashes, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = named(Hash::ALL, Hash::name), hide_possible_values = true)]
    pub(crate) hashes: Vec<Hash>,
    #[command(flatten)]
    pub(crate) plan: DryRunArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

/// Write the PEM stub that stands in for the key on a gateway
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  millrace pool key stub www -o /etc/haproxy/www.pem.key")]
pub(crate) struct PoolKeyStubArgs {
    /// Name of the key
    pub(crate) name: KeyName,
    /// The URI of the key with its public half, instead of the PEM stub
    #[arg(long)]
    pub(crate) uri: bool,
    /// Write here instead of to standard output
    #[arg(short, long, value_name = "FILE", value_parser = output_file())]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

const POOL_KEY_REMOVE_EXAMPLE: &str = "\
Examples:
  millrace pool key remove www
  millrace pool key remove www --former

Nodes delete it with their next heartbeat. After a node or its disk was stolen:
replace the keys that it had, then remove their former versions.";

/// Remove a key from the pool with all its versions
#[derive(Debug, Args)]
#[command(after_long_help = POOL_KEY_REMOVE_EXAMPLE)]
pub(crate) struct PoolKeyRemoveArgs {
    /// Name of the key
    pub(crate) name: KeyName,
    /// Remove only the former versions of a key that was replaced
    #[arg(long)]
    pub(crate) former: bool,
    #[command(flatten)]
    pub(crate) plan: DryRunArg,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

/// Manage the tokens and certificates for the manager's API.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    Create(TokenCreateArgs),
    /// List the principals, without their tokens
    #[command(after_long_help = "Example:\n  millrace token list")]
    List(ListArgs),
    Remove(TokenRemoveArgs),
}

const TOKEN_EXAMPLE: &str = "\
Examples:
  millrace token create node-1 --role node -o node-1.access
  millrace token create grafana --role viewer --lifetime 90d
  millrace token create alice --role admin --identity cert:alice

A node's token has the name of the node. The token is shown once; the manager
keeps its hash. With -o an access file is written: managers, authority, token.";

/// Make a token, or give a certificate a role
#[derive(Debug, Args)]
#[command(after_long_help = TOKEN_EXAMPLE)]
pub(crate) struct TokenCreateArgs {
    /// Name of the user, program or node
    pub(crate) name: PrincipalName,
    /// Rights of the holder
    #[arg(long, value_enum)]
    pub(crate) role: RoleArg,
    /// Client certificate that has the role, instead of a token
    #[arg(long, value_name = "IDENTITY", conflicts_with = "output")]
    pub(crate) identity: Option<String>,
    /// Validity, such as 12h or 90d [default: no end]
    #[arg(long, value_name = "TIME", value_parser = time_within(Duration::from_secs(1)..=LONGEST_TOKEN))]
    pub(crate) lifetime: Option<Duration>,
    /// Write an access file (mode 0600) instead of printing the token
    #[arg(short, long, value_name = "FILE", value_parser = output_file())]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

/// A role on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleArg {
    /// Everything
    Admin,
    /// Tenants, quotas, placement; drain and remove nodes
    Operator,
    /// Read
    Viewer,
    /// Register as the node of that name
    Node,
}

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::Admin => Self::Admin,
            RoleArg::Operator => Self::Operator,
            RoleArg::Viewer => Self::Viewer,
            RoleArg::Node => Self::Node,
        }
    }
}

/// Remove a principal: its token, or the role of its certificate
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  millrace token remove grafana")]
pub(crate) struct TokenRemoveArgs {
    /// Name of the principal
    pub(crate) name: PrincipalName,
    #[command(flatten)]
    pub(crate) plan: DryRunArg,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

const AUDIT_EXAMPLE: &str = "\
Examples:
  millrace audit
  millrace audit --verify
  millrace audit --json > audit.json

Each entry has the hash of the one before. --verify computes them all again,
here, not in the manager. Note the last hash elsewhere: it reveals a log that
was cut short or rewritten.";

/// Show who changed what in the pool, and verify the log
#[derive(Debug, Args)]
#[command(after_long_help = AUDIT_EXAMPLE)]
pub(crate) struct AuditArgs {
    /// Verify the chain of hashes
    #[arg(long)]
    pub(crate) verify: bool,
    #[command(flatten)]
    pub(crate) json: JsonArg,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

/// Longest validity of a token: ten years.
const LONGEST_TOKEN: Duration = Duration::from_secs(3650 * 86_400);

/// `CLASS=N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClassRateArg {
    pub(crate) class: JobClass,
    pub(crate) ops: u64,
}

pub(super) fn class_rate(text: &str) -> Result<ClassRateArg, String> {
    let (class, ops) = text.split_once('=').ok_or("expected CLASS=N, such as rsa-2048=2000")?;
    let class =
        class.parse().map_err(|error: millrace_service::rates::NoJobClass| error.to_string())?;
    Ok(ClassRateArg { class, ops: rate(ops)? })
}

/// A number of operations or bytes per second; 0, which is also written as `none`, is no limit.
fn rate(text: &str) -> Result<u64, String> {
    if text == "none" {
        return Ok(0);
    }
    text.parse().map_err(|_| format!("expected a whole number or none, not {text:?}"))
}
