// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The engine above scripted backends: every job ends once, no wrong result gets out, owners get their shares.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millrace_engine::{
    BackendError, CompletionSink, Engine, EngineConfig, EngineSession, Job, Owner, PriorityLevel,
    WorkerThread,
};
use millrace_operation::{BackendKind, JobError, KeyError, PrivateKey};
use support::{Behaviour, Collector, Fixture, OWNER, Scripted, Shared};

#[test]
fn every_job_ends_exactly_once_with_its_own_result() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::new(&[&backend], 2);
    let mut ended = BTreeSet::new();
    for round in 0..20u64 {
        let jobs: Vec<_> = (0..30)
            .map(|i| {
                let id = round * 30 + i;
                if i % 3 == 0 { fixture.slow_job(id) } else { fixture.fast_job(id) }
            })
            .collect();
        fixture.engine.submit(jobs);
        for completion in fixture.sink.take(30) {
            assert!(ended.insert(completion.id), "{} ended twice", completion.id);
            let output = completion.result.unwrap();
            assert_eq!(u64::from(output[0]), completion.id % 251);
            assert_eq!(completion.served_by, Some(BackendKind::Software));
        }
    }
    assert_eq!(ended.len(), 600);
    assert_eq!(fixture.engine.in_flight(), 0);
}

#[test]
fn lone_fast_job_ends_before_submit_returns() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::new(&[&backend], 1);
    fixture.engine.submit(vec![fixture.fast_job(1)]);
    assert_eq!(fixture.engine.in_flight(), 0);
    assert_eq!(fixture.engine.stats().ran_inline, 1);
}

#[test]
fn fast_batch_is_shared_among_several_workers() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::new(&[&backend], 2);
    fixture.engine.submit((0..3).map(|id| fixture.fast_job(id)).collect());
    assert_eq!(fixture.sink.take(3).len(), 3);
    assert_eq!(fixture.engine.stats().ran_inline, 0);
}

#[test]
fn fast_batch_with_one_worker_runs_inline_up_to_its_bound() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::with_limits(&[&backend], 1, 256);
    fixture.engine.submit((0..64).map(|id| fixture.fast_job(id)).collect());
    assert_eq!(fixture.engine.in_flight(), 0);
    assert_eq!(fixture.engine.stats().ran_inline, 64);
    assert_eq!(fixture.sink.take(64).len(), 64);
    fixture.engine.submit((0..65).map(|id| fixture.fast_job(id)).collect());
    assert_eq!(fixture.sink.take(65).len(), 65);
    assert_eq!(fixture.engine.stats().ran_inline, 64);
}

#[test]
fn worker_takes_enough_jobs_to_fill_the_lanes() {
    let backend = Scripted::with_batch(BackendKind::Simd, 4);
    let fixture = Fixture::new(&[&backend], 4);
    backend.gate.close();
    // One worker takes the four that wait together; with a share each, four would stand at the gate.
    fixture.engine.submit((0..4).map(|id| fixture.slow_job(id)).collect());
    fixture.engine.submit((4..8).map(|id| fixture.slow_job(id)).collect());
    backend.gate.wait_for(2);
    assert!(backend.gate.waiting() <= 2);
    backend.gate.open();
    assert_eq!(fixture.sink.take(8).len(), 8);
}

#[test]
fn worker_leaves_the_others_a_share_although_a_device_takes_more() {
    let device = Scripted::device(BackendKind::Cuda, 1_000);
    let fixture = Fixture::new(&[&device], 2);
    device.gate.close();
    fixture.engine.submit((0..8).map(|id| fixture.slow_job(id)).collect());
    // Both workers stand at the gate: neither took everything.
    device.gate.wait_for(2);
    device.gate.open();
    assert_eq!(fixture.sink.take(8).len(), 8);
}

