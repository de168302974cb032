// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Everything that brings a link up on one end, as values: files, steps, members and routes. A plan does nothing
//! by itself; the same link on the same host gives the same plan.

mod bond;
mod ipsec;
mod openvpn;

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use millrace_hostfs::generated::{Generator, PlannedFile};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::mtu::{PacketSizes, bridged_sizes, ipsec_sizes, sizes};
pub use bond::Bond;

use crate::choice::EngineChoice;
use crate::host::{CERTIFICATE, Host};
use crate::link::{BondSpread, DataPath, End, LinkEngine, LinkNetwork, LinkProblem, Side, VpnLink};

/// Mark of the link's routes in the kernel's table (`ip route show proto 190`); the number is unassigned.
pub const ROUTE_PROTOCOL: &str = "190";

/// The first line of every file of a plan.
pub(crate) const GENERATOR: Generator = Generator {
    command: "millrace vpn",
    advice: "Edit link.toml instead: `up` leaves an edited file alone.",
};

/// The gateway of IPv6 routes: the kernel refuses several devices without one. A tunnel has no neighbours, so that the
/// address is never looked up, and no end has it.
const GATEWAY6: &str = "fe80::1";

/// Metric of the routes that hold packets back while no member carries them.
const HOLD_BACK_METRIC: &str = "4294967295";

/// The steps for one end of a link.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LinkPlan {
    /// Files that `up` writes, with their contents.
    pub files: Vec<PlannedFile>,
    /// The rest, which is also recorded for later runs.
    #[serde(flatten)]
    pub layout: LinkLayout,
    /// Remarks for the user.
    pub notes: Vec<String>,
    /// The choice that the plan follows; `None` without `engine = "auto"`.
    pub choice: Option<EngineChoice>,
}

/// The devices, processes and routes of one end: what an applied link consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkLayout {
    /// Name of the link.
    pub name: String,
    /// The end that this host is.
    pub side: Side,
    /// MTU of the tunnel devices, in bytes.
    pub tunnel_mtu: u16,
    /// Largest TCP segment through a tunnel, in bytes.
    pub segment: u16,
    /// Steps in their order.
    pub steps: Vec<LinkStep>,
    /// The tunnels, by number.
    pub members: Vec<LinkMember>,
    /// Routes over all healthy members, which the supervisor keeps.
    pub routes: Vec<Route>,
    /// The bond of a bridged link, in which the supervisor keeps all healthy members.
    #[serde(default)]
    pub bond: Option<Bond>,
    /// This end's certificate; records of older versions have none.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
}

/// One change of the system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkStep {
    /// Purpose of the change, for the plan and for errors.
    pub why: String,
    /// The change; doing it twice changes nothing.
    pub action: LinkAction,
    /// The step is left out where this path exists.
    pub unless_exists: Option<PathBuf>,
    /// The action that removes it again.
    pub undo: Option<LinkAction>,
}

/// An action of a step, of its undoing, or after the start of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LinkAction {
    /// Runs a program.
    Run(Vec<String>),
    /// Writes a setting of the kernel.
    Write {
        /// Below /proc/sys.
        path: PathBuf,
        /// The value, without a line end.
        value: String,
    },
}

/// Program of a member's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MemberEngine {
    /// OpenVPN, with its management interface.
    #[default]
    OpenVpn,
    /// strongSwan's daemon, with the vici socket.
    Charon,
}

/// A tunnel of a link: its device, addresses, process and files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkMember {
    /// Its number, from 0.
    pub number: u16,
    /// Its process; records of older versions have OpenVPN only.
    #[serde(default)]
    pub engine: MemberEngine,
    /// Name of its network device.
    pub device: String,
    /// The processor on which its process runs.
    pub processor: usize,
    /// The NUMA node from which its process takes memory first; `None` on a machine with one node.
    #[serde(default)]
    pub node: Option<usize>,
    /// This end's address in the tunnel.
    pub local: Ipv4Addr,
    /// The other end's address in the tunnel.
    pub peer: Ipv4Addr,
    /// The configuration that `up` generates.
    pub config: PathBuf,
    /// The copy of it with which the process was started.
    pub running_config: PathBuf,
    /// Starts the process, which then runs in the background.
    pub command: Vec<String>,
    /// Makes the running process read a changed configuration; `None` for a process that has to restart.
    #[serde(default)]
    pub reload: Option<Vec<String>>,
    /// File with the id of the process.
    pub pid_file: PathBuf,
    /// Socket of the management interface, or of vici.
    pub socket: PathBuf,
    /// Log of the process since its start.
    pub log: PathBuf,
    /// Actions after each start of a process that makes its device itself, as OpenVPN does where the kernel encrypts:
    /// that device goes with the process. Empty for a device that stays while processes restart.
    #[serde(default)]
    pub device_actions: Vec<LinkAction>,
}

