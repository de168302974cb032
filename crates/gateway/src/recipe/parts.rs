// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Parts that several recipes share: the provider's two files, variables, drop-ins and restarts of a unit, stubs, and
//! [`PooledService`], the whole plan for a server.
//!
//! What only one server needs is in its recipe. Nothing here touches the host: the results are parts of a plan, which
//! others compare, write and verify.

use std::fmt::Write as _;
use std::path::Path;

use millrace_hostfs::generated::PlannedFile;
use millrace_hostfs::generated::verify::{Argument, Verification};

use crate::application::Application;
use crate::plan::{CommandStep, GENERATOR, RecipePlan, Snippet};
use crate::settings::{HandshakeMode, RecipeSettings};
use crate::system_conf::{OPENSSL_CNF, SystemConf};

/// Path of the provider's own configuration file.
pub const CLIENT_TOML: &str = "/etc/millrace/client.toml";

/// The configuration of nginx as packages install it, and the generated file that it is to include.
pub(super) const NGINX_CONF: &str = "/etc/nginx/nginx.conf";
pub(super) const NGINX_INCLUDE: &str = "/etc/nginx/millrace.conf";

const OPENSSL_TEMPLATE: &str = include_str!("../../templates/openssl.cnf");

/// Text of the template about plain keys, and its replacement when they sign in the process.
const PLAIN_WHY: &str = "\
# Without the next line only keys that stubs name go to the pool. With it, plain
# PEM keys do too: each process brings them into its own session once, and
# OpenSSL's own implementation stands in if no node answers in time.
";
const REST_WHY: &str = "\
# Keys that stubs name go to the pool. The next line prefers what the process
# computes itself for the rest: key exchange, key schedule, keys of PEM files.
";
const PLAIN_TWICE: &str = "\
# Twice the same: applications that choose providers themselves (stunnel)
# override what is said of `provider`.
";
const PREFER_LOCAL: &str = "?millrace.local=yes";

const CLIENT_TEMPLATE: &str = include_str!("../../templates/client.toml");

/// Variables of the preload library that spare OpenSSL work: a cache of fetches, and tickets in one packet.
pub(super) const LOCAL_VARIABLES: [(&str, &str); 2] =
    [("MILLRACE_FETCH_CACHE", "on"), ("MILLRACE_JOIN_TICKETS", "on")];

/// Maximum number of descriptors per connection: the client's, that of a waiting handshake (closed with the
/// connection), and the upstream's.
pub(super) const FILES_PER_CONNECTION: u32 = 3;

/// Further descriptors of a process: listeners, logs, libraries, the connection to the pool.
pub(super) const FILES_BESIDES: u32 = 256;

/// A complete `openssl.cnf`.
pub(super) fn openssl_cnf(settings: &RecipeSettings) -> PlannedFile {
    let mut lines = String::new();
    for (key, value) in provider_keys(settings) {
        let _ = writeln!(lines, "{key} = {value}");
    }
    let template = match (settings.local, settings.plain_keys) {
        (true, false) => OPENSSL_TEMPLATE
            .replace(PLAIN_WHY, REST_WHY)
            .replace("?provider=millrace,?millrace.pool=yes", PREFER_LOCAL)
            .replace(PLAIN_TWICE, ""),
        _ => OPENSSL_TEMPLATE.to_owned(),
    };
    let prefers = settings.plain_keys || settings.local;
    let body = template
        .replace("{plain}", if prefers { "" } else { "#" })
        .replace("{module}", &settings.module.display().to_string())
        .replace("{pool}", &settings.nodes.join(","))
        .replace("{settings}\n", &format!("{lines}\n"));
    cnf_file(settings.system.as_ref(), &body)
}

/// The file of this text, as a continuation of the configuration that the program had before.
pub(super) fn cnf_file(system: Option<&SystemConf>, body: &str) -> PlannedFile {
    let continued = system.map(|system| system.continued_by(body));
    let body = continued.as_deref().unwrap_or(body);
    GENERATOR.file(OPENSSL_CNF, body, "puts the provider under OpenSSL")
}

