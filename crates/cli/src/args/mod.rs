// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The parsed command line as plain values. Each command combines them with the configuration file and the
//! defaults once, when it starts ([`crate::settings`]).
//!
//! Help texts are the documentation comments here; the man pages and `docs/reference` are generated from the
//! same comments.

mod advise;
mod ceiling;
mod cert;
mod compression;
mod device;
mod doctor;
mod gateway;
mod inspect;
mod key;
mod manage;
#[cfg(test)]
mod named_commands;
mod node;
mod overview;
#[cfg(test)]
mod path_arguments;
mod sample;
mod status;
mod up;
mod virtio;
mod vpn;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use millrace_bench::cli::{
    CompressionArgs as BenchCompressionArgs, CryptoArgs, ManagerBenchArgs, PoolArgs, SizesArgs,
    SizesWorkerArgs, TlsArgs, VirtioArgs as BenchVirtioArgs,
};
// Times, numbers, names and paths of results mean the same in every command, and the arguments of `bench` are in its
// crate.
pub(crate) use millrace_bench::cli::{
    TIMES, named, number, output_file, output_folder, time_within,
};

pub(crate) use gateway::{CheckArgs, Compression, GatewayArgs, GatewayCommand};

pub(crate) use self::advise::AdviseArgs;
pub(crate) use self::ceiling::CeilingArgs;
pub(crate) use self::cert::{
    CertAuthorityArgs, CertClientArgs, CertCommand, CertListArgs, CertNodeArgs, CertRevokeArgs,
};
pub(crate) use self::compression::{CompressArgs, CompressFormat, CompressionReportArgs};
pub(crate) use self::device::{DeviceChangeArgs, DeviceCommand, DeviceReadArgs, DeviceVyosArgs};
pub(crate) use self::doctor::{Channel, DoctorArgs, WatchArgs};
pub(crate) use self::inspect::{
    InspectArgs, InspectCommand, InspectOpensslArgs, InspectQatArgs, InspectUsedArgs, TreeArgs,
};
pub(crate) use self::key::{
    IdentityChangeArgs, KeyCommand, KeyImportArgs, KeyListArgs, KeyPolicyArgs, KeyRemoveArgs,
    KeyShowArgs, KeyStoreArgs, KeyStubArgs, PolicyArgs,
};
#[cfg(test)]
pub(crate) use self::manage::ClassRateArg;
pub(crate) use self::manage::{
    AccessArgs, AuditArgs, JsonArg, ListArgs, ManagerArgs, PoolCommand, PoolKeyCommand,
    PoolKeyImportArgs, PoolKeyRemoveArgs, PoolKeyStubArgs, QuotaValues, TenantAddressesArgs,
    TenantCommand, TenantCreateArgs, TenantPlaceArgs, TenantRemoveArgs, TenantSetArgs,
    TenantShowArgs, TenantValues, TokenCommand, TokenCreateArgs, TokenRemoveArgs,
};
pub(crate) use self::node::{NodeChangeArgs, NodeCommand, NodeNameArgs, NodeRunArgs};
pub(crate) use self::sample::{SampleCommand, SampleEngine, SampleLinkArgs, SampleMode};
pub(crate) use self::status::StatusArgs;
pub(crate) use self::up::{InsideManagerArgs, UpArgs, UpCommandArgs};
pub(crate) use self::virtio::{
    Monitor, VirtioCommand, VirtioDrainArgs, VirtioLimitArgs, VirtioRecipeArgs, VirtioRunArgs,
    VirtioSocketArgs, VirtioStatusArgs, VirtioThrottleArgs,
};
pub(crate) use self::vpn::{
    VpnBenchArgs, VpnCommand, VpnConfirmArgs, VpnDownArgs, VpnExportArgs, VpnFoldersArgs,
    VpnFormat, VpnHistoryArgs, VpnImportArgs, VpnKeysArgs, VpnLinkArgs, VpnNameArgs, VpnPlanArgs,
    VpnRestartArgs, VpnRollbackArgs, VpnStatusArgs, VpnSuperviseArgs, VpnUpArgs, VpnWatchArgs,
};

