// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What nginx documents of its filters `gzip`, `gunzip`, `gzip_static`, `charset`, `ssi` and `sub`, alone and behind
//! each other: with the library that compresses, the answer is the documented one, and its status, its fields and
//! its decoded bytes are those of nginx without the library.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;
use millrace_edge::compression::Counter;
use millrace_tests::artifacts::artifacts;
use millrace_tests::nginx::{Nginx, NginxOptions};
use millrace_tests::process::free_port;
use millrace_tests::temp_dir;
use millrace_tests::web::{Page, answer, counters, html, noise};

/// The time of every file, so that both servers send one `Last-Modified` and one `ETag`.
const MODIFIED: Duration = Duration::from_secs(1_000_000_000);

/// The same time as the field of an answer or of a condition has it.
const MODIFIED_FIELD: &str = "Sun, 09 Sep 2001 01:46:40 GMT";

/// `абв`, a line end, in KOI8-R and in UTF-8.
const KOI8: &[u8] = b"\xc1\xc2\xd7\n";
const UTF8: &[u8] = "абв\n".as_bytes();

/// A command that a style sheet may have, too.
const COMMAND: &str = "<!--#set var=\"x\" value=\"1\" -->x=<!--#echo var=\"x\" -->, ";

/// A line with each command that gives text.
const COMMANDS: &str = concat!(
    "<!--#set var=\"x\" value=\"1\" --><!--#set var=\"y\" value=\"<2>\" -->",
    "x=<!--#echo var=\"x\" --> <!--#echo var=\"y\" encoding=\"entity\" --> <!--#echo var=\"y\" encoding=\"none\" --> ",
    "<!--#echo var=\"z\" default=\"empty\" --> <!--#echo var=\"z\" --> ",
    "<!--#if expr=\"$x = 1\" -->yes<!--#else -->no<!--#endif --> ",
    "<!--#if expr=\"$x = /[3-9]/\" -->3<!--#elif expr=\"$y = /<(?P<in>.)>/\" --><!--#echo var=\"in\" --><!--#endif --> ",
    "<!--#if expr=\"$x != 1\" -->yes<!--#else -->no<!--#endif -->",
);

/// How often a line of text is repeated in a file.
const LINES: usize = 5_000;

/// How the body of an answer has come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Body {
    Plain,
    /// Compressed for this answer.
    Compressed,
    /// Sent as a file or another server had it compressed.
    Stored,
}

/// A location with a request to it, and what nginx documents for that request.
struct Case {
    location: String,
    method: &'static str,
    version: &'static str,
    path: &'static str,
    fields: Vec<String>,
    status: u16,
    body: Body,
    bytes: Vec<u8>,
    /// Lines of the head, in lower case.
    has: Vec<String>,
    /// Names of fields that the head lacks.
    lacks: Vec<&'static str>,
}

/// A client that accepts gzip asks for a file below `location`, which has the bytes and is compressed for it.
fn case(location: impl Into<String>, path: &'static str, bytes: impl Into<Vec<u8>>) -> Case {
    Case {
        location: location.into(),
        method: "GET",
        version: "1.1",
        path,
        fields: vec!["Accept-Encoding: gzip".to_owned()],
        status: 200,
        body: Body::Compressed,
        bytes: bytes.into(),
        has: Vec::new(),
        lacks: vec!["accept-ranges"],
    }
}

impl Case {
    /// The client does not accept gzip.
    fn without_gzip(mut self) -> Self {
        self.fields.clear();
        self.plain()
    }

    fn accepts(mut self, encodings: &str) -> Self {
        self.fields[0] = format!("Accept-Encoding: {encodings}");
        self
    }

    fn field(mut self, field: impl Into<String>) -> Self {
        self.fields.push(field.into());
        self
    }

    fn method(mut self, method: &'static str) -> Self {
        self.method = method;
        self
    }

    fn http_1_0(mut self) -> Self {
        self.version = "1.0";
        self
    }

