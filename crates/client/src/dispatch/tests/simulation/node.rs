// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Nodes: the session state of a real node over an engine stub; their troubles and their lies.

use super::*;

/// A node.
pub(super) struct SimNode {
    pub(super) rules: Arc<Rules>,
    pub(super) keys: KeySet<u8>,
    pub(super) up: bool,
    pub(super) draining: bool,
    /// Tells lies: answers twice, under other ids, with garbage.
    pub(super) lies: bool,
    /// Most milliseconds that one job takes.
    pub(super) slowness: u32,
    /// One job in this number fails; 0 is none.
    pub(super) failing: u32,
    /// Time before which the node reads nothing, although the kernel accepts connections for it.
    pub(super) silent_until: u32,
    /// Since when it serves, and from when to when it served before.
    pub(super) serves_since: u32,
    pub(super) served: Vec<(u32, u32)>,
    /// How the node is bad from this time on, in milliseconds since the start.
    pub(super) vice: Option<Vice>,
    pub(super) bad_from: u32,
}

/// A connection: both ends of it.
pub(super) struct SimLink {
    pub(super) client: usize,
    pub(super) node: usize,
    /// Nothing is delivered before that: what is sent arrives in order, and late if the link stalls.
    pub(super) to_node_from: u32,
    pub(super) to_client_from: u32,
    pub(super) session: SessionState<u8>,
    pub(super) decoder: Decoder<ClientMessage>,
    /// Input of each job that came over it, by the job's id.
    pub(super) inputs: HashMap<JobId, u64>,
    /// Jobs that the engine stub has not answered.
    pub(super) computing: BTreeSet<JobId>,
    /// The node ends it when the session is idle.
    pub(super) draining: bool,
}

impl SimNode {
    pub(super) fn new(random: &mut Random) -> Self {
        let rules = Rules {
            node: format!("n{}", random.below(1000)),
            allow_import: false,
            max_in_flight: 2 + random.below(20),
            max_keys: 64,
            max_budget: Duration::from_secs(10),
        };
        // The last keys may be missing, or be other keys by the same name.
        let missing = usize::from(random.below(4) == 0);
        let foreign = random.below(8) == 0;
        let keys =
            (0..KEYS - missing).map(|key| sim_key(key, u8::from(foreign && key == KEYS - 1)));
        Self {
            rules: Arc::new(rules),
            keys: keys.collect(),
            silent_until: 0,
            serves_since: 0,
            served: Vec::new(),
            vice: None,
            bad_from: 0,
            up: random.below(8) != 0,
            draining: false,
            lies: random.below(6) == 0,
            slowness: 1 + random.below(60),
            failing: if random.below(3) == 0 { 2 + random.below(10) } else { 0 },
        }
    }
}

/// The key with this number, or another one by its name.
fn sim_key(key: usize, other: u8) -> Arc<KeyEntry<u8>> {
    let info = KeyInfo { key_type: KeyType::Ec(Curve::P256), spki: vec![1 + other; 91] };
    let policy = KeyPolicy { identities: vec!["*".to_owned()], ..KeyPolicy::signing(["*"]) };
    Arc::new(KeyEntry::new(&format!("k{key}"), 0, info, policy))
}

impl SimNode {
    /// Takes its troubles and lies from a node, and gives it every key.
    pub(super) fn make_well(&mut self) {
        (self.up, self.lies, self.failing) = (true, false, 0);
        self.slowness = 1 + self.slowness % 20;
        self.keys = (0..KEYS).map(|key| sim_key(key, 0)).collect();
    }
}

