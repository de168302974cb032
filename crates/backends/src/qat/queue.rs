// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The hot path: requests to one instance of a card, shared with the queues of other workers.
//!
//! A submission encodes and blinds the input and hands it to the card, as one request or as several that check each
//! other. A poll collects answers, takes the blinding out, and verifies. What the card does not answer in time ends as
//! failed, and its slot stays in use.
//!
//! **A silent instance** (`Instance::is_silent`) takes no tasks: [`Queue::submit`] returns 0, and the engine has the
//! jobs computed elsewhere.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millrace_engine::BackendError;
use millrace_engine::backend::{Done, Queue, Task};
use zeroize::Zeroizing;

use super::agreement::requests_of;
use super::card::{Cards, Instance, Running};
use super::keys::{QatKey, RsaKey};
use super::sys::{Answer, Request, SLOTS, Submitted};
use crate::blinding::Blinding;
use crate::key_table::KeyTable;
use crate::raw_rsa;
use crate::simd::{ROOTS, RootVerifier, RsaRoot};
use crate::software::operations;

/// The number of a request is that of its job, and in its lowest bits the number within the job.
const PART_BITS: u32 = 2;

/// Fewest roots that are verified in lanes: a batch of any number takes as long as some two on AWS-LC.
const LANES_FROM: usize = 3;

pub(super) struct QatQueue {
    card: Arc<Cards>,
    keys: Arc<KeyTable<QatKey>>,
    running: Arc<Running>,
    instance: usize,
    seat: usize,
    next_job: u64,
    /// Tasks for which the instance has had no room, or was in use by another thread.
    waiting: VecDeque<Task>,
    /// Jobs by number, so the oldest comes first.
    jobs: BTreeMap<u64, Job>,
    /// Tasks that ended without a request: refused, or computed on AWS-LC.
    refused: Vec<Done>,
    /// The lanes of this processor, to verify several roots at once.
    verifier: Option<RootVerifier>,
}

/// A task whose requests the card has.
struct Job {
    task: Task,
    key: Arc<QatKey>,
    work: Work,
    /// Answers by request.
    answers: Vec<Option<CardAnswer>>,
    started: Instant,
    until: Instant,
}

type CardAnswer = Result<Zeroizing<Vec<u8>>, ()>;

/// The other half of an answer, for its verification.
enum Work {
    /// The encoded input of an RSA operation, and the blinding.
    Root(Zeroizing<Vec<u8>>, Blinding),
    Agreement,
}

/// A job with all its answers, the blinding taken out of that of an RSA operation.
struct Opened {
    job: Job,
    /// The root, not verified. `None` for another operation, or without an answer.
    root: Option<Result<Zeroizing<Vec<u8>>, BackendError>>,
    /// All answers. `None` if one is missing.
    answers: Option<Vec<Zeroizing<Vec<u8>>>>,
    /// Whether the root is right, if that is known.
    verified: Option<bool>,
}

impl Opened {
    fn new(mut job: Job) -> Self {
        let count = job.answers.len();
        let answers: Option<Vec<_>> = job.answers.drain(..).map(|answer| answer?.ok()).collect();
        // The number of requests is counted later.
        job.answers.resize_with(count, || None);
        let root = match (&answers, &*job.key, &job.work) {
            (Some(answers), QatKey::Rsa(rsa), Work::Root(_, blinding)) => {
                answers.first().map(|answer| rsa.blinded.open(answer, blinding))
            }
            _ => None,
        };
        Self { job, root, answers, verified: None }
    }

    /// The root to be verified in lanes, if it can be.
    fn root(&self) -> Option<RsaRoot<'_>> {
        match (&self.root, &*self.job.key, &self.job.work) {
            (Some(Ok(root)), QatKey::Rsa(rsa), Work::Root(input, _)) => {
                Some(RsaRoot { key: rsa.lanes.as_ref()?, root, input })
            }
            _ => None,
        }
    }

    /// Size of the key of that root.
    fn size(&self) -> Option<usize> {
        self.root().map(|root| root.key.size())
    }
}

/// A task that is ready for the card.
struct Prepared {
    key: Arc<QatKey>,
    work: Work,
    requests: Vec<Request>,
}

impl QatQueue {
    pub(super) fn new(
        card: Arc<Cards>,
        keys: Arc<KeyTable<QatKey>>,
        running: Arc<Running>,
        (instance, seat): (usize, usize),
    ) -> Self {
        Self {
            card,
            keys,
            running,
            instance,
            seat,
            next_job: 0,
            waiting: VecDeque::new(),
            jobs: BTreeMap::new(),
            refused: Vec::new(),
            verifier: RootVerifier::new(),
        }
    }

    fn instance(&self) -> &Instance {
        &self.running.instances[self.instance]
    }

