// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: the text of an endpoint. What parses survives its own text, and a pool takes it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_client::{Endpoint, PoolConfig, TlsConfig};

fuzz_target!(|text: &str| {
    let Ok(endpoint) = text.parse::<Endpoint>() else {
        return;
    };
    let again: Endpoint = endpoint.to_string().parse().expect("an endpoint survives its text");
    assert_eq!(again, endpoint);
    let tls = TlsConfig { ca: "/ca".into(), ..TlsConfig::default() };
    let endpoint = endpoint.with_tls(tls.clone());
    match &endpoint {
        Endpoint::Unix(path) => assert!(!path.as_os_str().is_empty()),
        Endpoint::Tcp { host, port, tls: with } => {
            assert!(!host.is_empty() && *port != 0 && *with == tls);
        }
    }
    assert!(PoolConfig::new(vec![endpoint]).agent(text).check().is_ok());
});
