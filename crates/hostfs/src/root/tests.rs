// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Hostile trees, with real files.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use tempfile::TempDir;

use super::*;

fn tree() -> (TempDir, Root) {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::open(folder.path()).unwrap();
    (folder, root)
}

fn text(text: &str) -> Reading {
    Reading::Text(text.to_owned())
}

#[test]
fn text_ends_before_its_nuls_and_other_bytes_stay_bytes() {
    let (folder, root) = tree();
    let cases: &[(&[u8], Reading)] = &[
        (b"", text("")),
        (b"\0", text("")),
        (b"0\n\0", text("0\n")),
        (b"-1\n\0\0", text("-1\n")),
        (b"no newline", text("no newline")),
        (b"a\0b", Reading::Bytes(b"a\0b".to_vec())),
        (b"\xff\xfe", Reading::Bytes(b"\xff\xfe".to_vec())),
    ];
    for (content, expected) in cases {
        fs::write(folder.path().join("file"), content).unwrap();
        assert_eq!(root.read("file", 100), *expected, "{content:?}");
    }
}

#[test]
fn the_bound_is_exact_and_gigabytes_are_not_read() {
    let (folder, root) = tree();
    fs::write(folder.path().join("ten"), "0123456789").unwrap();
    assert_eq!(root.read("ten", 10), text("0123456789"));
    assert_eq!(root.read("ten", 9), Reading::TooLarge { limit_bytes: 9 });
    let sparse = File::create(folder.path().join("sparse")).unwrap();
    sparse.set_len(10 << 30).unwrap();
    let limit_bytes = LIBRARY_BYTES;
    assert_eq!(
        root.read("sparse", limit_bytes),
        Reading::TooLarge { limit_bytes }
    );
}

#[test]
fn files_of_the_kernel_have_no_length_and_are_read_nevertheless() {
    let root = Root::open("/").unwrap();
    assert!(root.is_live());
    let status = root
        .read("proc/self/status", ATTRIBUTE_BYTES)
        .text()
        .unwrap();
    assert!(status.starts_with("Name:"));
    // A bound on what does not tell its length, either.
    assert_eq!(
        root.read("proc/self/status", 8),
        Reading::TooLarge { limit_bytes: 8 }
    );
    assert!(!root.list("proc/self/task").names().is_empty());
    // Links that only the kernel understands are not followed.
    assert!(root.read("proc/self/exe", ATTRIBUTE_BYTES).why().is_some());
}

#[test]
fn devices_pipes_and_sockets_are_told_apart_and_not_opened() {
    let (folder, root) = tree();
    let fifo = folder.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR).unwrap();
    let _listener = UnixListener::bind(folder.path().join("socket")).unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    assert_eq!(root.read("fifo", 10), Reading::NotRegular(Kind::Fifo));
    assert_eq!(root.read("socket", 10), Reading::NotRegular(Kind::Socket));
    assert_eq!(root.read("folder", 10), Reading::NotRegular(Kind::Folder));
    assert_eq!(root.read("", 10), Reading::NotRegular(Kind::Folder));
    assert_eq!(root.kind("fifo"), Ok(Kind::Fifo));
    assert_eq!(
        root.list("fifo"),
        Listing::Not(Why::NotRegular { kind: Kind::Fifo })
    );
    let machine = Root::open("/").unwrap();
    assert_eq!(
        machine.read("dev/zero", 10),
        Reading::NotRegular(Kind::CharacterDevice)
    );
    assert_eq!(machine.kind("dev/null"), Ok(Kind::CharacterDevice));
}