/// The provider's settings for applications that create a separate library context.
pub(super) fn client_toml(settings: &RecipeSettings) -> PlannedFile {
    let quoted: Vec<String> = settings.nodes.iter().map(|node| format!("\"{node}\"")).collect();
    let mut lines = String::new();
    for (key, value) in provider_keys(settings) {
        let _ = writeln!(lines, "{key} = \"{value}\"");
    }
    let body =
        CLIENT_TEMPLATE.replace("{pool}", &quoted.join(", ")).replace("{settings}\n", &lines);
    GENERATOR.file(CLIENT_TOML, &body, "for where there is no OPENSSL_CONF")
}

/// The keys of the provider that differ from their defaults, without `pool`.
fn provider_keys(settings: &RecipeSettings) -> Vec<(&'static str, String)> {
    let mut keys = Vec::new();
    if let Some(folder) = &settings.certificates {
        for (key, file) in [("tls_ca", "ca"), ("tls_cert", "cert"), ("tls_key", "key")] {
            keys.push((key, format!("{}/{file}.pem", folder.display())));
        }
    }
    match settings.mode {
        HandshakeMode::Async => {}
        HandshakeMode::Sync => keys.push(("mode", "sync".to_owned())),
        HandshakeMode::Off => keys.push(("mode", "off".to_owned())),
    }
    if settings.local {
        keys.push(("local", "on".to_owned()));
    }
    keys.extend(settings.provider.iter().cloned());
    keys
}

/// The variables that a service gets.
pub(super) type Environment = Vec<(&'static str, String)>;

/// A server's test of its configuration: name, program, arguments.
pub(super) type ConfigTest = (&'static str, &'static str, Vec<Argument>);

/// nginx's test of its configuration.
pub(super) fn nginx_test() -> ConfigTest {
    let [test, quiet, file] = ["-t", "-q", "-c"].map(Argument::Text);
    ("nginx -t", "nginx", vec![test, quiet, file, Argument::File(NGINX_CONF)])
}

/// The systemd drop-in of a service, with these lines of `[Service]`.
pub(super) fn drop_in(unit: &str, lines: &str) -> PlannedFile {
    GENERATOR.file(
        format!("/etc/systemd/system/{unit}.service.d/millrace.conf"),
        &format!("[Service]\n{lines}"),
        "hands the configuration to the service",
    )
}

/// The commands with which a service takes its environment: that of its drop-in, or, without systemd, the file that the
/// scripts of SysV read.
pub(super) fn restart(unit: &str, systemd: bool, environment: &Environment) -> Vec<CommandStep> {
    if systemd {
        return vec![CommandStep {
            command: format!("systemctl daemon-reload && systemctl restart {unit}"),
            why: "a service takes its environment at a start, not at a reload",
        }];
    }
    let exports = environment.iter().map(|(name, value)| format!("export {name}={value}\n"));
    vec![
        CommandStep {
            command: format!(
                "cat >> /etc/default/{unit} <<EOF\n{}EOF",
                exports.collect::<String>()
            ),
            why: "scripts in /etc/init.d start a server with an empty environment and read this file",
        },
        CommandStep {
            command: format!("service {unit} restart"),
            why: "a server takes its environment at a start, not at a reload",
        },
    ]
}

/// A service that gets the pool.
pub(super) struct PooledService<'a> {
    pub(super) application: Application,
    pub(super) unit: String,
    /// The user of the processes that use the key.
    pub(super) user: &'static str,
    /// The path of the key.
    pub(super) key: String,
    /// The preload library with the reason for it.
    pub(super) preload: Option<(&'a Path, &'a str)>,
    /// The chroot of the packaged configuration.
    pub(super) chroot: Option<&'a str>,
    /// Further lines of the drop-in.
    pub(super) lines: String,
    /// A further generated file.
    pub(super) include: Option<PlannedFile>,
    pub(super) snippet: Snippet,
    /// Whether `millrace gateway check` knows the server.
    pub(super) is_checked: bool,
    pub(super) test: Option<ConfigTest>,
}

