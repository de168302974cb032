// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A monitor that attacks: the messages of the defects that other vhost-user devices had, descriptors included. Each
//! connection ends or is answered, no descriptor leaks, and the next machine is served.

mod support;

use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use millrace_virtio_guest::{cipher_session, words};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use support::Machine;

const SET_FEATURES: u32 = 2;
const SET_OWNER: u32 = 3;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const GET_VRING_BASE: u32 = 11;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const SET_PROTOCOL_FEATURES: u32 = 16;
const SET_VRING_ENABLE: u32 = 18;
const GET_CONFIG: u32 = 24;
const GET_INFLIGHT_FD: u32 = 31;
const SET_DEVICE_STATE_FD: u32 = 42;
const CHECK_DEVICE_STATE: u32 = 43;

/// A message: its number, its body, and the number of descriptors beside it.
struct Attack(&'static str, Vec<(u32, Vec<u8>, usize)>);

fn longs(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The body of SET_MEM_TABLE: regions of address, size, address in the monitor, offset in the file.
fn memory(regions: &[[u64; 4]]) -> Vec<u8> {
    let count = u32::try_from(regions.len()).expect("few regions");
    [words(&[count, 0]), longs(regions.as_flattened())].concat()
}

fn send(stream: &UnixStream, code: u32, body: &[u8], files: &[BorrowedFd<'_>]) {
    let len = u32::try_from(body.len()).expect("a short body");
    let bytes = [words(&[code, 1, len]), body.to_vec()].concat();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
    }
    // The device may have ended the connection at a former message.
    let _ = sendmsg(stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
}

fn attacks() -> Vec<Attack> {
    const HUGE: u64 = u64::MAX - 0xfff;
    let table = |regions: &[[u64; 4]], files| vec![(SET_MEM_TABLE, memory(regions), files)];
    let ring = |code, index: u32| vec![(code, words(&[index, 64]), 0)];
    let mut attacks = vec![
        // CVE-2020-10722: size and offset whose sum wraps.
        Attack("offset that wraps", table(&[[0, 0x1000, 0, HUGE]], 1)),
        Attack("size that wraps", table(&[[0, HUGE, 0, 0x1000]], 1)),
        Attack("address that wraps", table(&[[HUGE, 0x2000, 0, 0]], 1)),
        Attack("size of 0", table(&[[0, 0, 0, 0]], 1)),
        Attack("region behind the end of its file", table(&[[0, 0x10_0000, 0, 0]], 1)),
        Attack("regions that overlap", table(&[[0, 0x1000, 0, 0], [0x800, 0x1000, 0, 0]], 2)),
        Attack("fewer descriptors than regions", table(&[[0, 0x1000, 0, 0]; 2], 1)),
        Attack("more descriptors than regions", table(&[[0, 0x1000, 0, 0]], 9)),
        Attack(
            "more regions than the body has",
            vec![(SET_MEM_TABLE, [words(&[8, 0]), longs(&[0, 0x1000, 0, 0])].concat(), 1)],
        ),
        Attack("no regions", table(&[], 0)),
        // CVE-2019-14818: a message that takes no descriptor, with some.
        Attack("descriptors that no message takes", vec![(SET_OWNER, vec![], 32); 8]),
        Attack("descriptors beside a number", vec![(SET_VRING_NUM, words(&[0, 64]), 32); 8]),
        // CVE-2020-10726 and CVE-2020-10725.
        Attack(
            "requests under way, asked for again and again",
            vec![(GET_INFLIGHT_FD, [longs(&[0, 0]), vec![1, 0, 64, 0]].concat(), 0); 64],
        ),
        Attack(
            "ring whose tables are outside the memory",
            vec![
                (SET_MEM_TABLE, memory(&[[0, 0x1000, 0, 0]]), 1),
                (SET_VRING_NUM, words(&[0, 64]), 0),
                (SET_VRING_ADDR, [words(&[0, 0]), longs(&[HUGE, HUGE, HUGE, 0])].concat(), 0),
                (SET_VRING_KICK, longs(&[0]), 1),
                (SET_VRING_CALL, longs(&[0]), 1),
                (SET_VRING_ENABLE, words(&[0, 1]), 0),
            ],
        ),
        Attack("ring of 0 entries", vec![(SET_VRING_NUM, words(&[0, 0]), 0)]),
        Attack("ring of 3 entries", vec![(SET_VRING_NUM, words(&[0, 3]), 0)]),
        Attack("ring of 2^31 entries", vec![(SET_VRING_NUM, words(&[0, 1 << 31]), 0)]),
        Attack("configuration of 4 GiB", vec![(GET_CONFIG, words(&[0, u32::MAX, 0]), 0)]),
        Attack("configuration behind its end", vec![(GET_CONFIG, words(&[u32::MAX, 4, 0]), 0)]),
        Attack("every feature", vec![(SET_FEATURES, longs(&[u64::MAX]), 0)]),
        Attack("state without a descriptor", vec![(SET_DEVICE_STATE_FD, words(&[1, 0]), 0)]),
        Attack("state in no direction", vec![(SET_DEVICE_STATE_FD, words(&[7, 0]), 1)]),
        Attack("state in no phase", vec![(SET_DEVICE_STATE_FD, words(&[1, 7]), 1)]),
        Attack("state after state", vec![(SET_DEVICE_STATE_FD, words(&[1, 0]), 1); 16]),
        Attack("end of no state", vec![(CHECK_DEVICE_STATE, vec![], 0)]),
    ];
    // CVE-2020-10723: an index that is cut to 16 or 8 bits.
    for index in [2, 16, 0xff, 0x100, 0x1_0000, 0x8000_0000, u32::MAX] {
        for code in [SET_VRING_NUM, SET_VRING_BASE, GET_VRING_BASE, SET_VRING_ENABLE] {
            attacks.push(Attack("ring that is not there", ring(code, index)));
        }
        let kick = longs(&[u64::from(index)]);
        attacks.push(Attack("kick of a ring that is not there", vec![(SET_VRING_KICK, kick, 1)]));
    }
    attacks
}

#[test]
fn messages_of_other_devices_defects_leak_nothing_and_leave_the_device_in_service() {
    let machine = Machine::start();
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
    let serves = || {
        let mut guest = machine.connect(0);
        let created = guest.create(&[&cipher_session(3, 32, 1), &[7; 32]]);
        created.expect("an answer").expect("a session");
    };
    serves();
    let before = descriptors();
    for Attack(name, messages) in attacks() {
        let file = File::from(memfd_create("attack", MemfdFlags::CLOEXEC).expect("a file"));
        ftruncate(&file, 0x2000).expect("a length");
        let mut stream = UnixStream::connect(&machine.socket).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        send(&stream, SET_OWNER, &[], &[]);
        send(&stream, SET_FEATURES, &longs(&[1 << 32 | 1 << 30]), &[]);
        // MQ, CONFIG and DEVICE_STATE; no acknowledgements.
        send(&stream, SET_PROTOCOL_FEATURES, &longs(&[1 | 1 << 9 | 1 << 19]), &[]);
        for (code, body, files) in &messages {
            send(&stream, *code, body, &vec![file.as_fd(); *files]);
        }
        stream.shutdown(Shutdown::Write).expect("an end");
        // Answers, then the end of the connection; a reset is one, too.
        let ended = stream.read_to_end(&mut Vec::new());
        let timed_out = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!timed_out, "{name}: the device holds the connection");
        serves();
    }
    let end = Instant::now() + Duration::from_secs(20);
    while descriptors() > before + 4 {
        assert!(Instant::now() < end, "{before} descriptors, now {}", descriptors());
        std::thread::sleep(Duration::from_millis(20));
    }
}
