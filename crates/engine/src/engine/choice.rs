// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Which of several backends serves jobs of one kind, by what each was measured to cost.
//!
//! Jobs that cost the same form a [`Group`] (all private operations of RSA keys of one size, say). For
//! each group and each number of jobs that a worker has together, the table keeps what a job costs on
//! each backend: the time that the backend was busy, divided by the jobs. The cheapest serves.
//!
//! - **Real jobs are the measurement.** What serves is measured all the time. What does not is tried with
//!   at most one job in [`EXPLORED`], and with no more of those that wait than it computes together; while
//!   nothing is known of it often, later seldom ([`RENEWED`]).
//! - **It does not flap.** What serves is known by the median of its costs, which a hiccup does not move.
//!   Another backend takes over only if it costs a tenth less ([`MARGIN`]) several times in a row
//!   ([`WINS`]), compared with what the serving one costs at that time: what was measured while the machine
//!   was quiet says nothing about now.
//! - **Until something is known, the order of the backends decides.**
//!
//! Pure: no clock, no thread, no randomness. What comes out depends on what went in, in that order.

use crate::key::{KeyKind, KeyType, MIN_MODULUS_BITS};
use crate::operation::OperationKind;

/// At most one job in so many is served by a backend that is not the cheapest known.
const EXPLORED: u64 = 100;

/// A backend that is known to cost more is tried again after so many jobs for each job that it gets.
const RENEWED: u64 = 1_000;

/// Measurements of a backend until it is known: before, it is tried often, and cannot be replaced.
const SETTLED: u32 = 4;

/// Measurements move what is known by this share, up or down: it follows the median, and doubles or
/// halves within some twenty measurements.
const STEP: f64 = 1.0 / 32.0;

/// Another backend wins against the one that serves if it costs at most this share.
const MARGIN: f64 = 0.9;

/// Wins in a row after which another backend takes over. With two that cost the same and a noise that lets
/// either win every third time, once in 6000 tries.
const WINS: u32 = 8;

/// Steps of RSA and DH sizes: key sizes in use are multiples of 512 or rare.
const STEP_BITS: u16 = 512;
/// 2048 to 8192 bits.
const STEPS: usize = 13;

/// Numbers of jobs that are told apart: 1, 2, 3, 4, to 8, to 16, to 32, to 64, to 128, more.
const SIZES: usize = 10;

/// Jobs that cost the same on any backend, as far as that can be told beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group(usize);

const KINDS: usize = KeyKind::ALL.len();
const OPERATIONS: usize = OperationKind::ALL.len();

/// The first group of each kind of key and operation, and how many groups there are. A kind with sizes has one
/// group per step, since all private operations of one size cost the same; any other has one per operation.
const LAYOUT: ([[usize; OPERATIONS]; KINDS], usize) = {
    let mut first = [[0; OPERATIONS]; KINDS];
    let (mut groups, mut kind) = (0, 0);
    while kind < KINDS {
        let sized = KeyKind::ALL[kind].sizes().is_some();
        let mut operation = 0;
        while operation < OPERATIONS {
            if OperationKind::ALL[operation].fits_kind(KeyKind::ALL[kind]) {
                first[kind][operation] = groups;
                groups += if sized { 0 } else { 1 };
            }
            operation += 1;
        }
        groups += if sized { STEPS } else { 0 };
        kind += 1;
    }
    (first, groups)
};

const GROUPS: usize = LAYOUT.1;

impl Group {
    pub(crate) fn of(operation: OperationKind, key_type: KeyType) -> Self {
        let above = key_type.bits().saturating_sub(MIN_MODULUS_BITS);
        let step = usize::from(above.div_ceil(STEP_BITS)).min(STEPS - 1);
        Self(LAYOUT.0[key_type.kind().index()][operation.index()] + step)
    }

    /// Its name, for people.
    pub(crate) fn name(self) -> String {
        for kind in KeyKind::ALL.iter().copied() {
            let name = kind.name();
            for operation in OperationKind::of(kind) {
                let offset = self
                    .0
                    .checked_sub(LAYOUT.0[kind.index()][operation.index()]);
                match (offset, kind.sizes()) {
                    (Some(step @ 0..STEPS), Some((smallest, _))) => {
                        return format!(
                            "{name}-{}",
                            usize::from(smallest) + step * usize::from(STEP_BITS)
                        );
                    }
                    // "p-256 sign" and "p-256 derive".
                    (Some(0), None) if OperationKind::of(kind).count() > 1 => {
                        let verb = operation.name().rsplit('-').next().unwrap_or_default();
                        return format!("{name} {verb}");
                    }
                    (Some(0), None) => return name.to_owned(),
                    _ => {}
                }
            }
        }
        String::new()
    }
}

