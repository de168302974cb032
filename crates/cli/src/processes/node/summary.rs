// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What a node says when it is up.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;

use millrace_server::config::{LogFormat, NodeConfig};
use millrace_server::{Node, NodeHandle};

/// The addresses of the node and the next steps for the operator.
pub(super) struct Summary {
    format: LogFormat,
    name: String,
    store: String,
}

impl Summary {
    pub(super) fn of(config: &NodeConfig) -> Self {
        Self {
            format: config.log_format,
            name: config.name.clone(),
            store: config.store.directory.display().to_string(),
        }
    }

    /// Prints it: as text for a person, as one event for a log.
    pub(super) fn tell(self, node: &Node) {
        let handle = node.handle();
        let status = handle.status();
        let Self { format, name, store } = self;
        let unix = node.unix_path().map(|path| {
            let mode = fs::symlink_metadata(path).map_or(0, |file| file.mode() & 0o777);
            format!("{} (mode {mode:04o})", path.display())
        });
        let tcp = node.tcp_address().map(|address| address.to_string());
        let metrics = node.metrics_address().map(|address| format!("http://{address}/metrics"));
        if format == LogFormat::Json {
            tracing::info!(name, unix, tcp, metrics, keys = status.keys, store, "listening");
            return;
        }
        let mut text = format!("millrace node {name} is up\n");
        let facts = [
            ("unix socket", unix),
            ("tcp", tcp.map(|tcp| format!("{tcp} (mutual TLS; millrace cert client NAME -o DIR)"))),
            ("metrics", metrics),
            ("backends", Some(usable(&handle))),
            ("keys", Some(format!("{} in {store}", status.keys))),
        ];
        for (fact, value) in facts.into_iter().filter_map(|(fact, value)| Some((fact, value?))) {
            let _ = writeln!(text, "  {fact:<12} {value}");
        }
        let next =
            if status.keys == 0 { "millrace key import NAME FILE" } else { "millrace status" };
        let _ = writeln!(text, "next: {next}, millrace gateway haproxy");
        note!("{}", text.trim_end());
    }
}

fn usable(handle: &NodeHandle) -> String {
    let backends = handle.status().backends.into_iter();
    let words: Vec<String> = backends
        .map(|backend| match backend.unusable {
            None => format!("{} ({})", backend.backend, backend.version),
            Some(reason) => format!("not {}: {reason}", backend.backend),
        })
        .collect();
    words.join(", ")
}
