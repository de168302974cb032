// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The managers: requests that arrive, transactions, and views that follow the store.

use super::*;

impl Simulation {
    /// Time until a paused manager continues, in milliseconds; `None` for one that runs.
    fn pause_left(&self, m: usize) -> Option<u64> {
        let left = self.managers[m].paused_until.saturating_sub(self.now);
        (left > 0).then_some(left)
    }

    pub(super) fn arrive(
        &mut self,
        m: usize,
        n: usize,
        process: u64,
        sent: u64,
        message: Message,
        tries: u32,
    ) {
        if let Some(wait) = self.pause_left(m) {
            self.after(wait, Event::Arrive { manager: m, node: n, process, sent, message });
            return;
        }
        let manager = &mut self.managers[m];
        let made = match &message {
            Message::Register(registration) => manager
                .core
                .register(registration, 0)
                .map(|(transaction, lease)| (transaction, Some(lease))),
            Message::Heartbeat(heartbeat) => {
                manager.core.heartbeat(heartbeat, 0).map(|made| (made, None))
            }
        };
        let (transaction, lease) = match made {
            Ok(made) => made,
            Err(refusal) => {
                // As the manager does: a refusal counts only if the view was fresh.
                if tries == 0 && !manager.cut {
                    self.pull(m, u64::MAX);
                    self.arrive(m, n, process, sent, message, 1);
                    return;
                }
                let answer = match (refusal, &message) {
                    (Refusal::Fenced { .. }, Message::Heartbeat(heartbeat)) => {
                        Answer::Fenced(heartbeat.fence)
                    }
                    (Refusal::Removed(_), _) => Answer::Removed,
                    _ => return,
                };
                if !self.managers[m].cut {
                    self.reply(n, process, sent, answer);
                }
                return;
            }
        };
        if self.mutation == Mutation::SignWithoutWriting && lease.is_none() {
            let revision = self.managers[m].core.view().revision;
            self.answer(m, n, process, sent, message, revision, None);
            return;
        }
        let then = Then::Reply { node: n, process, sent, message, lease, tries };
        let delay = self.delay();
        self.after(delay, Event::Commit { manager: m, transaction, then });
    }

    pub(super) fn commit(&mut self, m: usize, mut transaction: Transaction, then: Then) -> Checked {
        if let Some(wait) = self.pause_left(m) {
            self.after(wait, Event::Commit { manager: m, transaction, then });
            return Ok(());
        }
        if self.managers[m].cut {
            // Half of the time the request gets through, and only its answer is lost.
            if self.random.percent(50) && self.store.commit(&transaction).is_ok() {
                self.learn()?;
            }
            self.managers[m].core.put_back(&transaction);
            return Ok(());
        }
        let ledgers = Table::Ledger.key("");
        match self.mutation {
            Mutation::NoConditions => {
                transaction.when.retain(|c| c.key != EPOCH && !c.key.starts_with(&ledgers))
            }
            Mutation::NoEpoch => transaction.when.retain(|c| c.key != EPOCH),
            _ => {}
        }
        let done = self.store.commit(&transaction);
        self.learn()?;
        match (done, then) {
            (Ok(revision), Then::Reply { node, process, sent, message, lease, .. }) => {
                let delay = self.delay();
                self.after(
                    delay,
                    Event::Answer { manager: m, node, process, sent, message, revision, lease },
                );
            }
            (Ok(_), Then::Work) => {}
            (
                Err(StoreError::Conflict),
                Then::Reply { node, process, sent, message, tries, .. },
            ) if tries < 4 => {
                self.pull(m, u64::MAX);
                self.arrive(m, node, process, sent, message, tries + 1);
            }
            (Err(_), Then::Work) => self.managers[m].core.put_back(&transaction),
            (Err(_), _) => {}
        }
        Ok(())
    }

    /// The record of the node is written: the manager signs, from a view that has at least that revision.
    #[expect(clippy::too_many_arguments, reason = "the parts of one message")]
    pub(super) fn answer(
        &mut self,
        m: usize,
        n: usize,
        process: u64,
        sent: u64,
        message: Message,
        revision: u64,
        lease: Option<millrace_manager::model::node::Lease>,
    ) {
        if let Some(wait) = self.pause_left(m) {
            self.after(
                wait,
                Event::Answer { manager: m, node: n, process, sent, message, revision, lease },
            );
            return;
        }
        if self.managers[m].core.view().revision < revision {
            // Exactly that revision or everything: both happen.
            let to = if self.random.percent(50) { revision } else { u64::MAX };
            self.pull(m, to);
        }
        let local = self.managers[m].clock.at(self.now);
        let core = &self.managers[m].core;
        let answer = match &message {
            Message::Register(_) => lease.map(Answer::Registered),
            Message::Heartbeat(heartbeat) => {
                let grants = core.grants(&heartbeat.node, heartbeat.fence, 0);
                let keys: Vec<_> = if self.mutation == Mutation::KeysOfAllTenants {
                    let all = core.view().keys.values();
                    all.map(|key| (key.value.name.clone(), key.value.version)).collect()
                } else {
                    let keys = core.keys(&heartbeat.node, heartbeat.fence).into_iter();
                    keys.map(|key| (key.name.clone(), key.version)).collect()
                };
                let lacks =
                    |(name, version): &&(KeyName, u64)| heartbeat.keys.get(name) != Some(version);
                grants.ok().map(|(grants, _)| Answer::Set {
                    fence: heartbeat.fence,
                    revision: core.view().revision,
                    grants,
                    lacking: keys.iter().filter(lacks).cloned().collect(),
                    keys,
                    next: core.next_heartbeat(&heartbeat.node, heartbeat.fence, local),
                })
            }
        };
        if let Some(answer) = answer {
            self.reply(n, process, sent, answer);
        }
    }

    pub(super) fn reply(&mut self, n: usize, process: u64, sent: u64, answer: Answer) {
        let lost = self.nodes[n].deaf || (!self.calm && self.random.percent(5));
        let delay = self.delay();
        if !lost {
            self.after(delay, Event::Deliver { node: n, process, sent, answer });
        }
    }

    pub(super) fn pull_turn(&mut self, m: usize) {
        let manager = &self.managers[m];
        let pause = if self.calm { 20 } else { 5 + manager.lag };
        if self.pause_left(m).is_none() && !manager.cut {
            let known = manager.core.view().revision;
            let to = if self.random.percent(30) { known + self.random.below(5) } else { u64::MAX };
            self.pull(m, to);
        }
        let jitter = self.random.below(50);
        self.after(pause + jitter, Event::Pull(m));
    }

    /// Feeds the changes up to a revision to a manager.
    pub(super) fn pull(&mut self, m: usize, to: u64) {
        let manager = &mut self.managers[m];
        let after = manager.core.view().revision;
        let mut changes: Changes = self.store.changes(PREFIX, after, Duration::ZERO).unwrap();
        changes.changes.retain(|change| change.revision <= to);
        changes.revision = changes.revision.min(to).max(after);
        let local = manager.clock.at(self.now);
        manager.core.apply(&changes, local);
    }

    pub(super) fn work_turn(&mut self, m: usize) {
        let pause = 50 + self.random.below(100);
        self.after(pause, Event::Work(m));
        if self.pause_left(m).is_some() {
            return;
        }
        let local = self.managers[m].clock.at(self.now);
        for _ in 0..4 {
            let Some(transaction) = self.managers[m].core.next_change(local) else {
                return;
            };
            let delay = self.delay();
            self.after(delay, Event::Commit { manager: m, transaction, then: Then::Work });
        }
    }
}
