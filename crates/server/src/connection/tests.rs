// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The send buffer, and a connection whose client consists of two byte buffers.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use millrace_engine::{CompletionSink, Engine, EngineConfig};
use millrace_operation::{Hash, Operation};
use millrace_service::Service;
use millrace_service::imports::PER_SESSION;
use millrace_service::settings::Settings;
use millrace_service::store::{KekSource, KeyStore};
use millrace_testkit::fake::{FakeBackend, FakeOptions};
use millrace_wire::{Hello, SubmittedJob};

use super::*;
use crate::imports::Imports;

/// A client that has sent all its bytes and reads up to `room` bytes.
struct FakeStream {
    said: Vec<u8>,
    room: usize,
    heard: Arc<Mutex<Vec<u8>>>,
    hung_up: bool,
}

impl ClientStream for FakeStream {
    fn hung_up(&self) -> bool {
        self.hung_up
    }
}

impl AsyncRead for FakeStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.said.is_empty() {
            return Poll::Pending;
        }
        let count = self.said.len().min(buffer.remaining());
        buffer.put_slice(&self.said[..count]);
        self.said.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for FakeStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let count = bytes.len().min(self.room);
        if count == 0 {
            return Poll::Pending;
        }
        self.room -= count;
        self.heard.lock().unwrap().extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A connection to a node without keys, whose client sends this number of pings.
fn pinged(pings: usize, directory: &Path) -> Connection<FakeStream> {
    connected((0..pings as u64).map(|token| ClientMessage::Ping { token }), directory)
}

/// A connection to a node without keys, whose client sends these messages and closes.
fn connected(
    messages: impl IntoIterator<Item = ClientMessage>,
    directory: &Path,
) -> Connection<FakeStream> {
    let backend = Arc::new(FakeBackend::new(FakeOptions::default()));
    let engine = Engine::start(EngineConfig::default(), vec![backend]).unwrap();
    let store = KeyStore::open(directory, &KekSource::Absent).unwrap();
    let service = Service::new("n", Settings::default(), engine, store).unwrap();
    let mut said = Vec::new();
    let hello = Hello { min_version: 1, max_version: 1, features: 0, agent: String::new() };
    ClientMessage::Hello(hello).encode(&mut said);
    messages.into_iter().for_each(|message| message.encode(&mut said));
    let stream = FakeStream { said, room: 0, heard: Arc::default(), hung_up: true };
    let outbox = Arc::new(Outbox::default());
    let session = service.open("uid:1".into(), Arc::clone(&outbox) as _);
    let turns = Turns::new(Arc::new(PartyShare::new(1, Instant::now())));
    let imports = Imports::new(service).line("uid:1".into());
    Connection::new(stream, session.unwrap(), outbox, turns, imports)
}

/// Polls once, and again as long as the connection has woken itself.
fn poll_while_woken(connection: &mut Connection<FakeStream>) {
    #[derive(Default)]
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    loop {
        assert!(Pin::new(&mut *connection).poll(&mut context).is_pending());
        if !woken.0.swap(false, Ordering::Relaxed) {
            return;
        }
    }
}

#[tokio::test]
async fn client_that_reads_late_gets_every_answer() {
    // Four times the bytes that the node keeps for a client that does not read.
    let pings = HIGH_WATER / 4;
    let directory = tempfile::tempdir().unwrap();
    let mut connection = pinged(pings, directory.path());
    poll_while_woken(&mut connection);
    assert!(!connection.stream.said.is_empty(), "reading did not pause");
    // Now the client reads everything at once: the connection must wake itself for the rest.
    connection.stream.room = usize::MAX;
    poll_while_woken(&mut connection);
    assert!(connection.stream.said.is_empty(), "a request is never read");
    let heard = connection.stream.heard.lock().unwrap().len();
    assert!(heard > pings * 16 && heard < pings * 16 + 200, "{heard}");
}

#[test]
fn imports_of_a_closed_connection_end_with_it() {
    // The only thread for checks is held, as by a slow one.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    runtime.spawn_blocking(move || held.recv());
    let directory = tempfile::tempdir().unwrap();
    let key = || millrace_testkit::keys::p_256().private_key();
    let count = 4 * u32::try_from(PER_SESSION).unwrap();
    let imports = (0..count).map(|request| ClientMessage::ImportKey { request, key: key() });
    let ended = runtime.block_on(async {
        let connection = connected(imports, directory.path());
        tokio::time::timeout(millrace_testkit::wait::SOON, connection).await
    });
    drop(let_go);
    assert!(matches!(ended, Ok(End::Closed)), "{ended:?}");
}

