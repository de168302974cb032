// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The functions of a program file: start address, and name if the file still has it.
//!
//! A stripped library has names only for its exports, but `.eh_frame`, which exceptions and debuggers need, has
//! the address of *every* function. Kept parsers read both. The space between two functions (assembly
//! without unwind tables) is a separate region.
//!
//! The file is foreign: every count, every length and the time are bounded.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, EhFrame, EndianSlice, RunTimeEndian,
    UnwindSection,
};
use millrace_hostfs::maps::Mapping;
use object::read::{ReadCache, ReadRef};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};
use rustix::fs::{Mode, OFlags};

use super::SampleError;

/// Bound on a file: larger than any program with its debug information.
const MAX_FILE_LEN: u64 = 4 << 30;

/// Bound on the unwind tables: a browser's engine has 20 MiB.
const MAX_EH_FRAME_LEN: u64 = 128 << 20;

/// Bound on functions: a large program has about 100,000.
const MAX_FUNCTIONS: usize = 1 << 20;

/// Bound on a name: mangled names of generics are long, and only their beginning is shown.
const MAX_NAME_LEN: usize = 512;

/// Bound on the time for one file. A legitimate file takes milliseconds; tables with circular references or
/// overlaps would take hours.
const MAX_TIME: Duration = Duration::from_secs(5);

/// Bound on distinct headers of unwind entries: real files have fewer than ten.
const MAX_HEADERS: usize = 1024;

/// Why a file is not a readable program.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Malformed, or not an object file.
    #[error(transparent)]
    Malformed(#[from] object::Error),
    /// More functions than the bound.
    #[error("it has more than {MAX_FUNCTIONS} functions")]
    TooManyFunctions,
    /// Unwind tables larger than the bound.
    #[error("its unwind tables are larger than {} MiB", MAX_EH_FRAME_LEN >> 20)]
    UnwindTablesTooLarge,
    /// Tables that take too long to read.
    #[error("its tables take longer than {} s to read", MAX_TIME.as_secs())]
    TooSlow,
}

/// A program file.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    path: PathBuf,
    build_id: Option<String>,
    segments: Vec<Segment>,
    regions: Vec<Region>,
}

/// A segment: part of a file, and its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    offset: u64,
    len: u64,
    address: u64,
}

/// A function, or the space between two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Start address in the file's numbering. It ends where the next region starts.
    pub start: u64,
    /// Name, if the file has one.
    pub name: Option<Box<str>>,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("path", &self.path)
            .field("build_id", &self.build_id)
            .field("regions", &self.regions.len())
            .finish_non_exhaustive()
    }
}

impl Image {
    /// Reads a file.
    ///
    /// # Errors
    /// [`SampleError::Image`] if it cannot be read, or is not a program in a regular file.
    pub fn open(path: &Path) -> Result<Self, SampleError> {
        Self::open_as(path, path)
    }

    /// Reads the file `real`, and calls it `path`.
    pub(super) fn open_as(real: &Path, path: &Path) -> Result<Self, SampleError> {
        let failed = |problem: String| SampleError::Image { path: path.to_owned(), problem };
        let file = open_regular(real).map_err(|error| failed(error.to_string()))?;
        let cache = ReadCache::new(file);
        Self::read(&cache, path.to_owned()).map_err(|error| failed(error.to_string()))
    }

    /// Parses the bytes of a file.
    ///
    /// # Errors
    /// [`ImageError`] if it is not a readable program, or exceeds a bound.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, ImageError> {
        Self::read(bytes, path.to_owned())
    }

    fn read<'data, R: ReadRef<'data>>(data: R, path: PathBuf) -> Result<Self, ImageError> {
        let file = object::File::parse(data)?;
        let deadline = Instant::now() + MAX_TIME;
        let mut functions = FunctionTable::default();
        functions.add_symbols(file.dynamic_symbols(), deadline)?;
        functions.add_symbols(file.symbols(), deadline)?;
        functions.add_unwind_entries(&file, deadline)?;
        let id = file.build_id().ok().flatten();
        let segments = file.segments().take(MAX_HEADERS).map(|segment| {
            let (offset, len) = segment.file_range();
            Segment { offset, len, address: segment.address() }
        });
        Ok(Self {
            path,
            build_id: id.map(hex),
            segments: segments.collect(),
            regions: functions.regions(),
        })
    }

    /// Path by which the file is known.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the file, without folders and ` (deleted)`.
    #[must_use]
    pub fn file_name(&self) -> &str {
        let name = self.path.file_name().and_then(|name| name.to_str());
        name.unwrap_or_default().trim_end_matches(" (deleted)")
    }

    /// The build ID in hexadecimal. `None` if the linker wrote none.
    #[must_use]
    pub fn build_id(&self) -> Option<&str> {
        self.build_id.as_deref()
    }

    /// The address of an offset in the file.
    #[must_use]
    pub fn address(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let within = offset.checked_sub(segment.offset)?;
            (within < segment.len).then(|| segment.address.checked_add(within))?
        })
    }

    /// The function at an address.
    #[must_use]
    pub fn region(&self, address: u64) -> Option<&Region> {
        let behind = self.regions.partition_point(|region| region.start <= address);
        self.regions.get(behind.checked_sub(1)?)
    }

    /// All functions, by address.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }
}

