// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The choice of `engine = "auto"`: from measurements of one host or of both to one candidate, with how much each
//! other one lost. It measures nothing; the record is saved beside the link's state and kept with each configuration.
//!
//! With two hosts the slower one decides: the figure of a candidate in a round is the worse one of both. The best
//! median wins. Candidates that matched the winner in at least one round count as tied; of those the simplest is
//! chosen.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::candidate::{ChoiceGoal, EngineCandidate};
use crate::host::Host;
use crate::link::VpnLink;

/// Most measurements in a record: one of each end.
const MAX_HOSTS: usize = 2;

impl EngineCandidate {
    /// Why a host cannot run it, or why it is not a candidate of a link; `None` if it can be measured.
    #[must_use]
    pub fn obstacle(self, link: &VpnLink, host: &Host) -> Option<String> {
        if self == Self::Many && link.members < 2 {
            return Some("the link has one member".to_owned());
        }
        if self == Self::PerCpuSas && host.processors.len() < 2 {
            return Some("the host has one processor".to_owned());
        }
        let problems = host.unable(&link.as_candidate(self));
        problems.into_iter().map(|problem| problem.what).next()
    }
}

/// One round of one candidate on one host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Round {
    /// Rate through the link, Mbit/s.
    pub mbit: f64,
    /// CPU seconds of the whole machine, which holds both ends, for 10^9 bytes.
    pub cpu_s_per_gb: f64,
}

/// One candidate on one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EngineContender {
    /// The engine, and how it encrypts.
    pub candidate: EngineCandidate,
    /// Whether its tunnels were started.
    #[serde(alias = "tried")]
    pub started: bool,
    /// Its rounds; none if the host cannot run it.
    pub rounds: Vec<Round>,
    /// Why the host cannot run it.
    #[serde(alias = "out")]
    pub unavailable: Option<String>,
}

/// The measurement of one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LinkMeasurement {
    /// Name of the host, as `uname -n` prints it.
    pub host: String,
    /// When it ended, seconds since 1970.
    pub at: u64,
    /// Release of its kernel.
    pub kernel: String,
    /// Version of OpenVPN; none without it.
    pub openvpn: Option<String>,
    /// Version of strongSwan; none without it.
    pub strongswan: Option<String>,
    /// Processors that both ends shared.
    pub processors: usize,
    /// The keys of link.toml that the figures depend on.
    pub link: String,
    /// Figures of each candidate, or why it has none.
    pub contenders: Vec<EngineContender>,
}

/// Median and range of a candidate's figure against that of the chosen one, within rounds. Above 1 is better.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ratio {
    /// Median over all rounds.
    pub median: f64,
    /// Ratio in the worst round.
    pub min: f64,
    /// Ratio in the best round.
    pub max: f64,
}

/// Result of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EngineVerdict {
    /// The candidate is the engine of the link.
    Chosen,
    /// The candidate lost, by this ratio.
    Lost(Ratio),
    /// The candidate was at least as good in one round; the chosen one is simpler.
    Tied(Ratio),
    /// A host cannot run it, for this reason.
    Out(String),
}

/// The saved choice of a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EngineChoice {
    /// Name of the link.
    pub name: String,
    /// Measure of the choice.
    pub goal: ChoiceGoal,
    /// The engine that `up` brings up.
    pub chosen: EngineCandidate,
    /// Result of each candidate, the simplest first.
    pub verdicts: Vec<(EngineCandidate, EngineVerdict)>,
    /// The measurements: of this host, and of the other end's.
    pub hosts: Vec<LinkMeasurement>,
}

/// Why nothing was chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// No candidate runs on each host.
    #[error("no candidate can be measured on each host: {0}")]
    NoCandidate(String),
    /// There is no measurement, or more than one of each end.
    #[error("{0} measurements: a choice is made from one of each end, or from one")]
    Hosts(usize),
    /// The ends were measured for different links.
    #[error("the measurements are of different links: {0:?} and {1:?}")]
    OtherLink(String, String),
}

/// The parts of link.toml that a measurement depends on, as text.
fn measured_link(link: &VpnLink) -> String {
    let mut text =
        format!("{} members, {}, path-mtu {}", link.members, link.cipher.name(), link.path_mtu);
    if let Some(bytes) = link.socket_buffer_bytes {
        text.push_str(&format!(", socket buffers of {bytes} bytes"));
    }
    if let Some(auto) = &link.auto {
        let esp: Vec<String> = auto.ipsec.esp.iter().map(ToString::to_string).collect();
        text.push_str(&format!(", ESP {} by {:?}", esp.join(" "), auto.ipsec.data_path));
    }
    text
}

