// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace gateway` and `millrace gateway check`.

use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Subcommand, ValueEnum};
use millrace_gateway::Application;
use millrace_gateway::check::Server;
use millrace_gateway::settings::HandshakeMode;

use super::{ChangedRootArg, Cli, ConfigArg, DryRunArg, OnOff, SocketArg, number, time_within};

/// Bounds on `--deadline` and the other times: the provider counts milliseconds, and has the same upper bound.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(60);

/// Bound on `--connections`: three descriptors per connection must fit the kernel's `nr_open`.
const MAX_CONNECTIONS: u32 = 10_000_000;

/// Heading of what runs in the server, beside the pool or without it.
const IN_PROCESS: &str = "In the server's process";

const GATEWAY_EXAMPLE: &str = "\
Examples:
  millrace gateway nginx --key www
  millrace gateway nginx --write --dry-run
  millrace gateway nginx --local --pq --write
  millrace gateway nginx --local --pq --remove
  millrace gateway nginx --compression --write
  millrace gateway nginx --compression=only
  millrace gateway nginx --write --connections 20000
  millrace gateway haproxy --pool tcp:node-1:7400 --certs /etc/millrace/gw-1
  millrace gateway openssl --plain-keys --fallback-after 200ms > openssl.cnf
  millrace gateway check nginx

Without --write nothing is changed: the output is printed, and its comments
say where each part goes. With --write Millrace writes the files that it
generates as a whole, and prints the lines to add to your own files, which it
never changes. A second run changes nothing. If the server's own test
(nginx -t) passed before and fails afterwards, all files are restored. No
service is restarted.";

/// Configure a server to use the pool, and check that it does
#[derive(Debug, Args)]
#[command(
    after_long_help = GATEWAY_EXAMPLE,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    mut_arg("socket", |socket| socket.hide_short_help(true).help_heading("Pool")),
    mut_arg("root", |root| root.help_heading("Write")),
    mut_arg("dry_run", |dry_run| dry_run.requires("write").help_heading("Write"))
)]
pub(crate) struct GatewayArgs {
    #[command(subcommand)]
    pub(crate) command: Option<GatewayCommand>,
    /// Application to configure
    #[arg(value_enum, required = true)]
    pub(crate) application: Option<Application>,
    /// Key in the pool; names the files
    #[arg(help_heading = "Pool", long, value_name = "NAME", default_value = "www")]
    pub(crate) key: String,
    /// Node to use, unix:PATH or tcp:HOST:PORT; repeatable [default: the local node]
    #[arg(help_heading = "Pool", long, value_name = "ENDPOINT")]
    pub(crate) pool: Vec<String>,
    #[command(flatten)]
    pub(crate) socket: SocketArg,
    /// Also use the pool for plain PEM keys, not only for key stubs
    ///
    /// The files stay on the gateway. Each process of the application sends its
    /// keys to the nodes, which hold them in memory until the connection ends.
    /// OpenSSL's own implementation is the fallback if no node answers in time.
    #[arg(help_heading = "Pool", hide_short_help = true, long)]
    pub(crate) plain_keys: bool,
    /// Make handshakes cheaper, without a node
    ///
    /// No key moves. AWS-LC computes the key exchange and the key schedule of
    /// TLS 1.3 and signs with P-384, Ed25519 and ML-DSA keys; the preload library
    /// spares OpenSSL repeated look-ups. For nginx, haproxy and openssl. With --pool as well, keys
    /// that stubs name go to the pool and the rest stays; docs/guide/local.md.
    #[arg(help_heading = IN_PROCESS, long)]
    pub(crate) local: bool,
    /// Offer the post-quantum group X25519MLKEM768 by name, also on OpenSSL 3.0
    #[arg(help_heading = IN_PROCESS, hide_short_help = true, long, requires = "local")]
    pub(crate) pq: bool,
    /// Remove the files that --write wrote, unless edited
    #[arg(help_heading = "Write", long, conflicts_with = "write")]
    pub(crate) remove: bool,
    /// Folder with ca.pem, cert.pem and key.pem, for tcp: endpoints
    #[arg(
        help_heading = "Pool",
        hide_short_help = true,
        long,
        value_name = "DIR",
        default_value = "/etc/millrace/client"
    )]
    pub(crate) certs: PathBuf,
    /// The provider module [default: found next to this binary]
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    pub(crate) provider: Option<PathBuf>,
    /// The preload library [default: found next to this binary]
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    pub(crate) preload: Option<PathBuf>,
    /// Compress nginx's responses, too; =only: no pool
    #[arg(hide_possible_values = true, help_heading = IN_PROCESS, long, value_enum, value_name = "WHAT", num_args = 0..=1, default_missing_value = "also", require_equals = true)]
    pub(crate) compression: Option<Compression>,
    /// The compression library [default: found next to this binary]
    #[arg(
        help_heading = IN_PROCESS,
        hide_short_help = true,
        long,
        value_name = "FILE",
        requires = "compression"
    )]
    pub(crate) compression_library: Option<PathBuf>,
    /// Concurrent connections that the server is sized for
    ///
    /// Worker counts and descriptor limits follow from it.
    #[arg(hide_short_help = true, long, value_name = "N", default_value = "4096", value_parser = number(1..=MAX_CONNECTIONS))]
    pub(crate) connections: u32,
    /// Show the changes, and write the files
    #[arg(help_heading = "Write", long)]
    pub(crate) write: bool,
    #[command(flatten)]
    pub(crate) tree: ChangedRootArg,
    #[command(flatten)]
    pub(crate) plan: DryRunArg,
    /// Also replace files that were edited or are not generated; a copy is kept
    #[arg(help_heading = "Write", hide_short_help = true, long, requires = "write")]
    pub(crate) force: bool,
    /// Print JSON (schema: share/doc/millrace/recipe.schema.json)
    ///
    /// With --write: the result of the write (schema:
    /// share/doc/millrace/written.schema.json).
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: ProviderArgs,
}

