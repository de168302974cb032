// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What keeps the provider out of a server although every file is right: file capabilities, lines of the unit that
//! confine it, AppArmor and SELinux. Each finding names the line.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use millrace_hostfs::systemd;

use super::provider::Provider;
use super::{Failure, Good, Unseen, Warning};
use crate::check::access;
use crate::check::apparmor::Profile;
use crate::check::evidence::{Evidence, ServerProcesses};
use crate::check::pool::{AskedNodes, Question};
use crate::check::{CheckRemedy, CheckReport, Nodes};

/// `AT_SECURE` of getauxval(3): the C library then ignores `LD_PRELOAD`, and OpenSSL `OPENSSL_CONF`.
const AT_SECURE: u64 = 23;

/// Identifier of the finding about a node's socket.
pub(super) const SOCKET: &str = "socket";

/// Identifier of the findings about limits of the server's processes.
const LIMITS: &str = "limits";

/// Identifier of the findings about security modules and filters.
const CONFINEMENT: &str = "confinement";

/// Causes that keep the provider out of the server, as later findings name them.
#[derive(Default)]
pub(super) struct Hindrance {
    /// A line of the unit hides a socket or a file.
    pub(super) by_unit: bool,
    /// AppArmor's profile denies a file.
    pub(super) by_profile: bool,
}

/// Adds the findings.
pub(super) fn findings(
    evidence: &Evidence,
    provider: Option<&Provider>,
    nodes: &dyn Nodes,
    report: &mut CheckReport,
) -> Hindrance {
    if let Some(running) = &evidence.running {
        secure_mode(evidence, running, report);
        selinux(evidence, running, report);
        process_limit(evidence, running, report);
    }
    let by_profile = apparmor(evidence, provider, nodes, report);
    let by_unit = evidence.running.as_ref().map_or(evidence.systemd, |running| running.by_unit);
    let (true, Some(provider)) = (by_unit, provider) else {
        return Hindrance { by_unit: false, by_profile };
    };
    let unit = Unit { evidence, needs: Needs::of(evidence, Some(provider)) };
    unit.families(report);
    unit.network(report);
    Hindrance { by_unit: unit.hidden_paths(report), by_profile }
}

/// The failures of a check have the cause of a finding above.
pub(super) fn explain(report: &mut CheckReport, check: &str, cause: &str) {
    for finding in &mut report.findings {
        if finding.check == check && finding.outcome == Failure {
            finding.remedy = Some(cause.to_owned());
            finding.run.clear();
        }
    }
}

/// Adds what a process in the server's place found besides the answers of the nodes.
pub(super) fn probed(evidence: &Evidence, asked: &AskedNodes, report: &mut CheckReport) {
    let Some(running) = &evidence.running else {
        return;
    };
    let pid = running.worker().pid;
    // HAProxy without `insecure-fork-wanted` has a finding of its own.
    let sets_none = evidence.proc.soft_limit(pid, "Max processes") == Some(0);
    let known = report.findings.iter().any(|finding| finding.check == LIMITS);
    if let Some(error) = asked.no_thread.as_ref().filter(|_| !sets_none && !known) {
        let seen =
            format!("a process in the place of {pid} cannot start the provider's thread: {error}");
        report.add(LIMITS, Failure, seen, lines_of_the_unit(evidence));
    }
    for missing in &asked.not_taken {
        let seen = format!(
            "the nodes were not asked under the whole confinement of process {pid}: {missing}"
        );
        report.add(
            CONFINEMENT,
            Unseen,
            seen,
            "the line of the handshakes shows whether it lets the provider work",
        );
    }
    if asked.filters > 0 {
        let filters = if asked.filters == 1 { "filter" } else { "filters" };
        let seen = format!(
            "the nodes were asked under the {} {filters} of system calls of process {pid}",
            asked.filters
        );
        report.add(CONFINEMENT, Good, seen, None);
    }
}

