// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Hostile trees of real files.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
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

fn text(text: &str) -> ReadResult<Content> {
    Ok(Content::Text(text.to_owned()))
}

fn not_regular(kind: FileKind) -> ReadResult<Content> {
    Err(Unavailable::NotRegular { kind })
}

#[test]
fn text_loses_nuls_at_its_end_and_other_content_stays_bytes() {
    let (folder, root) = tree();
    let cases: &[(&[u8], ReadResult<Content>)] = &[
        (b"", text("")),
        (b"\0", text("")),
        (b"0\n\0", text("0\n")),
        (b"-1\n\0\0", text("-1\n")),
        (b"no newline", text("no newline")),
        (b"a\0b", Ok(Content::Bytes(b"a\0b".to_vec()))),
        (b"\xff\xfe", Ok(Content::Bytes(b"\xff\xfe".to_vec()))),
    ];
    for (content, expected) in cases {
        fs::write(folder.path().join("file"), content).unwrap();
        assert_eq!(root.read("file", 100), *expected, "{content:?}");
    }
}

#[test]
fn read_limit_is_exact_and_ten_gigabytes_are_not_read() {
    let (folder, root) = tree();
    fs::write(folder.path().join("ten"), "0123456789").unwrap();
    assert_eq!(root.read("ten", 10), text("0123456789"));
    assert_eq!(root.read("ten", 9), Err(Unavailable::TooLarge { limit_bytes: 9 }));
    let sparse = File::create(folder.path().join("sparse")).unwrap();
    sparse.set_len(10 << 30).unwrap();
    let limit_bytes = LIBRARY_BYTES;
    assert_eq!(root.read("sparse", limit_bytes), Err(Unavailable::TooLarge { limit_bytes }));
}

#[test]
fn proc_files_of_length_zero_are_read_within_the_limit() {
    let root = Root::open("/").unwrap();
    assert!(root.is_live());
    let status = root.text("proc/self/status", ATTRIBUTE_BYTES).unwrap();
    assert!(status.starts_with("Name:"));
    // The limit holds without a known length.
    assert_eq!(root.read("proc/self/status", 8), Err(Unavailable::TooLarge { limit_bytes: 8 }));
    assert!(!root.names("proc/self/task").is_empty());
    // Links that only the kernel understands are not followed.
    assert!(root.read("proc/self/exe", ATTRIBUTE_BYTES).is_err());
}

#[test]
fn devices_pipes_and_sockets_are_recognised_and_not_opened() {
    let (folder, root) = tree();
    let fifo = folder.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR).unwrap();
    let _listener = UnixListener::bind(folder.path().join("socket")).unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    assert_eq!(root.read("fifo", 10), not_regular(FileKind::Fifo));
    assert_eq!(root.read("socket", 10), not_regular(FileKind::Socket));
    assert_eq!(root.read("folder", 10), not_regular(FileKind::Folder));
    assert_eq!(root.read("", 10), not_regular(FileKind::Folder));
    assert_eq!(root.kind("fifo"), Ok(FileKind::Fifo));
    assert_eq!(root.list("fifo"), Err(Unavailable::NotRegular { kind: FileKind::Fifo }));
    let machine = Root::open("/").unwrap();
    assert_eq!(machine.read("dev/zero", 10), not_regular(FileKind::CharacterDevice));
    assert_eq!(machine.kind("dev/null"), Ok(FileKind::CharacterDevice));
}

#[test]
fn links_and_parents_never_lead_out_of_the_root() {
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
    for path in ["absolute", "up", "folder/secret", "../lib/secret", "/lib/./secret", "lib//secret"]
    {
        assert_eq!(root.read(path, 100), text("inside"), "{path}");
    }
    assert_eq!(root.read("away", 100), Err(Unavailable::Missing));
    assert_eq!(root.read("magic/etc/passwd", 100), Err(Unavailable::Missing));
    for path in ["round", "here"] {
        let Err(Unavailable::Unreadable { reason }) = root.read(path, 100) else {
            panic!("{path} was read");
        };
        assert!(reason.contains("circles"), "{reason}");
    }
    assert_eq!(root.link("up"), Ok(Some("../../../../../lib/secret".to_owned())));
    assert_eq!(root.link_name("folder").as_deref(), Some("lib"));
    assert_eq!(root.link("lib/secret"), Ok(None));
    assert_eq!(root.link("none"), Err(Unavailable::Missing));
}

