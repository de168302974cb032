// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The configuration of one OpenVPN process.

use std::fmt::Write as _;

use super::{LinkMember, PacketSizes};
use crate::host::{FILES, REVOCATIONS};
use crate::link::{DataPath, LinkEngine, Side, VpnLink};

/// Seconds between OpenVPN's own keep-alive packets, and without one before it reconnects. The supervisor
/// notices a silent peer earlier; this is for a link without a supervisor.
const KEEP_ALIVE: (u32, u32) = (1, 10);

/// Seconds between attempts to connect: first, and at most.
const RETRY: (u32, u32) = (1, 4);

/// The text, without the first line that marks it as generated.
pub(super) fn config(
    link: &VpnLink,
    side: Side,
    member: &LinkMember,
    sizes: PacketSizes,
    has_revocations: bool,
) -> String {
    let end = link.end(side);
    let peer = link.end(side.other());
    let family = if end.address.is_ipv4() { "udp4" } else { "udp6" };
    let port = link.port + member.number;
    let (role, peer_usage) = match side {
        Side::A => ("tls-server\ndh none", "client"),
        Side::B => ("tls-client", "server"),
    };
    let [ca, certificate, key] = FILES.map(|name| end.certificates.join(name));
    let mut text = format!(
        "# {command}\n\
         dev {device}\ndev-type {kind}\n{user_path}ifconfig-noexec\nroute-noexec\n\
         proto {family}\nlocal {local}\nlport {port}\nremote {remote}\nrport {port}\n\
         {role}\nremote-cert-tls {peer_usage}\nverify-x509-name \"{peer_name}\" name\n\
         ca {ca}\ncert {certificate}\nkey {key}\n\
         tls-version-min 1.3\ndata-ciphers {cipher}\n\
         tun-mtu {mtu}\nmssfix {segment} fixed\n",
        command = member.command.join(" "),
        device = member.device,
        kind = if link.bond().is_some() { "tap" } else { "tun" },
        user_path = match link.engine {
            LinkEngine::OpenVpn(DataPath::Kernel) => "",
            LinkEngine::OpenVpn(DataPath::User) | LinkEngine::Ipsec(_) => "disable-dco\n",
        },
        local = end.address,
        remote = peer.address,
        peer_name = peer.certificate_name,
        ca = ca.display(),
        certificate = certificate.display(),
        key = key.display(),
        cipher = link.cipher.name(),
        mtu = sizes.tunnel,
        segment = sizes.segment,
    );
    if let Some(bytes) = sizes.fragment {
        let _ = writeln!(text, "fragment {bytes} mtu");
    }
    if has_revocations {
        // OpenVPN reads it again at each handshake.
        let _ = writeln!(text, "crl-verify {}", end.certificates.join(REVOCATIONS).display());
    }
    if let Some(bytes) = link.socket_buffer_bytes {
        let _ = writeln!(text, "sndbuf {bytes}\nrcvbuf {bytes}");
    }
    let _ = write!(
        text,
        "ping {}\nping-restart {}\nconnect-retry {} {}\nexplicit-exit-notify 1\n\
         persist-tun\npersist-key\nuser {}\ngroup {}\n\
         management {} unix\nmanagement-client-user root\n\
         writepid {}\nlog {}\nverb 2\ndaemon {}\n",
        KEEP_ALIVE.0,
        KEEP_ALIVE.1,
        RETRY.0,
        RETRY.1,
        link.user,
        link.group,
        member.socket.display(),
        member.pid_file.display(),
        member.log.display(),
        member.device,
    );
    text
}
