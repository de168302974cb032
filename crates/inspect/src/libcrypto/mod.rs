// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The crypto libraries that are installed or in use, and whether each makes use of the processor.
//!
//! A library can be slow although the processor is fast: built without assembly, for size, without
//! vectors, or masked by somebody's environment. Most of it can be told from the file alone, also of
//! a firmware for another processor:
//!
//! ```text
//! find.rs       where libraries are, and which programs carry one inside
//! identify.rs   whose it is, its version, its compiler's line
//! modules.rs    which assembly modules it has, and which a full build has
//! report.rs     its own report of the processor (live), and what of the processor it ignores
//! masks.rs      settings in /etc that switch instructions off
//! processes.rs  who has it loaded
//! timed.rs      the same operation with and without the instructions (live, on request)
//! ```
//!
//! Not here: what to do about it.

mod find;
mod identify;
mod masks;
mod modules;
mod processes;
mod report;
mod timed;

use schemars::JsonSchema;
use serde::Serialize;

pub use self::identify::{Build, Identity, Maker};
pub use self::masks::Mask;
pub use self::modules::{AlgorithmUse, Assembly, Level};
pub use self::processes::User;
pub use self::report::OwnReport;
pub use self::timed::{CLEAR_RATIO, Timed, timed};
use crate::cpu::{Architecture, Cpu};
use crate::elf::Elf;
use crate::report::{Look, Section};
use millrace_hostfs::{Root, Unavailable};

/// The crypto libraries of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Libraries {
    /// Each one that was found
    pub libraries: Vec<Library>,
    /// Settings that switch off instructions for programs that read them
    pub masks: Vec<Mask>,
    /// Running processes with a library of a container's own, which is not described here: look at
    /// `--root /proc/PID/root`; null if that is not known
    pub container_processes: Option<usize>,
}

/// A crypto library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Library {
    /// Where it is, relative to the root
    pub path: String,
    /// It is linked into this program, rather than a library of its own
    pub inside_program: bool,
    /// Whose it is, and which version
    pub identity: Identity,
    /// What its headers say
    pub elf: Elf,
    /// How it was built
    pub build: Build,
    /// How much of its assembly is there
    pub assembly: Assembly,
    /// The assembly modules that it names
    pub modules: Vec<String>,
    /// How each algorithm runs on these processors, as far as the file tells
    pub algorithms: Vec<AlgorithmUse>,
    /// What it says of the processor when it is loaded
    pub own_report: Option<OwnReport>,
    /// Why it is slower than it could be; empty if nothing says so
    pub slow: Vec<Slow>,
    /// Running programs that have it loaded; null if that is not known
    pub used_by: Option<Vec<User>>,
}

/// A reason why a library is slower than it could be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Slow {
    /// What is slow
    pub what: String,
    /// What says so
    pub evidence: String,
}

/// Libraries that are described; a tree with more is no ordinary one.
const MAX_LIBRARIES: usize = 64;

/// Looks at the libraries, on processors such as these.
#[must_use]
pub fn section(root: &Root, cpu: Option<&Cpu>) -> Section<Libraries> {
    let mut look = Look::new(root);
    let mut candidates = find::libraries(&mut look);
    let loaded = processes::loaded(&mut look);
    for path in loaded.iter().flat_map(processes::Loaded::paths) {
        let known = |known: &String| known == path || processes::same(root, path, known);
        if !candidates.shared.iter().any(known) {
            candidates.shared.push(path.to_owned());
        }
    }
    let mut libraries = Vec::new();
    for path in candidates.shared {
        if libraries.len() == MAX_LIBRARIES {
            look.note(
                &path,
                Unavailable::unreadable("too many libraries: the others are left out"),
            );
            break;
        }
        libraries.extend(describe(&mut look, &path, cpu, false));
    }
    for path in candidates.programs {
        if libraries.len() < MAX_LIBRARIES {
            libraries.extend(describe(&mut look, &path, cpu, true));
        }
    }
    if let Some(loaded) = &loaded {
        for library in &mut libraries {
            library.used_by = Some(processes::users_of(loaded, root, &library.path));
        }
    }
    let masks = masks::find(&mut look);
    look.section(Some(Libraries {
        libraries,
        masks,
        container_processes: loaded.map(|loaded| loaded.in_containers),
    }))
}

/// Describes a file, if it is a crypto library (or, of a program, holds one).
fn describe(look: &mut Look<'_>, path: &str, cpu: Option<&Cpu>, program: bool) -> Option<Library> {
    let bytes = if program {
        // A program that is not there says nothing: none of them has to be.
        look.library_if_there(path)?
    } else {
        look.library(path)?
    };
    let mut library = match examine(&bytes, path, program, cpu) {
        Ok(library) => library?,
        // A linker script, or whatever else is called like a library.
        Err(reason) => {
            if !program {
                look.note(path, Unavailable::malformed(reason));
            }
            return None;
        }
    };
    if !program {
        library.own_report = report::ask(look, &library);
    }
    if let (Some(report), Some(cpu)) = (library.own_report.clone(), runs(&library, cpu)) {
        let ignored = report.ignored(library.elf.architecture, cpu);
        library.algorithms = modules::algorithms(&library, Some(cpu), &ignored);
        library.slow.extend(report.slow(&ignored));
    }
    Some(library)
}

/// What the bytes of a file tell of the crypto library that it is, or, of a `program`, holds; none if
/// it is no crypto library. `path` is where it is, since some are told by their names.
///
/// # Errors
/// It is no ELF file that can be read, in words.
pub fn examine(
    bytes: &[u8],
    path: &str,
    program: bool,
    cpu: Option<&Cpu>,
) -> Result<Option<Library>, String> {
    let elf = Elf::parse(bytes)?;
    let Some((identity, build)) = identify::identify(bytes, path, &elf, program) else {
        return Ok(None);
    };
    let mut library = Library {
        path: path.to_owned(),
        inside_program: program,
        assembly: Assembly::Unknown,
        modules: modules::named(bytes),
        algorithms: Vec::new(),
        own_report: None,
        slow: Vec::new(),
        used_by: None,
        identity,
        elf,
        build,
    };
    library.assembly = modules::assembly(&library);
    library.algorithms = modules::algorithms(&library, runs(&library, cpu), &[]);
    library.slow = modules::slow(&library);
    library.slow.extend(identify::slow(&library.build));
    Ok(Some(library))
}

/// The processors, if they run code for this library: for 32 bits, 64-bit ones do, too.
fn runs<'a>(library: &Library, cpu: Option<&'a Cpu>) -> Option<&'a Cpu> {
    use Architecture::{Aarch64, Arm, X86, X86_64};
    let built_for = library.elf.architecture;
    cpu.filter(|cpu| {
        cpu.architecture.is_some_and(|machine| {
            built_for == machine || matches!((built_for, machine), (X86, X86_64) | (Arm, Aarch64))
        })
    })
}

#[cfg(test)]
mod tests;
