// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The kernel backend on a real kernel with the driver of a device. `make test-vm` runs it in a guest with a
//! virtio-crypto device (`tests/vm/run.sh`).

use std::collections::VecDeque;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use millrace_backends::kernel::Kernel;
use millrace_backends::software::Software;
use millrace_engine::backend::{Backend, BackendKey, Health, Task};
use millrace_operation::{Hash, Operation};
use millrace_testkit::conformance::{self, Options};
use millrace_testkit::keys;
use millrace_testkit::wait::{SOON, until};

/// Name of the driver in the guest.
const DRIVER: &str = "virtio-crypto-rsa";

/// Signatures of one measurement.
const SIGNATURES: u32 = 256;

fn backend() -> Kernel {
    // An emulated machine on cores that it shares.
    let backend = Kernel::new(|| Ok(DRIVER.to_owned())).answer_time(Duration::from_secs(30));
    assert_eq!(backend.probe(), Ok(()));
    assert_eq!(backend.health(), Health::Up);
    backend
}

fn open(backend: &Kernel) -> BackendKey {
    let opened = backend.open_key(&keys::rsa_2048().private_key());
    opened.expect("a key").key
}

/// Numbers of the keys of this backend that the kernel lists, those for the known answer included.
fn listed() -> Vec<String> {
    let table = fs::read_to_string("/proc/keys").expect("the table of keys");
    let ours = table.lines().filter(|line| line.contains("millrace:"));
    let numbers = ours.filter_map(|line| line.split_whitespace().next());
    numbers.map(|number| format!("0x{number}")).collect()
}

#[test]
fn kernel_conforms() {
    let backend = Arc::new(backend());
    let options = Options { reference: Some(Arc::new(Software::new())), rounds: 1 };
    let report = conformance::run(Arc::clone(&backend) as Arc<dyn Backend>, &options);
    println!("{report}");
    println!("{:?}", backend.tally());
    assert_eq!(backend.tally().faults, 0);
    assert!(backend.tally().served > 200);
}

#[test]
fn keys_are_of_no_use_to_other_processes_and_leave_the_kernel_when_they_are_closed() {
    until("earlier keys are gone", || listed().is_empty());
    let backend = backend();
    let known_answer = listed();
    assert_eq!(known_answer.len(), 1);
    let key = open(&backend);
    let mut numbers = listed();
    numbers.retain(|number| !known_answer.contains(number));
    assert_eq!(numbers.len(), 1);
    for (action, arguments) in [("pkey_query", &["0"][..]), ("link", &["@s"]), ("revoke", &[])] {
        let mut keyctl = Command::new("/usr/bin/keyctl");
        let output = keyctl.arg(action).arg(&numbers[0]).args(arguments).output();
        let output = output.expect("keyctl");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("Permission denied"), "{action}: {said}");
    }
    backend.close_key(key);
    until("the key is gone", || listed() == known_answer);
    drop(backend);
    until("no key is left", || listed().is_empty());
}

#[test]
fn rate_of_signatures_rises_with_those_in_flight() {
    let backend = backend();
    let key = open(&backend);
    let mut queue = backend.open_queue().expect("a queue");
    let mut rate = |at_once: usize| {
        let start = Instant::now();
        let mut begun = 0;
        let mut done = Vec::new();
        let mut waiting = VecDeque::new();
        while done.len() < SIGNATURES as usize {
            assert!(start.elapsed() < SOON, "{} of {SIGNATURES}", done.len());
            if begun < SIGNATURES && (begun as usize) < done.len() + at_once {
                waiting.push_back(Task {
                    token: begun,
                    key,
                    operation: Operation::RsaPkcs1Sign { hash: Hash::Sha256 },
                    input: vec![7; 32],
                });
                begun += 1;
            }
            queue.submit(&mut waiting);
            queue.poll(&mut done);
            thread::sleep(queue.pace().longest);
        }
        assert!(done.iter().all(|done| done.result.is_ok()));
        f64::from(SIGNATURES) / start.elapsed().as_secs_f64()
    };
    println!();
    for at_once in [1, 8, 64] {
        println!("RATE {at_once} in flight: {:.0} signatures/s", rate(at_once));
    }
}
