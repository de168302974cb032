// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Division of each batch among the backends, and the time that each backend needed for its part. Pure: time is an
//! argument.
//!
//! ```text
//!  batch ──plan──► MeasuredGroup (jobs that cost the same) ──┬── Part: the backend that serves
//!                                                            └── Part: the backend on trial, if any
//!  each job: place ──► PartId ──► finish_on_… │ invalidate    the last job of a Part gives a Measurement
//! ```
//!
//! A worker tops a device up while earlier batches are in flight, so several batches are planned at once. A
//! device computes them side by side: its cost per job is the time of the batch divided by all jobs that the
//! device held for this worker when the batch began, the batch included.

use std::time::{Duration, Instant};

use super::backend_set::{BackendIndex, BackendSet};
use super::choice::{Decision, Group};

/// The plans of the batches in flight. Jobs that one backend alone can serve are not in them.
#[derive(Debug, Default)]
pub(crate) struct BatchPlans {
    /// Groups at the index that is their number; an entry is free once all its jobs have ended.
    groups: Vec<Option<MeasuredGroup>>,
    free: Vec<usize>,
    /// Groups of the batch that is being placed.
    placing: Vec<usize>,
}

/// Jobs of one batch that cost the same and that the same several backends can serve.
#[derive(Debug)]
struct MeasuredGroup {
    facts: BatchFacts,
    /// The backends that can serve these jobs.
    able: BackendSet,
    serving: Part,
    trial: Option<Part>,
}

/// Facts about a group in its batch, for its measurements.
#[derive(Clone, Copy, Debug)]
struct BatchFacts {
    group: Group,
    jobs: usize,
    /// Tasks that devices held for this worker when the batch began.
    on_devices: usize,
    begun: Instant,
}

/// The jobs of a group that one backend gets.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    backend: BackendIndex,
    jobs: usize,
    unplaced: usize,
    unfinished: usize,
    /// Time that the backend computed them on the worker's core.
    busy: Duration,
    /// One of them failed or went to another backend, so the time is not a measurement.
    invalid: bool,
}

/// Names a part of a batch in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartId {
    group: usize,
    is_trial: bool,
}

/// Measured time of one backend for its part of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measurement {
    pub(crate) group: Group,
    /// Jobs of the group in the batch, and the tasks that devices held beside them.
    pub(crate) together: usize,
    /// Number of these jobs that this backend computed in the time `busy`.
    pub(crate) served: usize,
    pub(crate) backend: BackendIndex,
    pub(crate) busy: Duration,
}

impl Part {
    fn new(backend: BackendIndex, jobs: usize) -> Self {
        Self { backend, jobs, unplaced: jobs, unfinished: jobs, ..Self::default() }
    }
}

impl MeasuredGroup {
    fn part(&mut self, is_trial: bool) -> Option<&mut Part> {
        if is_trial { self.trial.as_mut() } else { Some(&mut self.serving) }
    }

    fn is_of(&self, group: Group, able: BackendSet) -> bool {
        self.facts.group == group && self.able == able
    }

    fn has_ended(&self) -> bool {
        let trial = self.trial.as_ref().map_or(0, |part| part.unfinished);
        self.serving.unfinished + trial == 0
    }
}

impl BatchPlans {
    /// Plans a batch with these jobs, each as its group and the backends that can serve it, beside
    /// `on_devices` tasks that devices hold. Calls `decide` once per group, with its number of jobs.
    pub(crate) fn begin(
        &mut self,
        jobs: impl Iterator<Item = (Group, BackendSet)>,
        on_devices: usize,
        decide: impl Fn(Group, usize, BackendSet) -> Decision,
        now: Instant,
    ) {
        let mut planned: Vec<MeasuredGroup> = Vec::new();
        for (group, able) in jobs.filter(|(_, able)| able.len() > 1) {
            match planned.iter_mut().find(|known| known.is_of(group, able)) {
                Some(known) => known.facts.jobs += 1,
                None => planned.push(MeasuredGroup {
                    facts: BatchFacts { group, jobs: 1, on_devices, begun: now },
                    able,
                    serving: Part::default(),
                    trial: None,
                }),
            }
        }
        self.placing.clear();
        for mut group in planned {
            let jobs = group.facts.jobs;
            let Decision { serving, trial } = decide(group.facts.group, jobs, group.able);
            let tried = trial.map_or(0, |trial| trial.jobs.min(jobs));
            group.serving = Part::new(serving, jobs - tried);
            group.trial = trial.map(|trial| Part::new(trial.backend, tried));
            let index = self.free.pop().unwrap_or_else(|| {
                self.groups.push(None);
                self.groups.len() - 1
            });
            self.groups[index] = Some(group);
            self.placing.push(index);
        }
    }

