// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The places of a listener's connections: [`Admission`], shared by the tasks that serve them.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use millrace_operation::sync::lock;
use millrace_service::admission::{Activity, Admission, PlaceClass, PlaceSource};
use tokio::sync::oneshot;

/// Called for each connection that has to give way, with class and source of the newcomer.
type OnDisplaced = Box<dyn Fn(PlaceClass, &PlaceSource) + Send + Sync>;

/// The places of a listener. Cheap to clone.
#[derive(Clone)]
pub struct Places(Arc<Shared>);

struct Shared {
    state: Mutex<PlacesState>,
    on_displaced: OnDisplaced,
}

#[derive(Default)]
struct PlacesState {
    order: Admission,
    /// By the number of the connection.
    ends: HashMap<u64, oneshot::Sender<()>>,
}

impl Places {
    /// Empty places.
    pub fn new(on_displaced: impl Fn(PlaceClass, &PlaceSource) + Send + Sync + 'static) -> Self {
        let on_displaced = Box::new(on_displaced);
        Self(Arc::new(Shared { state: Mutex::default(), on_displaced }))
    }

    /// A place for a new connection, and the future that completes when it must end for another one.
    #[must_use]
    pub fn enter(&self, class: PlaceClass, source: PlaceSource) -> (Place, Displaced) {
        let (end, ended) = oneshot::channel();
        let mut state = lock(&self.0.state);
        let entered = state.order.enter(class, source.clone());
        state.ends.insert(entered.number, end);
        let gone = entered.displaced.and_then(|number| state.ends.remove(&number));
        drop(state);
        self.end(gone, class, &source);
        (
            Place { number: entered.number, places: self.clone() },
            Displaced(DisplacedState::Waiting(ended)),
        )
    }

    /// Number of connections in a class.
    #[must_use]
    pub fn held(&self, class: PlaceClass) -> usize {
        lock(&self.0.state).order.held(class.name)
    }

    fn end(&self, gone: Option<oneshot::Sender<()>>, class: PlaceClass, newcomer: &PlaceSource) {
        if let Some(end) = gone {
            // A receiver that is gone belongs to a connection that has just ended.
            let _ = end.send(());
            (self.0.on_displaced)(class, newcomer);
        }
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Places").finish_non_exhaustive()
    }
}

/// The place of a connection. Dropping it frees the place; then nothing displaces the connection.
#[derive(Debug)]
pub struct Place {
    number: u64,
    places: Places,
}

impl Place {
    /// Notes what the connection does from now on.
    pub fn mark(&self, activity: Activity) {
        lock(&self.places.0.state).order.mark(self.number, activity);
    }

    /// Moves the connection to the class of its client, now that the client is known.
    pub fn pass(&self, class: PlaceClass, source: PlaceSource) {
        let mut state = lock(&self.places.0.state);
        let displaced = state.order.pass(self.number, class, source.clone());
        let gone = displaced.and_then(|number| state.ends.remove(&number));
        drop(state);
        self.places.end(gone, class, &source);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = lock(&self.places.0.state);
        state.order.leave(self.number);
        state.ends.remove(&self.number);
    }
}

/// Completes when a connection must end for another one; never, once its place is free.
#[derive(Debug)]
pub struct Displaced(DisplacedState);

#[derive(Debug)]
enum DisplacedState {
    Waiting(oneshot::Receiver<()>),
    /// The connection must end.
    Gone,
    /// Its place is free.
    Safe,
}

impl Future for Displaced {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let DisplacedState::Waiting(ended) = &mut self.0 {
            let ended = ready!(Pin::new(ended).poll(context));
            self.0 = if ended.is_ok() { DisplacedState::Gone } else { DisplacedState::Safe };
        }
        match self.0 {
            DisplacedState::Gone => Poll::Ready(()),
            DisplacedState::Waiting(_) | DisplacedState::Safe => Poll::Pending,
        }
    }
}
