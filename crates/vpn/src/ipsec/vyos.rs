// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! VyOS: `set vpn ipsec ...` commands of a site-to-site peer become a link.toml, and a link becomes such commands.
//!
//! The import takes over what both know, names what it leaves out, and refuses what a link cannot be. It never shows
//! a shared secret.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use millrace_hostfs::environment::words;
use schemars::JsonSchema;
use serde::Serialize;

use crate::link::{IpsecSettings, LinkNetwork, LinkProblem, LinkProblems, Side, VpnLink};
use crate::proposal::{EspProposal, IkeGroup, IkeProposal, IpsecCipher, IpsecHash, ProposalError};

/// Bound on the commands, in bytes: a configuration with a thousand peers.
const MAX_TEXT: usize = 4 << 20;

/// Treatment of a VyOS setting at the import.
#[derive(Clone, Copy)]
enum Fate {
    /// The setting becomes part of the link.
    Taken,
    /// The setting is left out, for this reason.
    Left(&'static str),
    /// The setting is refused, for this reason: a link cannot have it.
    Refused(&'static str),
}

use Fate::{Left, Refused, Taken};

/// Settings below `vpn ipsec`; `*` is any word, `**` the rest of the line. The first row that fits counts.
#[rustfmt::skip]
const SETTINGS: &[(&str, Fate)] = &[
    ("interface *", Left("strongSwan listens on each address of the host")),
    // Up to VyOS 1.3.
    ("ipsec-interfaces interface *", Left("strongSwan listens on each address of the host")),
    ("nat-traversal *", Left("strongSwan finds a NAT by itself")),
    ("nat-networks **", Left("the networks of a link are those of its ends")),
    ("auto-update *", Left("the addresses of both ends are fixed")),
    ("include-ipsec-conf *", Left("the daemon of a link has settings of its own")),
    ("include-ipsec-secrets *", Left("the daemon of a link has settings of its own")),
    ("logging **", Left("the log is in the link's run folder")),
    ("site-to-site peer * tunnel * allow-nat-networks *", Left("the networks of a link are those of its ends")),
    ("site-to-site peer * tunnel * allow-public-networks *", Left("the networks of a link are those of its ends")),
    ("site-to-site peer * force-encapsulation *", Left("strongSwan finds a NAT by itself")),
    ("uniqreqids *", Left("the daemon of a link has one peer")),
    ("ike-group * proposal * encryption *", Taken),
    ("ike-group * proposal * hash *", Taken),
    ("ike-group * proposal * prf *", Taken),
    ("ike-group * proposal * dh-group *", Taken),
    ("ike-group * lifetime *", Taken),
    ("ike-group * key-exchange ikev2", Taken),
    ("ike-group * key-exchange *", Refused("IKEv1 is deprecated (RFC 9395)")),
    ("ike-group * ikev2-reauth **", Left("keys change without a new authentication")),
    ("ike-group * dead-peer-detection **", Left("the supervisor probes the tunnel itself")),
    ("ike-group * close-action *", Left("a closed connection is opened again")),
    ("ike-group * disable-mobike", Left("the addresses of both ends are fixed")),
    ("ike-group * mobike *", Left("the addresses of both ends are fixed")),
    ("ike-group * mode *", Refused("modes belong to IKEv1")),
    ("esp-group * proposal * encryption *", Taken),
    ("esp-group * proposal * hash *", Taken),
    ("esp-group * lifetime *", Taken),
    ("esp-group * pfs *", Taken),
    ("esp-group * mode tunnel", Taken),
    ("esp-group * mode *", Refused("a link joins networks, which takes mode tunnel")),
    ("esp-group * compression **", Left("compression leaks what it compresses")),
    ("esp-group * life-bytes *", Left("keys change by time")),
    ("esp-group * life-packets *", Left("keys change by time")),
    ("esp-group * disable-rekey", Left("keys change by time")),
    ("site-to-site peer * local-address *", Taken),
    ("site-to-site peer * remote-address *", Taken),
    ("site-to-site peer * ike-group *", Taken),
    ("site-to-site peer * default-esp-group *", Taken),
    ("site-to-site peer * tunnel * esp-group *", Taken),
    ("site-to-site peer * tunnel * local prefix *", Taken),
    ("site-to-site peer * tunnel * remote prefix *", Taken),
    ("site-to-site peer * tunnel * protocol *", Refused("a link carries each protocol")),
    ("site-to-site peer * tunnel * local port *", Refused("a link carries each port")),
    ("site-to-site peer * tunnel * remote port *", Refused("a link carries each port")),
    ("site-to-site peer * tunnel * disable", Refused("a link has no disabled part")),
    ("site-to-site peer * tunnel * priority *", Left("a link has one policy")),
    ("site-to-site peer * authentication local-id *", Left("the certificates of `millrace vpn keys` have names of their own")),
    ("site-to-site peer * authentication remote-id *", Left("the certificates of `millrace vpn keys` have names of their own")),
    ("site-to-site peer * authentication mode x509", Taken),
    ("site-to-site peer * authentication mode *", Left("a link authenticates by certificates: `millrace vpn keys` makes them")),
    ("site-to-site peer * authentication x509 **", Left("the certificates are files of the folder `certificates`")),
    ("site-to-site peer * authentication **", Left("a link authenticates by certificates: `millrace vpn keys` makes them")),
    ("site-to-site peer * connection-type *", Left("both ends connect")),
    ("site-to-site peer * description *", Left("a link has a name")),
    ("site-to-site peer * force-udp-encapsulation", Left("strongSwan finds a NAT by itself")),
    ("site-to-site peer * replay-window *", Taken),
    ("site-to-site peer * ikev2-reauth *", Left("keys change without a new authentication")),
    ("site-to-site peer * dhcp-interface *", Refused("the addresses of a link are fixed")),
    ("site-to-site peer * vti **", Refused("a route-based tunnel has no prefixes: write networks into link.toml instead")),
    ("site-to-site peer * disable", Refused("the peer is disabled")),
    ("authentication **", Left("a link authenticates by certificates: `millrace vpn keys` makes them")),
    ("options **", Left("the daemon of a link has settings of its own")),
    ("log **", Left("the log is in the link's run folder")),
    ("disable-uniqreqids", Left("the daemon of a link has one peer")),
];

/// Result of an import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ImportedLink {
    /// A link.toml; this router is end a.
    pub text: String,
    /// Settings that were left out or need attention, in words.
    pub notes: Vec<String>,
}

/// A command with its line.
struct Setting {
    line: usize,
    words: Vec<String>,
}

/// The commands of `vpn ipsec`.
struct Commands {
    settings: Vec<Setting>,
    problems: Vec<LinkProblem>,
}

/// Reads `set vpn ipsec ...` commands, as `show configuration commands` prints them. Without `peer` there must be
/// one peer. The link's name is `name`.
///
/// # Errors
/// Every command that a link cannot have, and what is missing.
pub fn import(text: &str, name: &str, peer: Option<&str>) -> Result<ImportedLink, LinkProblems> {
    if text.len() > MAX_TEXT {
        let what = format!("the commands have more than {MAX_TEXT} bytes");
        return Err(LinkProblems(vec![LinkProblem::of_file(what, "name the right file")]));
    }
    let mut commands = Commands::read(text);
    let Some(peer) = commands.peer(peer) else {
        return Err(commands.failed());
    };
    let notes = commands.judge(&peer);
    let link = commands.link(name, &peer);
    match link {
        Some(text) if commands.problems.is_empty() => {
            let mut notes = notes;
            notes.push("ends.*.inner are the first addresses of the networks: correct them if other hosts have these".to_owned());
            Ok(ImportedLink { text, notes })
        }
        Some(_) | None => Err(commands.failed()),
    }
}

impl Commands {
    fn read(text: &str) -> Self {
        let setting = |(index, line): (usize, &str)| {
            let mut words = words(line.trim());
            let is_ours = words.len() > 3 && words[..3] == ["set", "vpn", "ipsec"];
            is_ours.then(|| Setting { line: index + 1, words: words.split_off(3) })
        };
        Self {
            settings: text.lines().enumerate().filter_map(setting).collect(),
            problems: Vec::new(),
        }
    }

