// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The two Arm libraries of the fixtures, and whole trees.

use std::fs;
use std::path::Path;

use super::*;
use crate::cpu;

fn fixture(name: &str) -> (Section<Cpu>, Section<Libraries>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    let root = Root::open(path).unwrap();
    let cpu = cpu::section(&root);
    let libraries = section(&root, cpu.known.as_ref());
    (cpu, libraries)
}

#[test]
fn file_without_titles_is_a_library_without_assembly() {
    let (_, libraries) = fixture("arm-a15-router");
    let library = &libraries.known.unwrap().libraries[0];
    assert_eq!(library.identity.maker, Maker::OpenSsl);
    assert_eq!(library.elf.architecture, Architecture::Arm);
    assert_eq!(library.elf.abi, Some("hard-float"));
    assert_eq!(library.assembly, Assembly::None);
    assert_eq!(library.build.optimisation.as_deref(), Some("-Os"));
    assert!(library.algorithms.iter().all(|used| used.level == ModuleLevel::Portable));
    assert!(library.slow.len() >= 2, "{:?}", library.slow);
}

#[test]
fn file_with_all_titles_is_a_full_library() {
    let (_, libraries) = fixture("arm-a9-router");
    let library = &libraries.known.unwrap().libraries[0];
    assert_eq!(library.assembly, Assembly::Full, "{:?}", library.modules);
    let aes = library.algorithms.iter().find(|used| used.algorithm == "AES").unwrap();
    assert_eq!((aes.level, aes.possible), (ModuleLevel::Vectors, ModuleLevel::Vectors));
    assert_eq!(library.slow, []);
}

/// Without one module, that algorithm is slow and no other.
#[test]
fn missing_module_is_named() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/arm-a9-router");
    let mut bytes = fs::read(path.join("usr/lib/libcrypto.so.3")).unwrap();
    let title = b"Bit-sliced AES for NEON, CRYPTOGAMS";
    let at = memchr::memmem::find(&bytes, title).unwrap();
    bytes[at..at + title.len()].fill(b'x');
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("usr/lib")).unwrap();
    fs::create_dir_all(folder.path().join("proc")).unwrap();
    fs::write(folder.path().join("usr/lib/libcrypto.so.3"), bytes).unwrap();
    fs::copy(path.join("proc/cpuinfo"), folder.path().join("proc/cpuinfo")).unwrap();
    let root = Root::open(folder.path()).unwrap();
    let cpu = cpu::section(&root).known;
    let libraries = section(&root, cpu.as_ref()).known.unwrap();
    let library = &libraries.libraries[0];
    assert_eq!(library.assembly, Assembly::Partial);
    let slow: Vec<&str> = library.slow.iter().map(|slow| slow.what.as_str()).collect();
    assert_eq!(slow, ["AES"]);
    assert!(library.slow[0].evidence.contains("Bit-sliced"), "{:?}", library.slow);
}

#[test]
fn machine_itself_has_its_libraries_described() {
    let root = Root::open("/").unwrap();
    let cpu = cpu::section(&root);
    let libraries = section(&root, cpu.known.as_ref()).known.unwrap();
    for library in
        libraries.libraries.iter().filter(|library| library.identity.maker == Maker::OpenSsl)
    {
        assert!(library.identity.version.is_some(), "{}", library.path);
    }
}

#[test]
fn files_that_are_no_libraries_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let lib = folder.path().join("usr/lib/x86_64-linux-gnu");
    fs::create_dir_all(&lib).unwrap();
    fs::write(lib.join("libcrypto.so"), "GROUP ( /usr/lib/libcrypto.so.3 )\n").unwrap();
    fs::write(lib.join("libcrypto.so.3"), "").unwrap();
    fs::create_dir(lib.join("libcrypto.so.9")).unwrap();
    std::os::unix::fs::symlink("libcrypto.so.3", lib.join("libcrypto.so.2")).unwrap();
    std::os::unix::fs::symlink("libcrypto.so.1", lib.join("libcrypto.so.1")).unwrap();
    let root = Root::open(folder.path()).unwrap();
    let section = section(&root, None);
    assert_eq!(section.known.unwrap().libraries, []);
    let unread: Vec<&str> = section.unread.iter().map(|unread| unread.what.as_str()).collect();
    let folder = "usr/lib/x86_64-linux-gnu";
    assert_eq!(
        unread,
        [
            format!("{folder}/libcrypto.so"),
            format!("{folder}/libcrypto.so.3"),
            format!("{folder}/libcrypto.so.9"),
        ]
    );
}

