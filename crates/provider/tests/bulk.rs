// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whole packets by the kernel's ciphers, on a stand-in for the device of cryptodev-linux
//! (`tests/cryptodev/device.c`): a test application (`bulk_harness.c`) runs the module beside OpenSSL's default
//! provider. Both need a C compiler and OpenSSL's headers; skipped without.

mod common;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use common::{Bench, application, must};
use millrace_kernel_crypto::crossovers::{Crossovers, this_system};
use millrace_kernel_crypto::{BulkAlgorithm, BulkInterface};

/// Offsets in the file that the stand-in shares: `struct controls` of `device.c`.
const FAIL_FROM: u64 = 0;
const WRONG_EVERY: u64 = 4;
const REFUSE_SESSIONS: u64 = 8;
const OPERATIONS: u64 = 16;
const SESSIONS: u64 = 32;
const OPEN_SESSIONS: u64 = 40;

/// Size from which messages go to the device.
const LEAST: usize = 1000;

/// The application and the stand-in, compiled once; `None` without a compiler.
fn built() -> Option<&'static (PathBuf, PathBuf)> {
    static BUILT: LazyLock<Option<(PathBuf, PathBuf)>> = LazyLock::new(|| {
        let device = "../../../tests/cryptodev/device.c";
        let flags = ["-shared", "-fPIC", "-lcrypto", "-lpthread", "-ldl"];
        Some((
            common::compiled("bulk_harness.c", &["-lcrypto"])?,
            common::compiled(device, &flags)?,
        ))
    });
    if BUILT.is_none() {
        let place = concat!(file!(), ":", line!());
        millrace_testkit::skip::record(place, "no C compiler or no headers of OpenSSL");
    }
    BUILT.as_ref()
}

/// A machine with the device.
struct Machine {
    bench: Bench,
    application: &'static Path,
    device: &'static Path,
}

impl Machine {
    /// A machine on which each of these algorithms was measured to pay from [`LEAST`] on.
    fn new(algorithms: &[BulkAlgorithm]) -> Option<Self> {
        let (application, device) = built()?;
        let bench = Bench::new();
        bench.write("controls", &[0; 4096]);
        let file = bench.path("bulk.tsv");
        let settings = format!(
            "algorithms = none\nmode = off\nkernel_bulk = on\nkernel_bulk_file = {}",
            file.display()
        );
        bench.write_config("bulk.cnf", "default_properties = ?millrace.local=yes", &settings);
        let machine = Self { bench, application, device };
        let mut rows = Crossovers::default();
        for algorithm in algorithms {
            rows.set(BulkInterface::DevCrypto, *algorithm, Some(LEAST));
        }
        let system = this_system(&machine.run(&["system"])).expect("the kernel's release");
        machine.bench.write("bulk.tsv", rows.written("", &system, 1).as_bytes());
        Some(machine)
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut command = application(self.application);
        command.args(arguments).current_dir(self.bench.dir.path());
        command.env("OPENSSL_CONF", self.bench.path("bulk.cnf"));
        command.env("OPENSSL_MODULES", self.bench.dir.path());
        command.env("MILLRACE_CRYPTODEV", self.bench.path("controls"));
        command.env("LD_PRELOAD", self.device);
        must(&command.output().expect("the application"))
    }

    fn set(&self, control: u64, value: u32) {
        let file = OpenOptions::new().write(true).open(self.bench.path("controls"));
        file.expect("controls").write_all_at(&value.to_ne_bytes(), control).expect("written");
    }

    fn get(&self, counter: u64) -> u64 {
        let bytes = self.bench.read("controls");
        let at = usize::try_from(counter).expect("an offset");
        u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
    }
}

/// The number behind a word of what the application printed.
#[track_caller]
fn said(printed: &str, word: &str) -> u64 {
    let mut words = printed.split_whitespace().skip_while(|known| *known != word).skip(1);
    let number = words.next().unwrap_or_else(|| panic!("no {word} in {printed}"));
    number.parse().expect("a number")
}

#[test]
fn random_messages_have_the_same_result_as_in_the_default_provider() {
    let Some(machine) = Machine::new(BulkAlgorithm::ALL) else { return };
    for (command, rounds, least) in
        [("ciphers", "1500", 1500), ("digests", "400", 200), ("macs", "400", 200)]
    {
        let printed = machine.run(&[command, rounds, "1"]);
        println!("{command}: {printed}");
        assert!(said(&printed, "kernel") > least, "{command}: {printed}");
        assert_eq!(said(&printed, "failed"), 0, "{command}: {printed}");
    }
    assert_eq!(machine.get(OPEN_SESSIONS), 0, "every session has ended");
}

