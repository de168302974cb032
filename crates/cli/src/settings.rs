// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Merges flags, the configuration file and the defaults into the settings of a command. Precedence: flag,
//! environment, file, default (clap has merged the first two already).

use std::env;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use millrace_hostfs::ordinary::{self, Links};
use millrace_hostfs::{Root, systemd};
use millrace_server::config::{NodeConfig, TcpConfig, TlsFiles, UnixConfig};
use millrace_service::store::{CREDENTIAL_NAME, KekSource};

use crate::args::{CheckArgs, KeyStoreArgs, NodeRunArgs, SocketArg, StatusArgs, StoreArgs, UpArgs};
use crate::backends;
use crate::exit::{ContextCode, Failure, fail, listed};
use crate::paths;

/// Settings of a command that runs a node or opens its store, merged once at its start.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The configuration of the node.
    pub(crate) node: NodeConfig,
    /// The folder of the private authority's certificates.
    pub(crate) tls: PathBuf,
}

/// The files of a node that a command uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Uses {
    /// Keys and certificates, and the sockets.
    Store,
    /// The sockets alone: a user without a home directory need not name a state folder.
    Sockets,
}

impl Settings {
    /// Settings for `up`.
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
        node.lock_memory |= args.lock_memory;
        node.engine.workers = args.workers.unwrap_or(node.engine.workers);
        node.pin = args.pin.unwrap_or(node.pin);
        node.worker_priority = args.worker_priority.unwrap_or(node.worker_priority);
        if let Some(backends) = &args.backends {
            node.backends = Some(backends.clone());
        }
        if let Some(filter) = &args.log {
            node.settings.log_filter.clone_from(filter);
        }
        node.log_format = args.log_format.unwrap_or(node.log_format);
        node.qat = backends::qat_settings(node.qat.clone())?;
        Ok(settings)
    }

    /// Settings for `node run`.
    pub(crate) fn for_member(args: &NodeRunArgs) -> Result<Self> {
        let NodeRunArgs { up, access, advertise, zone, capacity } = args;
        let mut settings = Self::for_node(up)?;
        let manager = &mut settings.node.manager;
        if let Some(file) = &access.access {
            manager.access = Some(file.clone());
        }
        if !access.manager.is_empty() {
            manager.managers = access.manager.iter().map(ToString::to_string).collect();
        }
        if !advertise.is_empty() {
            manager.advertise.clone_from(advertise);
        }
        if let Some(zone) = zone {
            manager.zone = Some(zone.to_string());
        }
        if !capacity.is_empty() {
            manager.capacity = capacity.iter().map(|row| (row.class, row.ops)).collect();
        }
        Ok(settings)
    }

    /// Settings for `key`.
    pub(crate) fn for_keys(args: &KeyStoreArgs) -> Result<Self> {
        Self::of(&args.store, args.socket.socket.as_deref())
    }

    /// Settings for commands that work on the certificates.
    pub(crate) fn for_store(args: &StoreArgs) -> Result<Self> {
        Self::of(args, None)
    }

    fn of(store: &StoreArgs, socket: Option<&Path>) -> Result<Self> {
        let StoreArgs { config, state, kek_file } = store;
        let config = config.config.as_deref();
        Self::load(config, state.as_deref(), kek_file.as_deref(), socket, Uses::Store)
    }

    /// Settings for `status`.
    pub(crate) fn for_status(args: &StatusArgs) -> Result<Self> {
        let config = args.config.config.as_deref();
        Self::load(config, None, None, args.socket.socket.as_deref(), Uses::Sockets)
    }

    /// Settings for commands that only ask the node of this machine.
    pub(crate) fn for_socket(socket: &SocketArg) -> Result<Self> {
        Self::load(None, None, None, socket.socket.as_deref(), Uses::Sockets)
    }

    /// Settings for `gateway check`. The checked server's provider connects to `socket`.
    pub(crate) fn for_check(args: &CheckArgs, socket: Option<&Path>) -> Result<Self> {
        let config = args.config.config.as_deref();
        let named = args.socket.socket.as_deref();
        let socket = named.or_else(|| socket.filter(|_| config.is_none()));
        Self::load(config, None, None, socket, Uses::Sockets)
    }

    fn load(
        file: Option<&Path>,
        state: Option<&Path>,
        kek: Option<&Path>,
        socket: Option<&Path>,
        uses: Uses,
    ) -> Result<Self> {
        let installed = match (file, state) {
            (None, None) => installed_config(),
            _ => None,
        };
        let file = file.or(installed.as_deref());
        let mut node = match file {
            Some(path) => read(path)?,
            None => NodeConfig::default(),
        };
        // With a file, its values and the documented defaults apply. Without one, all paths are in folders
        // that this user can write to.
        let state = match (state, file) {
            (Some(state), _) => Some(state.to_owned()),
            (None, Some(_)) => None,
            (None, None) => match uses {
                Uses::Store => Some(paths::state_dir()?),
                Uses::Sockets => paths::state_dir().ok(),
            },
        };
        if file.is_none() {
            // No default port: a fixed one would make a second node on this machine fail.
            node.metrics = None;
        }
        match (socket, file) {
            (Some(socket), _) => place_socket(&mut node, socket),
            (None, Some(_)) => {}
            (None, None) => {
                let folder = paths::runtime_dir(state.as_deref())?;
                place_socket(&mut node, &folder.join("node.sock"));
            }
        }
        let mut tls = node.store.directory.with_file_name("tls");
        if let Some(state) = state {
            let made = TlsFiles::in_directory(&tls);
            tls = state.join("tls");
            if let Some(tcp) = &mut node.tcp {
                let crl = tcp.tls.crl.take();
                if tcp.tls == made {
                    tcp.tls = TlsFiles::in_directory(&tls);
                }
                tcp.tls.crl = crl;
            }
            node.store.directory = state.join("keys");
            if node.store.kek != KekSource::Credential {
                node.store.kek = default_kek(&state);
            }
        }
        if let Some(path) = kek {
            node.store.kek = KekSource::File { path: path.to_owned(), create: false };
        }
        if node.store.kek == KekSource::Credential && paths::is_root() && !has_credential() {
            node.store.kek = credential_for_root(&Root::open("/")?)?;
        }
        Ok(Self { node, tls })
    }
}

