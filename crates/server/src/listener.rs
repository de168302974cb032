// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Sockets that clients connect to, and the identity of a client on a unix socket.
//!
//! The node binds a unix socket under a temporary name and sets its mode and group before it listens. Until
//! it listens the kernel refuses every connection, so no client gets in with the initial permissions. Then
//! the node renames the socket to its path, so that path never shows a socket without a listener. The node
//! replaces the socket of a dead node; a socket with a listener is an error.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener as BlockingListener, UnixStream as BlockingStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with, sockopt,
};
use thiserror::Error;
use tokio::net::{TcpStream, UnixListener, UnixStream};

use crate::config::UnixConfig;

/// The node notices a dead host within about two minutes: a minute of silence, then four probes 15 s apart.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;

/// Why a node cannot listen on a socket.
#[derive(Debug, Error)]
pub enum ListenError {
    /// A system call failed.
    #[error("cannot listen on {}: {source}", path.display())]
    Io {
        /// The path of the socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another process listens on the socket.
    #[error("cannot listen on {}: another process does; stop it, or choose another path", .0.display())]
    InUse(PathBuf),
    /// The path is a file of another kind.
    #[error("cannot listen on {}: there is a file that is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// The group does not exist.
    #[error("cannot listen on {}: there is no group {group:?} in /etc/group", path.display())]
    Group {
        /// The path of the socket.
        path: PathBuf,
        /// The configured group.
        group: String,
    },
}

/// A listening unix socket. Dropping it removes its file.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    listener: Option<UnixListener>,
    path: PathBuf,
    /// Identifies the file: another node may have replaced it at the path.
    inode: u64,
}