    fn plain(mut self) -> Self {
        self.body = Body::Plain;
        self.lacks = vec!["content-encoding"];
        self
    }

    fn stored(mut self) -> Self {
        self.body = Body::Stored;
        self.lacks.clear();
        self
    }

    fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    fn has(mut self, line: impl Into<String>) -> Self {
        self.has.push(line.into());
        self
    }

    fn lacks(mut self, field: &'static str) -> Self {
        self.lacks.push(field);
        self
    }

    fn request(&self, number: usize) -> String {
        let Self { method, version, path, .. } = self;
        let mut request = format!(
            "{method} /{number}/{path} HTTP/{version}\r\nHost: test\r\nConnection: close\r\n"
        );
        for field in &self.fields {
            request.push_str(&format!("{field}\r\n"));
        }
        request + "\r\n"
    }

    /// Differences between an answer and what is documented.
    fn faults(&self, page: &Page) -> Vec<String> {
        let Page { head, .. } = page;
        let mut found = Vec::new();
        if !head.starts_with(&format!("http/1.1 {} ", self.status)) {
            found.push("another status".to_owned());
        }
        if page.is_gzip() != (self.body != Body::Plain) {
            found.push(format!("not {:?}", self.body));
        }
        // A head alone says what a body would be.
        let bytes = if self.method == "HEAD" { page.body.clone() } else { page.plain() };
        if bytes != self.bytes {
            found.push(format!("other bytes, {} instead of {}", bytes.len(), self.bytes.len()));
        }
        let missing = self.has.iter().filter(|line| !head.contains(&format!("\r\n{line}\r\n")));
        found.extend(missing.map(|line| format!("no {line:?}")));
        let mut forbidden = self.lacks.clone();
        if self.body == Body::Compressed {
            // Neither is that of the bytes that are sent.
            forbidden.extend(["content-length", "etag: \""]);
        }
        let there = forbidden.iter().filter(|field| head.contains(&format!("\r\n{field}")));
        found.extend(there.map(|field| format!("a field {field:?}")));
        found
    }
}

/// Directives of a location that gets the file of the same path from another server. That server does not compress.
fn proxied(directives: &str) -> String {
    format!(
        "{directives} proxy_http_version 1.1; proxy_set_header Connection ''; proxy_set_header Accept-Encoding ''; \
         rewrite ^/\\d+/(.*)$ /upstream/$1 break; proxy_pass http://$server_addr:$server_port;"
    )
}

