// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Bit flips in any lane, tested through an engine: every client gets the right result, another backend
//! serves the hit request, and the engine quarantines the simd backend.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use millrace_engine::backend::{Backend, BackendKey, Capability, Description, OpenedKey, Unusable};
use millrace_engine::{CompletionSink, Engine, EngineConfig, EngineSession, Job, Key, Owner};
use millrace_operation::{BackendKind, KeyError, Operation, PrivateKey};
use millrace_testkit::collector::Collector;
use millrace_testkit::keys as test_keys;
use millrace_testkit::random::SeededRandom;

use super::*;
use crate::simd::lanes::LANES;
use crate::simd::rsa::RsaStep;
use crate::simd::rsa::tests::{OnLanes, Strike, expected, loaded, on_all_lanes};
use crate::simd::{Implementation, Simd};
use crate::software::Software;

/// The simd backend on lanes where one bit flips in every batch.
struct Struck<L> {
    simd: Simd,
    /// The lanes, in a lock because they need not be `Sync`.
    lanes: Mutex<L>,
    strike: Strike,
}

impl<L> fmt::Debug for Struck<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} struck by {:?}", self.simd, self.strike)
    }
}

impl<L: Lanes> Backend for Struck<L> {
    fn describe(&self) -> Description {
        self.simd.describe()
    }
    fn capabilities(&self) -> &[Capability] {
        self.simd.capabilities()
    }
    fn probe(&self) -> Result<(), Unusable> {
        Ok(())
    }
    fn open_key(&self, key: &PrivateKey) -> Result<OpenedKey, KeyError> {
        let opened = self.simd.open_key(key)?;
        self.stock(&self.simd.keys.find(opened.key).expect("just opened"));
        Ok(opened)
    }
    fn close_key(&self, key: BackendKey) {
        self.simd.close_key(key);
    }
    fn open_queue(&self) -> Result<Box<dyn Queue>, Unusable> {
        let keys = Arc::clone(&self.simd.keys);
        let counters = Arc::clone(&self.simd.counters);
        let mut queue = SimdQueue::new(*self.lanes.lock().expect("no panic"), 1, keys, counters);
        let mut workspace = Workspace::new(&SIZES[0]);
        workspace.strike = Some(self.strike);
        queue.workspaces[0] = Some(Box::new(workspace));
        Ok(Box::new(queue))
    }
}

impl<L: Lanes> Struck<L> {
    /// Fills the store of blinding pairs by a batch without bit flips. Otherwise a flip would hit a pair
    /// while it is made: its request would leave the batch, and another one would move into the hit lane.
    fn stock(&self, key: &SimdKey) {
        let lanes = *self.lanes.lock().expect("no panic");
        let key = key.lanes.as_ref().expect("a key with lanes");
        let mut workspace = Workspace::new(&SIZES[0]);
        let pairs = workspace.blind(lanes, &[key; REQUESTS]);
        let mut blocks = [const { [0; 256] }; REQUESTS];
        let requests = pairs.into_iter().zip(&mut blocks).map(|(pair, block)| {
            let blinding = pair.expect("a blinding pair");
            RsaRequest { key, blinding, block }
        });
        let results = workspace.private(lanes, requests.collect());
        assert!(results.iter().all(Result::is_ok));
    }
}

struct InEveryLane;

impl OnLanes for InEveryLane {
    fn run<L: Lanes>(&self, l: L, name: &str, is_fast: bool) {
        let mut random = SeededRandom::new(8);
        let steps = [
            RsaStep::Modulus,
            RsaStep::Prime,
            RsaStep::Input,
            RsaStep::Power,
            RsaStep::Recombined,
            RsaStep::Unblinded,
            RsaStep::Verifying,
        ];
        for lane in 0..LANES {
            for (number, step) in steps.into_iter().enumerate() {
                // The twin is slow, so each lane is tested at one step only.
                if !is_fast && number != lane % steps.len() {
                    continue;
                }
                let bit = u32::try_from(random.below(52)).expect("a small number");
                let strike = Strike::new(step, lane, random.below(1_000), bit);
                struck(l, strike, &mut random, name);
            }
        }
    }
}

/// Runs a batch of four, then a second one, on an engine whose first backend flips bits.
fn struck<L: Lanes>(l: L, strike: Strike, random: &mut SeededRandom, name: &str) {
    let backend =
        Struck { simd: Simd::with(Implementation::Portable), lanes: Mutex::new(l), strike };
    let config = EngineConfig { workers: 1, ..EngineConfig::default() };
    let engine = Engine::start(config, vec![Arc::new(backend), Arc::new(Software::new())])
        .expect("an engine");
    let sink = Arc::new(Collector::default());
    let session =
        engine.open_session(Arc::clone(&sink) as Arc<dyn CompletionSink>, Owner::new(1, 1));
    let test_key = test_keys::rsa_2048();
    let key = engine.load_key(&test_key.private_key()).expect("a good key");
    let alone = loaded(&test_key);
    for (round, served_by_simd) in [(0, true), (1, false)] {
        let inputs: Vec<Vec<u8>> = (0..REQUESTS).map(|_| below_modulus(random)).collect();
        let job = |(id, input): (usize, &Vec<u8>)| job(id, input, &session, &key);
        engine.submit(inputs.iter().enumerate().map(job).collect());
        for (at, (completion, input)) in sink.take(REQUESTS).iter().zip(&inputs).enumerate() {
            let output = completion.result.as_ref().expect("a result");
            assert_eq!(**output, expected(&alone, input), "{name} {strike:?}");
            let kind = if served_by_simd && at != strike.request() {
                BackendKind::Simd
            } else {
                BackendKind::Software
            };
            assert_eq!(completion.served_by, Some(kind), "{name} {strike:?} {round}");
        }
        assert!(engine.backends()[0].quarantined, "{name} {strike:?}");
        let stats = engine.stats();
        assert_eq!((stats.faults, stats.retried), (1, 1), "{name} {strike:?}");
    }
    engine.stop();
}

fn job(id: usize, input: &[u8], session: &EngineSession, key: &Arc<Key>) -> Job {
    Job {
        id: id as u64,
        session: session.clone(),
        key: Arc::clone(key),
        operation: Operation::RsaRaw,
        input: input.to_vec(),
        deadline: Instant::now() + Duration::from_secs(600),
    }
}

fn below_modulus(random: &mut SeededRandom) -> Vec<u8> {
    let mut input: Vec<u8> = (0..256).map(|_| random.word().to_le_bytes()[0]).collect();
    input[0] &= 0x3f;
    input
}

#[test]
fn bit_flip_in_any_lane_never_reaches_a_client() {
    on_all_lanes(&InEveryLane);
}
