// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Clients that only take places: many connections to one listener, each of which does one thing and comes back when
//! the listener has ended it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Threads of a crowd: a slow handshake of one delays the others little.
const THREADS: usize = 8;

/// Wait of one connection for the listener, so that a thread serves its others, too.
const PATIENCE: Duration = Duration::from_secs(2);

/// Wait for bytes that may not be there.
const GLANCE: Duration = Duration::from_millis(2);

/// Where a crowd connects to.
#[derive(Clone, Debug)]
pub enum Target {
    /// A TCP listener, without TLS.
    Tcp(SocketAddr),
    /// A TCP listener behind TLS, and the file of its authority.
    Tls(SocketAddr, PathBuf),
    /// A unix socket.
    Unix(PathBuf),
}

/// Parameters of a crowd.
#[derive(Clone, Debug)]
pub struct Crowd {
    /// Where it connects to.
    pub target: Target,
    /// Connections that it holds.
    pub connections: usize,
    /// The bytes that each sends after it is open; nothing, and no TLS either, if it is empty.
    pub sends: Vec<u8>,
    /// Whether each sends one byte at a time, and none after the last.
    pub drips: bool,
    /// Time after which a connection sends again; one that has ended comes back by then.
    pub every: Duration,
    /// Addresses of loopback that the connections come from, from 127.0.0.1 on.
    pub addresses: u8,
    /// The user of the connections; default: that of this process.
    pub user: Option<u32>,
}

/// Does something on a thread of another user, as which root connects to unix sockets.
///
/// # Panics
/// If the thread may not change its user, or panics.
pub fn as_user<T: Send>(user: u32, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            become_user(user);
            work()
        });
        worker.join().expect("a thread of another user")
    })
}

fn become_user(user: u32) {
    let user = Uid::from_raw(user);
    set_thread_res_uid(user, user, user).expect("root becomes any user");
}

/// A crowd at work. Ends on drop.
#[derive(Debug)]
pub struct RunningCrowd {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl RunningCrowd {
    /// Sendings so far, and connections that could not be opened.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }
}

impl Drop for RunningCrowd {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

struct Member {
    stream: Option<Box<dyn Stream>>,
    /// Bytes that it has sent over this stream, if it drips.
    dripped: usize,
    due: Instant,
    address: Ipv4Addr,
}

impl Crowd {
    /// Lets the crowd connect.
    ///
    /// # Panics
    /// If the authority cannot be read.
    #[must_use]
    pub fn start(self) -> RunningCrowd {
        let tls = match &self.target {
            Target::Tls(_, ca) => Some(trusting(ca)),
            Target::Tcp(_) | Target::Unix(_) => None,
        };
        let (stop, sent, failed) = <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let start = Instant::now();
        let member = |number: usize| Member {
            stream: None,
            dripped: 0,
            due: start + self.every.mul_f64(number as f64 / self.connections as f64),
            address: Ipv4Addr::from(
                u32::from(Ipv4Addr::LOCALHOST)
                    + u32::try_from(number % usize::from(self.addresses)).expect("below 2^16"),
            ),
        };
        let thread = |index: usize| {
            let mut members: Vec<_> =
                (index..self.connections).step_by(THREADS).map(member).collect();
            let (crowd, tls) = (self.clone(), tls.clone());
            let (stop, sent, failed) = (Arc::clone(&stop), Arc::clone(&sent), Arc::clone(&failed));
            thread::spawn(move || {
                if let Some(user) = crowd.user {
                    become_user(user);
                }
                while !stop.load(Ordering::Acquire) {
                    let now = Instant::now();
                    for member in members.iter_mut().filter(|member| member.due <= now) {
                        if stop.load(Ordering::Acquire) {
                            break;
                        }
                        member.due = Instant::now() + crowd.every;
                        match crowd.send(member, tls.as_ref()) {
                            Ok(()) => sent.fetch_add(1, Ordering::Relaxed),
                            Err(_) => failed.fetch_add(1, Ordering::Relaxed),
                        };
                    }
                    let next = members.iter().map(|member| member.due).min();
                    let next = next.unwrap_or(now).saturating_duration_since(Instant::now());
                    thread::sleep(next.min(Duration::from_millis(20)));
                }
            })
        };
        let threads = (0..THREADS).map(thread).collect();
        RunningCrowd { stop, sent, failed, threads }
    }

    fn send(&self, member: &mut Member, tls: Option<&Arc<ClientConfig>>) -> io::Result<()> {
        if let Some(stream) = &mut member.stream {
            let next = self.next(&mut member.dripped);
            let alive =
                drain(stream) && stream.write_all(next).and_then(|()| stream.flush()).is_ok();
            if alive && !self.sends.is_empty() {
                return Ok(());
            }
        }
        (member.stream, member.dripped) = (None, 0);
        let mut stream = self.open(member.address, tls)?;
        stream.write_all(self.next(&mut member.dripped))?;
        stream.flush()?;
        member.stream = Some(stream);
        Ok(())
    }

    /// The bytes that a connection sends now.
    fn next(&self, dripped: &mut usize) -> &[u8] {
        if !self.drips {
            return &self.sends;
        }
        let next = self.sends.get(*dripped..=*dripped).unwrap_or_default();
        *dripped += next.len();
        next
    }

    fn open(&self, from: Ipv4Addr, tls: Option<&Arc<ClientConfig>>) -> io::Result<Box<dyn Stream>> {
        let address = match &self.target {
            Target::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(GLANCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                return Ok(Box::new(stream));
            }
            Target::Tcp(address) | Target::Tls(address, _) => *address,
        };
        let stream = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        let stream = TcpStream::from(stream);
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        bind(&stream, &SocketAddr::from((from, 0)))?;
        connect(&stream, &address)?;
        let Some(tls) = tls.filter(|_| !self.sends.is_empty()) else {
            stream.set_read_timeout(Some(GLANCE))?;
            return Ok(Box::new(stream));
        };
        let name = ServerName::IpAddress(address.ip().into());
        let session = ClientConnection::new(Arc::clone(tls), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(session, stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        stream.sock.set_read_timeout(Some(GLANCE))?;
        Ok(Box::new(stream))
    }
}

/// Reads what has come; returns whether the stream is still open.
fn drain(stream: &mut Box<dyn Stream>) -> bool {
    let mut bytes = [0; 16 * 1024];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => {
                return matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
            }
        }
    }
}

/// A configuration of TLS that trusts an authority.
///
/// # Panics
/// If it cannot be read.
#[must_use]
pub fn trusting(ca: &Path) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).expect("the authority") {
        roots.add(certificate.expect("a certificate")).expect("an authority");
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}