#[test]
fn device_that_fails_from_any_operation_on_changes_no_result() {
    let Some(machine) = Machine::new(BulkAlgorithm::ALL) else { return };
    for (seed, fail_from) in ["3", "4", "5", "6"].into_iter().zip([1, 2, 9, 60]) {
        for command in ["ciphers", "digests", "macs"] {
            machine.bench.write("controls", &[0; 4096]);
            machine.set(FAIL_FROM, fail_from);
            let printed = machine.run(&[command, "100", seed]);
            assert!(said(&printed, "failed") > 0, "{command} from {fail_from}: {printed}");
        }
    }
}

#[test]
fn device_without_room_for_sessions_changes_no_result() {
    let Some(machine) = Machine::new(BulkAlgorithm::ALL) else { return };
    machine.set(REFUSE_SESSIONS, 1);
    let printed = machine.run(&["ciphers", "100", "7"]);
    assert_eq!(said(&printed, "kernel"), 0, "{printed}");
    assert!(said(&printed, "failed") > 0, "{printed}");
    assert_eq!((machine.get(OPERATIONS), machine.get(SESSIONS)), (0, 0));
}

/// The known answer of each algorithm is compared before a result goes out.
#[test]
fn device_that_computes_something_else_is_not_used() {
    let Some(machine) = Machine::new(BulkAlgorithm::ALL) else { return };
    machine.set(WRONG_EVERY, 1);
    for command in ["ciphers", "digests", "macs"] {
        let printed = machine.run(&[command, "100", "8"]);
        assert_eq!(said(&printed, "kernel"), 0, "{command}: {printed}");
        assert!(said(&printed, "failed") > 0, "{command}: {printed}");
    }
}

#[test]
fn processes_after_a_fork_get_their_own_results() {
    let Some(machine) = Machine::new(BulkAlgorithm::ALL) else { return };
    let printed = machine.run(&["fork", "0", "9"]);
    assert!(said(&printed, "kernel") >= 610, "the parent's session goes on: {printed}");
}

#[test]
fn process_without_descriptors_computes_by_openssl_and_later_by_the_device_again() {
    let Some(machine) = Machine::new(BulkAlgorithm::ALL) else { return };
    let printed = machine.run(&["descriptors", "0", "10"]);
    assert!((1..=50).contains(&said(&printed, "failed")), "{printed}");
    assert_eq!(said(&printed, "kernel"), 50, "{printed}");
}

#[test]
fn process_has_a_bounded_number_of_sessions() {
    let Some(machine) = Machine::new(BulkAlgorithm::ALL) else { return };
    let printed = machine.run(&["sessions", "0", "11"]);
    // One session of the known answer has ended when the others begin.
    assert_eq!(machine.get(SESSIONS), 65, "{printed}");
    assert_eq!(machine.get(OPEN_SESSIONS), 0, "{printed}");
    assert!(said(&printed, "kernel") >= 64 * 3, "{printed}");
}

#[test]
fn packets_go_to_the_kernel_from_the_measured_size_on() {
    let Some(machine) = Machine::new(&[BulkAlgorithm::AesCbc]) else { return };
    for (len, by_kernel) in [(LEAST - 16, 0), (LEAST - 1, 0), (LEAST, 300), (LEAST + 16, 300)] {
        let printed = machine.run(&["packets", &len.to_string(), "13"]);
        assert_eq!(said(&printed, "kernel"), by_kernel, "{len}: {printed}");
        assert_eq!(said(&printed, "failed"), 0, "{len}: {printed}");
    }
}

/// Without a measurement for this kernel and this libcrypto everything is OpenSSL's.
#[test]
fn algorithm_without_a_measurement_is_not_offered() {
    let Some(machine) = Machine::new(&[BulkAlgorithm::AesCbc]) else { return };
    let printed = machine.run(&["packets", "0", "12"]);
    assert_eq!(said(&printed, "kernel"), 300, "{printed}");
    let offered = |property: &str, name: &str| {
        let mut command = application("openssl");
        command.args(["enc", "-e", "-K", "00", "-iv", "00", &format!("-{name}"), "-propquery"]);
        command.arg(property).args(["-in", "/dev/null", "-out", "/dev/null"]);
        command.env("OPENSSL_CONF", machine.bench.path("bulk.cnf"));
        command.env("OPENSSL_MODULES", machine.bench.dir.path());
        command.output().expect("openssl").status.success()
    };
    assert!(offered("millrace.local=yes", "aes-256-cbc"));
    assert!(!offered("millrace.local=yes", "aes-256-ctr"));
    let other = String::from_utf8(machine.bench.read("bulk.tsv")).expect("text");
    machine.bench.write("bulk.tsv", other.replace("Linux ", "Linux 1.").as_bytes());
    assert!(!offered("millrace.local=yes", "aes-256-cbc"), "measured on another kernel");
}