    /// Hands a task to the card; gives it back if there is no room.
    fn start(&mut self, task: Task) -> Option<Task> {
        let started = Instant::now();
        let end = |task, result| Done { task, result, service_time: started.elapsed() };
        let prepared = match self.prepare(&task) {
            Ok(Some(prepared)) => prepared,
            Ok(None) => {
                let key = self.keys.find(task.key);
                let result = operations::run_task(key.as_ref().map(|key| key.software()), &task);
                self.refused.push(end(task, result));
                return None;
            }
            Err(error) => {
                self.refused.push(end(task, Err(error)));
                return None;
            }
        };
        match self.submit_all(&prepared.requests) {
            Submitted::Taken => {
                let Prepared { key, work, requests } = prepared;
                let len = key.info().key_type.modulus_len();
                let until = started + self.card.answer_time(len);
                let answers = requests.iter().map(|_| None).collect();
                let job = Job { task, key, work, answers, started, until };
                self.jobs.insert(self.next_job, job);
                self.next_job += 1;
            }
            Submitted::Full => return Some(task),
            Submitted::NotOffered => {
                self.refused.push(end(task, Err(BackendError::NotOffered)));
            }
            Submitted::Failed => self.refused.push(end(task, Err(BackendError::Failed))),
        }
        None
    }

