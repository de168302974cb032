// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The sampler itself: `perf_event_open` with the kernel's software clock, one event per thread and
//! processor, read by a separate thread.
//!
//! An inherited event (new threads, children) can have a buffer only if it is bound to a processor, hence one
//! per thread *and* processor. If these are too many, each event follows its thread alone, and threads started
//! later are not sampled.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use millrace_hostfs::maps::Mapping;
use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, Clock, SampleFlag};
use rustix::io::Errno;

use super::image::{Image, open_image};
use super::samples::{Samples, SamplingScope};
use super::{SampleError, target};

/// Samples per second of CPU time. A prime number near 1000, so that it does not beat with timers.
pub const DEFAULT_FREQUENCY: u32 = 997;

/// Bound on the frequency: above it the sampler itself takes a noticeable share of the CPU time.
pub const MAX_FREQUENCY: u32 = 10_000;

/// Bound on events: each costs a descriptor, of which a process has 1024 by default, and 20 KiB.
const MAX_EVENTS: usize = 900;

/// Bytes of one buffer: 250 ms of samples and mappings at the highest frequency.
const BUFFER_LEN: usize = 64 << 10;

/// Bytes of one buffer where there are many, so that all together stay below 16 MiB.
const SMALL_BUFFER_LEN: usize = 16 << 10;

/// Number of events up to which buffers are large: together 2 MiB.
const MANY_EVENTS: usize = 32;

/// Interval between reads of the buffers: a small one is then a quarter full at the default frequency.
const READ_INTERVAL: Duration = Duration::from_millis(25);

/// Bound on samples, 32 bytes each: four hours of one processor.
const MAX_SAMPLES: usize = 16 << 20;

/// Bound on new mappings, and on new processes, during sampling: a program that maps or forks in a loop must not fill
/// the memory of this one.
const MAX_NOTED: usize = 1 << 20;

/// `PERF_RECORD_MISC_CPUMODE_MASK`, and the mode that means the kernel.
const MODE_MASK: u16 = 7;
const MODE_KERNEL: u16 = 1;

/// Samples processes until it is stopped.
#[derive(Debug)]
pub struct Sampler {
    pids: Vec<u32>,
    stop: Sender<()>,
    reader: JoinHandle<Raw>,
    started: Instant,
    period: Duration,
    scope: SamplingScope,
    cpu_before: Duration,
    maps: BTreeMap<u32, Vec<Mapping>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) pid: u32,
    pub(super) mode: CpuMode,
    pub(super) address: u64,
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub(super) time: u64,
}

/// Mode of the processor when it was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CpuMode {
    Kernel,
    User,
}

impl CpuMode {
    fn of(record: &perf_event::Record<'_>) -> Self {
        if record.misc() & MODE_MASK == MODE_KERNEL { Self::Kernel } else { Self::User }
    }
}

/// The records of the reader.
#[derive(Debug, Default)]
pub(super) struct Raw {
    pub(super) samples: Vec<Sample>,
    pub(super) lost: u64,
    mappings: Vec<(u32, Mapping)>,
    /// Child and parent.
    forks: Vec<(u32, u32)>,
}

impl Sampler {
    /// Starts to sample these processes and their descendants, including those started later,
    /// `frequency` times per second of CPU time (1 to [`MAX_FREQUENCY`]).
    ///
    /// # Errors
    /// The reason why it is impossible, and the permission that would allow it.
    pub fn start(pids: &[u32], frequency: u32) -> Result<Self, SampleError> {
        let descendants: BTreeSet<u32> =
            pids.iter().flat_map(|pid| target::process_tree(*pid)).collect();
        let descendants = descendants.into_iter().filter(|pid| !pids.contains(pid));
        let pids: Vec<u32> = pids.iter().copied().chain(descendants).collect();
        let period = Duration::from_secs(1) / frequency.clamp(1, MAX_FREQUENCY);
        let mut scope = SamplingScope::UserAndKernel;
        let mut rings = match open_all(&pids, period, scope) {
            Ok(rings) => rings,
            // Without privileges processes of the same user may be sampled, but not the kernel's part.
            Err(SampleError::NotPermitted { .. }) => {
                scope = SamplingScope::User;
                open_all(&pids, period, scope)?
            }
            Err(error) => return Err(error),
        };
        let cpu_before = target::cpu_time(pids.iter().copied());
        let started = Instant::now();
        for ring in &mut rings {
            ring.enable().map_err(SampleError::system("enable a perf event"))?;
        }
        // Read after the events exist: they report every later mapping, but none before. A process that has
        // just started is still mapping its libraries.
        let maps = pids.iter().map(|pid| (*pid, target::code_of(*pid))).collect();
        let (stop, stopped) = mpsc::channel();
        let reader = thread::Builder::new()
            .name("sampler".to_owned())
            .spawn(move || read_until(&stopped, rings))
            .map_err(SampleError::system("start a thread"))?;
        Ok(Self { pids, stop, reader, started, period, scope, cpu_before, maps })
    }

