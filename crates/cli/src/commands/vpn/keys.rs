// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace vpn keys`: an authority for one link, and what each end needs.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail};
use millrace_hostfs::replace::make_file;
use millrace_server::tls::{ensure_authority, issue_client_certificate, issue_node_certificate};
use millrace_vpn::link::{Side, VpnLink};
use zeroize::Zeroizing;

use super::read;
use crate::args::VpnKeysArgs;
use crate::exit::{Failure, fail};

/// Modes of a folder without secrets, of a certificate, and of a private key.
const FOLDER: u32 = 0o755;
const PUBLIC: u32 = 0o644;
const PRIVATE: u32 = 0o600;

pub(super) fn run(args: &VpnKeysArgs) -> Result<()> {
    let link = VpnLink::parse(&read(&args.link)?)
        .map_err(|error| fail(Failure::Usage, error.to_string()))?;
    let output = &args.output;
    if output.exists() {
        bail!("{} exists: choose another folder, or remove it first", output.display());
    }
    let authority = output.join("authority");
    ensure_authority(&authority)?;
    fs::set_permissions(output, Permissions::from_mode(FOLDER))
        .with_context(|| format!("opening {}", output.display()))?;
    // The end that waits for handshakes is a TLS server, and its certificate is for servers.
    let [a, b] = Side::ALL.map(|side| link.end(side));
    let server = issue_node_certificate(&authority, &[a.address.to_string()])?;
    write_end(
        output,
        Side::A,
        [&server.ca, &server.revoked],
        server.certificate.as_bytes(),
        server.key.as_bytes(),
    )?;
    let client = issue_client_certificate(&authority, &format!("{}-b", link.name))?;
    let secret = |path: &Path| {
        fs::read(path).map(Zeroizing::new).with_context(|| format!("reading {}", path.display()))
    };
    write_end(
        output,
        Side::B,
        [&server.ca, &server.revoked],
        &secret(&client.certificate)?,
        &secret(&client.key)?,
    )?;
    fs::remove_file(&client.key).with_context(|| format!("removing {}", client.key.display()))?;
    note!(
        "wrote ca.pem, crl.pem, cert.pem and key.pem of each end to {0}/a and {0}/b\n\
         next: copy {0}/a to {1} on end a and {0}/b to {2} on end b",
        output.display(),
        a.certificates.display(),
        b.certificates.display(),
    );
    Ok(())
}

fn write_end(
    output: &Path,
    side: Side,
    [ca, revoked]: [&Vec<u8>; 2],
    certificate: &[u8],
    key: &[u8],
) -> Result<()> {
    let folder = output.join(side.name());
    DirBuilder::new()
        .mode(FOLDER)
        .create(&folder)
        .with_context(|| format!("making {}", folder.display()))?;
    for (name, bytes, mode) in [
        ("ca.pem", &ca[..], PUBLIC),
        ("crl.pem", revoked, PUBLIC),
        ("cert.pem", certificate, PUBLIC),
        ("key.pem", key, PRIVATE),
    ] {
        let path = folder.join(name);
        make_file(&path, bytes, Some(mode))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}
