// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace vpn bench`, and with `--choose` the engine of a link with `engine = "auto"`.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use millrace_bench::cli::{CaseEngine, LinkToMeasure, measure_links, run_vpn};
use millrace_hostfs::Root;
use millrace_vpn::apply::{choice_file, save_choice};
use millrace_vpn::candidate::EngineCandidate;
use millrace_vpn::choice::{EngineChoice, EngineContender, EngineVerdict, LinkMeasurement, Round};
use millrace_vpn::host::Host;
use millrace_vpn::link::{DataPath, LinkEngine, VpnLink};

use super::{folders, read};
use crate::args::VpnBenchArgs;
use crate::commands::bench::to_exit_error;
use crate::exit::{Failure, fail};
use crate::output::{Table, date};

pub(super) fn bench(args: &VpnBenchArgs) -> Result<()> {
    let Some(file) = &args.choose else {
        return run_vpn(&args.bench).map_err(to_exit_error);
    };
    let usage = |message: String| fail(Failure::Usage, message);
    let link = VpnLink::parse(&read(file)?).map_err(|error| usage(error.to_string()))?;
    let Some(auto) = &link.auto else {
        let message = format!("{} names its engine: write engine = \"auto\"", file.display());
        return Err(usage(message));
    };
    let other = match &args.other {
        Some(path) => {
            let other: EngineChoice = serde_json::from_str(&read(path)?)
                .with_context(|| format!("{} is not a choice.json", path.display()))?;
            // Its first measurement is that of the host that saved it.
            other.hosts.into_iter().next()
        }
        None => None,
    };
    let host = Host::read(&Root::open("/")?, &link, None);
    let own = measure(args, &link, &host)?;
    let hosts = std::iter::once(own).chain(other).collect();
    let choice = EngineChoice::of(&link, auto.goal, hosts)
        .map_err(|error| fail(Failure::Failed, error.to_string()))?;
    let folders = folders(&args.folders);
    save_choice(&choice, &folders)?;
    args.bench.deliver(&choice, &page(&choice))?;
    let saved = choice_file(&link.name, &folders);
    note!(
        "saved to {0}; copy it to the other end, or give it to `vpn bench --choose LINK.TOML --other` there",
        saved.display()
    );
    Ok(())
}

