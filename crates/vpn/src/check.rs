// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Get → verify → generate: a link.toml or a former configuration against this host, as a plan.

use millrace_hostfs::Root;

use crate::choice::EngineChoice;
use crate::error::ApplyError;
use crate::exec::Lock;
use crate::host::Host;
use crate::link::{LinkProblem, LinkProblems, Side, VpnLink, member_of_device};
use crate::plan::{Folders, LinkPlan};
use crate::record::{self, AppliedLink, Found, link_lock};
use crate::remains::{self, Remains};

/// The result of a check: what `up` would do.
#[derive(Debug)]
pub struct Checked {
    /// Everything that `up` would write and run.
    pub plan: LinkPlan,
    /// The text of link.toml.
    pub text: String,
    use_case: Use,
}

impl Checked {
    /// The same, as the host is now.
    pub(crate) fn again(&self, folders: &Folders) -> Result<Self, ApplyError> {
        let Self { plan, text, use_case } = self;
        let side = Some(plan.layout.side);
        let choice = plan.choice.as_ref();
        check_with_choice(VpnLink::parse(text)?, text, side, folders, choice, *use_case)
    }
}

/// Purpose of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// The link is to become this: every problem is an error.
    Change,
    /// The link was this.
    WayBack,
}

/// Checks a link.toml against itself and this host, and plans it. Without `side`, this host is the end whose
/// address it has. A link with `engine = "auto"` becomes what was chosen.
pub fn check(text: &str, side: Option<Side>, folders: &Folders) -> Result<Checked, ApplyError> {
    let link = VpnLink::parse(text)?;
    let choice = match link.auto {
        Some(_) => record::saved_choice(&link.name, folders)?,
        None => None,
    };
    settled(&link.name, folders, || {
        check_with_choice(link.clone(), text, side, folders, choice.as_ref(), Use::Change)
    })
}

/// A check of a link, and the second one where the first found problems: another command that works on the link may be
/// their cause, and is waited for.
fn settled(
    name: &str,
    folders: &Folders,
    check: impl Fn() -> Result<Checked, ApplyError>,
) -> Result<Checked, ApplyError> {
    let first = check();
    let lock = link_lock(&folders.run_of(name));
    if matches!(first, Err(ApplyError::Problems(_)))
        && lock.exists()
        && let Ok(Some(_lock)) = Lock::wait(&lock)
    {
        return check();
    }
    first
}

