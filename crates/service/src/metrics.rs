// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The counters of a service, and their text for Prometheus.
//!
//! Every metric is declared once, in one of two tables: [`Metrics`] holds the node's own counters,
//! `engine_metrics` those that the engine counts and a request reads. One test fails for a counter that no
//! event changes (crate server, `tests/metrics.rs`), another for an engine metric that is not shown.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millrace_engine::BackendStatus;
use millrace_engine::backend::BackendDeviceStatus;
use millrace_engine::stats::{EngineSnapshot, HistogramSnapshot};
use millrace_operation::JobError;
use millrace_wire::{EdgeCounter, Fault, KeyRefusal};

use crate::account::AccountSnapshot;
use crate::quota::Exceeded;

/// A count that only increases.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`.
    pub fn add(&self, count: usize) {
        self.0.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A value that increases and decreases.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub(crate) fn set(&self, value: usize) {
        self.0.store(u64::try_from(value).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One counter per value of a label.
#[derive(Debug)]
pub struct Family<L: Label> {
    counters: Vec<Counter>,
    label: std::marker::PhantomData<L>,
}

impl<L: Label> Default for Family<L> {
    fn default() -> Self {
        let counters = L::names().iter().map(|_| Counter::default()).collect();
        Self { counters, label: std::marker::PhantomData }
    }
}

impl<L: Label> Family<L> {
    /// Adds `count` under a label.
    pub fn add(&self, label: L, count: usize) {
        if let Some(counter) = self.counters.get(label.index()) {
            counter.add(count);
        }
    }

    /// The counts, in the order of the label's values.
    pub(crate) fn values(&self) -> impl Iterator<Item = u64> {
        self.counters.iter().map(Counter::value)
    }

    pub(crate) fn sum(&self) -> u64 {
        self.values().sum()
    }
}

/// A label of a counter, with few values.
pub trait Label: Copy {
    /// Name of the label.
    const KEY: &'static str;
    /// The label's values, in the order of [`Self::index`].
    fn names() -> Vec<&'static str>;
    /// Index of this value in [`Self::names`].
    fn index(self) -> usize;
}

impl Label for Fault {
    const KEY: &'static str = "fault";
    fn names() -> Vec<&'static str> {
        Self::ALL.iter().map(|fault| fault.name()).collect()
    }
    fn index(self) -> usize {
        Self::ALL.iter().position(|fault| *fault == self).unwrap_or(usize::MAX)
    }
}

impl Label for JobError {
    const KEY: &'static str = "reason";
    fn names() -> Vec<&'static str> {
        Self::ALL.iter().map(|error| error.name()).collect()
    }
    fn index(self) -> usize {
        Self::ALL.iter().position(|error| *error == self).unwrap_or(usize::MAX)
    }
}

impl Label for KeyRefusal {
    const KEY: &'static str = "reason";
    fn names() -> Vec<&'static str> {
        Self::CODES.iter().map(|(_, name)| *name).collect()
    }
    fn index(self) -> usize {
        let (code, _) = self.codes();
        Self::CODES.iter().position(|(known, _)| *known == code).unwrap_or(usize::MAX)
    }
}

/// Reason for which a connection was refused before it became a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionRefusal {
    /// The bound on connections is reached.
    TooMany,
    /// The bound on connections of one identity is reached.
    TooManyOfIdentity,
    /// The TLS handshake failed: no certificate, an expired or a foreign one, another protocol.
    Tls,
    /// The client did not offer Millrace's protocol in ALPN.
    Alpn,
    /// Neither the certificate nor the kernel gave a valid identity.
    Identity,
    /// The handshake took too long.
    TimedOut,
    /// The settings do not admit the identity.
    NotAdmitted,
    /// A handshake, or a connection to one of the HTTP listeners, gave way to a newer one.
    Displaced,
}

impl ConnectionRefusal {
    /// The value of the label, also for the log.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::names()[self as usize]
    }

    /// The step of an operator if the client is to connect nevertheless; `None` if its error says it.
    pub(crate) fn remedy(self) -> Option<&'static str> {
        match self {
            Self::NotAdmitted => Some(
                "name it in identities of node.toml, or, where a manager says whom to serve: millrace tenant set \
                 NAME --add-identity IDENTITY",
            ),
            Self::TooMany | Self::TooManyOfIdentity => Some("limits in node.toml"),
            Self::Tls | Self::Alpn | Self::Identity | Self::TimedOut | Self::Displaced => None,
        }
    }
}

