// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The engine above a device: topped up, waited for without burning the core, and never in the way of others.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_engine::backend::Backend;
use millrace_engine::{
    BackendEvent, BackendStatus, Completion, CompletionSink, Engine, EngineConfig, EngineSession,
    Job, Key, Observer, Owner, StartError,
};
use millrace_operation::{BackendKind, Curve, Hash, JobError, KeyType, Operation, PrivateKey};
use millrace_testkit::collector::Collector;
use millrace_testkit::device::{DeviceControls, DeviceOptions, FakeDevice};
use millrace_testkit::fake::{FakeBackend, FakeOptions};
use millrace_testkit::wait::until;

const CARD: &[u8] = b"key of the card";
const CPU: &[u8] = b"key of the processor";
const RSA: KeyType = KeyType::Rsa { bits: 2048 };

/// An engine above a device, and maybe other backends, with one session.
struct Fixture {
    engine: Engine,
    session: EngineSession,
    sink: Arc<Collector>,
    device: DeviceControls,
    events: Arc<Events>,
}

#[derive(Debug, Default)]
struct Events(Mutex<Vec<(BackendKind, BackendEvent)>>);

impl Observer for Events {
    fn note(&self, backend: BackendKind, event: &BackendEvent) {
        self.0.lock().unwrap().push((backend, event.clone()));
    }
}

impl Events {
    fn all(&self) -> Vec<(BackendKind, BackendEvent)> {
        self.0.lock().unwrap().clone()
    }
}

impl Fixture {
    fn new(workers: usize, options: DeviceOptions, other: Option<FakeOptions>) -> Self {
        let device = FakeDevice::new(options);
        let controls = device.controls();
        Self::start(workers, device, other).unwrap_or_else(|error| panic!("{error}: {controls:?}"))
    }

    fn start(
        workers: usize,
        device: FakeDevice,
        other: Option<FakeOptions>,
    ) -> Result<Self, StartError> {
        let controls = device.controls();
        let mut backends: Vec<Arc<dyn Backend>> = vec![Arc::new(device)];
        backends.extend(other.map(|options| Arc::new(FakeBackend::new(options)) as _));
        let events = Arc::new(Events::default());
        let config = EngineConfig {
            workers,
            observer: Some(Arc::clone(&events) as _),
            ..EngineConfig::default()
        };
        let engine = Engine::start(config, backends)?;
        let sink = Arc::new(Collector::default());
        let session =
            engine.open_session(Arc::clone(&sink) as Arc<dyn CompletionSink>, Owner::new(1, 1));
        Ok(Self { engine, session, sink, device: controls, events })
    }

    fn key(&self, name: &[u8]) -> Arc<Key> {
        let key = PrivateKey::from_pkcs8(name.to_vec().into());
        self.engine.load_key(&key).expect("a backend takes it")
    }

    fn job(&self, id: u64, key: &Arc<Key>, lasts: Duration) -> Job {
        let operation = match key.info().key_type {
            RSA => Operation::RsaPkcs1Sign { hash: Hash::Sha256 },
            _ => Operation::EcdsaSign { hash: Hash::Sha256 },
        };
        Job {
            id,
            session: self.session.clone(),
            key: Arc::clone(key),
            operation,
            input: vec![u8::try_from(id % 251).unwrap(); 32],
            deadline: Instant::now() + lasts,
        }
    }

    fn submit(&self, ids: std::ops::Range<u64>, key: &Arc<Key>) {
        let jobs = ids.map(|id| self.job(id, key, Duration::from_secs(100)));
        self.engine.submit(jobs.collect());
    }

    fn status(&self) -> BackendStatus {
        self.engine.backends().remove(0)
    }
}

fn software(key: Option<&'static [u8]>) -> Option<FakeOptions> {
    Some(FakeOptions { only_key: key, ..FakeOptions::default() })
}

fn served_by(completions: &[Completion], kind: BackendKind) -> usize {
    let of = |completion: &&Completion| completion.served_by == Some(kind);
    completions.iter().filter(of).count()
}

#[test]
fn device_is_topped_up_while_earlier_tasks_are_in_flight() {
    let fixture = Fixture::new(1, DeviceOptions::default(), None);
    let key = fixture.key(CARD);
    fixture.device.hold();
    for id in 0..63 {
        fixture.submit(id..id + 1, &key);
        until("the one worker hands over each job as it comes", || {
            fixture.device.counts().peak_in_flight as u64 == id + 1
        });
    }
    fixture.device.release();
    assert_eq!(fixture.sink.take(63).len(), 63);
}

#[test]
fn worker_sleeps_while_a_device_works() {
    let fixture = Fixture::new(1, DeviceOptions::default(), None);
    let key = fixture.key(CARD);
    fixture.device.hold();
    fixture.submit(0..1, &key);
    let start = Instant::now();
    until("the worker has polled a thousand times", || fixture.device.counts().polls >= 1_000);
    // One poll in 50 µs at most, after a few microseconds without sleep. Without sleep they take a millisecond.
    let elapsed = start.elapsed();
    assert!(elapsed >= Duration::from_millis(40), "{elapsed:?}");
    fixture.device.release();
    fixture.sink.take(1);
}

