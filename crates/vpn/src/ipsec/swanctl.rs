// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! strongSwan's configuration of one end: `swanctl.conf` has the connection, `strongswan.conf` the daemon.

use std::fmt::{Display, Write as _};
use std::path::Path;

use crate::link::{DataPath, IpsecSettings, Side, VpnLink};
use crate::mtu::PacketSizes;

/// Seconds of silence after which the peer is asked for a sign of life, and the time of the whole connection's end
/// follows from the retransmissions below.
const DPD_DELAY_S: u32 = 2;

/// Retransmissions of IKE: the first after this time in seconds, later ones at an interval that grows by this factor,
/// and their number. The peer is given up and reconnected after 1.5 + 2.1 + 2.9 + 4.1 = 11 s; the default takes
/// 165 s.
const RETRANSMIT: (&str, &str, u32) = ("1.5", "1.4", 3);

fn list(items: &[impl Display]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    items.join(", ")
}

/// `swanctl.conf` of one end, without the first line that marks it as generated.
///
/// A connection that the other end closes is not opened again by the daemon (`close_action`): both ends begin one, and
/// with `unique` each of two that stand would call for the next. The supervisor connects an idle daemon.
#[must_use]
pub fn connections(link: &VpnLink, settings: &IpsecSettings, side: Side) -> String {
    let own = link.end(side);
    let peer = link.end(side.other());
    let selectors = |side: Side| list(&link.selectors(side));
    let start = if settings.per_cpu { "trap" } else { "start" };
    let (encapsulation, per_cpu) = match (settings.data_path, settings.per_cpu) {
        (DataPath::User, _) => ("yes", ""),
        (DataPath::Kernel, true) => ("yes", "        per_cpu_sas = encap\n"),
        (DataPath::Kernel, false) => ("no", ""),
    };
    format!(
        "connections {{\n  {name} {{\n    version = 2\n    local_addrs = {own_address}\n    \
         remote_addrs = {peer_address}\n    proposals = {ike}\n    mobike = no\n    encap = {encapsulation}\n    \
         dpd_delay = {DPD_DELAY_S}s\n    keyingtries = 0\n    rekey_time = {ike_rekey}s\n    unique = replace\n    \
         local {{\n      auth = pubkey\n      certs = cert.pem\n      id = \"CN={own_name}\"\n    }}\n    \
         remote {{\n      auth = pubkey\n      cacerts = ca.pem\n      id = \"CN={peer_name}\"\n    }}\n    \
         children {{\n      {name} {{\n        local_ts = {local}\n        remote_ts = {remote}\n        \
         esp_proposals = {esp}\n        rekey_time = {esp_rekey}s\n        replay_window = {window}\n{per_cpu}        \
         start_action = {start}\n        dpd_action = restart\n      }}\n    }}\n  \
         }}\n}}\n",
        name = link.name,
        own_address = own.address,
        peer_address = peer.address,
        ike = list(&settings.ike),
        ike_rekey = settings.ike_rekey_s,
        own_name = own.certificate_name,
        peer_name = peer.certificate_name,
        local = selectors(side),
        remote = selectors(side.other()),
        esp = list(&settings.esp),
        esp_rekey = settings.esp_rekey_s,
        window = settings.replay_window,
    )
}

/// Plugins of a daemon: what a link needs and nothing else. `openssl` comes first, so that keys and ciphers of its
/// providers win.
const PLUGINS: &str = "openssl random nonce pem pkcs1 pkcs8 x509 revocation constraints pubkey kdf hmac \
                       sha2 socket-default vici kernel-netlink";

/// Plugins of swanctl, which reads certificates and keys before it hands them over.
const LOADER_PLUGINS: &str = "openssl random nonce pem pkcs1 pkcs8 x509 pubkey";

/// `strongswan.conf` of one end: a daemon with a socket and logs of its own.
#[must_use]
pub fn daemon(
    settings: &IpsecSettings,
    sizes: PacketSizes,
    socket: &Path,
    log: &Path,
    load: &str,
) -> String {
    let (timeout, base, tries) = RETRANSMIT;
    let plugins = match settings.data_path {
        DataPath::Kernel => PLUGINS.to_owned(),
        // It takes the place of the kernel's ESP, and kernel-netlink keeps routes and addresses.
        DataPath::User => PLUGINS.replace("kernel-netlink", "kernel-libipsec kernel-netlink"),
    };
    let mut text = format!(
        "charon-systemd {{\n  load = {plugins}\n  retransmit_timeout = {timeout}\n  retransmit_base = {base}\n  \
         retransmit_tries = {tries}\n  retry_initiate_interval = 2s\n  install_virtual_ip = no\n  \
         start-scripts {{\n    load = {load}\n  }}\n  journal {{\n    default = -1\n  }}\n  \
         filelog {{\n    link {{\n      path = {log}\n      append = no\n      flush_line = yes\n      default = 1\n      \
         time_format = %Y-%m-%dT%H:%M:%S\n    }}\n  }}\n  plugins {{\n    vici {{\n      socket = unix://{socket}\n    \
         }}\n    kernel-netlink {{\n      mtu = {mtu}\n      mss = {mss}\n    }}\n",
        log = log.display(),
        socket = socket.display(),
        mtu = sizes.tunnel,
        mss = sizes.segment,
    );
    if settings.data_path == DataPath::User {
        // The peer's own address is not part of a link's networks.
        text.push_str("    kernel-libipsec {\n      allow_peer_ts = no\n    }\n");
    }
    let _ = write!(text, "  }}\n}}\nswanctl {{\n  load = {LOADER_PLUGINS}\n}}\n");
    text
}
