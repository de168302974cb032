// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The parsed command line as plain values. Each command combines them with the configuration file and the
//! defaults once, when it starts ([`crate::settings`]).
//!
//! Help texts are the documentation comments here; the man pages and `docs/reference` are generated from the
//! same comments.

mod advise;
mod ceiling;
mod doctor;
mod gateway;
mod inspect;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use millrace_bench::cli::{CryptoArgs, PoolArgs, SizesArgs, SizesWorkerArgs, TlsArgs};
use millrace_engine::{BackendKind, Hash, OperationKind};
use millrace_server::config::Pin;

pub(crate) use gateway::{CheckArgs, GatewayArgs, GatewayCommand};

pub(crate) use self::advise::AdviseArgs;
pub(crate) use self::ceiling::CeilingArgs;
pub(crate) use self::doctor::{Channel, DoctorArgs, WatchArgs};
pub(crate) use self::inspect::{
    InspectArgs, InspectCommand, InspectCpuArgs, InspectGpuArgs, InspectKernelArgs,
    InspectOpensslArgs, InspectQatArgs, InspectUsedArgs, TreeArgs,
};

/// Exit codes, as the last lines of the long help list them.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed; the message says why
  2  the command line or the configuration file is wrong
  3  the key was refused: not a private key, encrypted, too small, broken
  4  there is no key of that name, or there is one already
  5  no node answers
`doctor` has codes of its own: 3 not a machine that can be examined,
10 warnings, 11 critical findings.";

/// A shared crypto-acceleration layer for TLS gateways: keys and private-key work live in a pool
#[derive(Debug, Parser)]
#[command(
    name = "millrace",
    version,
    propagate_version = true,
    // Fixed, so that help, man pages and their tests do not depend on a terminal.
    term_width = 79,
    disable_help_subcommand = true,
    after_help = "Start with `millrace up`, `millrace key import`, `millrace gateway nginx`. --help is longer than -h.",
    after_long_help = EXIT_CODES
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands, in the order in which a new user needs them. Their help is that of their arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(UpArgs),
    #[command(subcommand)]
    Key(KeyCommand),
    #[command(subcommand)]
    Cert(CertCommand),
    Status(StatusArgs),
    Gateway(GatewayArgs),
    Inspect(InspectArgs),
    Doctor(DoctorArgs),
    Watch(WatchArgs),
    Advise(AdviseArgs),
    #[command(subcommand)]
    Bench(BenchCommand),
    Completions(CompletionsArgs),
    Man(ManArgs),
    #[command(hide = true)]
    Reference(ReferenceArgs),
}

const UP_EXAMPLE: &str = "\
Examples:
  millrace up
  millrace up --listen-tcp 0.0.0.0:7400 --name node-1.example.net
  millrace up --config /etc/millrace/node.toml

SIGTERM drains: the node takes no new work, finishes what it has, tells its
clients to go elsewhere, and exits 0. SIGHUP reads keys, certificates and the
configuration file again; limits, quotas, identities and the log filter hold
at once, also for open connections.";

/// Run a node: serve private-key operations to gateways
///
/// Everything is embedded. Without flags the node listens on a unix socket
/// only (/run/millrace/node.sock as root, else
/// $XDG_RUNTIME_DIR/millrace/node.sock) and keeps its keys encrypted in
/// /var/lib/millrace (else $XDG_STATE_HOME/millrace). Flags win over the
/// configuration file, the file wins over the defaults.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = UP_EXAMPLE)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) socket: SocketArg,
    /// Group that may connect to the socket, besides this user
    #[arg(long, value_name = "GROUP")]
    pub(crate) socket_group: Option<String>,
    /// Mode of the socket, octal [default: 0660]
    ///
    /// With 0666 every local user may connect; then only the policy of each
    /// key decides on the operations of a user.
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub(crate) socket_mode: Option<u32>,
    /// Also listen on TCP, with mutual TLS 1.3
    ///
    /// Certificates are generated in the state folder the first time;
    /// `millrace cert client NAME` issues those of the clients.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen_tcp: Option<SocketAddr>,
    /// Serve Prometheus metrics over HTTP at this loopback address
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Name of the node, in its certificate and in statistics [default: the host's]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Worker threads per class of work [default: one per core]
    #[arg(long, value_name = "N", value_parser = above_zero, hide_short_help = true)]
    pub(crate) workers: Option<usize>,
    /// Processors to which workers are pinned [default: auto]
    ///
    /// The affinity that the node was started with (taskset, cpuset) holds in
    /// any case.
    #[arg(long, value_name = "WHAT", value_enum, hide_short_help = true)]
    pub(crate) pin: Option<Pin>,
    /// Backends to use, in order of preference [default: all that are usable]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = one_of(BackendKind::ALL, BackendKind::name), hide_short_help = true)]
    pub(crate) backends: Option<Vec<BackendKind>>,
    /// Lock all memory, so that no key is ever swapped to disk
    ///
    /// Needs CAP_IPC_LOCK or a sufficient RLIMIT_MEMLOCK; without it the
    /// node does not start.
    #[arg(long, hide_short_help = true)]
    pub(crate) lock_memory: bool,
    /// Log level (error, warn, info, debug, trace), or a filter per module
    #[arg(
        long,
        value_name = "FILTER",
        env = "MILLRACE_LOG",
        hide_env_values = true
    )]
    pub(crate) log: Option<String>,
    /// Format of the log
    #[arg(long, value_name = "FORMAT", value_enum, hide_short_help = true)]
    pub(crate) log_format: Option<LogFormat>,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One readable line per event
    Text,
    /// One JSON object per event
    Json,
}