    fn failed(self) -> LinkProblems {
        let mut problems = self.problems;
        problems.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
        if problems.is_empty() {
            problems.push(LinkProblem::of_file(
                "no link can be made of this",
                "see the sample link.toml",
            ));
        }
        LinkProblems(problems)
    }

    /// The peer that becomes the link.
    fn peer(&mut self, asked: Option<&str>) -> Option<String> {
        let mut peers: Vec<&str> = self
            .settings
            .iter()
            .filter(|setting| {
                setting.words.len() > 2 && setting.words[..2] == ["site-to-site", "peer"]
            })
            .map(|setting| setting.words[2].as_str())
            .collect();
        peers.sort_unstable();
        peers.dedup();
        let (what, remedy) = match (asked, &peers[..]) {
            (_, []) => (
                "there is no site-to-site peer".to_owned(),
                "give the output of `show configuration commands | match 'vpn ipsec'`".to_owned(),
            ),
            (None, [only]) => return Some((*only).to_owned()),
            (Some(asked), peers) if peers.contains(&asked) => return Some(asked.to_owned()),
            (None, peers) => (
                format!("there are {} peers", peers.len()),
                format!("choose one with --peer: {}", peers.join(", ")),
            ),
            (Some(asked), peers) => {
                (format!("there is no peer {asked}"), format!("choose one of {}", peers.join(", ")))
            }
        };
        self.problems.push(LinkProblem::of_file(what, remedy));
        None
    }

