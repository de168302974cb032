// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A device for virtual machines on real processes, and a guest that loads it from this one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_virtio_guest::{Guest, INDIRECT_FEATURE, Ticket, akcipher_request, rsa_session};
use openssl::pkey::Private;
use openssl::rsa::{Padding, Rsa};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::artifacts::artifacts;
use crate::process::{self, Process};
use crate::wait;

const DECRYPT: u32 = 0x401;

/// Two data queues would serve a Linux guest no better than one.
const DATA_QUEUES: u16 = 1;

/// `millrace virtio run` with a guest. Both end on drop.
#[derive(Debug)]
pub struct Machine {
    /// The front process.
    pub front: Process,
    /// The socket that the monitor connects to.
    pub socket: PathBuf,
    options: Vec<String>,
    folder: TempDir,
}

impl Machine {
    /// Starts both processes.
    ///
    /// # Panics
    /// If they do not come up.
    #[must_use]
    pub fn start(options: &[&str]) -> Self {
        let folder = crate::temp_dir();
        let socket = folder.path().join("vm.sock");
        let options: Vec<String> = options.iter().map(ToString::to_string).collect();
        let front = up(&socket, &options, folder.path());
        Self { front, socket, options, folder }
    }

    /// Kills both processes, and starts others with the same command line. Machines lose their device.
    ///
    /// # Panics
    /// If they do not come up.
    pub fn restart_front(&mut self) {
        self.front.kill();
        self.front = up(&self.socket, &self.options, self.folder.path());
    }

    /// The folder of the socket.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A guest of the device.
    ///
    /// # Panics
    /// If the device does not start.
    #[must_use]
    pub fn connect(&self) -> Guest {
        Guest::connect(&self.socket, DATA_QUEUES, INDIRECT_FEATURE).expect("a device")
    }

    /// The row of the device; waits while the device process starts.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn status(&self) -> Value {
        let mut row = None;
        wait::until("the device process answers", || {
            row = status(&self.socket);
            row.is_some()
        });
        row.expect("a row")
    }

    /// Kills the device process, and waits until the next one is there.
    ///
    /// # Panics
    /// If none comes.
    pub fn kill_device_process(&self) {
        let restarts = self.status()["restarts"].as_u64().expect("a number");
        let process = self.status()["device-process"].as_i64().expect("an id");
        let process = i32::try_from(process).ok().and_then(Pid::from_raw);
        kill_process(process.expect("an id"), Signal::KILL).expect("it lives");
        wait::until("the next device process", || {
            self.status()["restarts"].as_u64() > Some(restarts)
        });
    }

    /// Runs the new program in the front process, and waits until it serves.
    ///
    /// # Panics
    /// If it does not.
    pub fn upgrade(&self) {
        let before = self.status()["device-process"].clone();
        self.front.signal(Signal::HUP);
        wait::until("the new program serves", || self.status()["device-process"] != before);
    }

    /// Runs a command for this device.
    ///
    /// # Panics
    /// If it fails.
    pub fn run(&self, verb: &str, options: &[&str]) {
        self.run_at(&self.socket, verb, options);
    }

    /// Runs a command for this device, in its folder, under another path of its socket.
    ///
    /// # Panics
    /// If it fails.
    pub fn run_at(&self, socket: &Path, verb: &str, options: &[&str]) {
        let output = process::run(
            Command::new(&artifacts().millrace)
                .current_dir(self.folder())
                .args(["virtio", verb, "--socket-path"])
                .arg(socket)
                .args(options),
        );
        assert!(output.status.success(), "{verb} {}: {output:?}", socket.display());
    }

    /// Operations by a place: `local`, `node`.
    #[must_use]
    pub fn served(&self, place: &str) -> u64 {
        let row = self.status();
        let rows = row["statistics"]["served-by"].as_array().cloned();
        let rows = rows.unwrap_or_default();
        let of_place = rows.iter().filter(|one| one["place"] == place);
        of_place.filter_map(|one| one["ops"].as_u64()).sum()
    }

    /// A counter of the device.
    ///
    /// # Panics
    /// If there is none of this name.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        self.status()["statistics"][name].as_u64().expect("a counter")
    }
}

fn up(socket: &Path, options: &[String], folder: &Path) -> Process {
    // What a killed process leaves is taken over; this test waits for the new one.
    let _ = fs::remove_file(socket);
    let mut command = Command::new(&artifacts().millrace);
    command.args(["virtio", "run", "--socket-path"]).arg(socket).args(options);
    let mut front = Process::start("virtio", command, &folder.join("log"));
    front.wait_ready(|| socket.exists() && status(socket).is_some());
    front
}

fn status(socket: &Path) -> Option<Value> {
    let output = process::run(
        Command::new(&artifacts().millrace)
            .args(["virtio", "status", "--json", "--socket-path"])
            .arg(socket),
    );
    let rows: Value = serde_json::from_slice(&output.stdout).ok()?;
    rows.get(0).cloned()
}

/// A guest that uses one RSA key.
#[derive(Debug)]
pub struct RsaLoad {
    key: Rsa<Private>,
    session: u64,
    under_way: Vec<(Ticket, Vec<u8>)>,
    turn: u8,
    /// Requests with an answer that is not an error.
    pub answered: usize,
}

impl RsaLoad {
    /// Gives the guest's device a key.
    ///
    /// # Panics
    /// If it is refused.
    #[must_use]
    pub fn new(guest: &mut Guest, pem: &str) -> Self {
        let key = Rsa::private_key_from_pem(pem.as_bytes()).expect("a good key");
        let der = key.private_key_to_der().expect("DER");
        let created = guest.create(&[&rsa_session(true, der.len(), 0, 0), &der]);
        Self {
            key,
            session: created.expect("an answer").expect("a session"),
            under_way: Vec::new(),
            turn: 0,
            answered: 0,
        }
    }

    fn len(&self) -> usize {
        self.key.size() as usize
    }

    /// Offers requests up to this number under way.
    ///
    /// # Panics
    /// If they do not fit the ring.
    pub fn offer(&mut self, guest: &mut Guest, depth: usize) {
        let len = self.len();
        while self.under_way.len() < depth {
            self.turn = self.turn.wrapping_add(1);
            let mut block = vec![self.turn; len];
            block[0] = 0;
            let request = akcipher_request(DECRYPT, self.session, len, len);
            let ticket = guest.ask(0, &[&request, &block], len + 1).expect("room");
            self.under_way.push((ticket, block));
        }
        guest.kick(0).expect("a kick");
    }

    /// Waits for every answer, and returns the number of errors.
    ///
    /// # Panics
    /// If another answer is wrong.
    pub fn finish(&mut self, guest: &mut Guest) -> usize {
        let mut errors = 0;
        for (ticket, block) in std::mem::take(&mut self.under_way) {
            let answer = guest.wait(ticket).expect("an answer");
            if answer.status() != 0 {
                errors += 1;
                continue;
            }
            let mut expected = vec![0; self.len()];
            self.key.private_encrypt(&block, &mut expected, Padding::NONE).expect("a result");
            assert_eq!(answer.result(), expected);
            self.answered += 1;
        }
        errors
    }
}