/// Opens a regular file of bounded size. The kind is checked before the file is opened: a FIFO with a library's
/// name must not block, and opening a device can have side effects.
fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let place = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = place.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.len() > MAX_FILE_LEN {
        return Err(io::Error::other(format!("it is larger than {} GiB", MAX_FILE_LEN >> 30)));
    }
    File::open(format!("/proc/self/fd/{}", place.as_raw_fd()))
}

/// Starts, ends and names of functions.
#[derive(Default)]
struct FunctionTable {
    starts: BTreeMap<u64, Option<Box<str>>>,
    ends: Vec<u64>,
}

impl FunctionTable {
    fn add(&mut self, start: u64, len: u64, name: Option<&str>) -> Result<(), ImageError> {
        if self.starts.len() >= MAX_FUNCTIONS {
            return Err(ImageError::TooManyFunctions);
        }
        let entry = self.starts.entry(start).or_default();
        if entry.is_none() {
            *entry = name.map(|name| cut(name).into());
        }
        // Twice as many ends as starts can only come from tables that repeat themselves.
        if let Some(end) = start.checked_add(len)
            && len > 0
            && self.ends.len() < 2 * MAX_FUNCTIONS
        {
            self.ends.push(end);
        }
        Ok(())
    }

    fn add_symbols<'data>(
        &mut self,
        symbols: impl Iterator<Item = impl ObjectSymbol<'data>>,
        deadline: Instant,
    ) -> Result<(), ImageError> {
        for (index, symbol) in symbols.enumerate() {
            if index % 4096 == 4095 {
                in_time(deadline)?;
            }
            if symbol.is_undefined() || symbol.kind() != SymbolKind::Text || symbol.address() == 0 {
                continue;
            }
            self.add(symbol.address(), symbol.size(), symbol.name().ok())?;
        }
        Ok(())
    }

    fn add_unwind_entries<'data, R: ReadRef<'data>>(
        &mut self,
        file: &object::File<'data, R>,
        deadline: Instant,
    ) -> Result<(), ImageError> {
        let Some(section) = file.section_by_name(".eh_frame") else {
            return Ok(());
        };
        if section.size() > MAX_EH_FRAME_LEN {
            return Err(ImageError::UnwindTablesTooLarge);
        }
        let endian =
            if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        // Without readable sections the symbols remain.
        let data = section.data().unwrap_or_default();
        let mut frames = EhFrame::new(data, endian);
        frames.set_address_size(if file.is_64() { 8 } else { 4 });
        let mut bases = BaseAddresses::default().set_eh_frame(section.address());
        if let Some(text) = file.section_by_name(".text") {
            bases = bases.set_text(text.address());
        }
        if let Some(got) = file.section_by_name(".got") {
            bases = bases.set_got(got.address());
        }
        self.add_frames(&frames, &bases, deadline)
    }

    fn add_frames<'data>(
        &mut self,
        frames: &EhFrame<Slice<'data>>,
        bases: &BaseAddresses,
        deadline: Instant,
    ) -> Result<(), ImageError> {
        let mut headers: BTreeMap<usize, CommonInformationEntry<Slice<'data>>> = BTreeMap::new();
        let mut entries = frames.entries(bases);
        // A malformed entry ends the table; the entries before it are valid.
        while let Ok(Some(entry)) = entries.next() {
            in_time(deadline)?;
            let CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let parsed = partial.parse(|frames, bases, offset| {
                if let Some(header) = headers.get(&offset.0) {
                    return Ok(header.clone());
                }
                let header = frames.cie_from_offset(bases, offset)?;
                if headers.len() < MAX_HEADERS {
                    headers.insert(offset.0, header.clone());
                }
                Ok(header)
            });
            let Ok(function) = parsed else {
                continue;
            };
            // Zero remains of a function that the linker removed.
            if function.initial_address() != 0 {
                self.add(function.initial_address(), function.len(), None)?;
            }
        }
        Ok(())
    }

    fn regions(mut self) -> Vec<Region> {
        for end in self.ends {
            self.starts.entry(end).or_default();
        }
        self.starts.into_iter().map(|(start, name)| Region { start, name }).collect()
    }
}

type Slice<'data> = EndianSlice<'data, RunTimeEndian>;

fn in_time(deadline: Instant) -> Result<(), ImageError> {
    if Instant::now() < deadline {
        return Ok(());
    }
    Err(ImageError::TooSlow)
}

/// The beginning of a name, at most [`MAX_NAME_LEN`] bytes.
fn cut(name: &str) -> &str {
    let mut end = name.len().min(MAX_NAME_LEN);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.get(..end).unwrap_or_default()
}

