// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The nodes: their turns, and answers that arrive at them.

use super::*;

impl Simulation {
    pub(super) fn node_turn(&mut self, n: usize) {
        let pause = 20 + self.random.below(150);
        self.after(pause, Event::NodeTurn(n));
        let now = self.now;
        let node = &mut self.nodes[n];
        if !node.alive || node.paused_until > now {
            return;
        }
        let local = node.clock.at(now);
        if self.mutation != Mutation::DueKeysStay {
            for name in node.keys.due(local) {
                node.keys.deleted(&name);
            }
        }
        // A request that is not answered is given up after a second.
        if let Some(sent) = node.waiting {
            if now < sent + 1000 {
                return;
            }
            node.waiting = None;
            node.holder.failed(local);
        }
        let due = node.holder.due(local);
        if matches!(due, Due::Nothing { .. }) {
            return;
        }
        node.waiting = Some(now);
        let truth = self.truth.revision;
        let message = match due {
            Due::Nothing { .. } => unreachable!("checked above"),
            Due::Register => Message::Register(Registration {
                name: node.name.clone(),
                process: node.process,
                former: node.former.clone(),
                seen: node.holder.seen(),
                addresses: ["tcp://192.0.2.1:9463".to_owned()].into(),
                zone: None,
                capacity: [("rsa2048".parse().unwrap(), 1000)].into(),
                features: BTreeSet::new(),
                version: "0.1.0".to_owned(),
                sealing_key: None,
            }),
            Due::Heartbeat { fence, applied } => Message::Heartbeat(Heartbeat {
                node: node.name.clone(),
                fence,
                applied: if self.mutation == Mutation::AckBeforeApplying { truth } else { applied },
                clock_ms: 0,
                load: Load::default(),
                health: Health::default(),
                keys: node.keys.versions(),
            }),
        };
        let process = node.process;
        let mute = node.mute;
        let lost = mute || (!self.calm && self.random.percent(5));
        let manager = self.random.index(MANAGERS);
        let delay = self.delay();
        if !lost {
            self.after(delay, Event::Arrive { manager, node: n, process, sent: now, message });
        }
    }

    /// Mostly a few milliseconds, sometimes longer than a grant lives.
    pub(super) fn delay(&mut self) -> u64 {
        if self.calm || self.random.percent(90) {
            1 + self.random.below(20)
        } else if self.random.percent(80) {
            self.random.below(1000)
        } else {
            self.random.below(2 * TTL_MS)
        }
    }

    pub(super) fn deliver(&mut self, n: usize, process: u64, sent: u64, answer: Answer) {
        let now = self.now;
        let node = &mut self.nodes[n];
        if !node.alive || node.process != process {
            return;
        }
        if node.paused_until > now {
            let wait = node.paused_until - now;
            self.after(wait, Event::Deliver { node: n, process, sent, answer });
            return;
        }
        if node.waiting == Some(sent) {
            node.waiting = None;
        }
        let local = node.clock.at(now);
        match answer {
            Answer::Registered(lease) => {
                if node.holder.fence().is_none_or(|fence| fence < lease.fence) {
                    node.holder.registered(&lease, Duration::from_millis(TTL_MS), local);
                }
            }
            Answer::Set { fence, revision, grants, keys, lacking, next } => {
                let mut set = VerifiedSet { fence, revision, next, grants };
                let check = node.holder.check(&set, node.clock.at(sent), local);
                if check.is_ok() || self.mutation == Mutation::KeysOfOlderAnswers {
                    for (name, version) in lacking {
                        if node.keys.admit(&name, version, &keys).is_ok() {
                            node.doomed.remove(&name);
                            node.keys.note(name, version);
                        }
                    }
                }
                let sent = match self.mutation {
                    Mutation::LifeFromReceipt => local,
                    _ => node.clock.at(sent),
                };
                if self.mutation == Mutation::OlderGrants && node.holder.fence() == Some(fence) {
                    set.revision = revision.max(node.holder.applied());
                }
                // A set that is not taken leaves the former one in force.
                let applied = node.holder.apply(set, sent, local);
                if applied.is_ok() && self.mutation != Mutation::KeysKept {
                    node.keys.reconcile(&keys, local);
                }
            }
            Answer::Fenced(fence) => node.holder.fenced(fence, local),
            Answer::Removed => {
                node.keys.reconcile(&[], local);
                node.holder.removed(local);
            }
        }
    }
}