/// Which row of a group so many jobs together belong to.
fn size_of(jobs: usize) -> usize {
    match jobs {
        0..=4 => jobs.saturating_sub(1),
        _ => (jobs.next_power_of_two().ilog2() as usize + 1).min(SIZES - 1),
    }
}

/// The most jobs of a row; none for the last.
fn most_of(size: usize) -> Option<usize> {
    match size {
        0..4 => Some(size + 1),
        _ if size < SIZES - 1 => Some(1 << (size - 1)),
        _ => None,
    }
}

/// Costs and choices of one engine's backends. Locked by its user, one group at a time.
#[derive(Debug)]
pub(crate) struct Choices {
    groups: Vec<std::sync::Mutex<Option<Box<Row>>>>,
}

/// One group.
#[derive(Debug, Default)]
struct Row {
    /// Jobs for which there was a choice.
    jobs: u64,
    /// Of those, jobs that went to another backend than the cheapest known.
    explored: u64,
    sizes: [Cell; SIZES],
}

/// One group and number of jobs.
#[derive(Debug, Default)]
struct Cell {
    /// By backend.
    arms: Vec<Arm>,
    /// Who serves.
    serving: Option<usize>,
    /// How often that changed.
    switches: u64,
}

/// One backend in a cell.
#[derive(Clone, Copy, Debug, Default)]
struct Arm {
    /// The median so far, about, per job.
    cost_ns: f64,
    measured: u32,
    /// How often in a row it cost less than the one that serves.
    wins: u32,
    /// The group's count of jobs when it was last tried or measured.
    last: u64,
}

/// What is known about one group and number of jobs, for people.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Known {
    pub(crate) group: String,
    /// The most jobs together that this is about; none: any more than the row before.
    pub(crate) most: Option<usize>,
    pub(crate) serving: usize,
    pub(crate) switches: u64,
    /// By backend: nanoseconds per job; only those that were measured.
    pub(crate) costs: Vec<(usize, f64)>,
}

impl Choices {
    pub(crate) fn new() -> Self {
        Self {
            groups: (0..GROUPS).map(|_| std::sync::Mutex::default()).collect(),
        }
    }

    /// Who serves `jobs` jobs of a group that wait together, out of the backends in the mask
    /// `candidates` (not empty), the preferred first. `together` is how many a backend computes at once.
    pub(crate) fn decide(
        &self,
        group: Group,
        jobs: usize,
        candidates: u32,
        together: impl Fn(usize) -> usize,
    ) -> Decision {
        if candidates.count_ones() <= 1 {
            return Decision {
                serving: candidates.trailing_zeros() as usize,
                trial: None,
            };
        }
        let mut row = super::lock(&self.groups[group.0]);
        let row = row.get_or_insert_default();
        row.decide(jobs, candidates, together)
    }

    /// Some of `jobs` jobs of a group that waited together took a backend so many nanoseconds each.
    pub(crate) fn record(&self, group: Group, jobs: usize, backend: usize, cost_ns: f64) {
        let mut row = super::lock(&self.groups[group.0]);
        let row = row.get_or_insert_default();
        let now = row.jobs;
        row.sizes[size_of(jobs)].record(backend, cost_ns, now);
    }

    /// What is known wherever there was a choice.
    pub(crate) fn known(&self) -> Vec<Known> {
        let mut known = Vec::new();
        for (group, row) in self.groups.iter().enumerate() {
            let row = super::lock(row);
            for (size, cell) in row.iter().flat_map(|row| row.sizes.iter().enumerate()) {
                if let Some(serving) = cell.serving {
                    known.push(Known {
                        group: Group(group).name(),
                        most: most_of(size),
                        serving,
                        switches: cell.switches,
                        costs: cell.costs().collect(),
                    });
                }
            }
        }
        known
    }
}

