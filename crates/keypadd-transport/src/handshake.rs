//! Reports the outcome of a handshake to the connecting client or the accepting server.

use std::{
    future::Future,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
};

use quinn_proto::{ConnectError, ConnectionError};
use tokio::sync::oneshot;

use crate::{connection::Connection, dial::ConnectingError, mailbox::Opened};

/// An event of a listening endpoint.
#[derive(Debug)]
pub enum Accepted {
    /// A client has completed its handshake.
    Connection(Connection),
    /// A client's handshake failed after the server had answered.
    Failed(HandshakeFailed),
    /// A client was refused or evicted.
    Refused(SocketAddr, Refusal),
}

/// Why a handshake was refused or abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The connection limit is reached.
    Full,
    /// The handshake was the oldest when another one arrived, and had not proved a key.
    Displaced,
    /// The handshake took too long.
    TimedOut,
    /// Many are in progress, and its network's last one has not finished, or more wait to begin.
    Crowded,
}

/// A handshake that failed.
#[derive(Clone, Debug)]
pub struct HandshakeFailed {
    /// The client's address.
    pub remote: SocketAddr,
    /// The reason.
    pub error: ConnectionError,
}

/// A handshake in progress; dropping it abandons the handshake.
pub struct Connecting(State);

enum State {
    Asked(oneshot::Receiver<Result<Opened, ConnectError>>),
    Opened(Opened),
}

impl Connecting {
    pub(crate) fn new(asked: oneshot::Receiver<Result<Opened, ConnectError>>) -> Self {
        Self(State::Asked(asked))
    }

    /// Whether anything of the server has arrived yet.
    pub fn has_heard(&self) -> bool {
        match &self.0 {
            State::Asked(_) => false,
            State::Opened(opened) => {
                let shared = opened.attempt.0.as_ref();
                shared.is_some_and(|shared| shared.stats().udp_rx.datagrams > 0)
            }
        }
    }
}

impl Future for Connecting {
    type Output = Result<Connection, ConnectingError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.0 {
                State::Asked(asked) => match ready!(Pin::new(asked).poll(cx)) {
                    Ok(opened) => self.0 = State::Opened(opened?),
                    // The loop has ended.
                    Err(_) => return Poll::Ready(Err(ConnectionError::LocallyClosed.into())),
                },
                State::Opened(opened) => {
                    let established = ready!(Pin::new(&mut opened.established).poll(cx));
                    let established =
                        established.unwrap_or_else(|_| Err(ConnectionError::LocallyClosed.into()));
                    opened.attempt.0 = None;
                    return Poll::Ready(Ok(established.map(Connection::new)?));
                }
            }
        }
    }
}