/// The remedy for a step on the way to a node that is forbidden with this error: rules of the profile, or the lines of
/// the unit that can forbid it.
pub(super) fn forbidding(evidence: &Evidence, provider: &Provider, error: &str) -> CheckRemedy {
    match &evidence.profile {
        Some(profile) if error.contains("AppArmor") => allowing(evidence, Some(provider), profile),
        Some(_) | None => lines_of_the_unit(evidence).into(),
    }
}

fn lines_of_the_unit(evidence: &Evidence) -> String {
    const SETTINGS: [&str; 8] = [
        "RestrictAddressFamilies",
        "SystemCallFilter",
        "SystemCallErrorNumber",
        "AppArmorProfile",
        "LimitNPROC",
        "TasksMax",
        "PrivateNetwork",
        "NetworkNamespacePath",
    ];
    let by_unit = evidence.running.as_ref().is_some_and(|running| running.by_unit);
    let unit = &evidence.unit;
    let lines = SETTINGS.iter().filter_map(|setting| {
        let values = systemd::values(&evidence.root, unit, setting);
        (by_unit && !values.is_empty()).then(|| format!("{setting}={}", values.join(" ")))
    });
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() {
        return "no line of a unit forbids it: look at the container or the program that started the server, with what \
                the error names"
            .to_owned();
    }
    let named = lines.join("; ");
    format!(
        "the unit {unit} has {named}: change it by `systemctl edit {unit}`, then restart the server"
    )
}

fn secure_mode(evidence: &Evidence, running: &ServerProcesses, report: &mut CheckReport) {
    let pid = running.master.pid;
    if !matches!(evidence.proc.auxiliary_value(pid, AT_SECURE), Ok(Some(1..))) {
        return;
    }
    let program = evidence.proc.link(pid, "exe");
    let program =
        program.map_or_else(|_| evidence.server.to_string(), |path| path.display().to_string());
    let seen = format!(
        "{program} has capabilities of its file, or is set-user-ID: process {pid} runs in secure mode, in which the C \
         library ignores LD_PRELOAD, and OpenSSL ignores OPENSSL_CONF"
    );
    let advice =
        "take the capabilities from the file; the unit grants them by AmbientCapabilities= instead";
    let line = "AmbientCapabilities=CAP_NET_BIND_SERVICE";
    let unit = &evidence.unit;
    let grant = format!(
        "printf '[Service]\\n{line}\\n' | systemctl edit --stdin --drop-in=ports.conf {unit}"
    );
    let mut run = vec![format!("setcap -r {program}")];
    run.extend(evidence.systemd.then_some(grant));
    run.extend(evidence.systemd.then(|| format!("systemctl restart {unit}")));
    report.add("secure-mode", Failure, seen, CheckRemedy::run(advice.to_owned(), run));
}

/// A process whose user has as many as its limit allows cannot start the thread that reads the pool's answers.
fn process_limit(evidence: &Evidence, running: &ServerProcesses, report: &mut CheckReport) {
    let worker = running.worker();
    let user = worker.user.uid;
    // HAProxy sets 0 itself, which has a finding of its own.
    let limit = evidence.proc.soft_limit(worker.pid, "Max processes");
    let Some(limit) = limit.filter(|limit| *limit > 0 && user != 0) else {
        return;
    };
    let all = evidence.proc.named(|_| true).unwrap_or_default();
    let count = all.iter().filter(|process| process.user.uid == user).count() as u64;
    if count >= limit {
        let seen = format!(
            "LimitNPROC={limit} (RLIMIT_NPROC): user {user} has {count} processes, so the provider cannot start its thread"
        );
        let remedy = evidence.restart().worded(|restart| {
            format!(
                "raise LimitNPROC= of {} to {} or more, then {restart}",
                evidence.unit,
                2 * count + 2
            )
        });
        report.add(LIMITS, Failure, seen, remedy);
    }
}