impl BoundSocket {
    /// Binds, replacing the socket of a dead process.
    pub(crate) fn bind(config: &UnixConfig) -> Result<Self, ListenError> {
        let UnixConfig { path, mode, group } = config;
        let failed = |source| ListenError::Io {
            path: path.clone(),
            source,
        };
        let group = group
            .as_deref()
            .map(|group| group_id(path, group))
            .transpose()?;
        if let Some(directory) = path.parent() {
            make_directory(directory, group).map_err(failed)?;
        }
        refuse_occupied(path)?;
        let beside = path.with_extension(format!("{}.new", std::process::id()));
        let _ = fs::remove_file(&beside);
        let placed = bind_closed(&beside, *mode, group).and_then(|socket| {
            listen(&socket, BACKLOG)?;
            let listener = UnixListener::from_std(BlockingListener::from(socket))?;
            let inode = fs::symlink_metadata(&beside)?.ino();
            fs::rename(&beside, path)?;
            Ok((listener, inode))
        });
        match placed {
            Ok((listener, inode)) => Ok(Self {
                listener: Some(listener),
                path: path.clone(),
                inode,
            }),
            Err(error) => {
                let _ = fs::remove_file(&beside);
                Err(failed(error))
            }
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<UnixStream> {
        match &self.listener {
            Some(listener) => Ok(listener.accept().await?.0),
            None => std::future::pending().await,
        }
    }

    /// Moves the listener out, for a server that takes ownership. Dropping `self` still removes the file.
    pub(crate) fn take_listener(&mut self) -> Option<UnixListener> {
        self.listener.take()
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|now| now.ino() == self.inode);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Backlog of connections that wait for `accept`: the default of `net.core.somaxconn`, which is the kernel's
/// bound.
const BACKLOG: i32 = 4096;

/// A socket at `path` with its final mode and group. No client can connect before it listens.
fn bind_closed(path: &Path, mode: u32, group: Option<u32>) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&socket, &address)?;
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    if group.is_some() {
        chown(path, None, group)?;
    }
    Ok(socket)
}

/// Leaves an existing directory unchanged. In a new one, the group that may connect has search permission.
fn make_directory(directory: &Path, group: Option<u32>) -> io::Result<()> {
    if directory.as_os_str().is_empty() || directory.is_dir() {
        return Ok(());
    }
    let mode = if group.is_some() { 0o750 } else { 0o755 };
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(directory)?;
    if group.is_some() {
        chown(directory, None, group)
    } else {
        Ok(())
    }
}

fn refuse_occupied(path: &Path) -> Result<(), ListenError> {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.to_owned()));
    }
    match BlockingStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(_) => Err(ListenError::InUse(path.to_owned())),
        Err(source) => Err(ListenError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

/// The number of a group: as configured, or looked up in `/etc/group`. NSS is not used, because it would load
/// foreign libraries into the process that holds the keys.
fn group_id(path: &Path, group: &str) -> Result<u32, ListenError> {
    let unknown = || ListenError::Group {
        path: path.to_owned(),
        group: group.to_owned(),
    };
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let groups = fs::read_to_string("/etc/group").map_err(|_| unknown())?;
    let mut lines = groups.lines().map(|line| line.split(':'));
    let found = lines.find_map(|mut fields| {
        (fields.next() == Some(group))
            .then(|| fields.nth(1)?.parse().ok())
            .flatten()
    });
    found.ok_or_else(unknown)
}

/// The identity of the client on a unix socket, from the credentials that the kernel holds.
pub(crate) fn unix_identity(stream: &UnixStream) -> Option<Arc<str>> {
    let credentials = stream.peer_cred().ok()?;
    Some(format!("uid:{}", credentials.uid()).into())
}

/// Disables Nagle's algorithm, and enables keepalive to end connections with dead hosts.
pub(crate) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn config(directory: &TempDir) -> UnixConfig {
        UnixConfig::at(directory.path().join("run/node.sock"))
    }

    #[tokio::test]
    async fn socket_file_has_its_mode_and_is_removed_on_drop() {
        let directory = TempDir::new().unwrap();
        let config = UnixConfig {
            mode: 0o600,
            ..config(&directory)
        };
        let socket = BoundSocket::bind(&config).unwrap();
        assert_eq!(fs::metadata(&config.path).unwrap().mode() & 0o777, 0o600);
        drop(socket);
        assert!(!config.path.exists());
        assert_eq!(
            fs::read_dir(config.path.parent().unwrap()).unwrap().count(),
            0
        );
    }

    #[test]
    fn connections_are_refused_before_the_socket_listens() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("node.sock");
        let socket = bind_closed(&path, 0o600, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let error = BlockingStream::connect(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        listen(&socket, BACKLOG).unwrap();
        assert!(BlockingStream::connect(&path).is_ok());
    }

    #[tokio::test]
    async fn socket_with_a_listener_is_an_error_and_a_dead_one_is_replaced() {
        let directory = TempDir::new().unwrap();
        let config = config(&directory);
        let living = BoundSocket::bind(&config).unwrap();
        assert!(matches!(
            BoundSocket::bind(&config),
            Err(ListenError::InUse(_))
        ));
        drop(living);
        // Without a listener, its file stays.
        drop(std::os::unix::net::UnixListener::bind(&config.path).unwrap());
        assert!(config.path.exists());
        let socket = BoundSocket::bind(&config).unwrap();
        assert!(BlockingStream::connect(&config.path).is_ok());
        drop(socket);
    }

    #[tokio::test]
    async fn file_that_is_no_socket_is_not_replaced() {
        let directory = TempDir::new().unwrap();
        let config = UnixConfig::at(directory.path().join("file"));
        fs::write(&config.path, b"precious").unwrap();
        assert!(matches!(
            BoundSocket::bind(&config),
            Err(ListenError::NotASocket(_))
        ));
        assert_eq!(fs::read(&config.path).unwrap(), b"precious");
    }

    #[test]
    fn group_is_found_by_name_or_number() {
        let path = Path::new("/x");
        assert_eq!(group_id(path, "root").unwrap(), 0);
        assert_eq!(group_id(path, "123").unwrap(), 123);
        assert!(matches!(
            group_id(path, "no such group"),
            Err(ListenError::Group { .. })
        ));
    }
}
