// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace cert`: the private authority, which issues certificates for nodes and for clients that connect over
//! TCP, and revokes those of clients.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, bail};
use millrace_hostfs::replace::make_file;
use millrace_server::config::group_id;
use millrace_server::tls::{
    CertificateError, client_certificate, ensure_authority, issue_client_certificate,
    issue_node_certificate, issued_certificates, revocation_list, revoke_client_certificate,
};
use zeroize::Zeroizing;

use crate::args::{
    CertAuthorityArgs, CertClientArgs, CertCommand, CertListArgs, CertNodeArgs, CertRevokeArgs,
};
use crate::exit::{ContextCode, Failure, fail};
use crate::output::{self, Table, date, or};
use crate::owner_rights::as_owner_of;
use crate::settings::Settings;

/// The mode of a path that only its owner reads, and that of one which a group reads, too.
struct Modes {
    owner: u32,
    group: u32,
}

/// Modes of a folder with a private key.
const FOLDER_MODES: Modes = Modes { owner: 0o700, group: 0o750 };

/// Modes of a private key's file.
const KEY_MODES: Modes = Modes { owner: 0o600, group: 0o640 };

const PUBLIC_MODE: u32 = 0o644;

pub(crate) fn run(command: &CertCommand) -> Result<()> {
    match command {
        CertCommand::Authority(args) => authority(args),
        CertCommand::Node(args) => node(args),
        CertCommand::Client(args) => client(args),
        CertCommand::List(args) => list(args),
        CertCommand::Revoke(args) => revoke(args),
    }
}

fn authority(args: &CertAuthorityArgs) -> Result<()> {
    let tls = Settings::for_store(&args.store)?.tls;
    as_owner_of(&tls, || ensure_authority(&tls))??;
    note!(
        "the authority is in {} (ca.crt, ca.key, ca.crl)\nnext: millrace cert node NAME -o DIR",
        tls.display()
    );
    Ok(())
}

fn node(args: &CertNodeArgs) -> Result<()> {
    let CertNodeArgs { name, address, output, store } = args;
    let tls = Settings::for_store(store)?.tls;
    let own = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let names = [std::slice::from_ref(name), address, &own].concat();
    let files = free(output, ["ca.crt", "ca.crl", "node.crt", "node.key"])?;
    let issued = as_owner_of(&tls, || {
        ensure_authority(&tls)?;
        issue_node_certificate(&tls, &names)
    })?;
    let issued = issued.map_err(to_exit_error)?;
    let readers = Readers::Owner;
    readers.make_folder(output)?;
    let [ca, revoked, certificate, key] = &files;
    readers.write(ca, &issued.ca, PUBLIC_MODE)?;
    readers.write(revoked, &issued.revoked, PUBLIC_MODE)?;
    readers.write(certificate, issued.certificate.as_bytes(), PUBLIC_MODE)?;
    readers.write(key, issued.key.as_bytes(), KEY_MODES.owner)?;
    note!(
        "wrote ca.crt, ca.crl, node.crt and node.key to {}\n\
         next: copy them to the folder tls in the state folder of {name}, as files of the node's user",
        output.display()
    );
    Ok(())
}

fn client(args: &CertClientArgs) -> Result<()> {
    let CertClientArgs { name, output, group, store } = args;
    let readers = Readers::of(group.as_deref())?;
    let tls = Settings::for_store(store)?.tls;
    let files = free(output, ["ca.pem", "cert.pem", "key.pem"])?;
    let issued = as_owner_of(&tls, || {
        ensure_authority(&tls)?;
        issue_client_certificate(&tls, name)
    })?;
    let issued = issued.map_err(to_exit_error)?;
    readers.make_folder(output)?;
    let [ca, certificate, key] = &files;
    readers.write(ca, &read(&issued.ca)?, PUBLIC_MODE)?;
    readers.write(certificate, &read(&issued.certificate)?, PUBLIC_MODE)?;
    readers.write(key, &read(&issued.key)?, readers.key_mode())?;
    // Only the client keeps its private key; the node keeps the certificate, as a record.
    fs::remove_file(&issued.key).with_context(|| format!("removing {}", issued.key.display()))?;
    note!(
        "wrote ca.pem, cert.pem and key.pem to {}\nnext: millrace key policy KEY --allow-cert {name}",
        output.display()
    );
    Ok(())
}

