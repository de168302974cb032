// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Parts that several recipes share.

use std::fmt::Write as _;
use std::path::Path;

use crate::plan::{PlannedFile, Step};
use crate::settings::{Mode, Settings};
use crate::verify::{Argument, Verification};

/// Path of the generated `openssl.cnf`.
pub const OPENSSL_CNF: &str = "/etc/millrace/openssl.cnf";

/// Path of the provider's own configuration file.
pub const CLIENT_TOML: &str = "/etc/millrace/client.toml";

const OPENSSL_TEMPLATE: &str = include_str!("../../templates/openssl.cnf");
const CLIENT_TEMPLATE: &str = include_str!("../../templates/client.toml");

/// Maximum number of descriptors per connection: the client's, that of a waiting handshake (closed with the
/// connection), and the upstream's.
pub(super) const FILES_PER_CONNECTION: u32 = 3;

/// Further descriptors of a process: listeners, logs, libraries, the connection to the pool.
pub(super) const FILES_BESIDES: u32 = 256;

/// A complete `openssl.cnf`.
pub(super) fn openssl_cnf(settings: &Settings) -> PlannedFile {
    let mut lines = String::new();
    for (key, value) in provider_keys(settings) {
        let _ = writeln!(lines, "{key} = {value}");
    }
    let body = OPENSSL_TEMPLATE
        .replace("{plain}", if settings.plain_keys { "" } else { "#" })
        .replace("{module}", &settings.module.display().to_string())
        .replace("{pool}", &settings.nodes.join(","))
        .replace("{settings}\n", &format!("{lines}\n"));
    PlannedFile::new(OPENSSL_CNF, &body, "puts the provider under OpenSSL")
}

/// The same settings for applications that create a separate library context.
pub(super) fn client_toml(settings: &Settings) -> PlannedFile {
    let quoted: Vec<String> = settings
        .nodes
        .iter()
        .map(|node| format!("\"{node}\""))
        .collect();
    let mut lines = String::new();
    for (key, value) in provider_keys(settings) {
        let _ = writeln!(lines, "{key} = \"{value}\"");
    }
    let body = CLIENT_TEMPLATE
        .replace("{pool}", &quoted.join(", "))
        .replace("{settings}\n", &lines);
    PlannedFile::new(CLIENT_TOML, &body, "for where there is no OPENSSL_CONF")
}

/// The keys of the provider that differ from their defaults, without `pool`.
fn provider_keys(settings: &Settings) -> Vec<(&'static str, String)> {
    let mut keys = Vec::new();
    if let Some(folder) = &settings.certificates {
        for (key, file) in [("tls_ca", "ca"), ("tls_cert", "cert"), ("tls_key", "key")] {
            keys.push((key, format!("{}/{file}.pem", folder.display())));
        }
    }
    match settings.mode {
        Mode::Async => {}
        Mode::Sync => keys.push(("mode", "sync".to_owned())),
        Mode::Off => keys.push(("mode", "off".to_owned())),
    }
    keys.extend(settings.provider.iter().cloned());
    keys
}

/// The systemd drop-in that passes the configuration to a service.
pub(super) fn drop_in(unit: &str, settings: &Settings, lines: &str) -> PlannedFile {
    let socket = if settings.sockets().next().is_some() {
        "# The service's user must be allowed to connect to the node's socket:\n\
         # `millrace up --socket-group GROUP`, or --socket-mode 0666.\n"
    } else {
        ""
    };
    let body = format!("[Service]\n{socket}Environment=OPENSSL_CONF={OPENSSL_CNF}\n{lines}");
    PlannedFile::new(
        format!("/etc/systemd/system/{unit}.service.d/millrace.conf"),
        &body,
        "hands the configuration to the service",
    )
}

/// Lines of a drop-in that make the node's sockets visible to a service in the chroot `root`.
pub(super) fn binds_for_chroot(settings: &Settings, root: &str) -> String {
    let mut lines = String::new();
    for folder in settings.sockets().filter_map(Path::parent) {
        let folder = folder.display();
        let _ = write!(
            lines,
            "# Debian's configuration has `chroot {root}`, and the provider connects after\n\
             # that. (Without chroot the line does no harm.)\n\
             BindPaths={folder}:{root}{folder}\n"
        );
    }
    lines
}

/// The commands that write a stub to the path of the server's key; none for plain keys.
pub(super) fn stub(settings: &Settings, path: &str, user: &str) -> Vec<Step> {
    if settings.plain_keys {
        return Vec::new();
    }
    let Settings { key, .. } = settings;
    vec![
        Step {
            command: format!("millrace key stub {key} -o {path}"),
            why: "the stub names the pool's key and holds no secret; write it where the node is",
        },
        Step {
            command: format!("millrace key policy {key} --allow-uid {user}"),
            why: "lets the server's user use the key (over TCP: --allow-cert)",
        },
    ]
}

/// The commands that make a service use the new files.
pub(super) fn restart(unit: &str) -> Vec<Step> {
    vec![Step {
        command: format!("systemctl daemon-reload && systemctl restart {unit}"),
        why: "a service takes its environment at a start, not at a reload",
    }]
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