impl Label for ConnectionRefusal {
    const KEY: &'static str = "reason";
    fn names() -> Vec<&'static str> {
        vec![
            "too-many",
            "too-many-of-identity",
            "tls",
            "alpn",
            "identity",
            "timed-out",
            "not-admitted",
            "displaced",
        ]
    }
    fn index(self) -> usize {
        self as usize
    }
}

/// Declares a label whose values are some of a client's counters.
macro_rules! edge_label {
    ($(#[doc = $doc:literal] $label:ident $key:literal: $($counter:ident $name:literal),*;)*) => {
        $(
            #[doc = $doc]
            #[derive(Clone, Copy, Debug)]
            pub struct $label(EdgeCounter);

            impl $label {
                const ALL: &'static [(EdgeCounter, &'static str)] =
                    &[$((EdgeCounter::$counter, $name)),*];

                /// The value of this label for the counter, if it has one.
                pub fn of(counter: EdgeCounter) -> Option<Self> {
                    Self::ALL.iter().any(|(known, _)| *known == counter).then_some(Self(counter))
                }
            }

            impl Label for $label {
                const KEY: &'static str = $key;
                fn names() -> Vec<&'static str> {
                    Self::ALL.iter().map(|(_, name)| *name).collect()
                }
                fn index(self) -> usize {
                    Self::ALL.iter().position(|(known, _)| *known == self.0).unwrap_or(usize::MAX)
                }
            }
        )*
    };
}

edge_label! {
    /// The way in which an application waited for a job.
    EdgeWait "how": Paused "paused", Blocking "blocking";
    /// Jobs by which of two nodes answered first.
    EdgeHedge "result": HedgeWon "won", HedgeLost "lost";
    /// The result of an operation that the client gave to the pool.
    EdgeResult "result": Pooled "pooled", Failed "failed", Abandoned "abandoned",
        Cancelled "cancelled", WrongResults "wrong";
    /// The reason for which a client computed an operation itself.
    EdgeFallback "reason": FallbackNoNode "no-node", FallbackTimedOut "timed-out",
        FallbackBusy "busy", FallbackRefused "refused", FallbackFailed "failed",
        FallbackWrongResult "wrong-result", FallbackBreaker "breaker", FallbackQuota "quota";
    /// Requests that virtio-crypto devices computed for their machines.
    DeviceOps "operation": SymEncryptOps "sym-encrypt", SymDecryptOps "sym-decrypt", HashOps "hash",
        MacOps "mac", AsymEncryptOps "asym-encrypt", AsymDecryptOps "asym-decrypt", AsymSignOps "asym-sign",
        AsymVerifyOps "asym-verify";
    /// Bytes that virtio-crypto devices computed for their machines.
    DeviceBytes "operation": SymEncryptBytes "sym-encrypt", SymDecryptBytes "sym-decrypt", HashBytes "hash",
        MacBytes "mac", AsymEncryptBytes "asym-encrypt", AsymDecryptBytes "asym-decrypt",
        AsymSignBytes "asym-sign", AsymVerifyBytes "asym-verify";
}

/// Name, type and meaning of a metric. Its name contains the unit, as Prometheus recommends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetricDescription {
    pub(crate) name: &'static str,
    kind: &'static str,
    doc: &'static str,
}

trait Series {
    const KIND: &'static str;
    /// Label (key and value) and value of each sample.
    fn samples(&self) -> Vec<(Option<(&'static str, &'static str)>, u64)>;
}

impl Series for Counter {
    const KIND: &'static str = "counter";
    fn samples(&self) -> Vec<(Option<(&'static str, &'static str)>, u64)> {
        vec![(None, self.value())]
    }
}

impl Series for Gauge {
    const KIND: &'static str = "gauge";
    fn samples(&self) -> Vec<(Option<(&'static str, &'static str)>, u64)> {
        vec![(None, self.value())]
    }
}