impl World {
    pub(super) fn connected(&mut self, client: usize, node: usize) {
        let now = self.time();
        if !self.nodes[node].up {
            let dispatcher = &mut self.clients[client].dispatcher;
            return dispatcher.handle_lost(node, "connection refused".to_owned(), now);
        }
        let link = self.next_link;
        self.next_link += 1;
        let rules = Arc::clone(&self.nodes[node].rules);
        let account = Arc::new(millrace_service::account::Account::unlimited("uid:1", now));
        let session = SessionState::new(rules, Arc::from("uid:1"), account);
        self.links.insert(
            link,
            SimLink {
                client,
                node,
                to_node_from: self.now.max(self.nodes[node].silent_until),
                to_client_from: self.now,
                session,
                decoder: Decoder::new(),
                inputs: HashMap::new(),
                computing: BTreeSet::new(),
                draining: false,
            },
        );
        self.clients[client].links[node] = Some(link);
        let dispatcher = &mut self.clients[client].dispatcher;
        dispatcher.handle_connected(node, None, now);
        if self.nodes[node].draining {
            self.drain(link);
        }
        if self.time_limit.is_none() && self.one_in(8) {
            // It will be cut in the middle of something.
            let at = self.now + self.below(SCRIPT_MS);
            self.at(at, SimEvent::Cut { link });
        }
    }

    /// A node dies, drains, hangs or becomes slow; after a while it is well again.
    pub(super) fn trouble(&mut self, node: usize) {
        let links: Vec<LinkId> =
            self.links.iter().filter(|(_, sim)| sim.node == node).map(|(link, _)| *link).collect();
        match self.below(4) {
            0 => {
                self.nodes[node].up = false;
                for link in links {
                    let at = self.now + self.below(3);
                    self.at(at, SimEvent::Cut { link });
                }
            }
            1 => {
                self.nodes[node].draining = true;
                for link in links {
                    self.drain(link);
                }
            }
            2 => {
                // The links stall in one direction or both; pings find it out, if it lasts.
                let until = self.now + self.below(1500);
                for link in links {
                    let choice = self.below(3);
                    let sim = self.links.get_mut(&link).expect("listed above");
                    if choice != 1 {
                        sim.to_node_from = sim.to_node_from.max(until);
                    }
                    if choice != 0 {
                        sim.to_client_from = sim.to_client_from.max(until);
                    }
                }
            }
            _ => self.nodes[node].slowness = 1 + self.below(1200),
        }
        let at = self.now + self.below(1000);
        self.at(at, SimEvent::Recovered { node });
    }

    pub(super) fn drain(&mut self, link: LinkId) {
        let mut effects = Effects::default();
        if let Some(sim) = self.links.get_mut(&link) {
            sim.session.drain(&mut effects);
            sim.draining = true;
        }
        self.apply(link, effects);
    }

    pub(super) fn node_reads(&mut self, link: LinkId, mut bytes: &[u8]) {
        let now = self.time();
        while !bytes.is_empty() {
            let Some(sim) = self.links.get_mut(&link) else {
                return;
            };
            let space = sim.decoder.space();
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            sim.decoder.filled(count);
            bytes = &bytes[count..];
            let mut effects = Effects::default();
            while let Some(message) = sim.decoder.next().expect("a client that keeps to the rules")
            {
                if let ClientMessage::Submit(jobs) = &message {
                    for job in jobs {
                        let number = number_in(&job.input);
                        sim.inputs.insert(job.id, number);
                        *self.arrivals.entry(number).or_default() += 1;
                    }
                }
                let keys = &self.nodes[sim.node].keys;
                sim.session
                    .receive(message, now, keys, &mut effects)
                    .expect("a client that keeps to the rules");
            }
            self.apply(link, effects);
        }
    }

    /// Does what a session asks for.
    pub(super) fn apply(&mut self, link: LinkId, effects: Effects<u8>) {
        let Effects { replies, jobs, refused, cancels, .. } = effects;
        for reply in replies {
            self.say(link, &reply);
        }
        let refused = refused.into_iter().map(|(id, error)| completion(id, Err(error)));
        let refused: Vec<JobCompletion> = refused.collect();
        if !refused.is_empty() {
            self.say(link, &NodeMessage::Complete(refused));
        }
        for job in jobs {
            self.compute(link, &job);
        }
        for job in cancels {
            // The engine may be too late for it.
            if self.one_in(2) {
                let at = self.now + self.below(3);
                let result = Err(JobError::Cancelled);
                self.at(at, SimEvent::Computed { link, job, result });
            }
        }
        self.close_if_drained(link);
    }

