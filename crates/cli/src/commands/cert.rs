// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace cert`: issues certificates for clients that connect over TCP, from the node's own authority, and
//! revokes them.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Error, Result, bail};
use millrace_server::tls::{
    CertificateError, ensure_node_certificates, issue_client_certificate, revoke_client_certificate,
};
use zeroize::Zeroizing;

use crate::args::{CertClientArgs, CertCommand, CertRevokeArgs};
use crate::exit::{Failure, fail};
use crate::owner::as_owner_of;
use crate::settings::Settings;

pub(crate) fn run(command: &CertCommand) -> Result<()> {
    match command {
        CertCommand::Client(args) => client(args),
        CertCommand::Revoke(args) => revoke(args),
    }
}

fn client(args: &CertClientArgs) -> Result<()> {
    let CertClientArgs {
        name,
        output,
        store,
    } = args;
    let settings = Settings::for_store(store)?;
    let [ca, certificate, key] = ["ca.pem", "cert.pem", "key.pem"].map(|file| output.join(file));
    for file in [&ca, &certificate, &key] {
        if file.exists() {
            bail!(
                "{} exists: choose another folder, or remove it first",
                file.display()
            );
        }
    }
    let issued = as_owner_of(&settings.tls, || {
        // The authority is created here if no node has listened on TCP yet.
        if !settings.tls.join("ca.crt").exists() {
            ensure_node_certificates(&settings.tls, std::slice::from_ref(&settings.node.name))?;
        }
        issue_client_certificate(&settings.tls, name)
    })?;
    let issued = issued.map_err(coded)?;
    let mut folder = DirBuilder::new();
    folder.recursive(true).mode(0o700);
    folder
        .create(output)
        .with_context(|| format!("making {}", output.display()))?;
    copy(&issued.ca, &ca, 0o644)?;
    copy(&issued.certificate, &certificate, 0o644)?;
    copy(&issued.key, &key, 0o600)?;
    // Only the client keeps its private key; the node keeps the certificate, as a record.
    fs::remove_file(&issued.key).with_context(|| format!("removing {}", issued.key.display()))?;
    eprintln!(
        "wrote ca.pem, cert.pem and key.pem to {}\nnext: millrace key policy KEY --allow-cert {name}",
        output.display()
    );
    Ok(())
}

fn revoke(args: &CertRevokeArgs) -> Result<()> {
    let CertRevokeArgs { name, store } = args;
    let tls = Settings::for_store(store)?.tls;
    as_owner_of(&tls, || revoke_client_certificate(&tls, name))?.map_err(coded)?;
    eprintln!(
        "revoked the certificate of {name}: nodes refuse it once they have reloaded\n\
         next: systemctl reload millrace"
    );
    Ok(())
}

/// An invalid name is a usage error.
fn coded(error: CertificateError) -> Error {
    match error {
        CertificateError::Name(_) => fail(Failure::Usage, error.to_string()),
        other => other.into(),
    }
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let bytes =
        Zeroizing::new(fs::read(from).with_context(|| format!("reading {}", from.display()))?);
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(to);
    file.and_then(|mut file| file.write_all(&bytes))
        .with_context(|| format!("writing {}", to.display()))
}