/// The module `gzip`: what is compressed, for whom, and the fields of the answer.
fn gzip() -> Vec<Case> {
    let whole = || html(10_000);
    let on = |more: &str| format!("gzip on; {more}");
    let ask = |more: &str| case(on(more), "10000.html", whole());
    vec![
        ask("").has("transfer-encoding: chunked").has("etag: w/\"3b9aca00-2710\"").lacks("vary"),
        ask("gzip_vary on;").has("vary: accept-encoding"),
        ask("gzip_vary on;").without_gzip().has("vary: accept-encoding"),
        case("gzip off; gzip_vary on;", "10000.html", whole()).plain().lacks("vary"),
        ask("").without_gzip().has("accept-ranges: bytes").has("content-length: 10000"),
        // What the client accepts.
        ask("").accepts("br, gzip;q=0.5, *;q=0.1"),
        ask("").accepts("GZIP"),
        ask("").accepts("gzip;q=0").plain(),
        ask("").accepts("deflate, br").plain(),
        ask("gzip_disable \"old[0-9]\";").field("User-Agent: new2"),
        ask("gzip_disable \"old[0-9]\";").field("User-Agent: old2").plain(),
        // Types: text/html always, others as they are listed.
        case(on(""), "text.css", html(5_000)).plain(),
        case(on("gzip_types text/css;"), "text.css", html(5_000)),
        ask("gzip_types text/css;"),
        case(on("gzip_types *;"), "picture.png", noise(5_000)),
        case(on("gzip_types text/css; default_type text/css;"), "file", html(3_000)),
        // Lengths: the field decides, and an answer without it is compressed whatever its length.
        case(on(""), "19.html", html(19)).plain(),
        case(on(""), "20.html", html(20)),
        case(on("gzip_min_length 0;"), "0.html", ""),
        ask("gzip_min_length 10000;"),
        ask("gzip_min_length 10001;").plain(),
        case(proxied("gzip on; gzip_min_length 50;"), "19.html", html(19)).plain(),
        case(proxied("gzip on; gzip_min_length 50; ssi on;"), "19.html", html(19)),
        // Versions of HTTP.
        ask("").http_1_0().plain(),
        ask("gzip_http_version 1.0;").http_1_0().lacks("transfer-encoding"),
        // Methods, ranges, conditions.
        case(on(""), "10000.html", "").method("HEAD").stored().lacks("content-length"),
        case(on(""), "10000.html", "").method("HEAD").without_gzip().has("content-length: 10000"),
        ask("").field("Range: bytes=100-199"),
        case(on(""), "10000.html", &html(200)[100..])
            .without_gzip()
            .field("Range: bytes=100-199")
            .status(206)
            .has("content-range: bytes 100-199/10000"),
        case(on(""), "10000.html", "")
            .plain()
            .field(format!("If-Modified-Since: {MODIFIED_FIELD}"))
            .status(304),
        case(on(""), "10000.html", "")
            .plain()
            .field("If-None-Match: W/\"3b9aca00-2710\"")
            .status(304),
        ask("").field("If-None-Match: \"other\""),
        // Of all statuses 200, 403 and 404 are compressed.
        case(on("error_page 404 /404.html;"), "none.html", html(4_040)).status(404),
        case(on("deny all; error_page 403 /404.html;"), "10000.html", html(4_040)).status(403),
        case(on("error_page 410 /404.html; return 410;"), "10000.html", html(4_040))
            .plain()
            .status(410),
        // An upstream's answer, framed or compressed by it.
        case(proxied("gzip on;"), "10000.html", whole()),
        case(proxied("gzip on; proxy_buffering off;"), "100000.html", html(100_000)),
        case(
            proxied("gzip on; proxy_buffers 4 4k; proxy_buffer_size 4k;"),
            "100000.html",
            html(100_000),
        ),
        case(proxied("gzip on;"), "chunked/100000.html", html(100_000)),
        case(proxied("gzip on;"), "stored/only.html", html(30_000)).stored(),
        // Behind a filter that changes the text.
        case(
            on("sub_filter 'Item ' 'Thing '; sub_filter_once off;"),
            "10000.html",
            String::from_utf8(whole()).expect("text").replace("Item ", "Thing "),
        )
        .lacks("etag"),
    ]
}

/// Answers to proxies: `gzip_proxied`.
fn gzip_proxied() -> Vec<Case> {
    let ask = |directives: &str| {
        let location = format!("gzip on; {directives}");
        case(location, "10000.html", html(10_000)).field("Via: 1.1 cache")
    };
    vec![
        ask("").plain(),
        ask("gzip_proxied off;").plain(),
        ask("gzip_proxied any;"),
        ask("gzip_proxied expired; expires epoch;"),
        ask("gzip_proxied expired; expires 1h;").plain(),
        ask("gzip_proxied no-cache; add_header Cache-Control no-cache;"),
        ask("gzip_proxied no-store; add_header Cache-Control no-store;"),
        ask("gzip_proxied private; add_header Cache-Control private;"),
        ask("gzip_proxied no-store private; add_header Cache-Control max-age=5;").plain(),
        case(proxied("gzip on; gzip_proxied no_last_modified;"), "10000.html", html(10_000))
            .field("Via: 1.1 cache")
            .plain(),
        ask("gzip_proxied no_last_modified; add_header Last-Modified '';"),
        ask("gzip_proxied no_etag;").plain(),
        ask("gzip_proxied no_etag; etag off;"),
        ask("gzip_proxied auth; expires epoch;").plain(),
        ask("gzip_proxied auth; expires epoch;").field("Authorization: Basic eDp5"),
    ]
}