    /// Values of a setting, with their lines.
    fn values(&self, path: &[&str]) -> Vec<(String, usize)> {
        let fits = |setting: &&Setting| {
            setting.words.len() == path.len() + 1
                && setting.words.iter().zip(path).all(|(word, wanted)| word == wanted)
        };
        let found = self.settings.iter().filter(fits);
        found.filter_map(|setting| Some((setting.words.last()?.clone(), setting.line))).collect()
    }

    /// The last value of a setting: VyOS lets the last one win.
    fn value(&self, path: &[&str]) -> Option<(String, usize)> {
        self.values(path).pop()
    }

    /// Names below a path.
    fn names(&self, path: &[&str]) -> Vec<String> {
        let mut names: Vec<String> = self
            .settings
            .iter()
            .filter(|setting| {
                setting.words.len() > path.len()
                    && setting.words.iter().zip(path).all(|(word, wanted)| word == wanted)
            })
            .map(|setting| setting.words[path.len()].clone())
            .collect();
        // Proposals and tunnels count by number.
        names.sort_by_key(|name| (name.parse::<u32>().unwrap_or(u32::MAX), name.clone()));
        names.dedup();
        names
    }

    /// Whether a command concerns the chosen peer, or each one.
    fn concerns(&self, setting: &Setting, peer: &str) -> bool {
        let group = |kind: &str| {
            let path = ["site-to-site", "peer", peer];
            let named = [
                self.value(&[&path[..], &["ike-group"]].concat()),
                self.value(&[&path[..], &["default-esp-group"]].concat()),
            ];
            let tunnels = self.names(&[&path[..], &["tunnel"]].concat());
            let of_tunnels = tunnels.iter().filter_map(|tunnel| {
                self.value(&["site-to-site", "peer", peer, "tunnel", tunnel, "esp-group"])
            });
            let known: Vec<String> =
                named.into_iter().flatten().chain(of_tunnels).map(|one| one.0).collect();
            setting.words[0] != kind
                || setting.words.get(1).is_some_and(|name| known.contains(name))
        };
        let of_peer = setting.words[0] != "site-to-site"
            || setting.words.get(2).is_some_and(|name| name == peer);
        of_peer && group("ike-group") && group("esp-group")
    }