/// Exit codes: the end of the long help, and a section of every manual page.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
   0  The command did what it says.
   1  The command failed; the message says why.
   2  The command line or the configuration file is wrong.
   3  The key was refused: it is no private key, encrypted, too small or
      broken.
   4  There is no key of that name, or there is one already.
   5  No node answers.
  10  `doctor` found warnings, and nothing critical.
  11  `doctor` found something critical.
  12  `doctor` cannot examine the machine.
Other meanings:
   1  `gateway check`: a check failed. `device`: a card went back to what it
      was before the change.
   0, 1, 2, 3  `doctor --nagios`, the codes of monitoring plugins: fine,
      warnings, critical findings, unknown.";

/// A shared crypto-acceleration layer for TLS and VPN gateways: a pool holds private keys and does their work
#[derive(Debug, Parser)]
#[command(
    name = "millrace",
    version,
    // Fixed, so that help, man pages and their tests do not depend on a terminal.
    term_width = 79,
    disable_help_subcommand = true,
    help_template = overview::template(),
    before_help = overview::names(),
    before_long_help = overview::descriptions(),
    after_help = "Start with `millrace up`, `millrace key import`, `millrace gateway nginx`.\n`millrace --help` describes each command.",
    after_long_help = EXIT_CODES
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The whole command line, with the form of times in the help of every command that takes one.
    pub(crate) fn definition() -> clap::Command {
        explain_times(Self::command())
    }

    /// Reads a command line, and refuses options without an effect that clap's own rules cannot express.
    ///
    /// # Errors
    /// Everything that is wrong, and also a wish for the help or the version.
    pub(crate) fn read<I, T>(words: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString>,
    {
        let mut words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        // `help COMMAND` is `COMMAND --help`.
        if words.get(1).is_some_and(|word| word == "help") {
            words.remove(1);
            words.push("--help".into());
        }
        let read = Self::definition().try_get_matches_from(&words);
        let mut matches = read.map_err(|error| without_environment(error, &words))?;
        if let Some(("gateway", gateway)) = matches.subcommand() {
            gateway::refuse_unread(gateway)?;
        }
        Self::from_arg_matches_mut(&mut matches)
    }
}

/// The commands, in the order of the groups in [`overview`]. Their help is that of their arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(Box<UpCommandArgs>),
    #[command(subcommand)]
    Key(KeyCommand),
    #[command(subcommand)]
    Cert(CertCommand),
    Status(StatusArgs),
    #[command(subcommand)]
    Virtio(VirtioCommand),
    Gateway(GatewayArgs),
    #[command(subcommand)]
    Vpn(VpnCommand),
    #[command(subcommand)]
    Device(DeviceCommand),
    Inspect(InspectArgs),
    Doctor(DoctorArgs),
    Watch(WatchArgs),
    Advise(AdviseArgs),
    #[command(subcommand)]
    Bench(BenchCommand),
    Compression(CompressionReportArgs),
    Compress(CompressArgs),
    Manager(ManagerArgs),
    #[command(subcommand)]
    Node(NodeCommand),
    #[command(subcommand)]
    Pool(PoolCommand),
    #[command(subcommand)]
    Tenant(TenantCommand),
    #[command(subcommand)]
    Token(TokenCommand),
    Audit(AuditArgs),
    #[command(subcommand)]
    Sample(SampleCommand),
    Completions(CompletionsArgs),
    Man(ManArgs),
    #[command(hide = true)]
    Reference(ReferenceArgs),
}

/// The configuration file, for every command that reads one.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConfigArg {
    /// Configuration file of the node (every key: man 5 millrace-node.toml)
    ///
    /// Default for root and for the node's own user: /etc/millrace/node.toml,
    /// if it exists and --state is not given.
    #[arg(long, value_name = "FILE", env = "MILLRACE_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
}

/// The socket of the node, for `up` and for every command that connects to a running node.
#[derive(Clone, Debug, Args)]
pub(crate) struct SocketArg {
    /// Unix socket of the local node [default: /run/millrace/node.sock as root]
    ///
    /// The sockets for status and administration are beside it. Another user's
    /// default is $XDG_RUNTIME_DIR/millrace/node.sock.
    #[arg(long, value_name = "PATH", env = "MILLRACE_SOCKET", hide_env_values = true)]
    pub(crate) socket: Option<PathBuf>,
}

