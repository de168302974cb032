// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Links of many tunnels: two ends in two network namespaces with real OpenVPN, and connections between them that
//! compare bytes. Each end has its own folders, so that both run on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use millrace_testkit::skip;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use crate::artifacts::artifacts;
use crate::openvpn::Namespace;
use crate::process::{Process, program, run, succeed, text_of};
use crate::{temp_dir, wait};

/// Connections of the traffic: the chance that one of four members carries none is 1 in 2500.
const CONNECTIONS: usize = 32;

/// Both ends of a link named `mr`.
#[derive(Debug)]
pub struct Ends {
    /// Folder of link.toml, the keys, and the folders of both ends.
    pub dir: tempfile::TempDir,
    ends: [(Namespace, &'static str); 2],
}

/// Whether links can run here; records a skip if not.
#[must_use]
pub fn is_possible() -> bool {
    if Namespace::is_possible() && Path::new("/dev/net/tun").exists() {
        return true;
    }
    skip::record(
        file!(),
        "no network device for a VPN: it needs root, its capabilities and /dev/net/tun",
    );
    false
}

/// A link.toml with keys in `dir`; `more` are further lines of its top.
#[must_use]
pub fn declaration(dir: &Path, members: u16, more: &str) -> String {
    let keys = dir.join("keys");
    format!(
        "name = \"mr\"\nmembers = {members}\n{more}\n\
         [ends.a]\naddress = \"198.18.0.1\"\ninner = \"10.97.0.1\"\ncertificates = \"{0}/a\"\n\
         [ends.b]\naddress = \"198.18.0.2\"\ninner = \"10.97.0.2\"\ncertificates = \"{0}/b\"\n",
        keys.display()
    )
}

impl Ends {
    /// Two namespaces with a cable between them, link.toml and keys.
    ///
    /// # Panics
    /// If something of it cannot be made.
    #[must_use]
    pub fn new(members: u16) -> Self {
        Self::declared(members, "")
    }

    /// Both ends with the link up, and all its members connected.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn linked(members: u16) -> Self {
        let ends = Self::new(members);
        ends.up(0);
        ends.up(1);
        ends.wait_up(usize::from(members));
        ends
    }

    /// Like [`Self::new`], with further lines at the top of link.toml.
    ///
    /// # Panics
    /// If something of it cannot be made.
    #[must_use]
    pub fn declared(members: u16, more: &str) -> Self {
        let dir = temp_dir();
        let a = Namespace::new(dir.path(), "a");
        let b = Namespace::new(dir.path(), "b");
        a.join("198.18.0.1/24", &b, "198.18.0.2/24");
        let ends = Self { dir, ends: [(a, "a"), (b, "b")] };
        ends.write(members, more);
        let keys = ends.dir.path().join("keys");
        let mut command = Command::new(&artifacts().millrace);
        command.args(["vpn", "keys"]).arg(ends.file()).arg("-o").arg(keys);
        let _ = succeed(&mut command);
        ends
    }

    /// link.toml of both ends.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("link.toml")
    }

    /// Writes link.toml.
    ///
    /// # Panics
    /// If that is not possible.
    pub fn write(&self, members: u16, more: &str) {
        fs::write(self.file(), declaration(self.dir.path(), members, more)).expect("link.toml");
    }

    /// `millrace vpn` at an end, with that end's folders.
    ///
    /// # Panics
    /// If they cannot be made.
    #[must_use]
    pub fn command(&self, end: usize, words: &[&str]) -> Command {
        let (namespace, name) = &self.ends[end];
        let mut command = Command::new(&artifacts().millrace);
        command.arg("vpn").args(words);
        for folder in ["run", "state"] {
            let path = self.dir.path().join(format!("{folder}-{name}"));
            fs::create_dir_all(&path).expect("a folder");
            command.arg(format!("--{folder}")).arg(path);
        }
        namespace.enter(&command)
    }

    /// The output of `millrace vpn` at an end, which succeeds.
    #[must_use]
    pub fn vpn(&self, end: usize, words: &[&str]) -> String {
        succeed(&mut self.command(end, words))
    }

    /// `millrace vpn up` at an end.
    ///
    /// # Panics
    /// If it fails.
    pub fn up(&self, end: usize) {
        let output = self.try_up(end);
        assert!(output.status.success(), "{}", text_of(&output));
    }