    /// Looks at each command: refuses what a link cannot have, and returns notes about what is left out.
    fn judge(&mut self, peer: &str) -> Vec<String> {
        let mut notes: BTreeMap<&'static str, Vec<usize>> = BTreeMap::new();
        let mut problems = Vec::new();
        for setting in &self.settings {
            if !self.concerns(setting, peer) {
                continue;
            }
            match SETTINGS.iter().find(|(pattern, _)| fits(pattern, &setting.words)) {
                Some((_, Taken)) => {}
                Some((_, Left(why))) => notes.entry(why).or_default().push(setting.line),
                Some((pattern, Refused(why))) => {
                    problems.push(LinkProblem::at(
                        setting.line,
                        format!("{pattern}: {why}"),
                        "change it, or leave this peer as it is",
                    ));
                }
                None => {
                    // Values may be secrets: only the first words are shown.
                    let shown: Vec<&str> =
                        setting.words.iter().take(2).map(String::as_str).collect();
                    problems.push(LinkProblem::at(
                        setting.line,
                        format!("this setting below {:?} is not known", shown.join(" ")),
                        "remove the line if the link does not need it",
                    ));
                }
            }
        }
        self.problems.extend(problems);
        let note = |(why, lines): (&str, Vec<usize>)| {
            let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
            let noun = if lines.len() == 1 { "line" } else { "lines" };
            format!("{noun} {} left out: {why}", lines.join(", "))
        };
        notes.into_iter().map(note).collect()
    }

    fn missing(&mut self, path: &[&str]) {
        let what = format!("`set vpn ipsec {}` is missing", path.join(" "));
        self.problems.push(LinkProblem::of_file(what, "add it"));
    }

    /// A value that has to be there.
    fn required(&mut self, path: &[&str]) -> Option<(String, usize)> {
        let found = self.value(path);
        if found.is_none() {
            self.missing(path);
        }
        found
    }

    fn number(&mut self, path: &[&str], default: u32) -> u32 {
        let Some((text, line)) = self.value(path) else {
            return default;
        };
        text.parse().unwrap_or_else(|_| {
            self.problems.push(LinkProblem::at(
                line,
                format!("{text:?} is not a number"),
                "correct it",
            ));
            default
        })
    }

    fn link(&mut self, name: &str, peer: &str) -> Option<String> {
        let at = |setting: &'static str| ["site-to-site", "peer", peer, setting];
        let local = self.required(&at("local-address"));
        let remote = match self.value(&at("remote-address")) {
            Some(found) => Some(found),
            // Up to VyOS 1.3 the peer's name is its address.
            None if peer.parse::<IpAddr>().is_ok() => Some((peer.to_owned(), 1)),
            None => self.required(&at("remote-address")),
        };
        let ike_group = self.required(&at("ike-group"))?.0;
        let tunnels = self.names(&at("tunnel"));
        let esp_group = self.esp_group(peer, &tunnels)?;
        let ike = self.ike(&ike_group);
        let esp = self.esp(&esp_group);
        let prefixes = ["local", "remote"].map(|which| self.prefixes(peer, &tunnels, which));
        self.same_families(&prefixes);
        let [ours, theirs]: [Vec<LinkNetwork>; 2] =
            prefixes.map(|all| all.into_iter().map(|one| one.0).collect());
        let ike_rekey = self.number(&["ike-group", &ike_group, "lifetime"], 28_800);
        let esp_rekey = self.number(&["esp-group", &esp_group, "lifetime"], 3600);
        let window = self.number(&at("replay-window"), 32);
        let [local, remote] = [local, remote].map(|found| self.address(found));
        let local = local?;
        let remote = remote?;
        let mut text = format!(
            "# Imported from the peer {peer} of a VyOS router, which is end a.\nname = {name:?}\nengine = \"ipsec\"\nmembers = 1\n\n\
             [ipsec]\nike = {}\nesp = {}\nike-rekey-s = {ike_rekey}\nesp-rekey-s = {esp_rekey}\n",
            strings(&ike),
            strings(&esp),
        );
        if window > 32 {
            let _ = writeln!(text, "replay-window = {window}");
        }
        for (end, address, networks) in [("a", local, &ours), ("b", remote, &theirs)] {
            let first = |v6: bool| {
                let network = networks.iter().find(|network| network.is_v6() == v6)?;
                network.nth(u32::from(network.size() > 2))
            };
            let inner = first(false).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            let _ = write!(text, "\n[ends.{end}]\naddress = \"{address}\"\ninner = \"{inner}\"\n");
            if let Some(inner6) = first(true) {
                let _ = writeln!(text, "inner6 = \"{inner6}\"");
            }
            let _ = writeln!(text, "networks = {}", strings(networks));
        }
        Some(text)
    }