/// Bound on the configuration of a node, in bytes: the sample with every key has 10,000.
const MAX_CONFIG: usize = 1 << 20;

fn read(path: &Path) -> Result<NodeConfig> {
    // A running node reads it again at SIGHUP, and does not wait for what another process writes to a pipe in its
    // place.
    let text = ordinary::read_text(path, Links::Follow, MAX_CONFIG)
        .or_fail(Failure::Usage, || {
            format!("cannot read {} (`millrace sample node` prints one)", path.display())
        })?;
    NodeConfig::from_toml(&text).map_err(|error| {
        let sentence = format!("the configuration file {} is wrong", path.display());
        fail(Failure::Usage, listed(&sentence, error.to_string().lines()))
    })
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
    if has_credential() {
        KekSource::Credential
    } else {
        KekSource::File { path: state.join("kek"), create: true }
    }
}

/// Whether systemd started this process with the key-encryption key as a credential.
fn has_credential() -> bool {
    env::var_os("CREDENTIALS_DIRECTORY")
        .is_some_and(|folder| Path::new(&folder).join(CREDENTIAL_NAME).exists())
}

/// The file that the installed unit passes to the node as its credential: root's commands use the same key.
fn credential_for_root(root: &Root) -> Result<KekSource> {
    if let Some(path) = credential_file(root, "LoadCredentialEncrypted") {
        let message = format!(
            "the key-encryption key is in the encrypted credential {path}: run this command with it, as in \
             systemd-run --pipe --wait -p LoadCredentialEncrypted={CREDENTIAL_NAME}:{path} millrace key …",
            path = path.display()
        );
        return Err(fail(Failure::Usage, message));
    }
    let path = credential_file(root, "LoadCredential")
        .unwrap_or_else(|| PathBuf::from(paths::INSTALLED_KEK));
    Ok(KekSource::File { path, create: false })
}