impl LinkMember {
    /// The copy of the configuration with which the process was started, made when its start was complete. A daemon
    /// that has loaded a later one since has that as [`LinkMember::running_config`].
    pub(crate) fn started_config(&self) -> PathBuf {
        self.running_config.with_extension("started")
    }

    /// Whether the process makes its device itself.
    #[must_use]
    pub fn makes_device(&self) -> bool {
        !self.device_actions.is_empty()
    }

    /// The action that removes the device of a process that was killed, if the process makes it.
    ///
    /// OpenVPN (2.6 to 2.7.8) takes an ovpn device that exists for its own and then does not find it, since it never
    /// asks for the number of that device. It deletes the device when it closes.
    #[must_use]
    pub fn device_removal(&self) -> Option<LinkAction> {
        let words = ["ip", "link", "delete", "dev", &self.device];
        self.makes_device().then(|| LinkAction::run(&words))
    }
}

/// A route over several members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Route {
    /// The network behind the other end, or its inner address.
    pub to: String,
    /// Source address of this host's own packets.
    pub from: IpAddr,
}

/// Folders of the links' files.
#[derive(Clone, Debug)]
pub struct Folders {
    /// State that a reboot clears, as it does processes and devices.
    pub run: PathBuf,
    /// Configurations and their history.
    pub state: PathBuf,
}

impl Default for Folders {
    fn default() -> Self {
        Self {
            run: PathBuf::from("/run/millrace/vpn"),
            state: PathBuf::from("/var/lib/millrace/vpn"),
        }
    }
}

impl Folders {
    /// The folder of a link below `run`.
    #[must_use]
    pub fn run_of(&self, link: &str) -> PathBuf {
        self.run.join(link)
    }

    /// The folder of a link below `state`.
    #[must_use]
    pub fn state_of(&self, link: &str) -> PathBuf {
        self.state.join(link)
    }
}

impl LinkAction {
    pub(crate) fn run(words: &[&str]) -> Self {
        Self::Run(words.iter().map(|word| (*word).to_owned()).collect())
    }

    /// The network device that the action removes.
    pub(crate) fn removed_device(&self) -> Option<&str> {
        let Self::Run(words) = self else {
            return None;
        };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["ip", "link" | "tuntap", "delete", "dev", device, ..] => Some(device),
            _ => None,
        }
    }

    /// The command line, for a shell.
    #[must_use]
    pub fn command_line(&self) -> String {
        match self {
            Self::Run(words) => words.join(" "),
            Self::Write { path, value } => format!("echo {value} > {}", path.display()),
        }
    }
}

impl Route {
    /// The command that sends packets over these members and no others.
    #[must_use]
    pub fn over(&self, members: &[&LinkMember]) -> LinkAction {
        let from = self.from.to_string();
        let mut words =
            vec!["ip", "route", "replace", &self.to, "proto", ROUTE_PROTOCOL, "src", &from];
        for member in members {
            words.push("nexthop");
            if self.from.is_ipv6() {
                words.extend(["via", GATEWAY6]);
            }
            words.extend(["dev", &member.device]);
        }
        LinkAction::run(&words)
    }

    fn removal(&self) -> LinkAction {
        LinkAction::run(&["ip", "route", "delete", &self.to, "proto", ROUTE_PROTOCOL])
    }
}

