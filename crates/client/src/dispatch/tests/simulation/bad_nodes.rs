// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Schedules in which one node gets a vice and keeps it, beside others that are well. The owners of jobs verify
//! results, report wrong ones, and try again, as the provider does.
//!
//! One more property holds in them: **no job that begins a second after the vice fails.**

use super::*;
use crate::job::{ReplySource, WrongNodes};

/// A way of being bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vice {
    /// Results are wrong.
    Wrong,
    /// Jobs are taken and never completed.
    Never,
    /// Jobs take a hundred times longer.
    Slow,
    /// Completions have ids of jobs that were never submitted.
    ForeignIds,
    /// Bytes that are no frame come in place of completions.
    Garbage,
    /// Every job fails.
    Failing,
    /// Never, in every other part of this length, in milliseconds.
    Flapping(u32),
    /// Every other job is completed wrongly.
    OftenWrong,
}

/// Bit of a result that is wrong.
const WRONG: u64 = 1 << 63;

/// Time between a node that becomes bad and the last job, in milliseconds.
const BAD_FOR_MS: u32 = 6_000;

/// A schedule here takes as long as ten others.
const LONG_RUNS: u64 = 10;

/// Time after which nothing fails any more.
const FIRST_SECOND_MS: u32 = 1_000;

/// Milliseconds that a job has, as with the provider's default.
const DEADLINE_MS: u32 = 2_000;

/// A wrong result that its owner has found.
pub(super) struct WrongResult {
    client: usize,
    number: u64,
    deadline: u32,
    source: ReplySource,
    wrong: WrongNodes,
}

/// Wrong results, and right ones of nodes on trial.
#[derive(Default)]
pub(super) struct Verdicts {
    wrong: Vec<WrongResult>,
    right: Vec<(usize, ReplySource)>,
}

#[test]
fn no_job_fails_beside_a_bad_node_after_the_first_second() {
    let (sums, schedules) = simulate_all(LONG_RUNS, simulate_bad_nodes);
    if schedules == 1 {
        return;
    }
    for (what, count) in [("results", sums.succeeded), ("wrong results", 2 * sums.wrong)] {
        assert!(count > schedules, "{what}: {count} in {schedules} schedules");
    }
}

fn simulate_bad_nodes(seed: u64) -> Sums {
    let mut world = World::new(seed);
    let last = world.make_bad();
    world.run();
    let mut sums = Sums::default();
    for (number, job) in lock(&world.jobs).iter().enumerate() {
        let at = world.submitted[number];
        match job {
            JobState::Answered => sums.succeeded += 1,
            JobState::Failed(error) => {
                sums.failed += 1;
                let vices: Vec<_> = world.nodes.iter().map(|node| node.vice).collect();
                // The silence of a node shows when later jobs are answered elsewhere.
                let is_judged = last + FIRST_SECOND_MS..last + BAD_FOR_MS - FIRST_SECOND_MS;
                assert!(
                    !is_judged.contains(&at),
                    "job {number}, submitted {} ms after the last vice of {vices:?}, failed: {error}",
                    at - last
                );
            }
            JobState::Open { .. } => panic!("job {number} hangs"),
        }
    }
    for client in &world.clients {
        sums.wrong +=
            client.dispatcher.stats().nodes.iter().map(|node| node.counters.wrong).sum::<u64>();
    }
    sums
}

impl World {
    /// Makes all nodes well but one, which gets bad. Gives the time of that.
    fn make_bad(&mut self) -> u32 {
        while self.nodes.len() < 2 {
            self.nodes.push(SimNode::new(&mut self.random));
        }
        for client in &mut self.clients {
            *client = Client::new(self.nodes.len(), &mut self.random, self.start);
            client.dispatcher.max_in_flight = 10_000;
        }
        self.nodes.iter_mut().for_each(SimNode::make_well);
        let flap = 100 + self.below(900);
        let vices = [
            Vice::Wrong,
            Vice::Never,
            Vice::Slow,
            Vice::ForeignIds,
            Vice::Garbage,
            Vice::Failing,
            Vice::Flapping(flap),
            Vice::OftenWrong,
        ];
        let vice = vices[self.pick(vices.len())];
        let last = if self.one_in(2) { self.below(2000) } else { 0 };
        (self.nodes[0].vice, self.nodes[0].bad_from) = (Some(vice), last);
        let end = last + BAD_FOR_MS;
        for client in 0..self.clients.len() {
            let mut at = self.below(50);
            // The good node alone can do them, whatever its bound on jobs in flight.
            let gap = 20 + self.below(60);
            while at < end {
                self.at(at, SimEvent::Submit { client });
                at += 1 + self.below(2 * gap);
            }
        }
        self.time_limit = Some(DEADLINE_MS);
        self.verdicts = Some(Arc::default());
        self.end = Some(end + DEADLINE_MS);
        last
    }

