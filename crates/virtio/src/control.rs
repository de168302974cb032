// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The control socket of a process with devices: one request and one answer per connection, each a line of JSON.
//! Mode 0600: the user of the process, and root. Each connection has a thread, so that a silent one delays no other.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, thread};

use millrace_operation::sync::lock;
use millrace_service::admission::{Activity, Admission, PlaceClass, PlaceSource};
use rustix::net::sockopt::socket_peercred;
use serde::{Deserialize, Serialize};
use tracing::{debug, error};

use crate::device::LimitsChange;
use crate::vhost::Devices;
use crate::vhost::listener::{ListenError, SocketFile, bind};

/// Bound on a request, in bytes: a path of 4 KiB and two numbers.
const MAX_REQUEST_LEN: u64 = 8 * 1024;

/// Bound on an answer, in bytes: 256 devices at about 2 KiB.
const MAX_ANSWER_LEN: u64 = 1024 * 1024;

/// Time within which each side has to read and write.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A request to a process with devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ControlRequest {
    /// All devices with their counters.
    Status,
    /// Change the limits of a device.
    Throttle {
        /// The socket that names the device.
        socket: PathBuf,
        /// Limits that are not in it stay.
        change: LimitsChange,
    },
    /// Set or clear `HW_READY` on every device.
    Ready {
        /// Whether guests shall use their devices.
        ready: bool,
    },
}

/// One line of JSON, as the process answers a [`ControlRequest`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlAnswer {
    /// The devices, each as `DeviceStatus` is written.
    Devices(serde_json::Value),
    /// The change is in force.
    Done,
    /// The request was refused, with the reason.
    Refused(String),
}

/// Answers requests at a socket for as long as the process lives.
pub fn serve(
    path: &Path,
    answer: impl Fn(ControlRequest) -> ControlAnswer + Send + Sync + 'static,
) -> Result<SocketFile, ListenError> {
    let failed = |source| ListenError::Io { path: path.to_owned(), source };
    let listener = bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    answer_at(listener, answer).map_err(failed)?;
    Ok(SocketFile::new(path))
}

/// Answers requests at a listening socket for as long as the process lives.
pub fn answer_at(
    listener: UnixListener,
    answer: impl Fn(ControlRequest) -> ControlAnswer + Send + Sync + 'static,
) -> io::Result<()> {
    thread::Builder::new()
        .name("virtio-control".to_owned())
        .spawn(move || answer_all(&listener, &Arc::new(answer)))?;
    Ok(())
}

/// Carries a request out on the devices of this process.
#[must_use]
pub fn answer_for(devices: &Devices, request: ControlRequest) -> ControlAnswer {
    match request {
        ControlRequest::Status => match serde_json::to_value(devices.status()) {
            Ok(rows) => ControlAnswer::Devices(rows),
            Err(error) => ControlAnswer::Refused(error.to_string()),
        },
        ControlRequest::Throttle { socket, change } => {
            if devices.set_limits(&socket, change) {
                ControlAnswer::Done
            } else {
                ControlAnswer::Refused(format!("{}: no device has this socket", socket.display()))
            }
        }
        ControlRequest::Ready { .. } => {
            ControlAnswer::Refused("the front process answers this".to_owned())
        }
    }
}

/// Connections at once, of one user a quarter: a person, and some programs that watch.
const CONTROL: PlaceClass = PlaceClass { name: "control", most: 16, of_source: 4 };

/// The connections that are open, by number.
#[derive(Debug, Default)]
struct Open {
    order: Admission,
    streams: HashMap<u64, Arc<UnixStream>>,
}

/// The user at the other end, as the source of its connections.
pub(crate) fn source(stream: &UnixStream) -> PlaceSource {
    let user = socket_peercred(stream).map_or(u32::MAX, |peer| peer.uid.as_raw());
    PlaceSource::Identity(format!("uid:{user}").into())
}

