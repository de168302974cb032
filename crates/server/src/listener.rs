// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Sockets that clients connect to, and the identity of a client on a unix socket.
//!
//! The node binds a unix socket under a temporary name, with its final mode, and sets its group before it
//! listens. Until it listens the kernel refuses every connection, so no client gets in with the initial group.
//! Then the node renames the socket to its path, so that path never shows a socket without a listener. The node
//! replaces the socket of a dead node; a socket with a listener is an error.
//!
//! A service manager may open the sockets instead ([`Inherited`]). They outlive the node: connections wait in the
//! kernel while the node restarts.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::net::TcpListener as BlockingTcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown, lchown};
use std::os::unix::net::{UnixListener as BlockingListener, UnixStream as BlockingStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millrace_hostfs::trusted::{self, Untrusted};
use millrace_service::admission::PlaceSource;
use rustix::fs::{Mode, fchmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with, sockopt,
};
use rustix::process::geteuid;
use thiserror::Error;
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tracing::warn;

use crate::config::{UnixConfig, group_id};

/// Silence after which the node probes a TCP connection. It notices a dead host within about two minutes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// Time between two probes: with [`KEEPALIVE_PROBES`] they add a minute to [`KEEPALIVE_IDLE`].
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Probes without an answer after which the connection ends.
const KEEPALIVE_PROBES: u32 = 4;

/// Why a node cannot listen on a socket.
#[derive(Debug, Error)]
pub enum ListenError {
    /// A system call failed.
    #[error("cannot listen on {}: {source}", path.display())]
    Io {
        /// The path of the socket.
        path: PathBuf,
        /// The operating system's answer.
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
    /// The node's user may not give files to the group.
    #[error(
        "cannot give {} to group {group:?}: the node's user (uid {user}) is not in it; add the user to the group \
         (under systemd: SupplementaryGroups={group}), or open the socket to all users with mode = \"0666\": \
         the policy of each key decides on the operations of each user",
        path.display()
    )]
    GroupDenied {
        /// The socket or its folder.
        path: PathBuf,
        /// The configured group.
        group: String,
        /// The node's user id.
        user: u32,
    },
    /// Another user could replace the socket.
    #[error(
        "cannot listen in {}: {reason}, who could put another socket in its place; choose a folder of the node's \
         user or of root that only its owner may write to",
        path.display()
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The users who may write to it.
        reason: String,
    },
    /// Another user could replace the folder of the socket.
    #[error("cannot listen there: {0}")]
    Untrusted(#[from] Untrusted),
}

/// Listening sockets that a service manager opened and passed to the node. The node never removes their files.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Replaces the socket of [`UnixConfig`].
    pub unix: Option<BlockingListener>,
    /// Replaces the address of [`crate::config::TcpConfig`].
    pub tcp: Option<BlockingTcpListener>,
}

/// A listening unix socket. Dropping it removes its file, unless the socket is inherited.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    listener: Option<UnixListener>,
    path: PathBuf,
    /// Identifies the file: another node may have replaced it at the path. `None`: the file is not the node's.
    inode: Option<u64>,
}

impl BoundSocket {
    /// Binds, replacing the socket of a dead process.
    pub(crate) fn bind(config: &UnixConfig) -> Result<Self, ListenError> {
        let UnixConfig { path, mode, group } = config;
        let failed = |source| ListenError::Io { path: path.clone(), source };
        let group = group.as_deref().map(|group| Group::find(path, group)).transpose()?;
        if let Some(folder) = path.parent() {
            make_directory(folder, *mode, group.as_ref())?;
        }
        refuse_occupied(path)?;
        let beside = path.with_extension(format!("{}.new", std::process::id()));
        let _ = fs::remove_file(&beside);
        let placed = bind_closed(&beside, *mode).and_then(|socket| {
            if let Some(group) = &group {
                // Never through a link: the path was free before the bind, but another process may have changed it.
                lchown(&beside, None, Some(group.id))?;
            }
            listen(&socket, BACKLOG)?;
            let listener = UnixListener::from_std(BlockingListener::from(socket))?;
            let inode = fs::symlink_metadata(&beside)?.ino();
            fs::rename(&beside, path)?;
            Ok((listener, inode))
        });
        match placed {
            Ok((listener, inode)) => {
                Ok(Self { listener: Some(listener), path: path.clone(), inode: Some(inode) })
            }
            Err(error) => {
                let _ = fs::remove_file(&beside);
                Err(match &group {
                    Some(group) => group.denied(path, error),
                    None => failed(error),
                })
            }
        }
    }