/// A profile of AppArmor that denies the server the provider's files. Returns whether it denies one. Where a process
/// cannot take the profile to try them, a profile that does not name the provider is a warning.
fn apparmor(
    evidence: &Evidence,
    provider: Option<&Provider>,
    nodes: &dyn Nodes,
    report: &mut CheckReport,
) -> bool {
    let Some(profile) = &evidence.profile else {
        return false;
    };
    let name = &profile.name;
    let tried = evidence.worker().and_then(|worker| {
        let files = Needs::of(evidence, provider).files;
        let asked = nodes.ask(&worker.place, &Question { files, ..Question::default() })?;
        // The kernel's modes have findings of their own.
        let may =
            |file: &PathBuf| access::read(&worker.place.user, &worker.place.root, file).is_ok();
        asked.not_taken.is_empty().then(|| asked.denied.into_iter().find(may))
    });
    let (outcome, seen) = match tried {
        Some(None) => {
            let seen =
                format!("AppArmor's profile {name} lets the server read the provider's files");
            report.add(CONFINEMENT, Good, seen, None);
            return false;
        }
        Some(Some(file)) => {
            let consequence = if evidence.running.is_some() {
                "the server serves without the pool, and says nothing"
            } else {
                "the server starts without the pool, or does not start with a stub"
            };
            let seen = format!(
                "AppArmor's profile {name} denies the server {}: {consequence}",
                file.display()
            );
            (Failure, seen)
        }
        None if profile.names_millrace(&evidence.root) => return false,
        None => {
            let seen = format!(
                "AppArmor's profile {name} confines the server: what it does not name is denied, and the server may \
                 say nothing of it"
            );
            (Warning, seen)
        }
    };
    report.add(CONFINEMENT, outcome, seen, allowing(evidence, provider, profile));
    outcome == Failure
}

/// How to let the profile allow what the provider needs.
fn allowing(evidence: &Evidence, provider: Option<&Provider>, profile: &Profile) -> CheckRemedy {
    let mut run = profile.adding(&Needs::of(evidence, provider).rules()).to_vec();
    run.extend(evidence.systemd.then(|| format!("systemctl restart {}", evidence.service())));
    CheckRemedy::run(format!("let the profile allow it, then restart {}", evidence.server), run)
}

/// SELinux in enforcing mode.
fn selinux(evidence: &Evidence, running: &ServerProcesses, report: &mut CheckReport) {
    let label = evidence.proc.security_label(running.worker().pid);
    let context = label.ok().filter(|label| label.split(':').count() >= 3);
    if let Some(context) = context.filter(|_| is_enforcing(evidence)) {
        let seen = format!(
            "SELinux enforces its policy on {context}: a denial is in the audit log, and the server may say nothing of \
             it"
        );
        let run = ["ausearch -m avc -ts recent".to_owned()];
        let advice =
            "if the lines below fail, look for denials, and let audit2allow make a module of them";
        report.add(CONFINEMENT, Warning, seen, CheckRemedy::run(advice.to_owned(), run));
    }
}

fn is_enforcing(evidence: &Evidence) -> bool {
    let mode = evidence.root.lossy_text("/sys/fs/selinux/enforce", 16);
    // In a bundle, and where the file is hidden, the module may enforce.
    mode.map_or(true, |mode| mode.trim() == "1")
}

/// The sockets and files that the provider uses.
struct Needs {
    sockets: Vec<PathBuf>,
    over_tcp: bool,
    files: Vec<PathBuf>,
}

impl Needs {
    fn of(evidence: &Evidence, provider: Option<&Provider>) -> Self {
        let nodes = || provider.iter().flat_map(|provider| &provider.nodes);
        let sockets = nodes().filter_map(|node| node.strip_prefix("unix:"));
        let module = provider.and_then(|provider| provider.module.as_ref()).map(PathBuf::from);
        let conf = evidence.cnf.iter().map(|(path, _)| path.clone());
        let client = evidence.client.iter().map(|(path, _)| path.clone());
        let tls = provider.and_then(|provider| provider.tls.as_ref());
        let certificates = tls.into_iter().flat_map(|tls| tls.named());
        Self {
            sockets: sockets.map(PathBuf::from).collect(),
            over_tcp: nodes().any(|node| node.starts_with("tcp:")),
            files: conf
                .chain(client)
                .chain(module)
                .chain(certificates.map(|(_, path)| path.to_owned()))
                .collect(),
        }
    }

