// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Wrong answers, lost requests and events: each task ends once, and the card comes back.

use super::*;

#[test]
fn wrong_answers_of_the_card_end_as_faults_and_never_as_results() {
    let Some(controls) =
        on_machines("faults::wrong_answers_of_the_card_end_as_faults_and_never_as_results", 1)
    else {
        return;
    };
    let (backend, software) = (backend(), Software::new());
    let key = open(&backend, keys::rsa_2048().der);
    let private = PrivateKey::from_pkcs8(keys::rsa_2048().der.to_vec().into());
    let reference = software.open_key(&private).expect("a key").key;
    controls.set(qat::WRONG_EVERY, 3);
    controls.set(qat::FAIL_EVERY, 7);
    let mut queue = backend.open_queue().expect("a queue");
    let mut tasks = (0..100).map(|token| task(token, key)).collect();
    let done = drain(&mut *queue, &mut tasks, 100);
    let mut faults = 0;
    for done in &done {
        match &done.result {
            Ok(signature) => assert_eq!(**signature, expected(&software, reference, done)),
            Err(error) => {
                assert_eq!(*error, BackendError::Fault);
                faults += 1;
            }
        }
    }
    assert!((30..70).contains(&faults), "{faults}");
}

/// A wrong answer to any request of an agreement is noticed; one that the firmware flags is noticed where the library
/// passes the flag on, and else by the check.
#[test]
fn wrong_answers_to_agreements_never_come_out() {
    let Some(controls) = on_machines("faults::wrong_answers_to_agreements_never_come_out", 1)
    else {
        return;
    };
    let backend = backend();
    for work in agreements(&backend) {
        let mut queue = backend.open_queue().expect("a queue");
        controls.set(qat::WRONG_EVERY, 7);
        controls.set(qat::FAIL_EVERY, 11);
        let mut tasks = (0..24).map(|token| work.task(token)).collect();
        let done = drain(&mut *queue, &mut tasks, 24);
        let mut right = 0;
        for done in done {
            match done.result {
                Ok(secret) => {
                    assert_eq!(*secret, work.expected, "{:?}", work.operation);
                    right += 1;
                }
                Err(BackendError::Fault | BackendError::Failed) => {}
                Err(error) => panic!("{:?}: {error:?}", work.operation),
            }
        }
        println!("{:?}: {right} of 24 right", work.operation);
        assert!((1..24).contains(&right), "{:?}: {right}", work.operation);
    }
    assert_eq!((controls.get(qat::DMA_FAULTS), controls.get(qat::UNKNOWN_FUNCTIONS)), (0, 0));
}

#[test]
fn agreements_in_flight_at_an_event_end_and_the_card_comes_back() {
    let Some(controls) =
        on_machines("faults::agreements_in_flight_at_an_event_end_and_the_card_comes_back", 1)
    else {
        return;
    };
    let backend = backend();
    let agreements = agreements(&backend);
    let key = open(&backend, keys::rsa_2048().der);
    for event in [CardEvent::Fatal, CardEvent::Restarting] {
        let mut queue = serving_queue(&backend, key);
        let (before, restarts) = (controls.get(qat::REQUESTS), backend.tally().restarts);
        let mut tasks: VecDeque<Task> =
            (0..20).map(|token| agreements[token as usize % 5].task(token)).collect();
        let mut done = Vec::new();
        queue.submit(&mut tasks);
        until("the card or the queue has some", || {
            queue.poll(&mut done);
            controls.get(qat::REQUESTS) > before || !done.is_empty()
        });
        controls.send(event);
        let rest = 20 - done.len();
        done.extend(drain(&mut *queue, &mut tasks, rest));
        let tokens: BTreeSet<u32> = done.iter().map(|done| done.task.token).collect();
        assert_eq!(tokens.len(), 20, "each ends once");
        for done in &done {
            if let Ok(secret) = &done.result {
                assert_eq!(**secret, agreements[done.task.token as usize % 5].expected);
            }
        }
        if event == CardEvent::Restarting {
            controls.send(CardEvent::Restarted);
        }
        until("it is restarted", || backend.tally().restarts > restarts);
    }
    drop(serving_queue(&backend, key));
    assert_eq!(controls.get(qat::DMA_FAULTS), 0);
}