    /// Uses a socket that the service manager opened. Its path, mode and group stay as they are; the log has a
    /// warning if `config` wants others.
    pub(crate) fn adopt(
        listener: BlockingListener,
        config: Option<&UnixConfig>,
    ) -> Result<Self, ListenError> {
        let address = listener.local_addr().ok();
        let path = address.and_then(|address| address.as_pathname().map(Path::to_owned));
        let path = path.unwrap_or_default();
        if let Some(config) = config {
            let mode = fs::symlink_metadata(&path).map_or(0, |file| file.mode() & 0o777);
            if config.path != path || config.mode != mode || config.group.is_some() {
                warn!(
                    socket = %path.display(),
                    mode = format!("{mode:04o}"),
                    "the service manager opened the socket: its ListenStream=, SocketMode= and SocketGroup= hold, \
                     not [unix] of node.toml"
                );
            }
        }
        let opened = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
        match opened {
            Ok(listener) => Ok(Self { listener: Some(listener), path, inode: None }),
            Err(source) => Err(ListenError::Io { path, source }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
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
        let Some(inode) = self.inode else { return };
        if fs::symlink_metadata(&self.path).is_ok_and(|now| now.ino() == inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Backlog of connections that wait for `accept`: the default of `net.core.somaxconn`, which is the kernel's
/// bound.
const BACKLOG: i32 = 4096;

/// A socket at `path` with its final mode. No client can connect before it listens.
fn bind_closed(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Linux gives the file the mode of the socket, without the bits of the umask: it is never more open than it is to
    // be. The umask itself belongs to the whole process, whose other threads make files, too.
    fchmod(&socket, Mode::from_raw_mode(mode))?;
    bind(&socket, &address)?;
    // No other user can have replaced it: its folder was checked.
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    Ok(socket)
}

/// Makes the folder of a socket with `mode` and `group`, or checks an existing one: no other user may replace the
/// socket, and the users that the socket admits should be able to reach it. A folder of the node that holds only
/// sockets is opened to them; for any other folder the log has the command.
fn make_directory(folder: &Path, mode: u32, group: Option<&Group>) -> Result<(), ListenError> {
    if folder.as_os_str().is_empty() {
        return Ok(());
    }
    let failed = |source| ListenError::Io { path: folder.to_owned(), source };
    let Ok(found) = fs::metadata(folder) else {
        let open = group.is_none() || mode & 0o007 != 0;
        let mode = if open { 0o755 } else { 0o750 };
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(mode);
        builder.create(folder).map_err(failed)?;
        // Again, because the umask takes bits away.
        fs::set_permissions(folder, Permissions::from_mode(mode)).map_err(failed)?;
        return group.map_or(Ok(()), |group| group.give(folder));
    };
    check_folder(folder, &found, geteuid().as_raw())?;
    trusted::check_own_folder(folder)?;
    let Some(wanted) = missing_rights(&found, mode, group.map(|group| group.id)) else {
        return Ok(());
    };
    let ours = found.uid() == geteuid().as_raw();
    if ours && holds_only_sockets(folder) {
        if let Some(group) = group.filter(|group| group.id != found.gid()) {
            group.give(folder)?;
        }
        fs::set_permissions(folder, Permissions::from_mode(wanted)).map_err(failed)?;
    } else {
        let chgrp = group.map_or_else(String::new, |group| {
            format!("chgrp {} {}; ", group.name, folder.display())
        });
        warn!(
            remedy = format!("{chgrp}chmod {wanted:04o} {}", folder.display()),
            "users who may connect to the socket cannot enter its folder"
        );
    }
    Ok(())
}

/// Refuses a folder in which another user could replace the socket. In a sticky folder (/tmp) the kernel prevents
/// that.
fn check_folder(path: &Path, folder: &fs::Metadata, user: u32) -> Result<(), ListenError> {
    let owner = folder.uid();
    let mode = folder.mode();
    let refused = |reason| ListenError::Folder { path: path.to_owned(), reason };
    if owner != 0 && owner != user {
        return Err(refused(format!("it belongs to uid {owner}")));
    }
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        let mode = mode & 0o7777;
        return Err(refused(format!("other users may write to it (mode {mode:04o})")));
    }
    Ok(())
}

/// The mode that lets the users of a socket with `mode` and `group` enter its folder, if they cannot yet.
fn missing_rights(folder: &fs::Metadata, mode: u32, group: Option<u32>) -> Option<u32> {
    let now = folder.mode() & 0o7777;
    if mode & 0o007 != 0 {
        return (now & 0o001 == 0).then_some(now | 0o055);
    }
    let enters = now & 0o001 != 0 || (Some(folder.gid()) == group && now & 0o010 != 0);
    (group.is_some() && !enters).then_some(now | 0o050)
}

fn holds_only_sockets(folder: &Path) -> bool {
    let Ok(mut entries) = fs::read_dir(folder) else {
        return false;
    };
    entries.all(|entry| {
        let kind = entry.and_then(|entry| entry.file_type());
        kind.is_ok_and(|kind| kind.is_socket())
    })
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
        Err(source) => Err(ListenError::Io { path: path.to_owned(), source }),
    }
}

/// A group as configured, and its number.
#[derive(Debug)]
struct Group {
    name: String,
    id: u32,
}

impl Group {
    fn find(path: &Path, name: &str) -> Result<Self, ListenError> {
        match group_id(name) {
            Some(id) => Ok(Self { name: name.to_owned(), id }),
            None => Err(ListenError::Group { path: path.to_owned(), group: name.to_owned() }),
        }
    }

    /// Gives a folder to the group.
    fn give(&self, folder: &Path) -> Result<(), ListenError> {
        chown(folder, None, Some(self.id)).map_err(|error| self.denied(folder, error))
    }

    fn denied(&self, path: &Path, source: io::Error) -> ListenError {
        let path = path.to_owned();
        if source.kind() == io::ErrorKind::PermissionDenied {
            return ListenError::GroupDenied {
                path,
                group: self.name.clone(),
                user: geteuid().as_raw(),
            };
        }
        ListenError::Io { path, source }
    }
}

/// Why the kernel's credentials of a client name no identity.
#[derive(Debug, Error)]
pub(crate) enum UserError {
    #[error("no peer credentials: {0}")]
    None(#[from] io::Error),
    #[error(
        "uid {0} stands for every user that the user namespace of this node does not know, so that it is no identity; \
         map the client's user into the namespace (podman: --uidmap; systemd: PrivateUsers=no), or connect over TCP"
    )]
    Unmapped(u32),
}

/// The user at the other end of a unix socket, from the credentials that the kernel holds.
pub(crate) fn unix_user(stream: &UnixStream) -> Result<u32, UserError> {
    let uid = stream.peer_cred()?.uid();
    if Some(uid) == stand_in() { Err(UserError::Unmapped(uid)) } else { Ok(uid) }
}

/// The identity of the client on a unix socket.
pub(crate) fn unix_identity(stream: &UnixStream) -> Result<Arc<str>, UserError> {
    Ok(format!("uid:{}", unix_user(stream)?).into())
}

/// The user at the other end of a unix socket, as the source of its connections.
pub(crate) fn unix_source(stream: &UnixStream) -> PlaceSource {
    PlaceSource::Identity(unix_identity(stream).unwrap_or_else(|_| "uid:?".into()))
}

/// The number that stands for all users without one in the user namespace of this process. `None` if each user has one:
/// then it is the number of `nobody`.
fn stand_in() -> Option<u32> {
    static FOUND: OnceLock<Option<u32>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        let overflow = overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL_OVERFLOW);
        (!maps_all(&map)).then_some(overflow)
    })
}