#[test]
fn masks_in_etc_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("etc/systemd/system/openvpn@.service.d");
    fs::create_dir_all(&unit).unwrap();
    fs::write(
        unit.join("mask.conf"),
        "[Service]\nEnvironment=OPENSSL_ia32cap=~0x2\nEnvironment=TOKEN=1\n",
    )
    .unwrap();
    let root = Root::open(folder.path()).unwrap().recording();
    let masks = section(&root, None).known.unwrap().masks;
    assert_eq!(masks[0].value, "~0x2");
    assert_eq!(masks[0].file, "etc/systemd/system/openvpn@.service.d/mask.conf");
    // The bundle must not contain the other lines of the file.
    for (path, content) in root.into_record().contents() {
        assert!(memchr::memmem::find(content, b"TOKEN").is_none(), "{path}");
    }
}

#[test]
fn loaded_library_outside_the_usual_folders_is_described() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/arm-a9-router");
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let map = "b6c00000-b6e00000 r-xp 00000000 1f:05 311 /srv/app/libcrypto.so.3";
    for (pid, text) in [("7", map.to_owned()), ("8", format!("{map} (deleted)"))] {
        write(&format!("proc/{pid}/maps"), &format!("{text}\n"));
        write(&format!("proc/{pid}/comm"), "server\n");
    }
    // In a container: its namespace is another one.
    write("proc/9/maps", &format!("{map}\n"));
    write("proc/9/comm", "server\n");
    fs::create_dir_all(folder.path().join("proc/9/ns")).unwrap();
    std::os::unix::fs::symlink("mnt:[2]", folder.path().join("proc/9/ns/mnt")).unwrap();
    fs::create_dir_all(folder.path().join("srv/app")).unwrap();
    let library = "libcrypto.so.3";
    fs::copy(fixture.join("usr/lib").join(library), folder.path().join("srv/app").join(library))
        .unwrap();
    let found = section(&Root::open(folder.path()).unwrap(), None).known.unwrap();
    assert_eq!(found.container_processes, Some(1));
    assert_eq!(found.libraries[0].path, "srv/app/libcrypto.so.3");
    let users = found.libraries[0].used_by.as_ref().unwrap();
    let users: Vec<(usize, bool)> =
        users.iter().map(|user| (user.processes, user.deleted)).collect();
    assert_eq!(users, [(1, false), (1, true)]);
}

#[test]
fn program_with_a_library_linked_in_differs_from_its_loader() {
    let inside = fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fixtures/arm-a15-router/usr/lib/libcrypto.so.3"),
    )
    .unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("usr/sbin")).unwrap();
    fs::write(folder.path().join("usr/sbin/nginx"), inside).unwrap();
    let plain = "/bin/sh";
    std::os::unix::fs::symlink("openvpn-2", folder.path().join("usr/sbin/openvpn")).unwrap();
    fs::copy(plain, folder.path().join("usr/sbin/openvpn-2")).unwrap();
    let found = section(&Root::open(folder.path()).unwrap(), None).known.unwrap();
    let found: Vec<(&str, bool)> = found
        .libraries
        .iter()
        .map(|library| (library.path.as_str(), library.inside_program))
        .collect();
    assert_eq!(found, [("usr/sbin/nginx", true)]);
}

/// Found by the fuzzer: a library of an architecture without a table, with titles and without a report, was
/// called a build without assembly.
#[test]
fn titles_of_an_unknown_architecture_are_assembly_nevertheless() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = path.join("fixtures/arm-a9-router/usr/lib/libcrypto.so.3");
    let mut bytes = fs::read(path).unwrap();
    // e_machine: none.
    bytes[18..20].fill(0);
    let report = b"CPUINFO: OPENSSL_armcap=";
    let at = memchr::memmem::find(&bytes, report).unwrap();
    bytes[at..at + report.len()].fill(b'x');
    let library =
        examine(&bytes, "libcrypto.so.3", Container::SharedLibrary, None).unwrap().unwrap();
    assert_eq!(library.elf.architecture, Architecture::Other);
    assert_eq!(library.assembly, Assembly::Unknown);
}
