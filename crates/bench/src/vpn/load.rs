// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One measurement of a link: bytes that are compared, then iperf3 with probes beside it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use millrace_hostfs::child::OwnedChild;
use millrace_sampler::cpu_time;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::proof::LinkProof;
use super::testbed::Link;
use crate::error::BenchError;
use crate::progress::Progress;
use crate::stats::Latencies;
use crate::tls::observer::Seen;

/// Bytes that are sent to the other end and back, and compared, before a load.
const COMPARED: usize = 1 << 20;

/// Sockets of the probes: their ports differ, so that the members share them.
const PROBE_SOCKETS: usize = 4;

/// Time between two probes: 500 packets per second at most, nothing beside the load.
const PROBE_INTERVAL: Duration = Duration::from_millis(2);

/// Time after which a probe counts as lost: a hundred times the latency of a full queue.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Length of a probe datagram, bytes: that of a small packet, whose cost is that of the packet and not of its bytes.
const PROBE_BYTES: usize = 64;

/// Time in which iperf3 listens, and in which a transfer that is compared makes progress: both take milliseconds, and
/// a busy machine takes longer.
const READY: Duration = Duration::from_secs(10);

/// Interval of checks whether iperf3 listens, or whether the probes have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Seconds of the load during which a member is killed, and the time of its death: long enough for a usual rate before
/// it, and for a recovery after it within the goal's two seconds.
const LOSS_SECONDS: u64 = 8;
const KILLED_AT: f64 = 3.0;

/// The usual rate is that of these seconds before the death.
const USUAL_FROM: f64 = 1.0;

/// Below this share of the usual rate, an interval counts as reduced.
const REDUCED: f64 = 0.7;

/// Length of the intervals, seconds: ten of them are the goal's two seconds at a fifth of their length.
const INTERVAL: f64 = 0.2;

/// One case in one round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MeasuredLink {
    pub(super) mbit: f64,
    /// CPU seconds of the tunnel processes of each end for a gigabyte (10^9 bytes) that arrived.
    pub(super) cpu_per_gb: Option<[f64; 2]>,
    /// CPU seconds of the whole machine for a gigabyte: with the kernel, iperf3 and everything else that ran.
    pub(super) machine_per_gb: f64,
    /// Context switches of the whole machine for a megabyte (10^6 bytes). Unlike times, they are much the same on an
    /// emulated processor.
    pub(super) switches_per_mb: f64,
    /// Latency under load, microseconds.
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) probes: u64,
    pub(super) lost_probes: u64,
    /// Bytes that iperf3's server received.
    pub(super) bytes: u64,
    pub(super) retransmits: u64,
    /// Share of the tunnel processes' CPU time in ciphers and hashes. `None` where it cannot be sampled.
    pub(super) crypto_share: Option<f64>,
    /// Where the work was done; the caller adds it, since a link signs before its load.
    pub(super) proof: LinkProof,
}

/// A member killed under load.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MemberLoss {
    /// Mbit/s of each interval.
    pub(super) intervals: Vec<f64>,
    /// Median rate before the death of the member, Mbit/s.
    pub(super) usual: f64,
    /// Seconds after the death of the member with a rate below 70 % of `usual`.
    pub(super) reduced_s: f64,
    /// Connections that ended with an error.
    pub(super) broken: u64,
}