fn list(args: &CertListArgs) -> Result<()> {
    let tls = Settings::for_store(&args.store)?.tls;
    let issued = as_owner_of(&tls, || issued_certificates(&tls))??;
    if args.json {
        return output::print_json(&issued);
    }
    #[rustfmt::skip]
    let table = Table::of(&issued, &[
        ("name", &|issued| or(issued.name.as_ref(), "-")),
        ("kind", &|issued| issued.kind.to_string()),
        ("serial", &|issued| issued.serial.clone()),
        ("valid until", &|issued| day(issued.valid_until)),
        ("revoked", &|issued| day(issued.revoked)),
    ]);
    table.print()
}

/// The date of a time in seconds since 1970, or a dash.
fn day(seconds: Option<i64>) -> String {
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    or(seconds.map(date), "-")
}

fn revoke(args: &CertRevokeArgs) -> Result<()> {
    let CertRevokeArgs { name, plan, store } = args;
    let tls = Settings::for_store(store)?.tls;
    if plan.dry_run {
        let found = as_owner_of(&tls, || client_certificate(&tls, name))?.map_err(to_exit_error)?;
        return output::print(&format!(
            "would revoke the certificate of {name}: serial {}, valid until {}\n",
            found.serial,
            day(found.valid_until)
        ));
    }
    as_owner_of(&tls, || revoke_client_certificate(&tls, name))?.map_err(to_exit_error)?;
    note!(
        "revoked the certificate of {name}: a node refuses it once it has the list {} and has reloaded\n\
         next: copy the list to the folder tls of each further node; systemctl reload millrace on all",
        revocation_list(&tls).display()
    );
    Ok(())
}

/// An invalid name is a usage error.
fn to_exit_error(error: CertificateError) -> Error {
    match error {
        CertificateError::Name(_) | CertificateError::NodeName(_) => {
            fail(Failure::Usage, error.to_string())
        }
        other => other.into(),
    }
}

/// The paths of new files in a folder.
fn free<const N: usize>(folder: &Path, names: [&str; N]) -> Result<[PathBuf; N]> {
    let files = names.map(|name| folder.join(name));
    if let Some(file) = files.iter().find(|file| file.exists()) {
        bail!("{} exists: choose another folder, or remove it first", file.display());
    }
    Ok(files)
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let bytes =
        fs::read(path).or_fail(Failure::Usage, || format!("cannot read {}", path.display()))?;
    Ok(Zeroizing::new(bytes))
}

/// Users who may read the files of a new certificate.
enum Readers {
    Owner,
    Group { name: String, id: u32 },
}

impl Readers {
    fn of(group: Option<&str>) -> Result<Self> {
        let Some(name) = group else {
            return Ok(Self::Owner);
        };
        let unknown = || fail(Failure::Usage, format!("there is no group {name:?} in /etc/group"));
        let id = group_id(name).ok_or_else(unknown)?;
        let name = name.to_owned();
        Ok(Self::Group { name, id })
    }

    fn key_mode(&self) -> u32 {
        match self {
            Self::Owner => KEY_MODES.owner,
            Self::Group { .. } => KEY_MODES.group,
        }
    }

    /// Makes a folder, or opens an existing one to the group.
    fn make_folder(&self, folder: &Path) -> Result<()> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(FOLDER_MODES.owner);
        builder.create(folder).with_context(|| format!("making {}", folder.display()))?;
        self.give(folder, FOLDER_MODES.group)
    }

    fn write(&self, path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
        let closed = mode & 0o700;
        make_file(path, bytes, Some(closed))
            .with_context(|| format!("writing {}", path.display()))?;
        let permissions = Permissions::from_mode(mode);
        self.give(path, mode)?;
        fs::set_permissions(path, permissions)
            .with_context(|| format!("writing {}", path.display()))
    }

    /// Gives a path to the group, with this mode.
    fn give(&self, path: &Path, mode: u32) -> Result<()> {
        let Self::Group { name, id } = self else {
            return Ok(());
        };
        chown(path, None, Some(*id))
            .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)))
            .with_context(|| format!("giving {} to group {name}", path.display()))
    }
}
