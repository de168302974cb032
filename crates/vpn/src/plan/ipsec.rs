// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The parts of a plan for an IPsec link: two files, the folder that swanctl reads credentials from, and one member,
//! the daemon. Routes are the daemon's: it adds one for each network when the connection stands.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use millrace_hostfs::generated::PlannedFile;

use super::{
    Folders, GENERATOR, LinkAction, LinkMember, LinkStep, MemberEngine, PacketSizes, text,
    with_openssl,
};
use crate::host::{FILES, Host, REVOCATIONS};
use crate::ipsec::{USER_DEVICE, swanctl};
use crate::link::{DataPath, IpsecSettings, Side, VpnLink};

/// Files and member of one end.
pub(super) fn plan(
    link: &VpnLink,
    settings: &IpsecSettings,
    side: Side,
    host: &Host,
    folders: &Folders,
    sizes: PacketSizes,
) -> (Vec<PlannedFile>, Vec<LinkMember>, Vec<LinkStep>) {
    let run = folders.run_of(&link.name);
    let state = folders.state_of(&link.name);
    let config = state.join("0.conf");
    let running_config = run.join("0.conf");
    let daemon_config = state.join("strongswan.conf");
    let socket = run.join("0.sock");
    let log = run.join("0.log");
    let pid_file = run.join("0.pid");
    let environment = format!("STRONGSWAN_CONF={}", text(&daemon_config));
    let load = format!(
        "swanctl --load-all --noprompt --uri unix://{} --file {}",
        text(&socket),
        text(&running_config)
    );
    let daemon = swanctl::daemon(settings, sizes, &socket, &log, &load);
    let mut connections = swanctl::connections(link, settings, side);
    // A changed file is how the supervisor finds out that the daemon has to restart.
    let _ = writeln!(connections, "# The daemon of this connection:");
    let variable = link.end(side).openssl_variable();
    for line in daemon.lines().chain(variable.as_deref()) {
        let _ = writeln!(connections, "# {line}");
    }
    let files = vec![
        GENERATOR.file(&config, &connections, "the connection"),
        GENERATOR.file(&daemon_config, &daemon, "the daemon"),
    ];
    let start = format!(
        "{environment} setsid charon-systemd </dev/null >{} 2>&1 & echo $! >{}",
        text(&run.join("0.out")),
        text(&pid_file)
    );
    let member = LinkMember {
        number: 0,
        engine: MemberEngine::Charon,
        device: match settings.data_path {
            DataPath::User => USER_DEVICE.to_owned(),
            DataPath::Kernel => "lo".to_owned(),
        },
        processor: host.place(1).first().copied().unwrap_or(0),
        node: None,
        local: link.end(side).inner,
        peer: link.end(side.other()).inner,
        config,
        running_config,
        command: with_openssl(link.end(side), &["sh", "-c", &start]),
        reload: Some(reload(&environment, &load)),
        pid_file,
        socket,
        log,
        device_actions: Vec::new(),
    };
    (files, vec![member], steps(link, side, &run))
}

/// Loads a changed connection into the running daemon: what is connected stays until its keys change.
fn reload(environment: &str, load: &str) -> Vec<String> {
    let mut words = vec!["env".to_owned(), environment.to_owned()];
    words.extend(load.split(' ').map(str::to_owned));
    words
}

/// The folders from which swanctl reads credentials, beside the file with the connection: names of the end's own files.
fn steps(link: &VpnLink, side: Side, run: &Path) -> Vec<LinkStep> {
    let end = link.end(side);
    let folders: [PathBuf; 4] = ["x509ca", "x509", "private", "x509crl"].map(|name| run.join(name));
    let why = "the folders that swanctl reads credentials from";
    let step = |action| LinkStep { why: why.to_owned(), action, unless_exists: None, undo: None };
    let paths: Vec<String> = folders.iter().map(|folder| text(folder)).collect();
    let make: Vec<&str> =
        ["mkdir", "-p"].into_iter().chain(paths.iter().map(String::as_str)).collect();
    let mut steps = vec![step(LinkAction::run(&make))];
    for (name, folder) in FILES.into_iter().chain([REVOCATIONS]).zip(&folders) {
        let from = text(&end.certificates.join(name));
        let to = text(&folder.join(name));
        steps.push(step(LinkAction::run(&["ln", "-sfn", &from, &to])));
    }
    steps
}
