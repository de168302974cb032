// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Device faults at the queue: flipped bits, a lost device, no memory.

use millrace_backends::cuda::VARIANTS;
use millrace_engine::BackendError;
use millrace_engine::backend::Backend;
use millrace_testkit::{keys, verify};

use super::simulated::{MOMENTS, Plan, Simulated, Strike};
use super::{SeededRandom, check, drive, is_long, on, open, random_task};

#[test]
fn bit_flip_in_a_kernel_never_gives_a_wrong_result() {
    let mut random = SeededRandom::new(4);
    for variant in VARIANTS.iter().filter(|variant| is_long() || variant.half_bits == 1024) {
        let der = match variant.half_bits {
            1024 => keys::rsa_2048(),
            1536 => keys::rsa_3072(),
            _ => keys::rsa_4096(),
        };
        let device = Simulated::new();
        let cuda = on(&device, variant);
        let opened = open(&cuda, der.der);
        let mut queue = cuda.open_queue().expect("a queue");
        for moment in 1..=MOMENTS {
            let mut caught = 0;
            for _ in 0..if is_long() { 300 } else { 2 } {
                let mut draw = |limit: usize| u32::try_from(random.below(limit)).expect("small");
                let strike = Strike {
                    moment,
                    thread: draw(2 * variant.threads),
                    digit: draw(variant.digits),
                    bit: draw(variant.digit_bits()),
                };
                device.plan(Plan { strike, ..Plan::default() });
                let task = random_task(0, &opened, &mut random);
                let done = drive(&mut *queue, [task].into()).remove(&0).expect("one result");
                match &done.result {
                    Err(error) => {
                        assert_eq!(*error, BackendError::Fault);
                        caught += 1;
                    }
                    Ok(output) => assert_eq!(
                        verify::rsa_public(&opened.info.spki, output),
                        done.task.input,
                        "{} {strike:?}",
                        variant.name
                    ),
                }
            }
            assert!(caught > 0, "{}: nothing noticed at moment {moment}", variant.name);
        }
    }
}

#[test]
fn bit_flip_of_a_key_in_memory_never_gives_a_wrong_result() {
    let mut random = SeededRandom::new(5);
    for variant in VARIANTS.iter().filter(|variant| variant.half_bits == 1024) {
        let device = Simulated::new();
        let cuda = on(&device, variant);
        let opened = open(&cuda, keys::rsa_2048().der);
        let mut queue = cuda.open_queue().expect("a queue");
        for _ in 0..if is_long() { 1_000 } else { 12 } {
            let bit = random.below(8 * variant.key_bytes());
            device.flip_key_bit(bit);
            let task = random_task(0, &opened, &mut random);
            let done = drive(&mut *queue, [task].into()).remove(&0).expect("one result");
            if let Ok(output) = &done.result {
                assert_eq!(
                    verify::rsa_public(&opened.info.spki, output),
                    done.task.input,
                    "bit {bit}"
                );
            }
            device.flip_key_bit(bit);
        }
        // Without further faults results are right, and the blinding pairs have been made again.
        let tasks = (0..4).map(|token| random_task(token, &opened, &mut random)).collect();
        check(&drive(&mut *queue, tasks), &[opened], variant.name);
    }
}

#[test]
fn sample_of_results_is_verified_again_on_the_host() {
    let device = Simulated::new();
    let cuda = on(&device, &VARIANTS[2]);
    device.plan(Plan { late: true, ..Plan::default() });
    let opened = open(&cuda, keys::rsa_2048().der);
    let mut queue = cuda.open_queue().expect("a queue");
    let mut random = SeededRandom::new(6);
    let tasks = (0..64).map(|token| random_task(token, &opened, &mut random)).collect();
    drive(&mut *queue, tasks);
    assert_eq!(cuda.tally().faults, 1);
}

#[test]
fn lost_device_returns_every_task() {
    for launches in [0, 1, 2] {
        let device = Simulated::new();
        let cuda = on(&device, &VARIANTS[2]);
        let opened = open(&cuda, keys::rsa_2048().der);
        let mut queue = cuda.open_queue().expect("a queue");
        device.plan(Plan { lost_after: Some(launches), ..Plan::default() });
        let mut random = SeededRandom::new(11);
        let tasks = (0..200).map(|token| random_task(token, &opened, &mut random)).collect();
        let done = drive(&mut *queue, tasks);
        assert_eq!(done.len(), 200);
        for done in done.values() {
            assert!(matches!(done.result, Ok(_) | Err(BackendError::Failed)));
        }
        let reason = cuda.probe().expect_err("a lost device").to_string();
        assert!(reason.contains("lost") && reason.contains("as planned"), "{reason}");
        assert!(cuda.open_queue().is_err());
        // Keys can still be opened; AWS-LC and other backends serve them.
        open(&cuda, keys::rsa_2048().der);
    }
}

#[test]
fn tasks_run_on_aws_lc_when_the_device_has_no_memory() {
    for (no_memory, no_streams) in [(true, false), (false, true)] {
        let device = Simulated::new();
        device.plan(Plan { no_memory, no_streams, ..Plan::default() });
        let cuda = on(&device, &VARIANTS[0]);
        let opened = open(&cuda, keys::rsa_2048().der);
        let mut queue = cuda.open_queue().expect("a queue");
        let mut random = SeededRandom::new(12);
        let tasks = (0..6).map(|token| random_task(token, &opened, &mut random)).collect();
        let done = drive(&mut *queue, tasks);
        if no_memory {
            check(&done, &[opened], "no memory");
            assert_eq!(cuda.tally().on_cpu, 6);
            assert_eq!(cuda.probe(), Ok(()));
        } else {
            // The first launch detects it, and the other tasks go to another backend.
            assert!(
                done.values().all(|done| matches!(done.result, Ok(_) | Err(BackendError::Failed)))
            );
            assert!(cuda.probe().is_err());
        }
    }
}
