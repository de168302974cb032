// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Programs that use zlib and are not web servers, with the compression library loaded: it keeps out of them, and
//! where it is set to serve every program they work with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_edge::compression::Counter;
use millrace_tests::artifacts::artifacts;
use millrace_tests::process::{Process, free_port, listens, succeed};
use millrace_tests::web::{counters, html, noise};
use millrace_tests::{is_root, release, temp_dir};

/// The user and the group of that name on Debian.
const UNPRIVILEGED: u32 = 65_534;

/// Mode of the library in a program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loaded {
    No,
    /// Loaded, with its defaults.
    Idle,
    /// Loaded, with the setting that takes every program.
    Serving,
}

fn load(command: &mut Command, loaded: Loaded) {
    if loaded != Loaded::No {
        command.env("LD_PRELOAD", &artifacts().zlib);
    }
    if loaded == Loaded::Serving {
        command.env("MILLRACE_GZIP", "any").env("MILLRACE_GZIP_VERIFY", "all");
    }
}

/// Whether the library is in the memory of a process.
fn is_loaded(pid: u32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.contains("libmillrace_zlib.so")
}

fn write_files(folder: &Path) {
    fs::create_dir(folder).expect("a folder");
    for length in [0, 1_000, 100_000, 1_000_000] {
        fs::write(folder.join(format!("{length}.html")), html(length)).expect("a file");
    }
    fs::write(folder.join("noise"), noise(200_000)).expect("a file");
}

fn assert_same_files(left: &Path, right: &Path) {
    let names = fs::read_dir(left).expect("a folder").flatten();
    let mut seen = 0;
    for name in names.map(|entry| entry.file_name()) {
        let [left, right] =
            [left, right].map(|folder| fs::read(folder.join(&name)).expect("a file"));
        assert!(left == right, "{}", name.display());
        seen += 1;
    }
    assert_eq!(seen, 5);
}

#[test]
fn rsync_transfers_files_with_the_library_loaded() {
    for loaded in [Loaded::Idle, Loaded::Serving] {
        let dir = temp_dir();
        let (files, copy) = (dir.path().join("files"), dir.path().join("copy"));
        write_files(&files);
        let port = free_port();
        let settings = dir.path().join("rsyncd.conf");
        let text = format!(
            "use chroot = no\nport = {port}\naddress = 127.0.0.1\nuid = {0}\ngid = {1}\n[files]\npath = {2}\nread only = yes\n",
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
            files.display()
        );
        fs::write(&settings, text).expect("a configuration");
        let mut daemon = release::command("rsync");
        daemon.args(["--daemon", "--no-detach", "--config"]).arg(&settings);
        load(&mut daemon, loaded);
        let mut daemon = Process::start("rsync", daemon, &dir.path().join("rsync.log"));
        daemon.wait_ready(|| listens(port));
        let mut client = release::command("rsync");
        client.args(["--archive", "--compress", "--compress-choice=zlibx"]);
        client.arg(format!("rsync://127.0.0.1:{port}/files/")).arg(&copy);
        load(&mut client, loaded);
        let _ = succeed(&mut client);
        assert_same_files(&files, &copy);
        assert!(is_loaded(daemon.id()), "{}", daemon.log());
        // The daemon's children share its counters.
        let streams = counters(daemon.id()).map(|found| found.get(Counter::Streams));
        match loaded {
            Loaded::Serving => assert!(streams > Some(0), "{streams:?}"),
            Loaded::No | Loaded::Idle => assert_eq!(streams, None, "it makes not even counters"),
        }
    }
}

/// A repository of the files, and the names of all its objects with their bytes.
fn repository(dir: &Path, loaded: Loaded) -> Vec<(String, Vec<u8>)> {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(dir.join("files")).args(arguments);
        for (name, value) in [("GIT_AUTHOR_DATE", "@1 +0000"), ("GIT_COMMITTER_DATE", "@1 +0000")] {
            git.env(name, value);
        }
        git.env("GIT_CONFIG_GLOBAL", "/dev/null");
        load(&mut git, loaded);
        succeed(&mut git)
    };
    let _ = git(&["init", "-q"]);
    let _ = git(&["add", "."]);
    let identity = ["-c", "user.name=t", "-c", "user.email=t@t"];
    let _ = git(&[&identity[..], &["commit", "-qm", "one"]].concat());
    let _ = git(&["fsck", "--strict", "--no-progress"]);
    let mut objects = Vec::new();
    for folder in fs::read_dir(dir.join("files/.git/objects")).expect("objects").flatten() {
        for object in fs::read_dir(folder.path()).expect("objects").flatten() {
            let name = format!("{}{}", folder.file_name().display(), object.file_name().display());
            objects.push((name, fs::read(object.path()).expect("an object")));
        }
    }
    objects.sort();
    let clone = dir.join("clone");
    let _ = git(&["clone", "-q", "--no-local", ".", &clone.display().to_string()]);
    let _ = git(&["gc", "-q", "--aggressive"]);
    let _ = git(&["fsck", "--strict", "--no-progress"]);
    let html = fs::read(clone.join("1000000.html")).expect("a file");
    assert!(html == millrace_tests::web::html(1_000_000));
    objects
}