    /// Stops, and assigns the samples to functions.
    ///
    /// # Errors
    /// [`SampleError::System`] if the reading thread failed. Files that cannot be read are not an error:
    /// their samples count as the application's.
    pub fn stop(self) -> Result<Samples, SampleError> {
        self.stop_between(None)
    }

    /// Stops like [`Sampler::stop`], with only the samples between these two times (`CLOCK_MONOTONIC`).
    pub(super) fn stop_between(self, window: Option<(u64, u64)>) -> Result<Samples, SampleError> {
        let (finished, images) = self.finish()?;
        Ok(finished.samples(images, window))
    }

    pub(super) fn finish(mut self) -> Result<(Finished, Images), SampleError> {
        let cpu_after = target::cpu_time(self.pids.iter().copied());
        let elapsed = self.started.elapsed();
        // The reader ends only at this request or with the process.
        let _ = self.stop.send(());
        let raw = self.reader.join().map_err(|_| SampleError::System {
            action: "read samples",
            source: io::Error::other("the reading thread failed"),
        })?;
        for (child, parent) in &raw.forks {
            let inherited = self.maps.get(parent).cloned();
            self.maps.entry(*child).or_insert_with(|| {
                let own = target::code_of(*child);
                if own.is_empty() { inherited.unwrap_or_default() } else { own }
            });
        }
        for (pid, mapping) in &raw.mappings {
            self.maps.entry(*pid).or_default().push(mapping.clone());
        }
        let images = Images::open(&self.maps, &raw.samples);
        // The count of a process is lost when it ends, and then the comparison is impossible.
        let cpu_time = cpu_after.checked_sub(self.cpu_before);
        // A process that started during sampling is sampled, but was not counted.
        let forked = !raw.forks.is_empty();
        let alive = self.pids.iter().all(|pid| !target::threads(*pid).is_empty());
        let finished = Finished {
            raw,
            maps: self.maps,
            period: self.period,
            elapsed,
            cpu_time: cpu_time.filter(|_| alive && !forked),
            scope: self.scope,
        };
        Ok((finished, images))
    }
}

/// The result of a sampler.
pub(super) struct Finished {
    raw: Raw,
    maps: BTreeMap<u32, Vec<Mapping>>,
    period: Duration,
    elapsed: Duration,
    cpu_time: Option<Duration>,
    scope: SamplingScope,
}

impl Finished {
    /// The samples of a time window, or all.
    pub(super) fn samples(&self, images: Images, window: Option<(u64, u64)>) -> Samples {
        let inside =
            |sample: &&Sample| window.is_none_or(|(from, to)| (from..to).contains(&sample.time));
        let mut samples = Samples::new(self.period, self.elapsed, self.scope);
        samples.cpu_time = self.cpu_time.filter(|_| window.is_none());
        samples.lost = self.raw.lost;
        for sample in self.raw.samples.iter().filter(inside) {
            if sample.mode == CpuMode::Kernel {
                samples.kernel += 1;
                continue;
            }
            match images.locate(&self.maps, sample) {
                Some((image, start)) => samples.count(image, start),
                None => samples.unresolved += 1,
            }
        }
        samples.images = images.all;
        samples
    }
}

/// The files that contain samples.
#[derive(Clone, Debug, Default)]
pub(super) struct Images {
    all: Vec<std::sync::Arc<Image>>,
    by_path: BTreeMap<PathBuf, Option<usize>>,
}

impl Images {
    fn open(maps: &BTreeMap<u32, Vec<Mapping>>, samples: &[Sample]) -> Self {
        let mut images = Self::default();
        for sample in samples.iter().filter(|sample| sample.mode == CpuMode::User) {
            let Some(mapping) = mapping(maps, sample) else {
                continue;
            };
            if !images.by_path.contains_key(&mapping.path) {
                let image = open_image(sample.pid, mapping);
                let index = image.map(|image| {
                    images.all.push(std::sync::Arc::new(image));
                    images.all.len() - 1
                });
                images.by_path.insert(mapping.path.clone(), index);
            }
        }
        images
    }

