// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Plans on a sysfs that behaves: a folder whose files obey the rules of Linux's qat drivers, with a device that
//! does not come up, refuses, or is in use.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use millrace_device::apply::{DeviceOutcome, Sysfs, SysfsRoot, apply};
use millrace_device::change::{self, RECORD};
use millrace_device::observe::{Observed, find};
use millrace_device::plan::{PlanError, plan};
use millrace_device::settings::{DeviceSettings, DeviceState, FunctionDriver};
use millrace_testkit::machine::MachineFolder;
use tempfile::TempDir;

const CARD: &str = "0000:6b:00.0";
const LIMIT: Duration = Duration::from_millis(200);

/// Fault of the fake device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fault {
    #[default]
    None,
    /// The device stays down with these services.
    StaysDown(&'static str),
    /// The driver refuses to go down: a function is in use.
    Busy,
    /// No virtual function appears.
    NoFunctions,
    /// The process ends at the write after this number.
    KilledAfter(usize),
}

/// A machine with one card, whose files behave.
struct FakeKernel {
    machine: MachineFolder,
    fault: Fault,
    writes: RefCell<Vec<String>>,
    _dir: TempDir,
}

impl FakeKernel {
    fn new(fault: Fault) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let machine = MachineFolder::new(dir.path());
        machine.qat_card(CARD);
        Self { machine, fault, writes: RefCell::default(), _dir: dir }
    }

    fn root(&self) -> &Path {
        self.machine.path()
    }

    fn functions(&self, count: u32) {
        let folder = self.root().join("sys/bus/pci/devices");
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            if entry.file_name() != CARD {
                fs::remove_dir_all(entry.path()).expect("a folder");
            }
        }
        for number in 1..=count {
            let address = format!("0000:6b:{:02x}.{}", number / 8, number % 8);
            self.machine.qat_function(CARD, &address, 100 + number);
        }
    }

    fn card(&self) -> Observed {
        let devices = self.observe();
        find(&devices, "qat_dev0").expect("the card")[0].clone()
    }

    /// Plans and applies; returns how it ended.
    fn make(&self, wanted: &DeviceSettings) -> DeviceOutcome {
        apply(self, &plan(&self.card(), wanted).expect("a plan"), LIMIT)
    }
}

impl Sysfs for FakeKernel {
    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let count = self.writes.borrow().len();
        assert_ne!(self.fault, Fault::KilledAfter(count), "killed");
        self.writes
            .borrow_mut()
            .push(format!("{} {value}", path.rsplit('/').next().expect("a name")));
        let card = format!("sys/bus/pci/devices/{CARD}");
        let (state, enabled) = (
            self.machine.get(&format!("{card}/qat/state")),
            self.machine.get(&format!("{card}/sriov_numvfs")),
        );
        let refused = |kind: io::ErrorKind| Err(io::Error::from(kind));
        match path.strip_prefix(&format!("{card}/")) {
            Some("qat/state") => {
                let services = self.machine.get(&format!("{card}/qat/cfg_services"));
                match (value, self.fault) {
                    ("down", Fault::Busy) => return refused(io::ErrorKind::ResourceBusy),
                    ("up", Fault::StaysDown(with)) if services == with => return Ok(()),
                    ("down", _) => {
                        self.functions(0);
                        self.machine.put(&format!("{card}/sriov_numvfs"), "0");
                    }
                    _ => {}
                }
            }
            Some("qat/cfg_services") if state == "up" => {
                return refused(io::ErrorKind::InvalidInput);
            }
            Some("sriov_numvfs") => {
                if value != "0" && (state != "up" || enabled != "0") {
                    return refused(io::ErrorKind::ResourceBusy);
                }
                let count = if self.fault == Fault::NoFunctions {
                    0
                } else {
                    value.parse().expect("a number")
                };
                self.functions(count);
            }
            Some(_) => {}
            None if path == "sys/bus/pci/drivers_probe" => {
                let wanted =
                    self.machine.get(&format!("sys/bus/pci/devices/{value}/driver_override"));
                self.machine.bind(value, Some(&wanted));
                return Ok(());
            }
            None if path.ends_with("/driver/unbind") => {
                self.machine.bind(value, None);
                return Ok(());
            }
            None => {}
        }
        SysfsRoot::new(self.root()).write(path, value)
    }

    fn observe(&self) -> Vec<Observed> {
        SysfsRoot::new(self.root()).observe()
    }
}

fn all_at_once() -> DeviceSettings {
    DeviceSettings {
        services: "asym".parse().ok(),
        state: Some(DeviceState::Up),
        virtual_functions: Some(3),
        function_driver: Some(FunctionDriver::VfioPci),
        auto_reset: Some(true),
    }
}

