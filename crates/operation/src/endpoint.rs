// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The text of a node's address, `unix:/path` or `tcp:host:port`: the client reads what commands write, by one parser.

use std::net::IpAddr;

/// The parts of a node's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointParts<'a> {
    /// The path of a unix socket.
    Unix(&'a str),
    /// A host and its port.
    Tcp {
        /// A name or an address; an IPv6 address without its brackets.
        host: &'a str,
        /// Not 0.
        port: u16,
    },
}

impl<'a> EndpointParts<'a> {
    /// Parses an address. An IPv6 address stands in brackets: `tcp:[::1]:7400`.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            return (!path.is_empty()).then_some(Self::Unix(path));
        }
        let (host, port) = text.strip_prefix("tcp:")?.rsplit_once(':')?;
        let port: u16 = port.parse().ok().filter(|port| *port != 0)?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').filter(|ip| ip.parse::<IpAddr>().is_ok())?,
            None => Some(host).filter(|host| !host.is_empty() && !host.contains(':'))?,
        };
        Some(Self::Tcp { host, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_path_or_a_host_and_a_port() {
        let tcp = |host, port| Some(EndpointParts::Tcp { host, port });
        for (text, parts) in [
            ("unix:/run/millrace/node.sock", Some(EndpointParts::Unix("/run/millrace/node.sock"))),
            ("tcp:node-1:4433", tcp("node-1", 4433)),
            ("tcp:[::1]:65535", tcp("::1", 65535)),
            ("tcp:[192.0.2.1]:1", tcp("192.0.2.1", 1)),
        ] {
            assert_eq!(EndpointParts::parse(text), parts, "{text}");
        }
        let bad =
            ["", "unix:", "tcp:", "tcp:host", "tcp::1", "tcp:a:0", "tcp:a:65536", "tcp:::1:5"];
        for text in bad.into_iter().chain(["tcp:[::1:5", "tcp:[x]:5", "/run/x", "udp:a:1"]) {
            assert_eq!(EndpointParts::parse(text), None, "{text}");
        }
    }
}
