// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Merges flags, the configuration file and the defaults into the settings of a command. Precedence: flag,
//! environment, file, default (clap has merged the first two already).

use std::env;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use millrace_server::config::{NodeConfig, TcpConfig, TlsFiles, UnixConfig};
use millrace_service::store::{CREDENTIAL_NAME, KekSource, KeyStore, StoreError};

use crate::args::{CheckArgs, LogFormat, SocketArg, StatusArgs, StoreArgs, UpArgs};
use crate::exit::{ContextCode, Failure};
use crate::owner::as_owner_of;
use crate::paths;

#[derive(Debug)]
pub(crate) struct Settings {
    /// The configuration of the node.
    pub(crate) node: NodeConfig,
    /// The folder of the private authority's certificates.
    pub(crate) tls: PathBuf,
}

impl Settings {
    /// For `up`.
    ///
    /// # Errors
    /// The file cannot be read or is invalid, or there is no folder for the state.
    pub(crate) fn for_node(args: &UpArgs) -> Result<Self> {
        let mut settings = Self::of(&args.store, args.socket.socket.as_deref())?;
        let node = &mut settings.node;
        if let Some(unix) = &mut node.unix {
            unix.mode = args.socket_mode.unwrap_or(unix.mode);
            unix.group = args.socket_group.clone().or_else(|| unix.group.take());
        }
        if let Some(address) = args.listen_tcp {
            node.tcp = Some(tcp(address, node.tcp.take(), &settings.tls));
        }
        if args.metrics.is_some() {
            node.metrics = args.metrics;
        }
        if let Some(name) = &args.name {
            node.name.clone_from(name);
        }
        node.engine.workers = args.workers.unwrap_or(node.engine.workers);
        node.pin = args.pin.unwrap_or(node.pin);
        if let Some(backends) = &args.backends {
            node.backends = Some(backends.clone());
        }
        if let Some(filter) = &args.log {
            node.settings.log_filter.clone_from(filter);
        }
        if let Some(format) = args.log_format {
            node.json_log = format == LogFormat::Json;
        }
        Ok(settings)
    }

    /// For commands that work on the key store or the certificates.
    ///
    /// # Errors
    /// As [`Self::for_node`].
    pub(crate) fn for_store(args: &StoreArgs) -> Result<Self> {
        Self::of(args, None)
    }

    fn of(store: &StoreArgs, socket: Option<&Path>) -> Result<Self> {
        let StoreArgs {
            config,
            state,
            kek_file,
        } = store;
        let config = config.config.as_deref();
        Self::load(config, state.as_deref(), kek_file.as_deref(), socket)
    }

    /// For `status`.
    ///
    /// # Errors
    /// As [`Self::for_node`].
    pub(crate) fn for_status(args: &StatusArgs) -> Result<Self> {
        Self::load(
            args.config.config.as_deref(),
            None,
            None,
            args.socket.socket.as_deref(),
        )
    }

    /// For commands that only ask the node of this machine.
    ///
    /// # Errors
    /// As [`Self::for_node`].
    pub(crate) fn for_socket(socket: &SocketArg) -> Result<Self> {
        Self::load(None, None, None, socket.socket.as_deref())
    }

    /// For `gateway check`. The checked server's provider connects to `socket`.
    ///
    /// # Errors
    /// As [`Self::for_node`].
    pub(crate) fn for_check(args: &CheckArgs, socket: Option<&Path>) -> Result<Self> {
        let (named, config) = (args.socket.socket.as_deref(), args.config.config.as_deref());
        let socket = named.or_else(|| socket.filter(|_| config.is_none()));
        Self::load(config, None, None, socket)
    }

    fn load(
        file: Option<&Path>,
        state: Option<&Path>,
        kek: Option<&Path>,
        socket: Option<&Path>,
    ) -> Result<Self> {
        let mut node = match file {
            Some(path) => read(path)?,
            None => NodeConfig::default(),
        };
        // With a file, its values and the documented defaults apply. Without one, all paths are in folders
        // that this user can write to.
        let state = match (state, file) {
            (Some(state), _) => Some(state.to_owned()),
            (None, Some(_)) => None,
            (None, None) => Some(paths::state_dir()?),
        };
        if file.is_none() {
            // No default port: a fixed one would make a second node on this machine fail.
            node.metrics = None;
            place_socket(&mut node, &paths::runtime_dir()?.join("node.sock"));
        }
        if let Some(socket) = socket {
            place_socket(&mut node, socket);
        }
        let mut tls = node.store.directory.with_file_name("tls");
        if let Some(state) = state {
            tls = state.join("tls");
            node.store.directory = state.join("keys");
            if node.store.kek != KekSource::Credential {
                node.store.kek = default_kek(&state);
            }
        }
        if let Some(path) = kek {
            node.store.kek = KekSource::File {
                path: path.to_owned(),
                create: false,
            };
        }
        Ok(Self { node, tls })
    }

    /// Opens the key store for a node, which cannot change its user: the node must run as the owner of its
    /// keys.
    ///
    /// # Errors
    /// The folder or the key-encryption key cannot be used.
    pub(crate) fn open_own_store(&self) -> Result<KeyStore> {
        let store = &self.node.store;
        Ok(KeyStore::open(store.directory.as_path(), &store.kek)?)
    }

