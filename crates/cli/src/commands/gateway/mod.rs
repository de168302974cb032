// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace gateway`: prints or writes the configuration that puts the pool under an application, and checks
//! that it is in use. The gateway crate has the recipes and the checks; this module has the arguments and the
//! output.

mod check;

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::Result;
use millrace_gateway::plan::{RecipePlan, Snippet};
use millrace_gateway::recipe::{LocalSettings, compression_plan, local_plan, with_groups};
use millrace_gateway::settings::RecipeSettings;
use millrace_gateway::system_conf::SystemConf;
use millrace_gateway::{Application, write};
use millrace_hostfs::certbot::lineages;
use millrace_hostfs::generated::below;
use millrace_hostfs::generated::verify::ConfigVerdict;
use millrace_hostfs::generated::write::{EditedFiles, FileChange, FileState, Written};
use millrace_hostfs::{Root, systemd};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{Compression, GatewayArgs, GatewayCommand};
use crate::commands::ask_nodes;
use crate::exit::{ContextCode, Failure, fail};
use crate::output;
use crate::paths;
use crate::progress;
use crate::terminal::styled;

/// Names of the provider module: installed, and as cargo builds it.
const MODULE_NAMES: [&str; 2] = ["millrace.so", "libmillrace_provider.so"];

/// Name of the preload library, which makes nginx asynchronous.
const PRELOAD_NAMES: [&str; 1] = ["libmillrace_preload.so"];

/// Name of the library that compresses responses.
const COMPRESSION_NAMES: [&str; 1] = ["libmillrace_zlib.so"];

pub(crate) fn run(args: &GatewayArgs) -> Result<()> {
    match &args.command {
        Some(GatewayCommand::Check(args)) => return check::run(args),
        Some(GatewayCommand::Ask) => return ask_nodes::serve_order(),
        None => {}
    }
    let Some(application) = args.application else {
        return Err(fail(Failure::Usage, "name an application, or `check`"));
    };
    if args.compression.is_some() && application != Application::Nginx {
        let message = "--compression is for nginx; docs/guide/compression.md says what it does in other servers";
        return Err(fail(Failure::Usage, message));
    }
    if args.local && application == Application::Openssl && args.preload.is_some() {
        let message = "--preload is for nginx and haproxy: the library answers the look-ups of these servers alone. Leave \
                       out --preload";
        return Err(fail(Failure::Usage, message));
    }
    let plan = match (args.compression, compression_library(args)?) {
        (Some(Compression::Only), Some(library)) => compression_plan(&library, uses_systemd(args)),
        _ if args.local && args.pool.is_empty() => local_plan(application, &local_settings(args)?).ok_or_else(|| {
            let message = "--local is for nginx, haproxy and openssl; docs/guide/local.md says how others use it";
            fail(Failure::Usage, message)
        })?,
        _ if args.local && (args.pq || args.remove) => {
            // --remove takes away what any --write has made, whatever its options were.
            let settings = settings(args)?;
            with_groups(application.plan(&settings), settings.system.as_ref()).ok_or_else(|| {
                fail(Failure::Usage, "--pq with --pool is for nginx and haproxy")
            })?
        }
        _ => application.plan(&settings(args)?),
    };
    if args.remove {
        return remove(&plan, args);
    }
    match (args.write, args.json) {
        (true, _) => put_in_place(&plan, args),
        (false, true) => output::print_json(&plan),
        (false, false) => output::print(&plan.text()),
    }
}

/// The arguments, with defaults filled in.
fn settings(args: &GatewayArgs) -> Result<RecipeSettings> {
    let mut nodes = args.pool.clone();
    if nodes.is_empty() {
        let socket = match &args.socket.socket {
            Some(socket) => socket.clone(),
            None => paths::runtime_dir(None)?.join("node.sock"),
        };
        nodes.push(format!("unix:{}", socket.display()));
    }
    let over_tcp = nodes.iter().any(|node| node.starts_with("tcp:"));
    let module = match &args.provider {
        Some(path) => absolute(path),
        // What is removed is found by the paths of the files, also after the module is gone.
        None if args.remove => {
            find_library(&MODULE_NAMES).unwrap_or_else(|| MODULE_NAMES[0].into())
        }
        None => find_library(&MODULE_NAMES).ok_or_else(no_module)?,
    };
    let preload = match &args.preload {
        Some(path) => Some(absolute(path)),
        None => find_library(&PRELOAD_NAMES),
    };
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    let settings = RecipeSettings {
        key: args.key.clone(),
        nodes,
        certificates: over_tcp.then(|| args.certs.clone()),
        plain_keys: args.plain_keys,
        local: args.local,
        module,
        preload,
        compression: compression_library(args)?,
        mode: args.settings.mode.unwrap_or_default(),
        provider: args.settings.keys(),
        connections: args.connections,
        cores: u32::try_from(cores).unwrap_or(u32::MAX),
        systemd: uses_systemd(args),
        certbot: certbot_plugins(args),
        system: system_conf(args)?,
    };
    RecipeSettings::new(settings).map_err(|error| fail(Failure::Usage, error.to_string()))
}