    /// `millrace vpn up` at an end, whatever comes of it.
    ///
    /// # Panics
    /// If it does not end.
    #[must_use]
    pub fn try_up(&self, end: usize) -> Output {
        run(&mut self.up_command(end))
    }

    /// The command `millrace vpn up` of an end.
    #[must_use]
    pub fn up_command(&self, end: usize) -> Command {
        let file = self.file();
        self.command(end, &["up", &file.to_string_lossy(), "--no-wait"])
    }

    /// The folder of an end's configurations.
    #[must_use]
    pub fn state_folder(&self, end: usize) -> PathBuf {
        self.dir.path().join(format!("state-{}", self.ends[end].1))
    }

    /// The folder of an end's processes.
    #[must_use]
    pub fn run_folder(&self, end: usize) -> PathBuf {
        self.dir.path().join(format!("run-{}", self.ends[end].1))
    }

    /// Runs `ip` at an end.
    #[must_use]
    pub fn ip(&self, end: usize, arguments: &str) -> String {
        let mut command = Command::new(program("ip"));
        succeed(&mut self.ends[end].0.enter(command.args(arguments.split(' '))))
    }

    /// The status of an end; `Null` before its supervisor has written one.
    #[must_use]
    pub fn status(&self, end: usize) -> Value {
        let output = run(&mut self.command(end, &["status", "mr", "--json"]));
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    /// Members over which an end routes, as its supervisor says.
    #[must_use]
    pub fn routed(&self, end: usize) -> Vec<u64> {
        let status = self.status(end);
        let members = status["routed"].as_array().into_iter().flatten();
        members.filter_map(Value::as_u64).collect()
    }

    /// The status of a member.
    #[must_use]
    pub fn member(&self, end: usize, number: usize) -> Value {
        self.status(end)["members"][number].clone()
    }

    /// The process of a member.
    ///
    /// # Panics
    /// If it has none.
    #[must_use]
    pub fn pid(&self, end: usize, member: usize) -> Pid {
        let pid = self.member(end, member)["pid"].as_i64().expect("a process");
        Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid")
    }

    /// The supervisor of an end.
    ///
    /// # Panics
    /// If it has none.
    #[must_use]
    pub fn supervisor(&self, end: usize) -> Pid {
        let pid = self.status(end)["supervisor"].as_i64();
        let pid = pid.and_then(|pid| i32::try_from(pid).ok());
        pid.and_then(Pid::from_raw).expect("a supervisor")
    }

    /// Kills the supervisor of an end, and waits for its end as a service does before it starts another.
    ///
    /// # Panics
    /// If it has none.
    pub fn kill_supervisor(&self, end: usize) {
        let supervisor = self.supervisor(end);
        kill_process(supervisor, Signal::KILL).expect("a process");
        wait::until("the supervisor is gone", || test_kill_process(supervisor).is_err());
    }

    /// Waits until both ends have this number of members and all are up.
    ///
    /// # Panics
    /// If they do not come up.
    #[track_caller]
    pub fn wait_up(&self, members: usize) {
        for end in [0, 1] {
            let is_up = wait::holds_within(wait::SOON, || {
                let status = self.status(end);
                status["state"] == "up"
                    && status["members"].as_array().is_some_and(|all| all.len() == members)
            });
            let both = [0, 1].map(|end| {
                let log = self.run_folder(end).join("mr/supervisor.log");
                (self.status(end), fs::read_to_string(log))
            });
            assert!(is_up, "end {end} is not up with {members} members: {both:#?}");
        }
    }

    /// Devices over which the kernel of an end sends to the other.
    #[must_use]
    pub fn kernel_route(&self, end: usize) -> String {
        let to = ["10.97.0.2", "10.97.0.1"][end];
        self.ip(end, &format!("route show {to} proto 190"))
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        // Ends processes that a failed test left, each by its id.
        for end in [0, 1] {
            drop(self.command(end, &["down", "mr"]).output());
        }
    }
}

/// Connections through the link that echo and compare bytes until they are asked to stop.
#[derive(Debug)]
pub struct Traffic {
    _server: Process,
    client: Process,
    log: PathBuf,
    stop: PathBuf,
    /// Lines about pauses that were read.
    read: usize,
}

const SERVER: &str = "
import socket, sys, threading
def echo(c):
    while True:
        b = c.recv(65536)
        if not b: return
        c.sendall(b)
host = sys.argv[1]
family = socket.AF_INET6 if ':' in host else socket.AF_INET
s = socket.create_server((host, 5000), family=family, backlog=64)
print('listening', flush=True)
while True: threading.Thread(target=echo, args=(s.accept()[0],), daemon=True).start()
";

const CLIENT: &str = "
import os, socket, sys, threading, time
count, stop, host = int(sys.argv[1]), sys.argv[2], sys.argv[3]
done = [0] * count
pauses = [0] * count
def work(i):
    try:
        c = socket.create_connection((host, 5000), timeout=60)
        while not os.path.exists(stop):
            sent = os.urandom(16384)
            began = time.monotonic()
            c.sendall(sent)
            got = b''
            while len(got) < len(sent):
                b = c.recv(65536)
                if not b: raise OSError('closed')
                got += b
            if got != sent: raise OSError('other bytes')
            done[i] += 1
            pauses[i] = max(pauses[i], time.monotonic() - began)
            time.sleep(0.01)
    except BaseException as e:
        print('connection', i, 'broke:', e, flush=True)
        os._exit(1)
threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
for t in threads: t.start()
while any(t.is_alive() for t in threads):
    print('rounds', min(done), flush=True)
    ended, pauses = pauses, [0] * count
    print('pause', int(max(ended) * 1000), flush=True)
    time.sleep(0.1)
print('pause', int(max(pauses) * 1000), flush=True)
print('finished', flush=True)
";

impl Traffic {
    /// Starts the connections, and waits until each has compared bytes.
    ///
    /// # Panics
    /// If they do not start.
    #[must_use]
    pub fn start(ends: &Ends) -> Self {
        Self::to(ends, "10.97.0.1")
    }