/// For every command that can show a change first.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DryRunArg {
    /// Show what would change, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// For every command that examines a machine.
#[derive(Clone, Debug, Args)]
pub(crate) struct ExaminedRootArg {
    /// Examine this folder or bundle instead of this machine
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    pub(crate) root: PathBuf,
}

/// For every command that changes a machine.
#[derive(Clone, Debug, Args)]
pub(crate) struct ChangedRootArg {
    /// Work on the files below this folder instead of /
    #[arg(
        hide_short_help = true,
        long,
        value_name = "DIR",
        default_value = "/",
        hide_default_value = true
    )]
    pub(crate) root: PathBuf,
}

/// For every command that counts for Prometheus.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct MetricsArg {
    /// Print metrics in the text format of Prometheus
    #[arg(long, conflicts_with = "json")]
    pub(crate) metrics: bool,
}

/// The values of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnOff {
    /// Yes
    On,
    /// No
    Off,
}

impl OnOff {
    pub(crate) const fn is_on(self) -> bool {
        matches!(self, Self::On)
    }
}

/// Location of the key store, for `up` and for every command that works on it.
#[derive(Clone, Debug, Args)]
pub(crate) struct StoreArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArg,
    /// Folder for keys and certificates [default: /var/lib/millrace as root]
    ///
    /// Another user's default is $XDG_STATE_HOME/millrace.
    #[arg(long, value_name = "DIR", env = "MILLRACE_STATE", hide_env_values = true)]
    pub(crate) state: Option<PathBuf>,
    /// Key-encryption key, a file with mode 0600
    ///
    /// Default: what the configuration names. Without a configuration, the
    /// systemd credential `millrace-kek` if there is one, else a file in the
    /// state folder that is made the first time. Where the configuration says
    /// "credential", root uses the file in LoadCredential= of millrace.service.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "FILE",
        env = "MILLRACE_KEK_FILE",
        hide_env_values = true
    )]
    pub(crate) kek_file: Option<PathBuf>,
}

/// Measure rates, latencies and crossovers, and check every result.
#[derive(Debug, Subcommand)]
#[command(after_help = "`millrace vpn bench` measures tunnels between two hosts.")]
pub(crate) enum BenchCommand {
    Compression(BenchCompressionArgs),
    Crypto(CryptoArgs),
    Manager(ManagerBenchArgs),
    Pool(PoolArgs),
    Sizes(SizesArgs),
    Tls(TlsArgs),
    Virtio(BenchVirtioArgs),
    #[command(hide = true)]
    SizesWorker(SizesWorkerArgs),
}

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n  millrace completions bash > /etc/bash_completion.d/millrace"
)]
pub(crate) struct CompletionsArgs {
    /// Shell that completes commands
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// Write the manual pages into a folder
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  millrace man /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// The folder; created if missing
    #[arg(value_parser = output_folder())]
    pub(crate) dir: PathBuf,
}

/// Write the reference pages of the documentation into a folder
#[derive(Debug, Args)]
pub(crate) struct ReferenceArgs {
    /// The folder; created if missing
    #[arg(value_parser = output_folder())]
    pub(crate) dir: PathBuf,
}