/// Every level with buffers of several sizes: of the filter, of the file, of the upstream, of what is held back.
fn buffers() -> Vec<Case> {
    const SIZES: [&str; 5] = [
        "gzip_buffers 1 64; postpone_output 0;",
        "gzip_buffers 2 700; output_buffers 1 999; sendfile off;",
        "gzip_buffers 4 4k; output_buffers 2 32k; sendfile off;",
        "gzip_buffers 16 8k; sendfile on; sendfile_max_chunk 5k;",
        "gzip_buffers 1 256k; postpone_output 40k;",
    ];
    let mut cases = Vec::new();
    for level in 1..=9 {
        for sizes in SIZES {
            let directives = format!("gzip on; gzip_comp_level {level}; {sizes}");
            cases.push(case(directives.clone(), "1000.html", html(1_000)));
            let directives = if level % 2 == 0 { proxied(&directives) } else { directives };
            cases.push(case(directives, "100000.html", html(100_000)));
        }
    }
    cases
}

/// Files that are there compressed, and what a client without gzip gets of compressed answers.
fn gunzip() -> Vec<Case> {
    let stored = || html(30_000);
    let only = |directives: &str| case(directives, "only.html", stored());
    let both = |directives: &str| case(directives, "both.html", b"stored".as_slice());
    let proxy = |directives: &str| {
        case(proxied(directives), "stored/only.html", stored())
            .without_gzip()
            .lacks("accept-ranges")
    };
    vec![
        // The file with the ending is sent to whom accepts it; it is a file: it has a length, parts and an ETag.
        both("gzip_static on;").stored().has("content-type: text/html"),
        both("gzip_static on; gzip_vary on;").stored().has("vary: accept-encoding"),
        case("gzip_static on; gzip_vary on;", "both.html", "plain".repeat(9))
            .without_gzip()
            .has("vary: accept-encoding"),
        case("gzip_static on;", "both.html", "plain".repeat(9)).http_1_0().plain(),
        case("gzip_static on;", "10000.html", html(10_000)).plain(),
        case("gzip_static on; gzip on;", "10000.html", html(10_000)),
        both("gzip_static on; gzip on;").stored(),
        both("gzip_static always;").accepts("br").stored(),
        case("gzip_static on;", "only.html", "").without_gzip().status(404).method("HEAD"),
        case("gzip_static on;", "both.html", "").method("HEAD").stored(),
        only("gzip_static always;").stored(),
        // Decompressed for whom does not accept gzip.
        only("gzip_static always; gunzip on;").stored(),
        only("gzip_static always; gunzip on;")
            .without_gzip()
            .lacks("accept-ranges")
            .lacks("content-length")
            .has("transfer-encoding: chunked"),
        only("gzip_static always; gunzip on; gzip_vary on;")
            .without_gzip()
            .has("vary: accept-encoding"),
        only("gzip_static always; gunzip on; gzip on;").without_gzip(),
        only("gzip_static always; gunzip on;").accepts("gzip;q=0").plain(),
        only("gzip_static always; gunzip on;").http_1_0().plain().lacks("transfer-encoding"),
        only("gzip_static always; gunzip on; gunzip_buffers 1 64;").without_gzip(),
        only("gzip_static always; gunzip on; gunzip_buffers 1 256k;").without_gzip(),
        only("gzip_static always; gunzip on; output_buffers 1 17; sendfile off;").without_gzip(),
        only("gzip_static always; gunzip on;").without_gzip().field("Range: bytes=1-2"),
        case("gzip_static always; gunzip on;", "only.html", "")
            .without_gzip()
            .method("HEAD")
            .lacks("accept-ranges")
            .lacks("content-length"),
        case("gzip_static always; gunzip on;", "members.html", [html(500), html(70_000)].concat())
            .without_gzip(),
        // From an upstream.
        proxy("gunzip on;"),
        proxy("gunzip on; gunzip_buffers 2 1k; proxy_buffering off;"),
        proxy("gunzip on; gzip_vary on;").has("vary: accept-encoding"),
        case(proxied("gunzip on;"), "stored/only.html", stored()).stored(),
        case(proxied("gunzip on; gzip on;"), "10000.html", html(10_000)),
        proxy("gunzip on;").http_1_0().lacks("transfer-encoding"),
        // Other filters see what was decompressed.
        Case {
            bytes: String::from_utf8(stored()).expect("text").replace("Item ", "Thing ").into(),
            ..proxy("gunzip on; sub_filter 'Item ' 'Thing '; sub_filter_once off;")
        },
    ]
}