/// The configuration file, for every command that reads one.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConfigArg {
    /// Configuration file of the node (every key: deploy/node.toml)
    ///
    /// Default for root and for the node's own user: /etc/millrace/node.toml,
    /// if it exists and --state is not given.
    #[arg(
        long,
        value_name = "FILE",
        env = "MILLRACE_CONFIG",
        hide_env_values = true
    )]
    pub(crate) config: Option<PathBuf>,
}

/// The socket of the node, for `up` and for every command that connects to a running node.
#[derive(Clone, Debug, Args)]
pub(crate) struct SocketArg {
    /// Unix socket of the node, to which clients connect
    #[arg(
        long,
        value_name = "PATH",
        env = "MILLRACE_SOCKET",
        hide_env_values = true
    )]
    pub(crate) socket: Option<PathBuf>,
}

/// Location of the key store, for `up` and for every command that works on it.
#[derive(Clone, Debug, Args)]
pub(crate) struct StoreArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArg,
    /// Folder for keys and certificates
    #[arg(
        long,
        value_name = "DIR",
        env = "MILLRACE_STATE",
        hide_env_values = true
    )]
    pub(crate) state: Option<PathBuf>,
    /// Key-encryption key, a file with mode 0600
    ///
    /// Default: what the configuration names. Without a configuration, the
    /// systemd credential `millrace-kek` if there is one, else a file in the
    /// state folder that is made the first time. Where the configuration says
    /// "credential", root uses the file in LoadCredential= of millrace.service.
    #[arg(
        long,
        value_name = "FILE",
        env = "MILLRACE_KEK_FILE",
        hide_env_values = true
    )]
    pub(crate) kek_file: Option<PathBuf>,
}

/// The key store, and the node that serves it, for the commands about keys.
#[derive(Clone, Debug, Args)]
pub(crate) struct KeyStoreArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) socket: SocketArg,
}

/// Policy of a key: the allowed identities, operations and hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct PolicyArgs {
    /// Local user (number or name) who may use the key; repeatable
    #[arg(long, value_name = "USER")]
    pub(crate) allow_uid: Vec<String>,
    /// Client certificate (its name) that may use the key; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_cert: Vec<String>,
    /// Every authenticated client may use the key
    #[arg(long, conflicts_with_all = ["allow_uid", "allow_cert"])]
    pub(crate) allow_all: bool,
    /// Allowed operations, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = one_of(OperationKind::ALL, OperationKind::name))]
    pub(crate) operations: Vec<OperationKind>,
    /// Allowed hashes, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = one_of(Hash::ALL, Hash::name))]
    pub(crate) hashes: Vec<Hash>,
    /// Also allow TLS 1.2 RSA key exchange (rsa-tls-premaster)
    ///
    /// Only for gateways that must serve clients without forward secrecy.
    #[arg(long)]
    pub(crate) allow_tls_premaster: bool,
}

