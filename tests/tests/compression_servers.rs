// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The compression library beside the preload library, in Apache, lighttpd and HAProxy, and in programs that it leaves
//! alone.

use std::fs;
use std::path::Path;
use std::process::Command;

use millrace_edge::compression::Counter;
use millrace_tests::artifacts::artifacts;
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::Site;
use millrace_tests::nginx::{Nginx, NginxOptions, certificate_lines};
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{Process, free_port, listens, run, succeed, text_of};
use millrace_tests::web::{counters, get, html};
use millrace_tests::world::World;
use millrace_tests::{release, temp_dir};

/// Pages in a folder.
fn pages(dir: &Path) -> std::path::PathBuf {
    let pages = dir.join("pages");
    fs::create_dir(&pages).expect("a folder");
    for length in [1_000, 100_000, 1_000_000] {
        fs::write(pages.join(format!("{length}.html")), html(length)).expect("a page");
    }
    pages
}

/// A server with the library preloaded, in the foreground.
fn serve(mut command: Command, dir: &Path, port: u16) -> Process {
    command.env("LD_PRELOAD", &artifacts().zlib);
    let mut process = Process::start("server", command, &dir.join("output.log"));
    process.wait_ready(|| listens(port));
    process
}

fn assert_pages(port: u16) {
    for length in [1_000, 100_000, 1_000_000] {
        let page = get(port, &format!("/{length}.html"));
        assert!(page.is_gzip(), "{length}: {}", page.head);
        assert!(page.plain() == html(length), "{length}");
    }
}

#[test]
fn both_libraries_work_in_one_nginx() {
    let world = World::new();
    let node = world.node("node-1");
    let identity = world.identity(KeyKind::P256);
    let stub = node.import("www", &identity);
    let site = Site::with_stub(&identity, &stub);
    let edge = EdgeOptions::to(node.endpoint()).write(world.dir());
    let (port, plain) = (free_port(), free_port());
    let pages = pages(world.dir());
    let http = format!(
        "types {{ text/html html; }} gzip on;\n\
         server {{ listen 127.0.0.1:{port} ssl; root {0};\n{1} }}\nserver {{ listen 127.0.0.1:{plain}; root {0}; }}\n",
        pages.display(),
        certificate_lines(world.dir(), "www", &site)
    );
    let mut options = NginxOptions::asynchronous(&edge, http);
    let found = artifacts();
    options.library = Some(format!("{}:{}", found.preload.display(), found.zlib.display()).into());
    let nginx = Nginx::start(world.dir(), &options, &[port, plain]);
    for number in 0..5 {
        assert_pages(plain);
        let mut curl = release::command("curl");
        curl.args(["-sk", "--compressed", &format!("https://127.0.0.1:{port}/100000.html")]);
        assert!(run(&mut curl).stdout == html(100_000), "{number}");
    }
    let counted = counters(nginx.master()).expect("the library in nginx");
    assert_eq!(counted.get(Counter::Finished), 20);
    let log = nginx.log();
    assert!(!log.contains("[alert]") && !log.contains("[crit]"), "{log}");
}

#[test]
fn lighttpd_serves_right_gzip_by_the_library() {
    let dir = temp_dir();
    let pages = pages(dir.path());
    let port = free_port();
    let cache = dir.path().join("lighttpd.conf");
    let text = format!(
        "server.modules = (\"mod_deflate\")\nserver.document-root = \"{}\"\nserver.port = {port}\n\
         server.bind = \"127.0.0.1\"\nmimetype.assign = (\".html\" => \"text/html\")\n\
         deflate.mimetypes = (\"text/html\")\ndeflate.allowed-encodings = (\"gzip\")\n",
        pages.display()
    );
    fs::write(&cache, text).expect("a configuration");
    let mut command = release::command("lighttpd");
    command.args(["-D", "-f"]).arg(&cache);
    let server = serve(command, dir.path(), port);
    assert_pages(port);
    let counted = counters(server.id()).expect("the library in lighttpd");
    // Debian's lighttpd compresses short files with a libdeflate of its own.
    let finished = counted.get(Counter::Finished);
    assert!((1..=3).contains(&finished), "{finished}: {}", server.log());
    assert_eq!(counted.get(Counter::Ended), finished);
}

