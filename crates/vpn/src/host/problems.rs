// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Problems of a link on a host, and notes that prevent nothing.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Certificate, Host, REVOCATIONS, Revocations, needed};
use crate::ipsec::USER_DEVICE;
use crate::link::{DataPath, IpsecSettings, LinkEngine, LinkProblem, Side, VpnLink};
use crate::mtu::bridged_sizes;

/// The oldest OpenVPN whose ends agree on a data cipher without a server for many clients.
const MIN_OPENVPN: (u32, u32) = (2, 6);

/// The oldest strongSwan with per-CPU SAs.
const MIN_STRONGSWAN_PER_CPU: (u32, u32, u32) = (6, 0, 2);

/// The oldest Linux with per-CPU SAs.
const MIN_LINUX_PER_CPU: (u32, u32) = (6, 13);

/// Warning time before the end of a certificate's validity, seconds: a week for the renewal.
const EXPIRY_WARNING: u64 = 7 * 86_400;

/// The command that names the process which holds a TUN or TAP device.
pub(crate) fn holder_query(device: &str) -> String {
    format!("`grep -ls 'iff:.*{device}$' /proc/[0-9]*/fdinfo/*` names it")
}

impl Host {
    /// Problems of a link on this host. `ours` are devices that an earlier run created.
    #[must_use]
    pub fn problems(&self, link: &VpnLink, side: Side, ours: &[String]) -> Vec<LinkProblem> {
        let mut problems = self.unable(link);
        let at = |line: Option<usize>, what: String, remedy: String| LinkProblem {
            line,
            ..LinkProblem::of_host(what, remedy)
        };
        let end = link.end(side);
        let index = side.index();
        if let Some(addresses) = &self.addresses
            && !addresses.contains(&end.address)
        {
            problems.push(at(
                link.lines.address[index],
                format!(
                    "no device of this host has the address {} of end {}",
                    end.address,
                    side.name()
                ),
                "correct the address, or name the other end with --end".to_owned(),
            ));
        }
        if let Some(device) = &end.device
            && !self.devices.contains(device)
        {
            problems.push(at(
                link.lines.device[index],
                format!("there is no network device {device}"),
                format!("use one of {}", self.devices.join(", ")),
            ));
        }
        let devices: Vec<String> = match &link.engine {
            LinkEngine::OpenVpn(_) => {
                let bond = link.bond().map(|_| link.name.clone());
                (0..link.members).map(|member| link.device(member)).chain(bond).collect()
            }
            LinkEngine::Ipsec(settings) => match settings.data_path {
                DataPath::User => vec![USER_DEVICE.to_owned()],
                DataPath::Kernel => Vec::new(),
            },
        };
        let kind = if link.bond().is_some() { "tap" } else { "tun" };
        for device in devices.iter().filter(|device| self.devices.contains(*device)) {
            let tun = self.tuns.iter().find(|tun| tun.name == *device);
            // Its name and kind say whose a device is that a killed process left.
            let is_left = tun.is_some_and(|tun| tun.is_left() && tun.kind == kind);
            if ours.contains(device) || is_left {
                continue;
            }
            let (why, remedy) = if tun.is_some_and(|tun| tun.in_use) {
                // Without its device the process would run on, and spin.
                let remedy = format!("end that process: {}", holder_query(device));
                ("a process that is not of this link holds it", remedy)
            } else {
                let remedy = format!("remove it: ip link delete {device}");
                ("this link did not create it", remedy)
            };
            problems.push(at(
                link.lines.name,
                format!("the device {device} exists, and {why}"),
                format!("choose another name, or {remedy}"),
            ));
        }
        if let (Some(wanted), Some((receive, send))) =
            (link.socket_buffer_bytes, self.socket_buffers)
            && u64::from(wanted) > receive.min(send)
        {
            problems.push(at(
                link.lines.socket_buffer,
                format!("the kernel caps socket buffers at {} bytes", receive.min(send)),
                format!("sysctl -w net.core.rmem_max={wanted} net.core.wmem_max={wanted}"),
            ));
        }
        problems.extend(self.bridge_problem(link, side));
        problems.extend(self.certificate_problems(link, side));
        problems
    }