/// Changes of the list of identities that may use a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct IdentityChangeArgs {
    /// Local user (number or name) to add to those who may use the key; repeatable
    #[arg(long, value_name = "USER", conflicts_with_all = REPLACING)]
    pub(crate) add_uid: Vec<String>,
    /// Client certificate (its name) to add; repeatable
    #[arg(long, value_name = "NAME", conflicts_with_all = REPLACING)]
    pub(crate) add_cert: Vec<String>,
    /// Local user (number or name) to take from those who may use the key; repeatable
    #[arg(long, value_name = "USER", conflicts_with_all = REPLACING)]
    pub(crate) remove_uid: Vec<String>,
    /// Client certificate (its name) to take; repeatable
    #[arg(long, value_name = "NAME", conflicts_with_all = REPLACING)]
    pub(crate) remove_cert: Vec<String>,
}

/// Options that replace the whole list of identities.
const REPLACING: [&str; 3] = ["allow_uid", "allow_cert", "allow_all"];

/// Manage the keys that the node serves.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    Import(KeyImportArgs),
    List(KeyListArgs),
    Show(KeyShowArgs),
    Remove(KeyRemoveArgs),
    Policy(KeyPolicyArgs),
    Stub(KeyStubArgs),
}

const IMPORT_EXAMPLE: &str = "\
Examples:
  millrace key import www /etc/ssl/private/www.pem --allow-uid haproxy
  openssl pkey -in encrypted.pem | millrace key import www - --allow-cert gateway-1
  millrace key import www renewed.pem --replace

A running node serves the key within a second. No client may use a new key until
--allow-uid, --allow-cert or `millrace key policy` names it. Those that are named
may sign, decrypt OAEP and agree on keys; PKCS#1 v1.5 decryption is off.

--replace keeps the policy, but for what an option names. Nodes serve the former
key to gateways that still have its stub, under the same policy; at most 4 former
versions are kept. `millrace key remove NAME --former` ends that.";

/// Import a private key into the pool
///
/// The file is PEM: PKCS#8, PKCS#1 or SEC 1, not encrypted. The key is
/// checked, then stored encrypted under the key-encryption key.
#[derive(Debug, Args)]
#[command(after_long_help = IMPORT_EXAMPLE)]
pub(crate) struct KeyImportArgs {
    /// Name of the key in the pool
    pub(crate) name: String,
    /// PEM file with the private key, or - for standard input
    pub(crate) file: PathBuf,
    /// Replace an existing key of the same name; keeps its policy
    #[arg(long)]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    #[command(flatten)]
    pub(crate) store: KeyStoreArgs,
}

/// List the keys
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  millrace key list --json")]
pub(crate) struct KeyListArgs {
    /// Print JSON (schema: docs/reference/keys.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) store: KeyStoreArgs,
}

/// Show one key: its type, its public half, its policy
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  millrace key show www --json")]
pub(crate) struct KeyShowArgs {
    /// Name of the key
    pub(crate) name: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the PEM stub instead
    #[arg(long, conflicts_with = "json")]
    pub(crate) stub: bool,
    #[command(flatten)]
    pub(crate) store: KeyStoreArgs,
}

const KEY_REMOVE_EXAMPLE: &str = "\
Examples:
  millrace key remove www
  millrace key remove www --former

After a key was stolen: replace it, then remove its former version.";

/// Remove a key with all its versions
///
/// A running node unloads it within a second; operations in flight still finish.
#[derive(Debug, Args)]
#[command(after_long_help = KEY_REMOVE_EXAMPLE)]
pub(crate) struct KeyRemoveArgs {
    /// Name of the key
    pub(crate) name: String,
    /// Remove only the former versions of a key that was replaced
    #[arg(long)]
    pub(crate) former: bool,
    #[command(flatten)]
    pub(crate) store: KeyStoreArgs,
}

const POLICY_EXAMPLE: &str = "\
Examples:
  millrace key policy www
  millrace key policy www --add-uid www-data --add-cert gateway-1
  millrace key policy www --remove-cert gateway-1
  millrace key policy www --operations rsa-pss-sign --hashes sha256,sha384

Without options it prints the policy. --add and --remove change one identity,
--allow replaces the whole list; what is not named stays as it is. A running
node applies a change within a second.";

/// Print or change the policy of a key: clients, operations, hashes
#[derive(Debug, Args)]
#[command(after_long_help = POLICY_EXAMPLE)]
pub(crate) struct KeyPolicyArgs {
    /// Name of the key
    pub(crate) name: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) identities: IdentityChangeArgs,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    #[command(flatten)]
    pub(crate) store: KeyStoreArgs,
}

