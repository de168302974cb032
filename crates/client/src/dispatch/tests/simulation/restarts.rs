// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Schedules in which nodes are well, and restart: one after the other, the only one, twice within a second,
//! killed, drained or stopped, with and without a kernel that accepts connections in between.
//!
//! One more property holds in them: **no job fails if a node serves for long enough before its deadline.**

use super::*;

/// Outage of a node. At its end the node serves again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Down {
    /// The node's connections end, and new ones are refused.
    Killed,
    /// The node finishes its jobs and takes no others; new connections are refused.
    Drained,
    /// The node reads nothing, and its connections stay.
    Stopped,
    /// The node drains, or is killed, while its socket stays: the kernel accepts connections for its successor.
    Replaced { drains: bool },
}

/// Milliseconds that a job has, as with the provider's default.
const DEADLINE_MS: u32 = 2000;

/// Within this time of service, in milliseconds, a job has to succeed: the client finds the node (200 ms over
/// TCP), greets it, opens the key and gets the answer (20 ms at most), each over a link that delays.
const ENOUGH_MS: u32 = 300;

/// Time of service, in milliseconds, after a node was stopped: the client takes 750 ms to give it up.
const ENOUGH_AFTER_A_STOP_MS: u32 = 1150;

/// Bounds of what is added to 200 ms, for the time that a node is down and the time until the next restart.
const GAPS_MS: [u32; 4] = [200, 500, 2_000, 10_000];

#[test]
fn no_job_fails_while_a_node_comes_back_in_time() {
    let (sums, schedules) = simulate_all(1, simulate_restarts);
    if schedules == 1 {
        return;
    }
    // Restarts that hit no job show nothing; nor do gaps that are all short.
    for (what, count) in [
        ("results", sums.succeeded),
        ("errors", sums.failed),
        ("retries", 2 * sums.retries),
        ("lost connections", sums.lost),
    ] {
        assert!(count > schedules, "{what}: {count} in {schedules} schedules");
    }
}

fn simulate_restarts(seed: u64) -> Sums {
    let mut world = World::new(seed);
    world.make_restarting();
    world.run();
    world.judge();
    let failed = lock(&world.jobs).iter().filter(|job| matches!(job, JobState::Failed(_))).count();
    let mut sums = world.settle();
    sums.failed = failed as u64;
    sums
}

/// The only node is killed ten times a second, and serves for 40 ms in between. A job may fail that the node had three
/// times: it could be what ends the node.
#[test]
fn no_job_fails_while_the_only_node_restarts_ten_times_a_second() {
    let (sums, schedules) = simulate_all(20, |seed| {
        let mut world = World::new(seed);
        world.make_flicker();
        world.run();
        for (number, job) in lock(&world.jobs).iter().enumerate() {
            // Of three times, one may have been lost on its way.
            let was_there = world.arrivals.get(&(number as u64)).is_some_and(|times| *times >= 2);
            let is_good = !matches!(job, JobState::Failed(_)) || was_there;
            assert!(is_good, "job {number}, submitted at {} ms: {job:?}", world.submitted[number]);
        }
        world.settle()
    });
    assert!(schedules == 1 || sums.lost > schedules, "{sums:?}");
}

impl World {
    fn make_flicker(&mut self) {
        self.time_limit = Some(DEADLINE_MS);
        self.nodes.truncate(1);
        self.nodes[0].make_well();
        self.nodes[0].slowness = 5;
        for client in &mut self.clients {
            let near = "unix:/0".parse().expect("an endpoint");
            client.dispatcher.nodes = vec![ConfiguredNode::new(&near, self.start)];
            client.dispatcher.max_in_flight = 1000;
            client.links.truncate(1);
        }
        let offset = self.below(100);
        for round in 0..30 {
            let now = offset + 100 * round;
            let until = now + 60;
            self.at(now, SimEvent::Down { node: 0, how: Down::Killed, until });
            self.at(until, SimEvent::Back { node: 0, how: Down::Killed });
            for client in 0..self.clients.len() {
                let at = now + self.below(100);
                self.at(at, SimEvent::Submit { client });
            }
        }
    }