impl<L: Label> Series for Family<L> {
    const KIND: &'static str = "counter";
    fn samples(&self) -> Vec<(Option<(&'static str, &'static str)>, u64)> {
        let names = L::names().into_iter();
        names.zip(&self.counters).map(|(n, c)| (Some((L::KEY, n)), c.value())).collect()
    }
}

macro_rules! metrics {
    ($($field:ident: $series:ty, $name:literal, $doc:literal;)*) => {
        /// The counters of the service and its front ends.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $(#[doc = $doc] pub $field: $series,)*
        }

        impl Metrics {
            fn render(&self, out: &mut String) {
                $(
                    let kind = <$series as Series>::KIND;
                    head(out, MetricDescription { name: $name, kind, doc: $doc });
                    for (label, value) in self.$field.samples() {
                        match label {
                            Some((key, name)) => line(out, $name, &[(key, name)], value),
                            None => line(out, $name, &[], value),
                        }
                    }
                )*
            }
        }
    };
}

metrics! {
    connections_accepted: Counter, "millrace_connections_accepted_total",
        "Connections accepted, before any handshake.";
    connections_refused: Family<ConnectionRefusal>, "millrace_connections_refused_total",
        "Connections refused before they became sessions, by reason.";
    connections_open: Gauge, "millrace_connections",
        "Connections open now.";
    sessions: Counter, "millrace_sessions_total",
        "Connections that authenticated and said hello.";
    messages_received: Counter, "millrace_messages_received_total",
        "Messages received from clients.";
    bytes_received: Counter, "millrace_received_bytes_total",
        "Bytes received from clients, above TLS.";
    bytes_sent: Counter, "millrace_sent_bytes_total",
        "Bytes sent to clients, above TLS.";
    writes: Counter, "millrace_writes_total",
        "Writes to clients; completions per write is how well they batch.";
    completions_sent: Counter, "millrace_completions_sent_total",
        "Completions sent to clients, results and errors.";
    faults: Family<Fault>, "millrace_faults_total",
        "Connections closed because of what the client did, by fault.";
    jobs_refused: Family<JobError>, "millrace_jobs_refused_total",
        "Jobs that the node refused before the engine saw them, by reason.";
    keys_opened: Counter, "millrace_keys_opened_total",
        "Keys opened by clients, imported ones included.";
    keys_refused: Family<KeyRefusal>, "millrace_keys_refused_total",
        "Keys that clients asked for or brought and did not get, by reason.";
    keys_loaded: Gauge, "millrace_keys",
        "Keys of the store that are loaded.";
    keys_broken: Gauge, "millrace_keys_broken",
        "Files of the store that cannot be used; the log says why.";
    reloads: Counter, "millrace_reloads_total",
        "Times that a change of keys, policies or certificates was applied.";
    reloads_failed: Counter, "millrace_reloads_failed_total",
        "Times that keys or certificates could not be read again; the log says why.";
    edge_reports: Counter, "millrace_edge_reports_total",
        "Reports of edges about themselves, from which the other edge metrics are.";
    edge_operations: Family<EdgeResult>, "millrace_edge_operations_total",
        "Operations of edges that the edge did not do itself, by result.";
    edge_jobs: Family<EdgeWait>, "millrace_edge_jobs_total",
        "Jobs of edges, by whether a thread of the application waited for the answer.";
    edge_fallbacks: Family<EdgeFallback>, "millrace_edge_fallbacks_total",
        "Operations that edges did themselves because the pool did not, by reason.";
    edge_hedges: Family<EdgeHedge>, "millrace_edge_hedges_total",
        "Jobs that edges sent to a second node, by whether it answered first.";
    virtio_ops: Family<DeviceOps>, "millrace_virtio_ops_total",
        "Requests of virtual machines that the virtio-crypto devices of this node's clients did, by operation.";
    virtio_bytes: Family<DeviceBytes>, "millrace_virtio_bytes_total",
        "Bytes of the requests of virtual machines, by operation.";
}

