// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One nginx with one worker, and requests to it over several connections at once: a worker that sleeps between two
//! requests spends more on falling asleep and waking up than on a short response.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::read::GzDecoder;

use super::{NginxVariant, PageSet};
use crate::error::BenchError;
use crate::process::{ChildProcess, command, free_addresses, listens, need};

const LIBRARY: &str = "libmillrace_zlib.so";

/// Names the library's engines.
const ENGINES: &str = "MILLRACE_GZIP_ENGINES";

/// A server that is silent so long has failed.
const SILENCE: Duration = Duration::from_secs(30);

/// Requests in flight. From 16 on the cost of a request hardly falls any further.
const CONNECTIONS: usize = 32;

/// Folder of bodies that stock nginx has compressed, to be sent as they are.
const READY: &str = "ready";

/// The library that was named, or the one beside this binary or in its prefix.
pub(super) fn library(named: Option<&Path>) -> Result<PathBuf, BenchError> {
    let binary = env::current_exe().unwrap_or_default();
    let beside = binary.with_file_name(LIBRARY);
    let prefix = binary.parent().and_then(Path::parent);
    let installed = prefix.map(|prefix| prefix.join("lib/millrace").join(LIBRARY));
    let places = named.map(Path::to_owned).into_iter().chain(Some(beside)).chain(installed);
    let places =
        if named.is_some() { places.take(1).collect() } else { places.collect::<Vec<_>>() };
    let found = places.into_iter().find_map(|place| fs::canonicalize(place).ok());
    found.ok_or_else(|| {
        BenchError::missing(LIBRARY, "run `make build`, or name it with --compression-library")
    })
}

/// Writes the pages where both nginx find them.
pub(super) fn write_pages(dir: &Path, pages: &[PageSet]) -> Result<(), BenchError> {
    let folder = dir.join("pages");
    for folder in [&folder, &folder.join(READY)] {
        fs::create_dir(folder).map_err(BenchError::file("create", folder))?;
    }
    for page in pages {
        for (number, bytes) in page.bytes.iter().enumerate() {
            let file = folder.join(page.name(number));
            fs::write(&file, bytes).map_err(BenchError::file("write", &file))?;
        }
    }
    Ok(())
}

/// A running nginx with open connections.
pub(super) struct NginxSite {
    process: ChildProcess,
    connections: Vec<BufReader<TcpStream>>,
    address: SocketAddr,
    pages: PathBuf,
    /// Bodies by their paths, which were decompressed and compared.
    bodies: BTreeMap<String, Vec<u8>>,
}

impl NginxSite {
    pub(super) fn start(
        variant: NginxVariant,
        library: &Path,
        levels: &[u8],
        core: usize,
        dir: &Path,
    ) -> Result<Self, BenchError> {
        let pages = dir.join("pages");
        let dir = dir.join(format!("{variant:?}"));
        fs::create_dir(&dir).map_err(BenchError::file("create", &dir))?;
        let [address] = free_addresses::<1>()?;
        let mut text = String::new();
        if rustix::process::geteuid().is_root() {
            text.push_str("user root root;\n");
        }
        let _ = write!(
            text,
            "daemon off; worker_processes 1; pid nginx.pid; error_log error.log;\n\
             events {{ worker_connections 200; }}\n\
             http {{ access_log off; types {{ text/html html; }} gzip on; gzip_min_length 0; keepalive_requests 1000000;\n\
             server {{ listen {address};\n\
             location /{READY}/ {{ gzip off; root {}; }}\n",
            pages.display()
        );
        for level in levels {
            let _ = writeln!(
                text,
                "location /{level}/ {{ gzip_comp_level {level}; alias {}/; }}",
                pages.display()
            );
        }
        text.push_str("} }\n");
        let config = dir.join("server.conf");
        fs::write(&config, text).map_err(BenchError::file("write", &config))?;
        let mut command = command(&need("nginx", "nginx")?);
        command.arg("-p").arg(&dir).args(["-e", "error.log", "-c"]).arg(&config);
        if variant != NginxVariant::Stock {
            command.env("LD_PRELOAD", library);
        }
        match variant {
            NginxVariant::Isal => command.env(ENGINES, "isal"),
            NginxVariant::Libdeflate => command.env(ENGINES, "libdeflate"),
            NginxVariant::Stock | NginxVariant::Millrace => command.env_remove(ENGINES),
        };
        let mut process = ChildProcess::start("nginx", core, command, &dir.join("output.log"))?;
        process.wait_until(|| listens(address))?;
        let connections = (0..CONNECTIONS).map(|_| connect(address));
        Ok(Self {
            process,
            connections: connections.collect::<Result<_, _>>()?,
            address,
            pages,
            bodies: BTreeMap::new(),
        })
    }