impl KeyPolicyArgs {
    /// Whether no option names a change.
    pub(crate) fn changes_nothing(&self) -> bool {
        let Self {
            name: _,
            json: _,
            identities,
            policy,
            store: _,
        } = self;
        *identities == IdentityChangeArgs::default() && *policy == PolicyArgs::default()
    }
}

const STUB_EXAMPLE: &str = "\
Example:
  millrace key stub www -o /etc/haproxy/www.pem.key

The stub holds no secret, only the name and the public half of the key. Give
it to the application where a private key is expected.";

/// Write the PEM stub that stands in for the key on a gateway
#[derive(Debug, Args)]
#[command(after_long_help = STUB_EXAMPLE)]
pub(crate) struct KeyStubArgs {
    /// Name of the key
    pub(crate) name: String,
    /// Write here instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) store: KeyStoreArgs,
}

/// Issue certificates for nodes and clients that speak over TCP, and revoke them.
#[derive(Debug, Subcommand)]
pub(crate) enum CertCommand {
    Authority(CertAuthorityArgs),
    Node(CertNodeArgs),
    Client(CertClientArgs),
    Revoke(CertRevokeArgs),
}

const AUTHORITY_EXAMPLE: &str = "\
Examples:
  millrace cert authority
  millrace cert authority --state /root/authority

The first `up --listen-tcp` and every `cert` command make one, too. One kept
off the nodes, in a folder of its own, needs --state with each command.";

/// Make the authority that signs all certificates, if there is none
#[derive(Debug, Args)]
#[command(after_long_help = AUTHORITY_EXAMPLE)]
pub(crate) struct CertAuthorityArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

const NODE_EXAMPLE: &str = "\
Example:
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
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

const CERT_EXAMPLE: &str = "\
Example:
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
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Group that may read the files: that of the gateway's workers
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

const CERT_REVOKE_EXAMPLE: &str = "\
Example:
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
    pub(crate) store: StoreArgs,
}

const STATUS_EXAMPLE: &str = "\
Examples:
  millrace status
  millrace status --sessions
  millrace status --pool
  millrace status --json | jq .keys";

/// Show the state of the node: keys, connections, operations, latency
#[derive(Debug, Args)]
#[command(after_long_help = STATUS_EXAMPLE)]
pub(crate) struct StatusArgs {
    /// Print JSON (schema: docs/reference/status.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
    /// List the open sessions instead: client, software, age, jobs in flight
    ///
    /// Asks the administration socket, so it needs the rights of the node's
    /// user or of root.
    #[arg(long)]
    pub(crate) sessions: bool,
    /// Ask every node of a gateway's pool instead [default file: /etc/millrace/openssl.cnf]
    ///
    /// FILE is an openssl.cnf or a client.toml. The keys are those of the
    /// stubs that the configurations of HAProxy and nginx on this machine name.
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        default_missing_value = millrace_gateway::recipe::OPENSSL_CNF,
        conflicts_with = "sessions"
    )]
    pub(crate) pool: Option<PathBuf>,
    /// User as whom to ask [default: that of the server with stubs, for root]
    #[arg(long, value_name = "USER", requires = "pool")]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) config: ConfigArg,
    #[command(flatten)]
    pub(crate) socket: SocketArg,
}

/// Measure; every figure comes from a run that checked its results.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    Crypto(CryptoArgs),
    Pool(PoolArgs),
    Sizes(SizesArgs),
    Tls(TlsArgs),
    #[command(hide = true)]
    SizesWorker(SizesWorkerArgs),
}

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n  millrace completions bash > /etc/bash_completion.d/millrace"
)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// Write the manual pages into a folder
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  millrace man /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// The folder; created if missing
    pub(crate) dir: PathBuf,
}

/// Write the reference pages of the documentation into a folder
#[derive(Debug, Args)]
pub(crate) struct ReferenceArgs {
    /// The folder; created if missing
    pub(crate) dir: PathBuf,
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "an octal mode like 0660 is wanted".to_owned())
}

fn above_zero(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "a number above 0 is wanted".to_owned())
}

/// A value parser for names. Its error lists all valid names.
fn one_of<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text| {
        let found = all.iter().find(|value| name(**value) == text);
        found.copied().ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|value| name(*value)).collect();
            format!("there are: {}", known.join(", "))
        })
    }
}