macro_rules! engine_metrics {
    ($($constant:ident = $kind:literal $name:literal $doc:literal;)*) => {
        /// The metrics that the engine counts.
        #[cfg(test)]
        const ENGINE_METRICS: &[MetricDescription] = &[$($constant),*];

        $(const $constant: MetricDescription = MetricDescription { name: $name, kind: $kind, doc: $doc };)*
    };
}

engine_metrics! {
    SUBMITTED = "counter" "millrace_jobs_submitted_total" "Jobs handed to the engine.";
    INLINE = "counter" "millrace_jobs_inline_total"
        "Of those, jobs computed on the thread that brought them.";
    COMPLETED = "counter" "millrace_jobs_completed_total"
        "Jobs that ended with a result, by backend and operation.";
    FAILED = "counter" "millrace_tasks_failed_total"
        "Tasks that a backend did not answer with a result; the job may have been served elsewhere.";
    ERRORS = "counter" "millrace_jobs_failed_total"
        "Jobs that ended in the engine without a result, by reason.";
    RETRIED = "counter" "millrace_jobs_retried_total"
        "Times that a job was handed to a further backend.";
    WRONG = "counter" "millrace_backend_faults_total"
        "Results that failed their verification and were not sent. Each quarantined its backend.";
    PANICS = "counter" "millrace_backend_panics_total"
        "Panics caught in a backend. Each quarantined it.";
    DROPPED = "counter" "millrace_completions_dropped_total"
        "Completions dropped because their connection had ended.";
    WAITING = "gauge" "millrace_jobs_waiting" "Jobs waiting now, by class.";
    IN_FLIGHT = "gauge" "millrace_jobs_in_flight" "Jobs submitted and not yet completed.";
    QUEUE_TIME = "histogram" "millrace_queue_time_seconds"
        "Time between submission and the start of service, by backend and operation.";
    SERVICE_TIME = "histogram" "millrace_service_time_seconds"
        "Time the backend worked on a job, by backend and operation.";
    USABLE = "gauge" "millrace_backend_usable" "Whether a backend can be used on this machine.";
    QUARANTINED = "gauge" "millrace_backend_quarantined"
        "Whether a backend computed something wrong lately and is passed over.";
    DEVICE_SERVING = "gauge" "millrace_device_serving"
        "Whether a device of a backend, or one instance of it, takes requests.";
    DEVICE_IN_FLIGHT = "gauge" "millrace_device_requests_in_flight" "Requests that a device holds.";
    DEVICE_CAPACITY = "gauge" "millrace_device_requests_possible" "Requests that a device can hold.";
    DEVICE_SLOTS_LOST = "gauge" "millrace_device_slots_lost"
        "Places of requests that were given up, and that a device may still answer.";
    DEVICE_SUBMITTED = "counter" "millrace_device_requests_total" "Requests handed to a device.";
    DEVICE_FULL = "counter" "millrace_device_full_total"
        "Requests that a device refused because it was full.";
    DEVICE_SERVED = "counter" "millrace_device_served_total"
        "Requests to a device that ended with a verified result.";
    DEVICE_FAULTS = "counter" "millrace_device_faults_total"
        "Results of a device that failed verification and were not sent.";
    DEVICE_LOST = "counter" "millrace_device_lost_total"
        "Requests that a device did not answer in time.";
    DEVICE_RESTARTS = "counter" "millrace_device_restarts_total" "Starts of a device after the first.";
    DRAINING = "gauge" "millrace_draining" "Whether the node takes no new jobs.";
    UPTIME = "gauge" "millrace_uptime_seconds" "Time since the node was started.";
    TENANT_OFFERED = "counter" "millrace_tenant_offered_total"
        "Jobs of a tenant that the policy of their key allows.";
    TENANT_ADMITTED = "counter" "millrace_tenant_admitted_total"
        "Of those, jobs handed to the engine.";
    TENANT_BYTES = "counter" "millrace_tenant_bytes_total"
        "Bytes of the inputs of a tenant's admitted jobs.";
    TENANT_THROTTLED = "counter" "millrace_tenant_throttled_total"
        "Jobs of a tenant refused for its quota, by the rate that they exceed.";
    TENANT_OVER_BOUNDS = "counter" "millrace_tenant_over_bounds_total"
        "Jobs of a tenant refused because it holds as much memory as it may.";
    TENANT_SHED = "counter" "millrace_tenant_shed_total"
        "Jobs of a tenant that ended without a result because the node was busy.";
    TENANT_COMPLETED = "counter" "millrace_tenant_completed_total"
        "Jobs of a tenant that ended with a result.";
    TENANT_FAILED = "counter" "millrace_tenant_failed_total"
        "Jobs of a tenant that ended in another way.";
    TENANT_IN_FLIGHT = "gauge" "millrace_tenant_jobs_in_flight"
        "Jobs of a tenant that have not ended.";
    TENANT_CONNECTIONS = "gauge" "millrace_tenant_connections" "Open connections of a tenant.";
    TENANT_QUOTA = "gauge" "millrace_tenant_quota_ops"
        "Operations per second that a tenant may use here; 0: no limit.";
    TENANT_WAIT = "histogram" "millrace_tenant_queue_time_seconds"
        "Time between submission and the start of service of a tenant's jobs.";
    TENANT_SERVICE = "histogram" "millrace_tenant_service_time_seconds"
        "Time the backends worked on a tenant's jobs.";
    BUILD = "gauge" "millrace_build_info" "Always 1; the version is in the label.";
}

