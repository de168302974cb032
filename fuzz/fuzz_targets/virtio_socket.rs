// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: what a virtual machine monitor writes to the socket of a device. The device ends each connection, and serves
//! the next one.
#![no_main]

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use millrace_backends::software::Software;
use millrace_engine::{Engine, EngineConfig};
use millrace_service::store::{KekSource, KeyStore};
use millrace_service::Service;
use millrace_service::settings::Settings;
use millrace_virtio::device::DeviceLimits;
use millrace_virtio::vhost::{Devices, SocketFile, SocketSettings};

/// A device on the software backend; its folder is in the scratch folder of the fuzzer.
struct Machine {
    socket: PathBuf,
    _service: Service,
    _engine: Engine,
    _devices: Devices,
    _listening: SocketFile,
}

static MACHINE: LazyLock<Machine> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("virtio-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let backends: Vec<Arc<dyn millrace_engine::backend::Backend>> = vec![Arc::new(Software::new())];
    let engine = Engine::start(EngineConfig::default(), backends).expect("an engine");
    let store = KeyStore::open(folder.join("keys"), &KekSource::Absent).expect("a store");
    let service =
        Service::new("fuzz", Settings::default(), engine.clone(), store).expect("a service");
    let devices = Devices::default();
    let socket = folder.join("vm.sock");
    let settings = SocketSettings {
        path: socket.clone(),
        identity: "vm:fuzz".into(),
        data_queues: 1,
        limits: DeviceLimits::default(),
    };
    let listening = devices.listen(&service, settings).expect("a socket");
    Machine { socket, _service: service, _engine: engine, _devices: devices, _listening: listening }
});

fuzz_target!(|input: &[u8]| {
    let mut stream = UnixStream::connect(&MACHINE.socket).expect("a device that listens");
    stream.set_read_timeout(Some(Duration::from_secs(9))).expect("a timeout");
    // The device may end the connection before the last byte.
    let _ = stream.write_all(input);
    let _ = stream.shutdown(Shutdown::Write);
    let ended = stream.read_to_end(&mut Vec::new());
    let ended = ended.map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true);
    assert!(ended, "the device holds the connection");
});
