// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! How the jobs of one batch are divided among the backends, and what each backend needed for its part.
//! Pure: time is an argument.
//!
//! ```text
//!  batch ──plan──► MeasuredGroup (jobs that cost the same) ──┬── Part: the backend that serves
//!                                                            └── Part: the backend on trial, if any
//!  each job: place ──► PartId ──► finish │ invalidate        the last job of a Part gives a Measurement
//! ```

use std::time::{Duration, Instant};

use super::choice::{Decision, Group};

/// The plan of one batch. Jobs that one backend alone can serve are not in it.
#[derive(Debug, Default)]
pub(crate) struct BatchPlan {
    groups: Vec<MeasuredGroup>,
    begun: Option<Instant>,
}

/// Jobs of one batch that cost the same and that the same several backends can serve.
#[derive(Debug)]
struct MeasuredGroup {
    group: Group,
    /// The backends that can serve them, as a mask.
    able: u32,
    jobs: usize,
    serving: Part,
    trial: Option<Part>,
}

/// The jobs of a group that one backend gets.
#[derive(Debug, Default)]
struct Part {
    backend: usize,
    jobs: usize,
    unplaced: usize,
    unfinished: usize,
    /// Time that the backend computed them on the worker's core.
    busy: Duration,
    /// One of them failed or went to another backend, so the time says nothing.
    invalid: bool,
}

/// Names a part of the current batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartId {
    group: usize,
    is_trial: bool,
}

/// What one backend needed for its part of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measurement {
    pub(crate) group: Group,
    /// Jobs of the group in the batch.
    pub(crate) waiting: usize,
    /// Of those, jobs that this backend served.
    pub(crate) served: usize,
    pub(crate) backend: usize,
    pub(crate) busy: Duration,
}

impl Part {
    fn new(backend: usize, jobs: usize) -> Self {
        Self {
            backend,
            jobs,
            unplaced: jobs,
            unfinished: jobs,
            ..Self::default()
        }
    }
}

impl BatchPlan {
    /// Replaces the plan by one for a batch with these jobs, each as its group and the mask of backends that
    /// can serve it. `decide` is asked once per group.
    pub(crate) fn begin(
        &mut self,
        jobs: impl Iterator<Item = (Group, u32)>,
        decide: impl Fn(Group, usize, u32) -> Decision,
        now: Instant,
    ) {
        self.begun = Some(now);
        self.groups.clear();
        for (group, able) in jobs.filter(|(_, able)| able.count_ones() > 1) {
            match self
                .groups
                .iter_mut()
                .find(|known| known.group == group && known.able == able)
            {
                Some(known) => known.jobs += 1,
                None => self.groups.push(MeasuredGroup {
                    group,
                    able,
                    jobs: 1,
                    serving: Part::default(),
                    trial: None,
                }),
            }
        }
        for group in &mut self.groups {
            let Decision { serving, trial } = decide(group.group, group.jobs, group.able);
            let tried = trial.map_or(0, |trial| trial.jobs);
            group.serving = Part::new(serving, group.jobs - tried);
            group.trial = trial.map(|trial| Part::new(trial.backend, trial.jobs));
        }
    }

    /// Whether there is nothing to measure, so that the clock need not be read.
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The part and the backend of the next job of this kind; none if one backend alone can serve it.
    pub(crate) fn place(&mut self, group: Group, able: u32) -> Option<(PartId, usize)> {
        let mut groups = self.groups.iter_mut().enumerate();
        let (index, found) =
            groups.find(|(_, known)| known.group == group && known.able == able)?;
        let is_trial = found.serving.unplaced == 0;
        let part = if is_trial {
            found.trial.as_mut()?
        } else {
            &mut found.serving
        };
        part.unplaced = part.unplaced.checked_sub(1)?;
        Some((
            PartId {
                group: index,
                is_trial,
            },
            part.backend,
        ))
    }

    /// A job of this part failed or goes to another backend.
    pub(crate) fn invalidate(&mut self, id: PartId) {
        if let Some((_, part)) = self.part(id) {
            part.invalid = true;
        }
    }

    /// A backend computed on the worker's core for `busy`, some of it for a job of this part.
    pub(crate) fn add_busy_time(&mut self, id: PartId, busy: Duration) {
        if let Some((_, part)) = self.part(id) {
            part.busy += busy;
        }
    }

    /// A job of this part ended with a result. The last one gives the measurement. A backend on the CPU needed
    /// the time that it was busy; a device the time since the batch began, in which it may have idled.
    pub(crate) fn finish(
        &mut self,
        id: PartId,
        is_on_cpu: bool,
        now: Instant,
    ) -> Option<Measurement> {
        let since_begin = self
            .begun
            .map_or(Duration::ZERO, |begun| now.saturating_duration_since(begun));
        let ((group, waiting), part) = self.part(id)?;
        part.unfinished = part.unfinished.saturating_sub(1);
        if part.unfinished > 0 || part.invalid {
            return None;
        }
        let busy = if is_on_cpu { part.busy } else { since_begin };
        Some(Measurement {
            group,
            waiting,
            served: part.jobs,
            backend: part.backend,
            busy,
        })
    }

