//! Tracks whether a client has a session, why not, and how often it has reconnected.
//!
//! Written by `Client::connect` and `Client::run` only. Read for the status, and by connections,
//! which wait here for a session.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::sync::watch;

use crate::{
    clock::unix_seconds,
    sessions::{
        reconnect_reason::ReconnectReason,
        session::LiveSession,
        status::{LinkState, LinkStatus},
    },
};

/// A client's link to its server; clones share it.
#[derive(Clone, Debug)]
pub struct ServerLink(Arc<LinkShared>);

#[derive(Debug)]
struct LinkShared {
    session: watch::Sender<LinkSession>,
    /// Connections that wait for a session.
    waiters: watch::Sender<usize>,
    history: Mutex<History>,
}

/// The session that carries new connections.
#[derive(Clone, Debug)]
enum LinkSession {
    /// None at the moment.
    Waiting,
    /// This one; it may have ended just now.
    Up(Arc<LiveSession>),
    /// None, and there will be none.
    Closed,
}

#[derive(Debug)]
struct History {
    since: SystemTime,
    cause: Option<String>,
    retry_at: Option<SystemTime>,
    reconnects: BTreeMap<ReconnectReason, u64>,
    renewals: u64,
}

/// Counts one connection that waits for a session, until it is dropped.
struct Waiter<'a>(&'a watch::Sender<usize>);

impl<'a> Waiter<'a> {
    fn new(waiters: &'a watch::Sender<usize>) -> Self {
        waiters.send_modify(|count| *count += 1);
        Self(waiters)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// The client is shutting down: there will be no session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkClosed;

impl Default for ServerLink {
    fn default() -> Self {
        let history = History {
            since: SystemTime::now(),
            cause: None,
            retry_at: None,
            reconnects: BTreeMap::new(),
            renewals: 0,
        };
        Self(Arc::new(LinkShared {
            session: watch::Sender::new(LinkSession::Waiting),
            waiters: watch::Sender::new(0),
            history: Mutex::new(history),
        }))
    }
}

impl ServerLink {
    /// The current status.
    pub fn status(&self) -> LinkStatus {
        let history = self.history();
        LinkStatus {
            state: match *self.0.session.borrow() {
                LinkSession::Up(_) => LinkState::Connected,
                LinkSession::Waiting | LinkSession::Closed => LinkState::Waiting,
            },
            since_unix_seconds: unix_seconds(history.since),
            cause: history.cause.clone(),
            retry_unix_seconds: history.retry_at.map(unix_seconds),
            reconnects: history.reconnects.clone(),
            renewals: history.renewals,
        }
    }

    /// Waits for a live session, without a timeout.
    pub(crate) async fn session(&self) -> Result<Arc<LiveSession>, LinkClosed> {
        let _waiter = Waiter::new(&self.0.waiters);
        self.session_without_waiter().await
    }

    /// Waits for a live session, without a timeout, and without making attempts to connect sooner.
    pub(crate) async fn session_without_waiter(&self) -> Result<Arc<LiveSession>, LinkClosed> {
        // A session that has just ended is passed over: `record_loss` will be called for it.
        let settled = |session: &LinkSession| match session {
            LinkSession::Waiting => false,
            LinkSession::Up(session) => session.connection.close_reason().is_none(),
            LinkSession::Closed => true,
        };
        match self.0.session.subscribe().wait_for(settled).await.as_deref() {
            Ok(LinkSession::Up(session)) => Ok(Arc::clone(session)),
            _ => Err(LinkClosed),
        }
    }

    /// Completes when a connection waits for a session.
    pub(crate) async fn wanted(&self) {
        // Fails only without a sender, and this link has it.
        let _ = self.0.waiters.subscribe().wait_for(|waiters| *waiters > 0).await;
    }

    /// The current session.
    pub(crate) fn current(&self) -> Option<Arc<LiveSession>> {
        match &*self.0.session.borrow() {
            LinkSession::Up(session) => Some(Arc::clone(session)),
            LinkSession::Waiting | LinkSession::Closed => None,
        }
    }

    /// Records a new session; `after` is what ended the one before.
    pub(crate) fn up(&self, session: Arc<LiveSession>, after: Option<ReconnectReason>) {
        let mut history = self.history();
        (history.since, history.cause, history.retry_at) = (SystemTime::now(), None, None);
        if let Some(reason) = after {
            *history.reconnects.entry(reason).or_default() += 1;
        }
        drop(history);
        self.0.session.send_replace(LinkSession::Up(session));
    }

    /// Records that this session goes on with the one before, with new keys.
    pub(crate) fn renewed(&self, session: Arc<LiveSession>) {
        self.history().renewals += 1;
        self.0.session.send_replace(LinkSession::Up(session));
    }

    /// Records the end of the session.
    pub(crate) fn record_loss(&self, cause: String) {
        let mut history = self.history();
        (history.since, history.cause, history.retry_at) = (SystemTime::now(), Some(cause), None);
        drop(history);
        self.0.session.send_replace(LinkSession::Waiting);
    }

    /// Records that the next attempt is made after `time`; `cause` is why the last one failed.
    pub(crate) fn waiting(&self, time: Duration, cause: Option<String>) {
        let mut history = self.history();
        history.retry_at = Some(SystemTime::now() + time);
        if cause.is_some() {
            history.cause = cause;
        }
    }

    /// Records why the last attempt failed while others follow at once.
    pub(crate) fn failing(&self, cause: String) {
        self.history().cause = Some(cause);
    }

    /// Records that an attempt is being made.
    pub(crate) fn connecting(&self) {
        self.history().retry_at = None;
    }

    /// Records that there will be no more sessions.
    pub(crate) fn close(&self, cause: &str) {
        self.record_loss(cause.into());
        self.0.session.send_replace(LinkSession::Closed);
    }

    /// A panic cannot leave the history half changed.
    fn history(&self) -> MutexGuard<'_, History> {
        self.0.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