impl LinkLayout {
    /// The devices of the link.
    pub(crate) fn devices(&self) -> impl Iterator<Item = String> + '_ {
        let members = self.members.iter().map(|member| &member.device);
        members.chain(self.bond.as_ref().map(|bond| &bond.device)).cloned()
    }

    /// Actions that send packets over these members and no others. `all` are the known members, and `bonded` the
    /// devices that the bond of a bridged link has now.
    #[must_use]
    pub fn over(
        &self,
        members: &[&LinkMember],
        all: &[&LinkMember],
        bonded: &[String],
    ) -> Vec<LinkAction> {
        match &self.bond {
            Some(bond) => bond.over(members, all, bonded),
            None => self.routes.iter().map(|route| route.over(members)).collect(),
        }
    }

    /// The problem of a link whose mode changes while it is up: the kernel changes that of an empty bond only.
    pub(crate) fn mode_problem(&self, link: &VpnLink) -> Option<LinkProblem> {
        let name = |spread: Option<BondSpread>| spread.map_or("routed", BondSpread::name);
        let now = name(self.bond.as_ref().map(|bond| bond.spread));
        let wanted = name(link.bond().map(|settings| settings.spread));
        let line = if self.bond.is_some() { link.lines.bond } else { None };
        (now != wanted).then(|| LinkProblem {
            line: line.or(link.lines.mode),
            ..LinkProblem::of_host(
                format!(
                    "the link is up as {now}, and cannot become {wanted} without an interruption"
                ),
                format!(
                    "`millrace vpn down {}` on both ends first, or bring up a second link",
                    self.name
                ),
            )
        })
    }

    /// Actions that remove the link from the system, once its processes have ended: routes first, devices last.
    #[must_use]
    pub fn removal(&self) -> Vec<LinkAction> {
        let routes = self.routes.iter().map(Route::removal);
        let devices = self.members.iter().filter_map(LinkMember::device_removal);
        let steps = self.steps.iter().rev().filter_map(|step| step.undo.clone());
        routes.chain(devices).chain(steps).collect()
    }

    /// A layout for the record of what may be there: this one with the parts that another one of the same link has
    /// besides.
    pub(crate) fn with_parts_of(mut self, other: &Self) -> Self {
        add_missing(&mut self.steps, &other.steps);
        add_missing(&mut self.members, &other.members);
        add_missing(&mut self.routes, &other.routes);
        self.bond = self.bond.or_else(|| other.bond.clone());
        self
    }

    /// Actions that remove the parts that a later layout of the same link lacks.
    #[must_use]
    pub fn removal_before(&self, later: &Self) -> Vec<LinkAction> {
        let kept = later.removal();
        let mut all = self.removal();
        all.retain(|action| !kept.contains(action));
        all
    }
}

impl LinkPlan {
    /// Plans one end of a link on a host.
    #[must_use]
    pub fn new(link: &VpnLink, side: Side, host: &Host, folders: &Folders) -> Self {
        let address = link.end(side).address;
        let bond = link.bond().map(|settings| Bond::new(link, side, settings));
        let (sizes, files, members, steps, routes) = match &link.engine {
            LinkEngine::OpenVpn(_) => {
                let sizes = match link.bond() {
                    Some(settings) => bridged_sizes(link.path_mtu, address, settings.mtu),
                    None => sizes(link.path_mtu, address),
                };
                let members = openvpn_members(link, side, host, folders, sizes);
                let files = members.iter().map(|member| {
                    let text =
                        openvpn::config(link, side, member, sizes, host.revocations.is_some());
                    GENERATOR.file(&member.config, &text, "one tunnel process")
                });
                let files = files.collect();
                let (steps, routes) = match &bond {
                    Some(bond) => (bond::steps(link, side, bond, &members, sizes), Vec::new()),
                    None => {
                        let mut steps = common_steps(link, side, &[link.tunnels]);
                        steps.extend(device_steps(link, &members, sizes));
                        (steps, routes(link, side))
                    }
                };
                (sizes, files, members, steps, routes)
            }
            LinkEngine::Ipsec(settings) => {
                let sizes = ipsec_sizes(link.path_mtu, address, settings.data_path);
                let (files, members, credentials) =
                    ipsec::plan(link, settings, side, host, folders, sizes);
                let mut steps = common_steps(link, side, &[]);
                steps.extend(credentials);
                // The daemon keeps the routes.
                (sizes, files, members, steps, Vec::new())
            }
        };
        let layout = LinkLayout {
            name: link.name.clone(),
            side,
            tunnel_mtu: sizes.tunnel,
            segment: sizes.segment,
            steps,
            members,
            routes,
            bond,
            certificate: Some(link.end(side).certificates.join(CERTIFICATE)),
        };
        Self { files, layout, notes: host.notes(link, side), choice: None }
    }