/// The arguments of `--local`, with defaults filled in.
fn local_settings(args: &GatewayArgs) -> Result<LocalSettings> {
    let settings = settings(args)?;
    Ok(LocalSettings {
        module: settings.module,
        preload: settings.preload,
        // --remove takes away what any --write has made, whatever its options were.
        post_quantum: args.pq || args.remove,
        systemd: settings.systemd,
        system: settings.system,
    })
}

/// Servers whose configuration certbot tests at a renewal. What is removed is found by its path.
fn certbot_plugins(args: &GatewayArgs) -> Vec<&'static str> {
    let lineages = Root::open(&args.tree.root).map_or_else(|_| Vec::new(), |root| lineages(&root));
    let tested =
        |server: &&str| args.remove || lineages.iter().any(|lineage| lineage.tests(server));
    ["nginx", "apache"].into_iter().filter(tested).collect()
}

/// The `openssl.cnf` that the generated one continues. What is removed is found by its path.
fn system_conf(args: &GatewayArgs) -> Result<Option<SystemConf>> {
    let Some(root) = Root::open(&args.tree.root).ok().filter(|_| !args.remove) else {
        return Ok(None);
    };
    let unit = args.application.map(|application| format!("{application}.service"));
    let conf = SystemConf::read(&root, unit.as_deref());
    conf.or_fail(Failure::Failed, || "nothing was changed".to_owned())
}

/// Removes the generated files of a plan.
fn remove(plan: &RecipePlan, args: &GatewayArgs) -> Result<()> {
    let removed = write::remove(plan, &args.tree.root)?;
    if args.json {
        return output::print_json(&removed);
    }
    let mut text = String::new();
    for path in &removed.removed {
        text.push_str(&format!("removed        {}\n", path.display()));
    }
    for path in &removed.kept {
        text.push_str(&format!("edited, stays  {}\n", path.display()));
    }
    for file in &removed.used {
        let path = file.path.display();
        let by = file.by.display();
        text.push_str(&format!("in use, stays  {path}: {by} names it\n"));
    }
    let missing = write::missing_snippets(plan, &args.tree.root);
    let is_there = |snippet: &&Snippet| !missing.iter().any(|other| other.marker == snippet.marker);
    for snippet in plan.snippets.iter().filter(is_there) {
        let path = snippet.path.display();
        text.push_str(&format!("take out of {path}:\n{}", snippet.contents));
    }
    text.push_str(match text.as_str() {
        "" => "nothing to remove: no file of `millrace gateway --write` is here\n",
        _ => "then restart the server: it takes its environment at a start\n",
    });
    output::print(&text)
}

/// Whether systemd starts the services. Below another root is a machine that is not running.
fn uses_systemd(args: &GatewayArgs) -> bool {
    args.tree.root != Path::new("/") || Path::new(systemd::BOOTED).exists()
}

/// The library that compresses, if it is asked for.
fn compression_library(args: &GatewayArgs) -> Result<Option<PathBuf>> {
    if args.compression.is_none() {
        return Ok(None);
    }
    let found = match &args.compression_library {
        Some(path) => Some(absolute(path)),
        None => find_library(&COMPRESSION_NAMES),
    };
    let missing = || {
        let name = COMPRESSION_NAMES[0];
        let message = format!(
            "no {name} near this binary: build it (make build), or name it with --compression-library"
        );
        fail(Failure::Failed, message)
    };
    found.map(Some).ok_or_else(missing)
}

fn absolute(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Folders with libraries: the binary's own (a build tree or an unpacked archive), the lib folder of an
/// installation prefix, and OpenSSL's module folders of Debian and other systems.
fn library_folders(binary: &Path) -> Vec<PathBuf> {
    let folder = binary.parent().unwrap_or_else(|| Path::new("/"));
    let multiarch = format!("/usr/lib/{}-linux-gnu/ossl-modules", env::consts::ARCH);
    let places = [".", "../lib/millrace", &multiarch, "/usr/lib64/ossl-modules"];
    places.iter().map(|place| folder.join(place)).collect()
}

/// The first existing library with one of these names.
fn find_library(names: &[&str]) -> Option<PathBuf> {
    let binary = env::current_exe().ok()?;
    library_folders(&binary)
        .iter()
        .flat_map(|folder| names.iter().map(|name| folder.join(name)))
        .find_map(|path| fs::canonicalize(path).ok())
}

fn no_module() -> anyhow::Error {
    let message = format!(
        "no provider module ({}) near this binary: build it (make build), or name it with --provider",
        MODULE_NAMES.join(" or ")
    );
    fail(Failure::Failed, message)
}

/// The output of `--write --json`.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "Written")]
pub(super) struct WriteResult<'a> {
    /// Whether the files were only compared.
    dry_run: bool,
    #[serde(flatten)]
    written: &'a Written,
    /// The lines that the user must still add to files of their own.
    missing: Vec<&'a Snippet>,
}