    /// The part, with its group and the jobs of that group.
    fn part(&mut self, id: PartId) -> Option<((Group, usize), &mut Part)> {
        let group = self.groups.get_mut(id.group)?;
        let part = if id.is_trial {
            group.trial.as_mut()?
        } else {
            &mut group.serving
        };
        Some(((group.group, group.jobs), part))
    }
}

#[cfg(test)]
mod tests {
    use super::super::choice::Trial;
    use super::*;
    use crate::key::KeyType;
    use crate::operation::OperationKind;

    const BOTH: u32 = 0b11;

    fn rsa(bits: u16) -> Group {
        Group::of(OperationKind::RsaPkcs1Sign, KeyType::Rsa { bits })
    }

    /// A plan for `jobs` jobs, where backend 0 serves and backend 1 gets `tried`.
    fn plan(jobs: usize, tried: usize, now: Instant) -> BatchPlan {
        let mut plan = BatchPlan::default();
        let trial = (tried > 0).then_some(Trial {
            backend: 1,
            jobs: tried,
        });
        let batch = std::iter::repeat_n((rsa(2048), BOTH), jobs);
        plan.begin(batch, |_, _, _| Decision { serving: 0, trial }, now);
        plan
    }

    fn place_all(plan: &mut BatchPlan) -> Vec<(PartId, usize)> {
        std::iter::from_fn(|| plan.place(rsa(2048), BOTH)).collect()
    }

    #[test]
    fn jobs_with_one_backend_are_not_planned() {
        let mut plan = BatchPlan::default();
        let never = |_, _, _| panic!("there is nothing to decide");
        plan.begin([(rsa(2048), 0b10)].into_iter(), never, Instant::now());
        assert!(plan.is_empty());
        assert_eq!(plan.place(rsa(2048), 0b10), None);
    }

    #[test]
    fn groups_and_masks_are_planned_apart() {
        let mut plan = BatchPlan::default();
        let batch = [
            (rsa(2048), BOTH),
            (rsa(4096), BOTH),
            (rsa(2048), 0b110),
            (rsa(2048), BOTH),
        ];
        let decide = |_, jobs, able: u32| Decision {
            serving: able.trailing_zeros() as usize + jobs - 1,
            trial: None,
        };
        plan.begin(batch.into_iter(), decide, Instant::now());
        let mut backend_of = |group, able| plan.place(group, able).map(|(_, backend)| backend);
        assert_eq!(backend_of(rsa(2048), BOTH), Some(1));
        assert_eq!(backend_of(rsa(4096), BOTH), Some(0));
        assert_eq!(backend_of(rsa(2048), 0b110), Some(1));
        assert_eq!(backend_of(rsa(2048), BOTH), Some(1));
        assert_eq!(backend_of(rsa(2048), BOTH), None, "there were two");
    }

    #[test]
    fn each_part_is_measured_with_its_last_job() {
        let now = Instant::now();
        let mut plan = plan(5, 2, now);
        let placed = place_all(&mut plan);
        assert_eq!(
            placed
                .iter()
                .map(|(_, backend)| *backend)
                .collect::<Vec<_>>(),
            [0, 0, 0, 1, 1]
        );
        for (id, _) in &placed {
            plan.add_busy_time(*id, Duration::from_micros(10));
        }
        let measured: Vec<Option<Measurement>> = placed
            .iter()
            .map(|(id, _)| plan.finish(*id, true, now))
            .collect();
        let group = rsa(2048);
        let busy = Duration::from_micros;
        let serving = Measurement {
            group,
            waiting: 5,
            served: 3,
            backend: 0,
            busy: busy(30),
        };
        let trial = Measurement {
            group,
            waiting: 5,
            served: 2,
            backend: 1,
            busy: busy(20),
        };
        assert_eq!(measured, [None, None, Some(serving), None, Some(trial)]);
    }

    #[test]
    fn device_is_measured_from_the_begin_of_the_batch() {
        let now = Instant::now();
        let mut plan = plan(1, 0, now);
        let (id, _) = plan.place(rsa(2048), BOTH).expect("one job");
        plan.add_busy_time(id, Duration::from_micros(1));
        let measured = plan.finish(id, false, now + Duration::from_millis(3));
        assert_eq!(
            measured.expect("the last job").busy,
            Duration::from_millis(3)
        );
    }

    #[test]
    fn part_with_a_failed_job_is_not_measured() {
        let now = Instant::now();
        let mut plan = plan(3, 1, now);
        let placed = place_all(&mut plan);
        plan.invalidate(placed[0].0);
        assert_eq!(plan.finish(placed[1].0, true, now), None);
        assert_eq!(
            plan.finish(placed[2].0, true, now)
                .map(|trial| trial.backend),
            Some(1)
        );
    }
}