/// Checks a link against this host and plans it, with the engine of a choice. The way back takes no notice of problems:
/// the configuration was in force, and a certificate that has expired since is no reason to stay with a worse one.
fn check_with_choice(
    declared: VpnLink,
    text: &str,
    side: Option<Side>,
    folders: &Folders,
    choice: Option<&EngineChoice>,
    use_case: Use,
) -> Result<Checked, ApplyError> {
    let choice = choice.filter(|_| declared.auto.is_some()).cloned();
    let link = match &choice {
        Some(choice) => declared.as_candidate(choice.chosen),
        None => declared.clone(),
    };
    let root = Root::open("/")?;
    let Some(side) = side.or_else(|| Host::read(&root, &link, None).side(&link)) else {
        let addresses = Side::ALL.map(|side| link.end(side).address.to_string()).join(" nor ");
        let problem = LinkProblem::of_host(
            format!("it has neither {addresses}, or both"),
            "correct the addresses, or say which end this is: --end a",
        );
        return Err(LinkProblems(vec![problem]).into());
    };
    let host = Host::read(&root, &link, Some(side));
    let applied = AppliedLink::find(folders, &link.name);
    let intended = record::find_intended(folders, &link.name);
    let mut ours = Vec::new();
    if applied.is_bad() || intended.is_bad() {
        // The devices are not known from a record: those with the names of this link are taken for its own.
        ours.extend(LinkPlan::new(&link, side, &host, folders).layout.devices());
    }
    let applied = applied.good().map(|applied| applied.layout);
    let changed = applied.as_ref().and_then(|layout| layout.mode_problem(&link));
    for layout in applied.iter().chain(&intended.good()) {
        ours.extend(layout.devices());
    }
    let is_unknown =
        |device: &String| member_of_device(&link.name, device).is_some() && !ours.contains(device);
    if host.devices.iter().any(is_unknown) {
        let places = remains::places(&link.name, folders, applied.iter());
        let Remains { tunnels, devices } = Remains::read(&link.name, &places);
        ours.extend(devices.into_iter().map(|device| device.name));
        ours.extend(tunnels.into_iter().map(|(number, _)| link.device(number)));
    }
    let mut problems = host.problems(&link, side, &ours);
    problems.extend(changed);
    if declared.auto.is_some() && choice.is_none() {
        problems.push(LinkProblem {
            line: link.lines.engine,
            ..LinkProblem::of_host(
                "engine \"auto\" needs a measurement",
                "`millrace vpn bench --choose LINK.TOML` measures and chooses; or copy the other end's choice.json",
            )
        });
    }
    if use_case == Use::Change {
        LinkProblems::none(problems, ())?;
    }
    let mut plan = LinkPlan::new(&link, side, &host, folders);
    let outdated = choice.iter().flat_map(|choice| choice.outdated(&declared, &host));
    plan.notes.extend(outdated.map(|why| {
        format!("the choice of the engine is old: {why}; `millrace vpn bench --choose LINK.TOML` measures anew")
    }));
    plan.choice = choice;
    Ok(Checked { plan, text: text.to_owned(), use_case })
}

/// A configuration of the history, checked and planned again: with the choice of its time.
///
/// # Errors
/// There is none with this number; or every problem.
pub fn check_former(
    name: &str,
    generation: u64,
    side: Side,
    folders: &Folders,
) -> Result<Checked, ApplyError> {
    settled(name, folders, || plan_former(name, generation, Some(side), folders, Use::Change))
}

/// Plans a configuration of the history.
pub(crate) fn plan_former(
    name: &str,
    generation: u64,
    side: Option<Side>,
    folders: &Folders,
    use_case: Use,
) -> Result<Checked, ApplyError> {
    let text = record::former_text(name, generation, folders)?;
    let choice = match (record::former_choice(name, generation, folders), use_case) {
        (Ok(choice), _) => choice,
        (Err(error), Use::Change) => return Err(error),
        // The last measurement is better than no way back.
        (Err(_), Use::WayBack) => record::saved_choice(name, folders).ok().flatten(),
    };
    check_with_choice(VpnLink::parse(&text)?, &text, side, folders, choice.as_ref(), use_case)
}

/// The record of a link that is up.
pub(crate) fn applied_of_link_up(folders: &Folders, name: &str) -> Result<AppliedLink, ApplyError> {
    applied(folders, name)?.ok_or_else(|| ApplyError::NotUp(name.to_owned()))
}

/// The record of an applied link; one that is of no use is made of the history: of the configuration that the record of
/// changes names, else of the newest.
pub(crate) fn applied(folders: &Folders, name: &str) -> Result<Option<AppliedLink>, ApplyError> {
    let error = match AppliedLink::find(folders, name) {
        Found::None => return Ok(None),
        Found::Good(applied) => return Ok(Some(applied)),
        Found::Bad(error) => error,
    };
    let side = record::find_intended(folders, name).good().map(|layout| layout.side);
    let changes = record::load_change(folders, name, None);
    let named = changes.trial().or_else(|| changes.confirmed()).copied();
    let Some(generation) = named.or_else(|| record::newest(name, folders)) else {
        return Err(error);
    };
    let Ok(checked) = plan_former(name, generation, side, folders, Use::WayBack) else {
        return Err(error);
    };
    Ok(Some(AppliedLink {
        generation,
        layout: checked.plan.layout,
        former: None,
        confirm_until_ms: None,
        anew: false,
        obsolete: Vec::new(),
    }))
}
