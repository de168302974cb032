// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The certificates that certbot renews: one file each in `/etc/letsencrypt/renewal`, in the syntax of ConfigObj.

use crate::Root;

/// The folder of the files.
pub const RENEWAL: &str = "/etc/letsencrypt/renewal";

/// The folder in which certbot keeps the current key and chain of each certificate.
pub const LIVE: &str = "/etc/letsencrypt/live";

/// Bound on a file: certbot writes 600 bytes.
const MAX_FILE: usize = 64 * 1024;

/// One certificate that certbot renews.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    /// Its name: that of its file.
    pub name: String,
    /// The plugin that puts the certificate into a server's configuration and reloads it.
    pub installer: Option<String>,
    /// The plugin that proves that the name is this host's.
    pub authenticator: Option<String>,
}

impl Lineage {
    /// Whether a renewal runs this server's own test of its configuration: `nginx`, `apache`.
    #[must_use]
    pub fn tests(&self, server: &str) -> bool {
        [&self.installer, &self.authenticator]
            .into_iter()
            .any(|plugin| plugin.as_deref() == Some(server))
    }

    /// Reads the text of a file. Certbot writes `None` for a plugin that it does not use.
    #[must_use]
    pub fn parse(name: &str, text: &str) -> Self {
        let value = |wanted: &str| {
            let mut values = text.lines().filter_map(|line| {
                let (name, value) = line.split_once('=')?;
                (name.trim() == wanted).then(|| value.trim().trim_matches(['"', '\'']))
            });
            values.next().filter(|value| *value != "None").map(str::to_owned)
        };
        let plugins = (value("installer"), value("authenticator"));
        Self { name: name.to_owned(), installer: plugins.0, authenticator: plugins.1 }
    }
}

/// The certificates that certbot renews on a host.
#[must_use]
pub fn lineages(root: &Root) -> Vec<Lineage> {
    let names = root.names(RENEWAL).into_iter();
    let lineage = |file: String| {
        let name = file.strip_suffix(".conf")?;
        let text = root.lossy_text(&format!("{RENEWAL}/{file}"), MAX_FILE).ok()?;
        Some(Lineage::parse(name, &text))
    };
    names.filter_map(lineage).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn plugins_of_a_lineage_are_read_as_certbot_writes_them() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = dir.path().join("etc/letsencrypt/renewal");
        fs::create_dir_all(&folder).expect("folders");
        let text = "# renew_before_expiry = 30 days\nversion = 2.1.0\nprivkey = /etc/letsencrypt/live/www/privkey.pem\n\n\
                    [renewalparams]\nauthenticator = standalone\ninstaller = nginx\n";
        fs::write(folder.join("www.conf"), text).expect("file");
        fs::write(folder.join("www.conf.bak"), text).expect("file");
        let found = lineages(&Root::open(dir.path()).expect("folder"));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "www");
        assert!(
            found[0].tests("nginx") && found[0].tests("standalone") && !found[0].tests("apache")
        );
        let none = Lineage::parse("www", "installer = None\nauthenticator = \"webroot\"\n");
        assert_eq!((none.installer, none.authenticator.as_deref()), (None, Some("webroot")));
        assert_eq!(
            Lineage::parse("x", "installer\n= nginx"),
            Lineage { name: "x".to_owned(), ..Lineage::default() }
        );
    }
}