/// The JSON of an iperf3 client, as much of it as is used here.
#[derive(Deserialize)]
struct IperfReport {
    #[serde(default)]
    intervals: Vec<IperfInterval>,
    #[serde(default)]
    end: Option<IperfEnd>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct IperfInterval {
    sum: IperfSum,
}

#[derive(Deserialize)]
struct IperfSum {
    #[serde(default)]
    start: f64,
    bytes: u64,
    bits_per_second: f64,
    #[serde(default)]
    retransmits: u64,
}

#[derive(Deserialize)]
struct IperfEnd {
    sum_sent: IperfSum,
    sum_received: IperfSum,
}

impl Link<'_> {
    /// Compares bytes, then measures under load.
    pub(super) fn measure(
        &self,
        seconds: u64,
        flows: usize,
        progress: &Progress,
    ) -> Result<MeasuredLink, BenchError> {
        self.compare_bytes()?;
        let server = self.serve()?;
        let prober = Prober::start(self)?;
        // Where the kernel encrypts, the time of the process says nothing about packets.
        let pids = if self.case.engine.encrypts_in_kernel() { Vec::new() } else { self.all_pids() };
        let observer = self.testbed.observer.borrow();
        let sampler = match (&*observer, pids.is_empty()) {
            (Some(observer), false) => observer.start(&pids),
            _ => None,
        };
        let before = self.counters()?;
        let load = self.load(seconds, flows, 0.0);
        let after = self.counters();
        let seen = match &*observer {
            Some(observer) => observer.stop(sampler)?,
            None => None,
        };
        let latencies = prober.stop()?;
        drop(server);
        progress.check()?;
        let load = finished(load?)?;
        let after = after?;
        let bytes = load.sum_received.bytes;
        let carried = after.carried.saturating_sub(before.carried);
        if carried < bytes {
            return Err(BenchError::Wrong(format!(
                "case {}: iperf3 received {bytes} bytes, and the devices carried {carried}: the load did not take the link",
                self.case.name
            )));
        }
        let gigabytes = bytes.max(1) as f64 / 1e9;
        let of_end =
            |end: usize| after.ends[end].saturating_sub(before.ends[end]).as_secs_f64() / gigabytes;
        Ok(MeasuredLink {
            mbit: load.sum_received.bits_per_second / 1e6,
            cpu_per_gb: (!pids.is_empty()).then(|| [of_end(0), of_end(1)]),
            machine_per_gb: after.machine.busy.saturating_sub(before.machine.busy).as_secs_f64()
                / gigabytes,
            switches_per_mb: after.machine.switches.saturating_sub(before.machine.switches) as f64
                / gigabytes
                / 1e3,
            p50_us: latencies.found.quantile_us(0.5),
            p99_us: latencies.found.quantile_us(0.99),
            probes: latencies.sent,
            lost_probes: latencies.lost,
            bytes,
            retransmits: load.sum_sent.retransmits,
            crypto_share: seen.filter(|seen| seen.samples > 0).map(crypto_share),
            proof: LinkProof::default(),
        })
    }

    /// Kills a process of a member under load.
    pub(super) fn lose_a_member(
        &self,
        flows: usize,
        progress: &Progress,
    ) -> Result<MemberLoss, BenchError> {
        self.compare_bytes()?;
        let server = self.serve()?;
        let victim = self.pids[0].get(1).and_then(|pid| i32::try_from(*pid).ok());
        let victim = victim.and_then(Pid::from_raw);
        let killer = thread::spawn(move || {
            thread::sleep(Duration::from_secs_f64(KILLED_AT));
            victim.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
        });
        let load = self.load(LOSS_SECONDS, flows, INTERVAL);
        let killed = killer.join().unwrap_or(false);
        drop(server);
        progress.check()?;
        if !killed {
            return Err(BenchError::Setup("no member was killed".to_owned()));
        }
        let load = load?;
        let broken = u64::from(load.error.is_some());
        Ok(reduction(&load.intervals, broken))
    }

    /// Sends random bytes to the other end and back.
    fn compare_bytes(&self) -> Result<(), BenchError> {
        let [a, b] = &self.testbed.ends;
        let address = self.address();
        let listener = a.inside(move || TcpListener::bind((address, 0)))?;
        let to = listener.local_addr().map_err(BenchError::system("read an address"))?;
        let echo = thread::spawn(move || echo_once(&listener));
        let back = b.inside(move || round_trip(to))?;
        let echoed = echo.join().is_ok_and(|result| result.is_ok());
        if back && echoed {
            Ok(())
        } else {
            Err(BenchError::Wrong(format!("case {}: bytes came back changed", self.case.name)))
        }
    }