    /// Hands the requests of the next job to the card: all of them or none, except where the card refuses one.
    fn submit_all(&self, requests: &[Request]) -> Submitted {
        let instance = self.instance();
        // Another queue has it: the room was looked up a moment ago.
        let Some(mut ring) = instance.try_ring() else {
            return Submitted::Full;
        };
        if self.running.is_over() {
            return Submitted::Failed;
        }
        if SLOTS - ring.in_flight() < requests.len() {
            return Submitted::Full;
        }
        for (request, part) in requests.iter().zip(0..) {
            let submitted = ring.submit(request, (self.seat, self.next_job << PART_BITS | part));
            if submitted == Submitted::Taken {
                instance.counters.submitted.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            match submitted {
                Submitted::Full => {
                    instance.counters.full.fetch_add(1, Ordering::Relaxed);
                }
                // A library that refuses requests does not recover by itself: 24.02 after a reset, for one.
                Submitted::Failed => self.running.want_restart(),
                Submitted::Taken | Submitted::NotOffered => {}
            }
            ring.forget(|owner| owner.0 == self.seat && owner.1 >> PART_BITS == self.next_job);
            return submitted;
        }
        instance.note(&ring);
        Submitted::Taken
    }

    /// Encodes and blinds the input. `None` for a key that the card does not take.
    fn prepare(&self, task: &Task) -> Result<Option<Prepared>, BackendError> {
        if self.running.is_over() {
            return Err(BackendError::Failed);
        }
        let key = self.keys.find(task.key).ok_or(BackendError::Failed)?;
        let (requests, work) = match &*key {
            QatKey::Rsa(rsa) if !rsa.is_for_card() => return Ok(None),
            QatKey::Rsa(rsa) => self.prepare_root(rsa, task)?,
            QatKey::Agreement(agreement) => {
                (agreement.requests(&task.operation, &task.input)?, Work::Agreement)
            }
        };
        Ok(Some(Prepared { key, work, requests }))
    }

    fn prepare_root(
        &self,
        rsa: &RsaKey,
        task: &Task,
    ) -> Result<(Vec<Request>, Work), BackendError> {
        let input = raw_rsa::prepare(&rsa.blinded.software, &task.operation, &task.input)?;
        let (blinded, blinding) = rsa.blinded.blind(&input)?;
        let on_card = rsa.on_card(&self.card.library, self.running.number);
        let key = on_card.ok_or(BackendError::Failed)?;
        Ok((vec![Request::Root { key, input: blinded }], Work::Root(input, blinding)))
    }

    /// Verifies the answers of jobs and ends their tasks. Several roots with keys of one size are verified in lanes.
    fn settle_all(&mut self, jobs: Vec<Job>, done: &mut Vec<Done>) {
        let mut opened: Vec<Opened> = jobs.into_iter().map(Opened::new).collect();
        self.verify_in_lanes(&mut opened);
        for job in opened {
            done.push(self.settle(job));
        }
    }

    /// Verifies roots in batches of the lanes; a rest that is too small for a batch stays.
    fn verify_in_lanes(&mut self, jobs: &mut [Opened]) {
        let Some(verifier) = &mut self.verifier else {
            return;
        };
        let mut sizes: Vec<usize> = jobs.iter().filter_map(Opened::size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        for size in sizes {
            let of_size = jobs.iter_mut().filter(|job| job.size() == Some(size));
            let mut of_size: Vec<&mut Opened> = of_size.collect();
            for batch in of_size.chunks_mut(ROOTS).filter(|batch| batch.len() >= LANES_FROM) {
                // Each has a root: it has a size.
                let roots = batch.iter().filter_map(|job| job.root());
                let verified = verifier.verify(&roots.collect::<Vec<RsaRoot<'_>>>());
                for (job, verified) in batch.iter_mut().zip(verified) {
                    job.verified = Some(verified);
                }
            }
        }
    }

    /// Ends the task of a job, after verification if that is not done.
    fn settle(&self, opened: Opened) -> Done {
        let Opened { job, root, answers, verified } = opened;
        let Job { task, key, work, answers: requests, started, until: _ } = job;
        let requests = requests.len() as u64;
        let result = match (root, answers, &*key, work) {
            (Some(root), _, QatKey::Rsa(rsa), Work::Root(input, blinding)) => {
                root.and_then(|root| {
                    match verified {
                        Some(true) => {}
                        Some(false) => return Err(BackendError::Fault),
                        None => rsa.blinded.verify(&input, &root)?,
                    }
                    rsa.blinded.keep(blinding);
                    Ok(root)
                })
            }
            (_, Some(answers), QatKey::Agreement(agreement), Work::Agreement) => {
                agreement.join(&answers)
            }
            _ => Err(BackendError::Failed),
        };
        let counters = &self.instance().counters;
        match &result {
            Ok(_) => counters.served.fetch_add(requests, Ordering::Relaxed),
            Err(BackendError::Fault) => counters.faults.fetch_add(1, Ordering::Relaxed),
            Err(_) => 0,
        };
        let result = result.and_then(|output| match &*key {
            QatKey::Rsa(rsa) => {
                raw_rsa::finish(&rsa.blinded.software, &task.operation, &task.input, output)
            }
            QatKey::Agreement(_) => Ok(output),
        });
        Done { result, task, service_time: started.elapsed() }
    }

    /// Hands tasks to the card while it has room.
    fn start_waiting(&mut self) {
        let mut room = match self.instance().try_ring() {
            Some(ring) => SLOTS - ring.in_flight(),
            None => 0,
        };
        while let Some(task) = self.waiting.pop_front() {
            let needed = requests_of(&task.operation);
            if room < needed {
                self.waiting.push_front(task);
                break;
            }
            room -= needed;
            if let Some(task) = self.start(task) {
                self.waiting.push_front(task);
                break;
            }
        }
    }

    /// Ends all tasks that no request has been made for.
    fn fail_waiting(&mut self, done: &mut Vec<Done>) {
        done.extend(self.waiting.drain(..).map(|task| Done {
            task,
            result: Err(BackendError::Failed),
            service_time: Duration::ZERO,
        }));
    }

    fn fail_all(&mut self, done: &mut Vec<Done>) {
        self.fail_waiting(done);
        for (_, mut job) in std::mem::take(&mut self.jobs) {
            job.answers.fill_with(|| None);
            done.push(self.settle(Opened::new(job)));
        }
    }

    /// Notes an answer, and returns the job whose last it is.
    fn take_answer(&mut self, request: u64, answer: CardAnswer) -> Option<Job> {
        let number = request >> PART_BITS;
        let part = (request & ((1 << PART_BITS) - 1)) as usize;
        let job = self.jobs.get_mut(&number)?;
        if let Some(place) = job.answers.get_mut(part) {
            *place = Some(answer);
        }
        let is_complete = job.answers.iter().all(Option::is_some);
        is_complete.then(|| self.jobs.remove(&number)).flatten()
    }

    /// Ends the tasks that have waited for too long.
    fn give_up_late(&mut self, done: &mut Vec<Done>) {
        let now = Instant::now();
        if self.jobs.values().next().is_none_or(|oldest| oldest.until > now) {
            return;
        }
        let late = self.jobs.iter().filter(|(_, job)| job.until <= now);
        let numbers: Vec<u64> = late.map(|(number, _)| *number).collect();
        let mut requests = Vec::new();
        let mut ended = Vec::new();
        for number in numbers {
            let Some(job) = self.jobs.remove(&number) else { continue };
            let unanswered = job.answers.iter().zip(0..).filter(|(answer, _)| answer.is_none());
            requests.extend(unanswered.map(|(_, part)| number << PART_BITS | part));
            ended.push(job);
        }
        self.instance().lose(&self.running, self.seat, &requests);
        done.extend(ended.into_iter().map(|job| self.settle(Opened::new(job))));
    }
}

impl Queue for QatQueue {
    fn capacity(&self) -> usize {
        SLOTS
    }

    fn submit(&mut self, tasks: &mut VecDeque<Task>) -> usize {
        if self.instance().is_silent() && !self.running.is_over() {
            return 0;
        }
        let room = SLOTS.saturating_sub(self.jobs.len() + self.waiting.len() + self.refused.len());
        let taken = tasks.len().min(room);
        self.waiting.extend(tasks.drain(..taken));
        self.start_waiting();
        taken
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> usize {
        done.append(&mut self.refused);
        if self.running.is_over() {
            self.fail_all(done);
            return 0;
        }
        let mut complete = Vec::new();
        for Answer { owner, output } in self.instance().collect(self.seat) {
            complete.extend(self.take_answer(owner.1, output));
        }
        self.settle_all(complete, done);
        self.give_up_late(done);
        if self.instance().is_silent() {
            self.fail_waiting(done);
        }
        self.start_waiting();
        done.append(&mut self.refused);
        self.jobs.len() + self.waiting.len()
    }
}

impl Drop for QatQueue {
    fn drop(&mut self) {
        self.instance().leave(self.seat);
    }
}