/// Texts in another character set than the client gets.
fn charset() -> Vec<Case> {
    const TO_UTF8: &str = "charset utf-8; source_charset koi8-r;";
    let (koi8, utf8) = (KOI8.repeat(LINES), UTF8.repeat(LINES));
    let from_koi8 = |more: &str, file: &'static str| {
        case(format!("{TO_UTF8} {more}"), file, utf8.clone())
            .has("content-type: text/html; charset=utf-8")
    };
    vec![
        from_koi8("gzip on;", "koi8.html"),
        from_koi8("gzip on; gzip_buffers 1 64; output_buffers 1 7; sendfile off;", "koi8.html"),
        from_koi8("gzip on;", "koi8.html").without_gzip(),
        case("charset koi8-r; source_charset utf-8; gzip on;", "utf8.html", koi8.clone())
            .has("content-type: text/html; charset=koi8-r"),
        // A letter that the other set lacks is a reference.
        case(
            "charset koi8-r; source_charset utf-8; gzip on;",
            "other.html",
            "&#960;".repeat(LINES),
        ),
        case("charset utf-8; source_charset utf-8; gzip on;", "utf8.html", utf8.clone())
            .has("content-type: text/html; charset=utf-8"),
        case("charset off; gzip on;", "koi8.html", koi8.clone()).has("content-type: text/html"),
        // A type that is not listed stays as it is.
        case(format!("{TO_UTF8} gzip on; gzip_types *;"), "koi8.png", koi8.clone())
            .has("content-type: image/png"),
        case(
            format!("{TO_UTF8} charset_types image/png; gzip on; gzip_types *;"),
            "koi8.png",
            utf8.clone(),
        )
        .has("content-type: image/png; charset=utf-8"),
        // An upstream's own set is changed only where that is asked for.
        case(proxied(&format!("{TO_UTF8} gzip on;")), "in-koi8/koi8.html", koi8.clone())
            .has("content-type: text/html; charset=koi8-r"),
        case(
            proxied("charset utf-8; override_charset on; gzip on;"),
            "in-koi8/koi8.html",
            utf8.clone(),
        )
        .has("content-type: text/html; charset=utf-8"),
        // What is compressed is not converted; what is decompressed first is.
        case(format!("{TO_UTF8} gzip_static on;"), "koi8-stored.html", koi8.clone()).stored(),
        from_koi8("gzip_static always; gunzip on;", "koi8-stored.html").without_gzip(),
        from_koi8("gzip_static always; gunzip on; gunzip_buffers 40 512;", "koi8-stored.html")
            .without_gzip(),
    ]
}

