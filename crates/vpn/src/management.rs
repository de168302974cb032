// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Lines of OpenVPN's management interface (management-notes.txt in its sources).

/// Bound on a line, in bytes: a state line has a hundred. Longer lines are cut off.
const MAX_LINE: usize = 4096;

/// The state of a tunnel process as OpenVPN names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelState {
    /// The process sends the first packets, or waits for the peer: CONNECTING, WAIT, RESOLVE, TCP_CONNECT.
    Connecting,
    /// The process does the TLS handshake or configures itself: AUTH, GET_CONFIG, ASSIGN_IP, ADD_ROUTES, AUTH_PENDING.
    Handshaking,
    /// CONNECTED.
    Connected,
    /// The process reconnects: RECONNECTING.
    Reconnecting,
    /// EXITING.
    Exiting,
    /// No connection, and none that begins: charon after a failed authentication. OpenVPN tries for ever.
    Idle,
}

/// A line of the interface that a supervisor uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManagementLine {
    /// The state, with the reason of a RECONNECTING or EXITING.
    State(TunnelState, String),
    /// Bytes of the UDP socket since the start of the process.
    Bytes {
        /// Bytes that it received.
        received: u64,
        /// Bytes that it sent.
        sent: u64,
    },
    /// The answer to `pid`: proves that the event loop runs.
    Pid(u32),
    /// A fatal error, after which the process ends.
    Fatal(String),
    /// Any other line.
    Other,
}

/// The commands that a supervisor sends first: report every state, count bytes each second.
pub const SUBSCRIBE: &str = "state on all\nbytecount 1\n";

/// A command whose answer is [`ManagementLine::Pid`].
pub const PING: &str = "pid\n";

/// A command that makes the process reconnect and keep its device.
pub const RECONNECT: &str = "signal SIGUSR1\n";

/// A command that makes the process say goodbye to its peer and end.
pub const STOP: &str = "signal SIGTERM\n";

impl ManagementLine {
    /// Reads one line, without its end.
    #[must_use]
    pub fn parse(line: &str) -> Self {
        let line = line.trim_end_matches(['\r', '\n']);
        let parsed = if let Some(state) = line.strip_prefix(">STATE:") {
            parse_state(state)
        } else if let Some(bytes) = line.strip_prefix(">BYTECOUNT:") {
            parse_bytes(bytes)
        } else if let Some(pid) = line.strip_prefix("SUCCESS: pid=") {
            pid.parse().ok().map(Self::Pid)
        } else if let Some(reason) = line.strip_prefix(">FATAL:") {
            Some(Self::Fatal(reason.to_owned()))
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            // The former states, in answer to `state on all`.
            parse_state(line)
        } else {
            None
        };
        parsed.unwrap_or(Self::Other)
    }
}

/// `1795373801,CONNECTED,SUCCESS,,198.18.0.2,500,198.18.0.1,500`
fn parse_state(text: &str) -> Option<ManagementLine> {
    let mut fields = text.split(',');
    fields.next()?.parse::<u64>().ok()?;
    let state = match fields.next()? {
        "CONNECTING" | "WAIT" | "RESOLVE" | "TCP_CONNECT" => TunnelState::Connecting,
        "AUTH" | "AUTH_PENDING" | "GET_CONFIG" | "ASSIGN_IP" | "ADD_ROUTES" => {
            TunnelState::Handshaking
        }
        "CONNECTED" => TunnelState::Connected,
        "RECONNECTING" => TunnelState::Reconnecting,
        "EXITING" => TunnelState::Exiting,
        _ => return None,
    };
    Some(ManagementLine::State(state, fields.next().unwrap_or_default().to_owned()))
}

fn parse_bytes(text: &str) -> Option<ManagementLine> {
    let (received, sent) = text.split_once(',')?;
    Some(ManagementLine::Bytes { received: received.parse().ok()?, sent: sent.parse().ok()? })
}

/// Bytes of a socket, cut into lines.
#[derive(Debug, Default)]
pub struct ManagementLines {
    rest: Vec<u8>,
    /// Whether the line in `rest` was too long and is skipped up to its end.
    skipping: bool,
}

impl ManagementLines {
    /// Adds bytes and returns the lines that are complete now.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<ManagementLine> {
        let mut lines = Vec::new();
        for byte in bytes {
            if *byte == b'\n' {
                if !self.skipping {
                    lines.push(ManagementLine::parse(&String::from_utf8_lossy(&self.rest)));
                }
                self.rest.clear();
                self.skipping = false;
            } else if self.rest.len() < MAX_LINE {
                self.rest.push(*byte);
            } else {
                self.skipping = true;
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The conversation with OpenVPN 2.6.14 of Debian 12, point to point.
    const RECORDED: &str = ">INFO:OpenVPN Management Interface Version 5 -- type 'help' for more info\r\n\
        SUCCESS: real-time state notification set to ON\r\n\
        1795373800,CONNECTING,,,,,,\r\n\
        1795373800,AUTH,,,,,,\r\n\
        1795373801,CONNECTED,SUCCESS,,198.18.0.2,500,198.18.0.1,500\r\n\
        END\r\n\
        >BYTECOUNT:1872,1945\r\n\
        SUCCESS: pid=23807\r\n\
        >STATE:1795373900,RECONNECTING,ping-restart,,,,,\r\n\
        >FATAL:Cannot open TUN/TAP dev /dev/net/tun\r\n";

    fn expected() -> Vec<ManagementLine> {
        use TunnelState::{Connected, Connecting, Handshaking, Reconnecting};
        let state = |state, reason: &str| ManagementLine::State(state, reason.to_owned());
        vec![
            ManagementLine::Other,
            ManagementLine::Other,
            state(Connecting, ""),
            state(Handshaking, ""),
            state(Connected, "SUCCESS"),
            ManagementLine::Other,
            ManagementLine::Bytes { received: 1872, sent: 1945 },
            ManagementLine::Pid(23807),
            state(Reconnecting, "ping-restart"),
            ManagementLine::Fatal("Cannot open TUN/TAP dev /dev/net/tun".to_owned()),
        ]
    }

    #[test]
    fn recorded_conversation_is_read_in_any_pieces() {
        for size in [1, 7, 4096] {
            let mut lines = ManagementLines::default();
            let read: Vec<ManagementLine> =
                RECORDED.as_bytes().chunks(size).flat_map(|piece| lines.push(piece)).collect();
            assert_eq!(read, expected(), "pieces of {size}");
        }
    }

    #[test]
    fn line_without_end_takes_bounded_memory_and_is_skipped() {
        let mut lines = ManagementLines::default();
        assert_eq!(lines.push(&vec![b'x'; 100_000]), []);
        assert!(lines.rest.len() <= MAX_LINE);
        assert_eq!(lines.push(b"\nSUCCESS: pid=1\n"), [ManagementLine::Pid(1)]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            ManagementLines::default().push(&bytes);
        }

        #[test]
        fn counters_are_read_as_printed(received: u64, sent: u64) {
            let line = ManagementLine::parse(&format!(">BYTECOUNT:{received},{sent}"));
            prop_assert_eq!(line, ManagementLine::Bytes { received, sent });
        }
    }
}