fn hex(bytes: &[u8]) -> String {
    // Longer than any hash: not an ID, but an attempt to exhaust memory.
    let bytes = bytes.get(..64).unwrap_or(bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The file of a mapping as the process sees it: in its root, or deleted.
pub(super) fn open_image(pid: u32, mapping: &Mapping) -> Option<Image> {
    let Mapping { start, end, path, .. } = mapping;
    let relative = path.strip_prefix("/").ok()?;
    let places = [
        PathBuf::from(format!("/proc/{pid}/root")).join(relative),
        PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}")),
        path.clone(),
    ];
    places.iter().find_map(|place| Image::open_as(place, path).ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A small library, so that the test can damage it in many ways.
    fn small_program() -> Option<Vec<u8>> {
        let found = fs::read("/bin/true").ok();
        if found.is_none() {
            millrace_testkit::skip::record(file!(), "no /bin/true");
        }
        found
    }

    #[test]
    fn function_of_this_program_is_found_by_name() {
        let image = Image::open(Path::new("/proc/self/exe")).expect("this program");
        assert!(image.regions().len() > 1000);
        assert!(image.regions().is_sorted_by_key(|region| region.start));
        let named = |region: &&Region| {
            let name = region.name.as_deref().unwrap_or_default();
            name.contains("function_of_this_program_is_found_by_name")
        };
        let region = image.regions().iter().find(named).expect("this function");
        assert_eq!(image.region(region.start), Some(region));
        assert_eq!(image.region(region.start + 1), Some(region));
        assert_eq!(image.region(0), None);
    }

    #[test]
    fn stripped_library_still_has_function_addresses() {
        let path = Path::new("/usr/lib/x86_64-linux-gnu/libcrypto.so.3");
        if !path.exists() {
            millrace_testkit::skip!("no {}", path.display());
        }
        let image = Image::open(path).expect("libcrypto");
        assert!(image.build_id().is_some_and(|id| id.len() >= 16));
        let unnamed = image.regions().iter().filter(|region| region.name.is_none());
        assert!(unnamed.count() > 3000, "{image:?}");
        assert!(
            image.regions().iter().any(|region| region.name.as_deref() == Some("EVP_DigestSign"))
        );
        assert!(image.address(0x10_0000).is_some());
        assert!(image.address(u64::MAX).is_none());
    }

    #[test]
    fn files_that_are_no_programs_are_errors() {
        for bytes in [&b""[..], b"\x7fELF", b"#!/bin/sh\n", &[0; 4096], &[0xff; 4096]] {
            assert!(Image::parse(bytes, Path::new("x")).is_err());
        }
        assert!(Image::open(Path::new("/")).is_err());
        assert!(Image::open(Path::new("/dev/zero")).is_err());
        assert!(Image::open(Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn fifo_and_huge_file_are_refused_without_blocking() {
        let dir = tempfile::tempdir().expect("a folder");
        let fifo = dir.path().join("libcrypto.so.3");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, Mode::RWXU, 0).expect("a fifo");
        let error = Image::open(&fifo).expect_err("a fifo").to_string();
        assert!(error.contains("not a regular file"), "{error}");
        let huge = dir.path().join("huge");
        let file = File::create(&huge).expect("a file");
        // Holes take no space.
        file.set_len(MAX_FILE_LEN + 1).expect("a length");
        let error = Image::open(&huge).expect_err("too large").to_string();
        assert!(error.contains("larger than"), "{error}");
        file.set_len(MAX_FILE_LEN).expect("a length");
        assert!(Image::open(&huge).is_err());
    }

    #[test]
    fn damaged_programs_are_parsed_without_a_panic() {
        let Some(mut whole) = small_program() else {
            return;
        };
        for len in (0..whole.len()).step_by(whole.len() / 40 + 1) {
            drop(Image::parse(&whole[..len], Path::new("x")));
        }
        // Headers of the file, of its segments and of its sections, one byte at a time.
        let sections = whole.len().saturating_sub(64 * 40);
        for at in (16..600).chain((sections..whole.len()).step_by(7)) {
            let before = whole[at];
            whole[at] = before.wrapping_add(0x81);
            drop(Image::parse(&whole, Path::new("x")));
            whole[at] = before;
        }
    }

    #[test]
    fn tables_that_outlast_the_deadline_are_refused() {
        let Some(whole) = small_program() else {
            return;
        };
        let file = object::File::parse(&*whole).expect("a program");
        let late = FunctionTable::default().add_unwind_entries(&file, Instant::now());
        assert!(matches!(late, Err(ImageError::TooSlow)), "{late:?}");
    }

    #[test]
    fn names_are_cut_between_characters() {
        let long = "é".repeat(MAX_NAME_LEN);
        assert_eq!(cut(&long).len(), MAX_NAME_LEN);
        assert!(cut(&format!("x{long}")).len() < MAX_NAME_LEN);
    }
}
