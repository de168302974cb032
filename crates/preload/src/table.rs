// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Registrations of sockets, the eventfds that shadow them, and connections that were notified. Pure: events in,
//! [`Action`]s out; `ffi::tables` keeps it and does the system calls.
//!
//! A socket is usually registered before its handshake pauses. It is registered afterwards if data came with the
//! connection: then nginx starts the handshake at once, and registers the socket when the handshake wants to wait.
//! Its *shadow descriptors*, the eventfds of its paused job, are armed as soon as both are known.
//!
//! If the program's event loop drives the pool's sockets (see `ffi::host_loop`), a job needs no eventfd of its own. Its
//! connection has a *wake token*; when the provider *notifies* that token, the loop sees the socket as readable. All
//! such jobs name one shared eventfd, which no connection waits for.
//!
//! # Order of calls
//!
//! ```text
//! epoll_ctl(ADD, MOD)     registered ──► actions
//! a handshake starts      wake_token                  the provider asks, if the loop drives
//! it pauses               paused ──► actions          SSL_do_handshake returns "paused"
//! its answer is there     notify                      the provider, on any thread
//! epoll_wait              take_notified ──► data of the sockets to report as readable
//! it ends                 resumed ──► actions
//! epoll_ctl(DEL), close   deregistered, closed ──► actions
//! ```

use std::collections::HashMap;

/// A change to an epoll instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Add the eventfd `fd` with this data, or modify it where `again` says that it is registered.
    Arm { epoll: i32, fd: i32, data: u64, again: bool },
    /// Take the eventfd `fd` out.
    Disarm { epoll: i32, fd: i32 },
}

/// Epoll instance and epoll data with which a socket is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Registration {
    epoll: i32,
    data: u64,
}

#[derive(Debug, Default)]
struct SocketEntry {
    registration: Option<Registration>,
    /// Eventfds of the paused job of the TLS connection on this socket.
    shadows: Vec<i32>,
    /// The number in its wake token while this entry exists; 0 is none.
    token: u32,
    /// Whether the socket was notified, and the program has not seen that yet.
    notified: bool,
}

/// The sockets of one process. Entries go when their socket is closed, so the table is never larger than
/// that of open files.
#[derive(Debug, Default)]
pub(crate) struct SocketTable {
    entries: HashMap<i32, SocketEntry>,
    used: bool,
    shared_eventfd: Option<i32>,
    /// Number in the last wake token.
    last_token: u32,
    /// Sockets in the order in which they were notified. Some may be closed since, or not registered yet.
    notified: Vec<i32>,
}

impl SocketTable {
    /// Whether this process has ever registered a socket: whether it uses epoll at all.
    pub(crate) fn is_used(&self) -> bool {
        self.used
    }

    /// The socket was added to an epoll instance, or its registration changed.
    pub(crate) fn registered(&mut self, socket: i32, epoll: i32, data: u64) -> Vec<Action> {
        self.used = true;
        let entry = self.entries.entry(socket).or_default();
        let now = Registration { epoll, data };
        let before = entry.registration.replace(now);
        if before == Some(now) {
            return Vec::new();
        }
        if entry.notified {
            self.notified.push(socket);
        }
        let mut actions = Vec::new();
        if before.is_some_and(|before| before.epoll != epoll) {
            actions = disarm(before, &entry.shadows);
        }
        let was_armed = before.is_some_and(|before| before.epoll == epoll);
        actions.extend(arm(now, &entry.shadows, |_| was_armed));
        self.without_shared(actions)
    }

    /// The socket was taken out of its epoll instance; its job may still be paused.
    pub(crate) fn deregistered(&mut self, socket: i32) -> Vec<Action> {
        let Some(entry) = self.entries.get_mut(&socket) else {
            return Vec::new();
        };
        let actions = disarm(entry.registration.take(), &entry.shadows);
        if entry.shadows.is_empty() {
            self.entries.remove(&socket);
        }
        self.without_shared(actions)
    }

    /// The socket is about to be closed: another file may get its number.
    pub(crate) fn closed(&mut self, socket: i32) -> Vec<Action> {
        let entry = self.entries.remove(&socket);
        let actions = entry.map(|entry| disarm(entry.registration, &entry.shadows));
        self.without_shared(actions.unwrap_or_default())
    }

    /// The handshake on this socket waits for these eventfds.
    pub(crate) fn paused(&mut self, socket: i32, wait_fds: &[i32]) -> Vec<Action> {
        let entry = self.entries.entry(socket).or_default();
        let before = std::mem::replace(&mut entry.shadows, wait_fds.to_vec());
        let gone = before.iter().copied().filter(|fd| !wait_fds.contains(fd));
        let mut actions = disarm(entry.registration, &gone.collect::<Vec<_>>());
        if let Some(registration) = entry.registration {
            actions.extend(arm(registration, wait_fds, |fd| before.contains(&fd)));
        }
        self.without_shared(actions)
    }

