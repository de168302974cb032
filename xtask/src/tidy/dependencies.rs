// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Rules over `cargo metadata`: the directions that dependencies may take, one version of each
//! library, licences.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::licences;

/// The page whose code map is the table of directions.
const MAP: &str = "ARCHITECTURE.md";

/// The manifest of the fuzz targets.
const FUZZ: &str = "fuzz/Cargo.toml";

/// Crates that each crate may depend on, from the column "may depend on" of the code map in ARCHITECTURE.md. A crate
/// without a row may not exist: a new crate or edge needs an architecture decision record and a row there.
#[derive(Debug)]
struct Directions(Vec<Row>);

/// One row of the code map.
#[derive(Debug)]
struct Row {
    folder: String,
    purpose: String,
    targets: BTreeSet<String>,
}

impl Directions {
    /// Crates of ours that the manifest of the fuzz targets names.
    fn parse_fuzz(manifest: &str) -> BTreeSet<String> {
        let ours = manifest.lines().filter_map(|line| line.strip_prefix("millrace-"));
        ours.filter_map(|line| Some(line.split_once(" = ")?.0.to_owned())).collect()
    }

    /// Rows like ``| `crates/wire` | frames | engine | forbidden |``.
    fn parse(page: &str) -> Self {
        let rows = page.lines().filter_map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            let folder = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
            let folder = folder.strip_prefix("crates/").unwrap_or(folder).to_owned();
            let purpose = cells.next()?.to_owned();
            let targets = cells.next()?.split(',').map(|target| target.trim().to_owned());
            Some(Row { folder, purpose, targets: targets.collect() })
        });
        Self(rows.collect())
    }

    fn row(&self, folder: &str) -> Option<&Row> {
        self.0.iter().find(|row| row.folder == folder)
    }

    /// Edges that point up: the map is read from the bottom, so each crate comes after those that it depends on.
    fn check_order(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for (place, row) in self.0.iter().enumerate() {
            for below in self.0[place..].iter().filter(|below| row.targets.contains(&below.folder))
            {
                complaints.push(format!(
                    "{MAP}: the row of {} belongs above {}",
                    below.folder, row.folder
                ));
            }
        }
        complaints
    }
}

/// Complaints about the picture of the crates: a crate stands on a line of its own layer, above all that it depends on.
fn check_picture(page: &str, packages: &[Package]) -> Vec<String> {
    let picture = page.split("## Code map").nth(1).and_then(|rest| rest.split("```").nth(1));
    let lines: Vec<Vec<&str>> =
        picture.unwrap_or_default().lines().map(|line| line.split_whitespace().collect()).collect();
    let layer = |folder: &str| lines.iter().position(|line| line.contains(&folder));
    let mut complaints = Vec::new();
    for package in packages.iter().filter(|package| package.ours) {
        let Some(folder) = package.name.strip_prefix("millrace-") else { continue };
        if ["testkit", "tests"].contains(&folder) {
            continue;
        }
        let Some(own) = layer(folder) else {
            complaints.push(format!("{MAP}: {folder} is missing in the picture of the crates"));
            continue;
        };
        let above =
            package.normal.iter().filter(|target| layer(target).is_some_and(|at| at <= own));
        complaints.extend(
            above.map(|target| format!("{MAP}: the picture has {target} not below {folder}")),
        );
    }
    complaints
}

/// Edges that only tests have. Every crate may test with the testkit; the other edges have their reason.
#[rustfmt::skip]
const TEST_DIRECTIONS: &[(&str, &str, &str)] = &[
    ("cli", "wire", "a test speaks to a node below the client"),
    ("client", "service", "a whole pool is simulated in one process, with the session state of real nodes"),
    ("virtio", "backends", "the tests of a device run it on an engine that computes"),
    ("virtio", "virtio-guest", "the tests of a device drive it as a guest does"),
    ("server", "backends", "the tests of a node run it on an engine that computes"),
    ("provider", "engine", "the tests load the module against a real node"),
    ("provider", "service", "the tests load the module against a real node"),
    ("provider", "server", "the tests load the module against a real node"),
];