/// The file of the credential in this setting of the unit; the last one counts.
fn credential_file(root: &Root, setting: &str) -> Option<PathBuf> {
    let values = systemd::values(root, paths::UNIT, setting);
    let mut named = values.iter().rev().filter_map(|value| value.split_once(':'));
    named.find(|(name, _)| *name == CREDENTIAL_NAME).map(|(_, path)| PathBuf::from(path))
}

/// The configuration of the installed node, for root and for the owner of its store: another user's node has
/// files of its own.
fn installed_config() -> Option<PathBuf> {
    let path = PathBuf::from(paths::INSTALLED_CONFIG);
    if paths::is_root() {
        return path.exists().then_some(path);
    }
    let store = read(&path).ok()?.store.directory;
    let owner = fs::metadata(store).ok()?.uid();
    (owner == rustix::process::geteuid().as_raw()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_finds_the_credential_of_the_unit() {
        let folder = tempfile::tempdir().unwrap();
        let units = folder.path().join("etc/systemd/system");
        fs::create_dir_all(&units).unwrap();
        let found = || credential_for_root(&Root::open(folder.path()).unwrap());
        let file = |path: &str| KekSource::File { path: PathBuf::from(path), create: false };
        assert_eq!(found().unwrap(), file(paths::INSTALLED_KEK));
        let unit = units.join(paths::UNIT);
        fs::write(&unit, "[Service]\nLoadCredential=millrace-kek:/srv/kek\n").unwrap();
        assert_eq!(found().unwrap(), file("/srv/kek"));
        fs::write(&unit, "[Service]\nLoadCredentialEncrypted=millrace-kek:/srv/kek.cred\n")
            .unwrap();
        let error = found().unwrap_err().to_string();
        assert!(error.contains("systemd-run") && error.contains("/srv/kek.cred"), "{error}");
    }

    #[test]
    fn status_socket_is_in_the_folder_of_the_client_socket() {
        let beside = |path| beside(Path::new(path), "status");
        assert_eq!(beside("/run/millrace/node.sock"), Path::new("/run/millrace/status.sock"));
        assert_eq!(beside("/tmp/two.sock"), Path::new("/tmp/two-status.sock"));
    }

    #[test]
    fn certificates_follow_the_state_folder_unless_the_file_names_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("node.toml");
        let key_of = |more: &str| {
            fs::write(&file, format!("[tcp]\naddress = \"127.0.0.1:0\"\n{more}")).unwrap();
            let state = Some(Path::new("/flag"));
            let settings = Settings::load(Some(&file), state, None, None, Uses::Store).unwrap();
            settings.node.tcp.unwrap().tls.key
        };
        assert_eq!(key_of(""), Path::new("/flag/tls/node.key"));
        let named = "certificate = \"/a\"\nkey = \"/b\"\nclient-ca = \"/c\"\n";
        assert_eq!(key_of(named), Path::new("/b"));
    }

    #[test]
    fn flags_win_over_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("node.toml");
        fs::write(&file, "name = \"from-file\"\n[store]\ndirectory = \"/file/keys\"\n").unwrap();
        let settings = Settings::load(Some(&file), None, None, None, Uses::Store).unwrap();
        assert_eq!(settings.node.name, "from-file");
        assert_eq!(settings.node.store.directory, Path::new("/file/keys"));
        assert_eq!(settings.tls, Path::new("/file/tls"));
        let settings = Settings::load(
            Some(&file),
            Some(Path::new("/flag")),
            Some(Path::new("/k")),
            None,
            Uses::Store,
        )
        .unwrap();
        assert_eq!(settings.node.store.directory, Path::new("/flag/keys"));
        let kek = KekSource::File { path: PathBuf::from("/k"), create: false };
        assert_eq!(settings.node.store.kek, kek);
    }
}
