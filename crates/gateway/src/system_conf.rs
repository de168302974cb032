// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The `openssl.cnf` that a program had before: what it says stays in force under the provider.
//!
//! `OPENSSL_CONF` replaces the system's file as a whole, and with it the system's policy (MinProtocol, CipherString,
//! Groups) and its providers (legacy, fips). The generated file therefore includes the file that it replaces and
//! continues it: entries of the provider join the sections that the included file names, so that later changes of
//! that file count, too. The generated file lists what differs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use millrace_hostfs::openssl_cnf::{self, Cnf, DEFAULT};
use millrace_hostfs::systemd::{self, ServiceEnvironment, ServiceVariable};
use millrace_hostfs::{FileKind, ReadResult, Root, Unavailable, environment};
use thiserror::Error;

/// Bound on an `openssl.cnf` and on a `client.toml`, in bytes: Debian's has 12 KiB.
pub(crate) const MAX_CONFIG: usize = 1 << 20;

/// Path of the generated `openssl.cnf`.
pub const OPENSSL_CNF: &str = "/etc/millrace/openssl.cnf";

/// Default paths of OpenSSL: of Debian, of Red Hat, and of OpenSSL's own installation.
pub(crate) const SYSTEM_PATHS: [&str; 3] =
    ["/etc/ssl/openssl.cnf", "/etc/pki/tls/openssl.cnf", "/usr/local/ssl/openssl.cnf"];

/// How a line of the generated file begins that says what differs.
pub(crate) const DIFFERENCE: &str = "# - ";

/// The comment of the templates on the section of `default`.
const NAMED: &str = "# Naming any provider turns off the automatic one: keep this.\n";

/// The configuration that a generated `openssl.cnf` continues.
#[derive(Clone, Debug)]
pub struct SystemConf {
    path: PathBuf,
    cnf: Cnf,
}

/// A file that cannot be continued. The generated file would drop its policy.
#[derive(Debug, Error)]
pub enum SystemConfError {
    /// The file is there and cannot be read.
    #[error("{}: {reason}; its policy would be lost. Run this as a user who can read it", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        reason: Unavailable,
    },
    /// The name of a section is not in the file.
    #[error(
        "{}: `{key} = {value}` contains a variable; write the name of the section there, since the generated file \
         continues that section", path.display()
    )]
    Variable {
        /// The file.
        path: PathBuf,
        /// The key whose value names a section.
        key: &'static str,
        /// Its value.
        value: String,
    },
    /// The file, with those that it includes, is longer than any.
    #[error(
        "{}: it has too many values or included files to know its policy: split it, or name another file in \
         OPENSSL_CONF of the service", .0.display()
    )]
    TooLong(PathBuf),
    /// OpenSSL skips it at the beginning of its first file alone, and an included file is not the first.
    #[error("{}: it begins with a byte order mark, so that it cannot be included; save it without one", .0.display())]
    ByteOrderMark(PathBuf),
    /// A path that would need quoting.
    #[error("{}: a path with blanks, quotes or `$` cannot be included by openssl.cnf; move the file", .0.display())]
    Path(PathBuf),
}

/// Reads an `openssl.cnf` below a root, with the files that it includes.
pub(crate) fn read_cnf(root: &Root, path: &Path) -> ReadResult<Cnf> {
    let text = root.lossy_text(path.to_str().unwrap_or_default(), MAX_CONFIG)?;
    // Missing files are not errors for OpenSSL, either.
    let read = |path: &str| root.lossy_text(path, MAX_CONFIG).ok();
    Ok(Cnf::parse(&text, |path| {
        if root.kind(path) != Ok(FileKind::Folder) {
            return read(path).into_iter().collect();
        }
        let names = root.names(path).into_iter();
        let names = names.filter(|name| name.ends_with(".cnf") || name.ends_with(".conf"));
        names.filter_map(|name| read(&format!("{path}/{name}"))).collect()
    }))
}