/// Measures the candidates that this host can run.
fn measure(args: &VpnBenchArgs, link: &VpnLink, host: &Host) -> Result<LinkMeasurement> {
    let obstacles =
        EngineCandidate::ALL.map(|candidate| (candidate, candidate.obstacle(link, host)));
    let running: Vec<EngineCandidate> = obstacles
        .iter()
        .filter(|(_, why)| why.is_none())
        .map(|(candidate, _)| *candidate)
        .collect();
    let links: Vec<LinkToMeasure> =
        running.iter().map(|candidate| to_measure(link, *candidate)).collect();
    let measured = match &links[..] {
        [] => Vec::new(),
        links => measure_links(&args.bench, links).map_err(to_exit_error)?,
    };
    let contender = |(candidate, why): &(EngineCandidate, Option<String>)| {
        let at = running.iter().position(|ran| ran == candidate);
        let (rounds, unavailable) = match at.and_then(|at| measured.get(at)) {
            Some(Ok(rounds)) => (rounds.clone(), None),
            Some(Err(why)) => (Vec::new(), Some(why.to_string())),
            None => (Vec::new(), why.clone()),
        };
        let round = |round: &millrace_bench::cli::LinkRound| Round {
            mbit: round.mbit,
            cpu_s_per_gb: round.cpu_s_per_gb,
        };
        EngineContender {
            candidate: *candidate,
            started: at.is_some(),
            rounds: rounds.iter().map(round).collect(),
            unavailable,
        }
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let contenders = obstacles.iter().map(contender).collect();
    Ok(LinkMeasurement::new(link, host, now, contenders))
}

fn to_measure(link: &VpnLink, candidate: EngineCandidate) -> LinkToMeasure {
    let link = link.as_candidate(candidate);
    let (engine, proposals) = match &link.engine {
        LinkEngine::OpenVpn(DataPath::User) => (CaseEngine::OpenVpn, String::new()),
        LinkEngine::OpenVpn(DataPath::Kernel) => (CaseEngine::Dco, String::new()),
        LinkEngine::Ipsec(settings) => {
            let engine = match (settings.data_path, settings.per_cpu) {
                (DataPath::User, _) => CaseEngine::UserIpsec,
                (DataPath::Kernel, false) => CaseEngine::KernelIpsec,
                (DataPath::Kernel, true) => CaseEngine::PerCpuSas,
            };
            let list = |items: Vec<String>| format!("{items:?}");
            let ike = list(settings.ike.iter().map(ToString::to_string).collect());
            let esp = list(settings.esp.iter().map(ToString::to_string).collect());
            (engine, format!("ike = {ike}\nesp = {esp}\n"))
        }
    };
    LinkToMeasure {
        name: candidate.name(),
        members: link.members,
        engine,
        cipher: link.cipher.name(),
        path_mtu: link.path_mtu,
        buffers: link.socket_buffer_bytes,
        proposals,
    }
}

/// The choice as text: what, when, where, and what became of each candidate.
pub(super) fn page(choice: &EngineChoice) -> String {
    let mut text = format!(
        "engine auto of link {}: {} ({})\n",
        choice.name,
        choice.chosen.title(),
        choice.chosen.name()
    );
    for host in &choice.hosts {
        let version = |name: &str, version: &Option<String>| {
            let version = version.as_ref().map(|version| format!(", {name} {version}"));
            version.unwrap_or_default()
        };
        text.push_str(&format!(
            "measured on {} on {}: Linux {}{}{}; {}; both ends on {} processors\n",
            date(host.at),
            host.host,
            host.kernel,
            version("OpenVPN", &host.openvpn),
            version("strongSwan", &host.strongswan),
            host.link,
            host.processors
        ));
    }
    text.push('\n');
    text.push_str(&table(choice).render(false, None));
    text
}

#[rustfmt::skip]
fn table(choice: &EngineChoice) -> Table {
    let rates = |candidate: EngineCandidate, value: &dyn Fn(&Round) -> String| {
        let rounds = choice.hosts.iter().map(|host| {
            let contender = host.contenders.iter().find(|contender| contender.candidate == candidate);
            let rounds = contender.map_or(&[][..], |contender| &contender.rounds[..]);
            let rounds: Vec<String> = rounds.iter().map(value).collect();
            rounds.join(" ")
        });
        let rounds: Vec<String> = rounds.filter(|rounds| !rounds.is_empty()).collect();
        if rounds.is_empty() { "-".to_owned() } else { rounds.join("; ") }
    };
    let verdict = |verdict: &EngineVerdict| match verdict {
        EngineVerdict::Chosen => "chosen".to_owned(),
        EngineVerdict::Lost(ratio) => format!("lost: {:.2}x ({:.2} to {:.2})", ratio.median, ratio.min, ratio.max),
        EngineVerdict::Tied(ratio) => format!("as good, less simple: {:.2}x ({:.2} to {:.2})", ratio.median, ratio.min, ratio.max),
        EngineVerdict::Out(why) => format!("out: {}", why.lines().next().unwrap_or_default()),
    };
    Table::of(&choice.verdicts, &[
        ("candidate", &|(candidate, _)| candidate.name().to_owned()),
        ("Mbit/s by round", &|(candidate, _)| rates(*candidate, &|round| format!("{:.0}", round.mbit))),
        ("CPU s/GB", &|(candidate, _)| rates(*candidate, &|round| format!("{:.1}", round.cpu_s_per_gb))),
        ("verdict", &|(_, outcome)| verdict(outcome)),
    ])
}