    /// Rules of AppArmor that allow it.
    fn rules(&self) -> Vec<String> {
        /// The folder of our own files.
        const OURS: &str = "/etc/millrace";
        let sockets = self.sockets.iter().map(|path| format!("{} rw,", path.display()));
        let mut rules: Vec<String> = sockets.collect();
        let (ours, others): (Vec<&PathBuf>, _) =
            self.files.iter().partition(|file| file.starts_with(OURS));
        rules.extend((!ours.is_empty()).then(|| format!("{OURS}/** r,")));
        for file in others {
            let access = if file.extension().is_some_and(|kind| kind == "so") { "mr" } else { "r" };
            rules.push(format!("{} {access},", file.display()));
        }
        if self.over_tcp {
            rules.extend(["inet", "inet6"].map(|family| format!("network {family} stream,")));
        }
        rules
    }
}

/// The lines of the server's unit.
struct Unit<'a> {
    evidence: &'a Evidence,
    needs: Needs,
}

impl Unit<'_> {
    fn values(&self, setting: &str) -> Vec<String> {
        systemd::values(&self.evidence.root, &self.evidence.unit, setting)
    }

    fn is_on(&self, setting: &str) -> bool {
        let last = self.values(setting).pop();
        last.is_some_and(|value| ["yes", "true", "on", "1"].contains(&value.as_str()))
    }

    /// Adds a failure because of a line, with the line of a drop-in that cures it.
    fn fails(&self, line: &str, because: &str, cure: &str, report: &mut CheckReport) {
        let unit = &self.evidence.unit;
        let seen = format!("{line} of {unit}: {because}");
        let remedy = self
            .evidence
            .restart()
            .worded(|restart| format!("{cure} (systemctl edit {unit}), then {restart}"));
        report.add("unit", Failure, seen, remedy);
    }

    fn families(&self, report: &mut CheckReport) {
        const SETTING: &str = "RestrictAddressFamilies";
        let values = self.values(SETTING);
        let denies = |families: &[&str]| families.iter().all(|family| !allows(&values, family));
        let line = format!("{SETTING}={}", values.join(" "));
        if !self.needs.sockets.is_empty() && denies(&["AF_UNIX"]) {
            let because = "it keeps the provider from the node's socket";
            self.fails(&line, because, &format!("add {SETTING}=AF_UNIX"), report);
        }
        if self.needs.over_tcp && denies(&["AF_INET", "AF_INET6"]) {
            let because = "it keeps the provider from nodes over TCP";
            self.fails(&line, because, &format!("add {SETTING}=AF_INET AF_INET6"), report);
        }
    }

    fn network(&self, report: &mut CheckReport) {
        if self.needs.over_tcp && self.is_on("PrivateNetwork") {
            let because = "the service has a network of its own, in which no tcp: node is";
            let cure = "take it out, or use a node on this machine by its socket";
            self.fails("PrivateNetwork=yes", because, cure, report);
        }
        let deny = self.values("IPAddressDeny");
        if self.needs.over_tcp && !deny.is_empty() && self.values("IPAddressAllow").is_empty() {
            let because = "the kernel drops the packets to tcp: nodes";
            let line = format!("IPAddressDeny={}", deny.join(" "));
            self.fails(
                &line,
                because,
                "add IPAddressAllow= with the addresses of the nodes",
                report,
            );
        }
    }

    /// Adds what hides a socket or a file. Returns whether there is something.
    fn hidden_paths(&self, report: &mut CheckReport) -> bool {
        let before = report.findings.len();
        let needed = || self.needs.sockets.iter().chain(&self.needs.files);
        for folder in paths(&self.values("InaccessiblePaths")) {
            if let Some(path) = needed().find(|path| path.starts_with(&folder)) {
                let line = format!("InaccessiblePaths={}", folder.display());
                let because = format!("it hides {}", path.display());
                self.fails(&line, &because, "take the path out", report);
            }
        }
        let mut bound = paths(&self.values("BindPaths"));
        bound.extend(paths(&self.values("BindReadOnlyPaths")));
        let is_bound = |path: &Path| bound.iter().any(|bound| path.starts_with(bound));
        let mut empty: Vec<(String, PathBuf)> = Vec::new();
        for folder in paths(&self.values("TemporaryFileSystem")) {
            empty.push((format!("TemporaryFileSystem={}", folder.display()), folder));
        }
        if self.is_on("PrivateTmp") {
            let own =
                ["/tmp", "/var/tmp"].map(|folder| ("PrivateTmp=yes".to_owned(), folder.into()));
            empty.extend(own);
        }
        for (line, folder) in empty {
            let hidden = needed().find(|path| path.starts_with(&folder) && !is_bound(path));
            if let Some(path) = hidden {
                let parent = path.parent().unwrap_or(path).display();
                let because = format!("it hides {}", path.display());
                let setting = if self.needs.sockets.contains(path) {
                    "BindPaths"
                } else {
                    "BindReadOnlyPaths"
                };
                self.fails(&line, &because, &format!("add {setting}={parent}"), report);
            }
        }
        report.findings.len() > before
    }
}