    /// The problem of the bridge that the bond becomes a port of.
    fn bridge_problem(&self, link: &VpnLink, side: Side) -> Option<LinkProblem> {
        let bridge = link.end(side).bridge.as_ref()?;
        let settings = link.bond()?;
        let problem = |line, what: String, remedy: String| LinkProblem {
            line,
            ..LinkProblem::of_host(what, remedy)
        };
        let line = link.lines.bridge[side.index()];
        let Some((_, mtu)) = self.bridges.iter().find(|(name, _)| name == bridge) else {
            let remedy = format!("ip link add dev {bridge} type bridge, or name another device");
            return Some(problem(line, format!("there is no bridge {bridge}"), remedy));
        };
        let fits = bridged_sizes(link.path_mtu, link.end(side).address, settings.mtu).tunnel;
        // A bridge sends no message about a packet that is too long: the packet is lost.
        (*mtu > u32::from(fits)).then(|| {
            problem(
                link.lines.bond.or(line),
                format!(
                    "hosts behind {bridge} send packets of {mtu} bytes, and the bond carries {fits}"
                ),
                format!(
                    "write mtu = {mtu} in [bond]: OpenVPN then sends long packets in fragments"
                ),
            )
        })
    }

    /// Requirements of the link's engine that this host does not meet, whatever the ends are.
    #[must_use]
    pub fn unable(&self, link: &VpnLink) -> Vec<LinkProblem> {
        let mut problems = self.missing(link);
        if link.carries_v6() && link.is_multipath() && !self.has_multipath6 {
            problems.push(LinkProblem::of_host(
                "the kernel has no IPv6, or no multipath routes of it",
                self.loading(
                    &["ipv6"],
                    "load the module ipv6, or leave inner6 and networks of IPv6 out",
                ),
            ));
        }
        if link.bond().is_some() && !self.has_bonding {
            problems.push(LinkProblem {
                line: link.lines.mode,
                ..LinkProblem::of_host(
                    "the kernel has no bonding",
                    self.loading(
                        &["bonding"],
                        "modprobe bonding, or use a kernel with CONFIG_BONDING; without it write mode = \"routed\"",
                    ),
                )
            });
        }
        match &link.engine {
            LinkEngine::Ipsec(settings) => problems.extend(self.ipsec_problems(link, settings)),
            LinkEngine::OpenVpn(DataPath::Kernel) if self.dco().is_none() => {
                let (found, needed) = match self.openvpn {
                    Some(version) if version >= (2, 7) => ("ovpn", "Linux 6.16 or later"),
                    _ => ("ovpn-dco", "OpenVPN 2.7 with Linux 6.16 or later, or the module"),
                };
                problems.push(LinkProblem {
                    line: link.lines.data_path.or(link.lines.engine),
                    ..LinkProblem::of_host(
                        format!("the kernel has no {found}, which encrypts for OpenVPN"),
                        self.loading(
                            &["ovpn", "ovpn_dco_v2"],
                            &format!("use {needed}, or leave data-path out"),
                        ),
                    )
                });
            }
            LinkEngine::OpenVpn(_) => {}
        }
        problems
    }

    /// `remedy`, which loads a module, after the line of this machine that keeps one of these modules out, if there is
    /// one: it may close a published hole.
    fn loading(&self, modules: &[&str], remedy: &str) -> String {
        let mut lines = self.blocked.iter().filter(|line| modules.contains(&line.module.as_str()));
        match lines.next() {
            Some(line) => format!(
                "a line keeps the module out, as mitigations of published holes do ({}): read why before you remove it; \
                 otherwise: {remedy}",
                line.by
            ),
            None => remedy.to_owned(),
        }
    }