#[test]
fn slow_class_never_blocks_a_fast_one() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::with_limits(&[&backend], 1, 256);
    backend.gate.close();
    fixture.engine.submit((0..8).map(|id| fixture.slow_job(id)).collect());
    backend.gate.wait_for(1);
    // Enough jobs that they cannot run inline.
    fixture.engine.submit((100..180).map(|id| fixture.fast_job(id)).collect());
    let fast = fixture.sink.take(80);
    assert_eq!(fixture.engine.stats().ran_inline, 0);
    assert!(fast.iter().all(|completion| completion.id >= 100));
    backend.gate.open();
    assert_eq!(fixture.sink.take(8).len(), 8);
}

#[test]
fn faulty_backend_is_quarantined_and_its_job_served_elsewhere() {
    let faulty = Scripted::new(BackendKind::Simd);
    let good = Scripted::new(BackendKind::Software);
    *faulty.behaviour.lock().unwrap() = Behaviour::Fail(BackendError::Fault);
    let fixture = Fixture::new(&[&faulty, &good], 1);
    fixture.engine.submit(vec![fixture.slow_job(1)]);
    let first = fixture.sink.take(1).remove(0);
    assert_eq!(first.served_by, Some(BackendKind::Software));
    assert!(first.result.is_ok());
    assert!(fixture.engine.backends()[0].quarantined);
    fixture.engine.submit(vec![fixture.slow_job(2)]);
    assert!(fixture.sink.take(1)[0].result.is_ok());
    // The second job did not even reach it.
    assert_eq!(faulty.served.load(Ordering::SeqCst), 1);
    let stats = fixture.engine.stats();
    assert_eq!((stats.faults, stats.retried), (1, 1));
}

#[test]
fn cheaper_backend_takes_over_and_choices_show_it() {
    let dear = Scripted::new(BackendKind::Simd);
    let cheap = Scripted::new(BackendKind::Software);
    *dear.behaviour.lock().unwrap() = Behaviour::Work(Duration::from_micros(300));
    let fixture = Fixture::new(&[&dear, &cheap], 1);
    assert!(fixture.engine.choices().is_empty());
    let serve = |jobs: std::ops::Range<u64>| {
        for id in jobs {
            fixture.engine.submit(vec![fixture.slow_job(id)]);
            assert!(fixture.sink.take(1)[0].result.is_ok());
        }
    };
    let alone = || {
        let choices = fixture.engine.choices();
        choices.into_iter().find(|choice| choice.max_batch == Some(1))
    };
    // It takes eight wins in a row, one in a hundred jobs, and a trial that is interrupted loses.
    for round in 0..MOST_ROUNDS {
        serve(round * 100..(round + 1) * 100);
        if alone().is_some_and(|choice| choice.serving == BackendKind::Software) {
            break;
        }
    }
    let choice = alone().expect("a choice was made");
    assert_eq!(choice.jobs, "rsa-4096");
    assert_eq!(choice.serving, BackendKind::Software, "{choice:?}");
    assert_eq!(choice.costs.len(), 2, "{choice:?}");
    let before = cheap.served.load(Ordering::SeqCst);
    serve(0..1_000);
    let served = cheap.served.load(Ordering::SeqCst) - before;
    assert!(served > 900, "{served} of 1000");
}

/// Rounds of a hundred jobs: ten times what a backend needs to take over if nothing comes between.
const MOST_ROUNDS: u64 = 100;

#[test]
fn each_worker_of_each_class_is_placed_once() {
    #[derive(Debug, Default)]
    struct Recorder(std::sync::Mutex<Vec<WorkerThread>>);
    impl millrace_engine::Placement for Recorder {
        fn place(&self, worker: WorkerThread) {
            self.0.lock().unwrap().push(worker);
        }
    }
    let recorder = Arc::new(Recorder::default());
    let config = EngineConfig {
        workers: 3,
        placement: Some(Arc::clone(&recorder) as Arc<dyn millrace_engine::Placement>),
        ..EngineConfig::default()
    };
    let backend = Arc::new(Shared(Scripted::new(BackendKind::Software)));
    let engine = Engine::start(config, vec![backend]).unwrap();
    // Ends the workers, each of which has begun with being placed.
    engine.stop();
    let mut placed = recorder.0.lock().unwrap().clone();
    placed.sort_unstable();
    let expected = (0..3).map(WorkerThread::Regular).chain([WorkerThread::Express]);
    let of_three_classes: Vec<_> = expected.flat_map(|worker| [worker; 3]).collect();
    assert_eq!(placed, of_three_classes);
}