/// Pages of several parts.
fn ssi() -> Vec<Case> {
    let parts = [b"<1>".as_slice(), &html(100_000), b"<2>", &html(1_000), b"<3>"].concat();
    vec![
        case("ssi on; gzip on;", "parts.html", parts.clone()).lacks("last-modified").lacks("etag"),
        case("ssi on; gzip on; ssi_last_modified on;", "parts.html", parts.clone())
            .has(format!("last-modified: {}", MODIFIED_FIELD.to_lowercase())),
        case("ssi on; gzip on;", "parts.html", parts.clone()).without_gzip(),
        case("ssi on; gzip on; gzip_buffers 1 64; postpone_output 0;", "parts.html", parts.clone()),
        case("gzip on;", "parts.html", page("parts.html")),
        // Parts that come from an upstream, together and one after another, plain and compressed.
        case("ssi on; gzip on;", "remote.html", parts.clone()),
        case("ssi on; gzip on; gzip_comp_level 9;", "remote.html", parts.clone())
            .http_1_0()
            .plain(),
        case("ssi on; gzip on; subrequest_output_buffer_size 200k;", "set.html", "[1][2]"),
        case("ssi on; gzip on;", "stored-parts.html", [html(30_000), html(30_000)].concat()),
        case("ssi on; gzip on;", "stored-parts.html", [html(30_000), html(30_000)].concat())
            .without_gzip(),
        // Commands.
        case("ssi on; gzip on;", "commands.html", "x=1 &lt;2&gt; <2> empty (none) yes 2 no"),
        case(
            "ssi on; gzip on; gzip_types *; ssi_types text/css;",
            "commands.css",
            "x=1, ".repeat(5),
        ),
        case("ssi on; gzip on; gzip_types *;", "commands.css", page("commands.css")),
        case("ssi on; gzip on;", "nested.html", [b"(".as_slice(), &parts, b")"].concat()),
        case("ssi on; gzip on;", "stub.html", "stub"),
        case(
            "ssi on; gzip on;",
            "failed.html",
            "a[an error occurred while processing the directive]b, so it is",
        ),
        case("ssi on; gzip on; ssi_silent_errors on;", "failed.html", "ab, so it is"),
        // A page that another server had compressed: its commands are seen where it is decompressed.
        case(proxied("ssi on; gunzip on;"), "stored/packed-parts.html", parts.clone())
            .without_gzip(),
        case(
            proxied("ssi on; gunzip on; gzip on;"),
            "stored/packed-parts.html",
            page("parts.html"),
        )
        .stored(),
        case(proxied("ssi on; gzip on;"), "parts.html", parts),
        // Sets of characters: each part is converted into that of the page.
        case(
            "ssi on; gzip on; charset utf-8; source_charset koi8-r;",
            "koi8-parts.html",
            ["\n".as_bytes(), &UTF8.repeat(2 * LINES)].concat(),
        ),
    ]
}

/// A command that includes an answer.
fn include(path: &str) -> String {
    format!("<!--#include virtual=\"{path}\" -->")
}

/// Pages with commands.
fn pages_of_parts() -> Vec<(&'static str, Vec<u8>)> {
    let set = |name: &str| {
        format!("<!--#include virtual=\"/remote/{name}\" set=\"{name}\" wait=\"yes\" -->")
    };
    let koi8_parts = format!("\n{}{}", include("/koi8/koi8.html"), include("/utf8/utf8.html"));
    let texts = [
        ("parts.html", format!("<1>{}<2>{}<3>", include("/100000.html"), include("/1000.html"))),
        (
            "remote.html",
            format!("<1>{}<2>{}<3>", include("/remote/100000.html"), include("/remote/1000.html")),
        ),
        ("set.html", format!("{}{}[<!--#echo var=\"a\" -->][<!--#echo var=\"b\" -->]", set("a"), set("b"))),
        ("stored-parts.html", [include("/packed/only.html"), include("/remote/stored/only.html")].concat()),
        ("nested.html", format!("({})", include("/inside/parts.html"))),
        ("koi8-parts.html", koi8_parts),
        ("stub.html", "<!--#block name=\"one\" -->stub<!--#endblock --><!--#include virtual=\"/0.html\" stub=\"one\" -->".to_owned()),
        ("failed.html", "a<!--#unknown x=\"y\" -->b, so it is".to_owned()),
        ("commands.css", COMMAND.repeat(5)),
        ("commands.html", COMMANDS.to_owned()),
    ];
    texts.into_iter().map(|(name, text)| (name, text.into_bytes())).collect()
}