#[test]
fn apache_serves_right_gzip_by_the_library() {
    let dir = temp_dir();
    let pages = pages(dir.path());
    let port = free_port();
    let modules = "/usr/lib/apache2/modules";
    let file = dir.path().join("apache.conf");
    let load: String = ["mpm_event", "authz_core", "mime", "deflate", "filter"]
        .iter()
        .filter(|name| release::file(&format!("{modules}/mod_{name}.so")).is_file())
        .map(|name| format!("LoadModule {name}_module {modules}/mod_{name}.so\n"))
        .collect();
    let text = format!(
        "ServerRoot {0}\nPidFile {0}/pid\nListen 127.0.0.1:{port}\nServerName localhost\nErrorLog {0}/error.log\n{load}\
         User nobody\nGroup nogroup\nTypesConfig /dev/null\nAddType text/html .html\nDocumentRoot {1}\nSetOutputFilter DEFLATE\n\
         StartServers 1\n<Directory {1}>\nRequire all granted\n</Directory>\n",
        dir.path().display(),
        pages.display()
    );
    fs::write(&file, text).expect("a configuration");
    let mut command = release::command("apache2");
    command.args(["-D", "FOREGROUND", "-f"]).arg(&file);
    let server = serve(command, dir.path(), port);
    assert_pages(port);
    let counted = counters(server.id()).expect("the library in Apache");
    assert_eq!(counted.get(Counter::Finished), 3, "{}", server.log());
}

#[test]
fn haproxy_has_nothing_to_take_over() {
    let dir = temp_dir();
    let pages = pages(dir.path());
    let (port, origin) = (free_port(), free_port());
    let mut options = NginxOptions {
        workers: 1,
        preload: false,
        library: None,
        daemon: false,
        edge: None,
        main: String::new(),
        events: String::new(),
        http: format!(
            "types {{ text/html html; }} server {{ listen 127.0.0.1:{origin}; root {}; }}",
            pages.display()
        ),
        stream: String::new(),
        environment: Vec::new(),
        launcher: Vec::new(),
    };
    options.main.push('\n');
    let _nginx = Nginx::start(dir.path(), &options, &[origin]);
    let file = dir.path().join("haproxy.cfg");
    let text = format!(
        "defaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n\
         frontend f\n bind 127.0.0.1:{port}\n compression algo gzip\n compression type text/html\n default_backend b\n\
         backend b\n server s 127.0.0.1:{origin}\n"
    );
    fs::write(&file, text).expect("a configuration");
    let mut command = release::command("haproxy");
    command.args(["-db", "-f"]).arg(&file);
    command.env("MILLRACE_GZIP", "any");
    let server = serve(command, dir.path(), port);
    assert_pages(port);
    // SLZ is inside the program: even the setting for every program sees no stream.
    let counted = counters(server.id()).expect("the library in HAProxy");
    assert_eq!(counted.get(Counter::Streams), 0);
}

#[test]
fn other_programs_are_left_alone_and_work_when_they_are_taken() {
    let dir = temp_dir();
    let file = dir.path().join("file");
    fs::write(&file, html(300_000)).expect("a file");
    let program = "import zlib,sys; data=open(sys.argv[1],'rb').read(); packed=zlib.compress(data, 6); \
                   assert zlib.decompress(packed)==data; print(len(packed))";
    let length = |scope: Option<&str>, library: bool| {
        let mut python = release::python();
        python.args(["-c", program]).arg(&file);
        if library {
            python.env("LD_PRELOAD", &artifacts().zlib);
        }
        python.envs(scope.map(|scope| ("MILLRACE_GZIP", scope)));
        let output = run(&mut python);
        assert!(output.status.success(), "{}", text_of(&output));
        text_of(&output)
    };
    let alone = length(None, false);
    assert_eq!(length(None, true), alone, "byte for byte zlib's, and nothing is said");
    // The output is another one, and Python's zlib reads it.
    assert_ne!(length(Some("any"), true).lines().last(), alone.lines().last());
    let git = |arguments: &[&str], library: bool| {
        let mut git = Command::new("git");
        git.arg("-C").arg(dir.path()).args(arguments);
        if library {
            git.env("LD_PRELOAD", &artifacts().zlib).env("MILLRACE_GZIP", "any");
        }
        succeed(&mut git)
    };
    if release::root().is_none() {
        git(&["init", "-q"], false);
        git(&["add", "file"], true);
        git(&["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "one"], true);
        git(&["gc", "-q", "--aggressive"], true);
        git(&["fsck", "--strict", "--no-progress"], false);
    }
}
