// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The certificates of a node that has its private authority.

use std::path::Path;

use millrace_server::config::{NodeConfig, TcpConfig, TlsFiles};
use millrace_server::tls::{CertificateError, ensure_node_certificates, revocation_list};

/// Creates certificates if the node uses its private authority, and then configures that authority's
/// revocation list, too.
pub(super) fn make_certificates(
    config: &mut NodeConfig,
    folder: &Path,
) -> Result<(), CertificateError> {
    let Some(tcp) = &config.tcp else {
        return Ok(());
    };
    if !is_private_authority(&tcp.tls, folder) {
        return Ok(());
    }
    ensure_node_certificates(folder, &certificate_names(config, tcp))?;
    let list = revocation_list(folder);
    if let Some(tcp) = &mut config.tcp
        && tcp.tls.crl.is_none()
        && list.exists()
    {
        tcp.tls.crl = Some(list);
    }
    Ok(())
}

/// Whether a node makes these files, with an authority of its own in this folder.
pub(super) fn is_private_authority(files: &TlsFiles, folder: &Path) -> bool {
    let made = TlsFiles { crl: files.crl.clone(), ..TlsFiles::in_directory(folder) };
    *files == made
}

/// Names and addresses under which clients may reach this node.
fn certificate_names(config: &NodeConfig, tcp: &TcpConfig) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let dns = config.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte));
    if dns && !names.contains(&config.name) {
        names.push(config.name.clone());
    }
    let address = tcp.address.ip();
    if !address.is_unspecified() && !names.contains(&address.to_string()) {
        names.push(address.to_string());
    }
    names
}