/// One lost request, and nothing else that the card could answer: the known answer tells that it serves.
#[test]
fn instance_that_lost_one_request_serves_again_without_a_restart() {
    let Some(controls) =
        on_machines("faults::instance_that_lost_one_request_serves_again_without_a_restart", 1)
    else {
        return;
    };
    let backend = up(Qat::new());
    let key = open(&backend, keys::rsa_2048().der);
    let mut queue = serving_queue(&backend, key);
    for token in 0..3 {
        let lost = backend.tally().lost;
        controls.set(qat::LOSE_EVERY, 1);
        let mut tasks = VecDeque::from([task(token, key)]);
        let done = drain(&mut *queue, &mut tasks, 1);
        controls.set(qat::LOSE_EVERY, 0);
        assert!(done[0].result.is_err() && backend.tally().lost > lost);
        // A queue of a silent instance takes nothing, and ends nothing.
        let mut tasks = VecDeque::from([task(token, key)]);
        let mut done = Vec::new();
        until("the task is taken and answered", || {
            queue.submit(&mut tasks);
            queue.poll(&mut done);
            !done.is_empty()
        });
        assert!(done[0].result.is_ok(), "{:?}", done[0]);
    }
    assert_eq!(backend.tally().restarts, 0, "{:?}", backend.tally());
}

#[test]
fn lost_request_ends_as_failed_and_the_card_is_restarted_when_many_are() {
    let Some(controls) = on_machines(
        "faults::lost_request_ends_as_failed_and_the_card_is_restarted_when_many_are",
        1,
    ) else {
        return;
    };
    let backend = up(Qat::new());
    let key = open(&backend, keys::rsa_2048().der);
    controls.set(qat::LOSE_EVERY, 2);
    let mut queue = backend.open_queue().expect("a queue");
    let mut tasks = (0..40).map(|token| task(token, key)).collect();
    let done = drain(&mut *queue, &mut tasks, 40);
    let failed = done.iter().filter(|done| done.result.is_err()).count();
    assert!((15..=40).contains(&failed), "{failed}");
    controls.set(qat::LOSE_EVERY, 0);
    until("the card is restarted", || backend.tally().restarts > 0);
    drop(serving_queue(&backend, key));
    assert_eq!(controls.get(qat::DMA_FAULTS), 0);
}

#[test]
fn tasks_in_flight_at_an_event_end_and_the_card_comes_back() {
    let Some(controls) =
        on_machines("faults::tasks_in_flight_at_an_event_end_and_the_card_comes_back", 1)
    else {
        return;
    };
    let backend = backend();
    let key = open(&backend, keys::rsa_2048().der);
    for event in [CardEvent::Fatal, CardEvent::Restarting, CardEvent::Fatal] {
        let restarts = end_tasks_by(&controls, &backend, key, event);
        if event == CardEvent::Restarting {
            // It may reach the library before or after its next start, which it may cost.
            controls.send(CardEvent::Restarted);
        }
        until("it is restarted", || backend.tally().restarts > restarts);
    }
    drop(serving_queue(&backend, key));
    assert_eq!(controls.get(qat::DMA_FAULTS), 0);
}

/// The library tells of a card's first failure alone, and hands one that came with requests in flight to its next
/// session without a word: instances that refuse requests, or crash the library when they are polled.
#[test]
fn every_failure_of_a_card_is_noticed_and_the_next_start_serves() {
    let Some(controls) =
        on_machines("faults::every_failure_of_a_card_is_noticed_and_the_next_start_serves", 1)
    else {
        return;
    };
    let backend = backend();
    let key = open(&backend, keys::rsa_2048().der);
    for round in 0..4 {
        let restarts = end_tasks_by(&controls, &backend, key, CardEvent::Fatal);
        until("it is restarted", || backend.tally().restarts > restarts);
        until("it is up", || backend.health() == Health::Up);
        let mut queue = backend.open_queue().expect("a queue");
        let mut tasks = (0..20).map(|token| task(token, key)).collect();
        let done = drain(&mut *queue, &mut tasks, 20);
        let failed = done.iter().filter(|done| done.result.is_err()).count();
        assert_eq!(failed, 0, "round {round}");
    }
    assert_eq!(controls.get(qat::DMA_FAULTS), 0);
}