#[test]
fn nothing_leads_out_of_the_root() {
    let (folder, root) = tree();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "outside").unwrap();
    fs::create_dir_all(folder.path().join("lib")).unwrap();
    fs::write(folder.path().join("lib/secret"), "inside").unwrap();
    symlink("/lib/secret", folder.path().join("absolute")).unwrap();
    symlink("../../../../../lib/secret", folder.path().join("up")).unwrap();
    symlink("/lib", folder.path().join("folder")).unwrap();
    symlink(outside.path().join("secret"), folder.path().join("away")).unwrap();
    symlink("round", folder.path().join("round")).unwrap();
    symlink("there", folder.path().join("here")).unwrap();
    symlink("here", folder.path().join("there")).unwrap();
    symlink("/proc/self/root", folder.path().join("magic")).unwrap();
    for path in [
        "absolute",
        "up",
        "folder/secret",
        "../lib/secret",
        "/lib/./secret",
        "lib//secret",
    ] {
        assert_eq!(root.read(path, 100), text("inside"), "{path}");
    }
    assert_eq!(root.read("away", 100), Reading::Missing);
    assert_eq!(root.read("magic/etc/passwd", 100), Reading::Missing);
    for path in ["round", "here"] {
        let Reading::Unreadable(reason) = root.read(path, 100) else {
            panic!("{path} was read");
        };
        assert!(reason.contains("circles"), "{reason}");
    }
    assert_eq!(
        root.link("up"),
        Link::To("../../../../../lib/secret".to_owned())
    );
    assert_eq!(root.link("folder").last_name().as_deref(), Some("lib"));
    assert_eq!(root.link("lib/secret"), Link::NotLink);
    assert_eq!(root.link("none"), Link::Not(Why::Missing));
}

/// The walk by hand must say the same as the kernel.
#[test]
fn old_kernels_resolve_alike() {
    let (folder, _) = tree();
    fs::create_dir_all(folder.path().join("a/b")).unwrap();
    fs::write(folder.path().join("a/b/file"), "x").unwrap();
    symlink("/a", folder.path().join("absolute")).unwrap();
    symlink("../../a/b", folder.path().join("a/over")).unwrap();
    symlink("b/file", folder.path().join("a/file")).unwrap();
    symlink("round", folder.path().join("round")).unwrap();
    symlink("/etc/passwd", folder.path().join("away")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, folder.path().join("fifo"), Mode::RUSR).unwrap();
    let top = File::open(folder.path()).unwrap();
    let inside = rustix::fs::ResolveFlags::IN_ROOT | rustix::fs::ResolveFlags::NO_MAGICLINKS;
    for path in [
        ".",
        "a",
        "a/b/file",
        "absolute/b/file",
        "a/over/file",
        "a/file",
        "../a/file",
        "a/../../a/b",
        "round",
        "away",
        "none",
        "a/b/file/x",
        "absolute",
        "fifo",
        "a/none/..",
    ] {
        for flags in [
            OFlags::PATH,
            OFlags::RDONLY | OFlags::NONBLOCK,
            OFlags::PATH | OFlags::NOFOLLOW,
        ] {
            let flags = flags | OFlags::CLOEXEC;
            let known = rustix::fs::openat2(&top, path, flags, Mode::empty(), inside);
            let walked = walk::open(top.as_fd(), path, flags);
            match (known, walked) {
                (Ok(known), Ok(walked)) => {
                    let (known, walked) = (
                        rustix::fs::fstat(known).unwrap(),
                        rustix::fs::fstat(walked).unwrap(),
                    );
                    assert_eq!(
                        (known.st_dev, known.st_ino),
                        (walked.st_dev, walked.st_ino),
                        "{path}"
                    );
                }
                (Err(known), Err(walked)) => assert_eq!(known, walked, "{path} {flags:?}"),
                (known, walked) => panic!("{path} {flags:?}: {known:?} but {walked:?}"),
            }
        }
    }
}

#[test]
fn names_that_are_no_text_are_counted() {
    let (folder, root) = tree();
    fs::write(folder.path().join("b"), "").unwrap();
    fs::write(folder.path().join("a"), "").unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    fs::write(folder.path().join(odd), "").unwrap();
    let Listing::Names { names, odd, cut } = root.list("/") else {
        panic!("not listed");
    };
    assert_eq!(
        (names, odd, cut),
        (vec!["a".to_owned(), "b".to_owned()], 1, false)
    );
    assert_eq!(root.list("none"), Listing::Not(Why::Missing));
    assert_eq!(root.list("a/b"), Listing::Not(Why::Missing));
}