/// A snapshot of the engine and the node.
pub(crate) struct Moment<'a> {
    pub(crate) engine: &'a EngineSnapshot,
    pub(crate) backends: &'a [BackendStatus],
    pub(crate) tenants: &'a [AccountSnapshot],
    pub(crate) draining: bool,
    pub(crate) uptime: Duration,
}

/// All metrics in the text format of Prometheus (version 0.0.4).
pub(crate) fn render(metrics: &Metrics, moment: &Moment<'_>) -> String {
    let mut out = String::with_capacity(16 * 1024);
    metrics.render(&mut out);
    let Moment { engine, backends, tenants, draining, uptime } = moment;
    let plain = [
        (SUBMITTED, engine.submitted),
        (INLINE, engine.ran_inline),
        (RETRIED, engine.retried),
        (WRONG, engine.faults),
        (PANICS, engine.panics),
        (DROPPED, engine.dropped),
        (IN_FLIGHT, u64::try_from(engine.in_flight).unwrap_or(u64::MAX)),
        (DRAINING, u64::from(*draining)),
        (UPTIME, uptime.as_secs()),
    ];
    for (description, value) in plain {
        head(&mut out, description);
        line(&mut out, description.name, &[], value);
    }
    head(&mut out, BUILD);
    line(&mut out, BUILD.name, &[("version", env!("CARGO_PKG_VERSION"))], 1);
    head(&mut out, ERRORS);
    for (error, count) in &engine.errors {
        line(&mut out, ERRORS.name, &[("reason", error.name())], count);
    }
    head(&mut out, WAITING);
    for (class, count) in &engine.waiting {
        line(&mut out, WAITING.name, &[("class", class.name())], count);
    }
    render_backends(&mut out, backends);
    render_series(&mut out, engine);
    render_tenants(&mut out, tenants);
    out
}

/// Tenants are configured and bounded ([`MAX_NODE_TENANTS`](crate::tenants::MAX_NODE_TENANTS)), so they may be labels,
/// which identities may not.
fn render_tenants(out: &mut String, tenants: &[AccountSnapshot]) {
    let named = || {
        let names = tenants.iter().map(|row| (row.terms.tenant(), row));
        names.filter_map(|(name, row)| Some((name?, row)))
    };
    type Value = fn(&AccountSnapshot) -> u64;
    let rows: [(MetricDescription, Value); 10] = [
        (TENANT_OFFERED, |row| row.offered),
        (TENANT_ADMITTED, |row| row.admitted),
        (TENANT_BYTES, |row| row.bytes),
        (TENANT_OVER_BOUNDS, |row| row.over_bounds),
        (TENANT_SHED, |row| row.shed),
        (TENANT_COMPLETED, |row| row.completed),
        (TENANT_FAILED, |row| row.failed),
        (TENANT_IN_FLIGHT, |row| row.jobs_in_flight as u64),
        (TENANT_CONNECTIONS, |row| row.connections as u64),
        (TENANT_QUOTA, |row| row.terms.rates.ops.per_second),
    ];
    for (description, value) in rows {
        head(out, description);
        for (tenant, row) in named() {
            line(out, description.name, &[("tenant", tenant)], value(row));
        }
    }
    head(out, TENANT_THROTTLED);
    for (tenant, row) in named() {
        for (exceeded, jobs) in Exceeded::ALL.iter().zip(row.throttled) {
            let labels = [("tenant", tenant), ("rate", exceeded.name())];
            line(out, TENANT_THROTTLED.name, &labels, jobs);
        }
    }
    for (description, wait) in [(TENANT_WAIT, true), (TENANT_SERVICE, false)] {
        head(out, description);
        for (tenant, row) in named() {
            let values = if wait { &row.wait } else { &row.service };
            histogram(out, description.name, &[("tenant", tenant)], values);
        }
    }
}

