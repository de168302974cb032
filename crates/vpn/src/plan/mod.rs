// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Everything that brings a link up on one end, as values: files, steps, members and routes. A plan does nothing
//! by itself; the same link on the same host gives the same plan.

mod bond;
pub(crate) mod ipsec;
mod mtu;
mod openvpn;

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use millrace_hostfs::generated::{Generator, PlannedFile};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use bond::Bond;
pub use mtu::{PacketSizes, bridged_sizes, ipsec_sizes, sizes};

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
const LAST: &str = "4294967295";

/// The steps for one end of a link.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LinkPlan {
    /// Generated files.
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
    /// This end.
    pub side: Side,
    /// MTU of the tunnel devices, in bytes.
    pub tunnel_mtu: u16,
    /// Largest TCP segment through a tunnel, in bytes.
    pub segment: u16,
    /// Steps in their order.
    pub steps: Vec<LinkStep>,
    /// The tunnels.
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
    /// Its purpose.
    pub why: String,
    /// The change; doing it twice changes nothing.
    pub action: LinkAction,
    /// The step is left out where this path exists.
    pub unless_exists: Option<PathBuf>,
    /// The action that removes it again.
    pub undo: Option<LinkAction>,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LinkAction {
    /// Runs a program.
    Run(Vec<String>),
    /// Writes a setting of the kernel.
    Write {
        /// Below /proc/sys.
        path: PathBuf,
        /// The value.
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

/// One tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkMember {
    /// Its number, from 0.
    pub number: u16,
    /// Its process; records of older versions have OpenVPN only.
    #[serde(default)]
    pub engine: MemberEngine,
    /// Its network device.
    pub device: String,
    /// The processor on which its process runs.
    pub processor: usize,
    /// This end's address in the tunnel.
    pub local: Ipv4Addr,
    /// The other end's address in the tunnel.
    pub peer: Ipv4Addr,
    /// The generated configuration.
    pub config: PathBuf,
    /// The copy of it with which the process was started.
    pub running_config: PathBuf,
    /// Starts the process, which then runs in the background.
    pub command: Vec<String>,
    /// Makes the running process read a changed configuration; `None`: it has to start anew.
    #[serde(default)]
    pub reload: Option<Vec<String>>,
    /// Process id.
    pub pid_file: PathBuf,
    /// Management interface.
    pub socket: PathBuf,
    /// Log of the process since its start.
    pub log: PathBuf,
    /// Actions after each start of a process that makes its device itself, as OpenVPN does where the kernel encrypts:
    /// that device goes with the process. Empty: the device stays while processes restart.
    #[serde(default)]
    pub device_actions: Vec<LinkAction>,
}

impl LinkMember {
    /// Whether the process makes its device itself.
    #[must_use]
    pub fn makes_device(&self) -> bool {
        !self.device_actions.is_empty()
    }

    /// The action that removes the device of a process that was killed, if the process makes it.
    ///
    /// OpenVPN (2.6 to 2.7.8) takes an ovpn device that exists for its own, and then does not find it: it never asks
    /// for the number of that device, and deletes it when it closes.
    #[must_use]
    pub fn device_removal(&self) -> Option<LinkAction> {
        let words = ["ip", "link", "delete", "dev", &self.device];
        self.makes_device().then(|| LinkAction::run(&words))
    }
}

/// A route over several members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Route {
    /// The network.
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
    fn run(words: &[&str]) -> Self {
        Self::Run(words.iter().map(|word| (*word).to_owned()).collect())
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
                let files = members.iter().map(|one| {
                    let text = openvpn::config(link, side, one, sizes, host.revocations.is_some());
                    GENERATOR.file(&one.config, &text, "one tunnel process")
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
            let _ = writeln!(text, "{line}");
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
    let (run, state) = (folders.run_of(&link.name), folders.state_of(&link.name));
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
    let prefix = variable.iter().flat_map(|one| ["env", one]);
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
    let destinations = link.destinations(side);
    for to in destinations.iter().chain(more) {
        let to = to.to_string();
        let words = |verb| {
            ["ip", "route", verb, "unreachable", &to, "metric", LAST, "proto", ROUTE_PROTOCOL]
        };
        steps.push(plain_step(
            "without a healthy member no packet leaves unencrypted by another route",
            LinkAction::run(&words("replace")),
            Some(LinkAction::run(&words("delete"))),
        ));
    }
    steps
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
    let (mtu, queue) = (sizes.tunnel.to_string(), link.queue_packets.to_string());
    let (device, local) = (member.device.as_str(), format!("{}/31", member.local));
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
mod tests {
    use super::*;
    use crate::link::{SAMPLE, SAMPLE_BRIDGED};

    fn host() -> Host {
        Host { processors: vec![0, 1], cores: vec![0, 1], ..Host::default() }
    }

    fn plan(side: Side) -> LinkPlan {
        let link = VpnLink::parse(SAMPLE).expect("the sample");
        LinkPlan::new(&link, side, &host(), &Folders::default())
    }

    /// Each end's plan of the sample is kept as a file, so that a change of a plan shows in review. Write anew with
    /// MILLRACE_BLESS=1.
    #[test]
    fn plans_of_the_sample_are_those_of_the_fixtures() {
        for side in Side::ALL {
            let name = format!("fixtures/plan-{}.txt", side.name());
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
            let text = plan(side).text();
            if std::env::var_os("MILLRACE_BLESS").is_some() {
                std::fs::write(&path, &text).expect("the fixture");
            }
            assert_eq!(
                text,
                std::fs::read_to_string(&path).unwrap_or_default(),
                "{}",
                path.display()
            );
        }
    }

    #[test]
    fn device_of_the_kernels_data_channel_is_left_to_its_process() {
        let text = SAMPLE.replacen("members = 4", "members = 2", 1);
        let text = text.replacen("[tunnels]", "[tunnels]\ndata-path = \"kernel\"", 1);
        let link = VpnLink::parse(&text).expect("a link");
        let plan = LinkPlan::new(&link, Side::A, &host(), &Folders::default());
        let layout = &plan.layout;
        assert!(layout.steps.iter().all(|step| !step.action.command_line().contains("branch.")));
        for (number, member) in layout.members.iter().enumerate() {
            assert!(member.makes_device());
            let removal = format!("ip link delete dev branch.{number}");
            assert!(layout.removal().iter().any(|action| action.command_line() == removal));
            let lines: Vec<String> =
                member.device_actions.iter().map(LinkAction::command_line).collect();
            let address = format!("ip address replace {}/31 dev branch.{number}", member.local);
            assert!(lines.contains(&address), "{lines:?}");
            for line in lines.iter().chain([&removal]) {
                assert!(plan.text().contains(line), "{line} in {}", plan.text());
            }
        }
        // Devices of user space stay, and are no action of a start.
        let user = super::tests::plan(Side::A).layout;
        assert!(user.members.iter().all(|member| !member.makes_device()));
        // Routes go before the devices.
        let lines: Vec<String> = layout.removal().iter().map(LinkAction::command_line).collect();
        let at = |part: &str| lines.iter().position(|line| line.contains(part));
        assert!(at("ip route delete") < at("ip link delete"), "{lines:?}");
    }

    #[test]
    fn openssl_configuration_is_in_the_environment_of_its_ends_members() {
        let ipsec = include_str!("../../fixtures/ipsec/link.toml");
        for sample in [SAMPLE, ipsec] {
            let line = "[ends.b]\nopenssl-config = \"/etc/millrace/openssl.cnf\"\n";
            let link = VpnLink::parse(&sample.replacen("[ends.b]\n", line, 1)).expect("a link");
            let [own, other] = [Side::B, Side::A]
                .map(|side| LinkPlan::new(&link, side, &host(), &Folders::default()));
            for member in &own.layout.members {
                assert_eq!(member.command[..2], ["env", "OPENSSL_CONF=/etc/millrace/openssl.cnf"]);
            }
            // A changed file is how the supervisor finds out that a member needs a restart.
            assert!(own.files[0].contents.contains("OPENSSL_CONF=/etc/millrace/openssl.cnf"));
            assert!(!other.text().contains("OPENSSL_CONF"), "{}", other.text());
        }
    }

    #[test]
    fn plan_of_an_ipsec_link_is_that_of_the_fixture() {
        let link = VpnLink::parse(include_str!("../../fixtures/ipsec/link.toml")).expect("a link");
        let plan = LinkPlan::new(&link, Side::B, &host(), &Folders::default());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/ipsec/plan-b.txt");
        if std::env::var_os("MILLRACE_BLESS").is_some() {
            std::fs::write(&path, plan.text()).expect("the fixture");
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(plan.text(), expected, "{}", path.display());
        assert!(plan.layout.routes.is_empty() && plan.layout.members.len() == 1);
    }

    fn bridged(text: &str, side: Side) -> LinkPlan {
        let link = VpnLink::parse(text).expect("a link");
        LinkPlan::new(&link, side, &host(), &Folders::default())
    }

    #[test]
    fn plan_of_a_bridged_link_is_that_of_the_fixture() {
        // One end is a router, the other a bridge with hosts of the usual MTU.
        let (head, tail) = SAMPLE_BRIDGED.split_once("[ends.b]").expect("two ends");
        let head = head.replace("members = 4", "members = 2").replace("# mtu", "mtu");
        let head = head.replace("# bridge", "bridge");
        let tail = tail.replace("# port", "port").replacen(
            "inner = ",
            "networks = [\"10.2.0.0/16\"]\ninner = ",
            1,
        );
        let text = format!("{head}[ends.b]{tail}");
        for side in Side::ALL {
            let name = format!("fixtures/bridged-plan-{}.txt", side.name());
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
            let plan = bridged(&text, side).text();
            if std::env::var_os("MILLRACE_BLESS").is_some() {
                std::fs::write(&path, &plan).expect("the fixture");
            }
            let expected = std::fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(plan, expected, "{}", path.display());
        }
    }

    #[test]
    fn bond_gains_members_before_it_loses_others() {
        let layout = bridged(SAMPLE_BRIDGED, Side::A).layout;
        let members: Vec<&LinkMember> = layout.members.iter().collect();
        let in_bond = ["branch_0", "branch_1", "branch_7"].map(str::to_owned);
        let lines = |kept: &[&LinkMember], now: &[String]| -> Vec<String> {
            layout.over(kept, &members, now).iter().map(LinkAction::command_line).collect()
        };
        let neighbour = |device: &str, peer: &str| {
            format!(
                "ip neighbour replace {peer} lladdr 02:4d:0a:61:00:02 dev {device} nud permanent"
            )
        };
        assert_eq!(
            lines(&members[1..3], &in_bond),
            [
                "ip link set dev branch_2 down",
                "ip link set dev branch_2 master branch",
                "ip link set dev branch_2 up",
                &neighbour("branch_2", "10.98.0.5"),
                "ip link set dev branch_0 nomaster",
                "ip link set dev branch_0 up",
                &neighbour("branch_0", "10.98.0.1"),
                // No member any more: its device goes.
                "ip link set dev branch_7 nomaster",
            ]
        );
        assert!(lines(&members[..2], &in_bond[..2]).is_empty(), "nothing to do");
    }

    #[test]
    fn bond_of_each_mode_is_made_by_the_kernels_names_and_goes_last() {
        for (bond, expected) in [
            ("mode = \"balance-rr\"", "type bond mode balance-rr miimon 100 all_slaves_active 1\n"),
            ("mode = \"active-backup\"", "type bond mode active-backup miimon 100"),
            ("hash = \"layer2\"", "type bond xmit_hash_policy layer2\n"),
            ("hash = \"layer2+3\"", "type bond xmit_hash_policy layer2+3\n"),
        ] {
            let plan =
                bridged(&SAMPLE_BRIDGED.replacen("[bond]", &format!("[bond]\n{bond}"), 1), Side::B);
            assert!(plan.text().contains(expected), "{}", plan.text());
            let removal = plan.layout.removal();
            let last = removal.last().expect("an action").command_line();
            assert_eq!(last, "ip link delete dev branch");
        }
    }

    #[test]
    fn mode_of_a_link_that_is_up_stays() {
        let routed = VpnLink::parse(SAMPLE).expect("a link");
        let xor = VpnLink::parse(SAMPLE_BRIDGED).expect("a link");
        let rr = SAMPLE_BRIDGED.replacen("# mode =", "mode = \"balance-rr\" #", 1);
        let rr = VpnLink::parse(&rr).expect("a link");
        let hash = SAMPLE_BRIDGED.replacen("# hash =", "hash = \"layer2\" #", 1);
        let hash = VpnLink::parse(&hash).expect("a link");
        let up = bridged(SAMPLE_BRIDGED, Side::A).layout;
        assert_eq!(up.mode_problem(&xor), None);
        assert_eq!(up.mode_problem(&hash), None, "the kernel changes it");
        let problem = up.mode_problem(&rr).expect("a problem");
        assert!(
            problem.to_string().contains("up as balance-xor, and cannot become balance-rr"),
            "{problem}"
        );
        assert!(problem.line.is_some());
        assert!(
            up.mode_problem(&routed).is_some() && plan(Side::A).layout.mode_problem(&xor).is_some()
        );
    }

    #[test]
    fn ends_agree_on_addresses_ports_and_sizes() {
        let [a, b] = Side::ALL.map(|side| plan(side).layout);
        assert_eq!((a.tunnel_mtu, a.segment), (b.tunnel_mtu, b.segment));
        for (one, other) in a.members.iter().zip(&b.members) {
            assert_eq!((one.local, one.peer), (other.peer, other.local));
            assert_eq!(one.device, other.device);
        }
        let [a, b] = Side::ALL.map(|side| plan(side).files);
        for (one, other) in a.iter().zip(&b) {
            let word = |text: &str, key: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(key));
                line.expect("the line").trim().to_owned()
            };
            for key in ["lport", "rport", "data-ciphers", "tun-mtu", "mssfix"] {
                assert_eq!(word(&one.contents, key), word(&other.contents, key));
            }
            assert_eq!(word(&one.contents, "local "), word(&other.contents, "remote "));
        }
    }

    #[test]
    fn layout_survives_its_record() {
        for layout in [plan(Side::A).layout, bridged(SAMPLE_BRIDGED, Side::A).layout] {
            let text = serde_json::to_string(&layout).expect("JSON");
            assert_eq!(serde_json::from_str::<LinkLayout>(&text).expect("a layout"), layout);
        }
    }
}