    /// The plan as text: files, then commands in their order.
    #[must_use]
    pub fn text(&self) -> String {
        let LinkLayout { name, side, tunnel_mtu, segment, steps, members, .. } = &self.layout;
        let mut text = format!(
            "# link {name}, end {}: {} tunnels, device MTU {tunnel_mtu}, TCP segments up to {segment} bytes\n",
            side.name(),
            members.len(),
        );
        for note in &self.notes {
            let _ = writeln!(text, "# note: {note}");
        }
        for file in &self.files {
            let _ =
                write!(text, "\n# ==> {} ({})\n{}", file.path.display(), file.why, file.contents);
        }
        let mut why = "";
        text.push_str("\n# ==> up\n");
        for step in steps {
            if step.why != why {
                why = &step.why;
                let _ = writeln!(text, "# {why}");
            }
            let _ = writeln!(text, "{}", step.action.command_line());
        }
        text.push_str("\n# ==> by the supervisor\n");
        let mut shown = "";
        for member in members {
            let (why, line) = match member.engine {
                MemberEngine::OpenVpn => {
                    ("the tunnels, each on one processor", member.command.join(" "))
                }
                // Without the words around the shell's own line, which is the last one.
                MemberEngine::Charon => (
                    "the daemon, which also keeps the routes",
                    member.command.join(" ").replacen("sh -c ", "", 1),
                ),
            };
            if why != shown {
                shown = why;
                let _ = writeln!(text, "# {why}");
            }
            let memory = member.node.map(|node| format!("  # memory of NUMA node {node} first"));
            let _ = writeln!(text, "{line}{}", memory.unwrap_or_default());
        }
        for member in members.iter().filter(|member| member.makes_device()) {
            let device = &member.device;
            let _ = writeln!(text, "# before a start, if a killed process left {device}");
            text.extend(member.device_removal().map(|action| action.command_line() + "\n"));
            let _ = writeln!(text, "# after a start, whose process makes {device}");
            text.extend(member.device_actions.iter().map(|action| action.command_line() + "\n"));
        }
        let all: Vec<&LinkMember> = members.iter().collect();
        let actions = self.layout.over(&all, &all, &[]);
        if !actions.is_empty() {
            text.push_str(match self.layout.bond {
                Some(_) => "# the healthy members in the bond\n",
                None => "# routes over the healthy members\n",
            });
        }
        for action in actions {
            let _ = writeln!(text, "{}", action.command_line());
        }
        text
    }
}

