// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The installed crypto libraries, and whether each uses the processor's instructions.
//!
//! A library can be slow on a fast processor: built without assembly, for size, without vectors, or masked by
//! an environment variable. The file alone shows most of this, also in a firmware for another processor:
//!
//! ```text
//! find.rs       folders of libraries, and programs with one linked in
//! identify.rs   maker, version, compiler options
//! modules.rs    its assembly modules, and those of a full build
//! report.rs     its own report of the processor (live), and the features that it ignores
//! masks.rs      settings in /etc that switch instructions off
//! processes.rs  the processes that have loaded it
//! timed.rs      the same operation with and without the instructions (live, on request)
//! ```
//!
//! Remedies are the task of [`doctor`](crate::doctor).

mod find;
mod identify;
mod masks;
mod modules;
mod processes;
mod report;
mod timed;

use millrace_hostfs::{Root, Unavailable};
use schemars::JsonSchema;
use serde::Serialize;

pub(crate) use self::identify::version_numbers;
pub use self::identify::{Build, LibraryIdentity, Maker};
pub use self::masks::Mask;
pub use self::modules::{AlgorithmUse, Assembly, ModuleLevel};
pub use self::processes::LibraryUser;
pub use self::report::OwnReport;
pub use self::timed::{CLEAR_RATIO, Timed, timed};
use crate::architecture::Architecture;
use crate::cpu::Cpu;
use crate::elf::{Elf, ElfError};
use crate::section::{Section, SectionReader};

/// The crypto libraries of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Libraries {
    /// All libraries found
    pub libraries: Vec<Library>,
    /// Settings that switch instructions off
    pub masks: Vec<Mask>,
    /// Number of processes with a library inside a container, which is not described here (use
    /// `--root /proc/PID/root`); null if unknown
    pub container_processes: Option<usize>,
}

/// A crypto library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Library {
    /// Path, relative to the root
    pub path: String,
    /// True if it is linked into this program
    pub inside_program: bool,
    /// Maker and version
    pub identity: LibraryIdentity,
    /// Facts from its ELF headers
    pub elf: Elf,
    /// Build options
    pub build: Build,
    /// Share of its assembly that it has
    pub assembly: Assembly,
    /// The assembly modules that it names
    pub modules: Vec<String>,
    /// Implementation of each algorithm on these processors, judged by the file
    pub algorithms: Vec<AlgorithmUse>,
    /// Its own report of the processor
    pub own_report: Option<OwnReport>,
    /// Reasons why it is slower than necessary
    pub slow: Vec<Slow>,
    /// Running programs that have loaded it; null if unknown
    pub used_by: Option<Vec<LibraryUser>>,
}

/// The kind of file that a crypto library is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// A file of its own, which programs load
    SharedLibrary,
    /// A program that has it linked in
    Program,
}

/// A reason why a library is slower than necessary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Slow {
    /// The slow algorithms
    pub what: String,
    /// The sign in the file, such as a missing module or a compiler option
    pub evidence: String,
}

/// Bound on libraries; an ordinary tree has fewer.
const MAX_LIBRARIES: usize = 64;

/// Their name where some are left out.
const LIBRARIES: &str = "libraries and programs";

/// Reads the facts about the libraries, judged on these processors.
#[must_use]
pub fn section(root: &Root, cpu: Option<&Cpu>) -> Section<Libraries> {
    let mut reader = SectionReader::new(root);
    let mut candidates = find::libraries(&mut reader);
    let loaded = processes::loaded(&mut reader);
    for path in loaded.iter().flat_map(processes::Loaded::paths) {
        let known = |known: &String| known == path || processes::same(root, path, known);
        if !candidates.shared.iter().any(known) {
            candidates.shared.push(path.to_owned());
        }
    }
    let mut libraries = Vec::new();
    for path in candidates.shared {
        if reader.is_full(LIBRARIES, &libraries, MAX_LIBRARIES) {
            break;
        }
        libraries.extend(describe(&mut reader, &path, cpu, Container::SharedLibrary));
    }
    for path in candidates.programs {
        if !reader.is_full(LIBRARIES, &libraries, MAX_LIBRARIES) {
            libraries.extend(describe(&mut reader, &path, cpu, Container::Program));
        }
    }
    if let Some(loaded) = &loaded {
        for library in &mut libraries {
            library.used_by = Some(processes::users_of(loaded, root, &library.path));
        }
    }
    let masks = masks::find(&mut reader);
    reader.section(Some(Libraries {
        libraries,
        masks,
        container_processes: loaded.map(|loaded| loaded.in_containers),
    }))
}

/// Describes a file, if it is a crypto library or a program with one linked in.
fn describe(
    reader: &mut SectionReader<'_>,
    path: &str,
    cpu: Option<&Cpu>,
    container: Container,
) -> Option<Library> {
    let is_program = container == Container::Program;
    // None of these programs has to exist.
    let bytes = reader.library(path, is_program)?;
    let mut library = match examine(&bytes, path, container, cpu) {
        Ok(library) => library?,
        // A linker script, or another file with a library's name.
        Err(reason) => {
            if !is_program {
                reader.note(path, Unavailable::malformed(reason.to_string()));
            }
            return None;
        }
    };
    if !is_program {
        library.own_report = report::ask(reader, &library);
    }
    if let (Some(report), Some(cpu)) = (library.own_report.clone(), runs(&library, cpu)) {
        let ignored = report.ignored(library.elf.architecture, cpu);
        library.algorithms = modules::algorithms(&library, Some(cpu), &ignored);
        library.slow.extend(report.slow(&ignored));
    }
    Some(library)
}

/// Describes a crypto library from the bytes of its file; `None` if there is none in it. Some libraries are recognised
/// by the file name in `path`.
pub fn examine(
    bytes: &[u8],
    path: &str,
    container: Container,
    cpu: Option<&Cpu>,
) -> Result<Option<Library>, ElfError> {
    let elf = Elf::parse(bytes)?;
    let Some((identity, build)) = identify::identify(bytes, path, &elf, container) else {
        return Ok(None);
    };
    let mut library = Library {
        path: path.to_owned(),
        inside_program: container == Container::Program,
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

/// The processors, if they can run this library: 64-bit processors also run 32-bit code.
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