    /// Whether there is nothing to measure, so that the clock need not be read.
    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.groups.len()
    }

    /// The part and the backend of the next job of this kind in the batch that is being placed; `None` if one
    /// backend alone can serve it.
    pub(crate) fn place(
        &mut self,
        group: Group,
        able: BackendSet,
    ) -> Option<(PartId, BackendIndex)> {
        for index in &self.placing {
            let Some(found) = self.groups[*index].as_mut() else {
                continue;
            };
            if !found.is_of(group, able) {
                continue;
            }
            let is_trial = found.serving.unplaced == 0;
            let part = found.part(is_trial)?;
            part.unplaced = part.unplaced.checked_sub(1)?;
            let id = PartId { group: *index, is_trial };
            return Some((id, part.backend));
        }
        None
    }

    /// A job of this part failed or goes to another backend.
    pub(crate) fn invalidate(&mut self, id: PartId) {
        if let Some(part) = self.part(id) {
            part.invalid = true;
        }
        self.end_job(id);
    }

    /// A backend computed on the worker's core for `busy`, some of it for a job of this part.
    pub(crate) fn add_busy_time(&mut self, id: PartId, busy: Duration) {
        if let Some(part) = self.part(id) {
            part.busy += busy;
        }
    }

    /// A job of this part ended with a result of a backend on the CPU. The last one gives the measurement: the backend
    /// needed the time that it was busy.
    pub(crate) fn finish_on_cpu(&mut self, id: PartId) -> Option<Measurement> {
        let (facts, part) = self.end_job(id).filter(|(_, part)| !part.invalid)?;
        Some(Measurement {
            group: facts.group,
            together: facts.jobs + facts.on_devices,
            served: part.jobs,
            backend: part.backend,
            busy: part.busy,
        })
    }

    /// The same for a device, which needed the time since the batch began. It may have idled for a part of that.
    pub(crate) fn finish_on_device(&mut self, id: PartId, now: Instant) -> Option<Measurement> {
        let (facts, part) = self.end_job(id).filter(|(_, part)| !part.invalid)?;
        Some(Measurement {
            group: facts.group,
            together: facts.jobs + facts.on_devices,
            served: part.jobs + facts.on_devices,
            backend: part.backend,
            busy: now.saturating_duration_since(facts.begun),
        })
    }

    fn part(&mut self, id: PartId) -> Option<&mut Part> {
        self.groups.get_mut(id.group)?.as_mut()?.part(id.is_trial)
    }

    /// Counts a job of this part as ended, and forgets the group after its last job. Returns the part after its last
    /// job.
    fn end_job(&mut self, id: PartId) -> Option<(BatchFacts, Part)> {
        let group = self.groups.get_mut(id.group)?.as_mut()?;
        let part = group.part(id.is_trial)?;
        part.unfinished = part.unfinished.saturating_sub(1);
        let ended = *part;
        let facts = group.facts;
        if group.has_ended() {
            self.groups[id.group] = None;
            self.free.push(id.group);
        }
        (ended.unfinished == 0).then_some((facts, ended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_operation::{KeyType, OperationKind};

    use crate::engine::choice::Trial;

    const FIRST: BackendIndex = BackendIndex(0);
    const BOTH: BackendSet = SECOND.with(FIRST);
    const SECOND: BackendSet = BackendSet::EMPTY.with(BackendIndex(1));
    const LAST_TWO: BackendSet = SECOND.with(BackendIndex(2));

    fn rsa(bits: u16) -> Group {
        Group::of(OperationKind::RsaPkcs1Sign, KeyType::Rsa { bits })
    }

    /// A plan for `jobs` jobs, where backend 0 serves and backend 1 gets `tried`.
    fn plan(jobs: usize, tried: usize, now: Instant) -> BatchPlans {
        let mut plan = BatchPlans::default();
        let trial = (tried > 0).then_some(Trial { backend: BackendIndex(1), jobs: tried });
        let batch = std::iter::repeat_n((rsa(2048), BOTH), jobs);
        plan.begin(batch, 0, |_, _, _| Decision { serving: FIRST, trial }, now);
        plan
    }

    fn place_all(plan: &mut BatchPlans) -> Vec<(PartId, BackendIndex)> {
        std::iter::from_fn(|| plan.place(rsa(2048), BOTH)).collect()
    }

    #[test]
    fn jobs_with_one_backend_are_not_planned() {
        let mut plan = BatchPlans::default();
        let never = |_, _, _| panic!("there is nothing to decide");
        plan.begin([(rsa(2048), SECOND)].into_iter(), 0, never, Instant::now());
        assert!(plan.is_empty());
        assert_eq!(plan.place(rsa(2048), SECOND), None);
    }

    #[test]
    fn groups_and_sets_of_backends_are_planned_apart() {
        let mut plan = BatchPlans::default();
        let batch =
            [(rsa(2048), BOTH), (rsa(4096), BOTH), (rsa(2048), LAST_TWO), (rsa(2048), BOTH)];
        let decide = |_, jobs, able: BackendSet| Decision {
            serving: BackendIndex(able.first().expect("two backends").0 + jobs - 1),
            trial: None,
        };
        plan.begin(batch.into_iter(), 0, decide, Instant::now());
        let mut backend_of = |group, able| plan.place(group, able).map(|(_, backend)| backend.0);
        assert_eq!(backend_of(rsa(2048), BOTH), Some(1));
        assert_eq!(backend_of(rsa(4096), BOTH), Some(0));
        assert_eq!(backend_of(rsa(2048), LAST_TWO), Some(1));
        assert_eq!(backend_of(rsa(2048), BOTH), Some(1));
        assert_eq!(backend_of(rsa(2048), BOTH), None, "there were two");
    }

    #[test]
    fn each_part_is_measured_with_its_last_job() {
        let now = Instant::now();
        let mut plan = plan(5, 2, now);
        let placed = place_all(&mut plan);
        assert_eq!(
            placed.iter().map(|(_, backend)| backend.0).collect::<Vec<_>>(),
            [0, 0, 0, 1, 1]
        );
        for (id, _) in &placed {
            plan.add_busy_time(*id, Duration::from_micros(10));
        }
        let measured: Vec<Option<Measurement>> =
            placed.iter().map(|(id, _)| plan.finish_on_cpu(*id)).collect();
        let group = rsa(2048);
        let busy = Duration::from_micros;
        let serving = Measurement { group, together: 5, served: 3, backend: FIRST, busy: busy(30) };
        let trial =
            Measurement { group, together: 5, served: 2, backend: BackendIndex(1), busy: busy(20) };
        assert_eq!(measured, [None, None, Some(serving), None, Some(trial)]);
    }

    #[test]
    fn device_is_measured_from_the_begin_of_the_batch() {
        let now = Instant::now();
        let mut plan = plan(1, 0, now);
        let (id, _) = plan.place(rsa(2048), BOTH).expect("one job");
        plan.add_busy_time(id, Duration::from_micros(1));
        let measured = plan.finish_on_device(id, now + Duration::from_millis(3));
        assert_eq!(measured.expect("the last job").busy, Duration::from_millis(3));
    }

    #[test]
    fn part_with_a_failed_job_is_not_measured() {
        let now = Instant::now();
        let mut plan = plan(3, 1, now);
        let placed = place_all(&mut plan);
        plan.invalidate(placed[0].0);
        assert_eq!(plan.finish_on_cpu(placed[1].0), None);
        assert_eq!(plan.finish_on_cpu(placed[2].0).map(|trial| trial.backend.0), Some(1));
    }

    #[test]
    fn batches_in_flight_together_are_measured_apart() {
        let now = Instant::now();
        let after = |ms| now + Duration::from_millis(ms);
        let serve = |_, _, _| Decision { serving: FIRST, trial: None };
        let mut plan = plan(2, 0, now);
        let first = place_all(&mut plan);
        // Two more jobs, while the device still has those of the first batch.
        let batch = std::iter::repeat_n((rsa(2048), BOTH), 2);
        plan.begin(batch, 2, serve, after(1));
        let second = place_all(&mut plan);
        assert_eq!(plan.finish_on_device(second[0].0, after(3)), None);
        let measured = plan.finish_on_device(second[1].0, after(5)).expect("the last job");
        assert_eq!((measured.together, measured.served), (4, 4));
        assert_eq!(measured.busy, Duration::from_millis(4));
        assert!(!plan.is_empty(), "the first batch is in flight");
        assert_eq!(plan.finish_on_device(first[0].0, after(6)), None);
        assert!(plan.finish_on_device(first[1].0, after(6)).is_some());
        assert!(plan.is_empty());
    }

    #[test]
    fn plan_of_a_batch_that_failed_is_forgotten() {
        let mut plan = plan(3, 1, Instant::now());
        for (id, _) in place_all(&mut plan) {
            plan.invalidate(id);
        }
        assert!(plan.is_empty());
    }
}