#[test]
fn job_of_the_processor_never_waits_behind_a_full_device() {
    let fixture = Fixture::new(
        1,
        DeviceOptions { only_key: Some(CARD), ..DeviceOptions::default() },
        software(Some(CPU)),
    );
    let card = fixture.key(CARD);
    let cpu = fixture.key(CPU);
    fixture.device.hold();
    fixture.submit(0..10, &card);
    fixture.submit(1_000..1_001, &cpu);
    assert_eq!(fixture.sink.take(1)[0].id, 1_000, "beside a device with room");
    fixture.submit(10..150, &card);
    until("the device is full", || fixture.device.counts().peak_in_flight == 63);
    fixture.submit(1_001..1_002, &cpu);
    assert_eq!(fixture.sink.take(1)[0].id, 1_001, "beside a stuck device");
    fixture.device.release();
    assert_eq!(served_by(&fixture.sink.take(150), BackendKind::Qat), 150);
}

#[test]
fn stuck_device_gets_no_job_that_another_backend_can_serve() {
    let options = DeviceOptions { capacity: 4, ..DeviceOptions::default() };
    let fixture = Fixture::new(1, options, software(None));
    let key = fixture.key(CARD);
    fixture.device.hold();
    fixture.submit(0..4, &key);
    until("the device is full", || fixture.device.counts().peak_in_flight == 4);
    fixture.submit(4..60, &key);
    // Sixteen wait for the device, and no more; none of them if it has counted as stuck before they came.
    let elsewhere = fixture.sink.take(40);
    assert_eq!(served_by(&elsewhere, BackendKind::Software), elsewhere.len());
    fixture.device.release();
    let rest = fixture.sink.take(60 - elsewhere.len());
    let by_card = served_by(&rest, BackendKind::Qat);
    assert_eq!(by_card + served_by(&rest, BackendKind::Software), rest.len());
    assert!((4..=20).contains(&by_card), "{by_card}");
}

#[test]
fn device_that_takes_nothing_passes_its_jobs_on() {
    let fixture = Fixture::new(1, DeviceOptions::default(), software(None));
    let key = fixture.key(CARD);
    fixture.device.take_nothing();
    fixture.submit(0..100, &key);
    let elsewhere = fixture.sink.take(100);
    assert_eq!(served_by(&elsewhere, BackendKind::Software), 100);
    assert_eq!(fixture.device.counts().failed, 0);
}

#[test]
fn jobs_that_only_a_device_that_takes_nothing_can_serve_wait_for_it() {
    let fixture = Fixture::new(1, DeviceOptions::default(), None);
    let key = fixture.key(CARD);
    fixture.device.take_nothing();
    fixture.submit(0..100, &key);
    until("the device is asked again and again", || fixture.device.counts().polls > 50);
    assert_eq!(fixture.device.counts().peak_in_flight, 0);
    fixture.device.take_again();
    let served = fixture.sink.take(100);
    assert_eq!(served_by(&served, BackendKind::Qat), 100);
    assert!(served.iter().all(|completion| completion.result.is_ok()));
}

#[test]
fn card_for_rsa_costs_the_inline_path_of_p256_nothing() {
    let device = DeviceOptions { only_key: Some(CARD), ..DeviceOptions::default() };
    let p256 = FakeOptions {
        key_type: KeyType::Ec(Curve::P256),
        only_key: Some(CPU),
        ..FakeOptions::default()
    };
    let fixture = Fixture::new(2, device, Some(p256));
    let key = fixture.key(CPU);
    fixture.submit(0..1, &key);
    assert_eq!(fixture.engine.stats().ran_inline, 1);
    assert_eq!(fixture.sink.take(1).len(), 1);
}

#[test]
fn job_whose_task_is_lost_ends_once_at_its_deadline() {
    let fixture = Fixture::new(1, DeviceOptions::default(), None);
    let key = fixture.key(CARD);
    fixture.device.hold();
    fixture.device.lose(1);
    let lost = fixture.job(1, &key, Duration::from_millis(200));
    fixture.engine.submit(vec![lost]);
    until("the task is lost", || fixture.device.counts().lost == 1);
    fixture.submit(2..3, &key);
    let ended = fixture.sink.take(1);
    assert_eq!((ended[0].id, ended[0].result.as_ref().err()), (1, Some(&JobError::Expired)));
    assert_eq!(fixture.status().lost, 1);
    assert!(fixture.status().quarantined);
    // The answer comes after all, and its token was not given to another job.
    fixture.device.return_lost();
    fixture.submit(3..20, &key);
    fixture.device.release();
    for completion in fixture.sink.take(18) {
        let output = completion.result.expect("served");
        assert_eq!(*output, vec![u8::try_from(completion.id).unwrap(); 32]);
    }
    assert_eq!(fixture.engine.in_flight(), 0);
}