    fn ipsec_problems(&self, link: &VpnLink, settings: &IpsecSettings) -> Vec<LinkProblem> {
        let mut problems = Vec::new();
        let mut add = |wrong: bool, what: String, remedy: &str| {
            if wrong {
                problems.push(LinkProblem {
                    line: link.lines.ipsec,
                    ..LinkProblem::of_host(what, remedy)
                });
            }
        };
        match settings.data_path {
            DataPath::Kernel => add(
                self.has_esp == Some(false),
                "the kernel has no ESP".to_owned(),
                &self.loading(
                    &["esp4"],
                    "with the fix of CVE-2026-43284 (Linux 6.1.171, 6.6.138, 6.12.87, 6.18.28, 7.0.5): modprobe esp4; \
                     otherwise write data-path = \"user\"",
                ),
            ),
            DataPath::User => add(
                !self.has_user_esp,
                "strongSwan has no kernel-libipsec".to_owned(),
                "apt-get install libcharon-extra-plugins, or write data-path = \"kernel\"",
            ),
        }
        if let Some(version) = self.strongswan.filter(|_| settings.per_cpu) {
            let (major, minor, patch) = version;
            add(
                version < MIN_STRONGSWAN_PER_CPU,
                format!("strongSwan {major}.{minor}.{patch} has no per-CPU SAs"),
                "install 6.0.2 or later with Linux 6.13 or later, or remove per-cpu-sas",
            );
        }
        if let Some((major, minor)) = release(&self.kernel).filter(|_| settings.per_cpu) {
            add(
                (major, minor) < MIN_LINUX_PER_CPU,
                format!("Linux {major}.{minor} has no per-CPU SAs"),
                "use Linux 6.13 or later, or remove per-cpu-sas",
            );
        }
        problems
    }

    /// Problems of a host that lacks something for the link: root, programs, devices of the kernel.
    fn missing(&self, link: &VpnLink) -> Vec<LinkProblem> {
        let engine = &link.engine;
        let mut problems = Vec::new();
        let mut host = |wrong: bool, what: String, remedy: &str| {
            if wrong {
                problems.push(LinkProblem::of_host(what, remedy));
            }
        };
        host(!self.is_root, "network devices need root".to_owned(), "run the command as root");
        for (program, package) in needed(engine) {
            let found = self.programs.iter().any(|(name, _)| name == program);
            host(
                !found,
                format!("{program} is not installed"),
                &format!("apt-get install {package}"),
            );
        }
        let is_openvpn = matches!(engine, LinkEngine::OpenVpn(_));
        if let Some((major, minor)) = self.openvpn.filter(|_| is_openvpn) {
            let what = format!("OpenVPN {major}.{minor} is too old");
            let remedy = format!("install OpenVPN {}.{} or later", MIN_OPENVPN.0, MIN_OPENVPN.1);
            host((major, minor) < MIN_OPENVPN, what, &remedy);
        }
        let takes_tun = match engine {
            LinkEngine::OpenVpn(path) => *path == DataPath::User,
            LinkEngine::Ipsec(settings) => settings.data_path == DataPath::User,
        };
        host(
            !self.has_tun && takes_tun,
            "there is no /dev/net/tun".to_owned(),
            &self.loading(
                &["tun"],
                "modprobe tun; in a container pass the device in (--device /dev/net/tun)",
            ),
        );
        host(
            !self.has_multipath && link.is_multipath(),
            "the kernel has no multipath routes".to_owned(),
            "use a kernel with CONFIG_IP_ROUTE_MULTIPATH, as those of all distributions",
        );
        host(
            self.processors.is_empty(),
            "/proc/self/status lists no processors".to_owned(),
            "mount /proc",
        );
        problems
    }