/// The folder with PostgreSQL's programs.
fn postgres_programs() -> Option<PathBuf> {
    let versions = fs::read_dir(release::file("/usr/lib/postgresql")).ok()?.flatten();
    let name = versions.map(|entry| entry.file_name()).max()?;
    Some(Path::new("/usr/lib/postgresql").join(name).join("bin"))
}

#[test]
fn postgresql_dumps_and_restores_with_the_library_loaded() {
    let Some(programs) = postgres_programs().filter(|_| release::root().is_none()) else {
        millrace_testkit::skip!("PostgreSQL is that of this machine");
    };
    for loaded in [Loaded::Idle, Loaded::Serving] {
        let dir = temp_dir();
        let place = dir.path().join("database");
        fs::create_dir(&place).expect("a folder");
        // Its server refuses to run as root, and root's workspace may be closed to others.
        let library = place.join("libmillrace_zlib.so");
        let _ = fs::copy(&artifacts().zlib, &library).expect("a copy");
        let own = is_root();
        if own {
            std::os::unix::fs::chown(&place, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).expect("root");
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(dir.path(), open).expect("root");
        }
        let run = |name: &str| {
            let program = programs.join(name);
            let mut command = Command::new(if own { Path::new("setpriv") } else { &program });
            if own {
                let id = UNPRIVILEGED.to_string();
                command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]).arg(&program);
            }
            command
                .current_dir(&place)
                .env("PGHOST", &place)
                .env("PGUSER", "tester")
                .env("PGDATABASE", "postgres");
            load(&mut command, loaded);
            command.env("LD_PRELOAD", &library);
            command
        };
        let data = place.join("data");
        let _ = succeed(
            run("initdb").args(["-U", "tester", "-A", "trust", "--no-sync", "-D"]).arg(&data),
        );
        let mut server = run("postgres");
        server.args(["-c", "listen_addresses=", "-c", "fsync=off", "-c"]);
        server.arg(format!("unix_socket_directories={}", place.display())).arg("-D").arg(&data);
        let mut server = Process::start("postgres", server, &dir.path().join("postgres.log"));
        server.wait_ready(|| {
            place.join(".s.PGSQL.5432").exists()
                && run("pg_isready").status().is_ok_and(|status| status.success())
        });
        let sql =
            |text: &str| succeed(run("psql").args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text]));
        let _ = sql(
            "create table t as select n, repeat(md5(n::text), 20) as words from generate_series(1, 5000) n",
        );
        let digest = "select count(*), md5(string_agg(words, '' order by n)) from t";
        let before = sql(digest);
        let dump = place.join("dump");
        let _ = succeed(run("pg_dump").args(["-Fc", "-Z6", "-f"]).arg(&dump));
        let _ = sql("drop table t");
        let _ = succeed(run("pg_restore").args(["-d", "postgres"]).arg(&dump));
        assert_eq!(sql(digest), before);
        // Compressed by the server itself.
        let backup = place.join("backup");
        let _ = succeed(
            run("pg_basebackup")
                .args([
                    "-Ft",
                    "-X",
                    "none",
                    "--compress=server-gzip:6",
                    "--checkpoint=fast",
                    "--no-sync",
                    "-D",
                ])
                .arg(&backup),
        );
        let mut packed = flate2::read::MultiGzDecoder::new(
            fs::File::open(backup.join("base.tar.gz")).expect("a backup"),
        );
        assert!(std::io::copy(&mut packed, &mut std::io::sink()).expect("gzip") > 1_000_000);
        assert!(is_loaded(server.id()), "{}", server.log());
        let streams = counters(server.id()).map(|found| found.get(Counter::Streams));
        match loaded {
            Loaded::Serving => assert!(streams > Some(0), "{streams:?}"),
            Loaded::No | Loaded::Idle => assert_eq!(streams, None, "it makes not even counters"),
        }
    }
}

#[test]
fn git_writes_the_bytes_of_zlib_with_the_library_loaded() {
    if release::root().is_some() {
        millrace_testkit::skip!("git is that of this machine");
    }
    let [stock, idle, serving] = [Loaded::No, Loaded::Idle, Loaded::Serving].map(|loaded| {
        let dir = temp_dir();
        write_files(&dir.path().join("files"));
        repository(dir.path(), loaded)
    });
    assert!(stock == idle, "byte for byte");
    let names = |objects: &[(String, Vec<u8>)]| {
        objects.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&stock), names(&serving), "the same objects");
    assert!(stock != serving, "in other bytes");
}