    /// The file, and the start of the function in it.
    fn locate(&self, maps: &BTreeMap<u32, Vec<Mapping>>, sample: &Sample) -> Option<(usize, u64)> {
        let mapping = mapping(maps, sample)?;
        let index = (*self.by_path.get(&mapping.path)?)?;
        let image = self.all.get(index)?;
        let address = image.address(mapping.file_offset(sample.address)?)?;
        Some((index, image.region(address).map_or(address, |region| region.start)))
    }
}

/// The mapping that contains a sample; the newest if there were several.
fn mapping<'a>(maps: &'a BTreeMap<u32, Vec<Mapping>>, sample: &Sample) -> Option<&'a Mapping> {
    let of = maps.get(&sample.pid)?;
    of.iter().rev().find(|mapping| mapping.file_offset(sample.address).is_some())
}

fn read_until(stopped: &mpsc::Receiver<()>, mut rings: Vec<perf_event::Sampler>) -> Raw {
    let mut raw = Raw::default();
    loop {
        let end = stopped.recv_timeout(READ_INTERVAL) != Err(RecvTimeoutError::Timeout);
        for ring in &mut rings {
            if end {
                // The buffer is emptied in any case.
                drop(ring.disable());
            }
            while let Some(record) = ring.next_record() {
                let mode = CpuMode::of(&record);
                // Newer kernels may have kinds of records that are unknown here.
                if let Ok(parsed) = record.parse_record() {
                    raw.take(parsed, mode);
                }
            }
        }
        if end {
            return raw;
        }
    }
}

impl Raw {
    fn take(&mut self, record: Record<'_>, mode: CpuMode) {
        match record {
            Record::Sample(sample) => {
                let (Some(address), Some(pid)) = (sample.ip(), sample.pid()) else {
                    return;
                };
                if self.samples.len() >= MAX_SAMPLES {
                    self.lost += 1;
                    return;
                }
                let time = sample.time().unwrap_or(0);
                self.samples.push(Sample { pid, mode, address, time });
            }
            Record::Mmap2(mapping) if self.mappings.len() < MAX_NOTED => {
                let name = mapping.filename.split(|byte| *byte == 0).next();
                let path = PathBuf::from(OsStr::from_bytes(name.unwrap_or_default()));
                let new = Mapping {
                    start: mapping.addr,
                    end: mapping.addr.saturating_add(mapping.len),
                    offset: mapping.pgoff,
                    is_code: true,
                    path,
                };
                self.mappings.push((mapping.pid, new));
            }
            Record::Fork(fork) if fork.pid != fork.ppid && self.forks.len() < MAX_NOTED => {
                self.forks.push((fork.pid, fork.ppid));
            }
            Record::Lost(lost) => self.lost += lost.lost,
            Record::LostSamples(lost) => self.lost += lost.lost,
            _ => {}
        }
    }
}

/// Opens an event for each thread, on each processor if these are not too many.
fn open_all(
    pids: &[u32],
    period: Duration,
    scope: SamplingScope,
) -> Result<Vec<perf_event::Sampler>, SampleError> {
    let threads: Vec<(u32, u32)> = pids
        .iter()
        .flat_map(|pid| target::threads(*pid).into_iter().map(|tid| (*pid, tid)))
        .collect();
    if threads.is_empty() {
        return Err(SampleError::Gone(pids.first().copied().unwrap_or(0)));
    }
    if threads.len() > MAX_EVENTS {
        return Err(SampleError::TooMuch {
            what: format!(
                "the processes have {} threads, {MAX_EVENTS} can be sampled",
                threads.len()
            ),
        });
    }
    let places = places(&threads);
    let len = if places.len() > MANY_EVENTS { SMALL_BUFFER_LEN } else { BUFFER_LEN };
    let mut rings = Vec::with_capacity(places.len());
    for (pid, tid, cpu) in places {
        match open(tid, cpu, period, scope, len) {
            Ok(ring) => rings.push(ring),
            // A thread that has ended since.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => {}
            Err(error) => return Err(explain(pid, error)),
        }
    }
    if rings.is_empty() {
        return Err(SampleError::Gone(pids.first().copied().unwrap_or(0)));
    }
    Ok(rings)
}

