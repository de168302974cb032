// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Tests that each metric changes with the event that it counts.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{ECDSA_SIGN, Setup, eventually, job, my_uid};
use millrace_backends::software::Software;
use millrace_operation::JobError;
use millrace_service::policy::KeyPolicy;
use millrace_testkit::keys;
use millrace_wire::{
    ClientMessage, EdgeCounter, EdgeReport, FEATURE_DEVICE_COUNTERS, FEATURE_REPORTS, Fault, Hello,
    NodeMessage,
};

/// Metrics that stay 0 on a healthy node with one backend, or show a state that this test does not cause.
const MAY_STAY_ZERO: [&str; 9] = [
    "millrace_tasks_failed_total",
    "millrace_jobs_retried_total",
    "millrace_backend_faults_total",
    "millrace_backend_panics_total",
    "millrace_completions_dropped_total",
    "millrace_jobs_waiting",
    "millrace_jobs_in_flight",
    "millrace_backend_quarantined",
    "millrace_draining",
];

/// The sum of the samples of each metric.
fn sums(text: &str) -> BTreeMap<&str, f64> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names = types.map(|line| line.split(' ').next().unwrap());
    let sum = |name: &str| {
        let samples = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with([' ', '{', '_']))
        });
        samples.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    names.map(|name| (name, sum(name))).collect()
}

#[test]
fn every_metric_moves_with_its_event() {
    let mut setup = Setup::new();
    setup.config.settings.limits.connections_per_identity = 2;
    setup.import("www", &keys::p_256(), KeyPolicy::signing(["*"]));
    std::fs::write(setup.config.store.directory.join("broken.key"), b"rubbish").unwrap();
    let node = setup.start_with(Arc::new(Software::new()));
    let service = node.handle.service();

    // A client that reports, opens keys, is refused a key, signs, and submits invalid jobs.
    let mut client = node.silent();
    client.send(&ClientMessage::Hello(Hello {
        min_version: 1,
        max_version: 1,
        features: FEATURE_REPORTS | FEATURE_DEVICE_COUNTERS,
        agent: "edge".to_owned(),
    }));
    assert!(matches!(client.receive(), NodeMessage::Welcome(_)));
    let mut report = EdgeReport::default();
    for counter in EdgeCounter::ALL {
        report.set(*counter, 1);
    }
    client.send(&ClientMessage::Report(Box::new(report)));
    let key = client.open("www");
    assert!(matches!(client.ask("nothing"), NodeMessage::KeyRefused { .. }));
    assert!(client.run(key, &ECDSA_SIGN, &[7; 32]).is_ok());
    assert!(client.run(key, &ECDSA_SIGN, &[7; 3]).is_err());
    let refused = client.run(key + 1, &ECDSA_SIGN, &[7; 32]);
    assert_eq!(refused, Err(JobError::NoSuchKey));

    // A client with a fault (one id for two jobs), and one above the connection limit.
    let mut faulty = node.connect();
    faulty.submit(&[job(5, key, &ECDSA_SIGN, &[7; 32]), job(5, key, &ECDSA_SIGN, &[7; 32])]);
    while !matches!(faulty.receive(), NodeMessage::Fault(_)) {}
    eventually(|| service.sessions().len() == 1);
    let _second = node.connect();
    assert_eq!(node.silent().fault(), Fault::TooManyConnections, "{}", my_uid());

    // Invalid settings, then valid ones.
    let mut settings = service.settings().settings.clone();
    settings.limits.keys = 0;
    assert!(service.apply(settings.clone(), "test").is_err());
    settings.limits.keys = 1;
    assert!(service.apply(settings, "test").is_ok());

    // The node has been up for a second, and has written all that this test received.
    eventually(|| node.handle.status().uptime_seconds > 0);
    let text = service.render_metrics();
    let sums = sums(&text);
    assert!(sums.len() > 35, "{}", sums.len());
    for (name, sum) in sums {
        // There is no tenant and no device here.
        let is_absent =
            ["millrace_tenant_", "millrace_device_"].iter().any(|start| name.starts_with(start));
        assert!(sum > 0.0 || is_absent || MAY_STAY_ZERO.contains(&name), "nothing moves {name}");
    }
}
