// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace gateway` and `millrace gateway check`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use millrace_gateway::{Application, check};

/// Bound on `--deadline-ms` and its kin: the provider's own.
const MAX_MS: u64 = 60_000;

/// Bound on `--connections`: three descriptors for each have to fit the kernel's `nr_open`.
const MAX_CONNECTIONS: i64 = 10_000_000;

const GATEWAY_EXAMPLE: &str = "\
Examples:
  millrace gateway nginx --key www
  millrace gateway nginx --write --dry-run
  millrace gateway nginx --write --connections 20000
  millrace gateway haproxy --pool tcp:node-1.example.net:7433 --certs /etc/millrace/gateway-1
  millrace gateway openssl --plain-keys --fallback-after-ms 200 > openssl.cnf
  millrace gateway check nginx

Without --write nothing is changed: the output is yours to put in place, and
its comments say where each part goes. With --write the files that are
Millrace's alone are written (twice is as good as once), files of yours never;
what to add to those is printed. If the server's own test (nginx -t) passed
before and fails afterwards, everything is taken back. Nothing is restarted.";

/// Print or write the configuration that puts the pool under an application
#[derive(Debug, Args)]
#[command(
    after_long_help = GATEWAY_EXAMPLE,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct GatewayArgs {
    #[command(subcommand)]
    pub(crate) command: Option<GatewayCommand>,
    /// The application
    #[arg(value_enum, required = true)]
    pub(crate) application: Option<ApplicationName>,
    /// Name of a key in the pool, for names of files
    #[arg(long, value_name = "NAME", default_value = "www")]
    pub(crate) key: String,
    /// Node to use, unix:PATH or tcp:HOST:PORT; repeatable [default: the local one]
    #[arg(long, value_name = "ENDPOINT")]
    pub(crate) pool: Vec<String>,
    /// Unix socket of the local node, which is used if no --pool is named
    #[arg(
        long,
        value_name = "PATH",
        env = "MILLRACE_SOCKET",
        hide_env_values = true
    )]
    pub(crate) socket: Option<PathBuf>,
    /// Send plain PEM keys to the pool too, not only those that stubs name
    ///
    /// Keys stay on the gateway, and OpenSSL's own implementation stands in
    /// if no node answers in time.
    #[arg(long)]
    pub(crate) plain_keys: bool,
    /// Folder with ca.pem, cert.pem and key.pem, for tcp: endpoints
    #[arg(long, value_name = "DIR", default_value = "/etc/millrace/client")]
    pub(crate) certs: PathBuf,
    /// The provider module [default: found next to this binary]
    #[arg(long, value_name = "FILE")]
    pub(crate) module: Option<PathBuf>,
    /// The library that makes nginx asynchronous [default: found next to this binary]
    #[arg(long, value_name = "FILE")]
    pub(crate) preload: Option<PathBuf>,
    /// Connections that the server is to hold at a time
    ///
    /// Worker counts and limits on descriptors follow from it.
    #[arg(long, value_name = "N", default_value = "4096", value_parser = clap::value_parser!(u32).range(1..=MAX_CONNECTIONS))]
    pub(crate) connections: u32,
    /// Write the files instead of printing them, after showing what changes
    #[arg(long)]
    pub(crate) write: bool,
    /// Write below this folder instead of /
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/",
        hide_default_value = true,
        requires = "write"
    )]
    pub(crate) root: PathBuf,
    /// Show what --write would do, and do nothing
    #[arg(long, requires = "write")]
    pub(crate) dry_run: bool,
    /// Replace files that Millrace did not write, too; a copy is kept
    #[arg(long, requires = "write")]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) provider: ProviderArgs,
}

/// What the provider is told; each is a key of its configuration (docs/guide/settings.md).
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "What the provider is told (docs/guide/settings.md)")]
pub(crate) struct ProviderArgs {
    /// How handshakes wait for the pool [default: async]
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) mode: Option<ModeName>,
    /// Key types that go to the pool, separated by commas [default: all]
    #[arg(long, value_name = "LIST")]
    pub(crate) algorithms: Option<String>,
    /// Whether a pooled operation may be done on the gateway, where the key is [default: on]
    #[arg(long, value_enum, value_name = "ON|OFF")]
    pub(crate) fallback: Option<Switch>,
    /// Milliseconds after which it is, while the pool is silent [default: 500]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=MAX_MS))]
    pub(crate) fallback_after_ms: Option<u64>,
    /// Milliseconds within which every operation ends, one way or the other [default: 2000]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=MAX_MS))]
    pub(crate) deadline_ms: Option<u64>,
    /// Whether an operation that waits for long is sent to a second node, too [default: off]
    #[arg(long, value_enum, value_name = "ON|OFF")]
    pub(crate) hedge: Option<Switch>,
    /// Milliseconds that are long [default: what 19 in 20 recent answers stayed below]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=MAX_MS))]
    pub(crate) hedge_after_ms: Option<u64>,
    /// Whose signatures are verified before use: those of RSA (on), or all [default: on]
    #[arg(long, value_enum, value_name = "WHICH")]
    pub(crate) verify: Option<Verify>,
    /// Name that a tcp: node's certificate must hold [default: the host]
    #[arg(long, value_name = "NAME")]
    pub(crate) tls_server_name: Option<String>,
}