#[test]
fn queue_with_nothing_but_lost_tasks_is_replaced() {
    let options = DeviceOptions { capacity: 4, ..DeviceOptions::default() };
    let fixture = Fixture::new(1, options, None);
    let key = fixture.key(CARD);
    fixture.device.lose(4);
    let jobs = (0..4).map(|id| fixture.job(id, &key, Duration::from_millis(100)));
    fixture.engine.submit(jobs.collect());
    let all_expired = |ended: &[Completion]| ended.iter().all(|c| c.result.is_err());
    assert!(all_expired(&fixture.sink.take(4)));
    fixture.submit(4..12, &key);
    assert_eq!(served_by(&fixture.sink.take(8), BackendKind::Qat), 8);
    let counts = fixture.device.counts();
    assert_eq!((counts.open_queues, counts.queues_asked_for), (1, 2));
}

#[test]
fn tasks_of_a_device_that_is_reset_are_served_elsewhere() {
    let fixture = Fixture::new(1, DeviceOptions::default(), software(None));
    let key = fixture.key(CARD);
    for round in 0..10 {
        let first = round * 10;
        fixture.device.hold();
        fixture.submit(first..first + 5, &key);
        let before = fixture.device.counts();
        until("all are in flight", || {
            fixture.engine.in_flight() == 5 && fixture.device.counts().polls > before.polls
        });
        fixture.device.go_away("under reset");
        let ended = fixture.sink.take(5);
        assert_eq!(served_by(&ended, BackendKind::Software), 5, "{ended:?}");
        until("the engine knows", || fixture.status().away.as_deref() == Some("under reset"));
        fixture.submit(first + 5..first + 10, &key);
        assert_eq!(served_by(&fixture.sink.take(5), BackendKind::Software), 5);
        fixture.device.release();
        fixture.device.come_back();
        until("the engine knows", || fixture.status().away.is_none());
    }
    assert_eq!(fixture.engine.stats().in_flight, 0);
    let away = |event: &&(BackendKind, BackendEvent)| matches!(event.1, BackendEvent::Away(_));
    assert_eq!(fixture.events.all().iter().filter(away).count(), 10);
    let back = |event: &&(BackendKind, BackendEvent)| event.1 == BackendEvent::Back;
    assert_eq!(fixture.events.all().iter().filter(back).count(), 10);
}

#[test]
fn device_that_appears_after_the_start_serves() {
    let device = FakeDevice::new(DeviceOptions::default());
    device.controls().go_away("no such device yet");
    let fixture = Fixture::start(1, device, software(None)).expect("software serves");
    let key = fixture.key(CARD);
    fixture.submit(0..1, &key);
    assert_eq!(served_by(&fixture.sink.take(1), BackendKind::Software), 1);
    fixture.device.come_back();
    until("the engine knows", || fixture.status().away.is_none());
    fixture.submit(1..2, &key);
    assert_eq!(served_by(&fixture.sink.take(1), BackendKind::Qat), 1);
}

#[test]
fn engine_with_no_backend_but_an_absent_device_does_not_start() {
    let device = FakeDevice::new(DeviceOptions::default());
    device.controls().go_away("no such device");
    let error = Fixture::start(1, device, None).err().expect("no backend");
    assert!(error.to_string().contains("qat: no such device"), "{error}");
}

#[test]
fn refused_queue_is_reported_once_and_not_asked_for_per_job() {
    let fixture = Fixture::new(1, DeviceOptions::default(), software(None));
    let key = fixture.key(CARD);
    fixture.device.refuse_queues(Some("all instances are taken"));
    for id in 0..100 {
        fixture.submit(id..id + 1, &key);
        assert_eq!(served_by(&fixture.sink.take(1), BackendKind::Software), 1);
    }
    let asked = fixture.device.counts().queues_asked_for;
    assert!((1..50).contains(&asked), "{asked}");
    assert_eq!(fixture.status().queues_refused, asked);
    let refused = BackendEvent::QueueRefused("all instances are taken".to_owned());
    assert_eq!(fixture.events.all(), [(BackendKind::Qat, refused)]);
}

#[test]
fn no_more_queues_are_open_than_the_device_allows() {
    let options = DeviceOptions { max_queues: Some(2), ..DeviceOptions::default() };
    let fixture = Fixture::new(4, options, software(None));
    let key = fixture.key(CARD);
    for round in 0..50 {
        fixture.submit(round * 20..round * 20 + 20, &key);
    }
    assert_eq!(fixture.sink.take(1_000).len(), 1_000);
    let counts = fixture.device.counts();
    assert!((1..=2).contains(&counts.peak_open_queues), "{counts:?}");
    assert_eq!(fixture.status().queues_refused, 0, "the bound is not a refusal");
}