fn render_backends(out: &mut String, backends: &[BackendStatus]) {
    let mut show = |description: MetricDescription, value: &dyn Fn(&BackendStatus) -> bool| {
        head(out, description);
        for backend in backends {
            let labels = [("backend", backend.description.kind.name())];
            line(out, description.name, &labels, u8::from(value(backend)));
        }
    };
    show(USABLE, &|backend| backend.unusable.is_none());
    show(QUARANTINED, &|backend| backend.quarantined);
    render_devices(out, backends);
}

/// A machine has some tens of devices, so they may be labels.
fn render_devices(out: &mut String, backends: &[BackendStatus]) {
    let size = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
    type Value<'a> = &'a dyn Fn(&BackendDeviceStatus) -> u64;
    let rows: [(MetricDescription, Value<'_>); 10] = [
        (DEVICE_SERVING, &|device| u64::from(device.serving)),
        (DEVICE_IN_FLIGHT, &|device| size(device.in_flight)),
        (DEVICE_CAPACITY, &|device| size(device.capacity)),
        (DEVICE_SLOTS_LOST, &|device| size(device.slots_lost)),
        (DEVICE_SUBMITTED, &|device| device.submitted),
        (DEVICE_FULL, &|device| device.full),
        (DEVICE_SERVED, &|device| device.served),
        (DEVICE_FAULTS, &|device| device.faults),
        (DEVICE_LOST, &|device| device.lost),
        (DEVICE_RESTARTS, &|device| device.restarts),
    ];
    for (description, value) in rows {
        head(out, description);
        for backend in backends {
            for device in &backend.devices {
                let labels = [
                    ("backend", backend.description.kind.name()),
                    ("device", device.name.as_str()),
                ];
                line(out, description.name, &labels, value(device));
            }
        }
    }
}

fn render_series(out: &mut String, engine: &EngineSnapshot) {
    for description in [COMPLETED, FAILED, QUEUE_TIME, SERVICE_TIME] {
        head(out, description);
        for series in &engine.series {
            let labels =
                [("backend", series.backend.name()), ("operation", series.operation.name())];
            match description.name {
                name if name == COMPLETED.name => line(out, name, &labels, series.completed),
                name if name == FAILED.name => line(out, name, &labels, series.failed),
                name if name == QUEUE_TIME.name => {
                    histogram(out, name, &labels, &series.queue_time);
                }
                name => histogram(out, name, &labels, &series.service_time),
            }
        }
    }
}

/// Writes cumulative buckets, one per doubling. The engine keeps four per doubling, more than a graph shows.
fn histogram(out: &mut String, name: &str, labels: &[(&str, &str)], values: &HistogramSnapshot) {
    const PER_DOUBLING: usize = 4;
    let mut seen = 0;
    let buckets: Vec<_> = values.buckets().collect();
    let bucket_name = format!("{name}_bucket");
    for (index, (bound, count)) in buckets.iter().enumerate() {
        seen += count;
        let last = index + 1 == buckets.len();
        if last || (index + 1) % PER_DOUBLING == 0 {
            let bound = if last { "+Inf".to_owned() } else { bound.as_secs_f64().to_string() };
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            line(out, &bucket_name, &labels, seen);
        }
    }
    line(out, &format!("{name}_sum"), labels, values.sum.as_secs_f64());
    line(out, &format!("{name}_count"), labels, seen);
}

fn head(out: &mut String, description: MetricDescription) {
    let MetricDescription { name, kind, doc } = description;
    // Writing to a string cannot fail.
    let _ = write!(out, "# HELP {name} {doc}\n# TYPE {name} {kind}\n");
}

fn line(out: &mut String, name: &str, labels: &[(&str, &str)], value: impl fmt::Display) {
    out.push_str(name);
    for (index, (key, label)) in labels.iter().enumerate() {
        let _ = write!(out, "{}{key}=\"{label}\"", if index == 0 { '{' } else { ',' });
    }
    let _ = writeln!(out, "{} {value}", if labels.is_empty() { "" } else { "}" });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use millrace_engine::stats::{Histogram, SeriesSnapshot};
    use millrace_operation::{BackendKind, Class, OperationKind};

    use super::*;
    use crate::account::Account;
    use crate::settings::Settings;
    use crate::tenants::{Directory, TenantSettings};

    fn snapshot() -> EngineSnapshot {
        let times = Histogram::default();
        times.record(Duration::from_micros(20));
        EngineSnapshot {
            series: vec![SeriesSnapshot {
                backend: BackendKind::Software,
                operation: OperationKind::EcdsaSign,
                completed: 1,
                failed: 0,
                queue_time: times.snapshot(),
                service_time: times.snapshot(),
            }],
            errors: JobError::ALL.iter().map(|error| (*error, 0)).collect(),
            submitted: 1,
            ran_inline: 1,
            retried: 0,
            faults: 0,
            panics: 0,
            dropped: 0,
            waiting: Class::ALL.map(|class| (class, 0)),
            in_flight: 0,
        }
    }

    fn text() -> String {
        let backend = BackendStatus {
            description: millrace_engine::backend::Description {
                kind: BackendKind::Software,
                version: "1".to_owned(),
                on_cpu: true,
                batch: 1,
            },
            unusable: None,
            away: None,
            queues: 0,
            queue_refused: None,
            queues_refused: 0,
            lost: 0,
            devices: vec![BackendDeviceStatus {
                name: "6b:00.1/0".to_owned(),
                serving: true,
                in_flight: 3,
                capacity: 63,
                slots_lost: 0,
                submitted: 9,
                full: 0,
                served: 5,
                faults: 1,
                lost: 0,
                restarts: 0,
            }],
            quarantined: false,
        };
        let settings = Settings {
            tenant: [("acme".to_owned(), TenantSettings::default())].into(),
            ..Settings::default()
        };
        let tenants = Directory::of_settings("node-1", &settings.tenant);
        let accounts = tenants.tenants().map(|terms| {
            let account = Account::new(Arc::clone(terms), Instant::now());
            account.snapshot()
        });
        let moment = Moment {
            engine: &snapshot(),
            backends: &[backend],
            tenants: &accounts.collect::<Vec<_>>(),
            draining: false,
            uptime: Duration::ZERO,
        };
        render(&Metrics::default(), &moment)
    }

    #[test]
    fn every_engine_metric_is_shown_with_a_sample() {
        let text = text();
        for MetricDescription { name, doc, .. } in ENGINE_METRICS {
            assert!(text.contains(&format!("# HELP {name} {doc}\n")), "{name}");
            assert!(text.lines().any(|line| line.starts_with(name)), "{name} has no sample");
        }
    }

    #[test]
    fn every_metric_is_declared_once_with_its_unit() {
        let text = text();
        let mut names: Vec<_> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for line in names {
            let (name, kind) = line.split_once(' ').unwrap();
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            assert!(kind != "histogram" || name.ends_with("_seconds"), "{name}");
        }
    }

    #[test]
    fn histogram_is_cumulative_and_ends_at_infinity() {
        let text = text();
        let buckets: Vec<u64> = text
            .lines()
            .filter(|line| line.starts_with("millrace_service_time_seconds_bucket"))
            .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(buckets.is_sorted());
        assert_eq!((buckets[0], *buckets.last().unwrap()), (0, 1));
        assert!(text.contains("le=\"+Inf\"} 1\n"));
    }
}