/// Who serves jobs that wait together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    /// The backend for all of them,
    pub(crate) serving: usize,
    /// but for so many that go to this one, to measure it.
    pub(crate) trial: Option<(usize, usize)>,
}

impl Row {
    fn decide(
        &mut self,
        jobs: usize,
        candidates: u32,
        together: impl Fn(usize) -> usize,
    ) -> Decision {
        self.jobs += jobs as u64;
        let now = self.jobs;
        let cell = &mut self.sizes[size_of(jobs)];
        let serving = cell.serving(candidates);
        let others = candidates & !(1 << serving);
        let trial = cell.next(others).and_then(|other| {
            let tried = together(other).clamp(1, jobs);
            let room = now / EXPLORED >= self.explored + tried as u64;
            (room && cell.is_due(other, now, RENEWED * tried as u64)).then_some((other, tried))
        });
        if let Some((other, tried)) = trial {
            self.explored += tried as u64;
            // Also if its measurement never comes: a backend that fails is not tried all the time.
            cell.arm(other).last = now;
        }
        Decision { serving, trial }
    }
}

impl Cell {
    fn arm(&mut self, backend: usize) -> &mut Arm {
        if self.arms.len() <= backend {
            self.arms.resize(backend + 1, Arm::default());
        }
        &mut self.arms[backend]
    }

    /// Who serves, out of these. Who is left out for a while keeps its place.
    fn serving(&mut self, candidates: u32) -> usize {
        let preferred = candidates.trailing_zeros() as usize;
        let serving = *self.serving.get_or_insert(preferred);
        if candidates & (1 << serving) != 0 {
            return serving;
        }
        let able = |(backend, _): &(usize, f64)| candidates & (1 << backend) != 0;
        let best = self.costs().filter(able).min_by(|a, b| a.1.total_cmp(&b.1));
        best.map_or(preferred, |(backend, _)| backend)
    }

    /// Who of these is measured next: the one that is winning, or else the one that was not for the
    /// longest time.
    fn next(&self, others: u32) -> Option<usize> {
        let candidates = (0..u32::BITS as usize).filter(|backend| others & (1 << backend) != 0);
        candidates.min_by_key(|backend| {
            let arm = self.arms.get(*backend).copied().unwrap_or_default();
            (u32::MAX - arm.wins, arm.last)
        })
    }

    /// Whether it is time to measure a backend: it is little known, or winning, or was not measured for so
    /// many jobs.
    fn is_due(&mut self, backend: usize, now: u64, renewed: u64) -> bool {
        let arm = *self.arm(backend);
        let old = now.saturating_sub(arm.last) >= renewed;
        arm.measured < SETTLED || arm.wins > 0 || old
    }

    fn record(&mut self, backend: usize, cost_ns: f64, now: u64) {
        let peer = self.serving.filter(|serving| *serving != backend);
        let peer = peer.and_then(|serving| self.arms.get(serving).copied());
        let arm = self.arm(backend);
        arm.last = now;
        arm.measured = arm.measured.saturating_add(1);
        arm.cost_ns = match arm.measured {
            1 => cost_ns,
            // The least of the first few: from a hiccup the way down would be long.
            2..=SETTLED => arm.cost_ns.min(cost_ns),
            _ if cost_ns > arm.cost_ns => arm.cost_ns * (1.0 + STEP),
            _ if cost_ns < arm.cost_ns => arm.cost_ns * (1.0 - STEP),
            _ => arm.cost_ns,
        };
        let Some(peer) = peer.filter(|peer| peer.measured >= SETTLED) else {
            return;
        };
        let won = cost_ns <= peer.cost_ns * MARGIN;
        arm.wins = if won { arm.wins + 1 } else { 0 };
        if arm.wins >= WINS {
            self.serving = Some(backend);
            self.switches += 1;
            for arm in &mut self.arms {
                arm.wins = 0;
            }
        }
    }