/// Every file below the root of both servers. Those whose name ends in `.gz` are compressed.
fn pages() -> Vec<(&'static str, Vec<u8>)> {
    let (koi8, utf8) = (KOI8.repeat(LINES), UTF8.repeat(LINES));
    let parts = pages_of_parts();
    let packed = parts[0].1.clone();
    let more = vec![
        ("0.html", html(0)),
        ("19.html", html(19)),
        ("20.html", html(20)),
        ("1000.html", html(1_000)),
        ("10000.html", html(10_000)),
        ("100000.html", html(100_000)),
        ("404.html", html(4_040)),
        ("text.css", html(5_000)),
        ("picture.png", noise(5_000)),
        ("file", html(3_000)),
        ("only.html.gz", html(30_000)),
        ("both.html", b"plain".repeat(9)),
        ("both.html.gz", b"stored".to_vec()),
        ("packed-parts.html.gz", packed),
        ("koi8.html", koi8.clone()),
        ("koi8.png", koi8.clone()),
        ("koi8-stored.html.gz", koi8),
        ("utf8.html", utf8),
        ("other.html", "π".repeat(LINES).into_bytes()),
        ("a", b"1".to_vec()),
        ("b", b"2".to_vec()),
    ];
    parts.into_iter().chain(more).collect()
}

fn page(name: &str) -> Vec<u8> {
    pages().into_iter().find(|page| page.0 == name).expect("a page").1
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::default());
    packer.write_all(bytes).expect("memory");
    packer.finish().expect("memory")
}

fn write_pages(root: &Path) {
    fs::create_dir(root).expect("a folder");
    // A file of gzip may have several members, one after another.
    let members = [gz(&html(500)), gz(&html(70_000))].concat();
    let packed = |(name, bytes): (&'static str, Vec<u8>)| {
        let bytes = if name.ends_with(".gz") { gz(&bytes) } else { bytes };
        (name, bytes)
    };
    for (name, bytes) in pages().into_iter().map(packed).chain([("members.html.gz", members)]) {
        let mut file = File::create(root.join(name)).expect("a file");
        file.write_all(&bytes).expect("a file");
        file.set_modified(SystemTime::UNIX_EPOCH + MODIFIED).expect("a file");
    }
}

