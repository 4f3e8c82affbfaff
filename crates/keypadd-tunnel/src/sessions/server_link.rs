//! Whether a client has a session, why not, and how often it has come back.
//!
//! Written by `Client::run` alone; read by everything that carries a connection, which waits here
//! for a session, and by figures. Knows no sockets and decides nothing.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use keypadd_transport::ConnectionError;
use tokio::sync::watch;

use crate::{
    sessions::{
        session::{LiveSession, Lost},
        status::{LinkState, LinkStatus, unix_seconds},
    },
    wire::CloseCode,
};

/// A client's way to its server, as it is now; clones share it.
#[derive(Clone, Debug)]
pub struct Link(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    live: watch::Sender<Live>,
    book: Mutex<Book>,
}

/// The session that there is to carry connections.
#[derive(Clone, Debug)]
pub(crate) enum Live {
    /// None yet, or none any more.
    Waiting,
    /// This one, unless it has just been lost.
    Up(Arc<LiveSession>),
    /// None, and there will be none.
    Over,
}

#[derive(Debug)]
struct Book {
    since: SystemTime,
    cause: Option<String>,
    retry_at: Option<SystemTime>,
    reconnects: BTreeMap<&'static str, u64>,
}

/// The client ends: no session will come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkOver;

impl Default for Link {
    fn default() -> Self {
        let book = Book {
            since: SystemTime::now(),
            cause: None,
            retry_at: None,
            reconnects: BTreeMap::new(),
        };
        Self(Arc::new(Shared { live: watch::Sender::new(Live::Waiting), book: Mutex::new(book) }))
    }
}

impl Link {
    /// How it is now.
    pub fn status(&self) -> LinkStatus {
        let book = self.book();
        LinkStatus {
            state: match *self.0.live.borrow() {
                Live::Up(_) => LinkState::Connected,
                Live::Waiting | Live::Over => LinkState::Waiting,
            },
            since_unix_seconds: unix_seconds(book.since),
            cause: book.cause.clone(),
            retry_unix_seconds: book.retry_at.map(unix_seconds),
            reconnects: book.reconnects.clone(),
        }
    }

    /// The session that lives, or the next one, however long it takes.
    pub(crate) async fn session(&self) -> Result<Arc<LiveSession>, LinkOver> {
        // One that is just being lost is not worth a try: another value will come.
        let settled = |live: &Live| match live {
            Live::Waiting => false,
            Live::Up(session) => session.connection.close_reason().is_none(),
            Live::Over => true,
        };
        match self.0.live.subscribe().wait_for(settled).await.as_deref() {
            Ok(Live::Up(session)) => Ok(Arc::clone(session)),
            _ => Err(LinkOver),
        }
    }

    /// The session that lives now.
    pub(crate) fn now(&self) -> Option<Arc<LiveSession>> {
        match &*self.0.live.borrow() {
            Live::Up(session) => Some(Arc::clone(session)),
            Live::Waiting | Live::Over => None,
        }
    }

    /// There is a session; `after` is what ended the one before it.
    pub(crate) fn up(&self, session: Arc<LiveSession>, after: Option<&'static str>) {
        let mut book = self.book();
        (book.since, book.cause, book.retry_at) = (SystemTime::now(), None, None);
        if let Some(reason) = after {
            *book.reconnects.entry(reason).or_default() += 1;
        }
        drop(book);
        self.0.live.send_replace(Live::Up(session));
    }

    /// There is no session any more.
    pub(crate) fn lost(&self, cause: String) {
        let mut book = self.book();
        (book.since, book.cause, book.retry_at) = (SystemTime::now(), Some(cause), None);
        drop(book);
        self.0.live.send_replace(Live::Waiting);
    }

    /// The next attempt comes after this time; `cause` is why the one before it failed.
    pub(crate) fn waits(&self, time: Duration, cause: Option<String>) {
        let mut book = self.book();
        book.retry_at = Some(SystemTime::now() + time);
        if cause.is_some() {
            book.cause = cause;
        }
    }

    /// An attempt is being made.
    pub(crate) fn tries(&self) {
        self.book().retry_at = None;
    }

    /// There will be no session.
    pub(crate) fn over(&self, cause: &str) {
        self.lost(cause.into());
        self.0.live.send_replace(Live::Over);
    }

    /// A panic cannot leave the figures half changed.
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A jump of the clock: nothing speaks against trying again at once.
pub(crate) const CLOCK: &str = "clock";

/// What ended a session, in a word: few enough for a label.
pub(crate) fn reason(lost: &Lost) -> &'static str {
    match lost {
        Lost::Connection(ConnectionError::TimedOut) => "silent",
        // The other end knows nothing of the connection (RFC 9000 10.3): a clock has jumped there.
        Lost::Connection(ConnectionError::Reset) => "forgotten",
        Lost::Connection(ConnectionError::ApplicationClosed(close)) => {
            let is = |code: CloseCode| close.error_code == code.value().into();
            match () {
                () if is(CloseCode::Shutdown) => "shutdown",
                () if is(CloseCode::KeyFault) => "key",
                () if is(CloseCode::Protocol) => "protocol",
                () if is(CloseCode::Replaced) => "replaced",
                () if is(CloseCode::Unlisted) => "unlisted",
                () => "closed",
            }
        }
        Lost::Connection(_) => "transport",
        Lost::Key(_) => "key",
        Lost::Control(_) => "protocol",
        Lost::Clock(_) => CLOCK,
        Lost::Replaced => "replaced",
        Lost::Unlisted => "unlisted",
        Lost::Ending => "shutdown",
    }
}
