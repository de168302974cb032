// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Cost of heartbeats to etcd: the same manager with more and more nodes, and etcd's own counters of bytes.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use millrace_manager::Manager;
use millrace_manager::model::command::Command;
use millrace_manager::model::core::{Actor, LeaseTimes};
use millrace_manager::model::principal::Role;
use millrace_manager::model::tenant::Tenant;
use millrace_manager::store::{self, EtcdConfig};
use millrace_service::grant::{GrantKeys, GrantSigner};
use millrace_service::rates::Rate;
use serde::Serialize;

use super::placement::{heartbeat, registration, setup, tenant_name};
use crate::error::BenchError;
use crate::progress::Progress;
use crate::stats::Latencies;

/// Heartbeats of each node at each size.
const ROUNDS: usize = 3;

/// Time for which leases live here: longer than the measurement, so that no lease ends.
const TTL: Duration = Duration::from_secs(3600);

/// Seconds between two heartbeats of a node with grants of 30 s.
const HEARTBEAT_S: f64 = 10.0;

/// Nodes for each tenant of the pool.
const NODES_PER_TENANT: usize = 5;

/// Bound on the time until the slices of new tenants have settled.
const SETTLE: Duration = Duration::from_secs(120);

/// Etcd's counters: bytes from and to clients.
const COUNTERS: [&str; 2] =
    ["etcd_network_client_grpc_received_bytes_total", "etcd_network_client_grpc_sent_bytes_total"];

/// Traffic with one number of nodes.
#[derive(Debug, Serialize)]
pub(super) struct Traffic {
    pub(super) nodes: usize,
    pub(super) heartbeats: usize,
    pub(super) bytes_per_heartbeat: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

impl Traffic {
    /// Traffic of all nodes in kB/s, at the heartbeat interval that the default life of a grant gives.
    pub(super) fn kilobytes_per_s(&self) -> f64 {
        self.nodes as f64 * self.bytes_per_heartbeat / HEARTBEAT_S / 1000.0
    }
}

/// Measures each number of nodes, in rising order.
pub(super) fn measure(
    location: &str,
    sizes: &[usize],
    progress: &mut Progress,
) -> Result<Vec<Traffic>, BenchError> {
    let usage = |error: &dyn std::fmt::Display| BenchError::Usage(format!("--store: {error}"));
    let config = EtcdConfig::parse(location).map_err(|error| usage(&error))?;
    let endpoint = config
        .endpoints
        .first()
        .and_then(|endpoint| endpoint.strip_prefix("http://"))
        .ok_or_else(|| usage(&"the counters of etcd are read without TLS: use etcd://HOST:PORT"))?
        .to_owned();
    let signer = GrantSigner::generate().map_err(|error| setup(&error))?.0;
    let times = LeaseTimes { ttl: TTL, ..LeaseTimes::default() };
    let store = store::open(location).map_err(|error| usage(&error))?;
    let manager = Manager::start(store, signer, &GrantKeys::default(), times)
        .map_err(|error| setup(&error))?;
    if manager.view(|view| !view.nodes.is_empty() || !view.tenants.is_empty()) {
        manager.stop();
        return Err(usage(&"it holds the records of a pool; name an empty one"));
    }
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable();
    let measured = rows(&manager, &endpoint, &sizes, progress);
    manager.stop();
    measured
}

fn rows(
    manager: &Manager,
    endpoint: &str,
    sizes: &[usize],
    progress: &mut Progress,
) -> Result<Vec<Traffic>, BenchError> {
    let mut fences = Vec::new();
    let mut tenants = 0;
    let mut rows = Vec::new();
    for &nodes in sizes {
        progress.now(&format!("etcd traffic of {nodes} nodes"))?;
        for number in fences.len()..nodes {
            let registered = manager.register(&registration(number)?);
            fences.push(registered.map_err(|error| setup(&error))?.lease.fence);
        }
        let wanted = tenants.max(nodes / NODES_PER_TENANT);
        for number in tenants..wanted {
            create(manager, number)?;
        }
        tenants = wanted;
        settle(manager, tenants)?;
        let mut latencies = Latencies::default();
        // The first heartbeats acknowledge new grants.
        beat(manager, &fences, &mut latencies, progress)?;
        let before = bytes(endpoint)?;
        let mut latencies = Latencies::default();
        for _ in 0..ROUNDS {
            beat(manager, &fences, &mut latencies, progress)?;
        }
        let heartbeats = ROUNDS * nodes;
        rows.push(Traffic {
            nodes,
            heartbeats,
            bytes_per_heartbeat: (bytes(endpoint)? - before) / heartbeats as f64,
            p50_us: latencies.quantile_us(0.5),
            p99_us: latencies.quantile_us(0.99),
        });
        progress.step();
    }
    Ok(rows)
}

fn create(manager: &Manager, number: usize) -> Result<(), BenchError> {
    let mut tenant = Tenant::new(tenant_name(number)?);
    tenant.quota.ops = Rate::per_second(1000);
    let actor = Actor { name: "bench", role: Role::Admin };
    let made = manager.execute(actor, &Command::CreateTenant(tenant), None);
    made.map(drop).map_err(|error| setup(&error))
}

/// Waits until each tenant has its slices.
fn settle(manager: &Manager, tenants: usize) -> Result<(), BenchError> {
    let until = Instant::now() + SETTLE;
    while manager.view(|view| view.ledgers.len()) < tenants {
        if Instant::now() > until {
            return Err(BenchError::Wrong("the pool does not settle".to_owned()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// One heartbeat of each node.
fn beat(
    manager: &Manager,
    fences: &[u64],
    latencies: &mut Latencies,
    progress: &Progress,
) -> Result<(), BenchError> {
    for (number, fence) in fences.iter().enumerate() {
        progress.check()?;
        let heartbeat = heartbeat(number, *fence, manager.revision())?;
        let start = Instant::now();
        let answer = manager.heartbeat(&heartbeat);
        latencies.push(start.elapsed());
        answer.map_err(|error| BenchError::Wrong(format!("a heartbeat: {error}")))?;
    }
    Ok(())
}

/// Bytes that etcd has received from clients and sent to them.
fn bytes(endpoint: &str) -> Result<f64, BenchError> {
    let limit = Duration::from_secs(5);
    let ask = || -> std::io::Result<String> {
        let address = endpoint.to_socket_addrs()?.next();
        let address = address.ok_or(std::io::ErrorKind::NotFound)?;
        let mut socket = TcpStream::connect_timeout(&address, limit)?;
        socket.set_read_timeout(Some(limit))?;
        write!(socket, "GET /metrics HTTP/1.0\r\nHost: {endpoint}\r\n\r\n")?;
        let mut text = String::new();
        socket.read_to_string(&mut text)?;
        Ok(text)
    };
    let text = ask().map_err(BenchError::system("read etcd's counters"))?;
    let rows = text.lines().filter(|line| COUNTERS.iter().any(|name| line.starts_with(name)));
    let values: Vec<f64> =
        rows.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).collect();
    if values.len() < COUNTERS.len() {
        let text = format!("{endpoint} shows no counters of etcd");
        return Err(BenchError::Setup(text));
    }
    Ok(values.iter().sum())
}