impl LinkMeasurement {
    /// The measurement of a host that ended now, with these rounds.
    #[must_use]
    pub fn new(link: &VpnLink, host: &Host, at: u64, contenders: Vec<EngineContender>) -> Self {
        Self {
            host: host.name.clone(),
            at,
            kernel: host.kernel.clone(),
            openvpn: host.openvpn.map(|(major, minor)| format!("{major}.{minor}")),
            strongswan: host
                .strongswan
                .map(|(major, minor, patch)| format!("{major}.{minor}.{patch}")),
            processors: host.processors.len(),
            link: measured_link(link),
            contenders,
        }
    }

    fn of(&self, candidate: EngineCandidate) -> Option<&EngineContender> {
        self.contenders.iter().find(|contender| contender.candidate == candidate)
    }

    /// Facts whose change makes a measurement old, each with its name.
    fn environment(&self) -> [(&'static str, String); 5] {
        let version =
            |version: &Option<String>| version.clone().unwrap_or_else(|| "none".to_owned());
        [
            ("the kernel", self.kernel.clone()),
            ("OpenVPN", version(&self.openvpn)),
            ("strongSwan", version(&self.strongswan)),
            ("the number of processors", self.processors.to_string()),
            ("link.toml", self.link.clone()),
        ]
    }

    /// A candidate's figure in each round; higher is better.
    fn figures(&self, candidate: EngineCandidate, goal: ChoiceGoal) -> Vec<f64> {
        let rounds = self.of(candidate).map_or(&[][..], |contender| &contender.rounds[..]);
        let figures = rounds.iter().map(|round| match goal {
            ChoiceGoal::Throughput => round.mbit,
            ChoiceGoal::Cpu => 1.0 / round.cpu_s_per_gb,
        });
        // A damaged record has no figure.
        figures.filter(|figure| figure.is_finite() && *figure > 0.0).collect()
    }
}

/// A candidate's figure in each round: the worse one of the hosts, and higher is better.
fn figures(hosts: &[LinkMeasurement], candidate: EngineCandidate, goal: ChoiceGoal) -> Vec<f64> {
    let mut worst: Option<Vec<f64>> = None;
    for host in hosts {
        let figures = host.figures(candidate, goal);
        worst = Some(match worst {
            None => figures,
            Some(worst) => worst.iter().zip(&figures).map(|(a, b)| a.min(*b)).collect(),
        });
    }
    worst.unwrap_or_default()
}

/// Why a candidate has no figure.
fn reason_unmeasured(hosts: &[LinkMeasurement], candidate: EngineCandidate) -> String {
    let reason = hosts.iter().find_map(|host| {
        let why = host.of(candidate)?.unavailable.as_ref()?;
        Some(format!("{why} ({})", host.host))
    });
    reason.unwrap_or_else(|| "it was not measured".to_owned())
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle), sorted.len() % 2) {
        (None, _) => 0.0,
        (Some(figure), 1) => *figure,
        (Some(figure), _) => (figure + sorted[middle - 1]) / 2.0,
    }
}

fn ratio(figures: &[f64], against: &[f64]) -> Ratio {
    let ratios: Vec<f64> = figures.iter().zip(against).map(|(a, b)| a / b).collect();
    Ratio {
        median: median(&ratios),
        min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        max: ratios.iter().copied().fold(0.0, f64::max),
    }
}

impl EngineChoice {
    /// Chooses from the measurement of one host, or from those of both.
    pub fn of(
        link: &VpnLink,
        goal: ChoiceGoal,
        hosts: Vec<LinkMeasurement>,
    ) -> Result<Self, ChoiceError> {
        if hosts.is_empty() || hosts.len() > MAX_HOSTS {
            return Err(ChoiceError::Hosts(hosts.len()));
        }
        if let [one, other] = &hosts[..]
            && one.link != other.link
        {
            return Err(ChoiceError::OtherLink(one.link.clone(), other.link.clone()));
        }
        let measured: Vec<(EngineCandidate, Vec<f64>)> = EngineCandidate::ALL
            .into_iter()
            .map(|candidate| (candidate, figures(&hosts, candidate, goal)))
            .collect();
        let running: Vec<_> = measured.iter().filter(|(_, figures)| !figures.is_empty()).collect();
        let best = running.iter().max_by(|a, b| {
            // Of equal medians the simpler one comes last, and is taken.
            median(&a.1).total_cmp(&median(&b.1)).then(b.0.cmp(&a.0))
        });
        let Some((_, best)) = best else {
            let reasons = EngineCandidate::ALL.map(|candidate| {
                format!("{}: {}", candidate.name(), reason_unmeasured(&hosts, candidate))
            });
            return Err(ChoiceError::NoCandidate(reasons.join("; ")));
        };
        // The order of the candidates is that of their simplicity.
        let simplest = running.iter().find(|(_, figures)| ratio(figures, best).max >= 1.0);
        let (chosen, winner) = simplest
            .map_or((EngineCandidate::One, best), |(candidate, figures)| (*candidate, figures));
        let mut verdicts = Vec::new();
        for (candidate, figures) in &measured {
            let verdict = if figures.is_empty() {
                EngineVerdict::Out(reason_unmeasured(&hosts, *candidate))
            } else if *candidate == chosen {
                EngineVerdict::Chosen
            } else {
                let ratio = ratio(figures, winner);
                if ratio.max >= 1.0 {
                    EngineVerdict::Tied(ratio)
                } else {
                    EngineVerdict::Lost(ratio)
                }
            };
            verdicts.push((*candidate, verdict));
        }
        Ok(Self { name: link.name.clone(), goal, chosen, verdicts, hosts })
    }

