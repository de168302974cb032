// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Compression by QAT cards, on the stand-in under Intel's unmodified libraries of two releases: `make test-qat`.

use std::io::Read as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use flate2::read::DeflateDecoder;
use millrace_deflate::blocks::FINAL_EMPTY;
use millrace_deflate::compressor::Compressor;
use millrace_deflate::engine::{Chunk, ChunkEnd};
use millrace_deflate::qat::{Card, CardFiles, QatEngine};
use millrace_deflate::settings::{ChunkVerification, CompressionSettings, DeviceUse};
use millrace_edge::compression::{Counter, Counters};
use millrace_testkit::qat::{
    ABANDONED, ALL_COMPRESSION, ANSWERS, CardEvent, DMA_FAULTS, FAIL_EVERY, LATENCY_US, LOSE_EVERY,
    QatControls, QatMachine, RING_MAP, UNKNOWN_FUNCTIONS, VERSIONS, WRONG, WRONG_EVERY, inside,
};

/// Runs the calling test on a machine of each version, or returns the controls if it runs there already.
fn on_machines(test: &str) -> Option<QatControls> {
    if let Some(controls) = inside() {
        return Some(controls);
    }
    // One at a time: a stand-in that gets no core answers too late.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for version in VERSIONS {
        match QatMachine::new(version, 1, 1) {
            Ok(machine) => {
                machine.controls().set(RING_MAP, ALL_COMPRESSION);
                machine.run_test(test);
            }
            Err(reason) => {
                millrace_testkit::skip::record(test, &format!("no library for QAT cards: {reason}"))
            }
        }
    }
    None
}

fn inflate(stream: &[u8]) -> Vec<u8> {
    let mut found = Vec::new();
    let read = DeflateDecoder::new(stream).read_to_end(&mut found);
    read.expect("a deflate stream");
    found
}

/// Text that compresses like a page with a list; with `noise`, bytes that do not compress.
fn sample(noise: bool, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut found = Vec::with_capacity(length + 64);
    while found.len() < length {
        if noise {
            found.push(random.u8(..));
        } else {
            found.extend(format!("<li id=\"{}\">item</li>\n", random.u32(..977)).into_bytes());
        }
    }
    found.truncate(length);
    found
}

/// A compressor on the cards of this process, and what it counts.
struct OnCard {
    compressor: Compressor,
    counters: Counters,
}

/// Messages of the library about the card.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn settings(device: DeviceUse, time: Duration) -> CompressionSettings {
    CompressionSettings {
        device,
        device_min: 1024,
        device_time: time,
        // A device's output is still verified.
        verify: ChunkVerification::Off,
        ..CompressionSettings::default()
    }
}

impl OnCard {
    /// Waits until the card serves.
    fn new(device: DeviceUse, time: Duration) -> Self {
        let counters = Counters::private();
        let files = CardFiles::read(|_| None);
        let report = |what: &str| SAID.lock().expect("no panic").push(what.to_owned());
        let card = Card::open(&files, counters, time, report).expect("Intel's libraries");
        assert!(Card::open(&files, counters, time, report).is_err(), "one per process");
        let engine = Some(QatEngine::on(&card));
        let compressor = Compressor::new(settings(device, time), counters, None, engine);
        let mut made = Self { compressor, counters };
        made.until_served("it starts");
        made
    }

    /// Compresses, and returns whether the card did it. The output is right in any case.
    fn served(&mut self, level: u8, input: &[u8], end: ChunkEnd) -> bool {
        let before = self.counters.get(Counter::QatChunks);
        let mut stream = b"before".to_vec();
        let chunk = Chunk { level, history: b"text before", input, end };
        self.compressor.compress(&chunk, &mut stream);
        if end == ChunkEnd::Open {
            stream.extend(FINAL_EMPTY);
        }
        assert!(inflate(&stream[6..]) == input, "{level} {} {end:?}", input.len());
        self.counters.get(Counter::QatChunks) > before
    }

    /// As [`Self::served`], once more for a chunk that came while the thread of control read the cards' messages: the
    /// processor compresses such a one.
    fn served_unless_read(&mut self, level: u8, input: &[u8], end: ChunkEnd) -> bool {
        let counters = self.counters;
        let passed_over = || counters.get(Counter::QatBusy) + counters.get(Counter::QatAway);
        let before = passed_over();
        self.served(level, input, end) || (passed_over() > before && self.served(level, input, end))
    }