    /// Certificates of this end that cannot be read, are not valid now, or have another name.
    fn certificate_problems(&self, link: &VpnLink, side: Side) -> Vec<LinkProblem> {
        let remedy = "`millrace vpn keys LINK.TOML -o DIR` makes the files of both ends";
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        let own = &link.end(side).certificate_name;
        let wrong = |(path, found): &(PathBuf, Certificate)| {
            let what = match found {
                Certificate::Unreadable(why) => why.clone(),
                Certificate::Certificate { until, .. } if *until < now => {
                    format!("expired {} days ago", (now - until) / 86_400)
                }
                Certificate::Certificate { from, .. } if *from > now => {
                    let hours = (from - now) / 3600 + 1;
                    format!("is valid only in {hours} hours: is the clock of this host right?")
                }
                Certificate::Certificate { name, .. }
                    if path.ends_with("cert.pem") && name != own =>
                {
                    format!("is for {name:?}, not for {own:?}")
                }
                Certificate::Certificate { .. } | Certificate::Key | Certificate::Stub => {
                    return None;
                }
            };
            Some(LinkProblem {
                line: link.lines.certificates[side.index()],
                ..LinkProblem::of_host(format!("{}: {what}", path.display()), remedy)
            })
        };
        let mut problems: Vec<LinkProblem> = self.certificates.iter().filter_map(wrong).collect();
        let end = link.end(side);
        problems.extend(end.openssl_config.iter().zip(&self.openssl_config_error).map(
            |(path, why)| LinkProblem {
                line: link.lines.openssl_config[side.index()],
                ..LinkProblem::of_host(
                    format!("{}: {why}", path.display()),
                    "write it with `millrace gateway openssl`, or remove openssl-config",
                )
            },
        ));
        let what = match &self.revocations {
            Some(Revocations::Unreadable(why)) => Some(why.clone()),
            Some(Revocations::List { until: Some(until) }) if *until < now => {
                Some("its time is over, and OpenVPN refuses every peer".to_owned())
            }
            Some(Revocations::List { .. }) | None => None,
        };
        let list = link.end(side).certificates.join(REVOCATIONS);
        problems.extend(what.map(|what| LinkProblem {
            line: link.lines.certificates[side.index()],
            ..LinkProblem::of_host(
                format!("{}: {what}", list.display()),
                "put the authority's present list there, or remove the file",
            )
        }));
        problems
    }

    /// Notes for the user, in words: none of them prevents the link.
    #[must_use]
    pub fn notes(&self, link: &VpnLink, side: Side) -> Vec<String> {
        let mut notes = Vec::new();
        let is_openvpn = link.is_openvpn();
        if !is_openvpn && self.has_esp.is_none() {
            notes.push("whether the kernel has ESP cannot be seen here".to_owned());
        }
        notes.extend(link.bond().map(|settings| settings.spread.trade_off().to_owned()));
        let cores = self.cores.len();
        if usize::from(link.members) > cores {
            notes.push(format!(
                "{} members share {cores} cores: more members than cores make nothing faster",
                link.members
            ));
        }
        if is_openvpn && link.end(side).device.is_none() {
            notes.push(format!(
                "ends.{}.device is not set: members are placed without regard to NUMA nodes and interrupts",
                side.name()
            ));
        }
        let has_stub = self.certificates.iter().any(|(_, found)| *found == Certificate::Stub);
        if has_stub && link.end(side).openssl_config.is_none() {
            notes.push(format!(
                "key.pem is a stub of a key in the pool, and without ends.{}.openssl-config only the system's \
                 OpenSSL configuration can load the provider",
                side.name()
            ));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        for (path, found) in &self.certificates {
            if let Certificate::Certificate { until, .. } = found {
                let left = u64::try_from(*until).unwrap_or(0).saturating_sub(now);
                if left < EXPIRY_WARNING {
                    notes.push(format!("{} expires in {} hours", path.display(), left / 3600));
                }
            }
        }
        notes
    }
}

/// Major and minor version of a kernel's release: `6.18.5-amd64`.
fn release(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}
