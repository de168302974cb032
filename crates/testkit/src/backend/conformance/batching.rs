// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Queues: keys and operations mixed in one queue, the capacity respected, every task returned exactly once
//! with the same result as alone, and a key closed while its tasks are in flight.

use std::collections::{BTreeMap, VecDeque};

use millrace_engine::BackendError;
use millrace_engine::backend::{BackendKey, Done, Queue, Task};
use millrace_operation::{KeyInfo, Operation};

use super::comparison::{Expectation, check, operations, takes_any_length};
use super::{ConformanceReport, QueueDriver};
use crate::keys::{self, TestKey};

/// One task of the mix, with its expected result.
struct Wanted {
    key: TestKey,
    info: KeyInfo,
    name: BackendKey,
    operation: Operation,
    input: Vec<u8>,
}

pub(super) fn run(driver: &QueueDriver, report: &mut ConformanceReport) {
    let wanted = mix(driver);
    let mut queue = driver.backend().open_queue().expect("a queue");
    let capacity = queue.capacity();
    assert!(capacity >= 1, "a queue has room for a task");
    // Enough to fill the queue three times.
    let count = (3 * capacity).max(wanted.len());
    let mut tasks = tasks(&wanted, count);
    let done = drive(&mut *queue, &mut tasks, count);
    for (token, done) in done {
        let wanted = &wanted[token as usize % wanted.len()];
        assert_eq!((&done.task.operation, &done.task.input), (&wanted.operation, &wanted.input));
        let result = done.result.map_err(|error| (wanted.key.name, error));
        check(&wanted.info, &wanted.operation, &wanted.input, &result, Expectation::Works);
    }
    report.ran("batching, mixed", count);

    failures_stay_alone(driver, &wanted, report);
    closing_in_flight(driver, &wanted, report);
    for wanted in wanted {
        driver.close(wanted.name);
    }
}

/// One task per key and operation that the backend offers, without slow keys.
fn mix(driver: &QueueDriver) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    for key in keys::all().into_iter().filter(|key| key.key_type.modulus_len() <= 384) {
        let Ok(opened) = driver.open(key.der) else {
            continue;
        };
        for (operation, input) in operations(&key, &opened.info.spki) {
            if driver.offers(operation.kind(), key.key_type) {
                let info = opened.info.clone();
                let name = opened.key;
                wanted.push(Wanted { key, info, name, operation, input });
            }
        }
    }
    assert!(!wanted.is_empty(), "a backend offers something");
    wanted
}

fn tasks(wanted: &[Wanted], count: usize) -> VecDeque<Task> {
    (0..)
        .zip(wanted.iter().cycle().take(count))
        .map(|(token, Wanted { name, operation, input, .. })| Task {
            token,
            key: *name,
            operation: operation.clone(),
            input: input.clone(),
        })
        .collect()
}

/// Submits and polls until all tasks are done, and checks the capacity.
fn drive(queue: &mut dyn Queue, tasks: &mut VecDeque<Task>, count: usize) -> BTreeMap<u32, Done> {
    let mut finished = BTreeMap::new();
    let mut in_flight = 0;
    while finished.len() < count {
        let before = tasks.len();
        let taken = queue.submit(tasks);
        assert_eq!(before - tasks.len(), taken, "submit says how many it took");
        in_flight += taken;
        assert!(in_flight <= queue.capacity(), "more in flight than the queue holds");
        assert!(taken > 0 || in_flight > 0, "an idle queue takes a task");
        let mut done = Vec::new();
        let left = queue.poll(&mut done);
        in_flight -= done.len();
        assert_eq!(left, in_flight, "poll says how many are left");
        for done in done {
            let again = finished.insert(done.task.token, done);
            assert!(again.is_none(), "a task came back twice");
        }
    }
    assert_eq!(queue.poll(&mut Vec::new()), 0);
    finished
}

/// Mixes good and bad tasks: only the bad ones fail.
fn failures_stay_alone(driver: &QueueDriver, wanted: &[Wanted], report: &mut ConformanceReport) {
    let mut queue = driver.backend().open_queue().expect("a queue");
    let count = 2 * wanted.len();
    let mut tasks = tasks(wanted, count);
    // A task with an odd token has a wrong length or an unknown key.
    let spoilt = |token: u32| token % 2 == 1;
    for task in tasks.iter_mut().filter(|task| spoilt(task.token)) {
        if takes_any_length(&task.operation) {
            task.key = BackendKey(u64::MAX);
        } else {
            task.input.push(0);
        }
    }
    for (token, done) in drive(&mut *queue, &mut tasks, count) {
        assert_eq!(done.result.is_err(), spoilt(token), "{:?}", done.task.operation);
        assert_ne!(done.result.map(|_| ()), Err(BackendError::Fault));
    }
    report.ran("batching, failures", count);
}

/// Closing a key does not affect the tasks that a queue has accepted.
fn closing_in_flight(driver: &QueueDriver, wanted: &[Wanted], report: &mut ConformanceReport) {
    let mut queue = driver.backend().open_queue().expect("a queue");
    let Wanted { key, operation, input, .. } = &wanted[0];
    let opened = driver.open_good(key);
    let operation = operation.clone();
    let input = input.clone();
    let mut tasks = VecDeque::from([Task { token: 7, key: opened.key, operation, input }]);
    assert_eq!(queue.submit(&mut tasks), 1);
    driver.close(opened.key);
    let mut done = Vec::new();
    while queue.poll(&mut done) > 0 {}
    let [done] = <[_; 1]>::try_from(done).expect("one task comes back once");
    assert!(done.result.is_ok(), "a key closed in flight");
    report.ran("batching, closing a key in flight", 1);
}