fn put_in_place(plan: &RecipePlan, args: &GatewayArgs) -> Result<()> {
    certificates_are_there(args)?;
    if !args.plan.dry_run {
        for path in write::recover(&args.tree.root)? {
            note!("restored, since a former run was killed: {}", path.display());
        }
    }
    let changes = write::compare(plan, &args.tree.root)?;
    // Printed before the write, which may fail.
    if !args.json {
        output::print(&(show(&changes.files) + &differences(plan)))?;
    }
    let nothing = changes.is_empty();
    let written = if args.plan.dry_run {
        Written { files: changes.files, ..Written::default() }
    } else {
        let work = || write::apply(changes, EditedFiles::with_force(args.force), &args.tree.root);
        progress::while_doing("testing the configuration", work)
            .or_fail(Failure::Failed, || "nothing was changed".to_owned())?
    };
    let missing = write::missing_snippets(plan, &args.tree.root);
    if args.json {
        return output::print_json(&WriteResult {
            dry_run: args.plan.dry_run,
            written: &written,
            missing,
        });
    }
    if nothing {
        note!("nothing to do: all files are in place");
    } else if args.plan.dry_run {
        note!("nothing was written: --write without --dry-run makes these changes");
    }
    for copy in &written.saved {
        note!("kept a copy: {}", copy.display());
    }
    for verified in &written.verified {
        note!("{}", verdict(verified.name, &verified.after));
    }
    output::print(&what_remains(plan, &missing, nothing))
}

/// A server with stubs does not start with certificate files that are missing: OpenSSL loads no provider then.
///
/// # Errors
/// The first file that is missing.
fn certificates_are_there(args: &GatewayArgs) -> Result<()> {
    if !args.pool.iter().any(|node| node.starts_with("tcp:")) {
        return Ok(());
    }
    for file in ["ca.pem", "cert.pem", "key.pem"] {
        let path = below(&args.tree.root, &args.certs.join(file));
        if !path.is_file() {
            let message = format!(
                "nothing was written: there is no {}: make the files on a node with `millrace cert client NAME \
                 -o DIR`, copy DIR here and name it with --certs",
                path.display()
            );
            return Err(fail(Failure::Failed, message));
        }
    }
    Ok(())
}

/// The changes of the new `openssl.cnf` for its programs, as text.
fn differences(plan: &RecipePlan) -> String {
    let lines: String = plan.differences().map(|line| format!("    {line}\n")).collect();
    if lines.is_empty() {
        return lines;
    }
    format!("against the OpenSSL configuration before:\n{lines}")
}

/// The changes as text.
fn show(changes: &[FileChange]) -> String {
    let styled = styled(&io::stdout());
    let mut text = String::new();
    for change in changes {
        let state = match change.state {
            FileState::New => "new",
            FileState::Unchanged => "unchanged",
            FileState::Changed => "changed",
            FileState::Edited => "edited by hand",
            FileState::Foreign => "not ours",
        };
        text.push_str(&format!("{state:<14}  {}\n", change.path.display()));
        for line in &change.diff {
            let colour = match line.as_bytes().first() {
                Some(b'-') => "\x1b[31m",
                Some(b'+') => "\x1b[32m",
                _ => "",
            };
            if styled && !colour.is_empty() {
                text.push_str(&format!("    {colour}{line}\x1b[0m\n"));
            } else {
                text.push_str(&format!("    {line}\n"));
            }
        }
    }
    text
}

fn verdict(name: &str, verdict: &ConfigVerdict) -> String {
    match verdict {
        ConfigVerdict::Passed => format!("{name}: passed"),
        ConfigVerdict::Skipped(why) => format!("{name}: not run ({why})"),
        ConfigVerdict::Failed(said) => {
            format!("{name}: fails, as it did with the old files, so the new ones are kept: {said}")
        }
    }
}

/// The steps left to the user, as text.
fn what_remains(plan: &RecipePlan, missing: &[&Snippet], nothing: bool) -> String {
    let rest = RecipePlan {
        application: plan.application,
        before: if nothing { Vec::new() } else { plan.before.clone() },
        files: Vec::new(),
        snippets: missing.iter().map(|snippet| (*snippet).clone()).collect(),
        after: if nothing { Vec::new() } else { plan.after.clone() },
        verifications: Vec::new(),
    };
    rest.text()
}