    /// Makes all nodes well, and fills the agenda with restarts and jobs around them.
    fn make_restarting(&mut self) {
        self.time_limit = Some(DEADLINE_MS);
        self.nodes.truncate(2);
        for client in &mut self.clients {
            client.dispatcher.nodes.truncate(self.nodes.len());
            client.dispatcher.max_in_flight = 1000;
            client.links.truncate(self.nodes.len());
        }
        self.nodes.iter_mut().for_each(SimNode::make_well);
        let mut now = 100 + self.below(1000);
        let mut turn = self.pick(self.nodes.len());
        for _ in 0..2 + self.below(5) {
            let how = match self.below(8) {
                0..3 => Down::Killed,
                3..5 => Down::Drained,
                5 => Down::Stopped,
                kind => Down::Replaced { drains: kind == 6 },
            };
            let down = self.gap();
            let (node, until) = (turn, now + down);
            self.at(now, SimEvent::Down { node, how, until });
            self.at(until, SimEvent::Back { node, how });
            self.jobs_around(now, down);
            now = until + self.gap();
            turn = if self.one_in(4) { turn } else { self.pick(self.nodes.len()) };
        }
    }

    /// 0.2 to 10 s, short ones more often.
    fn gap(&mut self) -> u32 {
        let bound = GAPS_MS[self.pick(GAPS_MS.len())];
        200 + self.below(bound)
    }

    /// Jobs before, during and after a restart.
    fn jobs_around(&mut self, start: u32, down: u32) {
        for client in 0..self.clients.len() {
            for _ in 0..8 {
                let at = start.saturating_sub(100) + self.below(down.min(2500) + 300);
                self.at(at, SimEvent::Submit { client });
            }
        }
    }

    pub(super) fn go_down(&mut self, node: usize, how: Down, until: u32) {
        let since = self.nodes[node].serves_since;
        self.nodes[node].served.push((since, self.now));
        let links = self.links.iter().filter(|(_, sim)| sim.node == node);
        let links: Vec<LinkId> = links.map(|(link, _)| *link).collect();
        match how {
            Down::Stopped => {
                self.stops.push((self.now, until));
                self.nodes[node].silent_until = until;
                for link in links {
                    let sim = self.links.get_mut(&link).expect("listed above");
                    sim.to_node_from = sim.to_node_from.max(until);
                    sim.to_client_from = sim.to_client_from.max(until);
                }
                return;
            }
            Down::Replaced { .. } => self.nodes[node].silent_until = until,
            Down::Killed | Down::Drained => self.nodes[node].up = false,
        }
        let drains = matches!(how, Down::Drained | Down::Replaced { drains: true });
        for link in links {
            if drains {
                self.drain(link);
            } else {
                let at = self.now + self.below(3);
                self.at(at, SimEvent::Cut { link });
            }
        }
    }

    pub(super) fn come_back(&mut self, node: usize, how: Down) {
        self.nodes[node].up = true;
        self.nodes[node].serves_since = self.now;
        if how == Down::Stopped {
            return;
        }
        // The old process has ended.
        let old = self.links.iter().filter(|(_, sim)| sim.node == node && sim.draining);
        let old: Vec<LinkId> = old.map(|(link, _)| *link).collect();
        for link in old {
            self.handle(SimEvent::Cut { link });
        }
    }

    /// Holds each job that failed against the times in which nodes served.
    fn judge(&mut self) {
        for node in &mut self.nodes {
            node.served.push((node.serves_since, u32::MAX));
        }
        for (number, job) in lock(&self.jobs).iter().enumerate() {
            let JobState::Failed(error) = job else {
                continue;
            };
            let start = self.submitted[number];
            let end = start + DEADLINE_MS;
            let stopped = self.stops.iter().any(|stop| stop.0 < end && start < stop.1);
            let enough = if stopped { ENOUGH_AFTER_A_STOP_MS } else { ENOUGH_MS };
            let served = self.nodes.iter().flat_map(|node| &node.served);
            let most = served.map(|(from, to)| (*to).min(end).saturating_sub((*from).max(start)));
            let most = most.max().unwrap_or(0);
            assert!(
                most < enough,
                "job {number}, submitted at {start} ms, failed although a node served for {most} ms: {error}"
            );
        }
    }
}
