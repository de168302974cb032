// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A change of the nodes that the pool names, while it is in use.

use std::time::Instant;

use super::Dispatcher;
use crate::config::{Endpoint, MAX_NODES};
use crate::node::{ConfiguredNode, NodeIndex};

impl Dispatcher {
    /// Replaces the list of nodes. Jobs at a node that is listed no more end there; new ones go to the others. Returns
    /// the place of each endpoint. `None` for one that has to wait until a former node's place is free.
    pub(crate) fn set_nodes(
        &mut self,
        endpoints: &[Endpoint],
        now: Instant,
    ) -> Vec<Option<NodeIndex>> {
        let texts: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
        for node in 0..self.nodes.len() {
            let listed = texts.contains(&self.nodes[node].endpoint);
            if self.nodes[node].listed && !listed {
                self.nodes[node].retire();
                self.on_draining(node, now);
            }
            self.nodes[node].listed = listed;
        }
        let places = endpoints
            .iter()
            .zip(&texts)
            .map(|(endpoint, text)| self.place_of(endpoint, text, now))
            .collect();
        for node in &mut self.nodes {
            node.connect_if_idle(now);
        }
        self.reassign(now);
        places
    }

    fn place_of(&mut self, endpoint: &Endpoint, text: &str, now: Instant) -> Option<NodeIndex> {
        let known = self.nodes.iter().position(|node| node.endpoint == text);
        if known.is_some() {
            return known;
        }
        let mut fresh = ConfiguredNode::new(endpoint, now);
        if let Some(node) = self.nodes.iter().position(ConfiguredNode::is_vacant) {
            fresh.serial = self.nodes[node].serial.wrapping_add(1);
            self.nodes[node] = fresh;
            // What a job knows of this place is about the former node.
            for id in self.jobs.select(|_| true) {
                if let Some(job) = self.jobs.get(id) {
                    for set in [&mut job.tried, &mut job.failed, &mut job.lost, &mut job.wrong] {
                        set.remove(node);
                    }
                }
            }
            return Some(node);
        }
        if self.nodes.len() >= MAX_NODES {
            return None;
        }
        self.nodes.push(fresh);
        Some(self.nodes.len() - 1)
    }
}