    fn costs(&self) -> impl Iterator<Item = (usize, f64)> {
        let measured = self
            .arms
            .iter()
            .enumerate()
            .filter(|(_, arm)| arm.measured > 0);
        measured.map(|(backend, arm)| (backend, arm.cost_ns))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;
    use crate::key::Curve;

    const RSA: Group = Group(0);

    /// Lets `jobs` jobs be served in batches of `size` where each backend costs what `cost` says for
    /// the so-many-th batch, on backends that take four together. How many went to each backend.
    fn serve(
        choices: &Choices,
        jobs: usize,
        size: usize,
        candidates: u32,
        mut cost: impl FnMut(usize, usize) -> f64,
    ) -> [usize; 4] {
        let mut served = [0; 4];
        for batch in 0..jobs.div_ceil(size) {
            let Decision { serving, trial } = choices.decide(RSA, size, candidates, |_| 4);
            let tried = trial.map_or(0, |(_, tried)| tried);
            for (backend, jobs) in trial.into_iter().chain([(serving, size - tried)]) {
                assert!(candidates & (1 << backend) != 0);
                if jobs > 0 {
                    served[backend] += jobs;
                    choices.record(RSA, size, backend, cost(backend, batch));
                }
            }
        }
        served
    }

    fn serving(choices: &Choices, most: usize) -> (usize, u64) {
        let known = choices.known();
        let cell = known.iter().find(|known| known.most == Some(most));
        cell.map(|cell| (cell.serving, cell.switches))
            .expect("something was served")
    }

    #[test]
    fn the_preferred_one_serves_until_another_is_known_to_be_cheaper() {
        let choices = Choices::new();
        let costs = [300.0, 100.0];
        let first = serve(&choices, 99, 1, 0b11, |backend, _| costs[backend]);
        assert_eq!(first[..2], [99, 0]);
        serve(&choices, 1_000, 1, 0b11, |backend, _| costs[backend]);
        assert_eq!(serving(&choices, 1), (1, 1));
        let later = serve(&choices, 100_000, 1, 0b11, |backend, _| costs[backend]);
        // Known well by now: seldom tried again.
        assert!((50..=150).contains(&later[0]), "{later:?}");
    }

    #[test]
    fn each_number_of_jobs_has_a_choice_of_its_own() {
        let choices = Choices::new();
        // Lanes: a batch costs 250 whatever is in it. The library: 200 each.
        for (size, expected) in [(1, 1), (2, 0), (4, 0)] {
            let costs = [250.0 / size as f64, 200.0];
            serve(&choices, 20_000 * size, size, 0b11, |backend, _| {
                costs[backend]
            });
            assert_eq!(serving(&choices, size).0, expected, "{size} together");
        }
    }

    #[test]
    fn who_got_slower_is_replaced_and_comes_back() {
        let choices = Choices::new();
        serve(&choices, 10_000, 4, 0b11, |backend, _| {
            [60.0, 200.0][backend]
        });
        assert_eq!(serving(&choices, 4), (0, 0));
        serve(&choices, 10_000, 4, 0b11, |backend, _| {
            [900.0, 200.0][backend]
        });
        assert_eq!(serving(&choices, 4), (1, 1));
        serve(&choices, 100_000, 4, 0b11, |backend, _| {
            [60.0, 200.0][backend]
        });
        assert_eq!(serving(&choices, 4), (0, 2));
    }

    #[test]
    fn equal_costs_do_not_flap_on_a_machine_that_is_busy_now_and_then() {
        let choices = Choices::new();
        let mut state = 1_u64;
        let cost = |_: usize, batch: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // Up to a third of noise, and times in which all take half as long again.
            let noise = (state >> 40) as f64 / (1_u64 << 24) as f64 / 3.0;
            let busy = if batch / 5_000 % 2 == 1 { 1.5 } else { 1.0 };
            250.0 * (1.0 + noise) * busy
        };
        serve(&choices, 200_000, 1, 0b11, cost);
        assert!(serving(&choices, 1).1 <= 1, "{:?}", choices.known());
    }

    #[test]
    fn hiccups_do_not_change_the_choice() {
        let choices = Choices::new();
        let cost = |backend: usize, batch: usize| {
            let hiccup = if batch % 64 == 7 { 100.0 } else { 1.0 };
            [100.0, 150.0][backend] * hiccup
        };
        serve(&choices, 100_000, 4, 0b11, cost);
        assert_eq!(serving(&choices, 4), (0, 0));
    }