impl ProviderArgs {
    /// The keys that were given, in the order in which they are written; `mode` is not among them.
    pub(crate) fn keys(&self) -> Vec<(&'static str, String)> {
        let Self {
            mode: _,
            algorithms,
            fallback,
            fallback_after_ms,
            deadline_ms,
            hedge,
            hedge_after_ms,
            verify,
            tls_server_name,
        } = self;
        let text = |key, value: &Option<String>| value.clone().map(|value| (key, value));
        let number = |key, value: &Option<u64>| value.map(|value| (key, value.to_string()));
        [
            text("tls_server_name", tls_server_name),
            number("deadline_ms", deadline_ms),
            number("fallback_after_ms", fallback_after_ms),
            fallback.map(|fallback| ("fallback", fallback.text().to_owned())),
            hedge.map(|hedge| ("hedge", hedge.text().to_owned())),
            number("hedge_after_ms", hedge_after_ms),
            text("algorithms", algorithms),
            verify.map(|verify| ("verify", verify.text().to_owned())),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Applications that there is a recipe for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ApplicationName {
    /// Anything that uses OpenSSL 3: just the openssl.cnf
    Openssl,
    /// Stock nginx, asynchronous with the preload library
    Nginx,
    /// HAProxy 2.6 or later, asynchronous
    Haproxy,
    /// Apache httpd with mod_ssl
    Apache,
    /// lighttpd with mod_openssl
    Lighttpd,
    /// stunnel
    Stunnel,
    /// OpenVPN
    Openvpn,
    /// curl with a client certificate
    Curl,
}

impl From<ApplicationName> for Application {
    fn from(name: ApplicationName) -> Self {
        match name {
            ApplicationName::Openssl => Self::Openssl,
            ApplicationName::Nginx => Self::Nginx,
            ApplicationName::Haproxy => Self::Haproxy,
            ApplicationName::Apache => Self::Apache,
            ApplicationName::Lighttpd => Self::Lighttpd,
            ApplicationName::Stunnel => Self::Stunnel,
            ApplicationName::Openvpn => Self::Openvpn,
            ApplicationName::Curl => Self::Curl,
        }
    }
}

/// How handshakes wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeName {
    /// Without blocking, where the application can
    Async,
    /// Blocking
    Sync,
    /// Not at all: OpenSSL does everything
    Off,
}

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// Yes
    On,
    /// No
    Off,
}

impl Switch {
    fn text(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// Whose signatures are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Verify {
    /// Those of RSA
    On,
    /// All
    All,
}

impl Verify {
    fn text(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::All => "all",
        }
    }
}

/// What else there is to do with a gateway.
#[derive(Debug, Subcommand)]
pub(crate) enum GatewayCommand {
    Check(CheckArgs),
}

const CHECK_EXAMPLE: &str = "\
Examples:
  millrace gateway check nginx
  millrace gateway check haproxy --connect www.example.net:443 --json
  millrace gateway check nginx --pid 4711 --socket /run/millrace/node.sock

It looks at the running processes, at their configuration and at the node, and
then makes some handshakes and counts where they were signed. It changes
nothing. Run it as root: without, it sees less, and says what.

Exit codes: 0 nothing failed (there may be warnings), 1 something did, 2 the
command line is wrong.";

/// Say whether the handshakes of a running server are pooled and asynchronous, and if not, why
#[derive(Debug, Args)]
#[command(after_long_help = CHECK_EXAMPLE)]
pub(crate) struct CheckArgs {
    /// The server
    #[arg(value_enum)]
    pub(crate) server: ServerName,
    /// Process id of its master [default: found by its name]
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// Where it listens for TLS [default: from its configuration]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) connect: Option<String>,
    /// Name to ask for (SNI) [default: from its configuration]
    #[arg(long, value_name = "NAME")]
    pub(crate) server_name: Option<String>,
    /// Its configuration file [default: from its command line]
    #[arg(long, value_name = "FILE")]
    pub(crate) server_config: Option<PathBuf>,
    /// The openssl.cnf that it uses [default: from its environment or unit file]
    #[arg(long, value_name = "FILE")]
    pub(crate) openssl_conf: Option<PathBuf>,
    /// Handshakes to make, all at a time
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u32).range(2..=256))]
    pub(crate) handshakes: u32,
    /// Unix socket of the local node
    #[arg(
        long,
        value_name = "PATH",
        env = "MILLRACE_SOCKET",
        hide_env_values = true
    )]
    pub(crate) socket: Option<PathBuf>,
    /// Configuration file of the local node
    #[arg(
        long,
        value_name = "FILE",
        env = "MILLRACE_CONFIG",
        hide_env_values = true
    )]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Servers that can be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServerName {
    /// nginx, and its kin
    Nginx,
    /// HAProxy
    Haproxy,
}

impl From<ServerName> for check::Server {
    fn from(name: ServerName) -> Self {
        match name {
            ServerName::Nginx => Self::Nginx,
            ServerName::Haproxy => Self::Haproxy,
        }
    }
}