/// The error as it would be without environment variables, if there were one: clap's usage line has each option with a
/// value, also with that of a variable.
fn without_environment(error: clap::Error, words: &[OsString]) -> clap::Error {
    fn ignore_environment(command: clap::Command) -> clap::Command {
        let command = command.mut_args(|argument| argument.env(None::<&'static str>));
        command.mut_subcommands(ignore_environment)
    }
    match ignore_environment(Cli::definition()).try_get_matches_from(words) {
        Err(alone) if error.use_stderr() && alone.kind() == error.kind() => alone,
        _ => error,
    }
}

fn explain_times(command: clap::Command) -> clap::Command {
    let is_time = |option: &clap::Arg| {
        let names = option.get_value_names().unwrap_or_default();
        !option.is_hide_set() && names.iter().any(|name| name == "TIME")
    };
    let takes_time = command.get_arguments().any(is_time);
    let command = command.mut_subcommands(explain_times);
    if !takes_time {
        return command;
    }
    let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let times = format!("A TIME is {TIMES}; a number without a unit is in seconds.");
    command.after_long_help(format!("{help}\n\n{times}"))
}

fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let wanted =
        "expected ADDRESS:PORT with a numeric address, such as 127.0.0.1:7400 or [::1]:7400";
    text.parse().map_err(|_| wanted.to_owned())
}

/// Shortest interval: a reading takes a few milliseconds and requests the firmware's heartbeat.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// Longest interval: above a day a systemd timer is the better tool.
const LONGEST_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// A value parser for intervals.
fn interval(text: &str) -> Result<Duration, String> {
    time_within(SHORTEST_INTERVAL..=LONGEST_INTERVAL)(text)
}

/// A value parser for numbers of readings.
fn readings(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "expected a whole number above 0".to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::Path;

    use clap::Command;

    use super::*;

    /// The width of a terminal of 80 columns, which keeps the last one free.
    pub(super) const COLUMNS: usize = 79;

    /// Where the schemas are installed, below the prefix.
    const SCHEMAS: &str = "share/doc/millrace/";

    /// Calls `check` with each visible command and its name.
    pub(super) fn for_each_command(command: &Command, check: &mut impl FnMut(&str, &Command)) {
        check(command.get_bin_name().unwrap_or("millrace"), command);
        for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
            for_each_command(child, check);
        }
    }

    /// Options that mean something else in another command, with the reason for the same name.
    const OTHER_MEANINGS: &[(&str, &str)] = &[
        ("algorithms", "of keys, of a benchmark"),
        ("backends", "in order of preference, or measured"),
        ("compression", "configures what `gateway check` checks"),
        ("core", "one of several that a benchmark names"),
        ("duration", "`inspect ceiling` samples, benchmarks measure"),
        ("force", "a device is taken from programs, files from their editors"),
        ("handshakes", "a check makes them, advice reads a run of them"),
        ("identity", "of a tenant, of machines, of the holder of a role"),
        ("json", "the text names the schema"),
        ("key", "of the pool"),
        ("kek-file", "needed, or for a check alone"),
        ("libcrypto", "a file beside others, a folder for the tunnels"),
        ("list", "names what the command has"),
        ("local", "configures what `bench tls` measures"),
        ("mode", "of handshakes, of a link"),
        ("name", "of a node, of a link"),
        ("node", "of the pool"),
        ("openssl-conf", "of a server, of the tunnels"),
        ("operations", "allowed, or measured"),
        ("ops", "of a device, of a tenant"),
        ("output", "names what the command writes"),
        ("pid", "of one server, of several processes"),
        ("pool", "nodes for a gateway, one node, the name of a manager's pool"),
        ("replace", "keys of a node, keys of a pool"),
        ("root", "of a machine that is examined, of files that are changed"),
        ("state", "of nodes, of managers, of links"),
        ("store", "of a manager, of a benchmark"),
        ("threads", "of this program, of HAProxy"),
        ("verify", "signatures, the chain of an audit"),
        ("watch", "a folder, the addresses of a tenant"),
        ("workers", "one number for a process, several for a benchmark"),
        ("zone", "of a node, of a placement"),
    ];

    /// The first line of the help of an option, without its default.
    fn first_line(option: &clap::Arg) -> String {
        let help = option.get_help().map(ToString::to_string).unwrap_or_default();
        help.split(" [default: ").next().unwrap_or_default().to_owned()
    }

    #[test]
    fn option_of_several_commands_has_one_text() {
        let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for_each_command(&root(), &mut |_, command| {
            for option in command.get_arguments().filter(|option| option.get_id() != "help") {
                if let Some(name) = option.get_long() {
                    texts.entry(name.to_owned()).or_default().insert(first_line(option));
                }
            }
        });
        texts.retain(|name, texts| {
            let has_reason = OTHER_MEANINGS.iter().any(|(other, _)| other == name);
            texts.len() > 1 && !has_reason
        });
        assert!(texts.is_empty(), "{texts:#?}");
    }

    #[test]
    fn option_with_a_list_has_a_plural() {
        for_each_command(&root(), &mut |command, definition| {
            for option in definition.get_arguments() {
                let name = option.get_long().unwrap_or_default();
                let values = option.get_value_names().unwrap_or_default();
                let takes_values = option.get_action().takes_values();
                let is_list = takes_values && values.iter().any(|value| value == "LIST");
                // `--only` selects checks, and reads as a sentence.
                let is_plural = name.ends_with('s') || name == "only";
                assert!(!is_list || is_plural, "{command} --{name}");
                assert!(
                    !is_list || first_line(option).contains("separated by commas"),
                    "{command} --{name}"
                );
            }
        });
    }

    fn root() -> Command {
        let mut root = Cli::definition();
        root.build();
        root
    }

    #[test]
    fn help_fits_a_terminal_and_examples_are_printed_as_written() {
        for_each_command(&root(), &mut |name, command| {
            let short = command.clone().render_help().to_string();
            let long = command.clone().render_long_help().to_string();
            for line in short.lines().chain(long.lines()) {
                assert!(line.chars().count() <= COLUMNS, "{name}: {line}");
            }
            let written = command.get_after_long_help().map(ToString::to_string);
            let written = written.unwrap_or_default();
            for line in written.lines() {
                let printed = long.lines().any(|other| other == line);
                assert!(printed, "{name} prints this line broken: {line}");
            }
            let examples = written.lines().take_while(|line| !line.is_empty());
            let examples = examples.filter(|line| line.starts_with("  "));
            let title = match examples.count() {
                0 => "Example",
                1 => "Example:\n",
                _ => "Examples:\n",
            };
            let is_group = command.is_subcommand_required_set();
            assert!(written.contains(title) || is_group, "{name} has no {title:?}");
        });
    }

    #[test]
    fn every_interval_takes_the_same_times() {
        let mut found = Vec::new();
        for_each_command(&root(), &mut |name, command| {
            let mut options = command.get_arguments();
            let Some(interval) = options.find(|option| option.get_long() == Some("interval"))
            else {
                return;
            };
            let parser = interval.get_value_parser().type_id();
            assert_eq!(
                parser,
                clap::builder::ValueParser::new(super::interval).type_id(),
                "{name}"
            );
            found.push(name.to_owned());
        });
        assert!(found.len() >= 3, "{found:?}");
        let bare = Cli::read(["millrace", "compress", "--watch", "--interval", "1", "/srv"]);
        let super::Command::Compress(compress) = bare.expect("a command line").command else {
            panic!("another command");
        };
        assert_eq!(compress.interval, Duration::from_secs(1));
    }

    #[test]
    fn number_of_every_option_has_the_type_of_its_field() {
        // A range of bare literals would be one of `i32`, which clap refuses when it reads the field.
        let unnamed = clap::builder::ValueParser::from(clap::value_parser!(i32)).type_id();
        for_each_command(&root(), &mut |name, command| {
            for option in command.get_arguments() {
                let parser = option.get_value_parser().type_id();
                assert_ne!(parser, unnamed, "{name}: {}", option.get_id());
            }
        });
    }

    #[test]
    fn values_of_the_environment_stay_out_of_the_help() {
        let mut count = 0;
        for_each_command(&root(), &mut |name, command| {
            for option in command.get_arguments().filter(|argument| argument.get_env().is_some()) {
                count += 1;
                assert!(option.is_hide_env_values_set(), "{name}: {}", option.get_id());
            }
        });
        assert!(count > 0, "no option has a variable");
    }

    #[test]
    fn help_names_every_installed_schema_and_no_other() {
        let mut named = BTreeSet::new();
        for_each_command(&root(), &mut |name, command| {
            let of_json = command.get_arguments().find(|option| option.get_id() == "json");
            let of_json = of_json.and_then(|json| json.get_long_help().or_else(|| json.get_help()));
            let of_json = of_json.map(ToString::to_string);
            let after = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            if let Some(help) = &of_json {
                assert!(help.contains(SCHEMAS), "{name} --json names no schema");
            }
            let text = [of_json.unwrap_or_default(), after].join("\n");
            for text in text.split(SCHEMAS).skip(1) {
                let end = text.find(".json").expect("a file") + ".json".len();
                named.insert(text[..end].to_owned());
            }
        });
        let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
        let files = fs::read_dir(reference).expect("a folder").map(Result::unwrap);
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        let installed: BTreeSet<String> = names.filter(|name| name.ends_with(".json")).collect();
        assert_eq!(named, installed);
    }
}