impl PooledService<'_> {
    /// The steps that put the pool under the service.
    pub(super) fn plan(self, settings: &RecipeSettings) -> RecipePlan {
        let mut after = self.start(settings);
        if self.is_checked {
            after.push(CommandStep {
                command: format!("millrace gateway check {}", self.unit),
                why: "says whether handshakes are pooled and asynchronous",
            });
        }
        let preload = self.preload.map(|(library, _)| library.display().to_string());
        let preload = preload.map(|library| ("LD_PRELOAD", Argument::Owned(library)));
        let conf = ("OPENSSL_CONF", Argument::File(OPENSSL_CNF));
        let certbot = self.certbot_drop_in(settings);
        let files = [Some(openssl_cnf(settings)), self.drop_in(settings), certbot, self.include];
        let test = self.test.map(|(name, program, arguments)| Verification {
            name,
            program,
            arguments,
            environment: [conf].into_iter().chain(preload).collect(),
            wants: None,
        });
        RecipePlan {
            application: self.application,
            before: stub(settings, &self.key, self.user),
            files: files.into_iter().flatten().collect(),
            snippets: vec![self.snippet],
            after,
            verifications: [provider_loads()].into_iter().chain(test).collect(),
        }
    }

    /// The systemd drop-in that passes the configuration to the service. `None` where systemd is not in charge.
    fn drop_in(&self, settings: &RecipeSettings) -> Option<PlannedFile> {
        if !settings.systemd {
            return None;
        }
        let socket = if settings.sockets().next().is_some() {
            "# The service's user must be allowed to connect to the node's socket: mode 0666, where\n\
             # the policy of each key decides, or a group of the user.\n"
        } else {
            ""
        };
        let mut body = socket.to_owned();
        for (name, value) in self.environment(settings) {
            if name == "LD_PRELOAD"
                && let Some((_, why)) = self.preload
            {
                body.push_str(why);
            }
            let _ = writeln!(body, "Environment={name}={value}");
        }
        body.push_str(&self.binds(settings));
        body.push_str(&self.lines);
        Some(drop_in(&self.unit, &body))
    }

    /// The drop-in of certbot, whose plugin for this server runs the server's own test at a renewal.
    fn certbot_drop_in(&self, settings: &RecipeSettings) -> Option<PlannedFile> {
        let plugins = [(Application::Nginx, "nginx"), (Application::Apache, "apache")];
        let (_, plugin) = plugins.into_iter().find(|(server, _)| *server == self.application)?;
        let lines = format!(
            "# At a renewal certbot runs the server's test of its files, which reads stubs only with this.\n\
             Environment=OPENSSL_CONF={OPENSSL_CNF}\n"
        );
        (settings.systemd && settings.certbot.contains(&plugin)).then(|| drop_in("certbot", &lines))
    }

    fn environment(&self, settings: &RecipeSettings) -> Environment {
        let preload =
            self.preload.map(|(library, _)| ("LD_PRELOAD", library.display().to_string()));
        let variables = LOCAL_VARIABLES.iter().filter(|_| settings.local && self.preload.is_some());
        [("OPENSSL_CONF", OPENSSL_CNF.to_owned())]
            .into_iter()
            .chain(preload)
            .chain(variables.map(|(name, value)| (*name, (*value).to_owned())))
            .collect()
    }

    /// Lines that make the node's sockets and the certificates visible inside the chroot.
    fn binds(&self, settings: &RecipeSettings) -> String {
        let mut lines = String::new();
        let Some(root) = self.chroot else {
            return lines;
        };
        for OpenedPath { path, kind } in opened_later(settings) {
            let path = path.display();
            if lines.is_empty() {
                let _ = write!(
                    lines,
                    "# Debian's configuration has `chroot {root}`, and the provider opens these after\n\
                     # that. (Without chroot the lines do no harm.)\n"
                );
            }
            let _ = match kind {
                OpenedKind::Socket => writeln!(lines, "BindPaths={path}:{root}{path}"),
                OpenedKind::Certificates => {
                    writeln!(lines, "BindReadOnlyPaths={path}:{root}{path}")
                }
                // Not every host has all of them.
                OpenedKind::NameService => {
                    writeln!(lines, "BindReadOnlyPaths=-{path}:{root}{path}")
                }
            };
        }
        lines
    }

    /// The commands that make the service use the new files.
    fn start(&self, settings: &RecipeSettings) -> Vec<CommandStep> {
        let mut steps = Vec::new();
        let root = self.chroot.filter(|_| !settings.systemd);
        for OpenedPath { path, kind } in root.into_iter().flat_map(|_| opened_later(settings)) {
            let root = root.unwrap_or_default();
            let outside = path.display();
            let inside = format!("{root}{}", path.display());
            let (make, read_only) = match kind {
                OpenedKind::Socket => (format!("mkdir -p {inside}"), ""),
                OpenedKind::Certificates => (format!("mkdir -p {inside}"), " -o ro"),
                OpenedKind::NameService => {
                    (format!("mkdir -p {root}/etc && touch {inside}"), " -o ro")
                }
            };
            steps.push(CommandStep {
                command: format!("{make} && mount --bind{read_only} {outside} {inside}"),
                why: "the provider opens this after the chroot; repeat it at every boot (/etc/fstab)",
            });
        }
        steps.extend(restart(&self.unit, settings.systemd, &self.environment(settings)));
        steps
    }
}

