// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Throughput of backends and placement of workers: `bench crypto` in its shortest form, and `up --pin`.

use std::fs;
use std::thread;
use std::time::Instant;

use serde_json::Value;

use crate::schema::assert_valid;
use crate::support::{Place, SOON};

#[test]
fn bench_crypto_measures_checks_and_draws() {
    let place = Place::new();
    let svg = place.path("crypto.svg");
    let outcome = place.run(&[
        "bench",
        "crypto",
        "--operations",
        "rsa-pkcs1-sign,ecdh-derive",
        "--keys",
        "rsa-2048,p-256",
        "--rounds",
        "1",
        "--duration",
        "0.01",
        "--loads",
        "50",
        "--workers",
        "1",
        "--json",
        "--svg",
        svg.to_str().unwrap(),
    ]);
    let report: Value = serde_json::from_str(&outcome.done().data).unwrap();
    assert_eq!(report["benchmark"], "crypto");
    assert_valid(&outcome.data, "bench");
    let rates = report["rates"].as_array().unwrap();
    assert_eq!(rates.len(), 2);
    for measured in rates {
        let series = measured["series"].as_array().unwrap();
        assert!(series.len() >= 2, "the library and a backend: {measured}");
        for one in series {
            assert!(one["rates"][0].as_f64().unwrap() > 0.0, "{one}");
        }
        assert!(measured["openssl"][0].as_f64().unwrap() > 0.0);
    }
    let loads = report["loads"].as_array().unwrap();
    for loaded in loads {
        let at = &loaded["rounds"][0]["loads"][0];
        assert_eq!(at["percent"], 50);
        assert!(at["p99_us"].as_f64().unwrap() >= at["p50_us"].as_f64().unwrap());
    }
    // A batching backend (with lanes) also has results through a node, with bounds on them.
    let nodes = report["nodes"].as_array().unwrap();
    if !nodes.is_empty() {
        assert_eq!(nodes[0]["workers"], 1);
        assert!(nodes[0]["rounds"][0]["node_per_s"].as_f64().unwrap() > 0.0);
        assert!(!report["goals"].as_array().unwrap().is_empty());
    }
    assert!(fs::read_to_string(svg).unwrap().contains("</svg>"));
}

#[test]
fn bench_pool_compares_node_and_library_with_every_worker_count() {
    let place = Place::new();
    let pool = ["bench", "pool", "--operations", "ecdsa-sign", "--rounds", "1"];
    let short = ["--duration", "0.1", "--depths", "4", "--workers", "1,2", "--json"];
    let outcome = place.run(&[&pool[..], &short].concat());
    let report: Value = serde_json::from_str(&outcome.done().data).unwrap();
    let round = &report["operations"][0]["rounds"][0];
    assert!(round["queue_per_s"].as_f64().unwrap() > 0.0, "{round}");
    let nodes = round["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 2);
    for (node, workers) in nodes.iter().zip(1..) {
        assert_eq!(node["workers"], workers);
        assert!(node["jobs"].as_u64().unwrap() > 0, "{node}");
    }
    let goals = report["goals"].as_array().unwrap();
    let promised = goals.iter().filter(|goal| !goal["reached"].is_null());
    assert_eq!(promised.count(), goals.len() / 2, "only one worker is promised: {goals:?}");
    // The failure names the figure that was not reached.
    let missed = place.run(&[&pool[..], &short[..6], &["--require", "aim"]].concat());
    if missed.code != 0 {
        assert!(missed.talk.contains("not reached (aim): "), "{}", missed.talk);
    }
}

#[test]
fn bench_pool_measures_a_victim_under_a_flood() {
    let place = Place::new();
    let fairness = ["bench", "pool", "--fairness", "--rounds", "1", "--duration", "1"];
    let flood = ["--flood-connections", "2", "--flood-jobs", "8", "--workers", "1", "--json"];
    let outcome = place.run(&[&fairness[..], &flood].concat());
    let report: Value = serde_json::from_str(&outcome.done().data).unwrap();
    let measured = &report["measured"][0];
    assert_eq!(measured["operation"], "rsa-pkcs1-sign");
    let round = &measured["rounds"][0];
    for victim in ["alone", "flooded"] {
        assert!(round[victim]["p99_us"].as_f64().unwrap() > 0.0, "{round}");
    }
    assert!(round["flood_per_s"].as_f64().unwrap() > 0.0, "{round}");
}

#[test]
fn bench_sizes_prints_published_figures_as_json() {
    let printed = Place::new().run(&["bench", "sizes", "--reference", "--json"]);
    let rows: Value = serde_json::from_str(&printed.done().data).unwrap();
    assert_eq!(rows[0]["sizes"].as_array().unwrap().len(), 5, "{rows}");
}

#[test]
fn bench_crypto_reports_what_it_cannot_measure() {
    let place = Place::new();
    place.run(&["bench", "crypto", "--operations", "sing"]).failed(2, &["sing", "ecdsa-sign"]);
    let wrong = place.run(&["bench", "crypto", "--keys", "x25519", "--operations", "rsa-raw"]);
    assert_ne!(wrong.code, 0);
    assert!(wrong.talk.contains("leave out"), "{}", wrong.talk);
    place.run(&["bench", "crypto", "--rounds", "0"]).failed(2, &["a number from 1 to 100"]);
    let missing = ["bench", "sizes", "--compare", "/nonexistent", "/nonexistent"];
    place.run(&missing).failed(2, &["cannot read /nonexistent"]);
    let none = place.run(&["bench", "crypto", "--backends", "kernel"]);
    assert_ne!(none.code, 0);
    assert!(none.talk.contains("--backends kernel"), "{}", none.talk);
}

/// The processors of each worker of a process.
fn workers(id: u32) -> Vec<String> {
    let mut workers = Vec::new();
    for task in fs::read_dir(format!("/proc/{id}/task")).unwrap().flatten() {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        let name = field("Name:");
        // A class's extra thread for new jobs (`mr-CLASS-new`) is not pinned.
        let number = ["mr-fast-", "mr-medium-", "mr-slow-"]
            .iter()
            .find_map(|class| name.strip_prefix(class));
        if number.is_some_and(|number| number.parse::<usize>().is_ok()) {
            workers.push(field("Cpus_allowed_list:"));
        }
    }
    workers
}

#[test]
fn workers_are_pinned_to_cores_if_requested() {
    let place = Place::new();
    let node = place.up(&["--pin", "core"]);
    let started = Instant::now();
    loop {
        let workers = workers(node.child.id());
        let pinned = |list: &String| list.parse::<usize>().is_ok();
        if workers.len() >= 3 && workers.iter().all(pinned) {
            break;
        }
        assert!(started.elapsed() < SOON, "{workers:?}");
        thread::yield_now();
    }
}

#[test]
fn node_without_pinning_lets_the_system_place_workers() {
    let place = Place::new();
    let node = place.up(&["--pin", "off"]);
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(str::trim);
    for worker in workers(node.child.id()) {
        assert_eq!(Some(worker.as_str()), own);
    }
}