/// Workers that give way; keeps the names of the threads that computed.
#[derive(Debug)]
struct GivesWay;

impl millrace_engine::Placement for GivesWay {
    fn place(&self, _worker: WorkerThread) {}

    fn express_first(&self) -> bool {
        true
    }
}

#[test]
fn lone_job_beside_free_workers_that_give_way_is_express() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::with_placement(&[&backend], 2, Arc::new(GivesWay));
    // A regular worker takes a job that comes before the express worker sleeps.
    let is_express = |id| {
        std::thread::sleep(Duration::from_millis(1));
        fixture.engine.submit(vec![fixture.slow_job(id)]);
        assert!(fixture.sink.take(1)[0].result.is_ok());
        backend.threads.lock().unwrap().last().unwrap() == "mr-slow-new"
    };
    assert!((1..10_000).any(is_express));
}

#[test]
fn no_job_is_left_waiting_by_workers_that_give_way() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::with_placement(&[&backend], 1, Arc::new(GivesWay));
    // Single jobs and pairs, while either worker may be falling asleep.
    for id in (0..3_000).step_by(3) {
        fixture.engine.submit(vec![fixture.slow_job(id)]);
        fixture.sink.take(1);
        fixture.engine.submit(vec![fixture.slow_job(id + 1)]);
        fixture.engine.submit(vec![fixture.slow_job(id + 2)]);
        fixture.sink.take(2);
    }
}

#[test]
fn jobs_with_a_single_backend_are_not_measured() {
    let only = Scripted::new(BackendKind::Software);
    let fixture = Fixture::new(&[&only], 1);
    for id in 0..300 {
        fixture.engine.submit(vec![fixture.slow_job(id)]);
        assert!(fixture.sink.take(1)[0].result.is_ok());
    }
    assert!(fixture.engine.choices().is_empty());
}

#[test]
fn job_with_only_faulty_backends_fails_without_a_result() {
    let backends = [Scripted::new(BackendKind::Simd), Scripted::new(BackendKind::Software)];
    for backend in &backends {
        *backend.behaviour.lock().unwrap() = Behaviour::Fail(BackendError::Fault);
    }
    let fixture = Fixture::new(&[&backends[0], &backends[1]], 1);
    fixture.engine.submit(vec![fixture.slow_job(1)]);
    assert_eq!(fixture.sink.take(1)[0].result.as_ref().unwrap_err(), &JobError::Failed);
}

#[test]
fn job_with_bad_input_is_not_tried_on_another_backend() {
    let first = Scripted::new(BackendKind::Simd);
    let second = Scripted::new(BackendKind::Software);
    *first.behaviour.lock().unwrap() = Behaviour::Fail(BackendError::BadInput);
    let fixture = Fixture::new(&[&first, &second], 1);
    fixture.engine.submit(vec![fixture.slow_job(1)]);
    assert_eq!(fixture.sink.take(1)[0].result.as_ref().unwrap_err(), &JobError::BadInput);
    assert_eq!(second.served.load(Ordering::SeqCst), 0);
    assert!(!fixture.engine.backends()[0].quarantined);
}

#[test]
fn panic_in_a_backend_ends_its_jobs_and_not_the_worker() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::new(&[&backend], 1);
    *backend.behaviour.lock().unwrap() = Behaviour::Panic;
    fixture.engine.submit((0..10).map(|id| fixture.slow_job(id)).collect());
    let completions = fixture.sink.take(10);
    assert!(completions.iter().all(|c| c.result.as_ref().unwrap_err() == &JobError::Failed));
    assert!(fixture.engine.stats().panics >= 1);
    *backend.behaviour.lock().unwrap() = Behaviour::Answer;
    fixture.engine.submit(vec![fixture.slow_job(11)]);
    assert!(fixture.sink.take(1)[0].result.is_ok());
}