/// Whether the values of `RestrictAddressFamilies=` allow a family (systemd.exec(5)).
fn allows(values: &[String], family: &str) -> bool {
    let mut allowed: Option<BTreeSet<&str>> = None;
    let mut denied = BTreeSet::new();
    for value in values {
        if let Some(list) = value.strip_prefix('~') {
            for word in list.split_whitespace() {
                if let Some(allowed) = &mut allowed {
                    allowed.remove(word);
                } else {
                    denied.insert(word);
                }
            }
            continue;
        }
        let words = value.split_whitespace().filter(|word| *word != "none");
        if allowed.is_none() && !denied.is_empty() {
            denied.retain(|denied| !words.clone().any(|word| word == *denied));
        } else {
            allowed.get_or_insert_default().extend(words);
        }
    }
    allowed.map_or_else(|| !denied.contains(family), |allowed| allowed.contains(family))
}

/// The paths in a list of systemd: without the marks before them and, for a bind, the place inside the service.
fn paths(values: &[String]) -> Vec<PathBuf> {
    let words = values.iter().flat_map(|value| value.split_whitespace());
    words
        .map(|word| word.trim_start_matches(['-', '+']))
        .filter_map(|word| {
            let mut parts = word.split(':').filter(|part| part.starts_with('/'));
            let first = parts.next()?;
            Some(parts.next().unwrap_or(first).into())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(values: &[&str]) -> Vec<String> {
        values.iter().map(|value| (*value).to_owned()).collect()
    }

    #[test]
    fn families_follow_the_rules_of_systemd() {
        for (values, unix, inet) in [
            (&[][..], true, true),
            (&["AF_INET AF_INET6"], false, true),
            (&["AF_INET", "AF_UNIX"], true, true),
            (&["none"], false, false),
            (&["~AF_UNIX"], false, true),
            (&["~AF_UNIX AF_INET", "AF_UNIX"], true, false),
            (&["AF_UNIX AF_INET", "~AF_UNIX"], false, true),
        ] {
            let values = owned(values);
            let found = (allows(&values, "AF_UNIX"), allows(&values, "AF_INET"));
            assert_eq!(found, (unix, inet), "{values:?}");
        }
    }

    #[test]
    fn paths_lose_their_marks_and_sources() {
        let found = paths(&owned(&["-/a +/b", "/c:/d:rbind", "/e:ro", "x"]));
        assert_eq!(found, ["/a", "/b", "/d", "/e"].map(PathBuf::from));
    }
}
