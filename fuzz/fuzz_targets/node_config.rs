// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a `node.toml`. What is accepted keeps the promises of its bounds.
#![no_main]

use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use millrace_server::config::{MAX_NODE_NAME_LEN, NodeConfig};
use millrace_service::settings::MAX_CONNECTIONS;

fuzz_target!(|text: &str| {
    let config = match NodeConfig::from_toml(text) {
        Ok(config) => config,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert!((1..=MAX_NODE_NAME_LEN).contains(&config.name.len()));
    assert!(!config.name.contains(char::is_control));
    assert!(config.unix.is_some() || config.tcp.is_some());
    assert!(config.unix.is_none_or(|unix| unix.mode <= 0o777 && unix.path.is_absolute()));
    assert!(config.metrics.is_none_or(|address| address.ip().is_loopback()));
    let limits = config.settings.limits;
    assert!((1..=MAX_CONNECTIONS).contains(&limits.connections));
    assert!(limits.in_flight > 0 && limits.keys > 0 && limits.connections_per_identity > 0);
    assert!(config.engine.workers > 0 && config.engine.queue_limit > 0);
    // The node adds these to the clock.
    for time in [
        limits.handshake_timeout,
        limits.write_timeout,
        limits.idle_timeout,
        limits.max_budget + Duration::from_secs(1),
        config.drain_timeout,
    ] {
        assert!(Instant::now().checked_add(time).is_some());
    }
});
