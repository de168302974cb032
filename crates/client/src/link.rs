// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A socket to a node, with or without TLS. Non-blocking throughout; closed on exec. Every write says
//! `MSG_NOSIGNAL`, since the process around us may not ignore `SIGPIPE`.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use rustls::ClientConnection;
use rustls_pki_types::{CertificateDer, ServerName};
use thiserror::Error;

use crate::buffer::OutBuffer;
use crate::config::{Endpoint, TlsConfig};
use crate::refused::{self, RefusedStep};
use crate::tls::{self, TlsFailure, TlsSetupError};
use crate::trust;

/// Why there is no connection to a node. [`crate::NodeStats::last_error`] shows its text.
#[derive(Debug, Error)]
pub(crate) enum LinkError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Refused(RefusedStep),
    #[error("the node closed the connection")]
    Closed,
    #[error("`{host}` does not resolve: {error}")]
    Unresolved { host: String, error: io::Error },
    #[error("`{0}` has no address")]
    NoAddress(String),
    #[error("`{0}` cannot be the name in a certificate")]
    ServerName(String),
    #[error(transparent)]
    TlsSetup(#[from] TlsSetupError),
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// One socket, connected or connecting.
pub(crate) struct NodeSocket {
    fd: OwnedFd,
    tls: Option<Box<ClientConnection>>,
    connecting: bool,
    /// Whether the last write filled the socket.
    blocked: bool,
    /// Why no private key may be sent over it. `None` if one may.
    distrust: Option<String>,
}

impl NodeSocket {
    /// Starts a connection. Only the resolution of a name may block.
    pub(crate) fn connect(endpoint: &Endpoint, attempt: usize) -> Result<Self, LinkError> {
        match endpoint {
            Endpoint::Unix(path) => connect_unix(endpoint, path),
            Endpoint::Tcp { host, port, tls } => connect_tcp(host, *port, tls, attempt),
        }
    }

    /// Why no private key may be sent over this connection. A node over TCP has shown its certificate before
    /// anything is sent.
    pub(crate) fn distrust(&self) -> Option<&String> {
        self.distrust.as_ref()
    }

    /// Whether the connection may be finished by [`Self::finish_connect`] when it becomes writable.
    pub(crate) fn is_connecting(&self) -> bool {
        self.connecting
    }

    /// The socket became writable for the first time.
    ///
    /// # Errors
    /// What connect(2) failed with, unreachable or refused.
    pub(crate) fn finish_connect(&mut self) -> io::Result<()> {
        self.connecting = false;
        sockopt::socket_error(&self.fd)?.map_err(io::Error::from)
    }

    /// Whether to wait until the socket is writable.
    pub(crate) fn wants_write(&self) -> bool {
        self.connecting || self.blocked
    }

    /// Sends as much as the socket takes.
    pub(crate) fn flush(&mut self, out: Option<&mut OutBuffer>) -> io::Result<()> {
        if self.connecting {
            return Ok(());
        }
        let done = match &mut self.tls {
            None => out.map_or(Ok(()), |out| flush_plain(&self.fd, out)),
            Some(tls) => flush_tls(&self.fd, tls, out),
        };
        match done {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.blocked = true;
                Ok(())
            }
            other => {
                self.blocked = false;
                other
            }
        }
    }

    /// Reads once; 0 is the end.
    ///
    /// # Errors
    /// `WouldBlock` when there is nothing now; anything else breaks the connection.
    pub(crate) fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => Socket(&self.fd).read(space),
            Some(tls) => read_tls(&self.fd, tls, space),
        }
    }

    /// Whether decrypted bytes are still to be read: the socket does not become readable for those.
    pub(crate) fn holds_plaintext(&mut self) -> bool {
        self.tls.as_mut().is_some_and(|tls| {
            tls.process_new_packets().is_ok_and(|state| state.plaintext_bytes_to_read() > 0)
        })
    }

    /// The node's certificate, once the TLS handshake is over.
    pub(crate) fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        self.tls.as_ref()?.peer_certificates()?.first()
    }

    /// Whether a short read means that nothing more is there.
    pub(crate) fn short_read_is_last(&self) -> bool {
        self.tls.is_none()
    }
}

impl AsFd for NodeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn flush_plain(fd: &OwnedFd, out: &mut OutBuffer) -> io::Result<()> {
    while !out.is_empty() {
        let n = Socket(fd).write(out.pending())?;
        out.consume(n);
    }
    Ok(())
}

