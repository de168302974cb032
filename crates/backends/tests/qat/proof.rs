// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The proof: many tasks on a faulty card.

use super::*;

/// Tasks of the proof in one release that the card has answered: 8,000 in both, or a million.
fn answers_of_the_proof() -> u32 {
    if millrace_testkit::is_long() { 500_000 } else { 4_000 }
}

/// Most tasks that may end without an answer of the card, beside those answered: half as many.
const UNANSWERED_SHARE: u32 = 2;

/// Two workers on a card that computes 1 % of its answers wrong, flags 1 % as failed, loses 0.1 %, fails and is
/// reset: no wrong result, every task ends once, and few end because the card does not answer.
#[test]
fn tasks_end_once_and_never_wrong_on_a_faulty_card() {
    let Some(controls) = on_machines("proof::tasks_end_once_and_never_wrong_on_a_faulty_card", 1)
    else {
        return;
    };
    let backend = Qat::new().fast_curves(true).answer_time(Duration::from_millis(500));
    let backend = up(backend);
    let works = works_of_the_proof(&backend);
    controls.set(qat::WRONG_EVERY, 100);
    controls.set(qat::FAIL_EVERY, 103);
    controls.set(qat::LOSE_EVERY, 1000);
    let [right, faults, unanswered] = [const { AtomicU32::new(0) }; 3];
    let wanted = answers_of_the_proof();
    let proof = Proof { backend, works, wanted, right, faults, unanswered };
    thread::scope(|scope| {
        let workers = [0, 1].map(|worker| {
            let proof = &proof;
            scope.spawn(move || proof.work(worker))
        });
        // Events at a fifth, two fifths, … of the answers.
        let events =
            [CardEvent::Fatal, CardEvent::Restarting, CardEvent::Fatal, CardEvent::Restarting];
        for (event, part) in events.into_iter().zip(1..) {
            while proof.answered() < proof.wanted / 5 * part {
                assert!(!workers.iter().any(|worker| worker.is_finished()), "a worker has ended");
                thread::sleep(Duration::from_millis(5));
            }
            let restarts = proof.backend.tally().restarts;
            controls.send(event);
            if event == CardEvent::Restarting {
                // A second event would replace one that no function has seen yet.
                until("the reset is noticed", || {
                    proof.backend.health() != Health::Up
                        || proof.backend.tally().restarts > restarts
                });
                controls.send(CardEvent::Restarted);
            }
        }
        workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
    });
    let [right, faults, unanswered] =
        [&proof.right, &proof.faults, &proof.unanswered].map(|count| count.load(Ordering::Relaxed));
    println!(
        "{} tasks answered: {right} right, {faults} faults noticed; {unanswered} ended without an answer of the \
         card; {:?}",
        right + faults,
        proof.backend.tally()
    );
    assert!(right + faults >= proof.wanted && faults > 0);
    assert!(unanswered < proof.wanted / UNANSWERED_SHARE, "{unanswered}");
    let tally = proof.backend.tally();
    let wrong = controls.get(qat::WRONG) + controls.get(qat::FAILED);
    assert!(
        tally.faults > 0 && tally.lost > 0 && tally.restarts >= 2 && wrong >= tally.faults,
        "{tally:?}"
    );
    assert_eq!(controls.get(qat::DMA_FAULTS), 0);
}

/// RSA-2048 signatures of several inputs, and the agreements but those of the slowest key: expected results are
/// computed before, since comparing costs less than verifying.
fn works_of_the_proof(backend: &Qat) -> Vec<Work> {
    let software = Software::new();
    let private = PrivateKey::from_pkcs8(keys::rsa_2048().der.to_vec().into());
    let reference = software.open_key(&private).expect("a key").key;
    let key = open(backend, keys::rsa_2048().der);
    let mut queue = software.open_queue().expect("a queue");
    let mut tasks = (0..24).map(|token| task(token, reference)).collect();
    let signed = drain(&mut *queue, &mut tasks, 24).into_iter().map(|done| Work {
        key,
        operation: done.task.operation,
        input: done.task.input,
        expected: done.result.expect("a signature").to_vec(),
    });
    let agreements = agreements(backend).into_iter();
    let (fast, slow): (Vec<Work>, Vec<Work>) = agreements.partition(|work| work.input.len() <= 65);
    // Slow ones once each, and the more of the others the faster the stand-in computes them.
    let slow = slow.into_iter().filter(|work| work.input.len() < 512);
    let mut works: Vec<Work> = signed.chain(slow).collect();
    for work in fast {
        for _ in 0..if work.operation == Operation::X25519 { 512 } else { 64 } {
            let Work { key, operation, input, expected } = &work;
            let operation = operation.clone();
            let input = input.clone();
            works.push(Work { key: *key, operation, input, expected: expected.clone() });
        }
    }
    works
}

/// The proof: what the workers share.
struct Proof {
    backend: Qat,
    works: Vec<Work>,
    /// Tasks that the card must answer.
    wanted: u32,
    right: AtomicU32,
    faults: AtomicU32,
    unanswered: AtomicU32,
}

impl Proof {
    fn answered(&self) -> u32 {
        self.right.load(Ordering::Relaxed) + self.faults.load(Ordering::Relaxed)
    }

    /// One worker: submits tasks until the card has answered enough, with a new queue after each restart.
    fn work(&self, worker: u32) {
        let mut tokens = (0..).map(|number: u32| number * 2 + worker);
        let mut open = BTreeSet::<u32>::new();
        let mut waiting = VecDeque::new();
        let mut queue = None;
        loop {
            let enough = self.answered() >= self.wanted;
            if enough && open.is_empty() {
                return;
            }
            if open.is_empty() && (queue.is_none() || self.backend.health() != Health::Up) {
                // The former one first: it holds a seat.
                drop(queue.take());
                until("a queue", || self.backend.health() == Health::Up);
                queue = self.backend.open_queue().ok();
            }
            let Some(queue) = &mut queue else { continue };
            // The queue of a session that is over ends what it is given.
            let serves = self.backend.health() == Health::Up;
            if waiting.is_empty() && serves && !enough {
                let tokens = tokens.by_ref().take(queue.capacity());
                waiting.extend(tokens.map(|token| self.task(token)));
            }
            if serves && !enough {
                let before: Vec<u32> = waiting.iter().map(|task: &Task| task.token).collect();
                let taken = queue.submit(&mut waiting);
                open.extend(&before[..taken]);
            }
            let mut done = Vec::new();
            queue.poll(&mut done);
            if done.is_empty() {
                thread::yield_now();
            }
            for done in done {
                assert!(open.remove(&done.task.token), "{} ended twice", done.task.token);
                self.count(&done);
            }
        }
    }

    fn of(&self, token: u32) -> &Work {
        &self.works[token as usize % self.works.len()]
    }

    fn task(&self, token: u32) -> Task {
        self.of(token).task(token)
    }

    fn count(&self, done: &Done) {
        let counter = match &done.result {
            Ok(output) => {
                let expected = &self.of(done.task.token).expected;
                assert_eq!(**output, *expected, "a wrong result came out");
                &self.right
            }
            Err(BackendError::Fault) => &self.faults,
            Err(BackendError::Failed) => &self.unanswered,
            Err(error) => panic!("{error:?}"),
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