#[test]
fn panic_moves_waiting_tasks_to_another_backend() {
    let broken = Scripted::new(BackendKind::Simd);
    let good = Scripted::new(BackendKind::Software);
    *broken.behaviour.lock().unwrap() = Behaviour::Panic;
    let fixture = Fixture::new(&[&broken, &good], 1);
    // More than the queue of the broken backend holds (4), so that some still wait for it.
    fixture.engine.submit((0..10).map(|id| fixture.slow_job(id)).collect());
    let completions = fixture.sink.take(10);
    let served = completions.iter().filter(|c| c.result.is_ok()).count();
    assert!(served >= 6, "{served} of 10 served");
    assert_eq!(fixture.engine.in_flight(), 0);
}

#[test]
fn waiting_job_expires_although_the_worker_is_stuck() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::new(&[&backend], 1);
    backend.gate.close();
    fixture.engine.submit(vec![fixture.slow_job(1)]);
    backend.gate.wait_for(1);
    let mut late = fixture.slow_job(2);
    late.deadline = Instant::now() + Duration::from_millis(1);
    fixture.engine.submit(vec![late]);
    let completion = fixture.sink.take(1).remove(0);
    assert_eq!((completion.id, completion.result.unwrap_err()), (2, JobError::Expired));
    backend.gate.open();
    assert!(fixture.sink.take(1)[0].result.is_ok());
}

#[test]
fn waiting_job_can_be_cancelled_and_one_in_service_cannot() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::new(&[&backend], 1);
    backend.gate.close();
    fixture.engine.submit(vec![fixture.slow_job(1)]);
    backend.gate.wait_for(1);
    fixture.engine.submit(vec![fixture.slow_job(2)]);
    assert!(fixture.engine.cancel(&fixture.session, 2));
    assert!(!fixture.engine.cancel(&fixture.session, 2));
    assert!(!fixture.engine.cancel(&fixture.session, 1));
    let other = Arc::new(Collector::default()) as Arc<dyn CompletionSink>;
    assert!(!fixture.engine.cancel(&fixture.engine.open_session(other, Owner::new(1, 1)), 1));
    assert_eq!(fixture.sink.take(1)[0].result.as_ref().unwrap_err(), &JobError::Cancelled);
    backend.gate.open();
    assert_eq!(fixture.sink.take(1)[0].id, 1);
}

#[test]
fn closed_session_gets_no_completion_and_leaks_no_job() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::new(&[&backend], 1);
    backend.gate.close();
    fixture.engine.submit((0..5).map(|id| fixture.slow_job(id)).collect());
    backend.gate.wait_for(1);
    fixture.engine.close_session(&fixture.session);
    backend.gate.open();
    fixture.engine.stop();
    assert_eq!(fixture.engine.in_flight(), 0);
    assert_eq!(fixture.engine.stats().dropped, 5);
    assert!(fixture.sink.take(0).is_empty());
}

#[test]
fn session_with_a_full_queue_gets_busy_at_once() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::new(&[&backend], 1);
    backend.gate.close();
    fixture.engine.submit(vec![fixture.slow_job(0)]);
    backend.gate.wait_for(1);
    // The session's share is 32.
    fixture.engine.submit((1..=33).map(|id| fixture.slow_job(id)).collect());
    let refused = fixture.sink.take(1).remove(0);
    assert_eq!((refused.id, refused.result.unwrap_err()), (33, JobError::Busy));
    assert_eq!(refused.retry_after, None, "nothing was measured yet");
    backend.gate.open();
    assert_eq!(fixture.sink.take(33).len(), 33);
}

#[test]
fn draining_engine_serves_accepted_jobs_and_refuses_new_ones() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::new(&[&backend], 1);
    backend.gate.close();
    fixture.engine.submit(vec![fixture.slow_job(1)]);
    backend.gate.wait_for(1);
    fixture.engine.drain();
    fixture.engine.submit(vec![fixture.slow_job(2)]);
    assert_eq!(fixture.sink.take(1)[0].result.as_ref().unwrap_err(), &JobError::Draining);
    backend.gate.open();
    assert!(fixture.sink.take(1)[0].result.is_ok());
}

