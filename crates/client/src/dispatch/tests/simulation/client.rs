// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Clients: the dispatcher under test, the jobs that it gets, and both directions of its bytes.

use super::*;
use crate::job::WrongNodes;

/// A client of the pool.
pub(super) struct Client {
    pub(super) dispatcher: Dispatcher,
    pub(super) keys: Vec<Arc<KeyData>>,
    /// The link to each node, if there is one.
    pub(super) links: Vec<Option<LinkId>>,
    /// Jobs with a callback, for cancelling.
    pub(super) handles: Vec<JobRef>,
}

impl Client {
    pub(super) fn new(nodes: usize, random: &mut Random, start: Instant) -> Self {
        let is_near = random.below(2) == 0;
        let endpoint = |n| {
            if is_near { format!("unix:/{n}") } else { format!("tcp:node-{n}:1") }
        };
        let endpoints = (0..nodes).map(|n| endpoint(n).parse().expect("an endpoint"));
        let hedge = match random.below(3) {
            0 => Hedge::Off,
            1 => Hedge::After(Duration::from_millis(u64::from(5 + random.below(40)))),
            _ => Hedge::Adaptive,
        };
        let config = PoolConfig::new(endpoints.collect())
            .max_in_flight(MAX_IN_FLIGHT)
            .max_keys(KEYS + 1)
            .hedge(hedge);
        let mut dispatcher = Dispatcher::new(&config, start);
        dispatcher.random = Random::seeded(u64::from(random.below(u32::MAX)));
        Self {
            dispatcher,
            keys: (0..KEYS).map(new_key).collect(),
            links: vec![None; nodes],
            handles: Vec::new(),
        }
    }
}

impl World {
    pub(super) fn submit(&mut self, client: usize) {
        if self.verdicts.is_some() {
            let deadline = self.now + self.time_limit.expect("owners that verify have one");
            let number = lock(&self.jobs).len() as u64;
            self.submitted.push(self.now);
            lock(&self.jobs).push(JobState::Open { deadline });
            return self.submit_verified(client, number, deadline, WrongNodes::default());
        }
        let millis = self.time_limit.unwrap_or_else(|| 1 + self.below(800));
        let deadline = self.now + millis;
        let is_caller = self.one_in(4);
        let key = self.pick(KEYS);
        let now = self.time();
        let jobs = Arc::clone(&self.jobs);
        let number = lock(&jobs).len() as u64;
        let recipient = if is_caller {
            Recipient::Caller { waiter: None }
        } else {
            Recipient::Callback(Box::new(move |result| end(&jobs, number, &result.map(Some))))
        };
        let mut input = vec![0; 32];
        input[..8].copy_from_slice(&number.to_le_bytes());
        let operation = Operation::EcdsaSign { hash: Hash::Sha256 };
        let request = JobRequest::Operation { operation, input };
        let client_index = client;
        let client = &mut self.clients[client];
        let due = now + Duration::from_millis(millis.into());
        let job = Job::new(Arc::clone(&client.keys[key]), request, recipient, due);
        let Ok(id) = client.dispatcher.submit(job, now) else {
            assert!(self.time_limit.is_none(), "a job was not taken");
            return;
        };
        self.submitted.push(self.now);
        lock(&self.jobs).push(JobState::Open { deadline });
        if is_caller {
            let client = client_index;
            for at in [self.now + self.below(millis), deadline] {
                let event = SimEvent::CallerLooks { client, caller: id, job: number };
                self.at(at, event);
            }
        } else {
            client.handles.push(id);
        }
    }

    /// A blocked caller looks for its answer, and gives up at its deadline.
    pub(super) fn look(&mut self, client: usize, caller: JobRef, job: u64) {
        let JobState::Open { deadline } = lock(&self.jobs)[usize::try_from(job).expect("few")]
        else {
            return;
        };
        let now = self.time();
        let dispatcher = &mut self.clients[client].dispatcher;
        if let Some(answer) = dispatcher.take_done(caller) {
            assert!(dispatcher.take_done(caller).is_none(), "answered twice");
            end(&self.jobs, job, &answer);
        } else if deadline <= self.now {
            let answer = dispatcher.give_up(caller, now);
            assert!(answer.is_err(), "an answer was there and was not found");
            end(&self.jobs, job, &answer);
        }
    }

    /// Moves what a client has to say, and delivers its answers.
    pub(super) fn pump(&mut self, client: usize) {
        while let Some(node) = self.clients[client].dispatcher.poll_connect() {
            let at = self.now + self.below(5);
            self.at(at, SimEvent::Connected { client, node });
        }
        while let Some(node) = self.clients[client].dispatcher.poll_close() {
            // A lost link is gone already; one that the client gives up ends here.
            if let Some(link) = self.clients[client].links[node].take() {
                self.links.remove(&link);
            }
        }
        let deliveries = mem::take(self.clients[client].dispatcher.deliveries());
        for (callback, result) in deliveries.callbacks {
            callback(result);
        }
        self.judge_results();
        for node in 0..self.nodes.len() {
            let Some(link) = self.clients[client].links[node] else {
                continue;
            };
            let Some(out) = self.clients[client].dispatcher.poll_output(node) else {
                continue;
            };
            let bytes = out.pending().to_vec();
            out.consume(bytes.len());
            self.send(link, &bytes, true);
        }
    }

    pub(super) fn client_reads(&mut self, link: LinkId, mut bytes: &[u8]) {
        let now = self.time();
        while !bytes.is_empty() {
            let Some(sim) = self.links.get(&link) else {
                return;
            };
            let (client, node) = (sim.client, sim.node);
            let dispatcher = &mut self.clients[client].dispatcher;
            let Some(connection) = dispatcher.connection(node) else {
                return;
            };
            let space = connection.space();
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            connection.filled(count, now);
            bytes = &bytes[count..];
            dispatcher.handle_received(node, now);
            self.pump(client);
        }
    }
}

pub(super) fn new_key(number: usize) -> Arc<KeyData> {
    let selector = KeySelector::Name(format!("k{number}"));
    Arc::new(KeyData::new(KeySource::Selector(selector)))
}