/// Appends the items that the list lacks.
pub(crate) fn add_missing<T: Clone + PartialEq>(list: &mut Vec<T>, items: &[T]) {
    for item in items {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

/// The routes to the other end and the networks behind it.
fn routes(link: &VpnLink, side: Side) -> Vec<Route> {
    let end = link.end(side);
    let route = |to: LinkNetwork| {
        // link.toml has an IPv6 address where it has IPv6 networks.
        let from = if to.is_v6() { IpAddr::V6(end.inner6?) } else { IpAddr::V4(end.inner) };
        let to = to.to_string();
        Some(Route { to, from })
    };
    let destinations = link.destinations(side).into_iter();
    destinations.filter_map(route).collect()
}

fn openvpn_members(
    link: &VpnLink,
    side: Side,
    host: &Host,
    folders: &Folders,
    sizes: PacketSizes,
) -> Vec<LinkMember> {
    let mut members: Vec<LinkMember> = (0..link.members)
        .zip(host.place(link.members))
        .filter_map(|(number, processor)| member(link, side, number, processor, folders))
        .map(|member| LinkMember { node: host.node_of(member.processor), ..member })
        .collect();
    if link.engine == LinkEngine::OpenVpn(DataPath::Kernel) {
        for member in &mut members {
            member.device_actions = device_actions(link, member, sizes);
        }
    }
    members
}

fn member(
    link: &VpnLink,
    side: Side,
    number: u16,
    processor: usize,
    folders: &Folders,
) -> Option<LinkMember> {
    let pair = 2 * u32::from(number);
    let [a, b] = [pair, pair + 1].map(|index| match link.tunnels.nth(index)? {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    });
    let (local, peer) = match side {
        Side::A => (a?, b?),
        Side::B => (b?, a?),
    };
    let run = folders.run_of(&link.name);
    let state = folders.state_of(&link.name);
    let running_config = run.join(format!("{number}.conf"));
    let command = with_openssl(
        link.end(side),
        &[
            "taskset",
            "--cpu-list",
            &processor.to_string(),
            "openvpn",
            "--config",
            &text(&running_config),
        ],
    );
    Some(LinkMember {
        number,
        engine: MemberEngine::OpenVpn,
        device: link.device(number),
        processor,
        node: None,
        local,
        peer,
        config: state.join(format!("{number}.conf")),
        running_config,
        command,
        reload: None,
        pid_file: run.join(format!("{number}.pid")),
        socket: run.join(format!("{number}.sock")),
        log: run.join(format!("{number}.log")),
        device_actions: Vec::new(),
    })
}

/// The words of a member's command, with the end's OpenSSL configuration in its environment.
fn with_openssl(end: &End, words: &[&str]) -> Vec<String> {
    let variable = end.openssl_variable();
    let prefix = variable.iter().flat_map(|variable| ["env", variable]);
    let words = prefix.chain(words.iter().copied());
    words.map(str::to_owned).collect()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn plain_step(why: &str, action: LinkAction, undo: Option<LinkAction>) -> LinkStep {
    LinkStep { why: why.to_owned(), action, unless_exists: None, undo }
}

/// A setting of IP; `family` is ipv4 or ipv6.
fn setting(family: &str, path: &str, value: &str) -> LinkAction {
    LinkAction::Write {
        path: Path::new("/proc/sys/net").join(family).join(path),
        value: value.to_owned(),
    }
}

/// Steps of every link: this end's address, and routes that hold packets back. `more` are networks besides those of
/// the other end.
fn common_steps(link: &VpnLink, side: Side, more: &[LinkNetwork]) -> Vec<LinkStep> {
    let mut steps = Vec::new();
    if link.is_openvpn() {
        let families: &[&str] = if link.carries_v6() { &["ipv4", "ipv6"] } else { &["ipv4"] };
        for family in families {
            steps.push(plain_step(
                "flows are spread by addresses and ports, not by addresses alone",
                setting(family, "fib_multipath_hash_policy", "1"),
                None,
            ));
        }
    }
    for inner in link.end(side).inner_hosts() {
        let inner = inner.to_string();
        let words = |verb| ["ip", "address", verb, &inner, "dev", "lo"];
        steps.push(plain_step(
            "this end's address in the link",
            LinkAction::run(&words("replace")),
            Some(LinkAction::run(&words("delete"))),
        ));
    }
    let why = "without a healthy member no packet leaves unencrypted by another route";
    for to in link.destinations(side).iter().chain(more) {
        steps.push(hold_back_step(*to, why));
    }
    steps
}

/// A route that refuses packets to a network while no better one is set.
fn hold_back_step(to: LinkNetwork, why: &str) -> LinkStep {
    let to = to.to_string();
    let route = [&to, "metric", HOLD_BACK_METRIC, "proto", ROUTE_PROTOCOL];
    let action =
        |verb| LinkAction::run(&[&["ip", "route", verb, "unreachable"], &route[..]].concat());
    plain_step(why, action("replace"), Some(action("delete")))
}

/// The devices of OpenVPN's tunnels, of those members that do not make them.
fn device_steps(link: &VpnLink, members: &[LinkMember], sizes: PacketSizes) -> Vec<LinkStep> {
    let mut steps = Vec::new();
    for member in members.iter().filter(|member| !member.makes_device()) {
        let device = member.device.as_str();
        let why =
            format!("the device of member {}: it stays while its process restarts", member.number);
        let words = |verb| ["ip", "tuntap", verb, "dev", device, "mode", "tun"];
        steps.push(LinkStep {
            unless_exists: Some(device_settings(device)),
            ..plain_step(
                &why,
                LinkAction::run(&words("add")),
                Some(LinkAction::run(&words("delete"))),
            )
        });
        let actions = device_actions(link, member, sizes).into_iter();
        steps.extend(actions.map(|action| plain_step(&why, action, None)));
    }
    steps
}

/// The folder of a device's settings, which is there while the device is.
pub(crate) fn device_settings(device: &str) -> PathBuf {
    Path::new("/proc/sys/net/ipv4/conf").join(device)
}

/// Actions that set a member's device up.
fn device_actions(link: &VpnLink, member: &LinkMember, sizes: PacketSizes) -> Vec<LinkAction> {
    let mtu = sizes.tunnel.to_string();
    let queue = link.queue_packets.to_string();
    let device = member.device.as_str();
    let local = format!("{}/31", member.local);
    let linkdown =
        |family| setting(family, &format!("conf/{device}/ignore_routes_with_linkdown"), "1");
    let words = ["ip", "link", "set", "dev", device, "mtu", &mtu, "txqueuelen", &queue, "up"];
    let mut actions = vec![
        LinkAction::run(&["ip", "address", "replace", &local, "dev", device]),
        // The kernel itself leaves a member out whose process has ended.
        linkdown("ipv4"),
        // Answers may come back through another member; IPv6 has no such filter.
        setting("ipv4", &format!("conf/{device}/rp_filter"), "2"),
        LinkAction::run(&words),
    ];
    if link.carries_v6() {
        actions.push(linkdown("ipv6"));
    }
    actions
}

#[cfg(test)]
mod tests;