    /// Opens the key store with its key-encryption key.
    ///
    /// # Errors
    /// The folder or the key-encryption key cannot be used.
    pub(crate) fn open_store(&self) -> Result<Store> {
        let kek = &self.node.store.kek;
        let keys = self.look_at_store()?.keys;
        // Root may own the key-encryption key and the node the store, so each is opened with its owner's
        // rights.
        let place = match kek {
            KekSource::File { path, .. } => path,
            _ => &self.node.store.directory,
        };
        let keys = as_owner_of(place, || keys.unlock(kek))??;
        Ok(Store { keys })
    }

    /// Opens the key store only to list and remove, without the key-encryption key.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub(crate) fn look_at_store(&self) -> Result<Store> {
        let folder = self.node.store.directory.as_path();
        let keys = as_owner_of(folder, || KeyStore::open(folder, &KekSource::Absent))??;
        Ok(Store { keys })
    }
}

/// The key store, used with the rights of its owner.
#[derive(Debug)]
pub(crate) struct Store {
    keys: KeyStore,
}

impl Store {
    /// Runs an operation on the store.
    ///
    /// # Errors
    /// The store's error, with its exit code.
    pub(crate) fn act<T>(
        &self,
        work: impl FnOnce(&KeyStore) -> Result<T, StoreError>,
    ) -> Result<T> {
        as_owner_of(self.keys.directory(), || work(&self.keys))?.map_err(|error| match error {
            StoreError::NoSuchKey { .. } | StoreError::Exists { .. } => {
                crate::exit::fail(Failure::KeyName, error.to_string())
            }
            StoreError::Name { .. } => crate::exit::fail(Failure::Usage, error.to_string()),
            other => other.into(),
        })
    }

    pub(crate) fn directory(&self) -> &Path {
        self.keys.directory()
    }
}

fn read(path: &Path) -> Result<NodeConfig> {
    let wrong = || format!("the configuration file {} is wrong", path.display());
    let text = fs::read_to_string(path)
        .or_fail(Failure::Usage, || format!("cannot read {}", path.display()))?;
    NodeConfig::from_toml(&text).or_fail(Failure::Usage, wrong)
}

/// Sets the socket for clients and, in the same folder, those for `status` and for administration.
fn place_socket(node: &mut NodeConfig, socket: &Path) {
    let unix = node.unix.get_or_insert_with(|| UnixConfig::at(socket));
    unix.path = socket.to_owned();
    node.status_socket = Some(beside(socket, "status"));
    if let Some(admin) = &mut node.admin {
        admin.socket = beside(socket, "admin");
    }
}

/// The path of a further socket: `status.sock` for `node.sock`, `NAME-status.sock` for any other `NAME.sock`.
fn beside(socket: &Path, purpose: &str) -> PathBuf {
    match socket.file_stem().and_then(|stem| stem.to_str()) {
        Some(stem) if stem != "node" => socket.with_file_name(format!("{stem}-{purpose}.sock")),
        _ => socket.with_file_name(format!("{purpose}.sock")),
    }
}

/// The TCP listener: the address from the flag, certificates from the file or from the private authority.
pub(crate) fn tcp(address: SocketAddr, from_file: Option<TcpConfig>, tls: &Path) -> TcpConfig {
    let tls = match from_file {
        Some(tcp) => tcp.tls,
        None => TlsFiles::in_directory(tls),
    };
    TcpConfig { address, tls }
}

/// The systemd credential if there is one, else a file that is created at the first use.
fn default_kek(state: &Path) -> KekSource {
    let credential = env::var_os("CREDENTIALS_DIRECTORY")
        .is_some_and(|folder| Path::new(&folder).join(CREDENTIAL_NAME).exists());
    if credential {
        KekSource::Credential
    } else {
        KekSource::File {
            path: state.join("kek"),
            create: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_socket_is_in_the_folder_of_the_client_socket() {
        let beside = |path| beside(Path::new(path), "status");
        assert_eq!(
            beside("/run/millrace/node.sock"),
            Path::new("/run/millrace/status.sock")
        );
        assert_eq!(beside("/tmp/two.sock"), Path::new("/tmp/two-status.sock"));
    }

    #[test]
    fn flags_win_over_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("node.toml");
        fs::write(
            &file,
            "name = \"from-file\"\n[store]\ndirectory = \"/file/keys\"\n",
        )
        .unwrap();
        let settings = Settings::load(Some(&file), None, None, None).unwrap();
        assert_eq!(settings.node.name, "from-file");
        assert_eq!(settings.node.store.directory, Path::new("/file/keys"));
        assert_eq!(settings.tls, Path::new("/file/tls"));
        let settings = Settings::load(
            Some(&file),
            Some(Path::new("/flag")),
            Some(Path::new("/k")),
            None,
        )
        .unwrap();
        assert_eq!(settings.node.store.directory, Path::new("/flag/keys"));
        let kek = KekSource::File {
            path: PathBuf::from("/k"),
            create: false,
        };
        assert_eq!(settings.node.store.kek, kek);
    }
}
