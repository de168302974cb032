// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Tests of the device behind a driver. They run in child processes, where `driver.cpp` is the driver; it
//! needs no GPU.

use std::process::Command;

use millrace_backends::cuda::{Cuda, VARIANTS};
use millrace_engine::backend::Backend;
use millrace_testkit::keys;

use super::{SeededRandom, check, drive, open, random_task, simulated};

/// Environment variable of a child process that runs with our driver instead of NVIDIA's.
const INSIDE: &str = "MILLRACE_TEST_DRIVER";

/// Runs one of these tests in a child process with the driver of `driver.cpp`.
fn with_a_driver(test: &str, variables: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture"])
        .env("LD_LIBRARY_PATH", simulated::driver())
        .env(INSIDE, "1")
        .envs(variables.iter().copied())
        .output()
        .expect("a process");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn driver_calls_run_the_kernels_and_return_right_results() {
    if std::env::var_os(INSIDE).is_none() {
        with_a_driver("driver::driver_calls_run_the_kernels_and_return_right_results", &[]);
        return;
    }
    let ders = [keys::rsa_2048(), keys::rsa_3072(), keys::rsa_4096()];
    // Both kinds of table memory, in both arithmetics.
    for at in [0, 3, 5, 6] {
        let variant = &VARIANTS[at];
        let cuda = Cuda::new().only(|known| known == variant).device_from(1);
        assert_eq!(cuda.probe(), Ok(()));
        let der = ders[variant.half_bits / 512 - 2].der;
        let opened = [open(&cuda, der)];
        let mut queue = cuda.open_queue().expect("a queue");
        let mut random = SeededRandom::new(15);
        // Less than a block, so that spare groups run too. Two rounds, so that pairs are reused.
        for _ in 0..2 {
            let tasks = (0..3).map(|token| random_task(token, &opened[0], &mut random)).collect();
            check(&drive(&mut *queue, tasks), &opened, variant.name);
        }
        let tally = cuda.tally();
        assert_eq!((tally.on_cpu, tally.launches, tally.launched), (0, 2, 6));
        assert!(cuda.describe().version.starts_with("no GPU at all (9.0), driver for CUDA 13.0"));
        cuda.close_key(opened[0].key);
    }
}

#[test]
fn device_with_too_old_compute_capability_is_named() {
    const OLD: &str = "MILLRACE_TEST_OLD_DEVICE";
    if std::env::var_os(INSIDE).is_none() {
        with_a_driver("driver::device_with_too_old_compute_capability_is_named", &[(OLD, "1")]);
        return;
    }
    let reason = Cuda::new().probe().expect_err("an old device").to_string();
    let expected = "no device with compute capability 8.0 or above: no GPU at all has 7.0";
    assert_eq!(reason, expected);
}
