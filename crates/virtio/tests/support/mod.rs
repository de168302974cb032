// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A device with its service, engine and socket in this process.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::PathBuf;
use std::sync::Arc;

use millrace_backends::software::Software;
use millrace_engine::backend::Backend;
use millrace_engine::{Engine, EngineConfig};
use millrace_service::Service;
use millrace_service::settings::Settings;
use millrace_service::store::{KekSource, KeyStore};
use millrace_virtio::device::DeviceLimits;
use millrace_virtio::vhost::{Devices, SocketFile, SocketSettings};
use millrace_virtio_guest::Guest;

/// A device and all that is behind it.
pub(crate) struct Machine {
    pub(crate) service: Service,
    pub(crate) devices: Devices,
    pub(crate) engine: Engine,
    pub(crate) socket: PathBuf,
    _listening: SocketFile,
    _folder: tempfile::TempDir,
}

impl Machine {
    /// A device on the software backend.
    pub(crate) fn start() -> Self {
        Self::with(Settings::default(), DeviceLimits::default(), Arc::new(Software::new()))
    }

    pub(crate) fn with(
        settings: Settings,
        limits: DeviceLimits,
        backend: Arc<dyn Backend>,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = Engine::start(EngineConfig::default(), vec![backend]).expect("an engine");
        let store =
            KeyStore::open(folder.path().join("keys"), &KekSource::Absent).expect("a store");
        let service = Service::new("test", settings, engine.clone(), store).expect("a service");
        let devices = Devices::default();
        let socket = folder.path().join("vm.sock");
        let settings = SocketSettings {
            path: socket.clone(),
            identity: "vm:test".into(),
            data_queues: 1,
            limits,
        };
        let listening = devices.listen(&service, settings).expect("a socket");
        Self { service, devices, engine, socket, _listening: listening, _folder: folder }
    }

    /// A guest with a driver that acknowledges these features.
    pub(crate) fn connect(&self, features: u64) -> Guest {
        Guest::connect(&self.socket, 1, features).expect("a device that starts")
    }
}