/// The kernel's default for `kernel.overflowuid`.
const USUAL_OVERFLOW: u32 = 65534;

/// Whether a `uid_map` has a number for each of the 2^32 - 1 users.
fn maps_all(map: &str) -> bool {
    let sizes = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    sizes.sum::<u64>() >= u64::from(u32::MAX)
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

    #[test]
    fn overflow_uid_stands_for_others_unless_all_users_are_mapped() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(maps_all("0 0 65536\n65536 65536 4294901759\n"));
        for map in ["0 1000 1\n", "0 100000 65536\n", "0 0 4294967294\n", "", "0 0 x\n"] {
            assert!(!maps_all(map), "{map}");
        }
    }

    fn config(directory: &TempDir) -> UnixConfig {
        UnixConfig::at(directory.path().join("run/node.sock"))
    }

    #[tokio::test]
    async fn socket_file_has_its_mode_and_is_removed_on_drop() {
        let directory = TempDir::new().unwrap();
        let config = UnixConfig { mode: 0o600, ..config(&directory) };
        let socket = BoundSocket::bind(&config).unwrap();
        assert_eq!(fs::metadata(&config.path).unwrap().mode() & 0o777, 0o600);
        drop(socket);
        assert!(!config.path.exists());
        assert_eq!(fs::read_dir(config.path.parent().unwrap()).unwrap().count(), 0);
    }

    #[test]
    fn connections_are_refused_before_the_socket_listens() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("node.sock");
        let socket = bind_closed(&path, 0o600).unwrap();
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
        assert!(matches!(BoundSocket::bind(&config), Err(ListenError::InUse(_))));
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
        assert!(matches!(BoundSocket::bind(&config), Err(ListenError::NotASocket(_))));
        assert_eq!(fs::read(&config.path).unwrap(), b"precious");
    }

    #[test]
    fn group_is_found_by_name_or_number() {
        let find = |name| Group::find(Path::new("/x"), name);
        assert_eq!(find("root").unwrap().id, 0);
        assert_eq!(find("123").unwrap().id, 123);
        assert!(matches!(find("no such group"), Err(ListenError::Group { .. })));
    }

    #[test]
    fn denied_group_names_the_cure() {
        let group = Group { name: "haproxy".to_owned(), id: 1 };
        let error = group.denied(Path::new("/x"), io::ErrorKind::PermissionDenied.into());
        let text = error.to_string();
        for part in ["haproxy", "SupplementaryGroups=", "0666"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let other = group.denied(Path::new("/x"), io::ErrorKind::StorageFull.into());
        assert!(matches!(other, ListenError::Io { .. }));
    }

    #[tokio::test]
    async fn socket_mode_is_exact_whatever_the_umask_is() {
        let directory = TempDir::new().unwrap();
        for mode in [0o600, 0o660, 0o666] {
            let config = UnixConfig { mode, ..config(&directory) };
            let socket = BoundSocket::bind(&config).unwrap();
            assert_eq!(fs::metadata(&config.path).unwrap().mode() & 0o777, mode);
            drop(socket);
        }
    }

    #[tokio::test]
    async fn folder_of_sockets_follows_the_mode_of_the_socket() {
        let directory = TempDir::new().unwrap();
        let mut config = config(&directory);
        let folder = config.path.parent().unwrap().to_owned();
        let mode = || fs::metadata(&folder).unwrap().mode() & 0o777;
        // As a first start with a group leaves it.
        DirBuilder::new().mode(0o750).create(&folder).unwrap();
        drop(BoundSocket::bind(&config).unwrap());
        assert_eq!(mode(), 0o750, "the owner needs no more");
        config.mode = 0o666;
        drop(BoundSocket::bind(&config).unwrap());
        assert_eq!(mode(), 0o755);
        // A folder with other files may be anything, such as a home.
        fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        fs::write(folder.join("file"), b"x").unwrap();
        drop(BoundSocket::bind(&config).unwrap());
        assert_eq!(mode(), 0o700);
    }

    #[tokio::test]
    async fn folder_that_other_users_may_write_to_is_refused() {
        let directory = TempDir::new().unwrap();
        let config = config(&directory);
        let folder = config.path.parent().unwrap();
        fs::create_dir(folder).unwrap();
        for (mode, refused) in [(0o777, true), (0o775, true), (0o1777, false), (0o755, false)] {
            fs::set_permissions(folder, Permissions::from_mode(mode)).unwrap();
            let bound = BoundSocket::bind(&config);
            let is_refused = matches!(bound, Err(ListenError::Folder { .. }));
            assert_eq!(is_refused, refused, "{mode:o}");
        }
        let metadata = fs::metadata(folder).unwrap();
        let stranger = metadata.uid() + 1;
        assert!(check_folder(folder, &metadata, metadata.uid()).is_ok());
        let verdict = check_folder(folder, &metadata, stranger);
        assert_eq!(verdict.is_err(), metadata.uid() != 0, "root may own it");
    }

    #[tokio::test]
    async fn inherited_socket_keeps_its_file_and_its_queue() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("node.sock");
        let opened = BlockingListener::bind(&path).unwrap();
        let client = BlockingStream::connect(&path).unwrap();
        let adopted = BoundSocket::adopt(opened.try_clone().unwrap(), None).unwrap();
        assert_eq!(adopted.path(), path);
        drop(adopted);
        assert!(path.exists());
        opened.set_nonblocking(false).unwrap();
        drop(opened.accept().unwrap());
        drop(client);
    }
}
