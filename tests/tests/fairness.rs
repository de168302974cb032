// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Several identities at one node: no number of connections and jobs of one takes another's share.

use std::path::{Path, PathBuf};

use millrace_testkit::{is_long, skip};
use millrace_tests::load::{self, Load, Manners, Outcome};
use millrace_tests::node::{Node, NodeOptions};
use millrace_tests::pki::KeyKind;
use millrace_tests::process::copy_for_all;
use millrace_tests::world::World;
use millrace_tests::{is_root, scaled, wait};

/// User ids without an entry in `/etc/passwd`; the kernel reports them to the node nevertheless.
const FLOOD: u32 = 4_000_001;
const VICTIM: u32 = 4_000_002;

struct Setup {
    node: Node,
    program: PathBuf,
    // Last, so that the folder is removed after the node has ended.
    _world: World,
}

impl Setup {
    fn new() -> Self {
        let world = World::new();
        let toml = "[engine]\nworkers = 1\n".to_owned();
        let options = NodeOptions { toml, ..NodeOptions::default() };
        let node = Node::start_with(world.dir(), "node-1", &options);
        let _ = node.import("www", &world.identity(KeyKind::Rsa2048));
        let program =
            copy_for_all(Path::new(env!("CARGO_BIN_EXE_millrace-tests-load")), world.dir());
        Self { node, program, _world: world }
    }

    fn start(&self, user: u32, connections: usize, in_flight: u64, millis: usize) -> load::Running {
        let load =
            Load { user, connections, in_flight, millis: millis as u64, manners: Manners::Ignores };
        load.start(&self.program, &self.node.socket(), "www")
    }

    fn served(&self) -> u64 {
        self.node.served().total()
    }

    /// Results of a victim beside a flood of another user, and all results of the node in that time.
    fn beside_a_flood(&self, flood: (usize, u64), victim: (usize, u64)) -> (Outcome, u64) {
        let running = self.start(FLOOD, flood.0, flood.1, 120_000);
        wait::until("the flood is served", || self.served() > 100);
        let before = self.served();
        let outcome = self.start(VICTIM, victim.0, victim.1, scaled(3_000, 30_000)).outcome();
        let served = self.served() - before;
        drop(running);
        (outcome, served)
    }
}

#[test]
fn many_connections_of_one_identity_leave_another_its_share() {
    if !is_root() {
        skip!("not root: clients cannot run as several users");
    }
    let setup = Setup::new();
    let (victim, served) = setup.beside_a_flood((64, 32), (1, 32));
    assert_eq!((victim.busy, victim.failed), (0, 0), "{victim:?}");
    // Half is its share. By connections it would be one part in 65.
    let share = victim.served as f64 / served as f64;
    assert!(share > 0.3, "{} of {served}", victim.served);
}

#[test]
fn identity_that_fills_the_queue_leaves_another_its_room() {
    if !is_root() {
        skip!("not root: clients cannot run as several users");
    }
    let setup = Setup::new();
    // More jobs than the queue of a class holds, 8192: the flood itself is refused all the time.
    let (victim, served) = setup.beside_a_flood((40, 250), (1, 250));
    assert_eq!((victim.busy, victim.failed), (0, 0), "{victim:?}");
    let share = victim.served as f64 / served as f64;
    assert!(share > 0.25, "{} of {served}", victim.served);
    let text = setup.node.metrics();
    assert!(text.contains("busy"), "{text}");
}

/// A single job at a time, beside 8,000 waiting jobs of another identity. The test prints its latency
/// relative to an idle node. The assertion does not depend on the machine's speed or load.
#[test]
fn single_job_does_not_wait_for_the_queue_of_a_flood() {
    if !is_root() {
        skip!("not root: clients cannot run as several users");
    }
    let setup = Setup::new();
    let rounds = if is_long() { 7 } else { 1 };
    for round in 0..rounds {
        let alone = setup.start(VICTIM, 1, 1, scaled(2_000, 10_000)).outcome();
        let flood = if is_long() { (1_000, 100) } else { (80, 100) };
        let (beside, served) = setup.beside_a_flood(flood, (1, 1));
        assert_eq!((beside.busy, beside.failed), (0, 0), "{beside:?}");
        let ratio = |percent| beside.latency(percent) as f64 / alone.latency(percent) as f64;
        println!(
            "round {round}: alone p50 {} p99 {} µs, ratio beside a flood p50 {:.2} p90 {:.2} p99 {:.2}",
            alone.latency(50),
            alone.latency(99),
            ratio(50),
            ratio(90),
            ratio(99),
        );
        // In a first-come, first-served queue each job would wait for all 8,000 waiting jobs.
        let others = served / beside.served.max(1);
        assert!(others < 2_000, "{others} jobs of the flood for each of the victim's");
    }
}