    #[test]
    fn who_is_left_out_serves_nothing_and_keeps_its_place() {
        let choices = Choices::new();
        let costs = [50.0, 200.0, 100.0];
        serve(&choices, 50_000, 4, 0b111, |backend, _| costs[backend]);
        // In quarantine: the best of the others stands in.
        let served = serve(&choices, 396, 4, 0b110, |backend, _| costs[backend]);
        assert!(served[0] == 0 && served[2] >= 390, "{served:?}");
        let served = serve(&choices, 400, 4, 0b111, |backend, _| costs[backend]);
        assert!(served[0] >= 390, "{served:?}");
    }

    #[test]
    fn a_backend_that_is_never_measured_is_tried_within_bounds() {
        let choices = Choices::new();
        let mut tried = 0;
        for _ in 0..10_000 {
            match choices.decide(RSA, 1, 0b11, |_| 1).trial {
                None => choices.record(RSA, 1, 0, 100.0),
                Some(trial) => {
                    assert_eq!(trial, (1, 1));
                    tried += 1;
                }
            }
        }
        assert!((1..=100).contains(&tried), "{tried}");
    }

    #[test]
    fn sizes_and_groups_are_told_apart() {
        let sizes: Vec<usize> = [1, 2, 3, 4, 5, 8, 9, 16, 64, 65, 128, 129, 256, 4_096]
            .into_iter()
            .map(size_of)
            .collect();
        assert_eq!(sizes, [0, 1, 2, 3, 4, 4, 5, 5, 7, 8, 8, 9, 9, 9]);
        for most in (0..SIZES).filter_map(most_of) {
            assert_eq!(most_of(size_of(most)), Some(most));
        }
        let mut names: Vec<String> = (0..GROUPS).map(|group| Group(group).name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), GROUPS);
        let sign = OperationKind::RsaPssSign;
        for (bits, name) in [
            (2_048, "rsa-2048"),
            (2_049, "rsa-2560"),
            (8_192, "rsa-8192"),
        ] {
            assert_eq!(Group::of(sign, KeyType::Rsa { bits }).name(), name);
        }
        let p256 = KeyType::Ec(Curve::P256);
        assert_ne!(
            Group::of(OperationKind::Ecdh, p256),
            Group::of(OperationKind::EcdsaSign, p256)
        );
    }

    proptest! {
        // The same cases in every run: what fails is found again.
        #![proptest_config(ProptestConfig {
            rng_seed: RngSeed::Fixed(1),
            ..ProptestConfig::with_cases(64)
        })]

        #[test]
        fn exploring_stays_within_its_share(
            sizes in prop::collection::vec(1_usize..300, 1..2_000),
            candidates in 1_u32..16,
        ) {
            let choices = Choices::new();
            let (mut jobs, mut explored) = (0_u64, 0_u64);
            for size in sizes {
                // Nobody is ever measured, so whoever is preferred serves.
                let decision = choices.decide(RSA, size, candidates, |backend| 1 << (3 * backend));
                prop_assert_eq!(decision.serving, candidates.trailing_zeros() as usize);
                jobs += size as u64;
                if let Some((backend, tried)) = decision.trial {
                    prop_assert!(candidates & (1 << backend) != 0 && backend != decision.serving);
                    prop_assert!((1..=size.min(1 << (3 * backend))).contains(&tried));
                    explored += tried as u64;
                }
                prop_assert!(explored * EXPLORED <= jobs);
            }
        }

        #[test]
        fn it_settles_near_the_cheapest_and_stays(
            costs in prop::collection::vec(10.0_f64..1_000.0, 2..=4),
            noise in prop::collection::vec(0.97_f64..1.03, 64),
            size in 1_usize..=4,
        ) {
            let choices = Choices::new();
            let candidates = (1_u32 << costs.len()) - 1;
            let cost = |backend: usize, batch: usize| {
                costs[backend] * noise[(batch * 7 + backend * 13) % noise.len()]
            };
            serve(&choices, 8_000 * size, size, candidates, cost);
            let (backend, switches) = serving(&choices, size);
            let cheapest = costs.iter().copied().fold(f64::MAX, f64::min);
            prop_assert!(costs[backend] * MARGIN <= cheapest * 1.1, "{} of {:?}", backend, costs);
            prop_assert!(switches < costs.len() as u64);
            // The same again: nothing depends on anything but what went in.
            let again = Choices::new();
            serve(&again, 8_000 * size, size, candidates, cost);
            prop_assert_eq!(choices.known(), again.known());
        }
    }
}