    fn until_served(&mut self, what: &str) {
        let start = Instant::now();
        while !self.served(1, &sample(false, 5_000), ChunkEnd::Final) {
            let said = SAID.lock().expect("no panic").clone();
            assert!(start.elapsed() < Duration::from_secs(60), "never: {what}; {said:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The stand-in compresses on the cores that the tests share, so its answers may take long.
const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn card_compresses_chunks_of_every_level_and_length() {
    let Some(controls) = on_machines("card_compresses_chunks_of_every_level_and_length") else {
        return;
    };
    let mut card = OnCard::new(DeviceUse::Failover, PATIENCE);
    assert!(!card.served(6, &sample(false, 1023), ChunkEnd::Final), "shorter than the shortest");
    for level in 1..=9 {
        for length in [1024, 4_097, 70_000, 262_144, 390_000] {
            for end in [ChunkEnd::Final, ChunkEnd::Open] {
                assert!(
                    card.served_unless_read(level, &sample(false, length), end),
                    "{level} {length} {end:?}"
                );
            }
        }
    }
    for length in [1024, 100_000] {
        // Longer than its stored blocks would be no error: the processor stores it.
        card.served(6, &sample(true, length), ChunkEnd::Final);
    }
    let count = |counter| card.counters.get(counter);
    assert!(count(Counter::Verified) >= count(Counter::QatChunks));
    let none = [Counter::WrongQat, Counter::FailedQat, Counter::QatLate, Counter::QatRestarts];
    assert_eq!(none.map(count), [0; 4]);
    assert!(controls.get(ANSWERS) >= count(Counter::QatChunks));
    assert_eq!([DMA_FAULTS, UNKNOWN_FUNCTIONS].map(|what| controls.get(what)), [0, 0]);
}

#[test]
fn wrong_output_of_a_card_is_replaced_and_the_card_not_used() {
    let Some(controls) = on_machines("wrong_output_of_a_card_is_replaced_and_the_card_not_used")
    else {
        return;
    };
    let mut card = OnCard::new(DeviceUse::Failover, PATIENCE);
    let before = card.counters.get(Counter::LibdeflateChunks);
    controls.set(WRONG_EVERY, 1);
    assert!(!card.served(6, &sample(false, 50_000), ChunkEnd::Open));
    assert_eq!(controls.get(WRONG), 1);
    controls.set(WRONG_EVERY, 0);
    assert!(!card.served(6, &sample(false, 50_000), ChunkEnd::Final), "in quarantine");
    assert_eq!(card.counters.get(Counter::WrongQat), 1);
    assert_eq!(card.counters.get(Counter::LibdeflateChunks), before + 2);
}

#[test]
fn errors_of_a_card_leave_the_chunk_to_the_processor() {
    let Some(controls) = on_machines("errors_of_a_card_leave_the_chunk_to_the_processor") else {
        return;
    };
    let mut card = OnCard::new(DeviceUse::Failover, PATIENCE);
    controls.set(FAIL_EVERY, 1);
    for end in [ChunkEnd::Final, ChunkEnd::Open] {
        assert!(!card.served(6, &sample(false, 50_000), end));
    }
    assert_eq!(card.counters.get(Counter::FailedQat), 2);
    controls.set(FAIL_EVERY, 0);
    card.until_served("it serves again");
    assert_eq!(card.counters.get(Counter::QatRestarts), 0, "an error is not a reason to restart");
}

#[test]
fn lost_request_costs_one_deadline_and_the_card_starts_again() {
    let Some(controls) = on_machines("lost_request_costs_one_deadline_and_the_card_starts_again")
    else {
        return;
    };
    // Of the chunks that are right some may come later than this: the card then starts again, too.
    let mut card = OnCard::new(DeviceUse::Failover, Duration::from_millis(500));
    controls.set(LOSE_EVERY, 1);
    let before = card.counters.get(Counter::QatLate);
    assert!(!card.served(6, &sample(false, 50_000), ChunkEnd::Final));
    assert_eq!(card.counters.get(Counter::QatLate), before + 1);
    let away = card.counters.get(Counter::QatAway);
    assert!(!card.served(6, &sample(false, 50_000), ChunkEnd::Final), "not asked again");
    assert_eq!(card.counters.get(Counter::QatAway), away + 1);
    assert_eq!(card.counters.get(Counter::QatLate), before + 1, "and not waited for");
    controls.set(LOSE_EVERY, 0);
    card.until_served("it serves again");
    assert!(card.counters.get(Counter::QatRestarts) > 0);
    assert_eq!(controls.get(DMA_FAULTS), 0, "memory of the lost request stayed");
}

/// The library frees the memory of its requests before it turns the rings off.
#[test]
fn stop_waits_for_an_answer_that_is_late() {
    let Some(controls) = on_machines("stop_waits_for_an_answer_that_is_late") else {
        return;
    };
    let mut card = OnCard::new(DeviceUse::Failover, Duration::from_millis(200));
    for _ in 0..3 {
        let before = [Counter::QatLate, Counter::QatRestarts].map(|count| card.counters.get(count));
        controls.set(LATENCY_US, 250_000);
        assert!(!card.served(6, &sample(false, 50_000), ChunkEnd::Final));
        controls.set(LATENCY_US, 0);
        assert_eq!(card.counters.get(Counter::QatLate), before[0] + 1);
        card.until_served("it serves again");
        assert!(card.counters.get(Counter::QatRestarts) > before[1]);
    }
    assert_eq!([ABANDONED, DMA_FAULTS].map(|count| controls.get(count)), [0, 0]);
}

#[test]
fn reset_and_fatal_error_of_a_card_are_survived() {
    let Some(controls) = on_machines("reset_and_fatal_error_of_a_card_are_survived") else {
        return;
    };
    let mut card = OnCard::new(DeviceUse::Failover, Duration::from_secs(3));
    for event in [CardEvent::Fatal, CardEvent::Restarting] {
        let before = card.counters.get(Counter::QatRestarts);
        // In the engines of the card when it happens.
        controls.set(LATENCY_US, 1_000_000);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(200));
                controls.send(event);
            });
            // On a busy machine the event may come before the request, which a card that is away declines.
            card.served(6, &sample(false, 100_000), ChunkEnd::Final);
        });
        controls.set(LATENCY_US, 0);
        if event == CardEvent::Restarting {
            controls.send(CardEvent::Restarted);
        }
        card.until_served("it serves again");
        assert!(card.counters.get(Counter::QatRestarts) > before, "{event:?}");
    }
    assert_eq!(card.counters.get(Counter::WrongQat), 0);
    assert_eq!(controls.get(DMA_FAULTS), 0, "memory of lost requests stayed");
}