#[test]
fn wrong_digest_length_never_reaches_a_backend() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::new(&[&backend], 1);
    let mut job = fixture.slow_job(1);
    job.input.pop();
    fixture.engine.submit(vec![job]);
    assert_eq!(fixture.sink.take(1)[0].result.as_ref().unwrap_err(), &JobError::BadInput);
    assert_eq!(backend.served.load(Ordering::SeqCst), 0);
}

#[test]
fn key_is_closed_with_its_last_clone_and_bad_keys_are_refused() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::new(&[&backend], 1);
    let before = backend.open_keys.load(Ordering::SeqCst);
    let key = PrivateKey::from_pkcs8(b"rsa".to_vec().into());
    let loaded = fixture.engine.load_key(&key).unwrap();
    assert_eq!(backend.open_keys.load(Ordering::SeqCst), before + 1);
    drop(loaded);
    assert_eq!(backend.open_keys.load(Ordering::SeqCst), before);
    let bad = PrivateKey::from_pkcs8(b"?".to_vec().into());
    assert_eq!(fixture.engine.load_key(&bad).unwrap_err(), KeyError::Malformed);
}

#[test]
fn dropped_engine_ends_its_threads() {
    let backend = Scripted::new(BackendKind::Software);
    let weak = Arc::downgrade(&backend);
    let engine = Engine::start(EngineConfig::default(), vec![Arc::new(Shared(backend))]).unwrap();
    drop(engine);
    assert!(weak.upgrade().is_none());
}

/// This job in another session.
fn of(session: &EngineSession, mut job: Job) -> Job {
    job.session = session.clone();
    job
}

#[test]
fn single_job_is_served_while_another_owner_keeps_every_worker_busy() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::new(&[&backend], 2);
    let second = fixture.session_of(OWNER);
    let victim = fixture.session_of(OWNER + 1);
    backend.gate.close();
    fixture.engine.submit((0..20).map(|id| fixture.slow_job(id)).collect());
    backend.gate.wait_for(2);
    // Another session of the owner that is served already is not a newcomer.
    fixture.engine.submit(vec![of(&second, fixture.slow_job(100))]);
    fixture.engine.submit(vec![of(&victim, fixture.slow_job(200))]);
    backend.gate.wait_for(3);
    assert!(fixture.engine.cancel(&second, 100), "it waits");
    assert!(!fixture.engine.cancel(&victim, 200), "it is in service");
    backend.gate.open();
    assert_eq!(fixture.sink.take(22).len(), 22);
}

#[test]
fn owner_that_fills_the_queue_gives_way_to_another_up_to_its_share() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::with_limits(&[&backend], 1, 8);
    let second = fixture.session_of(OWNER);
    let victim = fixture.session_of(OWNER + 1);
    backend.gate.close();
    // One in service, and four of each session waiting: the queue is full.
    fixture.engine.submit(vec![fixture.slow_job(0)]);
    backend.gate.wait_for(1);
    fixture.engine.submit((1..5).map(|id| fixture.slow_job(id)).collect());
    fixture.engine.submit((5..9).map(|id| of(&second, fixture.slow_job(id))).collect());
    fixture.engine.submit(vec![fixture.slow_job(9)]);
    assert_eq!(fixture.sink.take(1)[0].id, 9, "no room");
    // The first goes to the express worker, four more may wait: half of eight.
    fixture.engine.submit(vec![of(&victim, fixture.slow_job(200))]);
    backend.gate.wait_for(2);
    let jobs = (201..206).map(|id| of(&victim, fixture.slow_job(id)));
    fixture.engine.submit(jobs.collect());
    let refused = fixture.sink.take(5);
    assert!(
        refused.iter().all(|completion| completion.result.as_ref().unwrap_err() == &JobError::Busy)
    );
    let ids: BTreeSet<u64> = refused.iter().map(|completion| completion.id).collect();
    assert!(ids.contains(&205), "{ids:?}");
    assert!(ids.iter().filter(|id| **id >= 200).count() == 1, "{ids:?}");
    backend.gate.open();
    assert_eq!(fixture.sink.take(10).len(), 10);
    assert_eq!(fixture.engine.in_flight(), 0);
}