    /// Microseconds of CPU for one request, and the length of the compressed bodies of all pages.
    ///
    /// # Errors
    /// [`BenchError::Wrong`] if a body is not its page.
    pub(super) fn measure(
        &mut self,
        page: &PageSet,
        level: u8,
    ) -> Result<(f64, usize), BenchError> {
        let paths: Vec<String> =
            (0..page.bytes.len()).map(|number| format!("/{level}/{}", page.name(number))).collect();
        let mut length = 0;
        for (path, bytes) in paths.iter().zip(&page.bytes) {
            length += self.compressed(path, bytes)?.len();
        }
        Ok((self.time(&paths, page)?, length))
    }

    /// Microseconds of CPU for one request for a body of [`Self::measure`], compressed before: what compression
    /// that costs nothing would leave.
    pub(super) fn measure_ready(&mut self, page: &PageSet, level: u8) -> Result<f64, BenchError> {
        let mut paths = Vec::new();
        for (number, bytes) in page.bytes.iter().enumerate() {
            let name = page.name(number);
            let body = self.compressed(&format!("/{level}/{name}"), bytes)?.clone();
            let path = format!("/{READY}/{level}-{name}");
            let file = self.pages.join(&path[1..]);
            if !file.is_file() {
                fs::write(&file, &body).map_err(BenchError::file("write", &file))?;
            }
            self.bodies.insert(path.clone(), body);
            paths.push(path);
        }
        self.time(&paths, page)
    }

    /// The compressed body, after it was decompressed and compared.
    fn compressed(&mut self, path: &str, page: &[u8]) -> Result<&Vec<u8>, BenchError> {
        if !self.bodies.contains_key(path) {
            self.ask(0, path)?;
            let body = self.answer(0, path)?;
            let mut plain = Vec::with_capacity(page.len());
            let readable = GzDecoder::new(&body[..]).read_to_end(&mut plain).is_ok();
            if !readable || plain != page {
                let problem = format!("{path} from {} is not the page in gzip", self.address);
                return Err(BenchError::Wrong(problem));
            }
            self.bodies.insert(path.to_owned(), body);
        }
        Ok(&self.bodies[path])
    }

    /// Goes round the paths, whose bodies are known.
    fn time(&mut self, paths: &[String], page: &PageSet) -> Result<f64, BenchError> {
        let batches = page.requests().div_ceil(CONNECTIONS);
        let mut before = self.process.cpu_time();
        // The first batch is not counted: it begins with a worker that sleeps.
        for batch in 0..=batches {
            let path = |connection| &paths[(batch * CONNECTIONS + connection) % paths.len()];
            for connection in 0..CONNECTIONS {
                self.ask(connection, path(connection))?;
            }
            for connection in 0..CONNECTIONS {
                let path = path(connection);
                if self.answer(connection, path)? != self.bodies[path] {
                    let problem = format!("{path} has changed between two requests");
                    return Err(BenchError::Wrong(problem));
                }
            }
            if batch == 0 {
                before = self.process.cpu_time();
            }
        }
        let took = self.process.cpu_time().saturating_sub(before);
        Ok(took.as_secs_f64() * 1e6 / (batches * CONNECTIONS) as f64)
    }

    fn ask(&mut self, connection: usize, path: &str) -> Result<(), BenchError> {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: bench\r\nAccept-Encoding: gzip\r\n\r\n");
        let stream = self.connections[connection].get_mut();
        stream.write_all(request.as_bytes()).map_err(BenchError::system("send a request to nginx"))
    }

    fn answer(&mut self, connection: usize, path: &str) -> Result<Vec<u8>, BenchError> {
        let lost = |error| BenchError::system("read an answer of nginx")(error);
        let stream = &mut self.connections[connection];
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).map_err(lost)? == 0 {
                return Err(self.process.problem("closed the connection"));
            }
        }
        let unknown = |what: &str| BenchError::Wrong(format!("{path}: {what}: {head}"));
        let mut body = Vec::new();
        if let Some((_, length)) = head.split_once("Content-Length: ") {
            let length = length.lines().next().and_then(|word| word.parse().ok());
            body.resize(length.ok_or_else(|| unknown("no length"))?, 0);
            stream.read_exact(&mut body).map_err(lost)?;
            return Ok(body);
        }
        if !head.contains("Content-Encoding: gzip") || !head.contains("Transfer-Encoding: chunked")
        {
            return Err(unknown("not compressed"));
        }
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).map_err(lost)?;
            let length = usize::from_str_radix(line.trim_end(), 16);
            let length = length.map_err(|_| unknown("no length of a chunk"))?;
            let before = body.len();
            body.resize(before + length + 2, 0);
            stream.read_exact(&mut body[before..]).map_err(lost)?;
            body.truncate(before + length);
            if length == 0 {
                return Ok(body);
            }
        }
    }
}

fn connect(address: SocketAddr) -> Result<BufReader<TcpStream>, BenchError> {
    let connection = TcpStream::connect(address).and_then(|connection| {
        connection.set_read_timeout(Some(SILENCE))?;
        connection.set_nodelay(true)?;
        Ok(connection)
    });
    connection.map(BufReader::new).map_err(BenchError::system("connect to nginx"))
}