    /// Starts iperf3's server, and waits until it listens.
    fn serve(&self) -> Result<OwnedChild, BenchError> {
        let folder = crate::process::temporary_folder()?;
        let log = folder.path().join("iperf3.log");
        let output = File::create(&log).map_err(BenchError::file("create", &log))?;
        let mut command = self.testbed.ends[0].tied_command(&self.testbed.iperf3);
        command
            .args(["--server", "--one-off", "--forceflush", "--bind"])
            .arg(self.address())
            .stdout(output)
            .stderr(Stdio::null());
        let server = OwnedChild::spawn(&mut command)
            .map_err(|error| BenchError::missing("iperf3", error))?;
        let until = Instant::now() + READY;
        while !fs::read_to_string(&log).is_ok_and(|text| text.contains("listening")) {
            if Instant::now() > until {
                return Err(BenchError::Setup("iperf3 does not listen".to_owned()));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(server)
    }

    fn load(&self, seconds: u64, flows: usize, interval: f64) -> Result<IperfReport, BenchError> {
        let mut command = self.testbed.ends[1].tied_command(&self.testbed.iperf3);
        command.args(["--json", "--client", self.address(), "--parallel"]).args([
            &flows.to_string(),
            "--time",
            &seconds.to_string(),
        ]);
        if interval > 0.0 {
            command.args(["--interval", &interval.to_string()]);
        }
        // After an error, such as a broken connection, its output says which.
        let output = command.output().map_err(|error| BenchError::missing("iperf3", error))?;
        serde_json::from_slice(&output.stdout).map_err(|error| {
            BenchError::Setup(format!("the output of iperf3 ({}): {error}", output.status))
        })
    }

    fn counters(&self) -> Result<LoadCounters, BenchError> {
        let devices = self.testbed.ends[0].device_bytes()?;
        let own = devices.iter().filter(|(name, _)| self.is_own(name));
        Ok(LoadCounters {
            ends: [0, 1].map(|end| cpu_time(self.pids[end].iter().copied())),
            machine: MachineCounters::read(Path::new("/proc/stat"))
                .map_err(BenchError::file("read", "/proc/stat"))?,
            carried: own.map(|(_, bytes)| bytes).sum(),
        })
    }
}

/// Counters at one moment.
struct LoadCounters {
    /// CPU time of each end's tunnels.
    ends: [Duration; 2],
    machine: MachineCounters,
    /// Bytes through the devices of the link at the first end.
    carried: u64,
}

fn finished(load: IperfReport) -> Result<IperfEnd, BenchError> {
    let said = load.error;
    load.end.filter(|_| said.is_none()).ok_or_else(|| {
        BenchError::Setup(format!("iperf3: {}", said.unwrap_or_else(|| "no result".to_owned())))
    })
}

/// Ciphers and hashes: what an accelerator for packets could take.
fn crypto_share(seen: Seen) -> f64 {
    seen.shares.iter().filter_map(|(class, share)| class.is_symmetric().then_some(*share)).sum()
}

/// Counters of all cores.
#[derive(Debug, PartialEq, Eq)]
struct MachineCounters {
    /// Time of user, nice, system, interrupts and soft interrupts.
    busy: Duration,
    /// Context switches.
    switches: u64,
}

impl MachineCounters {
    fn read(stat: &Path) -> io::Result<Self> {
        /// Ticks of a second in /proc, on all architectures (USER_HZ).
        const TICKS: f64 = 100.0;
        let text = fs::read_to_string(stat)?;
        let numbers = |name: &str| -> Vec<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
        };
        let times = numbers("cpu ");
        let ticks: u64 = [0, 1, 2, 5, 6].iter().filter_map(|at| times.get(*at)).sum();
        Ok(Self {
            busy: Duration::from_secs_f64(ticks as f64 / TICKS),
            switches: numbers("ctxt ").first().copied().unwrap_or(0),
        })
    }
}

fn echo_once(listener: &TcpListener) -> io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(READY))?;
    let mut bytes = vec![0; COMPARED];
    stream.read_exact(&mut bytes)?;
    stream.write_all(&bytes)
}

/// Whether random bytes come back as they were sent.
fn round_trip(to: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&to, READY)?;
    stream.set_read_timeout(Some(READY))?;
    let mut sent = vec![0; COMPARED];
    fastrand::Rng::new().fill(&mut sent);
    stream.write_all(&sent)?;
    let mut back = vec![0; COMPARED];
    stream.read_exact(&mut back)?;
    Ok(sent == back)
}

/// Latencies, and what became of the probes.
struct ProbeResult {
    found: Latencies,
    sent: u64,
    lost: u64,
}

/// Sends UDP probes from one end to the other while a load runs.
struct Prober {
    stop: Arc<AtomicBool>,
    echo: JoinHandle<()>,
    probes: JoinHandle<io::Result<ProbeResult>>,
}