/// Pairs of thread and processor to sample: all; if too many, those where each thread may run now; if too
/// many, the threads alone.
fn places(threads: &[(u32, u32)]) -> Vec<(u32, u32, Option<usize>)> {
    let on = |cpus: &dyn Fn(u32, u32) -> Vec<usize>| -> Vec<_> {
        let each = threads.iter().flat_map(|&(pid, tid)| {
            cpus(pid, tid).into_iter().map(move |cpu| (pid, tid, Some(cpu)))
        });
        each.take(MAX_EVENTS + 1).collect()
    };
    let online = target::online_cpus();
    let everywhere = on(&|_, _| online.clone());
    if (1..=MAX_EVENTS).contains(&everywhere.len()) {
        return everywhere;
    }
    let allowed = on(&target::allowed_cpus);
    if (1..=MAX_EVENTS).contains(&allowed.len()) {
        return allowed;
    }
    threads.iter().map(|&(pid, tid)| (pid, tid, None)).collect()
}

fn open(
    tid: u32,
    cpu: Option<usize>,
    period: Duration,
    scope: SamplingScope,
    len: usize,
) -> io::Result<perf_event::Sampler> {
    let mut builder = Builder::new(Software::CPU_CLOCK);
    let tid = i32::try_from(tid).map_err(|_| Errno::SRCH)?;
    builder
        .observe_pid(tid)
        .sample_period(u64::try_from(period.as_nanos()).unwrap_or(u64::MAX))
        .sample(SampleFlag::IP)
        .sample(SampleFlag::TID)
        .sample(SampleFlag::TIME)
        .clockid(Clock::MONOTONIC)
        .exclude_hv(true)
        .exclude_kernel(scope == SamplingScope::User)
        .mmap(true)
        .mmap2(true)
        .task(true)
        .enabled(false);
    match cpu {
        Some(cpu) => builder.one_cpu(cpu).inherit(true),
        None => builder.any_cpu(),
    };
    builder.build()?.sampled(len)
}

/// The meaning of an error, and the remedy.
fn explain(pid: u32, error: io::Error) -> SampleError {
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let paranoid = paranoid.unwrap_or_else(|_| "not readable".to_owned());
    let remedy = match Errno::from_io_error(&error) {
        Some(Errno::PERM | Errno::ACCESS) => format!(
            "run as root, or give the program CAP_PERFMON and CAP_SYS_PTRACE (setcap \
             cap_perfmon,cap_sys_ptrace+ep), or, for processes of your own user, set \
             kernel.perf_event_paranoid to 1 (it is {}); in a container the seccomp profile must allow \
             perf_event_open (docker run --cap-add PERFMON)",
            paranoid.trim()
        ),
        Some(Errno::NOSYS | Errno::NODEV | Errno::NOENT | Errno::OPNOTSUPP) => {
            "this kernel, or the sandbox that this runs in, has no perf_event_open, or not for clocks"
                .to_owned()
        }
        Some(Errno::MFILE) => "it has more threads than this process may have open files; raise \
                         `ulimit -n`"
            .to_owned(),
        _ => return SampleError::system("open a perf event")(error),
    };
    SampleError::NotPermitted { pid, remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_permission_is_named() {
        let text = explain(7, Errno::ACCESS.into()).to_string();
        for part in ["process 7", "CAP_PERFMON", "perf_event_paranoid", "container"] {
            assert!(text.contains(part), "{text}");
        }
        let other = explain(7, io::Error::from_raw_os_error(22));
        assert!(matches!(other, SampleError::System { .. }));
    }

    #[test]
    fn missing_process_is_an_error() {
        let error =
            Sampler::start(&[u32::MAX - 1], DEFAULT_FREQUENCY).expect_err("no such process");
        assert!(matches!(error, SampleError::Gone(_)), "{error}");
    }

    #[test]
    fn events_are_reduced_for_many_threads() {
        let pid = std::process::id();
        let one = places(&[(pid, pid)]);
        assert_eq!(one.len(), target::online_cpus().len());
        let many = vec![(pid, pid); MAX_EVENTS];
        let alone = places(&many);
        if target::online_cpus().len() > 1 && target::allowed_cpus(pid, pid).len() > 1 {
            assert_eq!(alone.len(), many.len());
            assert!(alone.iter().all(|(_, _, cpu)| cpu.is_none()));
        }
    }
}