#[test]
fn card_becomes_what_is_wanted_in_the_order_of_the_kernel_and_stays_so() {
    let kernel = FakeKernel::new(Fault::None);
    assert_eq!(kernel.make(&all_at_once()), DeviceOutcome::Applied);
    let card = kernel.card();
    assert_eq!(card.settings(), all_at_once());
    assert_eq!(card.functions.len(), 3);
    assert_eq!(card.functions[0].group.as_deref(), Some("101"));
    let first = [
        "state down",
        "cfg_services asym",
        "state up",
        "auto_reset on",
        "sriov_numvfs 3",
        "driver_override vfio-pci",
    ];
    assert_eq!(kernel.writes.borrow()[..6], first);
    kernel.writes.borrow_mut().clear();
    assert_eq!(kernel.make(&all_at_once()), DeviceOutcome::Unchanged);
    assert!(kernel.writes.borrow().is_empty());
    // Another number: through zero, with the driver that the functions had.
    let five = DeviceSettings { virtual_functions: Some(5), ..DeviceSettings::default() };
    assert_eq!(kernel.make(&five), DeviceOutcome::Applied);
    assert_eq!(kernel.writes.borrow()[..2], ["sriov_numvfs 0", "sriov_numvfs 5"]);
    assert_eq!(kernel.card().settings().function_driver, Some(FunctionDriver::VfioPci));
    // Without a driver, for virtual machines.
    let bare =
        DeviceSettings { function_driver: Some(FunctionDriver::None), ..DeviceSettings::default() };
    assert_eq!(kernel.make(&bare), DeviceOutcome::Applied);
    assert!(kernel.card().functions.iter().all(|function| function.driver.is_none()));
}

#[test]
fn card_that_does_not_come_up_goes_back_to_what_it_was() {
    let kernel = FakeKernel::new(Fault::StaysDown("dc"));
    assert_eq!(kernel.make(&all_at_once()), DeviceOutcome::Applied);
    let before = kernel.card().settings();
    let wanted = DeviceSettings { services: "dc".parse().ok(), ..DeviceSettings::default() };
    let DeviceOutcome::RolledBack { reason } = kernel.make(&wanted) else {
        panic!("it cannot come up");
    };
    assert!(reason.contains("it is not up"), "{reason}");
    assert_eq!(kernel.card().settings(), before, "services, functions and their driver");
}

#[test]
fn refusals_of_the_kernel_are_passed_on_with_what_to_do() {
    let kernel = FakeKernel::new(Fault::Busy);
    let wanted = DeviceSettings { services: "asym".parse().ok(), ..DeviceSettings::default() };
    let DeviceOutcome::RolledBack { reason } = kernel.make(&wanted) else {
        panic!("it is in use");
    };
    assert!(reason.contains("qat/state") && reason.contains("end the programs"), "{reason}");
    let kernel = FakeKernel::new(Fault::NoFunctions);
    let wanted = DeviceSettings { virtual_functions: Some(2), ..DeviceSettings::default() };
    let outcome = kernel.make(&wanted);
    assert!(!outcome.is_success(), "{outcome:?}");
}

#[test]
fn impossible_wishes_are_refused_before_anything_is_written() {
    let kernel = FakeKernel::new(Fault::None);
    let wish = |wanted: DeviceSettings| plan(&kernel.card(), &wanted).expect_err("impossible");
    let many = wish(DeviceSettings { virtual_functions: Some(17), ..DeviceSettings::default() });
    assert!(matches!(many, PlanError::TooManyFunctions { possible: 16, .. }), "{many}");
    let down = wish(DeviceSettings {
        state: Some(DeviceState::Down),
        virtual_functions: Some(1),
        ..DeviceSettings::default()
    });
    assert!(matches!(down, PlanError::FunctionsOfDown { .. }), "{down}");
    fs::remove_file(kernel.root().join(format!("sys/bus/pci/devices/{CARD}/qat/auto_reset")))
        .expect("a file");
    let old = wish(DeviceSettings { auto_reset: Some(true), ..DeviceSettings::default() });
    assert!(old.to_string().contains("Linux 6.8"), "{old}");
    kernel.machine.bind(CARD, None);
    let bare = wish(DeviceSettings { state: Some(DeviceState::Up), ..DeviceSettings::default() });
    assert!(bare.to_string().ends_with("run `modprobe qat_4xxx`"), "{bare}");
    kernel.machine.put("etc/modprobe.d/no-qat.conf", "install qat_4xxx /bin/false\n");
    let kept = wish(DeviceSettings { state: Some(DeviceState::Up), ..DeviceSettings::default() });
    let line = "(etc/modprobe.d/no-qat.conf: install qat_4xxx /bin/false)";
    assert!(kept.to_string().contains(line), "{kept}");
    kernel.machine.put(&format!("sys/bus/pci/devices/{CARD}/device"), "0x37c8");
    let old = wish(DeviceSettings { state: Some(DeviceState::Up), ..DeviceSettings::default() });
    assert!(old.to_string().contains("adf_ctl"), "{old}");
    assert!(kernel.writes.borrow().is_empty());
}