/// Settings of the provider; each is a key of its configuration file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Settings of the provider")]
pub(crate) struct ProviderArgs {
    /// How handshakes wait for the pool [default: async]
    #[arg(hide_short_help = true, long, value_enum, value_name = "MODE")]
    pub(crate) mode: Option<HandshakeMode>,
    /// Key types to send to the pool, separated by commas [default: all]
    #[arg(hide_short_help = true, long, value_name = "LIST")]
    pub(crate) algorithms: Option<String>,
    /// Whether the gateway does an operation itself if it has the key and the pool fails [default: on]
    #[arg(
        hide_short_help = true,
        long,
        value_enum,
        value_name = "ON|OFF",
        hide_possible_values = true
    )]
    pub(crate) fallback: Option<OnOff>,
    /// Fall back after this time without an answer, 1ms to 60s [default: 500ms]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = time_within(SHORTEST..=LONGEST))]
    pub(crate) fallback_after: Option<Duration>,
    /// Deadline of an operation, 1ms to 60s [default: 2s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = time_within(SHORTEST..=LONGEST))]
    pub(crate) deadline: Option<Duration>,
    /// Whether a slow operation is also sent to a second node [default: on]
    #[arg(
        hide_short_help = true,
        long,
        value_enum,
        value_name = "ON|OFF",
        hide_possible_values = true
    )]
    pub(crate) hedge: Option<OnOff>,
    /// Hedge after this time, 1ms to 60s [default: recent 99th percentile]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = time_within(SHORTEST..=LONGEST))]
    pub(crate) hedge_after: Option<Duration>,
    /// Which signatures to verify before use: RSA and samples (on), or all [default: on]
    #[arg(hide_short_help = true, long, value_enum, value_name = "SIGNATURES")]
    pub(crate) verify: Option<VerifyArg>,
    /// Name that the certificate of a tcp: node must contain [default: the host]
    #[arg(hide_short_help = true, long, value_name = "NAME")]
    pub(crate) tls_server_name: Option<String>,
}