    /// Why the choice may be wrong by now, on this host and for this link, in words; empty for a current choice.
    #[must_use]
    pub fn outdated(&self, link: &VpnLink, host: &Host) -> Vec<String> {
        let Some(own) = self.hosts.iter().find(|measured| measured.host == host.name) else {
            let names: Vec<&str> =
                self.hosts.iter().map(|measured| measured.host.as_str()).collect();
            return vec![format!("it was measured on {}, not here", names.join(" and "))];
        };
        let now = LinkMeasurement::new(link, host, own.at, Vec::new());
        let mut reasons = Vec::new();
        for ((what, then), (_, now)) in own.environment().into_iter().zip(now.environment()) {
            if then != now {
                reasons.push(format!("{what} was {then} then and is {now} now"));
            }
        }
        if let Some(auto) = link.auto.as_ref().filter(|auto| auto.goal != self.goal) {
            reasons.push(format!("the goal was {:?} then and is {:?} now", self.goal, auto.goal));
        }
        for contender in own.contenders.iter().filter(|contender| !contender.started) {
            if contender.candidate.obstacle(link, host).is_none() {
                reasons.push(format!("{} can be measured now", contender.candidate.title()));
            }
        }
        reasons
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(more: &str) -> VpnLink {
        let text = crate::link::SAMPLE.replacen(
            "#: engine = \"openvpn\"",
            &format!("engine = \"auto\"\n{more}"),
            1,
        );
        VpnLink::parse(&text).expect("a link")
    }

    fn host() -> Host {
        Host {
            is_root: true,
            name: "a".to_owned(),
            kernel: "6.1.0".to_owned(),
            openvpn: Some((2, 6)),
            processors: vec![0, 1],
            ..Host::default()
        }
    }

    fn measurement(rates: &[(EngineCandidate, &[f64])]) -> LinkMeasurement {
        let contender = |candidate: EngineCandidate| {
            let rates = rates.iter().find(|(one, _)| *one == candidate);
            let round = |mbit: &f64| Round { mbit: *mbit, cpu_s_per_gb: *mbit / 10.0 };
            EngineContender {
                candidate,
                started: rates.is_some(),
                rounds: rates.map_or_else(Vec::new, |(_, all)| all.iter().map(round).collect()),
                unavailable: rates.is_none().then(|| "the kernel has none".to_owned()),
            }
        };
        LinkMeasurement::new(&link(""), &host(), 7, EngineCandidate::ALL.map(contender).into())
    }

    fn choose(hosts: Vec<LinkMeasurement>) -> EngineChoice {
        EngineChoice::of(&link(""), ChoiceGoal::Throughput, hosts).expect("a choice")
    }

    fn verdict(choice: &EngineChoice, candidate: EngineCandidate) -> &EngineVerdict {
        let found = choice.verdicts.iter().find(|(one, _)| *one == candidate);
        &found.expect("a verdict").1
    }

    #[test]
    fn fastest_candidate_is_chosen_and_the_others_lose_by_their_ratio() {
        let choice = choose(vec![measurement(&[
            (EngineCandidate::One, &[100.0, 110.0, 90.0]),
            (EngineCandidate::Many, &[200.0, 200.0, 180.0]),
        ])]);
        assert_eq!(choice.chosen, EngineCandidate::Many);
        let EngineVerdict::Lost(ratio) = verdict(&choice, EngineCandidate::One) else {
            panic!("{choice:?}");
        };
        assert!((ratio.median - 0.5).abs() < 1e-9 && (ratio.max - 0.55).abs() < 1e-9);
        assert_eq!(
            *verdict(&choice, EngineCandidate::Dco),
            EngineVerdict::Out("the kernel has none (a)".to_owned())
        );
    }

    #[test]
    fn simplest_of_those_that_did_not_lose_in_each_round_is_chosen() {
        let choice = choose(vec![measurement(&[
            (EngineCandidate::One, &[100.0, 130.0, 100.0]),
            (EngineCandidate::Ipsec, &[119.0, 119.0, 119.0]),
            (EngineCandidate::Many, &[120.0, 120.0, 120.0]),
        ])]);
        assert_eq!(choice.chosen, EngineCandidate::One);
        assert!(matches!(verdict(&choice, EngineCandidate::Many), EngineVerdict::Tied(_)));
        let equal = choose(vec![measurement(&[
            (EngineCandidate::Dco, &[100.0]),
            (EngineCandidate::Many, &[100.0]),
        ])]);
        assert_eq!(equal.chosen, EngineCandidate::Dco);
    }

    #[test]
    fn goal_cpu_chooses_the_least_cpu_time() {
        let hosts = vec![measurement(&[
            (EngineCandidate::One, &[100.0, 100.0]),
            (EngineCandidate::Many, &[200.0, 200.0]),
        ])];
        let choice = EngineChoice::of(&link(""), ChoiceGoal::Cpu, hosts).expect("a choice");
        assert_eq!(choice.chosen, EngineCandidate::One, "its CPU time is a tenth of its rate");
    }

    #[test]
    fn slower_end_decides_and_both_must_run_the_candidate() {
        let fast = measurement(&[
            (EngineCandidate::One, &[300.0]),
            (EngineCandidate::Dco, &[900.0]),
            (EngineCandidate::Many, &[800.0]),
        ]);
        let mut slow =
            measurement(&[(EngineCandidate::One, &[280.0]), (EngineCandidate::Many, &[250.0])]);
        slow.host = "b".to_owned();
        let choice = choose(vec![fast.clone(), slow.clone()]);
        assert_eq!(choice.chosen, EngineCandidate::One);
        assert_eq!(
            *verdict(&choice, EngineCandidate::Dco),
            EngineVerdict::Out("the kernel has none (b)".to_owned())
        );
        slow.link.push_str(" more");
        let other = EngineChoice::of(&link(""), ChoiceGoal::Throughput, vec![fast.clone(), slow]);
        assert!(matches!(other, Err(ChoiceError::OtherLink(..))));
        let hosts = vec![fast.clone(), fast.clone(), fast];
        let many = EngineChoice::of(&link(""), ChoiceGoal::Throughput, hosts);
        assert_eq!(many, Err(ChoiceError::Hosts(3)));
    }

    #[test]
    fn nothing_to_choose_from_is_an_error_with_every_reason() {
        let none = EngineChoice::of(&link(""), ChoiceGoal::Throughput, vec![measurement(&[])]);
        let text = none.expect_err("no candidate").to_string();
        for candidate in EngineCandidate::ALL {
            assert!(text.contains(candidate.name()), "{text}");
        }
    }

    #[test]
    fn record_with_figures_that_are_no_rates_has_none() {
        let broken = measurement(&[
            (EngineCandidate::One, &[f64::NAN, 0.0]),
            (EngineCandidate::Many, &[1.0]),
        ]);
        assert_eq!(choose(vec![broken]).chosen, EngineCandidate::Many);
    }

    #[test]
    fn choice_of_another_kernel_version_or_link_is_outdated() {
        let choice = choose(vec![measurement(&[(EngineCandidate::One, &[100.0])])]);
        let text = serde_json::to_string(&choice).expect("JSON");
        assert_eq!(serde_json::from_str::<EngineChoice>(&text).expect("a choice"), choice);
        let mut now = host();
        assert_eq!(choice.outdated(&link(""), &now), Vec::<String>::new());
        now.kernel = "6.18.0".to_owned();
        now.openvpn = Some((2, 7));
        now.dco_kinds = vec!["ovpn"];
        let reasons = choice.outdated(&link("cipher = \"AES-128-GCM\""), &now).join("\n");
        for expected in [
            "the kernel was 6.1.0 then and is 6.18.0 now",
            "OpenVPN was 2.6 then and is 2.7 now",
            "link.toml was 4 members, AES-256-GCM",
        ] {
            assert!(reasons.contains(expected), "{expected} in\n{reasons}");
        }
        let goal = choice.outdated(&link("goal = \"cpu\""), &host());
        assert_eq!(goal, ["the goal was Throughput then and is Cpu now"]);
        let elsewhere = Host { name: "b".to_owned(), ..host() };
        assert_eq!(choice.outdated(&link(""), &elsewhere), ["it was measured on a, not here"]);
    }
}