#[test]
fn many_threads_share_the_instances_of_a_card() {
    let Some(controls) = on_machines("many_threads_share_the_instances_of_a_card") else {
        return;
    };
    let counters = Counters::private();
    let card = Card::open(&CardFiles::read(|_| None), counters, PATIENCE, |_| ());
    let card: Arc<Card> = card.expect("Intel's libraries");
    thread::scope(|scope| {
        for number in 0..8_usize {
            let engine = Some(QatEngine::on(&card));
            scope.spawn(move || {
                let compressor = Compressor::new(
                    settings(DeviceUse::Failover, PATIENCE),
                    counters,
                    None,
                    engine,
                );
                let mut own = OnCard { compressor, counters };
                let start = Instant::now();
                for round in 0..40 {
                    let end = if round % 2 == 0 { ChunkEnd::Final } else { ChunkEnd::Open };
                    own.served(6, &sample(false, 2_000 + 997 * (number + round)), end);
                }
                while counters.get(Counter::QatChunks) == 0
                    && start.elapsed() < Duration::from_secs(60)
                {
                    own.served(6, &sample(false, 2_000), ChunkEnd::Final);
                    thread::sleep(Duration::from_millis(20));
                }
            });
        }
    });
    let none = [Counter::WrongQat, Counter::FailedQat, Counter::QatLate];
    assert_eq!(none.map(|counter| counters.get(counter)), [0; 3]);
    assert!(counters.get(Counter::QatChunks) > 0);
    assert_eq!(controls.get(DMA_FAULTS), 0);
}

#[test]
fn device_alone_sends_what_it_cannot_compress_as_it_is() {
    let Some(controls) = on_machines("device_alone_sends_what_it_cannot_compress_as_it_is") else {
        return;
    };
    let mut card = OnCard::new(DeviceUse::Only, PATIENCE);
    assert!(
        card.served(6, b"a few bytes, a few bytes, a few bytes, a few bytes", ChunkEnd::Final),
        "no shortest chunk"
    );
    controls.set(FAIL_EVERY, 1);
    let before = card.counters.get(Counter::StoredChunks);
    for end in [ChunkEnd::Final, ChunkEnd::Open] {
        assert!(!card.served(6, &sample(false, 50_000), end));
    }
    assert!(!card.served(6, &sample(true, 50_000), ChunkEnd::Final));
    assert_eq!(card.counters.get(Counter::StoredChunks), before + 3);
    assert_eq!(card.counters.get(Counter::LibdeflateChunks), 0);
}

#[test]
fn library_without_a_card_says_what_is_missing() {
    // A machine whose card offers public keys alone.
    if inside().is_none() {
        for version in VERSIONS {
            match QatMachine::new(version, 1, 1) {
                Ok(machine) => machine.run_test("library_without_a_card_says_what_is_missing"),
                Err(reason) => {
                    let reason = format!("no library for QAT cards: {reason}");
                    millrace_testkit::skip::record(
                        "library_without_a_card_says_what_is_missing",
                        &reason,
                    );
                }
            }
        }
        return;
    }
    let counters = Counters::private();
    let report = |what: &str| SAID.lock().expect("no panic").push(what.to_owned());
    let card = Card::open(&CardFiles::read(|_| None), counters, PATIENCE, report);
    let engine = Some(QatEngine::on(&card.expect("Intel's libraries")));
    let compressor =
        Compressor::new(settings(DeviceUse::Failover, PATIENCE), counters, None, engine);
    let mut without = OnCard { compressor, counters };
    let start = Instant::now();
    while SAID.lock().expect("no panic").is_empty() {
        assert!(!without.served(6, &sample(false, 50_000), ChunkEnd::Final));
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is said");
        thread::sleep(Duration::from_millis(20));
    }
    let said = SAID.lock().expect("no panic").join("\n");
    assert!(said.contains("cfg_services"), "{said}");
    assert!(counters.get(Counter::QatAway) > 0);
}