/// Libraries that a crate may not link, not even by way of others, with the reason.
#[rustfmt::skip]
const FORBIDDEN: &[(&str, &str, &str)] = &[
    ("operation", "aws-lc-sys", "the vocabulary computes nothing"),
    ("engine", "tokio", "the engine has its own workers, and front ends poll it"),
    ("engine", "aws-lc-sys", "the engine knows no implementation"),
    ("wire", "tokio", "frames are decoded without I/O"),
    ("wire", "rustls", "frames know no connection"),
    ("client", "tokio", "the client lives in a foreign web server that forks"),
    ("provider", "tokio", "the provider lives in a foreign web server that forks"),
    ("preload", "tokio", "the library lives in a foreign web server that forks"),
    ("preload", "aws-lc-sys", "the process has its own libcrypto"),
    ("zlib", "tokio", "the library lives in a foreign web server that forks"),
    ("service", "tokio", "front ends bring their own event loop"),
    ("virtio", "tokio", "a device has a thread for each queue"),
    ("inspect", "tokio", "an inspection reads files and ends"),
];

/// Libraries that may be there in more than one version, each with its reason.
const DUPLICATES: &[(&str, &str)] = &[
    ("bitflags", "vmm-sys-util holds on to 1; a macro of 500 lines without code at run time"),
    ("syn", "only in derive macros at build time; some have not moved to 3 yet"),
    ("untrusted", "aws-lc-rs holds on to 0.7, rustls-webpki to 0.9; 300 lines each"),
];

/// Only what is built on the platform that Millrace ships for counts.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Cargo's metadata of the workspace and everything it links.
pub(crate) struct Metadata {
    packages: Vec<Package>,
    /// Packages that each package links, by id.
    links: BTreeMap<String, Vec<String>>,
}

struct Package {
    id: String,
    name: String,
    description: String,
    version: String,
    licence: Option<String>,
    ours: bool,
    /// Names of the direct dependencies on crates of ours, by kind.
    normal: BTreeSet<String>,
    test: BTreeSet<String>,
}