    fn address(&mut self, found: Option<(String, usize)>) -> Option<IpAddr> {
        let (text, line) = found?;
        let address = text.parse().ok();
        if address.is_none() {
            self.problems.push(LinkProblem::at(
                line,
                format!("{text:?} is not an address"),
                "a link has a fixed address at each end: write it here",
            ));
        }
        address
    }

    /// The group that all tunnels of a peer use.
    fn esp_group(&mut self, peer: &str, tunnels: &[String]) -> Option<String> {
        let default = self.value(&["site-to-site", "peer", peer, "default-esp-group"]);
        let mut groups: Vec<(String, usize)> = tunnels
            .iter()
            .filter_map(|tunnel| {
                self.value(&["site-to-site", "peer", peer, "tunnel", tunnel, "esp-group"])
            })
            .collect();
        groups.extend(default);
        groups.sort();
        groups.dedup_by(|a, b| a.0 == b.0);
        match &groups[..] {
            [] => {
                self.missing(&["site-to-site", "peer", peer, "default-esp-group"]);
                None
            }
            [(only, _)] => Some(only.clone()),
            [_, (other, line), ..] => {
                self.problems.push(LinkProblem::at(
                    *line,
                    format!("the tunnels of {peer} use different groups: {other} is a second one"),
                    "a link has one list of proposals: use one esp-group",
                ));
                None
            }
        }
    }

    /// A network of IPv6 at one end needs one at the other: each end has an address of its own in the link.
    fn same_families(&mut self, ends: &[Vec<(LinkNetwork, usize)>; 2]) {
        let v6 = |end: &Vec<(LinkNetwork, usize)>| {
            end.iter().find(|(network, _)| network.is_v6()).copied()
        };
        if let [Some((network, line)), None] | [None, Some((network, line))] =
            ends.each_ref().map(v6)
        {
            self.problems.push(LinkProblem::at(
                line,
                format!("the other end has no network of IPv6 beside {network}"),
                "give both ends one, or remove it",
            ));
        }
    }

    /// The networks of one end, of all tunnels, with their lines.
    fn prefixes(
        &mut self,
        peer: &str,
        tunnels: &[String],
        which: &str,
    ) -> Vec<(LinkNetwork, usize)> {
        let mut networks: Vec<(LinkNetwork, usize)> = Vec::new();
        let mut problems = Vec::new();
        for tunnel in tunnels {
            for (text, line) in
                self.values(&["site-to-site", "peer", peer, "tunnel", tunnel, which, "prefix"])
            {
                match text.parse::<LinkNetwork>() {
                    Ok(network) if networks.iter().any(|one| one.0 == network) => {}
                    Ok(network) => networks.push((network, line)),
                    Err(why) => problems.push(LinkProblem::at(
                        line,
                        why.to_string(),
                        "write a network such as 10.1.0.0/16",
                    )),
                }
            }
        }
        if networks.is_empty() && problems.is_empty() {
            self.missing(&["site-to-site", "peer", peer, "tunnel", "0", which, "prefix"]);
        }
        self.problems.extend(problems);
        networks
    }