impl Prober {
    fn start(link: &Link<'_>) -> Result<Self, BenchError> {
        let [a, b] = &link.testbed.ends;
        let address: Ipv4Addr = link.address().parse().unwrap_or(Ipv4Addr::LOCALHOST);
        let server = a.inside(move || UdpSocket::bind(SocketAddrV4::new(address, 0)))?;
        let to = server.local_addr().map_err(BenchError::system("read an address"))?;
        let sockets = b.inside(move || {
            let open = |_| {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                socket.connect(to)?;
                socket.set_read_timeout(Some(PROBE_TIMEOUT))?;
                Ok(socket)
            };
            (0..PROBE_SOCKETS).map(open).collect::<io::Result<Vec<UdpSocket>>>()
        })?;
        server
            .set_read_timeout(Some(POLL_INTERVAL))
            .map_err(BenchError::system("set a time limit"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let asks = Arc::clone(&stop);
        Ok(Self {
            stop,
            echo: thread::spawn(move || echo_probes(&server, &ends)),
            probes: thread::spawn(move || probe(&sockets, &asks)),
        })
    }

    fn stop(self) -> Result<ProbeResult, BenchError> {
        self.stop.store(true, Ordering::Relaxed);
        let panicked = || BenchError::Setup("the prober panicked".to_owned());
        let probed = self.probes.join().map_err(|_| panicked())?;
        self.echo.join().map_err(|_| panicked())?;
        probed.map_err(BenchError::system("send probes"))
    }
}

fn echo_probes(server: &UdpSocket, stop: &AtomicBool) {
    let mut packet = [0; PROBE_BYTES];
    while !stop.load(Ordering::Relaxed) {
        // A timeout, or an error of one packet: look whether to stop.
        if let Ok((size, from)) = server.recv_from(&mut packet) {
            let _ = server.send_to(&packet[..size], from);
        }
    }
}

fn probe(sockets: &[UdpSocket], stop: &AtomicBool) -> io::Result<ProbeResult> {
    let mut probed = ProbeResult { found: Latencies::default(), sent: 0, lost: 0 };
    for socket in sockets.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let mut packet = [0; PROBE_BYTES];
        packet[..8].copy_from_slice(&probed.sent.to_le_bytes());
        let start = Instant::now();
        // A full queue loses the probe, as it would lose any packet.
        let sent = socket.send(&packet).is_ok();
        probed.sent += 1;
        let mut back = [0; PROBE_BYTES];
        let answered = sent
            && loop {
                match socket.recv(&mut back) {
                    // The answer to an earlier probe came late.
                    Ok(_) if back != packet && start.elapsed() < PROBE_TIMEOUT => {}
                    Ok(_) => break back == packet,
                    Err(_) => break false,
                }
            };
        if answered {
            probed.found.push(start.elapsed());
        } else {
            probed.lost += 1;
        }
        thread::sleep(PROBE_INTERVAL);
    }
    Ok(probed)
}

/// Time for which the rate was reduced after the death of a member.
fn reduction(intervals: &[IperfInterval], broken: u64) -> MemberLoss {
    let rates: Vec<(f64, f64)> = intervals
        .iter()
        .map(|interval| (interval.sum.start, interval.sum.bits_per_second / 1e6))
        .collect();
    let before = rates.iter().filter(|(start, _)| (USUAL_FROM..KILLED_AT).contains(start));
    let usual = crate::stats::Spread::of(before.map(|(_, rate)| *rate));
    let usual = usual.map_or(0.0, |spread| spread.median);
    let reduced =
        rates.iter().filter(|(start, rate)| *start >= KILLED_AT && *rate < REDUCED * usual);
    MemberLoss {
        reduced_s: reduced.count() as f64 * INTERVAL,
        intervals: rates.iter().map(|(_, rate)| *rate).collect(),
        usual,
        broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(start: f64, mbit: f64) -> IperfInterval {
        IperfInterval {
            sum: IperfSum { start, bytes: 0, bits_per_second: mbit * 1e6, retransmits: 0 },
        }
    }

    #[test]
    fn only_intervals_after_the_death_below_seven_tenths_are_reduced() {
        let rates = [
            (0.0, 10.0),
            (1.0, 100.0),
            (2.0, 110.0),
            (2.8, 90.0),
            (3.0, 20.0),
            (3.2, 69.0),
            (3.4, 71.0),
        ];
        let loss = reduction(&rates.map(|(start, mbit)| interval(start, mbit)), 0);
        assert!((loss.usual - 100.0).abs() < 1e-9);
        assert!((loss.reduced_s - 2.0 * INTERVAL).abs() < 1e-9, "{loss:?}");
    }

    #[test]
    fn busy_time_leaves_idle_and_waiting_out_and_switches_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("stat");
        let text = "cpu  100 200 300 9999 8888 50 50 7 0 0\ncpu0 1 2\nintr 5 6\nctxt 42\n";
        fs::write(&path, text).expect("a file");
        let counters = MachineCounters::read(&path).expect("numbers");
        assert_eq!(counters, MachineCounters { busy: Duration::from_secs(7), switches: 42 });
    }

    #[test]
    fn report_of_iperf_is_read_and_its_error_is_one() {
        let text = r#"{"intervals":[{"sum":{"start":0,"bytes":5,"bits_per_second":40}}],
            "end":{"sum_sent":{"bytes":6,"bits_per_second":48,"retransmits":2},"sum_received":{"bytes":5,"bits_per_second":40}}}"#;
        let end = finished(serde_json::from_str(text).expect("JSON")).expect("a result");
        assert_eq!((end.sum_received.bytes, end.sum_sent.retransmits), (5, 2));
        let failed: IperfReport = serde_json::from_str(r#"{"end":{},"error":"broken"}"#)
            .or_else(|_| serde_json::from_str(r#"{"error":"broken"}"#))
            .expect("JSON");
        assert!(finished(failed).is_err());
    }
}
