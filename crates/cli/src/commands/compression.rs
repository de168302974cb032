// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace compression`: the counters of the compression library in the servers of this machine.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Result;
use millrace_edge::compression::{
    Counter, CounterSnapshot, EngineCounters, EngineKind, MAX_BYTES, MEMORY_NAME,
};
use millrace_hostfs::process::Proc;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::CompressionReportArgs;
use crate::output::{self, Table};

const PROC: &str = "/proc";

/// The counters of one server.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CompressingServer {
    /// The process with the lowest id, which made the counters
    pid: u32,
    /// Name of the program
    program: String,
    /// Processes that share the counters
    processes: usize,
    /// Bytes of responses before compression
    in_bytes: u64,
    /// Bytes after it
    out_bytes: u64,
    /// Every counter by its name
    counters: BTreeMap<&'static str, u64>,
    #[serde(skip)]
    snapshot: CounterSnapshot,
}

pub(crate) fn run(args: &CompressionReportArgs) -> Result<()> {
    let servers = servers(Path::new(PROC));
    if args.json {
        return output::print_json(&servers);
    }
    if args.format.metrics {
        return output::print(&metrics(&servers));
    }
    if servers.is_empty() {
        note!(
            "no process with libmillrace_zlib.so is visible: `millrace gateway nginx --compression` configures it; \
             root sees all processes"
        );
        return Ok(());
    }
    table(&servers).print()?;
    for server in &servers {
        for reason in reasons(&server.snapshot) {
            output::print(&format!("{} ({}): {reason}\n", server.program, server.pid))?;
        }
    }
    Ok(())
}

/// The servers of this machine that compress, for the page of `millrace status`. `None` if none is visible.
pub(super) fn section() -> Option<Table> {
    let servers = servers(Path::new(PROC));
    (!servers.is_empty()).then(|| table(&servers))
}

/// Every server with counters. Processes with the same memory file are one server.
fn servers(proc: &Path) -> Vec<CompressingServer> {
    let Ok(files) = Proc::open(proc) else {
        return Vec::new();
    };
    let entries = fs::read_dir(proc).map(|entries| entries.flatten().collect::<Vec<_>>());
    let mut pids: Vec<u32> = entries
        .unwrap_or_default()
        .iter()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let mut found: BTreeMap<u64, CompressingServer> = BTreeMap::new();
    for pid in pids {
        let memory = files.memory_file(pid, MEMORY_NAME, MAX_BYTES);
        let Some((snapshot, inode)) = memory.and_then(|memory| {
            let snapshot = CounterSnapshot::parse(&memory.bytes)?;
            Some((snapshot, memory.inode))
        }) else {
            continue;
        };
        let name = fs::read_to_string(proc.join(pid.to_string()).join("comm")).unwrap_or_default();
        let server = found.entry(inode).or_insert_with(|| {
            let (in_bytes, out_bytes) = snapshot.bytes();
            let counters =
                Counter::ALL.iter().map(|counter| (counter.name(), snapshot.get(*counter)));
            CompressingServer {
                pid,
                program: name.trim().to_owned(),
                processes: 0,
                in_bytes,
                out_bytes,
                counters: counters.collect(),
                snapshot,
            }
        });
        server.processes += 1;
    }
    found.into_values().collect()
}

#[rustfmt::skip]
fn table(servers: &[CompressingServer]) -> Table {
    let by = |server: &CompressingServer, engine| share(server.snapshot.get(EngineCounters::of(engine).input), server.in_bytes);
    let sum = |server: &CompressingServer, counter: fn(EngineCounters) -> Counter| -> u64 {
        let counters = EngineKind::ALL.into_iter().map(|engine| counter(EngineCounters::of(engine)));
        counters.map(|counter| server.snapshot.get(counter)).sum()
    };
    Table::of(servers, &[
        ("SERVER", &|server| server.program.clone()),
        ("PID", &|server| server.pid.to_string()),
        ("RESPONSES", &|server| server.snapshot.get(Counter::Streams).to_string()),
        ("IN", &|server| mega(server.in_bytes)),
        ("OUT", &|server| mega(server.out_bytes)),
        ("RATIO", &|server| ratio(server.in_bytes as f64, server.out_bytes as f64, 2)),
        ("ISAL", &|server| by(server, EngineKind::Isal)),
        ("LIBDEFLATE", &|server| by(server, EngineKind::Libdeflate)),
        ("QAT", &|server| by(server, EngineKind::Qat)),
        ("STORED", &|server| by(server, EngineKind::Stored)),
        ("ZLIB", &|server| by(server, EngineKind::System)),
        ("ms/MB", &|server| ratio(sum(server, |of| of.nanos) as f64, server.in_bytes as f64, 2)),
        ("VERIFIED", &|server| share(server.snapshot.get(Counter::Verified), sum(server, |of| of.chunks))),
    ])
}

fn mega(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.0} %", 100.0 * part as f64 / whole as f64) }
}

fn ratio(over: f64, under: f64, decimals: usize) -> String {
    if under == 0.0 { "-".to_owned() } else { format!("{:.decimals$}", over / under) }
}

/// The counters that say why something else than an engine did the work, or that something is wrong.
const REASONS: [Counter; 18] = [
    Counter::WrongIsal,
    Counter::WrongLibdeflate,
    Counter::FailedIsal,
    Counter::FailedLibdeflate,
    Counter::WrongQat,
    Counter::FailedQat,
    Counter::QatLate,
    Counter::QatAway,
    Counter::QatBusy,
    Counter::QatRestarts,
    Counter::Panics,
    Counter::Flushed,
    Counter::MoreMemory,
    Counter::ForwardedFormat,
    Counter::ForwardedLevel,
    Counter::ForwardedMemory,
    Counter::ForwardedEngines,
    Counter::ForwardedCall,
];

fn reasons(snapshot: &CounterSnapshot) -> Vec<String> {
    let present = REASONS.into_iter().filter(|counter| snapshot.get(*counter) > 0);
    present.map(|counter| format!("{} × {}", snapshot.get(counter), counter.help())).collect()
}

fn metrics(servers: &[CompressingServer]) -> String {
    let mut text = String::new();
    for counter in Counter::ALL {
        let name = format!("millrace_compression_{}_total", counter.name());
        let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} counter", counter.help());
        for server in servers {
            let value = server.snapshot.get(*counter);
            let program = server.program.replace(['"', '\\'], "_");
            let _ =
                writeln!(text, "{name}{{program=\"{program}\",pid=\"{}\"}} {value}", server.pid);
        }
    }
    text
}