    /// A part of a proposal, converted.
    fn part<T>(
        &mut self,
        path: &[&str],
        convert: impl Fn(&str) -> Result<T, ProposalError>,
    ) -> Option<T> {
        let (text, line) = self.value(path)?;
        match convert(&text) {
            Ok(value) => Some(value),
            Err(why) => {
                self.problems.push(LinkProblem::at(
                    line,
                    why.to_string(),
                    "use a modern one: `millrace advise ipsec`",
                ));
                None
            }
        }
    }

    fn ike(&mut self, group: &str) -> Vec<IkeProposal> {
        let mut proposals = Vec::new();
        for number in self.names(&["ike-group", group, "proposal"]) {
            let at = |what: &'static str| ["ike-group", group, "proposal", number.as_str(), what];
            let cipher = self.part(&at("encryption"), IpsecCipher::of_vyos);
            let derived = self.part(&at("prf"), |name| {
                IpsecHash::from_name(name.strip_prefix("prf").unwrap_or(name))
            });
            let hash = derived.or_else(|| self.part(&at("hash"), IpsecHash::from_name));
            let group = self.part(&at("dh-group"), IkeGroup::of_number);
            if let (Some(cipher), Some(hash), Some(group)) = (cipher, hash, group) {
                proposals.push(IkeProposal { cipher, hash, group });
            } else if self.problems.is_empty() {
                self.missing(&[
                    "ike-group",
                    "*",
                    "proposal",
                    &number,
                    "encryption, hash and dh-group",
                ]);
            }
        }
        if proposals.is_empty() && self.problems.is_empty() {
            self.missing(&["ike-group", group, "proposal", "1", "encryption"]);
        }
        proposals
    }