    /// The engine stub: every job ends once, by its deadline.
    pub(super) fn compute(&mut self, link: LinkId, job: &ReadyJob<u8>) {
        let Some(sim) = self.links.get_mut(&link) else {
            return;
        };
        sim.computing.insert(job.id);
        let at = sim.node;
        if let Some(vice) = self.vice(at) {
            return self.compute_badly(link, job.id, number_in(&job.input), vice);
        }
        let node = &self.nodes[at];
        let (lies, slowness, failing) = (node.lies, node.slowness, node.failing);
        let takes = self.below(slowness + 1);
        let fails = failing > 0 && self.one_in(failing);
        let left = job.deadline.saturating_duration_since(self.time());
        let left = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        let (takes, result) = if takes >= left {
            (left, Err(JobError::Expired))
        } else if fails {
            let all = JobError::ALL;
            (takes, Err(all[pick(&mut self.random, all.len())]))
        } else {
            (takes, Ok(number_in(&job.input)))
        };
        let (at, job) = (self.now + takes, job.id);
        self.at(at, SimEvent::Computed { link, job, result });
        if lies {
            self.lie(link, job);
        }
    }

    pub(super) fn computed(&mut self, link: LinkId, job: JobId, result: Result<u64, JobError>) {
        let Some(sim) = self.links.get_mut(&link) else {
            return;
        };
        if !sim.computing.remove(&job) {
            return;
        }
        assert!(sim.session.completed(job), "the session knows the job");
        self.say(link, &NodeMessage::Complete(vec![completion(job, result)]));
        self.close_if_drained(link);
    }

    pub(super) fn close_if_drained(&mut self, link: LinkId) {
        let done = self.links.get(&link).is_some_and(|sim| sim.draining && sim.session.idle());
        if done && self.one_in(2) {
            let at = self.now + 1 + self.below(20);
            let from = self.links[&link].to_client_from;
            self.at(at.max(from), SimEvent::Cut { link });
        }
    }

    /// Answers under ids that are guessed, used up or of the other connections, twice, or with garbage.
    pub(super) fn lie(&mut self, link: LinkId, job: JobId) {
        let SimLink { client, inputs, .. } = &self.links[&link];
        let others: BTreeSet<JobId> = self
            .links
            .values()
            .filter(|sim| sim.client == *client)
            .flat_map(|sim| sim.inputs.keys().copied())
            .filter(|id| !inputs.contains_key(id))
            .collect();
        let others: Vec<JobId> = others.into_iter().collect();
        let number = inputs[&job];
        match self.below(8) {
            // Twice.
            0 => {
                let twice = [number; 2].map(|number| completion(job, Ok(number)));
                self.say(link, &NodeMessage::Complete(twice.into()));
            }
            // For a job that another node has.
            1 if !others.is_empty() => {
                let id = others[self.pick(others.len())];
                let forged = completion(id, Ok(u64::MAX));
                self.say(link, &NodeMessage::Complete(vec![forged]));
            }
            // For another attempt of the same job.
            2 => {
                let id = job ^ u64::from(1 + self.below(255));
                let made = self.links[&link].inputs.contains_key(&id);
                if !made {
                    self.say(link, &NodeMessage::Complete(vec![completion(id, Ok(number))]));
                }
            }
            // Garbage.
            3 => {
                let garbage: Vec<u8> = (0..1 + self.below(40)).map(|_| self.byte()).collect();
                self.send(link, &garbage, false);
            }
            // An answer to a request that was not made.
            4 => self.say(link, &opened(u32::MAX - 7)),
            _ => {}
        }
    }

    pub(super) fn say(&mut self, link: LinkId, message: &NodeMessage) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.send(link, &bytes, false);
    }
}