    /// The handshake on this socket no longer waits.
    pub(crate) fn resumed(&mut self, socket: i32) -> Vec<Action> {
        let Some(entry) = self.entries.get_mut(&socket) else {
            return Vec::new();
        };
        entry.notified = false;
        let actions = disarm(entry.registration, &entry.shadows);
        entry.shadows.clear();
        if entry.registration.is_none() {
            self.entries.remove(&socket);
        }
        self.without_shared(actions)
    }

    /// Makes jobs that name this eventfd be notified by wake token from now on.
    pub(crate) fn share_eventfd(&mut self, shared_eventfd: i32) {
        self.shared_eventfd = Some(shared_eventfd);
    }

    /// The wake token of the connection on this socket. It is good until its job no longer waits.
    pub(crate) fn wake_token(&mut self, socket: i32) -> u64 {
        let entry = self.entries.entry(socket).or_default();
        if entry.token == 0 {
            self.last_token = self.last_token.checked_add(1).unwrap_or(1);
            entry.token = self.last_token;
        }
        u64::from(entry.token) << 32 | u64::from(socket.cast_unsigned())
    }

    /// The job of the connection with this wake token can go on. Does nothing if the connection is gone.
    pub(crate) fn notify(&mut self, token: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "the halves of a wake token")]
        let (socket, token) = ((token as u32).cast_signed(), (token >> 32) as u32);
        let entry = self.entries.get_mut(&socket);
        if let Some(entry) = entry.filter(|entry| entry.token == token && !entry.notified) {
            entry.notified = true;
            self.notified.push(socket);
        }
    }

    /// Whether [`Self::take_notified`] may give something.
    pub(crate) fn has_notified(&self) -> bool {
        !self.notified.is_empty()
    }

    /// The epoll data of up to `room` notified sockets in this instance, which the program sees now.
    pub(crate) fn take_notified(&mut self, epoll: i32, room: usize) -> Vec<u64> {
        let mut data = Vec::new();
        let mut rest = std::mem::take(&mut self.notified).into_iter();
        while data.len() < room
            && let Some(socket) = rest.next()
        {
            let entry = self.entries.get_mut(&socket).filter(|entry| entry.notified);
            // A socket that is not registered is taken when it is.
            if let Some(entry) = entry
                && let Some(at) = entry.registration.filter(|at| at.epoll == epoll)
            {
                entry.notified = false;
                data.push(at.data);
            }
        }
        self.notified = rest.collect();
        data
    }

    fn without_shared(&self, mut actions: Vec<Action>) -> Vec<Action> {
        actions.retain(|action| {
            let (Action::Arm { fd, .. } | Action::Disarm { fd, .. }) = action;
            Some(*fd) != self.shared_eventfd
        });
        actions
    }
}

fn arm(at: Registration, shadows: &[i32], was_armed: impl Fn(i32) -> bool) -> Vec<Action> {
    let Registration { epoll, data } = at;
    let armed = shadows.iter().map(|&fd| Action::Arm { epoll, fd, data, again: was_armed(fd) });
    armed.collect()
}