#[tokio::test]
async fn connection_gives_way_after_one_turn() {
    let directory = tempfile::tempdir().unwrap();
    let pings = 4 * REPLIES_PER_TURN;
    let mut connection = pinged(pings, directory.path());
    connection.stream.room = usize::MAX;
    let mut context = Context::from_waker(Waker::noop());
    let mut polls = 0;
    while connection.stream.heard.lock().unwrap().len() < pings * 16 {
        let heard = connection.stream.heard.lock().unwrap().len();
        assert!(Pin::new(&mut connection).poll(&mut context).is_pending());
        let answers = connection.stream.heard.lock().unwrap().len() - heard;
        // The first turn has the answer to the hello, too.
        assert!(answers <= REPLIES_PER_TURN * 16 + 200, "{answers} bytes");
        polls += 1;
    }
    assert!(polls >= 4, "{polls}");
}

fn refused() -> Completion {
    Completion {
        id: 1,
        result: Err(JobError::Busy),
        served_by: None,
        queue_time: Duration::ZERO,
        service_time: Duration::ZERO,
        retry_after: None,
    }
}

#[tokio::test]
async fn connection_with_refused_jobs_is_read_again_after_a_pause() {
    let directory = tempfile::tempdir().unwrap();
    let mut connection = pinged(1, directory.path());
    connection.stream.room = usize::MAX;
    let requests = mem::take(&mut connection.stream.said);
    let begin = Instant::now();
    // More than the bucket holds, however slow this test is.
    let many = 0..=REFUSALS_AHEAD;
    connection.outbox.complete(&mut many.map(|_| refused()).collect());
    poll_while_woken(&mut connection);
    connection.stream.said = requests;
    poll_while_woken(&mut connection);
    if begin.elapsed() < BUSY_PAUSE {
        assert!(!connection.stream.said.is_empty(), "reading did not pause");
    }
    tokio::time::timeout(Duration::from_secs(30), async {
        while !connection.stream.said.is_empty() {
            tokio::time::sleep(BUSY_PAUSE / 4).await;
            poll_while_woken(&mut connection);
        }
    })
    .await
    .expect("reading continues");
    assert!(begin.elapsed() >= BUSY_PAUSE);
    // The socket is empty, so what comes next has not waited.
    assert_eq!(connection.unread_time.resume(Instant::now()), Duration::ZERO);
}

/// Jobs with a key that the client has not opened: the session refuses them.
fn submit_denied(jobs: u64, said: &mut Vec<u8>) {
    for first in (0..jobs).step_by(JOBS_PER_TURN) {
        let job = |id| SubmittedJob {
            id,
            key: 1,
            budget: Duration::from_secs(60),
            operation: Operation::RsaPkcs1Sign { hash: Hash::Sha256 },
            input: vec![7; 32],
        };
        let ids = first..(first + JOBS_PER_TURN as u64).min(jobs);
        ClientMessage::Submit(ids.map(job).collect()).encode(said);
    }
}