#[test]
fn weight_that_changes_holds_for_the_next_jobs_of_an_open_session() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::with_limits(&[&backend], 1, 8);
    let second = fixture.session_of(OWNER);
    let heavy = [(); 2].map(|()| fixture.session_of(OWNER + 1));
    backend.gate.close();
    // One in service, and four of each session waiting: the queue is full.
    fixture.engine.submit(vec![fixture.slow_job(0)]);
    backend.gate.wait_for(1);
    for id in 1..9 {
        let session = if id < 5 { &fixture.session } else { &second };
        fixture.engine.submit(vec![of(session, fixture.slow_job(id))]);
    }
    heavy.iter().for_each(|session| session.set_share(3, PriorityLevel::Normal));
    // The first goes to the express worker. At weight 1, four more could wait; at weight 3, six can.
    fixture.engine.submit(vec![of(&heavy[0], fixture.slow_job(200))]);
    backend.gate.wait_for(2);
    for id in 201..207 {
        let session = &heavy[usize::from(id > 203)];
        fixture.engine.submit(vec![of(session, fixture.slow_job(id))]);
    }
    let refused = fixture.sink.take(6);
    let ids: BTreeSet<u64> = refused.iter().map(|completion| completion.id).collect();
    assert!(ids.iter().all(|id| *id < 200), "{ids:?}");
    backend.gate.open();
    assert_eq!(fixture.sink.take(10).len(), 10);
}

#[test]
fn large_batches_run_inline_only_while_one_owner_uses_the_class() {
    let backend = Scripted::new(BackendKind::Software);
    let fixture = Fixture::with_limits(&[&backend], 1, 256);
    let other = fixture.session_of(OWNER + 1);
    let batch = |jobs: u64| (0..jobs).map(|id| fixture.fast_job(id)).collect::<Vec<_>>();
    fixture.engine.submit(batch(64));
    assert_eq!(fixture.engine.stats().ran_inline, 64);
    fixture.engine.submit(vec![of(&other, fixture.fast_job(0))]);
    assert_eq!(fixture.engine.stats().ran_inline, 65);
    fixture.engine.submit(batch(64));
    assert_eq!(fixture.engine.stats().ran_inline, 65, "the owners take turns");
    assert_eq!(fixture.sink.take(129).len(), 129);
}

#[test]
fn refused_queue_is_reported_and_not_asked_for_at_every_job() {
    let refusing = Scripted::new(BackendKind::Cuda);
    let good = Scripted::new(BackendKind::Software);
    *refusing.refuses_queues.lock().unwrap() = Some("all instances are taken");
    let fixture = Fixture::new(&[&refusing, &good], 1);
    for id in 0..100 {
        fixture.engine.submit(vec![fixture.slow_job(id)]);
        let completion = fixture.sink.take(1).remove(0);
        assert_eq!(completion.served_by, Some(BackendKind::Software));
    }
    assert!(refusing.queues_asked_for.load(Ordering::SeqCst) < 50);
    let status = fixture.engine.backends();
    assert_eq!(status[0].queue_refused.as_deref(), Some("all instances are taken"));
    assert_eq!(status[1].queue_refused, None);
}

#[test]
fn backends_beyond_the_bound_are_listed_and_not_used() {
    let backends: Vec<_> =
        std::iter::repeat_with(|| Scripted::new(BackendKind::Software)).take(33).collect();
    let fixture = Fixture::new(&backends.iter().collect::<Vec<_>>(), 1);
    let status = fixture.engine.backends();
    let (last, used) = status.split_last().expect("33 backends");
    assert!(used.iter().all(|backend| backend.unusable.is_none()));
    assert_eq!(last.unusable.as_deref(), Some("an engine uses at most 32 backends"));
    let keys = |backend: &Arc<Scripted>| backend.open_keys.load(Ordering::SeqCst);
    assert_eq!((keys(&backends[31]), keys(&backends[32])), (2, 0));
}
