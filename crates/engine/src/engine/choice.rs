// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Chooses the backend that serves jobs of one kind, by what such jobs were measured to cost on each.
//!
//! Jobs that cost the same form a [`Group`] (all private operations of RSA keys of one size, for example). For
//! each group and each number of jobs that a worker runs together, the table keeps the cost of one job on each
//! backend: the time that the backend was busy, divided by the number of jobs. The cheapest backend serves.
//!
//! - **Real jobs are the measurement.** The serving backend is measured all the time. Another one is tried with
//!   at most one job in [`EXPLORE_ONE_IN`], and with no more jobs at once than it computes together: often until
//!   it has [`MIN_SAMPLES`], then once in [`RESAMPLE_AFTER_JOBS`].
//! - **The choice does not flap.** The cost of the serving backend is a running median, which a hiccup does not
//!   move. Another backend takes over only after [`WINS_TO_TAKE_OVER`] measurements in a row below
//!   [`TAKEOVER_COST_RATIO`] of that median. Each is compared with the median at that time, because what was
//!   measured on a quiet machine says nothing about a busy one.
//! - **Until costs are known, the order of the backends decides.**
//!
//! Pure: no clock, no thread, no randomness. The same calls in the same order give the same choices.

use std::sync::Mutex;

use millrace_operation::sync::lock;
use millrace_operation::{KeyKind, KeyType, MIN_MODULUS_BITS, OperationKind};

use super::backend_set::{BackendIndex, BackendSet};

/// One job in this many, at most, goes to a backend other than the serving one.
const EXPLORE_ONE_IN: u64 = 100;

/// Jobs of the group between two trials of a known backend, for each job that it gets in a trial.
const RESAMPLE_AFTER_JOBS: u64 = 1_000;

/// Measurements that make a backend known. With fewer it is tried often, and cannot be replaced.
const MIN_SAMPLES: u32 = 4;

/// Share by which a measurement moves the running median, up or down: it doubles or halves within some twenty
/// measurements.
const MEDIAN_GAIN: f64 = 1.0 / 32.0;

/// Another backend wins a comparison if it costs at most this share of the serving one.
const TAKEOVER_COST_RATIO: f64 = 0.9;

/// Wins in a row after which another backend takes over. Between two of equal cost, with noise that lets
/// either win one comparison in three, that happens once in 6000 tries.
const WINS_TO_TAKE_OVER: u32 = 8;

/// Width of a group of RSA, DH or DSA keys: key sizes in use are multiples of 512 bits or rare.
const SIZE_STEP_BITS: u16 = 512;

/// Groups from 2048 to 8192 bits.
const SIZE_STEPS: usize = 13;

/// Batch-size ranges with statistics of their own: 1, 2, 3, 4, 5-8, 9-16, 17-32, 33-64, 65-128, above 128.
const BATCH_SIZES: usize = 10;

/// Jobs that are expected to cost the same on any one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group(usize);

const KINDS: usize = KeyKind::ALL.len();
const OPERATIONS: usize = OperationKind::ALL.len();

/// The first group of each kind of key and operation, and how many groups there are. A kind with sizes has one
/// group per step, since all private operations of one size cost the same; any other has one per operation.
const LAYOUT: ([[usize; OPERATIONS]; KINDS], usize) = {
    let mut first = [[0; OPERATIONS]; KINDS];
    let mut groups = 0;
    let mut kind = 0;
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
        groups += if sized { SIZE_STEPS } else { 0 };
        kind += 1;
    }
    (first, groups)
};

const GROUPS: usize = LAYOUT.1;

impl Group {
    pub(crate) fn of(operation: OperationKind, key_type: KeyType) -> Self {
        let above = key_type.bits().saturating_sub(MIN_MODULUS_BITS);
        let step = usize::from(above.div_ceil(SIZE_STEP_BITS)).min(SIZE_STEPS - 1);
        Self(LAYOUT.0[key_type.kind().index()][operation.index()] + step)
    }