    /// Starts traffic to another address of the first end.
    ///
    /// # Panics
    /// If they do not start.
    #[must_use]
    pub fn to(ends: &Ends, host: &str) -> Self {
        let dir = ends.dir.path();
        // Logs grow: what former traffic left there would be taken for this one's.
        for left in ["server.log", "client.log", "stop"] {
            let _ = fs::remove_file(dir.join(left));
        }
        let python = |script: &str| {
            let mut command = Command::new(program("python3"));
            command.args(["-c", script]);
            command
        };
        let server_log = dir.join("server.log");
        let mut server = python(SERVER);
        server.arg(host);
        let mut server = Process::start("server", ends.ends[0].0.enter(&server), &server_log);
        server.wait_ready(|| {
            fs::read_to_string(&server_log).is_ok_and(|text| text.contains("listening"))
        });
        let (log, stop) = (dir.join("client.log"), dir.join("stop"));
        let mut client = python(CLIENT);
        client.arg(CONNECTIONS.to_string()).arg(&stop).arg(host);
        let client = Process::start("client", ends.ends[1].0.enter(&client), &log);
        let mut traffic = Self { _server: server, client, log, stop, read: 0 };
        traffic.flows();
        traffic
    }

    /// Rounds that the slowest connection has completed.
    fn rounds(&self) -> u64 {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let last = text.lines().rev().find_map(|line| line.strip_prefix("rounds "));
        last.and_then(|rounds| rounds.parse().ok()).unwrap_or(0)
    }

    /// Waits until each connection has completed further rounds.
    ///
    /// # Panics
    /// If one breaks, or stands still.
    pub fn flows(&mut self) {
        let before = self.rounds();
        wait::until("every connection goes on", || {
            assert!(self.client.ended().is_none(), "{}", self.client.log());
            self.rounds() > before + 2
        });
    }

    /// Prints how long a connection waited for an answer at most, since the last report.
    pub fn report(&mut self, fault: &str) {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let pauses: Vec<u64> =
            text.lines().filter_map(|line| line.strip_prefix("pause ")?.parse().ok()).collect();
        let longest = pauses.iter().skip(self.read).max().unwrap_or(&0);
        println!("{fault}: a connection waited {longest} ms at most");
        self.read = pauses.len();
    }

    /// Ends the connections.
    ///
    /// # Panics
    /// If one broke.
    pub fn finish(mut self) {
        fs::write(&self.stop, "").expect("a file");
        let status = self.client.wait();
        assert!(
            status.success() && self.client.log().contains("finished"),
            "{}",
            self.client.log()
        );
    }
}
