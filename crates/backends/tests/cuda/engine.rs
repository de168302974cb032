// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A failing device behind an engine: the client gets right results, from another backend.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_backends::cuda::VARIANTS;
use millrace_backends::software::Software;
use millrace_engine::{CompletionSink, Engine, EngineConfig, Job, Owner};
use millrace_operation::{BackendKind, Operation};
use millrace_testkit::collector::Collector;
use millrace_testkit::{keys, verify};

use super::simulated::{Plan, Simulated, Strike};
use super::{SeededRandom, on};

/// Runs jobs on an engine whose first backend uses a device with this plan. Returns the backends that served
/// them.
fn serve(plan: Plan, count: usize) -> (Vec<BackendKind>, Engine) {
    let device = Simulated::new();
    let cuda = on(&device, &VARIANTS[2]);
    let config = EngineConfig { workers: 1, ..EngineConfig::default() };
    let engine =
        Engine::start(config, vec![Arc::new(cuda), Arc::new(Software::new())]).expect("an engine");
    let sink = Arc::new(Collector::default());
    let session =
        engine.open_session(Arc::clone(&sink) as Arc<dyn CompletionSink>, Owner::new(1, 1));
    let key = engine.load_key(&keys::rsa_2048().private_key()).expect("a good key");
    device.plan(plan);
    let mut random = SeededRandom::new(20);
    let inputs: Vec<Vec<u8>> = (0..count)
        .map(|_| {
            let mut input = random.bytes(256);
            input[0] &= 0x3f;
            input
        })
        .collect();
    let job = |(id, input): (u64, &Vec<u8>)| Job {
        id,
        session: session.clone(),
        key: Arc::clone(&key),
        operation: Operation::RsaRaw,
        input: input.clone(),
        deadline: Instant::now() + Duration::from_secs(600),
    };
    engine.submit((0..).zip(&inputs).map(job).collect());
    let completions = sink.take(count);
    let served = completions
        .iter()
        .zip(&inputs)
        .map(|(completion, input)| {
            let output = completion.result.as_ref().expect("a result");
            assert_eq!(&verify::rsa_public(&key.info().spki, output), input);
            completion.served_by.expect("a backend")
        })
        .collect();
    (served, engine)
}

#[test]
fn lost_device_loses_no_job() {
    let plan = Plan { lost_after: Some(1), ..Plan::default() };
    let (served, engine) = serve(plan, 100);
    assert!(served.contains(&BackendKind::Software));
    engine.stop();
}

#[test]
fn device_with_wrong_results_is_quarantined() {
    let plan =
        Plan { strike: Strike { moment: 8, thread: 3, digit: 2, bit: 17 }, ..Plan::default() };
    let (served, engine) = serve(plan, 4);
    assert_eq!(served, [BackendKind::Software; 4]);
    assert!(engine.backends()[0].quarantined);
    assert_eq!(engine.stats().faults, 4);
    engine.stop();
}
