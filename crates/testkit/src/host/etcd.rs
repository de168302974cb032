// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A real etcd cluster, each member a process. `scripts/etcd.sh` brings the program: Debian's package, which is what
//! operators install.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::port::free_port;
use crate::wait::holds_within;

/// Bound on the time until a cluster has a leader: an idle machine takes a second.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Members of a cluster. They end on drop.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Member>,
    folder: PathBuf,
}

#[derive(Debug)]
struct Member {
    child: Option<Child>,
    host: String,
    client: u16,
    peer: u16,
    /// Program with arguments that runs etcd: `ip netns exec NAME`.
    under: Vec<String>,
}

impl Member {
    fn endpoint(&self) -> String {
        format!("{}:{}", self.host, self.client)
    }
}

/// The file of etcd, unpacked if it is not there.
fn program() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let script =
        Command::new(root.join("scripts/etcd.sh")).output().expect("scripts/etcd.sh starts");
    let said = String::from_utf8_lossy(&script.stderr);
    // Not skipped: a store that several managers share is not to go untested.
    assert!(script.status.success(), "scripts/etcd.sh: {said}");
    PathBuf::from(String::from_utf8(script.stdout).expect("a path").trim())
}

impl EtcdCluster {
    /// Starts `count` members on loopback with their data in `folder`, and waits until they have a leader.
    ///
    /// # Panics
    /// If they do not start.
    #[must_use]
    pub fn start(folder: &Path, count: usize) -> Self {
        let members = std::iter::repeat_with(|| Member {
            child: None,
            host: "127.0.0.1".to_owned(),
            client: free_port(),
            peer: free_port(),
            under: Vec::new(),
        });
        Self::run(folder, members.take(count).collect())
    }

    /// Starts one member at the address `host` under another program, such as `ip netns exec NAME`. The address must
    /// be reachable from here. Its ports are the usual ones, and on loopback free ones.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start_under(folder: &Path, host: &str, under: &[&str]) -> Self {
        let port = |usual| if host == "127.0.0.1" { free_port() } else { usual };
        let member = Member {
            child: None,
            host: host.to_owned(),
            client: port(2379),
            peer: port(2380),
            under: under.iter().map(ToString::to_string).collect(),
        };
        Self::run(folder, vec![member])
    }

    fn run(folder: &Path, members: Vec<Member>) -> Self {
        let mut cluster = Self { members, folder: folder.to_owned() };
        (0..cluster.members.len()).for_each(|member| cluster.start_member(member));
        let _ = cluster.wait_for_leader();
        cluster
    }

    /// Starts a member with its data.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_member(&mut self, member: usize) {
        let url = |host: &str, port: u16| format!("http://{host}:{port}");
        let Member { host, client, peer, under, .. } = &self.members[member];
        let client = url(host, *client);
        let peer = url(host, *peer);
        let all = self
            .members
            .iter()
            .enumerate()
            .map(|(n, member)| format!("m{n}={}", url(&member.host, member.peer)));
        let mut command = match under.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program());
                command
            }
            None => Command::new(program()),
        };
        let child = command
            .args(["--name", &format!("m{member}"), "--log-level", "error"])
            .arg("--data-dir")
            .arg(self.folder.join(format!("m{member}")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &all.collect::<Vec<_>>().join(",")])
            .args(["--heartbeat-interval", "100", "--election-timeout", "1000"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd starts");
        self.members[member].child = Some(child);
    }

    /// Writes a value, by `etcdctl` of the same package.
    ///
    /// # Panics
    /// If etcd does not take it.
    pub fn put(&self, key: &str, value: &str) {
        let mut command = Command::new(program().with_file_name("etcdctl"));
        command.args(["--endpoints", &self.endpoints().join(","), "put", key, value]);
        let output = command.env("ETCDCTL_API", "3").output().expect("etcdctl starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Sends a signal, `-STOP` for example, to a member.
    ///
    /// # Panics
    /// If it does not run.
    pub fn signal(&self, member: usize, signal: &str) {
        let child = self.members[member].child.as_ref().expect("the member runs");
        let done = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(done.expect("kill starts").success());
    }

    /// Ends a member with SIGKILL.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill(&mut self, member: usize) {
        let mut child = self.members[member].child.take().expect("the member runs");
        child.kill().expect("a signal");
        child.wait().expect("its end");
    }

    /// Starts a member that has ended by itself, with its data, as a service manager does; returns whether it had.
    ///
    /// # Panics
    /// If it was killed before.
    pub fn start_again(&mut self, member: usize) -> bool {
        let child = self.members[member].child.as_mut().expect("it was started");
        let ended = child.try_wait().expect("its state").is_some();
        if ended {
            self.start_member(member);
        }
        ended
    }

    /// `HOST:PORT` of the members, for clients.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Member::endpoint).collect()
    }

    /// Bytes that the first member has received from clients and sent to them, from its metrics.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn client_bytes(&self) -> u64 {
        let text = get(&self.endpoints()[0], "/metrics").expect("metrics of etcd");
        let counted = [
            "etcd_network_client_grpc_received_bytes_total",
            "etcd_network_client_grpc_sent_bytes_total",
        ];
        let rows = text.lines().filter(|line| counted.iter().any(|name| line.starts_with(name)));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count of bytes, far below 2^52"
        )]
        let sum = rows.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
            as u64;
        sum
    }

    /// The member that leads.
    ///
    /// # Panics
    /// If none does.
    #[must_use]
    pub fn leader(&self) -> usize {
        let leader = self.members.iter().position(|member| {
            let text = get(&member.endpoint(), "/metrics").unwrap_or_default();
            text.lines().any(|line| line == "etcd_server_is_leader 1")
        });
        leader.expect("etcd has a leader")
    }

    /// Waits until a running member answers a linearizable read, which needs a leader; returns the time.
    ///
    /// # Panics
    /// If there is no leader within two minutes.
    pub fn wait_for_leader(&self) -> Duration {
        let start = Instant::now();
        let found = holds_within(START_TIMEOUT, || {
            let mut running = self.members.iter().filter(|member| member.child.is_some());
            running.any(|member| {
                let page = get(&member.endpoint(), "/health");
                page.is_some_and(|text| text.contains("\"true\""))
            })
        });
        assert!(found, "etcd has no leader");
        start.elapsed()
    }
}

/// A page of a member, or `None` if it does not answer.
fn get(endpoint: &str, path: &str) -> Option<String> {
    let limit = Duration::from_secs(5);
    let address = endpoint.to_socket_addrs().ok()?.next()?;
    let mut socket = TcpStream::connect_timeout(&address, limit).ok()?;
    socket.set_read_timeout(Some(limit)).ok()?;
    write!(socket, "GET {path} HTTP/1.0\r\nHost: {endpoint}\r\n\r\n").ok()?;
    let mut text = String::new();
    socket.read_to_string(&mut text).ok()?;
    text.contains(" 200 OK").then_some(text)
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(mut child) = member.child.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}
