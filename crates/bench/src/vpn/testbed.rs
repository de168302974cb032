// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Both ends of a link, by the commands of a user.

use std::cell::RefCell;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use millrace_hostfs::process::Proc;
use millrace_sampler::libcryptos_of;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Deserialize;
use tempfile::TempDir;

use super::args::TunnelOpenSsl;
use super::cases::{BASE, CaseEngine, LinkCase};
use super::namespace::{CABLE, INNER, LINK, Namespace};
use super::wireguard;
use crate::cores;
use crate::error::BenchError;
use crate::node::{NodeOptions, NodeProcess};
use crate::process::{need, output_of, temporary_folder};
use crate::progress::Progress;
use crate::tls::observer::LoadObserver;

/// The folder of keys whose private parts are stubs.
const STUBS: &str = "stubs";

/// Time in which all members carry traffic: TLS handshakes of four on busy cores took 6 s.
const UP_TIMEOUT: Duration = Duration::from_secs(40);

/// Interval of checks whether a link is up, each of which starts a process.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Whether the CPU time of tunnels is sampled for the offload ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TunnelSampling {
    Ceiling,
    Off,
}

/// Set-up that all cases share.
pub(super) struct LinkTestbed {
    pub(super) dir: TempDir,
    millrace: PathBuf,
    /// The node that has the private keys of pooled cases.
    pub(super) node: Option<NodeProcess>,
    pub(super) iperf3: PathBuf,
    pub(super) ends: [Namespace; 2],
    pub(super) openssl: TunnelOpenSsl,
    sampling: TunnelSampling,
    /// Made when the first tunnel runs: it calibrates the libcrypto of that process.
    pub(super) observer: RefCell<Option<LoadObserver>>,
}

/// A link that is up, or the cable.
pub(super) struct Link<'a> {
    pub(super) testbed: &'a LinkTestbed,
    pub(super) case: &'a LinkCase,
    /// Processes of each end.
    pub(super) pids: [Vec<u32>; 2],
    is_down: bool,
}

/// `millrace vpn status --json`, as much of it as is used here.
#[derive(Deserialize)]
struct LinkStatus {
    state: String,
    members: Vec<MemberStatus>,
}

#[derive(Deserialize)]
struct MemberStatus {
    pid: Option<u32>,
}