fn flush_tls(
    fd: &OwnedFd,
    tls: &mut ClientConnection,
    mut out: Option<&mut OutBuffer>,
) -> io::Result<()> {
    loop {
        while tls.wants_write() {
            tls.write_tls(&mut Socket(fd))?;
        }
        // Before the handshake is over, rustls would keep what it is given as plaintext.
        let Some(out) = out.as_deref_mut().filter(|out| !out.is_empty()) else {
            return Ok(());
        };
        if tls.is_handshaking() {
            return Ok(());
        }
        let n = tls.writer().write(out.pending())?;
        out.consume(n);
        if n == 0 && !tls.wants_write() {
            return Err(io::Error::other("TLS takes no data"));
        }
    }
}

fn read_tls(fd: &OwnedFd, tls: &mut ClientConnection, space: &mut [u8]) -> io::Result<usize> {
    loop {
        match tls.reader().read(space) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
        if tls.read_tls(&mut Socket(fd))? == 0 {
            return if tls.is_handshaking() {
                Err(io::Error::other("the node closed the connection during the TLS handshake"))
            } else {
                Ok(0)
            };
        }
        let handshaking = tls.is_handshaking();
        if let Err(error) = tls.process_new_packets() {
            // Sends the TLS alert, if the node still reads; the reason is known already.
            let _ = tls.write_tls(&mut Socket(fd));
            return Err(io::Error::other(TlsFailure(error)));
        }
        if handshaking && !tls.is_handshaking() && tls.alpn_protocol() != Some(millrace_wire::ALPN)
        {
            return Err(io::Error::other("the server does not speak Millrace (ALPN)"));
        }
    }
}

/// Reads and writes the socket below TLS.
struct Socket<'a>(&'a OwnedFd);

impl Read for Socket<'_> {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let (_, n) = rustix::io::retry_on_intr(|| recv(self.0, &mut *space, RecvFlags::DONTWAIT))?;
        Ok(n)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        Ok(rustix::io::retry_on_intr(|| send(self.0, bytes, flags))?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn stream(family: AddressFamily, name: &str) -> Result<OwnedFd, LinkError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(family, SocketType::STREAM, flags, None)
        .map_err(|error| explained(refused::socket(name, error), error))
}

/// The error with its cause, if that is known.
fn explained(refused: Option<RefusedStep>, error: Errno) -> LinkError {
    refused.map_or_else(|| LinkError::Io(error.into()), LinkError::Refused)
}

fn connect_unix(endpoint: &Endpoint, path: &Path) -> Result<NodeSocket, LinkError> {
    trust::check_way(path)
        .map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
    let fd = stream(AddressFamily::UNIX, "AF_UNIX")?;
    // A full backlog is an error here (`EAGAIN`), not a wait: the next attempt comes soon.
    let address = SocketAddrUnix::new(path).map_err(io::Error::from)?;
    connect(&fd, &address).map_err(|error| explained(refused::unix(path, error), error))?;
    let distrust = trust::objection(&fd, path).map(|why| format!("{endpoint}: {why}"));
    Ok(NodeSocket { fd, tls: None, connecting: false, blocked: false, distrust })
}

fn connect_tcp(
    host: &str,
    port: u16,
    tls: &TlsConfig,
    attempt: usize,
) -> Result<NodeSocket, LinkError> {
    let config = tls::client_config(tls)?;
    let name = tls.server_name.as_deref().unwrap_or(host);
    let name = ServerName::try_from(name.to_owned())
        .map_err(|_| LinkError::ServerName(name.to_owned()))?;
    let tls = ClientConnection::new(Arc::new(config), name)?;
    let address = resolve(host, port, attempt)?;
    let fd = start_tcp(address)?;
    Ok(NodeSocket {
        fd,
        tls: Some(Box::new(tls)),
        connecting: true,
        blocked: false,
        distrust: None,
    })
}

/// One address of a name: each attempt takes the next one.
fn resolve(host: &str, port: u16, attempt: usize) -> Result<SocketAddr, LinkError> {
    let addresses: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(|error| LinkError::Unresolved { host: host.to_owned(), error })?
        .collect();
    if addresses.is_empty() {
        return Err(LinkError::NoAddress(host.to_owned()));
    }
    Ok(addresses[attempt % addresses.len()])
}

fn start_tcp(address: SocketAddr) -> Result<OwnedFd, LinkError> {
    let fd = match address {
        SocketAddr::V4(_) => stream(AddressFamily::INET, "AF_INET"),
        SocketAddr::V6(_) => stream(AddressFamily::INET6, "AF_INET6"),
    }?;
    sockopt::set_tcp_nodelay(&fd, true).map_err(io::Error::from)?;
    // Detects peers that vanished while nothing was in flight.
    sockopt::set_socket_keepalive(&fd, true).map_err(io::Error::from)?;
    match connect(&fd, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(error) => Err(explained(refused::tcp(error), error)),
    }
}
