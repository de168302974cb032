// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The control sockets of tunnel processes: OpenVPN's management interface and charon's vici, with the same commands
//! and the same lines for the machine.

use crate::ipsec::vici::{self, ViciFrames};
use crate::management::{self, ManagementLine, ManagementLines};
use crate::plan::MemberEngine;

/// Request of a supervisor to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControlRequest {
    /// Report states and bytes from now on.
    Subscribe,
    /// Give a sign of life.
    Ask,
    /// Reconnect the tunnel.
    Reconnect,
    /// Say goodbye to the peer, and end.
    Stop,
}

/// The reader of a process's control socket.
#[derive(Debug)]
pub(super) enum ControlReader {
    OpenVpn(ManagementLines),
    Charon(ViciFrames),
}

impl ControlReader {
    pub(super) fn new(engine: MemberEngine) -> Self {
        match engine {
            MemberEngine::OpenVpn => Self::OpenVpn(ManagementLines::default()),
            MemberEngine::Charon => Self::Charon(ViciFrames::default()),
        }
    }

    /// Parses bytes from the socket; `None` if the process broke the protocol, so that no more can be read.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Option<Vec<ManagementLine>> {
        match self {
            Self::OpenVpn(lines) => Some(lines.push(bytes)),
            Self::Charon(frames) => {
                let lines = frames.push(bytes);
                (!frames.is_broken()).then_some(lines)
            }
        }
    }

    /// The bytes that end a connection of which one too many stands.
    pub(super) fn take_superfluous(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::OpenVpn(_) => None,
            Self::Charon(frames) => frames.take_superfluous().map(|number| vici::end(&number)),
        }
    }

    /// The bytes of a request; `None` if the process takes it by a signal only.
    pub(super) fn request(&self, request: ControlRequest, link: &str) -> Option<Vec<u8>> {
        use ControlRequest::{Ask, Reconnect, Stop, Subscribe};
        let text = |text: &str| Some(text.as_bytes().to_vec());
        match (self, request) {
            (Self::OpenVpn(_), Subscribe) => text(management::SUBSCRIBE),
            (Self::OpenVpn(_), Ask) => text(management::PING),
            (Self::OpenVpn(_), Reconnect) => text(management::RECONNECT),
            (Self::OpenVpn(_), Stop) => text(management::STOP),
            (Self::Charon(_), Subscribe) => Some(vici::subscribe()),
            (Self::Charon(_), Ask) => Some(vici::ask(link)),
            (Self::Charon(_), Reconnect) => Some(vici::reconnect(link)),
            (Self::Charon(_), Stop) => None,
        }
    }
}