impl LinkTestbed {
    /// Two namespaces, and keys for a link between them. `cases` decide which programs are needed.
    pub(super) fn new<'a>(
        cases: impl IntoIterator<Item = &'a LinkCase>,
        sampling: TunnelSampling,
        openssl: &TunnelOpenSsl,
    ) -> Result<Self, BenchError> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/net/tun").exists() {
            return Err(BenchError::Usage(
                "network namespaces and tunnels need root and /dev/net/tun".to_owned(),
            ));
        }
        let openssl = openssl.resolved()?;
        let mut pooled = false;
        for case in cases {
            pooled |= case.pooled;
            let program = case.engine.program();
            need(program, if program == "wg" { "wireguard-tools" } else { program })?;
        }
        if pooled && openssl.config.is_some() {
            return Err(BenchError::Usage(
                "cases with keys in the pool have an OpenSSL configuration of their own".to_owned(),
            ));
        }
        let mut testbed = Self {
            dir: temporary_folder()?,
            node: None,
            millrace: env::current_exe().map_err(BenchError::system("find this program"))?,
            iperf3: need("iperf3", "iperf3")?,
            ends: [Namespace::new()?, Namespace::new()?],
            openssl,
            sampling,
            observer: RefCell::new(None),
        };
        let [a, b] = &testbed.ends;
        a.join(b, CABLE)?;
        testbed.declare(BASE, "")?;
        let keys = testbed.dir.path().join("keys");
        let mut command = Command::new(&testbed.millrace);
        command.args(["vpn", "keys"]).arg(testbed.file()).arg("-o");
        output_of("millrace vpn keys", command.arg(&keys))?;
        if pooled {
            testbed.node = Some(testbed.pool_keys(&keys)?);
        }
        Ok(testbed)
    }

    /// A node with the private keys of both ends; a second folder of keys has stubs in their place.
    fn pool_keys(&self, keys: &Path) -> Result<NodeProcess, BenchError> {
        let node = NodeProcess::start(&NodeOptions::on(0))?;
        let config = node.openssl_config(node.socket(), None)?;
        let stubs = self.dir.path().join(STUBS);
        let copy = |from: &Path, to: &Path| {
            fs::copy(from, to).map(drop).map_err(BenchError::file("copy", from))
        };
        for end in ["a", "b"] {
            let from = keys.join(end);
            let to = stubs.join(end);
            fs::create_dir_all(&to).map_err(BenchError::file("create", &to))?;
            for name in ["ca.pem", "cert.pem"] {
                copy(&from.join(name), &to.join(name))?;
            }
            let stub = node.import_key(&format!("tunnel-{end}"), &from.join("key.pem"))?;
            copy(&stub, &to.join("key.pem"))?;
        }
        copy(&config, &stubs.join("openssl.cnf"))?;
        Ok(node)
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("link.toml")
    }

    /// Writes the link.toml of a case; `proposals` are further lines of `[ipsec]`.
    fn declare(&self, case: &LinkCase, proposals: &str) -> Result<(), BenchError> {
        let keys = self.dir.path().join(if case.pooled { STUBS } else { "keys" });
        let mut text = format!(
            "name = \"{LINK}\"\nmembers = {}\npath-mtu = {}\n",
            case.members.max(1),
            case.path_mtu
        );
        if case.bridged {
            text.push_str("mode = \"bridged\"\n");
        }
        text.push_str(&if case.engine.is_openvpn() {
            format!("cipher = \"{}\"\n", case.cipher)
        } else {
            "engine = \"ipsec\"\n".to_owned()
        });
        for ((name, address), inner) in ["a", "b"].iter().zip(CABLE).zip(INNER) {
            text.push_str(&format!(
                "[ends.{name}]\naddress = \"{address}\"\ninner = \"{inner}\"\ncertificates = \"{}/{name}\"\n",
                keys.display()
            ));
            let pools = case.pooled.then(|| keys.join("openssl.cnf"));
            if let Some(config) = pools.as_ref().or(self.openssl.config.as_ref()) {
                text.push_str(&format!("openssl-config = {:?}\n", config.display().to_string()));
            }
        }
        text.push_str("[tunnels]\n");
        if case.pooled {
            // The node's socket lies in a folder of root.
            text.push_str("user = \"root\"\ngroup = \"root\"\n");
        }
        if let Some(bytes) = case.buffers {
            text.push_str(&format!("socket-buffer-bytes = {bytes}\n"));
        }
        if let Some(packets) = case.queue {
            text.push_str(&format!("queue-packets = {packets}\n"));
        }
        text.push_str(match case.engine {
            CaseEngine::OpenVpn | CaseEngine::WireGuard => "",
            CaseEngine::Dco => "data-path = \"kernel\"\n",
            CaseEngine::UserIpsec => "[ipsec]\ndata-path = \"user\"\n",
            CaseEngine::KernelIpsec => "[ipsec]\n",
            CaseEngine::PerCpuSas => "[ipsec]\nper-cpu-sas = true\n",
        });
        text.push_str(proposals);
        if !case.engine.is_openvpn() && !case.cipher.is_empty() {
            text.push_str(&format!("esp = [\"{}\"]\n", case.cipher));
        }
        fs::write(self.file(), text).map_err(BenchError::file("write", self.file()))
    }

    /// `millrace vpn` at an end.
    fn vpn(&self, end: usize, words: &[&str]) -> Command {
        let mut command = self.ends[end].command(&self.millrace);
        command.arg("vpn").args(words);
        for folder in ["run", "state"] {
            let path = self.dir.path().join(format!("{folder}-{end}"));
            command.arg(format!("--{folder}")).arg(path);
        }
        command
    }

    fn status(&self, end: usize) -> Option<LinkStatus> {
        let mut command = self.vpn(end, &["status", LINK, "--json"]);
        let text = output_of("millrace vpn status", &mut command).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Brings both ends up; `proposals` are further lines of `[ipsec]`.
    pub(super) fn up<'a>(
        &'a self,
        case: &'a LinkCase,
        proposals: &str,
        progress: &mut Progress,
    ) -> Result<Link<'a>, BenchError> {
        for end in &self.ends {
            end.ip(&format!("link set cable mtu {}", case.cable_mtu))?;
        }
        let mut link = Link {
            testbed: self,
            case,
            pids: [Vec::new(), Vec::new()],
            is_down: case.members == 0,
        };
        if case.members == 0 {
            return Ok(link);
        }
        if case.engine == CaseEngine::WireGuard {
            wireguard::up(&self.ends, self.dir.path(), case)?;
            return Ok(link);
        }
        self.declare(case, proposals)?;
        let file = self.file().display().to_string();
        for end in [0, 1] {
            let mut command = self.vpn(end, &["up", &file, "--no-wait"]);
            if let Some(mask) = case.mask {
                command.env("OPENSSL_ia32cap", mask);
            }
            if let Some(folder) = &self.openssl.libcrypto {
                command.env("LD_LIBRARY_PATH", folder);
            }
            output_of("millrace vpn up", &mut command)?;
        }
        for end in [0, 1] {
            link.pids[end] = self.wait_up(end, case, progress)?;
        }
        link.check_openssl()?;
        // strongSwan's daemon is not pinned.
        if !case.pinned && case.engine.is_openvpn() {
            link.unpin()?;
        }
        if case.crossed {
            link.cross()?;
        }
        if case.rps {
            link.receive_on(
                cores::usable()?.into_iter().filter(|core| *core < 32).map(|core| 1 << core).sum(),
            )?;
        }
        let mut observer = self.observer.borrow_mut();
        let has_time = !case.engine.encrypts_in_kernel();
        if observer.is_none() && self.sampling == TunnelSampling::Ceiling && has_time {
            *observer = Some(LoadObserver::new(&link.pids[0][..1], progress));
        }
        Ok(link)
    }

    /// Waits until each member of an end carries traffic; their processes.
    fn wait_up(
        &self,
        end: usize,
        case: &LinkCase,
        progress: &Progress,
    ) -> Result<Vec<u32>, BenchError> {
        let until = Instant::now() + UP_TIMEOUT;
        while Instant::now() < until {
            progress.check()?;
            if let Some(status) = self.status(end).filter(|status| status.state == "up") {
                let pids: Vec<u32> =
                    status.members.iter().filter_map(|member| member.pid).collect();
                if pids.len() == usize::from(case.members) {
                    return Ok(pids);
                }
            }
            thread::sleep(POLL_INTERVAL);
        }
        Err(BenchError::Setup(format!(
            "the link of case {} does not come up within {UP_TIMEOUT:?}; its logs:\n{}",
            case.name,
            self.logs(end)
        )))
    }

    /// The last lines of each process of an end.
    fn logs(&self, end: usize) -> String {
        let folder = self.dir.path().join(format!("run-{end}")).join(LINK);
        let logs = fs::read_dir(folder).into_iter().flatten().flatten();
        let logs = logs.filter(|file| file.path().extension().is_some_and(|kind| kind == "log"));
        let last = |file: fs::DirEntry| {
            let text = fs::read_to_string(file.path()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(5)..].join("\n")
        };
        logs.map(last).collect::<Vec<_>>().join("\n")
    }

    /// The first line of `openvpn --version`, which exits with 1.
    pub(super) fn openvpn(&self) -> String {
        let output = Command::new("openvpn").arg("--version").output();
        let text = output.map_or_else(
            |_| String::new(),
            |output| String::from_utf8_lossy(&output.stdout).into_owned(),
        );
        let mut words = text.split_whitespace();
        format!(
            "{} {}",
            words.next().unwrap_or("OpenVPN"),
            words.next().unwrap_or("of an unknown version")
        )
    }

    /// Why there are no samples.
    pub(super) fn blind(&self) -> Option<String> {
        self.observer.borrow().as_ref().and_then(LoadObserver::blind)
    }
}

