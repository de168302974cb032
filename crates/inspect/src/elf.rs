// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Headers of an ELF file of any architecture: architecture and ABI, SONAME, needed libraries, static
//! linking.
//!
//! The file is foreign: a defect becomes an error or an unknown fact. Nothing is mapped or executed.

use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, FileKind};
use schemars::JsonSchema;
use serde::Serialize;

use crate::architecture::Architecture;

/// Bound on the libraries that a file needs. A crypto library needs a few; a crafted table repeats one entry.
const MAX_NEEDED: usize = 256;

/// Facts from the headers of an ELF file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Elf {
    /// Processor that the code is for
    pub architecture: Architecture,
    /// Bits of an address: 32 or 64
    pub bits: u8,
    /// Big-endian byte order
    pub big_endian: bool,
    /// Calling convention for floats, where there are several: `hard-float`, `soft-float`, `n32`, …
    pub abi: Option<&'static str>,
    /// Name under which programs ask the dynamic loader for this library
    pub soname: Option<String>,
    /// SONAMEs of the libraries that the dynamic loader must find
    pub needed: Vec<String>,
    /// A program without dynamic loader
    pub static_program: bool,
}

/// Why a file is not a readable ELF file.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// An object file of another format.
    #[error("not an ELF file")]
    OtherFormat,
    /// Malformed headers.
    #[error("not a readable ELF file: {0}")]
    Malformed(#[from] object::Error),
}

impl Elf {
    /// Reads the headers of a file.
    pub fn parse(bytes: &[u8]) -> Result<Self, ElfError> {
        Ok(match FileKind::parse(bytes)? {
            FileKind::Elf32 => headers::<elf::FileHeader32<Endianness>>(bytes, 32)?,
            FileKind::Elf64 => headers::<elf::FileHeader64<Endianness>>(bytes, 64)?,
            _ => return Err(ElfError::OtherFormat),
        })
    }
}

fn headers<H: FileHeader<Endian = Endianness>>(
    bytes: &[u8],
    bits: u8,
) -> Result<Elf, object::Error> {
    let header = H::parse(bytes)?;
    let endian = header.endian()?;
    let segments = header.program_headers(endian, bytes)?;
    let has = |wanted| segments.iter().any(|segment| segment.p_type(endian) == wanted);
    let (soname, needed) = dynamic::<H>(segments, endian, bytes).unwrap_or_default();
    let program = header.e_type(endian) == elf::ET_EXEC || has(elf::PT_INTERP);
    Ok(Elf {
        architecture: architecture(header.e_machine(endian), bits),
        bits,
        big_endian: endian == Endianness::Big,
        abi: abi(header.e_machine(endian), header.e_flags(endian)),
        static_program: program && !has(elf::PT_INTERP),
        soname,
        needed,
    })
}

/// SONAME and needed libraries, from the dynamic section.
fn dynamic<H: FileHeader<Endian = Endianness>>(
    segments: &[H::ProgramHeader],
    endian: Endianness,
    bytes: &[u8],
) -> Option<(Option<String>, Vec<String>)> {
    let entries =
        segments.iter().find_map(|segment| segment.dynamic(endian, bytes).ok().flatten())?;
    let mut strings_at = None;
    let mut soname_at = None;
    let mut needed_at = Vec::new();
    for entry in entries {
        let value: u64 = entry.d_val(endian).into();
        match entry.d_tag(endian) {
            elf::DT_STRTAB => strings_at = Some(value),
            elf::DT_SONAME => soname_at = Some(value),
            elf::DT_NEEDED if needed_at.len() < MAX_NEEDED => needed_at.push(value),
            elf::DT_NULL => break,
            _ => {}
        }
    }
    let strings_at = strings_at?;
    let name = |at: u64| string(segments, endian, bytes, strings_at.checked_add(at)?);
    let needed = needed_at.into_iter().filter_map(name).collect();
    Some((soname_at.and_then(name), needed))
}

/// The text at an address of the loaded file; none if no loaded segment holds it, or it does not end in time.
fn string<P: ProgramHeader<Endian = Endianness>>(
    segments: &[P],
    endian: Endianness,
    bytes: &[u8],
    address: u64,
) -> Option<String> {
    let segment = segments.iter().find(|segment| {
        let start: u64 = segment.p_vaddr(endian).into();
        let length: u64 = segment.p_filesz(endian).into();
        segment.p_type(endian) == elf::PT_LOAD && address >= start && address - start < length
    })?;
    let start: u64 = segment.p_vaddr(endian).into();
    let offset: u64 = segment.p_offset(endian).into();
    let at = usize::try_from(offset.checked_add(address - start)?).ok()?;
    let rest = bytes.get(at..)?;
    // Names of libraries are file names, which have at most 255 bytes.
    const MAX_NAME: usize = 255;
    let end = rest.iter().take(MAX_NAME + 1).position(|byte| *byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok().map(str::to_owned)
}

fn architecture(machine: elf::Machine, bits: u8) -> Architecture {
    match (machine, bits) {
        (elf::EM_X86_64, _) => Architecture::X86_64,
        (elf::EM_386, _) => Architecture::X86,
        (elf::EM_AARCH64, _) => Architecture::Aarch64,
        (elf::EM_ARM, _) => Architecture::Arm,
        (elf::EM_RISCV, 32) => Architecture::Riscv32,
        (elf::EM_RISCV, _) => Architecture::Riscv64,
        (elf::EM_PPC | elf::EM_PPC64, _) => Architecture::Power,
        (elf::EM_S390, _) => Architecture::S390x,
        (elf::EM_MIPS, _) => Architecture::Mips,
        (elf::EM_LOONGARCH, _) => Architecture::Loongarch64,
        _ => Architecture::Other,
    }
}

fn abi(machine: elf::Machine, flags: elf::FileFlags) -> Option<&'static str> {
    match machine {
        elf::EM_ARM if flags.0 & elf::EF_ARM_ABI_FLOAT_HARD != 0 => Some("hard-float"),
        elf::EM_ARM if flags.0 & elf::EF_ARM_ABI_FLOAT_SOFT != 0 => Some("soft-float"),
        elf::EM_MIPS if flags.0 & elf::EF_MIPS_ABI2.0 != 0 => Some("n32"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn our_own_program_is_understood() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let elf = Elf::parse(&bytes).unwrap();
        assert_eq!(elf.bits, 64);
        assert!(elf.needed.iter().any(|name| name.starts_with("libc.so")), "{elf:?}");
        assert!(!elf.static_program);
    }

    #[test]
    fn file_that_is_not_elf_is_refused() {
        for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &[0x7f; 300]] {
            assert!(Elf::parse(bytes).is_err());
        }
    }

    proptest! {
        /// Bytes of a real file, changed anywhere in their headers, never panic.
        #[test]
        fn damaged_headers_are_facts(changes in prop::collection::vec((0_usize..4_096, any::<u8>()), 0..16)) {
            let mut bytes = include_bytes!("../fixtures/arm-a15-router/usr/lib/libcrypto.so.3").to_vec();
            for (at, byte) in changes {
                let last = bytes.len() - 1;
                bytes[at.min(last)] = byte;
            }
            let _ = Elf::parse(&bytes);
        }
    }
}
