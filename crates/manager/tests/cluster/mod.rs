// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A store over a real etcd cluster.

use millrace_manager::store::{EtcdConfig, EtcdStore};
use millrace_testkit::etcd::EtcdCluster;

/// A cluster with its data, which end together.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) etcd: EtcdCluster,
    _folder: tempfile::TempDir,
}

impl Cluster {
    /// Starts `count` members and waits until they have a leader.
    pub(crate) fn start(count: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { etcd: EtcdCluster::start(folder.path(), count), _folder: folder }
    }

    /// A store over all members.
    pub(crate) fn store(&self) -> EtcdStore {
        self.store_from(0)
    }

    /// A store over all members that asks this one first.
    pub(crate) fn store_from(&self, member: usize) -> EtcdStore {
        let mut endpoints = self.etcd.endpoints();
        endpoints.rotate_left(member);
        EtcdStore::open(&EtcdConfig {
            endpoints: endpoints.iter().map(|at| format!("http://{at}")).collect(),
            ..EtcdConfig::default()
        })
        .unwrap()
    }
}