impl Link<'_> {
    /// The address of the first end, through the link or over the cable.
    pub(super) fn address(&self) -> &'static str {
        if self.case.members == 0 { CABLE[0] } else { INNER[0] }
    }

    /// Whether a device carries the traffic that is measured.
    pub(super) fn is_own(&self, device: &str) -> bool {
        match self.case.engine {
            CaseEngine::OpenVpn | CaseEngine::Dco | CaseEngine::WireGuard
                if self.case.members > 0 =>
            {
                device.starts_with(LINK)
            }
            CaseEngine::UserIpsec => device == "ipsec0",
            // The kernel's ESP has no device: what it encrypted leaves by the cable.
            CaseEngine::OpenVpn
            | CaseEngine::Dco
            | CaseEngine::WireGuard
            | CaseEngine::KernelIpsec
            | CaseEngine::PerCpuSas => device == "cable",
        }
    }

    pub(super) fn all_pids(&self) -> Vec<u32> {
        self.pids.iter().flatten().copied().collect()
    }

    /// Whether each process has the libcrypto and the configuration that were asked for.
    fn check_openssl(&self) -> Result<(), BenchError> {
        let TunnelOpenSsl { config, libcrypto } = &self.testbed.openssl;
        let wrong = |pid: u32, path: &Path| {
            let case = self.case.name;
            let path = path.display();
            Err(BenchError::Wrong(format!("case {case}: process {pid} does not use {path}")))
        };
        let proc =
            Proc::open(Path::new("/proc")).map_err(|error| BenchError::Setup(error.to_string()))?;
        for pid in self.all_pids() {
            let mapped = libcryptos_of(pid);
            if let Some(folder) = libcrypto
                && !mapped.iter().any(|image| image.path().starts_with(folder))
            {
                return wrong(pid, folder);
            }
            if let Some(config) = config
                && !matches!(proc.variable(pid, "OPENSSL_CONF"), Ok(Some(found)) if Path::new(&found) == config)
            {
                return wrong(pid, config);
            }
        }
        Ok(())
    }

    /// Lets each process run on any core.
    fn unpin(&self) -> Result<(), BenchError> {
        let mut set = CpuSet::new();
        for core in cores::usable()? {
            set.set(core);
        }
        for pid in self.all_pids() {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            sched_setaffinity(pid, &set).map_err(BenchError::system("unpin a tunnel"))?;
        }
        Ok(())
    }

    /// Moves each process of the second end to the core of the next one.
    fn cross(&self) -> Result<(), BenchError> {
        let system = BenchError::system("pin a tunnel");
        let pid = |pid: &u32| i32::try_from(*pid).ok().and_then(Pid::from_raw);
        let own: Vec<Option<Pid>> = self.pids[1].iter().map(pid).collect();
        let sets = own.iter().map(|pid| sched_getaffinity(*pid));
        let mut sets = sets.collect::<Result<Vec<CpuSet>, _>>().map_err(system)?;
        sets.rotate_left(1);
        for (pid, set) in own.iter().zip(&sets) {
            sched_setaffinity(*pid, set).map_err(BenchError::system("pin a tunnel"))?;
        }
        Ok(())
    }

    fn receive_on(&self, cores: u32) -> Result<(), BenchError> {
        self.testbed.ends.iter().try_for_each(|end| end.receive_on(cores))
    }

    /// Takes both ends down.
    pub(super) fn down(mut self) -> Result<(), BenchError> {
        self.take_down()
    }

    fn take_down(&mut self) -> Result<(), BenchError> {
        if self.is_down {
            return Ok(());
        }
        self.is_down = true;
        if self.case.rps {
            // The cable stays.
            self.receive_on(0)?;
        }
        if self.case.engine == CaseEngine::WireGuard {
            return wireguard::down(&self.testbed.ends);
        }
        let down = |end| {
            let mut command = self.testbed.vpn(end, &["down", LINK]);
            output_of("millrace vpn down", &mut command).map(drop)
        };
        // The second end goes down, too, when the first cannot.
        let first = down(0);
        down(1).and(first)
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        // The error that led here is the one to report.
        let _ = self.take_down();
    }
}