impl ProviderArgs {
    /// The given keys with their values, in the order of the written file, without `mode`.
    pub(crate) fn keys(&self) -> Vec<(&'static str, String)> {
        let Self {
            mode: _,
            algorithms,
            fallback,
            fallback_after,
            deadline,
            hedge,
            hedge_after,
            verify,
            tls_server_name,
        } = self;
        let text = |key, value: &Option<String>| value.clone().map(|value| (key, value));
        let time =
            |key, time: &Option<Duration>| time.map(|time| (key, time.as_millis().to_string()));
        [
            text("tls_server_name", tls_server_name),
            time("deadline_ms", deadline),
            time("fallback_after_ms", fallback_after),
            fallback.map(|fallback| ("fallback", value_name(fallback))),
            hedge.map(|hedge| ("hedge", value_name(hedge))),
            time("hedge_after_ms", hedge_after),
            text("algorithms", algorithms),
            verify.map(|verify| ("verify", value_name(verify))),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// The name of a value on the command line and in a configuration file.
fn value_name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Setup that the compression library joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compression {
    /// Beside the pool
    Also,
    /// Without the pool
    Only,
}

/// The signatures to verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum VerifyArg {
    /// RSA signatures, and samples of others
    On,
    /// All signatures
    All,
}

/// Options of every mode: where the files go, and what is printed.
const READ_BY_ALL: [&str; 6] = ["remove", "write", "root", "dry_run", "force", "json"];

/// A mode in which few options have an effect.
struct NarrowMode {
    flag: &'static str,
    is_chosen: fn(&ArgMatches) -> bool,
    /// The options that the mode reads beside [`READ_BY_ALL`].
    reads: &'static [&'static str],
    /// Purpose of the mode, for the error.
    purpose: &'static str,
}

const NARROW_MODES: [NarrowMode; 2] = [
    NarrowMode {
        flag: "--local",
        is_chosen: |matches| matches.get_flag("local") && !matches.contains_id("pool"),
        reads: &["local", "pq", "provider", "preload"],
        purpose: "without --pool it uses no node and no key of the pool",
    },
    NarrowMode {
        flag: "--compression=only",
        is_chosen: |matches| matches.get_one("compression") == Some(&Compression::Only),
        reads: &["compression", "compression_library"],
        purpose: "it configures the compression alone",
    },
];

/// Refuses an option that the chosen mode does not read. A variable of the environment is no request for this
/// command.
///
/// # Errors
/// The first such option.
pub(super) fn refuse_unread(matches: &ArgMatches) -> Result<(), clap::Error> {
    let Some(mode) = NARROW_MODES.iter().find(|mode| (mode.is_chosen)(matches)) else {
        return Ok(());
    };
    let mut root = Cli::definition();
    root.build();
    let mut command = root.find_subcommand("gateway").cloned().unwrap_or(root);
    let unread = command.get_arguments().find(|option| {
        let id = option.get_id().as_str();
        let is_given = matches.value_source(id) == Some(ValueSource::CommandLine);
        let is_read = mode.reads.contains(&id) || READ_BY_ALL.contains(&id);
        is_given && !is_read && !option.is_positional()
    });
    let Some(name) = unread.and_then(clap::Arg::get_long) else {
        return Ok(());
    };
    let NarrowMode { flag, purpose, .. } = mode;
    let message = format!("{flag} does not read --{name}: {purpose}. Leave out --{name} or {flag}");
    Err(command.error(ErrorKind::ArgumentConflict, message))
}

/// Subcommands of `millrace gateway`.
#[derive(Debug, Subcommand)]
pub(crate) enum GatewayCommand {
    Check(CheckArgs),
    /// Ask the nodes of a pool from another process's place (for `check` and `status --gateway`)
    #[command(hide = true)]
    Ask,
}

const CHECK_EXAMPLE: &str = "\
Examples:
  millrace gateway check nginx
  millrace gateway check haproxy --connect www.example.net:443 --json
  millrace gateway check nginx --pid 4711 --socket /run/millrace/node.sock
  millrace gateway check nginx --compression
  millrace gateway check unbound --connect 127.0.0.1:853

The command reads the running processes, their configuration and the node's
status, then makes handshakes and counts where they were signed. Of a program
other than nginx and HAProxy it reads no configuration: name its address. It
changes nothing. Run it as root: another user sees less, and the report names
what could not be seen.

Exit codes: 0 no check failed (there may be warnings), 1 a check failed, 2 the
command line is wrong.";

/// Check whether the handshakes of a server are pooled, and if not, why
///
/// Reports whether they are asynchronous, too.
#[derive(Debug, Args)]
#[command(after_long_help = CHECK_EXAMPLE)]
pub(crate) struct CheckArgs {
    /// Server to check: nginx, haproxy, or the name of another program on
    /// OpenSSL 3, such as unbound
    pub(crate) server: Server,
    /// Process id of its master [default: found by its name]
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// Address where it listens for TLS [default: from its configuration]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) connect: Option<String>,
    /// Server name of the handshakes [default: from its configuration]
    #[arg(long, value_name = "NAME")]
    pub(crate) sni: Option<String>,
    /// Its configuration file [default: from its command line]
    #[arg(long, value_name = "FILE")]
    pub(crate) server_config: Option<PathBuf>,
    /// The openssl.cnf that it uses [default: from its environment or unit file]
    #[arg(long, value_name = "FILE")]
    pub(crate) openssl_conf: Option<PathBuf>,
    /// Concurrent handshakes to make
    #[arg(long, value_name = "N", default_value = "16", value_parser = number::<u32>(2..=256))]
    pub(crate) handshakes: u32,
    /// Check the compression library alone: for an nginx without the provider
    #[arg(long, conflicts_with_all = ["connect", "sni", "openssl_conf"])]
    pub(crate) compression: bool,
    #[command(flatten)]
    pub(crate) socket: SocketArg,
    #[command(flatten)]
    pub(crate) config: ConfigArg,
    /// Print JSON (schema: share/doc/millrace/check.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The option with a value that it takes.
    fn word(option: &clap::Arg) -> String {
        let name = option.get_long().expect("a long name");
        if !option.get_action().takes_values() {
            return format!("--{name}");
        }
        let values = option.get_possible_values();
        let value = values.first().map_or("1", |value| value.get_name());
        format!("--{name}={value}")
    }

