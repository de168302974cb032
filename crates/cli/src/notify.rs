// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reports the state of the node to a service manager (the protocol of sd_notify(3)): one datagram per
//! message to the socket named by `NOTIFY_SOCKET`. Without that variable it does nothing.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The node serves.
pub(crate) const READY: &str = "READY=1";
/// The node drains and ends.
pub(crate) const STOPPING: &str = "STOPPING=1";

/// Sends a message to the service manager, if there is one. A failure to send is only logged.
pub(crate) fn service_manager(message: &str) {
    let Some(target) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&target, message) {
        tracing::warn!(%error, "the service manager was not told: {message}");
    }
}

/// `target` is a path, or `@name` for the abstract namespace.
fn send(target: &OsStr, message: &str) -> io::Result<()> {
    let address = match target.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(target)?,
    };
    UnixDatagram::unbound()?
        .send_to_addr(message.as_bytes(), &address)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_arrives_at_a_path_and_in_the_abstract_namespace() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify.sock");
        let by_path = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), READY).unwrap();
        let name = format!("millrace-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), READY).unwrap();
        for socket in [by_path, by_name] {
            let mut buffer = [0; 32];
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], READY.as_bytes());
        }
    }
}