#[test]
fn programs_that_lose_a_function_are_named_in_the_plan() {
    let kernel = FakeKernel::new(Fault::None);
    assert_eq!(kernel.make(&all_at_once()), DeviceOutcome::Applied);
    kernel.machine.put("proc/42/comm", "millrace");
    kernel.machine.link("proc/42/fd/9", "/dev/vfio/102");
    let one = |wanted: DeviceSettings| plan(&kernel.card(), &wanted).expect("a plan").ends;
    let fewer = one(DeviceSettings { virtual_functions: Some(1), ..DeviceSettings::default() });
    assert_eq!(fewer, ["millrace (42) has 0000:6b:00.2"]);
    let harmless = one(DeviceSettings { auto_reset: Some(false), ..DeviceSettings::default() });
    assert!(harmless.is_empty());
}

impl FakeKernel {
    /// Plans and applies with a record, as the command does.
    fn change(&self, wanted: &DeviceSettings) -> DeviceOutcome {
        let planned = [plan(&self.card(), wanted).expect("a plan")];
        change::change(self, &planned, LIMIT, self.root()).expect("a record").remove(0)
    }

    fn recover(&self) -> Vec<DeviceOutcome> {
        let recovered = change::recover(self, LIMIT, self.root()).expect("a record");
        recovered.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

#[test]
fn state_before_a_change_is_kept_and_a_damaged_record_names_a_remedy_that_works() {
    let kernel = FakeKernel::new(Fault::None);
    let before = || change::before(kernel.root());
    assert!(before().expect_err("none yet").to_string().contains("nothing to go back to"));
    let first = kernel.card().settings();
    assert_eq!(kernel.change(&all_at_once()), DeviceOutcome::Applied);
    let saved = before().expect("the state");
    assert_eq!(saved.devices[CARD], first);
    assert_eq!(kernel.change(&saved.devices[CARD]), DeviceOutcome::Applied);
    assert_eq!(kernel.card().settings().services, "sym;asym".parse().ok());
    for damaged in ["", "{", "garbage", "{}", "{\"version\":9}"] {
        fs::write(kernel.root().join(RECORD), damaged).expect("a file");
        let said = before().expect_err("damaged").to_string();
        assert!(said.contains("whose next change writes the file anew"), "{damaged}: {said}");
        let other = DeviceSettings {
            auto_reset: Some(kernel.card().settings().auto_reset != Some(true)),
            ..DeviceSettings::default()
        };
        assert_eq!(kernel.change(&other), DeviceOutcome::Applied);
        assert_ne!(before().expect("a record").devices[CARD], kernel.card().settings());
    }
}

#[test]
fn change_that_is_killed_at_any_write_is_taken_back_by_the_next_process() {
    let whole = FakeKernel::new(Fault::None);
    assert_eq!(whole.change(&all_at_once()), DeviceOutcome::Applied);
    assert_eq!(whole.recover(), [], "nothing is under way");
    let count = whole.writes.borrow().len();
    assert!(count >= 6, "{:?}", whole.writes.borrow());
    for lives in 0..=count {
        let mut kernel = FakeKernel::new(Fault::None);
        let before = kernel.card().settings();
        kernel.fault = Fault::KilledAfter(lives);
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            kernel.change(&all_at_once())
        }));
        assert_eq!(killed.is_err(), lives < count, "{lives}");
        kernel.fault = Fault::None;
        if lives == count {
            assert_eq!(kernel.recover(), []);
            assert_eq!(kernel.card().settings(), all_at_once());
            continue;
        }
        let recovered = kernel.recover();
        assert!(recovered.iter().all(DeviceOutcome::is_success), "{lives}: {recovered:?}");
        assert_eq!(kernel.card().settings(), before, "killed after {lives} writes");
        assert_eq!(kernel.recover(), [], "once");
    }
    // A restart of the machine has taken the state of the card: it is not taken back once more.
    let mut kernel = FakeKernel::new(Fault::KilledAfter(3));
    let killed =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| kernel.change(&all_at_once())));
    assert!(killed.is_err());
    kernel.fault = Fault::None;
    let record = kernel.root().join(RECORD);
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("an id");
    let text = fs::read_to_string(&record).expect("a record");
    assert!(text.contains(boot.trim()), "{text}");
    fs::write(&record, text.replace(boot.trim(), "another")).expect("a record");
    kernel.writes.borrow_mut().clear();
    assert_eq!(kernel.recover(), []);
    assert!(kernel.writes.borrow().is_empty());
}