/// Root may read everything, so the test hands itself to somebody who may not.
#[test]
fn a_file_that_may_not_be_read_is_a_fact() {
    const NAME: &str = "root::tests::a_file_that_may_not_be_read_is_a_fact";
    const NOBODY: u32 = 65_534;
    if rustix::process::geteuid().is_root() {
        let this = std::env::current_exe().unwrap();
        let again = Command::new(this)
            .args(["--exact", NAME])
            .uid(NOBODY)
            .output();
        match again {
            Ok(output) => assert!(output.status.success(), "{output:?}"),
            Err(error) => eprintln!("skipped: nobody may not run the test: {error}"),
        }
        return;
    }
    let (folder, root) = tree();
    for (name, mode) in [("file", 0o000), ("folder", 0o000), ("list", 0o111)] {
        let path = folder.path().join(name);
        if name == "file" {
            fs::write(&path, "x").unwrap();
        } else {
            fs::create_dir(&path).unwrap();
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    assert_eq!(root.read("file", 10), Reading::Denied);
    assert_eq!(root.read("folder/x", 10), Reading::Denied);
    assert_eq!(root.read("list/x", 10), Reading::Missing);
    assert_eq!(root.list("list"), Listing::Not(Why::Denied));
    assert_eq!(root.kind("file"), Ok(Kind::File));
}

#[test]
fn paths_that_no_file_can_have_are_missing() {
    let (_folder, root) = tree();
    for path in ["a\0b", &"x".repeat(300), &"x/".repeat(5_000)] {
        assert_eq!(root.read(path, 10), Reading::Missing);
        assert_eq!(root.kind(path), Err(Why::Missing));
    }
}

#[test]
fn roots_that_are_none_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR).unwrap();
    for path in [fifo, folder.path().join("none"), "/dev/zero".into()] {
        let error = Root::open(&path).unwrap_err().to_string();
        assert!(error.contains("bundle"), "{error}");
    }
}

#[test]
fn a_bundle_answers_as_the_tree_did() {
    let (folder, root) = tree();
    fs::create_dir(folder.path().join("dir")).unwrap();
    fs::write(folder.path().join("dir/file"), "content\n\0").unwrap();
    fs::write(folder.path().join("binary"), [0xff, 0, 0xff]).unwrap();
    symlink("dir/file", folder.path().join("link")).unwrap();
    let look = |root: &Root| {
        (
            [
                root.read("dir/file", 100),
                root.read("/binary", 100),
                root.read("none", 100),
                root.read("dir", 100),
            ],
            [root.list("dir"), root.list("none")],
            [root.link("link"), root.link("binary")],
            [root.kind("dir"), root.kind("none"), root.kind("binary")],
        )
    };
    let root = root.recording();
    let seen = look(&root);
    let record = root.into_record();
    let bundle = folder.path().join("bundle.tar.gz");
    record.write_bundle(File::create(&bundle).unwrap()).unwrap();
    let mut files: Vec<String> = record
        .manifest()
        .files()
        .map(|(path, _)| path.to_owned())
        .collect();
    files.sort();
    assert_eq!(files, ["binary", "dir/file"]);

    let replay = Root::open(&bundle).unwrap();
    assert!(!replay.is_live());
    assert_eq!(look(&replay), seen);
    let Reading::Unreadable(reason) = replay.read("never/asked", 10) else {
        panic!("the bundle made something up");
    };
    assert!(reason.contains("does not hold"), "{reason}");

    // Unpacked with an ordinary tar, too.
    let unpacked = tempfile::tempdir().unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(File::open(&bundle).unwrap()));
    archive.unpack(unpacked.path()).unwrap();
    assert_eq!(look(&Root::open(unpacked.path()).unwrap()), seen);
}

#[test]
fn an_unpacked_bundle_with_a_broken_manifest_is_a_plain_tree() {
    let (folder, _) = tree();
    fs::create_dir(folder.path().join(".millrace")).unwrap();
    let mut manifest = File::create(folder.path().join(MANIFEST)).unwrap();
    manifest.write_all(b"{\"format\":99}").unwrap();
    fs::write(folder.path().join("file"), "x").unwrap();
    assert_eq!(
        Root::open(folder.path()).unwrap().read("file", 10),
        text("x")
    );
}