impl SystemConf {
    /// Finds and reads the file that a service's `OPENSSL_CONF` names apart from the generated one, else the system's.
    /// `None` if there is none.
    ///
    /// # Errors
    /// The file is there and cannot be continued.
    pub fn read(root: &Root, unit: Option<&str>) -> Result<Option<Self>, SystemConfError> {
        let own = unit.and_then(|unit| named_by_unit(root, unit));
        let system = SYSTEM_PATHS.iter().find(|path| root.exists(path)).map(PathBuf::from);
        let Some(path) = own.or(system) else {
            return Ok(None);
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.,:/@+".contains(&byte);
        if !path.to_str().is_some_and(|path| path.bytes().all(is_plain)) {
            return Err(SystemConfError::Path(path));
        }
        let text = root.lossy_text(path.to_str().unwrap_or_default(), MAX_CONFIG);
        if text.is_ok_and(|text| text.starts_with('\u{feff}')) {
            return Err(SystemConfError::ByteOrderMark(path));
        }
        let cnf = match read_cnf(root, &path) {
            Ok(cnf) if cnf.is_cut() => return Err(SystemConfError::TooLong(path)),
            Ok(cnf) => cnf,
            Err(reason) => return Err(SystemConfError::Unreadable { path, reason }),
        };
        let conf = Self { path, cnf };
        for (section, key) in [
            (Some(DEFAULT), "openssl_conf"),
            (conf.init(), "providers"),
            (conf.init(), "alg_section"),
            (conf.init(), "ssl_conf"),
            (conf.ssl(), "system_default"),
        ] {
            let value = section.and_then(|section| conf.cnf.value(section, key));
            if let Some(value) = value.filter(|value| openssl_cnf::has_variable(value)) {
                let (path, value) = (conf.path.clone(), value.to_owned());
                return Err(SystemConfError::Variable { path, key, value });
            }
        }
        Ok(Some(conf))
    }

    /// The groups that the system's policy allows, as its list is written.
    pub(crate) fn groups(&self) -> Option<&str> {
        let section = self.cnf.value(self.ssl()?, "system_default")?;
        let named = |key| self.cnf.value(section, key);
        named("Groups").or_else(|| named("Curves"))
    }

    /// The text of a generated file as a continuation of this one. Its sections `openssl_init`, `provider_sect`,
    /// `default_sect`, `tls_sect` and `groups_sect` take the names that they have here.
    pub(crate) fn continued_by(&self, body: &str) -> String {
        let mut text = self.renamed(body);
        let mut differences = vec!["the provider `millrace` is loaded".to_owned()];
        if self.providers().iter().any(|(_, section)| self.is_active(section)) {
            // Naming a provider turned the automatic one off already, on purpose (fips).
            let default = self.default_section();
            for lines in
                [format!("default = {default}\n"), format!("{NAMED}[{default}]\nactivate = 1\n\n")]
            {
                text = text.replace(&lines, "");
            }
        } else {
            differences.push("`default` is activated by name, as it was without one".to_owned());
        }
        if let Some(query) = self.properties().filter(|_| text.contains("\nalg_section = ")) {
            let joined = format!("default_properties = {query},");
            text = text.replace("default_properties = ", &joined);
            differences.push(format!("preferences are added to default_properties = {query}"));
        }
        let mut head = String::new();
        if self.cnf.value(DEFAULT, "config_diagnostics").is_some_and(is_on) {
            head.push_str("config_diagnostics = 0\n");
            differences
                .push("a provider that does not load keeps no program from starting".to_owned());
        }
        if self.cnf.value(DEFAULT, "nodejs_conf").is_some() {
            let init = self.name(self.init(), "openssl_init");
            text = text.replace(&format!("nodejs_conf = {init}\n"), "");
            differences.push("nodejs_conf stays: Node.js does not use the provider".to_owned());
        }
        let path = self.path.display();
        let mut start =
            "# The configuration before this one stays in force, but for this:\n".to_owned();
        for difference in differences {
            let _ = writeln!(start, "{DIFFERENCE}{difference}");
        }
        let _ = write!(start, ".include = {path}\n\n[default]\n{head}");
        text.replacen("openssl_conf = ", &format!("{start}openssl_conf = "), 1)
    }

    fn renamed(&self, body: &str) -> String {
        let init = self.name(self.init(), "openssl_init");
        let linked = |key| self.init().and_then(|init| self.cnf.value(init, key));
        let system_default = self.ssl().and_then(|ssl| self.cnf.value(ssl, "system_default"));
        let names = [
            ("openssl_init", init),
            ("provider_sect", self.name(linked("providers"), "provider_sect")),
            ("default_sect", self.default_section()),
            // Whether a program prefers the provider is said in the generated file alone.
            ("algorithm_sect", self.name(None, "algorithm_sect")),
            ("millrace_sect", self.name(None, "millrace_sect")),
            ("tls_sect", self.name(self.ssl(), "tls_sect")),
            ("groups_sect", self.name(system_default, "groups_sect")),
        ];
        let is_word = |character: char| character.is_ascii_alphanumeric() || character == '_';
        let mut text = String::with_capacity(body.len());
        let mut rest = body;
        while let Some(at) = rest.find(is_word) {
            text.push_str(&rest[..at]);
            let word = &rest[at..];
            let word = &word[..word.find(|character| !is_word(character)).unwrap_or(word.len())];
            let name = names.iter().find(|(ours, _)| *ours == word);
            text.push_str(name.map_or(word, |(_, name)| name));
            rest = &rest[at + word.len()..];
        }
        text + rest
    }

    /// The name of a section: that of the section here which it continues, else ours, unless that is taken.
    fn name(&self, continued: Option<&str>, ours: &str) -> String {
        match continued {
            Some(name) => name.to_owned(),
            None if self.cnf.section(ours).is_some() => format!("millrace_{ours}"),
            None => ours.to_owned(),
        }
    }

    fn init(&self) -> Option<&str> {
        self.cnf.value(DEFAULT, "openssl_conf")
    }

    fn ssl(&self) -> Option<&str> {
        self.cnf.value(self.init()?, "ssl_conf")
    }

    fn providers(&self) -> &[(String, String)] {
        let section = self.init().and_then(|init| self.cnf.value(init, "providers"));
        section.and_then(|section| self.cnf.section(section)).unwrap_or_default()
    }

    fn default_section(&self) -> String {
        let named = self.providers().iter().rev().find(|(name, _)| name == "default");
        self.name(named.map(|(_, section)| section.as_str()), "default_sect")
    }

    fn is_active(&self, section: &str) -> bool {
        self.cnf.value(section, "activate").is_some_and(is_on)
    }

    /// The preferences of all programs.
    fn properties(&self) -> Option<&str> {
        let section = self.cnf.value(self.init()?, "alg_section")?;
        let query = self.cnf.value(section, "default_properties").filter(|query| !query.is_empty());
        let fips = self.cnf.value(section, "fips_mode").is_some_and(is_on);
        query.or_else(|| fips.then_some("fips=yes"))
    }
}

/// Whether a value switches something on, by OpenSSL's words for off.
pub(crate) fn is_on(value: &str) -> bool {
    !matches!(value.to_ascii_lowercase().as_str(), "0" | "no" | "off" | "false")
}

/// The file that the unit files of a service name in `OPENSSL_CONF`, apart from the generated one.
fn named_by_unit(root: &Root, unit: &str) -> Option<PathBuf> {
    let is_own = |path: &String| path != OPENSSL_CNF && !path.is_empty();
    if let ServiceVariable::Set(_, path) =
        ServiceEnvironment::of(root, unit).variable("OPENSSL_CONF")
        && is_own(&path)
    {
        return Some(path.into());
    }
    let lines = systemd::values(root, unit, "Environment");
    let words = lines.iter().rev().flat_map(|line| environment::words(line).into_iter().rev());
    let mut paths = words.filter_map(|word| Some(word.strip_prefix("OPENSSL_CONF=")?.to_owned()));
    paths.find(is_own).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    const BODY: &str = include_str!("../templates/openssl-local.cnf");

    fn machine(files: &[(&str, &str)]) -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            fs::write(path, text).expect("a file");
        }
        folder
    }

    fn read(folder: &TempDir, unit: Option<&str>) -> Result<Option<SystemConf>, SystemConfError> {
        SystemConf::read(&Root::open(folder.path()).expect("a root"), unit)
    }

    fn continued(text: &str) -> Cnf {
        let system = machine(&[("etc/ssl/openssl.cnf", text)]);
        let system = read(&system, None).expect("readable").expect("there");
        Cnf::parse(&system.continued_by(BODY), |path| {
            assert_eq!(path, "/etc/ssl/openssl.cnf");
            vec![text.to_owned()]
        })
    }

    /// The value at the end of a path of keys, each of which names a section.
    fn value<'a>(cnf: &'a Cnf, keys: &[&str]) -> Option<&'a str> {
        keys.iter().try_fold(DEFAULT, |section, key| cnf.value(section, key))
    }

    #[test]
    fn policy_and_providers_of_the_system_stay_in_force() {
        let cnf = continued(
            "config_diagnostics = 1\nopenssl_conf = conf\n[conf]\nssl_conf = tls\nproviders = list\n\
             oid_section = oids\n[tls]\nsystem_default = policy\n[policy]\nCipherString = DEFAULT:@SECLEVEL=3\n\
             Groups = P-384\n[list]\ndefault = first\nlegacy = old\n[first]\nactivate = 1\n[old]\nactivate = yes\n",
        );
        let ours = ["openssl_conf", "providers", "millrace", "activate"];
        assert_eq!(value(&cnf, &ours), Some("1"));
        for provider in ["default", "legacy"] {
            let path = ["openssl_conf", "providers", provider, "activate"];
            assert!(value(&cnf, &path).is_some_and(is_on), "{provider}");
        }
        let policy = ["openssl_conf", "ssl_conf", "system_default"];
        for (key, set) in [("CipherString", "DEFAULT:@SECLEVEL=3"), ("Groups", "P-384")] {
            assert_eq!(value(&cnf, &[&policy[..], &[key]].concat()), Some(set));
        }
        assert_eq!(value(&cnf, &["openssl_conf", "oid_section"]), Some("oids"));
        assert_eq!(value(&cnf, &["nodejs_conf"]), Some("conf"));
        assert_eq!(value(&cnf, &["config_diagnostics"]), Some("0"));
        let query = ["openssl_conf", "alg_section", "default_properties"];
        assert_eq!(value(&cnf, &query), Some("?millrace.local=yes"));
    }

    #[test]
    fn automatic_default_provider_is_activated_by_name() {
        for text in [
            "",
            "openssl_conf = openssl_init\n[openssl_init]\nssl_conf = ssl_sect\n[ssl_sect]\n",
            "openssl_conf = openssl_init\n[openssl_init]\nproviders = provider_sect\n[provider_sect]\n\
             default = default_sect\n[default_sect]\n# activate = 1\n",
            // Sections of our names that no key leads to.
            "[provider_sect]\nother = x\n[openssl_init]\nengines = y\n[algorithm_sect]\n[default_sect]\na = b\n",
        ] {
            let cnf = continued(text);
            let default = ["openssl_conf", "providers", "default", "activate"];
            assert_eq!(value(&cnf, &default), Some("1"), "{text}");
            let module = ["openssl_conf", "providers", "millrace", "module"];
            assert_eq!(value(&cnf, &module), Some("{module}"), "{text}");
            assert_eq!(value(&cnf, &["openssl_conf", "providers", "other"]), None, "{text}");
            assert_eq!(value(&cnf, &["openssl_conf", "engines"]), None, "{text}");
        }
    }

    #[test]
    fn fips_policy_keeps_the_default_provider_out() {
        let cnf = continued(
            "openssl_conf = i\nnodejs_conf = n\n[i]\nproviders = p\nalg_section = a\n[p]\nfips = f\nbase = b\n\
             [f]\nactivate = 1\n[b]\nactivate = 1\n[a]\ndefault_properties = fips=yes\n[n]\n",
        );
        assert_eq!(value(&cnf, &["openssl_conf", "providers", "default"]), None);
        let query = ["openssl_conf", "alg_section", "default_properties"];
        assert_eq!(value(&cnf, &query), Some("fips=yes,?millrace.local=yes"));
        assert_eq!(value(&cnf, &["nodejs_conf"]), Some("n"));
        let old = continued("openssl_conf = i\n[i]\nalg_section = a\n[a]\nfips_mode = yes\n");
        assert_eq!(value(&old, &query), Some("fips=yes,?millrace.local=yes"));
    }

    #[test]
    fn groups_in_an_included_policy_are_found() {
        let red_hat = machine(&[
            (
                "etc/pki/tls/openssl.cnf",
                "openssl_conf = i\n[i]\nssl_conf = m\n[m]\nsystem_default = c\n[c]\n\
                 .include = /etc/crypto-policies/back-ends/opensslcnf.config\n[other]\n",
            ),
            ("etc/crypto-policies/back-ends/opensslcnf.config", "Groups = secp384r1\n"),
        ]);
        let conf = read(&red_hat, None).expect("readable").expect("there");
        assert_eq!(conf.groups(), Some("secp384r1"));
        assert!(conf.continued_by(BODY).contains("\n.include = /etc/pki/tls/openssl.cnf\n"));
    }

    #[test]
    fn file_that_the_unit_names_comes_before_that_of_the_system() {
        let unit = "etc/systemd/system/nginx.service.d";
        let own = format!("{unit}/own.conf");
        let generated = format!("{unit}/zz.conf");
        let folder = machine(&[
            ("etc/ssl/openssl.cnf", ""),
            ("srv/own.cnf", "openssl_conf = own\n"),
            (&own, "[Service]\nEnvironment=\"OPENSSL_CONF=/srv/own.cnf\" A=1\n"),
            (&generated, "[Service]\nEnvironment=OPENSSL_CONF=/etc/millrace/openssl.cnf\n"),
        ]);
        let path = |unit| read(&folder, unit).expect("readable").expect("there").path;
        assert_eq!(path(Some("nginx.service")), Path::new("/srv/own.cnf"));
        assert_eq!(path(Some("haproxy.service")), Path::new("/etc/ssl/openssl.cnf"));
        assert_eq!(path(None), Path::new("/etc/ssl/openssl.cnf"));
    }

    #[test]
    fn what_cannot_be_continued_is_refused_by_name() {
        assert!(read(&machine(&[]), None).expect("nothing there").is_none());
        let marked = machine(&[("etc/ssl/openssl.cnf", "\u{feff}openssl_conf = x\n")]);
        let error = read(&marked, None).expect_err("a byte order mark").to_string();
        assert!(error.contains("byte order mark"), "{error}");
        let variable = machine(&[("etc/ssl/openssl.cnf", "x = y\nopenssl_conf = $x\n")]);
        let error = read(&variable, None).expect_err("a variable").to_string();
        assert!(error.starts_with("/etc/ssl/openssl.cnf: `openssl_conf = $x`"), "{error}");
        let folder = machine(&[("etc/ssl/openssl.cnf/x", "")]);
        let error = read(&folder, None).expect_err("a folder").to_string();
        assert!(error.contains("policy would be lost"), "{error}");
    }
}