/// Beside the locations of the cases: the upstream, which is the same server, and what pages include.
const LOCATIONS: &str = "
    location = /404.html { gzip on; }
    location /upstream/ { rewrite ^/upstream/(.*)$ /$1 break; }
    location /upstream/chunked/ { ssi on; rewrite ^/upstream/chunked/(.*)$ /$1 break; }
    location /upstream/stored/ { gzip_static always; rewrite ^/upstream/stored/(.*)$ /$1 break; }
    location /upstream/in-koi8/ { charset koi8-r; rewrite ^/upstream/in-koi8/(.*)$ /$1 break; }
    location /remote/ { rewrite ^/remote/(.*)$ /upstream/$1 break; gunzip on; proxy_set_header Accept-Encoding '';
        proxy_pass http://$server_addr:$server_port; }
    location /packed/ { gzip_static always; gunzip on; rewrite ^/packed/(.*)$ /$1 break; }
    location /inside/ { ssi on; rewrite ^/inside/(.*)$ /$1 break; }
    location /koi8/ { charset utf-8; source_charset koi8-r; rewrite ^/koi8/(.*)$ /$1 break; }
    location /utf8/ { charset utf-8; rewrite ^/utf8/(.*)$ /$1 break; }
";

fn serve(dir: &Path, library: bool, cases: &[Case]) -> (Nginx, u16) {
    let port = free_port();
    let mut http = format!(
        "log_format ratio $gzip_ratio; types {{ text/html html; text/css css; image/png png; }}\n\
         charset_map koi8-r utf-8 {{ C1 D0B0; C2 D0B1; D7 D0B2; }}\n\
         server {{ listen 127.0.0.1:{port}; root {}/pages;\n{LOCATIONS}",
        dir.display()
    );
    for (number, case) in cases.iter().enumerate() {
        let Case { location, .. } = case;
        http.push_str(&format!(
            "location /{number}/ {{ {location} rewrite ^/\\d+/(.*)$ /$1 break; }}\n"
        ));
    }
    http.push('}');
    let options = NginxOptions {
        workers: 1,
        preload: library,
        library: Some(artifacts().zlib.clone()),
        daemon: false,
        launcher: Vec::new(),
        edge: None,
        main: String::new(),
        events: String::new(),
        http,
        stream: String::new(),
        environment: vec![("MILLRACE_GZIP_VERIFY", "all".to_owned())],
    };
    (Nginx::start(dir, &options, &[port]), port)
}

/// The head without the one field that names the moment.
fn fields(page: &Page) -> Vec<&str> {
    page.head.lines().filter(|line| !line.starts_with("date:")).collect()
}

/// Sends every request to nginx with the library and without it.
fn compare(cases: &[Case]) {
    let dir = temp_dir();
    write_pages(&dir.path().join("pages"));
    let [(with, port), (_without, stock)] =
        [true, false].map(|library| serve(dir.path(), library, cases));
    let mut faults = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let request = case.request(number);
        let [ours, zlibs] = [port, stock].map(|port| answer(port, &request));
        let without =
            case.faults(&zlibs).into_iter().map(|fault| format!("{fault}, without the library"));
        let other =
            (fields(&ours) != fields(&zlibs)).then(|| format!("not as without: {}", zlibs.head));
        for fault in case.faults(&ours).into_iter().chain(without).chain(other) {
            faults.push(format!("{fault}\n{}\n{request}{}", case.location, ours.head));
        }
    }
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
    let compressed = cases.iter().filter(|case| case.body == Body::Compressed).count() as u64;
    let counted = counters(with.master()).expect("the library in nginx");
    assert_eq!(counted.get(Counter::Finished), compressed, "each by the library");
    let log = with.log();
    let bad = ["[alert]", "[crit]", "[emerg]"].iter().find(|word| log.contains(*word));
    assert_eq!(bad, None, "{log}");
}

#[test]
fn gzip_and_its_conditions_are_those_of_stock_nginx() {
    compare(&gzip().into_iter().chain(gzip_proxied()).collect::<Vec<_>>());
}

#[test]
fn every_level_and_size_of_buffers_gives_the_answers_of_stock_nginx() {
    compare(&buffers());
}

#[test]
fn stored_and_decompressed_answers_are_those_of_stock_nginx() {
    compare(&gunzip());
}

#[test]
fn converted_and_included_texts_are_those_of_stock_nginx() {
    compare(&charset().into_iter().chain(ssi()).collect::<Vec<_>>());
}

/// nginx computes `$gzip_ratio` from the totals that zlib's interface reports.
#[test]
fn ratio_in_the_log_is_that_of_the_answer() {
    let dir = temp_dir();
    write_pages(&dir.path().join("pages"));
    let log = dir.path().join("ratio.log");
    let location = format!("gzip on; access_log {} ratio;", log.display());
    let cases = [case(location, "100000.html", html(100_000))];
    let (nginx, port) = serve(dir.path(), true, &cases);
    let page = answer(port, &cases[0].request(0));
    assert_eq!(cases[0].faults(&page), [""; 0], "{}", page.head);
    drop(nginx);
    // To the nearest hundredth.
    let ratio = (100_000 * 1000 / page.body.len() + 5) / 10;
    let logged = fs::read_to_string(log).expect("the log");
    assert_eq!(logged.trim(), format!("{}.{:02}", ratio / 100, ratio % 100));
}
