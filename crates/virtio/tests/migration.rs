// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A machine that moves to another host: its device's sessions move with it, by VHOST_USER_SET_DEVICE_STATE_FD.

mod support;

use millrace_testkit::keys;
use millrace_virtio::spec::Status;
use millrace_virtio_guest::{
    EVENT_INDEX_FEATURE, Guest, INDIRECT_FEATURE, akcipher_request, cipher_request, cipher_session,
    rsa_session,
};
use openssl::rsa::{Padding, Rsa};
use openssl::symm;

use support::Machine;

/// The device encrypts and signs with these sessions, and both results are OpenSSL's.
fn serves(guest: &mut Guest, aes: u64, rsa: u64) {
    let text = [6; 1024];
    let request = cipher_request(0, aes, 16, text.len(), text.len());
    let answer = guest.request(0, &[&request, &[1; 16], &text], text.len() + 1).expect("an answer");
    let expected = symm::encrypt(symm::Cipher::aes_256_cbc(), &[7; 32], Some(&[1; 16]), &text);
    assert_eq!(answer.result(), &expected.expect("a result")[..text.len()]);
    let key = Rsa::private_key_from_pem(keys::rsa_2048().pem.as_bytes()).expect("a key");
    let mut expected = vec![0; 256];
    let block = [&[0][..], &[9; 255]].concat();
    key.private_encrypt(&block, &mut expected, Padding::NONE).expect("a result");
    let request = akcipher_request(0x401, rsa, 255, 256);
    let answer = guest.request(0, &[&request, &block[1..]], 257).expect("an answer");
    assert_eq!(answer.result(), expected);
}

fn sessions(guest: &mut Guest) -> (u64, u64) {
    let der = Rsa::private_key_from_pem(keys::rsa_2048().pem.as_bytes())
        .and_then(|key| key.private_key_to_der())
        .expect("DER");
    let gone = guest.create(&[&cipher_session(3, 32, 1), &[8; 32]]).expect("an answer");
    let aes = guest.create(&[&cipher_session(3, 32, 1), &[7; 32]]).expect("an answer");
    let rsa = guest.create(&[&rsa_session(true, der.len(), 0, 0), &der]).expect("an answer");
    assert_eq!(guest.destroy(0, gone.expect("a session")).expect("an answer"), 0);
    (aes.expect("a session"), rsa.expect("a session"))
}

#[test]
fn sessions_of_a_machine_that_moves_twice_stay_valid() {
    let [first, second, third] = [(); 3].map(|()| Machine::start());
    let mut guest = first.connect(INDIRECT_FEATURE | EVENT_INDEX_FEATURE);
    let (aes, rsa) = sessions(&mut guest);
    serves(&mut guest, aes, rsa);
    for host in [&second, &third] {
        guest.stop().expect("positions");
        let state = guest.save_state().expect("a state");
        guest.move_to(&host.socket, &state).expect("a device that goes on");
        serves(&mut guest, aes, rsa);
        assert_eq!(host.devices.status()[0].statistics.sessions, 2);
    }
    // An id of the first host is not given out again by the last.
    let (next, other) = sessions(&mut guest);
    assert!(next > rsa && other > next, "{next} {other} after {aes} {rsa}");
    assert_eq!(guest.destroy(4, rsa).expect("an answer"), Status::Ok as u8);
    // What ended does not move.
    guest.stop().expect("positions");
    let state = guest.save_state().expect("a state");
    guest.move_to(&first.socket, &state).expect("a device that goes on");
    assert_eq!(guest.destroy(4, rsa).expect("an answer"), Status::InvalidSession as u8);
    serves(&mut guest, next, other);
}

#[test]
fn saved_machine_goes_on_where_it_was() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let (aes, rsa) = sessions(&mut guest);
    assert!(guest.save_state().is_err(), "the rings run");
    guest.stop().expect("positions");
    let state = guest.save_state().expect("a state");
    assert_eq!(guest.save_state().expect("a second state"), state);
    guest.start().expect("rings");
    serves(&mut guest, aes, rsa);
}

#[test]
fn malformed_state_is_refused_and_the_device_serves_another_machine() {
    let [first, second, third] = [(); 3].map(|()| Machine::start());
    let mut guest = first.connect(0);
    sessions(&mut guest);
    guest.stop().expect("positions");
    let state = guest.save_state().expect("a state");
    for (what, state) in [
        ("nothing", vec![]),
        ("half of it", state[..state.len() / 2].to_vec()),
        ("more than all of it", [&state[..], &[0]].concat()),
        ("a mebibyte of anything", vec![0xa5; 1 << 20]),
    ] {
        let mut moving = third.connect(0);
        moving.stop().expect("positions");
        assert!(moving.move_to(&second.socket, &state).is_err(), "{what}");
        drop(moving);
        let mut other = second.connect(0);
        let (aes, rsa) = sessions(&mut other);
        serves(&mut other, aes, rsa);
    }
}
