// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Wrong answers, lost requests and events: each task ends once, and the card comes back.

use super::*;

/// A machine's card, and an RSA key on it.
struct OnCard {
    controls: QatControls,
    backend: Qat,
    key: BackendKey,
}

/// Runs the calling test of this module on a machine of each version; there it returns the card.
fn on_card(test: &str, backend: impl FnOnce() -> Qat) -> Option<OnCard> {
    let controls = on_machines(&format!("faults::{test}"), 1)?;
    let backend = backend();
    let key = open(&backend, keys::rsa_2048().der);
    Some(OnCard { controls, backend, key })
}

/// The backend with its own time for an answer.
fn impatient() -> Qat {
    up(Qat::new())
}

#[test]
fn wrong_answers_of_the_card_end_as_faults_and_never_as_results() {
    let Some(OnCard { controls, backend, key }) =
        on_card("wrong_answers_of_the_card_end_as_faults_and_never_as_results", backend)
    else {
        return;
    };
    let software = Software::new();
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
    let Some(OnCard { controls, backend, .. }) =
        on_card("wrong_answers_to_agreements_never_come_out", backend)
    else {
        return;
    };
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
    let Some(OnCard { controls, backend, key }) =
        on_card("agreements_in_flight_at_an_event_end_and_the_card_comes_back", backend)
    else {
        return;
    };
    let agreements = agreements(&backend);
    for event in [CardEvent::Fatal, CardEvent::Restarting] {
        let mut queue = serving_queue(&backend, key);
        let before = controls.get(qat::REQUESTS);
        let restarts = backend.tally().restarts;
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
    let Some(OnCard { controls, backend, key }) =
        on_card("instance_that_lost_one_request_serves_again_without_a_restart", impatient)
    else {
        return;
    };
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
    let Some(OnCard { controls, backend, key }) =
        on_card("lost_request_ends_as_failed_and_the_card_is_restarted_when_many_are", impatient)
    else {
        return;
    };
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
    let Some(OnCard { controls, backend, key }) =
        on_card("tasks_in_flight_at_an_event_end_and_the_card_comes_back", backend)
    else {
        return;
    };
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

/// The library reports a card's first failure alone, and hands one that came with requests in flight to its next
/// session without a word: instances that refuse requests, or crash the library when they are polled.
#[test]
fn every_failure_of_a_card_is_noticed_and_the_next_start_serves() {
    let Some(OnCard { controls, backend, key }) =
        on_card("every_failure_of_a_card_is_noticed_and_the_next_start_serves", backend)
    else {
        return;
    };
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

/// Version 26.08 opens a function twice at each of its starts, and closes it once.
#[test]
fn restarts_and_the_end_leave_no_function_open() {
    let Some(OnCard { controls, backend, key }) =
        on_card("restarts_and_the_end_leave_no_function_open", backend)
    else {
        return;
    };
    drop(serving_queue(&backend, key));
    let open = files_of_vfio();
    for event in [CardEvent::Fatal, CardEvent::Fatal, CardEvent::Restarting] {
        let restarts = end_tasks_by(&controls, &backend, key, event);
        if event == CardEvent::Restarting {
            controls.send(CardEvent::Restarted);
        }
        until("it is restarted", || backend.tally().restarts > restarts);
        drop(serving_queue(&backend, key));
        assert_eq!(files_of_vfio(), open);
    }
    drop(backend);
    assert_eq!(files_of_vfio(), 0);
    assert_eq!(controls.get(qat::DMA_FAULTS), 0);
}

/// Descriptors of functions, groups and containers.
fn files_of_vfio() -> usize {
    let links = fs::read_dir("/proc/self/fd").expect("/proc").flatten();
    let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("vfio")).count()
}

/// The library frees the memory of its requests before it turns the rings off.
#[test]
fn stop_waits_for_answers_that_are_late() {
    let Some(OnCard { controls, backend, key }) =
        on_card("stop_waits_for_answers_that_are_late", impatient)
    else {
        return;
    };
    let mut queue = serving_queue(&backend, key);
    controls.set(qat::LATENCY_US, 150_000);
    let mut tasks = (0..40).map(|token| task(token, key)).collect();
    let done = drain(&mut *queue, &mut tasks, 40);
    controls.set(qat::LATENCY_US, 0);
    assert!(done.iter().any(|done| done.result.is_err()), "some were late");
    until("the card is restarted", || backend.tally().restarts > 0);
    drop(serving_queue(&backend, key));
    assert_eq!([qat::ABANDONED, qat::DMA_FAULTS].map(|count| controls.get(count)), [0, 0]);
}