    fn esp(&mut self, group: &str) -> Vec<EspProposal> {
        let pfs = self.value(&["esp-group", group, "pfs"]);
        let pfs = match pfs.as_ref().map(|(text, line)| (text.as_str(), *line)) {
            None | Some(("enable" | "disable", _)) => None,
            Some((text, line)) => {
                let number = text.strip_prefix("dh-group").unwrap_or(text);
                match IkeGroup::of_number(number) {
                    Ok(group) => Some(group),
                    Err(why) => {
                        self.problems.push(LinkProblem::at(
                            line,
                            why.to_string(),
                            "use dh-group 19, 20 or 31",
                        ));
                        None
                    }
                }
            }
        };
        let mut proposals = Vec::new();
        for number in self.names(&["esp-group", group, "proposal"]) {
            let cipher = self.part(
                &["esp-group", group, "proposal", &number, "encryption"],
                IpsecCipher::of_vyos,
            );
            let hash =
                self.part(&["esp-group", group, "proposal", &number, "hash"], IpsecHash::from_name);
            match cipher {
                Some(cipher) if cipher.is_aead() || hash.is_some() => proposals.push(EspProposal {
                    cipher,
                    hash: hash.filter(|_| !cipher.is_aead()),
                    group: pfs,
                }),
                Some(_) | None if self.problems.is_empty() => {
                    self.missing(&["esp-group", group, "proposal", &number, "encryption and hash"]);
                }
                Some(_) | None => {}
            }
        }
        if proposals.is_empty() && self.problems.is_empty() {
            self.missing(&["esp-group", group, "proposal", "1", "encryption"]);
        }
        proposals
    }
}

/// Whether words fit a pattern of [`SETTINGS`].
fn fits(pattern: &str, words: &[String]) -> bool {
    let mut rest = words.iter();
    for part in pattern.split(' ') {
        match (part, rest.next()) {
            ("**", _) => return true,
            (_, None) => return false,
            ("*", Some(_)) => {}
            (part, Some(word)) if part == word => {}
            (_, Some(_)) => return false,
        }
    }
    rest.next().is_none()
}

/// A list of strings in TOML.
fn strings(items: &[impl ToString]) -> String {
    let items: Vec<String> = items.iter().map(|item| format!("{:?}", item.to_string())).collect();
    format!("[{}]", items.join(", "))
}

/// The commands of VyOS for one end of a link, with the commands that bring its certificates in.
#[must_use]
pub fn export(link: &VpnLink, settings: &IpsecSettings, side: Side) -> String {
    let own = link.end(side);
    let peer = link.end(side.other());
    let name = link.name.to_uppercase();
    let mut text = format!(
        "# Link {} of Millrace, end {}. First, in operational mode, with the files of this end:\n\
         #   import pki ca {name}-ca file ca.pem\n#   import pki certificate {name} file cert.pem\n\
         #   import pki certificate {name} key-file key.pem\n# Then, in configuration mode:\n",
        link.name,
        side.name()
    );
    let mut set = |words: &str, value: &str| {
        let _ = if value.is_empty() {
            writeln!(text, "set vpn ipsec {words}")
        } else {
            writeln!(text, "set vpn ipsec {words} '{value}'")
        };
    };
    let seconds = |seconds: u32| seconds.to_string();
    set(&format!("ike-group {name} key-exchange"), "ikev2");
    set(&format!("ike-group {name} lifetime"), &seconds(settings.ike_rekey_s));
    set(&format!("ike-group {name} dead-peer-detection action"), "restart");
    set(&format!("ike-group {name} dead-peer-detection interval"), "2");
    for (index, proposal) in settings.ike.iter().enumerate() {
        let at = format!("ike-group {name} proposal {}", index + 1);
        set(&format!("{at} encryption"), proposal.cipher.vyos());
        set(&format!("{at} hash"), proposal.hash.name());
        set(&format!("{at} dh-group"), proposal.group.number());
    }
    set(&format!("esp-group {name} lifetime"), &seconds(settings.esp_rekey_s));
    set(&format!("esp-group {name} mode"), "tunnel");
    let pfs = settings
        .esp
        .first()
        .and_then(|proposal| proposal.group)
        .map_or_else(|| "disable".to_owned(), |group| format!("dh-group{}", group.number()));
    set(&format!("esp-group {name} pfs"), &pfs);
    for (index, proposal) in settings.esp.iter().enumerate() {
        let at = format!("esp-group {name} proposal {}", index + 1);
        set(&format!("{at} encryption"), proposal.cipher.vyos());
        // VyOS skips a proposal without a hash, also where the cipher needs none.
        let hash = proposal.hash.unwrap_or(IpsecHash::Sha256);
        set(&format!("{at} hash"), hash.name());
    }
    let at = format!("site-to-site peer {name}");
    set(&format!("{at} authentication mode"), "x509");
    set(&format!("{at} authentication local-id"), &format!("CN={}", own.certificate_name));
    set(&format!("{at} authentication remote-id"), &format!("CN={}", peer.certificate_name));
    set(&format!("{at} authentication x509 ca-certificate"), &format!("{name}-ca"));
    set(&format!("{at} authentication x509 certificate"), &name);
    set(&format!("{at} connection-type"), "initiate");
    set(&format!("{at} ike-group"), &name);
    set(&format!("{at} default-esp-group"), &name);
    set(&format!("{at} local-address"), &own.address.to_string());
    set(&format!("{at} remote-address"), &peer.address.to_string());
    if settings.replay_window != 32 {
        set(&format!("{at} replay-window"), &settings.replay_window.to_string());
    }
    for (which, networks) in
        [("local", link.selectors(side)), ("remote", link.selectors(side.other()))]
    {
        for network in networks {
            set(&format!("{at} tunnel 0 {which} prefix"), &network.to_string());
        }
    }
    text
}