fn disarm(at: Option<Registration>, shadows: &[i32]) -> Vec<Action> {
    let Some(Registration { epoll, .. }) = at else {
        return Vec::new();
    };
    shadows.iter().map(|&fd| Action::Disarm { epoll, fd }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOLL: i32 = 3;
    const SOCKET: i32 = 10;
    const EVENT: i32 = 20;

    fn arm(fd: i32, data: u64, again: bool) -> Action {
        Action::Arm { epoll: EPOLL, fd, data, again }
    }

    fn disarm(fd: i32) -> Action {
        Action::Disarm { epoll: EPOLL, fd }
    }

    #[test]
    fn shadow_is_armed_with_the_data_of_its_socket() {
        let mut table = SocketTable::default();
        assert_eq!(table.registered(SOCKET, EPOLL, 77), []);
        let added = arm(EVENT, 77, false);
        assert_eq!(table.paused(SOCKET, &[EVENT]), [added]);
        // Each further pause re-arms the edge.
        assert_eq!(table.paused(SOCKET, &[EVENT]), [arm(EVENT, 77, true)]);
        let removed = disarm(EVENT);
        assert_eq!(table.resumed(SOCKET), [removed]);
        assert_eq!(table.resumed(SOCKET), []);
    }

    #[test]
    fn socket_registered_after_the_pause_gets_its_shadow_then() {
        let mut table = SocketTable::default();
        assert_eq!(table.paused(SOCKET, &[EVENT]), []);
        let added = arm(EVENT, 5, false);
        assert_eq!(table.registered(SOCKET, EPOLL, 5), [added]);
    }

    #[test]
    fn reused_descriptor_starts_without_history() {
        let mut table = SocketTable::default();
        table.registered(SOCKET, EPOLL, 1);
        table.paused(SOCKET, &[EVENT]);
        assert_eq!(table.closed(SOCKET), [disarm(EVENT)]);
        assert_eq!(table.paused(SOCKET, &[21]), []);
        let added = arm(21, 2, false);
        assert_eq!(table.registered(SOCKET, EPOLL, 2), [added]);
    }

    #[test]
    fn changed_data_re_arms_the_shadow_and_unchanged_does_not() {
        let mut table = SocketTable::default();
        table.registered(SOCKET, EPOLL, 1);
        table.paused(SOCKET, &[EVENT]);
        assert_eq!(table.registered(SOCKET, EPOLL, 1), []);
        assert_eq!(table.registered(SOCKET, EPOLL, 2), [arm(EVENT, 2, true)]);
    }

    #[test]
    fn eventfd_that_is_no_longer_waited_for_is_disarmed() {
        let mut table = SocketTable::default();
        table.registered(SOCKET, EPOLL, 1);
        table.paused(SOCKET, &[EVENT]);
        let expected = [disarm(EVENT), arm(21, 1, false)];
        assert_eq!(table.paused(SOCKET, &[21]), expected);
    }

    #[test]
    fn socket_that_moves_to_another_instance_takes_its_shadow_along() {
        let mut table = SocketTable::default();
        assert!(!table.is_used());
        table.registered(SOCKET, EPOLL, 1);
        assert!(table.is_used());
        table.paused(SOCKET, &[EVENT]);
        let other = Action::Arm { epoll: EPOLL + 1, fd: EVENT, data: 1, again: false };
        assert_eq!(table.registered(SOCKET, EPOLL + 1, 1), [disarm(EVENT), other]);
    }

    #[test]
    fn socket_taken_out_and_put_back_gets_its_shadow_back() {
        let mut table = SocketTable::default();
        table.registered(SOCKET, EPOLL, 1);
        table.paused(SOCKET, &[EVENT]);
        assert_eq!(table.deregistered(SOCKET), [disarm(EVENT)]);
        assert_eq!(table.registered(SOCKET, EPOLL, 1), [arm(EVENT, 1, false)]);
    }

    const SHARED: i32 = 30;

    fn with_shared_eventfd() -> SocketTable {
        let mut table = SocketTable::default();
        table.share_eventfd(SHARED);
        table
    }

    #[test]
    fn notified_connection_is_readable_once() {
        let mut table = with_shared_eventfd();
        table.registered(SOCKET, EPOLL, 77);
        let token = table.wake_token(SOCKET);
        assert_eq!(
            table.paused(SOCKET, &[SHARED]),
            [],
            "no connection waits for the shared eventfd"
        );
        assert!(!table.has_notified());
        table.notify(token);
        table.notify(token);
        assert!(table.has_notified());
        assert_eq!(table.take_notified(EPOLL, 0), []);
        assert_eq!(table.take_notified(EPOLL, 8), [77]);
        assert!(!table.has_notified());
        assert_eq!(table.resumed(SOCKET), []);
        // A second operation of the same connection.
        assert_eq!(table.wake_token(SOCKET), token);
        table.notify(token);
        assert_eq!(table.take_notified(EPOLL, 8), [77]);
    }

    #[test]
    fn notified_socket_is_readable_once_it_is_registered() {
        let mut table = with_shared_eventfd();
        let token = table.wake_token(SOCKET);
        table.notify(token);
        table.paused(SOCKET, &[SHARED]);
        assert_eq!(table.take_notified(EPOLL, 8), []);
        table.registered(SOCKET, EPOLL, 5);
        assert_eq!(table.take_notified(EPOLL, 8), [5]);
        // Taken out and put back while it waits.
        table.deregistered(SOCKET);
        table.notify(token);
        assert_eq!(table.take_notified(EPOLL, 8), []);
        table.registered(SOCKET, EPOLL, 6);
        assert_eq!(table.take_notified(EPOLL, 8), [6]);
    }

    #[test]
    fn notification_of_a_closed_connection_reaches_no_other() {
        let mut table = with_shared_eventfd();
        table.registered(SOCKET, EPOLL, 1);
        let token = table.wake_token(SOCKET);
        table.paused(SOCKET, &[SHARED]);
        table.notify(token);
        assert_eq!(table.closed(SOCKET), []);
        // Another connection has the descriptor now.
        table.registered(SOCKET, EPOLL, 2);
        assert_ne!(table.wake_token(SOCKET), token);
        table.paused(SOCKET, &[SHARED]);
        table.notify(token);
        assert_eq!(table.take_notified(EPOLL, 8), []);
        // A connection that was notified and went on by itself is not reported.
        let token = table.wake_token(SOCKET);
        table.notify(token);
        table.resumed(SOCKET);
        assert_eq!(table.take_notified(EPOLL, 8), []);
    }

    #[test]
    fn table_is_empty_when_all_sockets_are_gone() {
        let mut table = SocketTable::default();
        for socket in 0..1000 {
            table.registered(socket, EPOLL, 1);
            table.paused(socket, &[socket + 1000]);
            table.resumed(socket);
            if socket % 2 == 0 {
                table.closed(socket)
            } else {
                table.deregistered(socket)
            };
        }
        assert!(table.entries.is_empty());
    }
}