impl Metadata {
    /// Asks cargo. The network is not used if the packages are there already.
    ///
    /// # Errors
    /// Cargo's own words, or an answer that is not understood.
    pub(crate) fn load(root: &Path) -> Result<Self> {
        let metadata = cargo(root, &["metadata", "--format-version", "1"])?;
        let metadata: Value = serde_json::from_slice(&metadata).context("metadata is not JSON")?;
        // The metadata also lists packages of features that no build enables; the tree lists what is built.
        let tree = ["tree", "--workspace", "--target", PLATFORM, "--edges", "all"];
        let form = ["--prefix", "none", "--format", "{p}"];
        let tree = cargo(root, &[&tree[..], &form[..]].concat())?;
        let tree = String::from_utf8(tree).context("cargo tree is not text")?;
        let built = tree.lines().filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.next()?.strip_prefix('v')?))
        });
        Self::parse(&metadata, &built.collect())
            .context("cargo metadata has another shape than expected")
    }

    /// `built` holds name and version of every package that counts.
    fn parse(metadata: &Value, built: &BTreeSet<(&str, &str)>) -> Option<Self> {
        let members: BTreeSet<&str> =
            metadata["workspace_members"].as_array()?.iter().filter_map(Value::as_str).collect();
        let mut packages = Vec::new();
        for package in metadata["packages"].as_array()? {
            let ours = members.contains(package["id"].as_str()?);
            let package = Package::parse(package, ours)?;
            if built.contains(&(&package.name, &package.version)) {
                packages.push(package);
            }
        }
        let mut links = BTreeMap::new();
        for node in metadata["resolve"]["nodes"].as_array()? {
            let linked = node["deps"].as_array()?.iter().filter(|dependency| {
                let kinds = dependency["dep_kinds"].as_array();
                kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
            });
            let linked =
                linked.filter_map(|dependency| dependency["pkg"].as_str().map(str::to_owned));
            links.insert(node["id"].as_str()?.to_owned(), linked.collect());
        }
        Some(Self { packages, links })
    }

    /// Number of packages in the graph.
    pub(crate) fn len(&self) -> usize {
        self.packages.len()
    }

    /// Edges between crates of ours that the table does not allow.
    pub(crate) fn check_directions(&self, root: &Path) -> Result<Vec<String>> {
        let page = fs::read_to_string(root.join(MAP)).with_context(|| format!("reading {MAP}"))?;
        let directions = Directions::parse(&page);
        let mut complaints = self.against(&directions);
        complaints.extend(directions.check_order());
        complaints.extend(check_picture(&page, &self.packages));
        // A workspace of its own, which this metadata does not list.
        let manifest =
            fs::read_to_string(root.join(FUZZ)).with_context(|| format!("reading {FUZZ}"))?;
        let fuzz = Directions::parse_fuzz(&manifest);
        if directions.row("fuzz").map(|row| &row.targets) != Some(&fuzz) {
            let fuzz: Vec<&str> = fuzz.iter().map(String::as_str).collect();
            complaints.push(format!("{MAP}: fuzz depends on {}", fuzz.join(", ")));
        }
        Ok(complaints)
    }

    fn against(&self, directions: &Directions) -> Vec<String> {
        let mut complaints = Vec::new();
        for package in self.packages.iter().filter(|package| package.ours) {
            let Some(folder) = package.name.strip_prefix("millrace-") else {
                if package.name != "xtask" {
                    complaints.push(format!("{}: name it millrace-<folder>", package.name));
                }
                continue;
            };
            let Some(row) = directions.row(folder) else {
                complaints.push(format!("crate {folder}: no row in the code map of {MAP}"));
                continue;
            };
            let allowed = &row.targets;
            if !row.purpose.starts_with(&package.description) {
                complaints.push(format!(
                    "crate {folder}: its row in {MAP} begins otherwise than its description: {}",
                    package.description
                ));
            }
            for target in &package.normal {
                if !allowed.contains(target) {
                    complaints.push(format!("crate {folder}: may not depend on {target}"));
                }
            }
            for target in allowed.iter().filter(|target| *target != "–") {
                if !package.normal.contains(target) {
                    complaints.push(format!(
                        "crate {folder}: {MAP} allows {target}, which it does not use"
                    ));
                }
            }
            for target in &package.test {
                let listed =
                    TEST_DIRECTIONS.iter().any(|(from, to, _)| *from == folder && to == target);
                if !allowed.contains(target) && target != "testkit" && !listed {
                    complaints.push(format!("crate {folder}: tests may not depend on {target}"));
                }
            }
        }
        complaints
    }

    /// Libraries that a crate links although [`FORBIDDEN`] lists them, and rows of crates that do not exist.
    pub(crate) fn check_forbidden(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for (folder, library, reason) in FORBIDDEN {
            let name = format!("millrace-{folder}");
            let Some(package) = self.packages.iter().find(|package| package.name == name) else {
                complaints
                    .push(format!("crate {folder}: not there, but listed as forbidden to link"));
                continue;
            };
            let linked = self.linked(&package.id);
            let found = self
                .packages
                .iter()
                .any(|other| other.name == *library && linked.contains(&other.id));
            if found {
                complaints.push(format!("crate {folder}: may not link {library}: {reason}"));
            }
        }
        complaints
    }

    /// Ids of the packages that a package links, directly or by way of others.
    fn linked<'a>(&'a self, id: &'a String) -> BTreeSet<&'a String> {
        let mut linked = BTreeSet::new();
        let mut open = vec![id];
        while let Some(id) = open.pop() {
            let next = self.links.get(id).into_iter().flatten();
            open.extend(next.filter(|target| linked.insert(*target)));
        }
        linked
    }

    /// Libraries in several versions that are not excused, and excuses that are no longer needed.
    pub(crate) fn check_duplicates(&self) -> Vec<String> {
        let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for package in &self.packages {
            versions.entry(&package.name).or_default().insert(&package.version);
        }
        let mut complaints = Vec::new();
        for (name, found) in &versions {
            let excused = DUPLICATES.iter().any(|(excused, _)| excused == name);
            if found.len() > 1 && !excused {
                let found: Vec<&str> = found.iter().copied().collect();
                complaints.push(format!(
                    "dependency {name}: {}: agree on one version, or list the reason in xtask",
                    found.join(" and ")
                ));
            }
        }
        for (name, _) in DUPLICATES {
            if versions.get(name).is_none_or(|found| found.len() < 2) {
                complaints
                    .push(format!("dependency {name}: no longer duplicated: drop its excuse"));
            }
        }
        complaints
    }

    /// Dependencies whose licence is not on the list.
    pub(crate) fn check_licences(&self) -> Vec<String> {
        let foreign = self.packages.iter().filter(|package| !package.ours);
        foreign
            .filter(|package| !package.licence.as_deref().is_some_and(licences::acceptable))
            .map(|package| {
                let licence = package.licence.as_deref().unwrap_or("none stated");
                format!("dependency {}: licence {licence} is not on the list", package.name)
            })
            .collect()
    }
}

