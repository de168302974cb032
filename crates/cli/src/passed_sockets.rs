// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Sockets that the service manager opened for the node (the protocol of sd_listen_fds(3)): `LISTEN_FDS` of them,
//! from descriptor 3 on. They outlive the node, so connections wait in the kernel while it restarts.

use anyhow::Result;
use listenfd::ListenFd;
use millrace_server::listener::Inherited;

use crate::exit::{Failure, fail};

/// Takes the sockets and removes their variables from the environment. Call it before any thread starts.
///
/// # Errors
/// There is more than one socket of a kind, or one of another kind.
pub(crate) fn take() -> Result<Inherited> {
    let mut passed = ListenFd::from_env();
    let mut sockets = Inherited::default();
    for index in 0..passed.len() {
        let (kind, second) = if let Ok(Some(unix)) = passed.take_unix_listener(index) {
            ("unix", sockets.unix.replace(unix).is_some())
        } else if let Ok(Some(tcp)) = passed.take_tcp_listener(index) {
            ("TCP", sockets.tcp.replace(tcp).is_some())
        } else {
            let message = format!(
                "socket {index} of LISTEN_FDS is neither a unix nor a TCP stream socket: remove it from the \
                 socket unit"
            );
            return Err(fail(Failure::Usage, message));
        };
        if second {
            let message = format!(
                "LISTEN_FDS has more than one {kind} socket: the node serves one; remove the others from the \
                 socket unit"
            );
            return Err(fail(Failure::Usage, message));
        }
    }
    Ok(sockets)
}
