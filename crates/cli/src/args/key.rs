// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Arguments of `millrace key`.

use std::path::PathBuf;

use clap::{Arg, Args, Subcommand};
use millrace_operation::{Hash, OperationKind};

use super::{DryRunArg, SocketArg, StoreArgs, named, output_file, output_folder};

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
    /// Tenant whose clients may use the key; repeatable
    #[arg(long, value_name = "TENANT")]
    pub(crate) allow_tenant: Vec<String>,
    /// Every authenticated client may use the key
    #[arg(long, conflicts_with_all = ["allow_uid", "allow_cert", "allow_tenant"])]
    pub(crate) allow_all: bool,
    /// Allowed operations, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = named(OperationKind::ALL, OperationKind::name), hide_possible_values = true)]
    pub(crate) operations: Vec<OperationKind>,
    /// Allowed hashes, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = named(Hash::ALL, Hash::name), hide_possible_values = true)]
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
    /// Local user (number or name) to add; repeatable
    #[arg(long, value_name = "USER", conflicts_with_all = REPLACING)]
    pub(crate) add_uid: Vec<String>,
    /// Client certificate (its name) to add; repeatable
    #[arg(long, value_name = "NAME", conflicts_with_all = REPLACING)]
    pub(crate) add_cert: Vec<String>,
    /// Tenant to add; repeatable
    #[arg(long, value_name = "TENANT", conflicts_with_all = REPLACING)]
    pub(crate) add_tenant: Vec<String>,
    /// Local user (number or name) to remove; repeatable
    #[arg(long, value_name = "USER", conflicts_with_all = REPLACING)]
    pub(crate) remove_uid: Vec<String>,
    /// Client certificate (its name) to remove; repeatable
    #[arg(long, value_name = "NAME", conflicts_with_all = REPLACING)]
    pub(crate) remove_cert: Vec<String>,
    /// Tenant to remove; repeatable
    #[arg(long, value_name = "TENANT", conflicts_with_all = REPLACING)]
    pub(crate) remove_tenant: Vec<String>,
}

/// Options that replace the whole list of identities.
const REPLACING: [&str; 4] = ["allow_uid", "allow_cert", "allow_tenant", "allow_all"];

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
  openssl pkey -in old.pem | millrace key import www - --allow-cert gateway-1
  millrace key import www renewed.pem --replace
  millrace key import --from-dir /etc/ssl/private --stubs /etc/haproxy/certs

A running node serves the key within a second. No client may use a new key
until --allow-uid, --allow-cert or `millrace key policy` names it. The named
clients may sign, decrypt OAEP and agree on keys; PKCS#1 v1.5 decryption is
off.

--replace keeps the policy, except for the parts that an option names. Nodes
serve the former key to gateways that still have its stub, under the same
policy; at most 4 former versions are kept. `millrace key remove NAME
--former` ends that.

--from-dir imports the key in each NAME.pem and NAME.key, and in each
NAME/privkey.pem, as certbot has them; files without a private key are left
out. All files are checked first: if one is wrong, nothing is imported. An
interrupted run has imported the keys up to there, and the same command goes
on with the rest. A key that the store has already stays as it is, with its
policy; another key of that name needs --replace.";

/// Import a private key into the pool
///
/// The file is PEM: PKCS#8, PKCS#1 or SEC 1, not encrypted. The key is
/// checked, then stored encrypted under the key-encryption key.
#[derive(Debug, Args)]
#[command(
    after_long_help = IMPORT_EXAMPLE,
    override_usage = "millrace key import NAME FILE\n       \
                      millrace key import --from-dir DIR",
    mut_arg("operations", |argument| argument.hide_short_help(true)),
    mut_arg("hashes", |argument| argument.hide_short_help(true)),
    mut_arg("allow_tls_premaster", |argument| argument.hide_short_help(true))
)]
pub(crate) struct KeyImportArgs {
    /// Name of the key in the pool
    #[arg(required_unless_present = "from_dir")]
    pub(crate) name: Option<String>,
    /// PEM file with the private key, or - for standard input
    #[arg(required_unless_present = "from_dir")]
    pub(crate) file: Option<PathBuf>,
    /// Import every key of a folder
    ///
    /// Each gets the name of its file: NAME.pem, NAME.key or NAME/privkey.pem.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["name", "file"])]
    pub(crate) from_dir: Option<PathBuf>,
    /// Write the stubs of the folder's keys here, as NAME.pem.key
    #[arg(long, hide_short_help = true, value_name = "DIR", requires = "from_dir", value_parser = output_folder())]
    pub(crate) stubs: Option<PathBuf>,
    /// Print the folder's keys as JSON (schema: share/doc/millrace/key-import.schema.json)
    #[arg(long, requires = "from_dir")]
    pub(crate) json: bool,
    /// Replace an existing key of the same name; keeps its policy
    #[arg(long)]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) plan: DryRunArg,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    #[command(flatten)]
    pub(crate) store: KeyStoreArgs,
}