impl Package {
    fn parse(package: &Value, ours: bool) -> Option<Self> {
        let mut normal = BTreeSet::new();
        let mut test = BTreeSet::new();
        for dependency in package["dependencies"].as_array()? {
            let Some(folder) = dependency["name"].as_str()?.strip_prefix("millrace-") else {
                continue;
            };
            let edges =
                if dependency["kind"].as_str() == Some("dev") { &mut test } else { &mut normal };
            edges.insert(folder.to_owned());
        }
        Some(Self {
            id: package["id"].as_str()?.to_owned(),
            name: package["name"].as_str()?.to_owned(),
            description: package["description"].as_str().unwrap_or_default().to_owned(),
            version: package["version"].as_str()?.to_owned(),
            licence: package["license"].as_str().map(str::to_owned),
            ours,
            normal,
            test,
        })
    }
}

/// Output of cargo.
fn cargo(root: &Path, args: &[&str]) -> Result<Vec<u8>> {
    let what = args.first().copied().unwrap_or_default();
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(args)
        .current_dir(root)
        .output()
        .with_context(|| format!("starting cargo {what}"))?;
    if !output.status.success() {
        bail!("cargo {what}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, normal: &[&str], test: &[&str]) -> Package {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Package {
            id: name.to_owned(),
            name: name.to_owned(),
            description: "Pure".to_owned(),
            version: version.to_owned(),
            licence: Some("MIT".to_owned()),
            ours: name.starts_with("millrace-"),
            normal: set(normal),
            test: set(test),
        }
    }

    #[test]
    fn edges_against_the_table_are_refused() {
        let map = "| `crates/engine` | Pure | – | forbidden |\n| `crates/client` | Speaks | wire, engine | – |";
        let packages = vec![
            package("millrace-engine", "1.0.0", &["wire"], &["testkit"]),
            package("millrace-client", "1.0.0", &["wire"], &["server"]),
            package("millrace-common", "1.0.0", &[], &[]),
        ];
        assert_eq!(
            Metadata { packages, links: BTreeMap::new() }.against(&Directions::parse(map)),
            [
                "crate engine: may not depend on wire",
                "crate client: its row in ARCHITECTURE.md begins otherwise than its description: Pure",
                "crate client: ARCHITECTURE.md allows engine, which it does not use",
                "crate client: tests may not depend on server",
                "crate common: no row in the code map of ARCHITECTURE.md",
            ]
        );
    }

    #[test]
    fn rows_stand_below_what_they_depend_on() {
        let map = "| `crates/client` | Speaks | wire | – |\n| `crates/wire` | Frames | – | – |";
        assert_eq!(
            Directions::parse(map).check_order(),
            ["ARCHITECTURE.md: the row of wire belongs above client"]
        );
    }

    #[test]
    fn picture_has_each_crate_above_what_it_depends_on() {
        let packages = [
            package("millrace-wire", "1.0.0", &[], &[]),
            package("millrace-client", "1.0.0", &["wire"], &[]),
            package("millrace-cli", "1.0.0", &["client"], &[]),
        ];
        let page = "## Code map\n```text\nwire client\n```";
        assert_eq!(
            check_picture(page, &packages),
            [
                "ARCHITECTURE.md: the picture has wire not below client",
                "ARCHITECTURE.md: cli is missing in the picture of the crates",
            ]
        );
    }

    #[test]
    fn forbidden_library_is_found_behind_another() {
        let mut packages: Vec<Package> = FORBIDDEN
            .iter()
            .map(|(folder, ..)| package(&format!("millrace-{folder}"), "1", &[], &[]))
            .collect();
        packages.push(package("tokio", "1", &[], &[]));
        let links = [("millrace-wire", "between"), ("between", "tokio")];
        let links = links.map(|(from, to)| (from.to_owned(), vec![to.to_owned()])).into();
        assert_eq!(
            Metadata { packages, links }.check_forbidden(),
            ["crate wire: may not link tokio: frames are decoded without I/O"]
        );
    }

    #[test]
    fn two_versions_need_an_excuse() {
        let packages =
            vec![package("doubled", "1.0.0", &[], &[]), package("doubled", "2.0.0", &[], &[])];
        let complaints = Metadata { packages, links: BTreeMap::new() }.check_duplicates();
        assert_eq!(complaints.len(), 1 + DUPLICATES.len(), "{complaints:?}");
        assert!(complaints[0].contains("1.0.0 and 2.0.0"));
    }
}