/// A path that the provider opens when it first connects.
struct OpenedPath<'a> {
    path: &'a Path,
    kind: OpenedKind,
}

/// Kinds of [`OpenedPath`].
enum OpenedKind {
    /// The folder of a socket.
    Socket,
    /// The folder of the certificate files.
    Certificates,
    /// A file that the resolver reads.
    NameService,
}

/// Files with which the C library resolves a name.
const NAME_SERVICE: [&str; 3] = ["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf"];

fn opened_later(settings: &RecipeSettings) -> Vec<OpenedPath<'_>> {
    let mut paths: Vec<OpenedPath<'_>> = Vec::new();
    let sockets = settings.sockets().filter_map(Path::parent);
    let certificates = settings.certificates.as_deref();
    let names: &[&str] = if settings.has_names() { &NAME_SERVICE } else { &[] };
    let found = sockets
        .map(|path| (path, OpenedKind::Socket))
        .chain(certificates.map(|path| (path, OpenedKind::Certificates)))
        .chain(names.iter().map(|path| (Path::new(*path), OpenedKind::NameService)));
    for (path, kind) in found {
        if !paths.iter().any(|known| known.path == path) {
            paths.push(OpenedPath { path, kind });
        }
    }
    paths
}

/// The commands that write a stub to the path of the server's key, empty for plain keys.
pub(super) fn stub(settings: &RecipeSettings, path: &str, user: &str) -> Vec<CommandStep> {
    if settings.plain_keys {
        return Vec::new();
    }
    let RecipeSettings { key, .. } = settings;
    let mut steps = vec![CommandStep {
        command: format!("millrace key stub {key} -o {path}"),
        why: "the stub names the pool's key and holds no secret; write it where the node is",
    }];
    if settings.sockets().next().is_some() {
        steps.push(CommandStep {
            command: format!("millrace key policy {key} --add-uid {user}"),
            why: "lets the server's user use the key",
        });
    }
    if let Some(folder) = &settings.certificates {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let folder = folder.display();
        // Debian's users have a group of their name, this one excepted.
        let group = if user == "nobody" { "nogroup" } else { user };
        steps.push(CommandStep {
            command: format!("millrace cert client {name} -o {folder}"),
            why: "makes the certificate files, on the node; copy the folder here",
        });
        steps.push(CommandStep {
            command: format!("chgrp -R {group} {folder} && chmod -R g+rX {folder}"),
            why: "the server's processes read the files as their own user",
        });
        steps.push(CommandStep {
            command: format!("millrace key policy {key} --add-cert {name}"),
            why: "lets that certificate use the key",
        });
    }
    steps
}

/// Runs OpenSSL to check that the provider loads: servers run without it and log nothing.
pub(crate) fn provider_loads() -> Verification {
    Verification {
        name: "openssl list -providers",
        program: "openssl",
        arguments: vec![Argument::Text("list"), Argument::Text("-providers")],
        environment: vec![("OPENSSL_CONF", Argument::File(OPENSSL_CNF))],
        wants: Some("millrace"),
    }
}