/// List the keys
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n  millrace key list --json",
    mut_arg("kek_file", optional_kek)
)]
pub(crate) struct KeyListArgs {
    /// Print JSON (schema: share/doc/millrace/keys.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) store: KeyStoreArgs,
}

/// Show one key: its type, its public half, its policy
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n  millrace key show www --json",
    mut_arg("kek_file", optional_kek)
)]
pub(crate) struct KeyShowArgs {
    /// Name of the key
    pub(crate) name: String,
    /// Print JSON (schema: share/doc/millrace/key.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
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
    pub(crate) plan: DryRunArg,
    #[command(flatten)]
    pub(crate) store: KeyStoreArgs,
}

const POLICY_EXAMPLE: &str = "\
Examples:
  millrace key policy www
  millrace key policy www --add-uid www-data --add-cert gateway-1
  millrace key policy www --remove-cert gateway-1 --add-tenant acme
  millrace key policy www --operations rsa-pss-sign --hashes sha256,sha384

Without options it prints the policy. --add and --remove change one identity,
--allow replaces the whole list; what is not named stays as it is. A running
node applies a change within a second.";

/// Print or change the policy of a key: clients, operations, hashes
#[derive(Debug, Args)]
#[command(after_long_help = POLICY_EXAMPLE, mut_args(hide_in_short_help))]
pub(crate) struct KeyPolicyArgs {
    /// Name of the key
    pub(crate) name: String,
    /// Print JSON (schema: share/doc/millrace/key.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) plan: DryRunArg,
    #[command(flatten)]
    pub(crate) identities: IdentityChangeArgs,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    #[command(flatten)]
    pub(crate) store: KeyStoreArgs,
}

/// Leaves out of a short help that is long without them: the options that every command of the store has, and those
/// that replace the whole list of identities.
fn hide_in_short_help(argument: Arg) -> Arg {
    let id = argument.get_id().as_str();
    let hidden = ["config", "state", "socket", "allow_tls_premaster"].contains(&id)
        || REPLACING.contains(&id)
        || argument.is_hide_short_help_set();
    argument.hide_short_help(hidden)
}

impl KeyPolicyArgs {
    /// Whether no option names a change.
    pub(crate) fn changes_nothing(&self) -> bool {
        let Self { name: _, json: _, plan: _, identities, policy, store: _ } = self;
        *identities == IdentityChangeArgs::default() && *policy == PolicyArgs::default()
    }
}

const STUB_EXAMPLE: &str = "\
Example:
  millrace key stub www -o /etc/haproxy/www.pem.key

The stub holds no secret, only the name and the public half of the key. Give
it to the application where a private key is expected, or the URI (--uri) to
one that takes URIs: with `store:` before it, nginx from 1.29 starts and
reloads also while no node answers.";

/// Write the PEM stub that stands in for the key on a gateway
#[derive(Debug, Args)]
#[command(after_long_help = STUB_EXAMPLE, mut_arg("kek_file", optional_kek))]
pub(crate) struct KeyStubArgs {
    /// Name of the key
    pub(crate) name: String,
    /// The URI of the key with its public half, instead of the PEM stub
    #[arg(long)]
    pub(crate) uri: bool,
    /// Write here instead of to standard output
    #[arg(short, long, value_name = "FILE", value_parser = output_file())]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) store: KeyStoreArgs,
}

/// The help of `--kek-file` where a command only reads.
fn optional_kek(argument: Arg) -> Arg {
    argument
        .help("Key-encryption key, a file with mode 0600 (without it the keys are not verified)")
}