    /// Name of the group, for display.
    pub(crate) fn name(self) -> String {
        for kind in KeyKind::ALL.iter().copied() {
            let name = kind.name();
            for operation in OperationKind::of(kind) {
                let offset = self.0.checked_sub(LAYOUT.0[kind.index()][operation.index()]);
                match (offset, kind.sizes()) {
                    (Some(step @ 0..SIZE_STEPS), Some((smallest, _))) => {
                        return format!(
                            "{name}-{}",
                            usize::from(smallest) + step * usize::from(SIZE_STEP_BITS)
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

/// The row of a group for `jobs` jobs run together.
fn batch_size_of(jobs: usize) -> usize {
    match jobs {
        0..=4 => jobs.saturating_sub(1),
        _ => (jobs.next_power_of_two().ilog2() as usize + 1).min(BATCH_SIZES - 1),
    }
}

/// The largest number of jobs of a row; `None` for the last.
fn max_jobs_of(size: usize) -> Option<usize> {
    match size {
        0..4 => Some(size + 1),
        _ if size < BATCH_SIZES - 1 => Some(1 << (size - 1)),
        _ => None,
    }
}

/// Costs and choices of one engine's backends, with one lock per group.
#[derive(Debug)]
pub(crate) struct Choices {
    groups: Vec<Mutex<Option<Box<GroupStats>>>>,
}

#[derive(Debug, Default)]
struct GroupStats {
    /// Jobs that several backends could serve.
    jobs: u64,
    /// Number of these jobs that went to a backend on trial.
    explored: u64,
    batch_sizes: [BatchSizeStats; BATCH_SIZES],
}

/// Costs of the backends for one group and one range of batch sizes.
#[derive(Debug, Default)]
struct BatchSizeStats {
    /// Statistics of each backend, by its index.
    arms: Vec<Arm>,
    serving: Option<BackendIndex>,
    /// Number of times that the serving backend changed.
    switches: u64,
}

/// One backend, in the sense of a multi-armed bandit.
#[derive(Clone, Copy, Debug, Default)]
struct Arm {
    /// Running median of the cost per job, ns.
    cost_ns: f64,
    measured: u32,
    /// Wins in a row against the serving backend.
    wins: u32,
    /// The group's count of jobs when it was last tried or measured.
    last: u64,
}

/// Measured costs of one group and range of batch sizes, for display.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KnownCosts {
    pub(crate) group: String,
    /// The largest batch of the range; `None` for the last range, which is open.
    pub(crate) max_batch: Option<usize>,
    pub(crate) serving: BackendIndex,
    pub(crate) switches: u64,
    /// Only backends that were measured.
    pub(crate) costs: Vec<MeasuredCost>,
}

/// Running median of the time that a backend needs for one job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MeasuredCost {
    pub(crate) backend: BackendIndex,
    pub(crate) cost_ns: f64,
}

/// Choice of the backends for the jobs of one group in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    /// The backend that serves all of them except those of the trial.
    pub(crate) serving: BackendIndex,
    pub(crate) trial: Option<Trial>,
}

/// Jobs to choose a backend for, and the tasks beside which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchLoad {
    /// Jobs of the group that run together.
    pub(crate) jobs: usize,
    /// Tasks that devices hold for the same worker.
    pub(crate) on_devices: usize,
}

/// A backend that is measured although it does not serve, and the number of jobs that it gets for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trial {
    pub(crate) backend: BackendIndex,
    pub(crate) jobs: usize,
}

impl Choices {
    pub(crate) fn new() -> Self {
        Self { groups: (0..GROUPS).map(|_| Mutex::default()).collect() }
    }

    /// Chooses among the backends of `candidates`, which is not empty, for the jobs of a group. `together` gives the
    /// number of jobs that a backend computes at once.
    pub(crate) fn decide(
        &self,
        group: Group,
        load: BatchLoad,
        candidates: BackendSet,
        together: impl Fn(BackendIndex) -> usize,
    ) -> Decision {
        if candidates.len() <= 1 {
            return Decision { serving: candidates.first().unwrap_or_default(), trial: None };
        }
        let mut stats = lock(&self.groups[group.0]);
        stats.get_or_insert_default().decide(load, candidates, together)
    }

    /// Records one measurement: `backend` needed `cost_ns` for each job it got of `jobs` run together.
    pub(crate) fn record(&self, group: Group, jobs: usize, backend: BackendIndex, cost_ns: f64) {
        let mut stats = lock(&self.groups[group.0]);
        let group = stats.get_or_insert_default();
        let now = group.jobs;
        group.batch_sizes[batch_size_of(jobs)].record(backend, cost_ns, now);
    }

    /// All measured costs.
    pub(crate) fn known(&self) -> Vec<KnownCosts> {
        let mut known = Vec::new();
        for (group, row) in self.groups.iter().enumerate() {
            let row = lock(row);
            for (size, stats) in row.iter().flat_map(|row| row.batch_sizes.iter().enumerate()) {
                if let Some(serving) = stats.serving {
                    known.push(KnownCosts {
                        group: Group(group).name(),
                        max_batch: max_jobs_of(size),
                        serving,
                        switches: stats.switches,
                        costs: stats.costs().collect(),
                    });
                }
            }
        }
        known
    }
}

impl GroupStats {
    fn decide(
        &mut self,
        BatchLoad { jobs, on_devices }: BatchLoad,
        candidates: BackendSet,
        together: impl Fn(BackendIndex) -> usize,
    ) -> Decision {
        self.jobs += jobs as u64;
        let now = self.jobs;
        let stats = &mut self.batch_sizes[batch_size_of(jobs + on_devices)];
        let serving = stats.serving(candidates);
        let others = candidates.without(serving);
        let trial = stats.next_trial(others).and_then(|backend| {
            let jobs = together(backend).clamp(1, jobs);
            let room = now / EXPLORE_ONE_IN >= self.explored + jobs as u64;
            let due = room && stats.is_due(backend, now, RESAMPLE_AFTER_JOBS * jobs as u64);
            due.then_some(Trial { backend, jobs })
        });
        if let Some(Trial { backend, jobs }) = trial {
            self.explored += jobs as u64;
            // Here and not with the measurement, which never comes from a backend that fails.
            stats.arm(backend).last = now;
        }
        Decision { serving, trial }
    }
}

impl BatchSizeStats {
    fn arm(&mut self, backend: BackendIndex) -> &mut Arm {
        if self.arms.len() <= backend.0 {
            self.arms.resize(backend.0 + 1, Arm::default());
        }
        &mut self.arms[backend.0]
    }

    /// The incumbent if it is a candidate, else the cheapest candidate. A quarantined incumbent is not replaced.
    fn serving(&mut self, candidates: BackendSet) -> BackendIndex {
        let preferred = candidates.first().unwrap_or_default();
        let serving = *self.serving.get_or_insert(preferred);
        if candidates.contains(serving) {
            return serving;
        }
        let able = self.costs().filter(|measured| candidates.contains(measured.backend));
        let best = able.min_by(|a, b| a.cost_ns.total_cmp(&b.cost_ns));
        best.map_or(preferred, |measured| measured.backend)
    }

    /// The backend of `others` to try next: one that is winning, else the one tried longest ago.
    fn next_trial(&self, others: BackendSet) -> Option<BackendIndex> {
        others.iter().min_by_key(|backend| {
            let arm = self.arms.get(backend.0).copied().unwrap_or_default();
            (u32::MAX - arm.wins, arm.last)
        })
    }

    /// Whether to measure a backend now: it has few samples, is winning, or was last tried `interval` jobs ago.
    fn is_due(&mut self, backend: BackendIndex, now: u64, interval: u64) -> bool {
        let arm = *self.arm(backend);
        let old = now.saturating_sub(arm.last) >= interval;
        arm.measured < MIN_SAMPLES || arm.wins > 0 || old
    }

    fn record(&mut self, backend: BackendIndex, cost_ns: f64, now: u64) {
        let rival = self.serving.filter(|serving| *serving != backend);
        let peer = rival.and_then(|serving| self.arms.get(serving.0).copied());
        let arm = self.arm(backend);
        arm.last = now;
        arm.measured = arm.measured.saturating_add(1);
        arm.cost_ns = match arm.measured {
            1 => cost_ns,
            // The least of the first few: a hiccup among them would take long to wear off.
            2..=MIN_SAMPLES => arm.cost_ns.min(cost_ns),
            _ if cost_ns > arm.cost_ns => arm.cost_ns * (1.0 + MEDIAN_GAIN),
            _ if cost_ns < arm.cost_ns => arm.cost_ns * (1.0 - MEDIAN_GAIN),
            _ => arm.cost_ns,
        };
        let Some(peer) = peer.filter(|peer| peer.measured >= MIN_SAMPLES) else {
            return;
        };
        let won = cost_ns <= peer.cost_ns * TAKEOVER_COST_RATIO;
        arm.wins = if won { arm.wins + 1 } else { 0 };
        if arm.wins >= WINS_TO_TAKE_OVER {
            self.serving = Some(backend);
            self.switches += 1;
            for arm in &mut self.arms {
                arm.wins = 0;
            }
        }
    }

    fn costs(&self) -> impl Iterator<Item = MeasuredCost> {
        let arms = (0..).map(BackendIndex).zip(&self.arms);
        arms.filter(|(_, arm)| arm.measured > 0)
            .map(|(backend, arm)| MeasuredCost { backend, cost_ns: arm.cost_ns })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;
    use millrace_operation::Curve;

    const RSA: Group = Group(0);
    const BOTH: BackendSet = BackendSet::EMPTY.with(BackendIndex(0)).with(BackendIndex(1));
    const ALL: BackendSet = BOTH.with(BackendIndex(2));
    const LAST_TWO: BackendSet = ALL.without(BackendIndex(0));

    fn alone(jobs: usize) -> BatchLoad {
        BatchLoad { jobs, on_devices: 0 }
    }

    /// Serves `jobs` jobs in batches of `size` on backends that take four together. `cost` gives the cost of a
    /// job by backend and number of the batch. Returns the number of jobs that each backend got.
    fn serve(
        choices: &Choices,
        jobs: usize,
        size: usize,
        candidates: BackendSet,
        mut cost: impl FnMut(usize, usize) -> f64,
    ) -> [usize; 4] {
        let mut served = [0; 4];
        for batch in 0..jobs.div_ceil(size) {
            let Decision { serving, trial } = choices.decide(RSA, alone(size), candidates, |_| 4);
            let tried = trial.map_or(0, |trial| trial.jobs);
            let trial = trial.map(|trial| (trial.backend, trial.jobs));
            for (backend, jobs) in trial.into_iter().chain([(serving, size - tried)]) {
                assert!(candidates.contains(backend));
                if jobs > 0 {
                    served[backend.0] += jobs;
                    choices.record(RSA, size, backend, cost(backend.0, batch));
                }
            }
        }
        served
    }

    fn serving(choices: &Choices, max_batch: usize) -> (usize, u64) {
        let known = choices.known();
        let found = known.iter().find(|known| known.max_batch == Some(max_batch));
        found.map(|found| (found.serving.0, found.switches)).expect("something was served")
    }

    #[test]
    fn preferred_backend_serves_until_another_is_known_to_be_cheaper() {
        let choices = Choices::new();
        let costs = [300.0, 100.0];
        let first = serve(&choices, 99, 1, BOTH, |backend, _| costs[backend]);
        assert_eq!(first[..2], [99, 0]);
        serve(&choices, 1_000, 1, BOTH, |backend, _| costs[backend]);
        assert_eq!(serving(&choices, 1), (1, 1));
        let later = serve(&choices, 100_000, 1, BOTH, |backend, _| costs[backend]);
        // Known by now, so seldom tried.
        assert!((50..=150).contains(&later[0]), "{later:?}");
    }

    #[test]
    fn each_batch_size_has_its_own_choice() {
        let choices = Choices::new();
        // Lanes: a batch costs 250 whatever is in it. The library: 200 each.
        for (size, expected) in [(1, 1), (2, 0), (4, 0)] {
            let costs = [250.0 / size as f64, 200.0];
            serve(&choices, 20_000 * size, size, BOTH, |backend, _| costs[backend]);
            assert_eq!(serving(&choices, size).0, expected, "{size} together");
        }
    }

    #[test]
    fn backend_that_got_slower_is_replaced_and_comes_back() {
        let choices = Choices::new();
        serve(&choices, 10_000, 4, BOTH, |backend, _| [60.0, 200.0][backend]);
        assert_eq!(serving(&choices, 4), (0, 0));
        serve(&choices, 10_000, 4, BOTH, |backend, _| [900.0, 200.0][backend]);
        assert_eq!(serving(&choices, 4), (1, 1));
        serve(&choices, 100_000, 4, BOTH, |backend, _| [60.0, 200.0][backend]);
        assert_eq!(serving(&choices, 4), (0, 2));
    }

    #[test]
    fn equal_costs_do_not_flap_on_a_machine_with_changing_load() {
        let choices = Choices::new();
        let mut random = fastrand::Rng::with_seed(1);
        let cost = |_: usize, batch: usize| {
            // Up to a third of noise, and periods in which every job takes half as long again.
            let noise = random.f64() / 3.0;
            let busy = if batch / 5_000 % 2 == 1 { 1.5 } else { 1.0 };
            250.0 * (1.0 + noise) * busy
        };
        serve(&choices, 200_000, 1, BOTH, cost);
        assert!(serving(&choices, 1).1 <= 1, "{:?}", choices.known());
    }

    #[test]
    fn hiccups_do_not_change_the_choice() {
        let choices = Choices::new();
        let cost = |backend: usize, batch: usize| {
            let hiccup = if batch % 64 == 7 { 100.0 } else { 1.0 };
            [100.0, 150.0][backend] * hiccup
        };
        serve(&choices, 100_000, 4, BOTH, cost);
        assert_eq!(serving(&choices, 4), (0, 0));
    }

    #[test]
    fn quarantined_incumbent_serves_nothing_and_is_not_replaced() {
        let choices = Choices::new();
        let costs = [50.0, 200.0, 100.0];
        serve(&choices, 50_000, 4, ALL, |backend, _| costs[backend]);
        // Backend 0 is in quarantine: the cheapest other one serves.
        let served = serve(&choices, 396, 4, LAST_TWO, |backend, _| costs[backend]);
        assert!(served[0] == 0 && served[2] >= 390, "{served:?}");
        let served = serve(&choices, 400, 4, ALL, |backend, _| costs[backend]);
        assert!(served[0] >= 390, "{served:?}");
    }

    #[test]
    fn backend_that_is_never_measured_is_tried_within_bounds() {
        let choices = Choices::new();
        let mut tried = 0;
        for _ in 0..10_000 {
            match choices.decide(RSA, alone(1), BOTH, |_| 1).trial {
                None => choices.record(RSA, 1, BackendIndex(0), 100.0),
                Some(trial) => {
                    assert_eq!(trial, Trial { backend: BackendIndex(1), jobs: 1 });
                    tried += 1;
                }
            }
        }
        assert!((1..=100).contains(&tried), "{tried}");
    }

    #[test]
    fn batch_sizes_and_groups_have_rows_of_their_own() {
        let sizes: Vec<usize> = [1, 2, 3, 4, 5, 8, 9, 16, 64, 65, 128, 129, 256, 4_096]
            .into_iter()
            .map(batch_size_of)
            .collect();
        assert_eq!(sizes, [0, 1, 2, 3, 4, 4, 5, 5, 7, 8, 8, 9, 9, 9]);
        for most in (0..BATCH_SIZES).filter_map(max_jobs_of) {
            assert_eq!(max_jobs_of(batch_size_of(most)), Some(most));
        }
        let mut names: Vec<String> = (0..GROUPS).map(|group| Group(group).name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), GROUPS);
        let sign = OperationKind::RsaPssSign;
        for (bits, name) in [(2_048, "rsa-2048"), (2_049, "rsa-2560"), (8_192, "rsa-8192")] {
            assert_eq!(Group::of(sign, KeyType::Rsa { bits }).name(), name);
        }
        let p256 = KeyType::Ec(Curve::P256);
        assert_ne!(Group::of(OperationKind::Ecdh, p256), Group::of(OperationKind::EcdsaSign, p256));
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
            candidates in prop::collection::btree_set(0_usize..4, 1..=4),
        ) {
            let candidates: BackendSet = candidates.into_iter().map(BackendIndex).collect();
            let choices = Choices::new();
            let mut jobs = 0_u64;
            let mut explored = 0_u64;
            for size in sizes {
                // No backend is ever measured, so the preferred one serves.
                let decision = choices.decide(RSA, alone(size), candidates, |backend| 1 << (3 * backend.0));
                prop_assert_eq!(Some(decision.serving), candidates.first());
                jobs += size as u64;
                if let Some(Trial { backend, jobs: tried }) = decision.trial {
                    prop_assert!(candidates.contains(backend) && backend != decision.serving);
                    prop_assert!((1..=size.min(1 << (3 * backend.0))).contains(&tried));
                    explored += tried as u64;
                }
                prop_assert!(explored * EXPLORE_ONE_IN <= jobs);
            }
        }

        #[test]
        fn choice_settles_near_the_cheapest_and_stays(
            costs in prop::collection::vec(10.0_f64..1_000.0, 2..=4),
            noise in prop::collection::vec(0.97_f64..1.03, 64),
            size in 1_usize..=4,
        ) {
            let choices = Choices::new();
            let candidates: BackendSet = (0..costs.len()).map(BackendIndex).collect();
            let cost = |backend: usize, batch: usize| {
                costs[backend] * noise[(batch * 7 + backend * 13) % noise.len()]
            };
            serve(&choices, 8_000 * size, size, candidates, cost);
            let (backend, switches) = serving(&choices, size);
            let cheapest = costs.iter().copied().fold(f64::MAX, f64::min);
            prop_assert!(costs[backend] * TAKEOVER_COST_RATIO <= cheapest * 1.1, "{} of {:?}", backend, costs);
            prop_assert!(switches < costs.len() as u64);
            // The same calls give the same choices.
            let again = Choices::new();
            serve(&again, 8_000 * size, size, candidates, cost);
            prop_assert_eq!(choices.known(), again.known());
        }
    }
}