#[tokio::test]
async fn client_that_ignores_refusals_is_read_at_their_rate_and_gets_each_answer_once() {
    const OVER: u64 = 2_000;
    let directory = tempfile::tempdir().unwrap();
    let mut connection = pinged(0, directory.path());
    connection.stream.room = usize::MAX;
    submit_denied(DENIALS_AHEAD + OVER, &mut connection.stream.said);
    ClientMessage::Ping { token: 5 }.encode(&mut connection.stream.said);
    let begin = Instant::now();
    let (mut decoder, mut ended, mut taken) = (Decoder::<NodeMessage>::new(), Vec::new(), 0);
    let mut pong = false;
    while !pong {
        assert!(begin.elapsed() < Duration::from_secs(60), "{} jobs ended", ended.len());
        poll_while_woken(&mut connection);
        let heard = mem::take(&mut *connection.stream.heard.lock().unwrap());
        for piece in heard.chunks(1024) {
            decoder.space()[..piece.len()].copy_from_slice(piece);
            decoder.filled(piece.len());
            taken += piece.len();
            while let Some(message) = decoder.next().unwrap() {
                match message {
                    NodeMessage::Complete(jobs) => ended.extend(jobs.iter().map(|job| job.id)),
                    NodeMessage::Pong { token } => pong = token == 5,
                    _ => {}
                }
            }
        }
        tokio::time::sleep(BUSY_PAUSE / 4).await;
    }
    assert!(ended.iter().copied().eq(0..DENIALS_AHEAD + OVER), "{} in {taken} bytes", ended.len());
    // However fast this machine is: what the bucket did not hold came at its rate, but for the turns that emptied it.
    let least = (OVER - 2 * JOBS_PER_TURN as u64) as f64 / DENIALS_PER_SECOND as f64;
    assert!(begin.elapsed().as_secs_f64() >= least, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn connection_with_few_refused_jobs_of_its_party_is_read_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut connection = pinged(1, directory.path());
    connection.stream.room = usize::MAX;
    let requests = mem::take(&mut connection.stream.said);
    connection.outbox.complete(&mut (0..100).map(|_| refused()).collect());
    poll_while_woken(&mut connection);
    connection.stream.said = requests;
    poll_while_woken(&mut connection);
    assert!(connection.stream.said.is_empty(), "reading pauses");
}

#[test]
fn bytes_that_a_paused_connection_reads_count_as_waiting_since_the_pause_began() {
    let mut unread = UnreadTime::default();
    let start = Instant::now();
    let after = |ms| start + Duration::from_millis(ms);
    assert_eq!(unread.resume(start), Duration::ZERO);
    unread.stop(after(10));
    unread.stop(after(30));
    assert_eq!(unread.resume(after(60)), Duration::from_millis(50));
    // The socket is not empty yet.
    assert_eq!(unread.resume(after(70)), Duration::from_millis(50));
}

#[tokio::test]
async fn requests_cost_no_more_than_their_answers_may_wait() {
    let directory = tempfile::tempdir().unwrap();
    let mut connection = pinged(10_000, directory.path());
    let mut context = Context::from_waker(Waker::noop());
    assert!(connection.poll_read(&mut context).is_ready());
    assert!(connection.unread && connection.sending.len() < REPLIES_PER_TURN * 40);
}

#[test]
fn slow_reader_does_not_extend_its_deadline() {
    let mut buffer = SendBuffer::default();
    let start = Instant::now();
    buffer.bytes.extend_from_slice(&[1; 100]);
    buffer.blocked(start);
    buffer.sent(10);
    buffer.bytes.extend_from_slice(&[1; 100]);
    buffer.blocked(start + Duration::from_secs(1));
    assert_eq!(buffer.deadline(), Some(start));
    buffer.sent(90);
    assert_eq!(buffer.deadline(), None);
    buffer.blocked(start + Duration::from_secs(2));
    assert_eq!(buffer.deadline(), Some(start + Duration::from_secs(2)));
}

#[test]
fn send_buffer_that_never_empties_reuses_sent_space() {
    let mut buffer = SendBuffer::default();
    for _ in 0..1000 {
        buffer.bytes.extend_from_slice(&[1; 1000]);
        buffer.sent(buffer.len() - 1);
    }
    assert_eq!(buffer.len(), 1);
    assert!(buffer.bytes.len() < 2 * KEPT_BUFFER);
}

#[test]
fn sent_bytes_do_not_stay_in_memory() {
    let mut buffer = SendBuffer::default();
    buffer.bytes.extend_from_slice(&[7; 100]);
    buffer.sent(100);
    assert!(buffer.is_empty() && buffer.bytes.capacity() >= 100);
    buffer.bytes.resize(100, 0);
    assert_eq!(*buffer.bytes, vec![0; 100]);
}

#[test]
fn connection_with_refused_jobs_pauses_longer_each_time_and_then_reads_little() {
    let mut refusals = Refusals::default();
    let now = Instant::now();
    assert_eq!(refusals.begin_turn(), JOBS_PER_TURN);
    for pause in [50, 100, 200, 400, 400] {
        let mut until = None;
        refusals.pause(&mut until, now);
        assert_eq!(until, Some(now + Duration::from_millis(pause)));
        // A second refused job of the turn does not prolong the pause.
        refusals.pause(&mut until, now + BUSY_PAUSE);
        assert_eq!(until, Some(now + Duration::from_millis(pause)));
        assert_eq!(refusals.begin_turn(), JOBS_AFTER_REFUSAL);
    }
    // A turn without a refused job ends it.
    assert_eq!(refusals.begin_turn(), JOBS_PER_TURN);
}