fn answer_all<F>(listener: &UnixListener, answer_to: &Arc<F>)
where
    F: Fn(ControlRequest) -> ControlAnswer + Send + Sync + 'static,
{
    let open = Arc::<Mutex<Open>>::default();
    for stream in listener.incoming() {
        let answered = stream.and_then(|stream| {
            let stream = Arc::new(stream);
            let number = enter(&open, &stream);
            let (open, answer_to) = (Arc::clone(&open), Arc::clone(answer_to));
            let thread = thread::Builder::new().name("virtio-answer".to_owned());
            thread.spawn(move || {
                let working = || lock(&open).order.mark(number, Activity::Working);
                if let Err(error) = answer(&stream, working, &*answer_to) {
                    debug!(%error, "a control connection failed");
                }
                let mut open = lock(&open);
                open.order.leave(number);
                open.streams.remove(&number);
            })
        });
        if let Err(error) = answered {
            error!(%error, "cannot accept a control connection");
            thread::sleep(TIMEOUT);
        }
    }
}

/// Gives a connection its place, and ends the one that gives way.
fn enter(open: &Mutex<Open>, stream: &Arc<UnixStream>) -> u64 {
    let mut open = lock(open);
    let entered = open.order.enter(CONTROL, source(stream));
    open.streams.insert(entered.number, Arc::clone(stream));
    if let Some(displaced) = entered.displaced.and_then(|number| open.streams.remove(&number)) {
        // It has ended already if that fails. Its thread reads the end.
        let _ = displaced.shutdown(Shutdown::Both);
    }
    entered.number
}

fn answer(
    mut stream: &UnixStream,
    working: impl FnOnce(),
    answer_to: &impl Fn(ControlRequest) -> ControlAnswer,
) -> io::Result<()> {
    let line = read_line(stream, MAX_REQUEST_LEN)?;
    working();
    let answer = match serde_json::from_str(&line) {
        Ok(request) => answer_to(request),
        Err(error) => ControlAnswer::Refused(error.to_string()),
    };
    writeln!(stream, "{}", serde_json::to_string(&answer)?)
}

/// Sends a request to the process that listens on a control socket.
///
/// # Errors
/// If there is none, or it does not answer.
pub fn ask(path: &Path, request: &ControlRequest) -> io::Result<ControlAnswer> {
    let mut stream = UnixStream::connect(path)?;
    writeln!(stream, "{}", serde_json::to_string(request)?)?;
    stream.shutdown(Shutdown::Write)?;
    let line = read_line(&stream, MAX_ANSWER_LEN)?;
    serde_json::from_str(&line).map_err(io::Error::other)
}

fn read_line(stream: &UnixStream, most: u64) -> io::Result<String> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(stream).take(most).read_line(&mut line)?;
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_connections_delay_no_request() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let devices = Devices::default();
        let _bound = serve(&path, move |request| answer_for(&devices, request)).unwrap();
        let mut crowd: Vec<_> = (0..160).map(|_| UnixStream::connect(&path).unwrap()).collect();
        for _ in 0..3 {
            assert!(matches!(ask(&path, &ControlRequest::Status), Ok(ControlAnswer::Devices(_))));
        }
        // Only those of one user's quarter that came last are left.
        crowd[0].set_read_timeout(Some(TIMEOUT / 2)).unwrap();
        assert_eq!(crowd[0].read(&mut [0; 1]).unwrap(), 0);
        let youngest = crowd.last_mut().unwrap();
        youngest.write_all(b"\"status\"\n").unwrap();
        assert!(read_line(youngest, MAX_ANSWER_LEN).unwrap().contains("devices"));
    }

    #[test]
    fn unknown_device_and_malformed_request_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let devices = Devices::default();
        let answer = {
            let devices = devices.clone();
            move |request| answer_for(&devices, request)
        };
        let bound = serve(&path, answer.clone()).unwrap();
        let throttle = ControlRequest::Throttle {
            socket: "/run/vm.sock".into(),
            change: LimitsChange::default(),
        };
        assert!(matches!(ask(&path, &throttle), Ok(ControlAnswer::Refused(_))));
        assert!(matches!(ask(&path, &ControlRequest::Status), Ok(ControlAnswer::Devices(_))));
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"{\"throttle\": 7}\n").unwrap();
        let line = read_line(&stream, MAX_ANSWER_LEN).unwrap();
        assert!(line.contains("refused"), "{line}");
        assert!(matches!(serve(&path, answer).map(drop), Err(ListenError::InUse(_))));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(bound);
        assert!(!path.exists());
    }
}
