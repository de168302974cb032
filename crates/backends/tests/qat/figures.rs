// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The figures of docs/benchmarks/qat.md.

use super::*;

/// The figures of docs/benchmarks/qat.md that the stand-in can give: refused submissions, and the times from a fatal
/// event to the end of the tasks in flight and to the next answer.
#[test]
fn submissions_are_not_refused_and_a_failure_is_over_soon() {
    let Some(controls) =
        on_machines("figures::submissions_are_not_refused_and_a_failure_is_over_soon", 1)
    else {
        return;
    };
    let backend = backend();
    let key = open(&backend, keys::rsa_2048().der);
    controls.set(qat::LATENCY_US, 400);
    let mut queue = serving_queue(&backend, key);
    let mut tasks = (0..1000).map(|token| task(token, key)).collect();
    drain(&mut *queue, &mut tasks, 1000);
    drop(queue);
    let devices = backend.devices();
    let sum = |count: fn(&BackendDeviceStatus) -> u64| devices.iter().map(count).sum::<u64>();
    let submitted = sum(|device| device.submitted);
    let refused = sum(|device| device.full);
    let in_flight = controls.get(qat::MAX_IN_FLIGHT);
    println!("{submitted} submissions, {refused} refused, at most {in_flight} in flight");
    assert!(submitted >= 1000 && refused == 0);
    for _ in 0..5 {
        let mut queue = serving_queue(&backend, key);
        let mut tasks: VecDeque<Task> = (0..40).map(|token| task(token, key)).collect();
        queue.submit(&mut tasks);
        let start = Instant::now();
        let restarts = backend.tally().restarts;
        controls.send(CardEvent::Fatal);
        drain(&mut *queue, &mut tasks, 40);
        let ended = start.elapsed();
        drop(queue);
        until("it is restarted", || backend.tally().restarts > restarts);
        drop(serving_queue(&backend, key));
        println!(
            "{:.1} ms to the end of the tasks in flight, {:.0} ms to the next answers",
            ended.as_secs_f64() * 1e3,
            start.elapsed().as_secs_f64() * 1e3
        );
    }
    let start = Instant::now();
    let absent = Qat::new()
        .libraries(PathBuf::from("/nowhere/libqat.so.4"), PathBuf::from("/nowhere/libusdm.so.0"));
    assert!(absent.probe().is_err());
    println!("{:.2} ms to a probe without the library", start.elapsed().as_secs_f64() * 1e3);
}

/// Processor time of the engine's workers for keys of medium cost.
fn workers_time() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").expect("the threads").flatten();
    let is_worker = |task: &fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        name.starts_with("mr-medium")
    };
    tasks.filter(is_worker).map(|task| schedstat(&task.path())).sum()
}

fn schedstat(task: &Path) -> Duration {
    let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    let first = text.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(first.unwrap_or(0))
}

/// Clock of the processor, in cycles per nanosecond; none where the kernel does not say.
fn cycles_per_ns() -> Option<f64> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    Some(line.rsplit(' ').next()?.parse::<f64>().ok()? / 1e3)
}

/// Pause between polls without an answer: a worker of the engine sleeps as long at most.
const POLL_PAUSE: Duration = Duration::from_micros(50);

/// Figures of a queue that was kept full.
struct Saturated {
    /// Processor time of this thread between two sleeps in which it submitted or collected something, less that of
    /// as many without.
    work: Duration,
    /// Processor time of a poll without an answer, with the sleep after it.
    idle_poll: Duration,
    elapsed: Duration,
    /// Mean of the requests that the card held while the queue had more.
    held: f64,
}

/// Keeps a queue full until `count` tasks have ended, and sleeps after each poll without an answer, as a worker does.
fn saturate(
    queue: &mut dyn Queue,
    controls: &QatControls,
    count: u32,
    task: impl Fn(u32) -> Task,
) -> Saturated {
    let mut tasks: VecDeque<Task> = (0..count).map(task).collect();
    let start = Instant::now();
    // Exact after a sleep alone: the scheduler adds the time of a thread when it leaves its core.
    let time = || schedstat("/proc/thread-self".as_ref());
    let mut ended = 0;
    let mut held = 0;
    let mut looks = 0;
    let mut working = (Duration::ZERO, 0);
    let mut idle = (Duration::ZERO, 0);
    let mut done = Vec::new();
    thread::sleep(POLL_PAUSE);
    let mut before = time();
    let mut worked = false;
    while ended < count as usize {
        worked |= queue.submit(&mut tasks) > 0;
        queue.poll(&mut done);
        assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
        ended += done.len();
        worked |= !done.is_empty();
        if done.is_empty() {
            // While the queue still has tasks to fill the card with.
            if !tasks.is_empty() {
                (held, looks) = (held + controls.get(qat::IN_FLIGHT), looks + 1);
            }
            thread::sleep(POLL_PAUSE);
            let now = time();
            let kind = if worked { &mut working } else { &mut idle };
            (kind.0, kind.1) = (kind.0 + now.saturating_sub(before), kind.1 + 1);
            (before, worked) = (now, false);
        }
        done.clear();
    }
    let idle_poll = idle.0 / idle.1.max(1);
    Saturated {
        work: working.0.saturating_sub(idle_poll * working.1),
        idle_poll,
        elapsed: start.elapsed(),
        held: held as f64 / f64::from(looks.max(1)),
    }
}