    /// Whether the node is bad now, and how.
    pub(super) fn vice(&mut self, node: usize) -> Option<Vice> {
        let node = &self.nodes[node];
        let vice = node.vice.filter(|_| self.now >= node.bad_from)?;
        match vice {
            Vice::Flapping(part) if (self.now / part).is_multiple_of(2) => None,
            Vice::Flapping(_) => Some(Vice::Never),
            Vice::OftenWrong => self.one_in(2).then_some(Vice::Wrong),
            vice => Some(vice),
        }
    }

    /// Completes a job as a node with this vice does.
    pub(super) fn compute_badly(&mut self, link: LinkId, job: JobId, number: u64, vice: Vice) {
        let takes = 1 + self.below(20);
        let (at, result) = match vice {
            Vice::Wrong | Vice::OftenWrong => (takes, Ok(number | WRONG)),
            Vice::Slow => (100 * takes, Ok(number)),
            Vice::Failing => (takes, Err(JobError::Failed)),
            Vice::Never | Vice::Flapping(_) => return,
            Vice::ForeignIds => {
                let foreign = completion(job ^ (1 << 40), Ok(number));
                return self.say(link, &NodeMessage::Complete(vec![foreign]));
            }
            Vice::Garbage => return self.send(link, &[0xff; 40], false),
        };
        self.at(self.now + at, SimEvent::Computed { link, job, result });
    }

    /// Submits a job whose owner verifies the result.
    pub(super) fn submit_verified(
        &mut self,
        client: usize,
        number: u64,
        deadline: u32,
        wrong: WrongNodes,
    ) {
        let (jobs, verdicts) =
            (Arc::clone(&self.jobs), self.verdicts.clone().expect("owners verify"));
        let recipient = Recipient::Callback(Box::new(move |result| {
            let reply = match result {
                Ok(reply) => reply,
                Err(error) => return end(&jobs, number, &Err(error)),
            };
            let source = reply.source;
            if number_in(&reply.output) & WRONG != 0 {
                lock(&verdicts).wrong.push(WrongResult { client, number, deadline, source, wrong });
                return;
            }
            if source.is_on_trial() {
                lock(&verdicts).right.push((client, source));
            }
            end(&jobs, number, &Ok(Some(reply)));
        }));
        let mut input = vec![0; 32];
        input[..8].copy_from_slice(&number.to_le_bytes());
        let operation = Operation::EcdsaSign { hash: Hash::Sha256 };
        let request = JobRequest::Operation { operation, input };
        let due = self.start + Duration::from_millis(deadline.into());
        let key = Arc::clone(&self.clients[client].keys[0]);
        let job = Job::new(key, request, recipient, due).avoiding(wrong);
        let now = self.time();
        if let Err(error) = self.clients[client].dispatcher.submit(job, now) {
            end(&self.jobs, number, &Err(error));
        }
    }

    /// Does what the owners of results have found.
    pub(super) fn judge_results(&mut self) {
        let Some(verdicts) = self.verdicts.clone() else {
            return;
        };
        let Verdicts { wrong: found, right } = mem::take(&mut *lock(&verdicts));
        let now = self.time();
        for (client, source) in right {
            self.clients[client].dispatcher.report_right(source, now);
        }
        for WrongResult { client, number, deadline, source, mut wrong } in found {
            let is_new = !wrong.0.contains(source.node);
            wrong.0.insert(source.node);
            self.clients[client].dispatcher.report_wrong(source, now);
            if is_new {
                self.submit_verified(client, number, deadline, wrong);
            } else {
                end(&self.jobs, number, &Err(ClientError::Distrusted));
            }
        }
    }
}