    #[test]
    fn narrow_modes_refuse_every_option_that_they_do_not_read() {
        let root = Cli::definition();
        let gateway = root.find_subcommand("gateway").expect("gateway");
        for mode in &NARROW_MODES {
            let own = mode.flag.trim_end_matches("=only");
            for option in gateway.get_arguments().filter(|argument| !argument.is_positional()) {
                let name = format!("--{}", option.get_long().expect("a long name"));
                let id = option.get_id().as_str();
                // With a pool, --local is a part of another recipe, which reads the others.
                if name == own || (own, id) == ("--local", "pool") {
                    continue;
                }
                let word = word(option);
                let mut line = vec!["millrace", "gateway", "nginx", mode.flag, &word];
                if ["dry_run", "force"].contains(&id) {
                    line.push("--write");
                }
                let outcome = Cli::read(&line);
                if mode.reads.contains(&id) || READ_BY_ALL.contains(&id) {
                    assert!(outcome.is_ok(), "{line:?}: {outcome:?}");
                    continue;
                }
                let error = outcome.expect_err(&word);
                // --pq needs --local, and --compression-library needs --compression.
                let needs_another = error.kind() == ErrorKind::MissingRequiredArgument;
                let text = error.to_string();
                let names_both = text.contains(own) && text.contains(&name);
                assert!(needs_another || names_both, "{line:?}: {text}");
                assert_eq!(error.exit_code(), 2, "{line:?}");
            }
        }
    }

    #[test]
    fn times_have_units_and_become_milliseconds() {
        let keys = |line: &str| {
            let cli = Cli::read(line.split_whitespace())?;
            let super::super::Command::Gateway(args) = cli.command else { panic!("gateway") };
            Ok::<_, clap::Error>(args.settings.keys())
        };
        for name in ["deadline", "fallback-after", "hedge-after"] {
            let key = format!("{}_ms", name.replace('-', "_"));
            for (option, value) in [
                (format!("--{name} 200ms"), "200"),
                (format!("--{name} 1.5s"), "1500"),
                (format!("--{name} 60"), "60000"),
            ] {
                let keys = keys(&format!("millrace gateway nginx {option}")).expect(&option);
                assert_eq!(keys, [(key.as_str(), value.to_owned())], "{option}");
            }
            for option in [format!("--{name} 0"), format!("--{name} 61s")] {
                assert!(keys(&format!("millrace gateway nginx {option}")).is_err(), "{option}");
            }
        }
    }

    #[test]
    fn pool_mode_reads_every_option_of_the_pool() {
        let line = "millrace gateway nginx --key k --pool tcp:n:1 --certs /c --plain-keys --connections 9 \
                    --compression --hedge on --fallback on";
        let outcome = Cli::read(line.split_whitespace());
        assert!(outcome.is_ok(), "{outcome:?}");
    }
}