/// Figures of docs/benchmarks/qat.md: what a card is filled to, what a task costs the thread that submits it, and what
/// a worker of the engine costs at a tenth of the rate. Printed, and not compared with a limit: the stand-in computes
/// on the same cores.
#[test]
fn figures_of_the_host_are_measured() {
    let Some(controls) = on_machines("figures::figures_of_the_host_are_measured", 1) else {
        return;
    };
    let backend = Arc::new(backend());
    let root = open(&backend, keys::rsa_2048().der);
    let agreements = agreements(&backend);
    controls.set(qat::LATENCY_US, 400);
    let mut queue = serving_queue(&backend, root);
    let clock = cycles_per_ns();
    let mut rate = 0.0;
    let count = if millrace_testkit::is_long() { 20_000 } else { 1_000 };
    let kinds: [(&str, &dyn Fn(u32) -> Task); 4] = [
        ("RSA-2048 signature", &|token| task(token, root)),
        ("X25519", &|token| agreements[3].task(token)),
        ("ECDH P-384", &|token| agreements[1].task(token)),
        ("Diffie-Hellman, 2048 bits", &|token| agreements[4].task(token)),
    ];
    for (name, make) in kinds {
        let count = if name.starts_with('R') || name.starts_with('X') { count } else { count / 10 };
        let before = backend.tally();
        let found = saturate(&mut *queue, &controls, count, make);
        let requests = backend.tally().served - before.served;
        assert!(requests >= u64::from(count));
        let each = found.work.as_nanos() as f64 / f64::from(count);
        let cycles = clock.map_or_else(String::new, |clock| {
            format!(", {:.0} cycles at {clock:.2} GHz", each * clock)
        });
        let found_rate = f64::from(count) / found.elapsed.as_secs_f64();
        println!(
            "{name}: {} requests each, {found_rate:.0} tasks/s, {:.1} of 63 held, {:.1} us of the thread each{cycles}, \
             {:.1} us for a poll without an answer and the sleep after it",
            requests / u64::from(count),
            found.held,
            each / 1e3,
            found.idle_poll.as_nanos() as f64 / 1e3,
        );
        if rate == 0.0 {
            rate = found_rate;
        }
    }
    drop(queue);
    let cores = worker_at(&backend, rate / 10.0);
    println!("a worker at a tenth of the rate of RSA-2048: {:.1} % of a core", cores * 100.0);
    assert_eq!((controls.get(qat::DMA_FAULTS), controls.get(qat::UNKNOWN_FUNCTIONS)), (0, 0));
}

/// Share of a core that one worker of an engine uses while it serves `rate` RSA-2048 signatures a second by the card.
fn worker_at(backend: &Arc<Qat>, rate: f64) -> f64 {
    let config = EngineConfig { workers: 1, ..EngineConfig::default() };
    let engine = Engine::start(config, vec![Arc::clone(backend) as _]).expect("an engine");
    let sink = Arc::new(Collector::default());
    let session = engine.open_session(Arc::clone(&sink) as _, Owner::new(1, 1));
    let key = keys::rsa_2048().private_key();
    let key = engine.load_key(&key).expect("the card takes it");
    let jobs: u32 = if millrace_testkit::is_long() { 2_000 } else { 200 };
    let start = Instant::now();
    let before = workers_time();
    for id in 0..jobs {
        let due = Duration::from_secs_f64(f64::from(id) / rate);
        thread::sleep(due.saturating_sub(start.elapsed()));
        engine.submit(vec![Job {
            id: id.into(),
            session: session.clone(),
            key: Arc::clone(&key),
            operation: Operation::RsaPkcs1Sign { hash: Hash::Sha256 },
            input: vec![1; 32],
            deadline: Instant::now() + Duration::from_secs(60),
        }]);
    }
    let ended = sink.take(jobs as usize);
    assert!(ended.iter().all(|completion| completion.result.is_ok()));
    (workers_time() - before).as_secs_f64() / start.elapsed().as_secs_f64()
}