#[test]
fn walk_by_hand_resolves_as_openat2_does() {
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
        for flags in
            [OFlags::PATH, OFlags::RDONLY | OFlags::NONBLOCK, OFlags::PATH | OFlags::NOFOLLOW]
        {
            let flags = flags | OFlags::CLOEXEC;
            let known = rustix::fs::openat2(&top, path, flags, Mode::empty(), inside);
            let walked = walk::open(top.as_fd(), path, flags);
            match (known, walked) {
                (Ok(known), Ok(walked)) => {
                    let (known, walked) =
                        (rustix::fs::fstat(known).unwrap(), rustix::fs::fstat(walked).unwrap());
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
fn names_that_are_not_utf8_are_counted() {
    let (folder, root) = tree();
    fs::write(folder.path().join("b"), "").unwrap();
    fs::write(folder.path().join("a"), "").unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    fs::write(folder.path().join(odd), "").unwrap();
    let names =
        Names { names: vec!["a".to_owned(), "b".to_owned()], not_utf8: 1, truncated: false };
    assert_eq!(root.list("/"), Ok(names));
    assert_eq!(root.list("none"), Err(Unavailable::Missing));
    assert_eq!(root.list("a/b"), Err(Unavailable::Missing));
}

/// Root may read everything, so the test starts itself again as an unprivileged user.
#[test]
fn file_without_read_permission_is_denied() {
    const NAME: &str = "root::tests::file_without_read_permission_is_denied";
    const UNPRIVILEGED_UID: u32 = 65_534;
    if rustix::process::geteuid().is_root() {
        // By its descriptor: the unprivileged user may not traverse every folder above a build.
        let this = fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let again = Command::new(format!("/proc/self/fd/{}", this.as_raw_fd()))
            .args(["--exact", NAME])
            .uid(UNPRIVILEGED_UID)
            .output();
        match again {
            Ok(output) => assert!(output.status.success(), "{output:?}"),
            Err(error) => {
                millrace_testkit::skip!("the unprivileged user cannot run the test: {error}")
            }
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
    assert_eq!(root.read("file", 10), Err(Unavailable::Denied));
    assert_eq!(root.read("folder/x", 10), Err(Unavailable::Denied));
    assert_eq!(root.read("list/x", 10), Err(Unavailable::Missing));
    assert_eq!(root.list("list"), Err(Unavailable::Denied));
    assert_eq!(root.kind("file"), Ok(FileKind::File));
}

#[test]
fn impossible_paths_are_missing() {
    let (_folder, root) = tree();
    for path in ["a\0b", &"x".repeat(300), &"x/".repeat(5_000)] {
        assert_eq!(root.read(path, 10), Err(Unavailable::Missing));
        assert_eq!(root.kind(path), Err(Unavailable::Missing));
    }
}

#[test]
fn open_errors_name_the_accepted_paths() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR).unwrap();
    for path in [fifo, folder.path().join("none"), "/dev/zero".into()] {
        let error = Root::open(&path).unwrap_err().to_string();
        assert!(error.contains("bundle"), "{error}");
    }
}

#[test]
fn bundle_answers_as_its_machine_did() {
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
    let mut files: Vec<String> =
        record.manifest().files().map(|(path, _)| path.to_owned()).collect();
    files.sort();
    assert_eq!(files, ["binary", "dir/file"]);

    let replay = Root::open(&bundle).unwrap();
    assert!(!replay.is_live());
    assert_eq!(look(&replay), seen);
    assert_eq!(replay.read("never/asked", 10), Err(Unavailable::NotCollected));

    // A bundle unpacked with an ordinary tar gives the same answers.
    let unpacked = tempfile::tempdir().unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(File::open(&bundle).unwrap()));
    archive.unpack(unpacked.path()).unwrap();
    assert_eq!(look(&Root::open(unpacked.path()).unwrap()), seen);
}

#[test]
fn unpacked_bundle_with_broken_manifest_is_a_plain_folder() {
    let (folder, _) = tree();
    fs::create_dir(folder.path().join(".millrace")).unwrap();
    let mut manifest = File::create(folder.path().join(MANIFEST)).unwrap();
    manifest.write_all(b"{\"format\":99}").unwrap();
    fs::write(folder.path().join("file"), "x").unwrap();
    assert_eq!(Root::open(folder.path()).unwrap().read("file", 10), text("x"));
}
