//! Reaches a server at one of its addresses: resolves them all, begins a handshake at one after the other, and
//! goes on with the first that completes (RFC 8305). Knows nothing of what follows a handshake.

use std::{future::poll_fn, net::SocketAddr, ops::Range, pin::Pin, task::Poll, time::Duration};

use keypadd_transport::Connection;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Client, attempts::Attempts};
use crate::{
    addresses::target::ServerAddress,
    error::{ClientError, ConnectFailure},
    net::lookup::{names_this_host, resolve},
};

/// Time from one attempt to the next (RFC 8305, section 5: Connection Attempt Delay), and how long a later
/// entry of the list waits for the names of those before it.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Where to look for a server.
#[derive(Clone, Debug)]
pub(super) struct Search {
    /// For all attempts together.
    pub(super) timeout: Duration,
    /// The entries of the server's list to try.
    pub(super) places: Range<usize>,
    /// The address to try first, with its entry.
    pub(super) begin_at: Option<(usize, SocketAddr)>,
    /// An address not to try.
    pub(super) avoid: Option<SocketAddr>,
}

/// A handshake that has completed.
#[derive(Clone, Debug)]
pub(super) struct Reached {
    pub(super) connection: Connection,
    /// The entry of the server's list.
    pub(super) place: usize,
}

type Operation<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Operations under way, each with a name; all are dropped together.
struct Running<'a, K, T>(Vec<(K, Operation<'a, T>)>);

impl<'a, K: Copy, T> Running<'a, K, T> {
    fn start(&mut self, name: K, operation: impl Future<Output = T> + Send + 'a) {
        self.0.push((name, Box::pin(operation)));
    }

    /// Waits for the next to complete; forever if there is none.
    async fn next(&mut self) -> (K, T) {
        poll_fn(|cx| {
            for (nth, (name, operation)) in self.0.iter_mut().enumerate() {
                if let Poll::Ready(outcome) = operation.as_mut().poll(cx) {
                    let name = *name;
                    drop(self.0.swap_remove(nth));
                    return Poll::Ready((name, outcome));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// What has gone wrong.
struct Failures<'a> {
    servers: &'a [ServerAddress],
    /// By entry.
    causes: Vec<Vec<String>>,
    /// Entries whose names lead to this host.
    here: Vec<usize>,
    /// The first end that did not accept the other.
    refusal: Option<ClientError>,
}

impl Client {
    /// All entries of the server's list.
    pub(super) fn everywhere(&self, timeout: Duration) -> Search {
        let places = 0..self.server.all().len();
        Search { timeout, places, begin_at: None, avoid: None }
    }

    /// Resolves the server's names and makes the attempt at their addresses, in the order of
    /// [`Attempts`], until one succeeds. Its handshakes may overlap, and only one of them at a time is
    /// finished: the others are given up then. Returns at once what that has made. An end that does not
    /// accept the other is not asked at its other addresses.
    pub(super) async fn reach<T, O, F>(
        &self,
        search: Search,
        open: impl Fn(SocketAddr) -> O + Send,
        finish: impl Fn(Reached) -> F,
    ) -> Result<T, ClientError>
    where
        O: Future<Output = Result<Connection, ConnectFailure>> + Send,
        F: Future<Output = Result<T, ConnectFailure>>,
    {
        let began = Instant::now();
        let deadline = began + search.timeout;
        let Range { start, end } = search.places;
        let servers = self.server.all().get(start..end).unwrap_or_default();
        let mut attempts = Attempts::new(servers.len(), search.avoid);
        if let Some((place, address)) = search.begin_at {
            attempts.begin_at(place.saturating_sub(start), address);
        }
        let mut failures = Failures::new(servers);
        let mut lookups = Running(Vec::new());
        for (place, ServerAddress { host, port }) in servers.iter().enumerate() {
            lookups.start(place, resolve(host, *port, &self.lookups));
        }
        let mut dialing = Running(Vec::new());
        let mut due = began;
        loop {
            let now = Instant::now();
            let may_skip = now >= began + ATTEMPT_DELAY;
            if now >= due
                && let Some((place, address)) = attempts.next(!may_skip)
            {
                dialing.start((place, address), open(address));
                due = now + ATTEMPT_DELAY;
                continue;
            }
            if attempts.is_empty() && dialing.0.is_empty() && lookups.0.is_empty() {
                break;
            }
            let wake = if now >= due { began + ATTEMPT_DELAY } else { due };
            tokio::select! {
                biased;
                (place, found) = lookups.next() => match found {
                    Ok(addresses) => {
                        failures.resolved(place, &addresses);
                        attempts.found(place, addresses);
                    }
                    Err(error) => {
                        failures.add(place, None, format!("no such host: {error}"));
                        attempts.found(place, Vec::new());
                    }
                },
                ((place, address), opened) = dialing.next() => {
                    let failure = match opened {
                        Ok(connection) => {
                            for ((place, address), _) in dialing.0.drain(..).rev() {
                                attempts.put_back(place, address);
                            }
                            let reached = Reached { connection, place: start.saturating_add(place) };
                            match timeout_at(deadline, finish(reached)).await {
                                Ok(Ok(made)) => return Ok(made),
                                Ok(Err(failure)) => failure,
                                Err(_) => ConnectFailure::Unreachable(no_answer(search.timeout)),
                            }
                        }
                        Err(failure) => failure,
                    };
                    if failures.count(place, address, failure) {
                        attempts.give_up(place);
                        dialing.0.retain(|((other, _), _)| *other != place);
                    }
                    due = Instant::now();
                }
                () = sleep_until(wake), if !attempts.is_empty() => {}
                () = sleep_until(deadline) => {
                    for ((place, address), _) in &dialing.0 {
                        failures.add(*place, Some(*address), no_answer(search.timeout));
                    }
                    for (place, _) in &lookups.0 {
                        failures.add(*place, None, "timed out resolving the name".into());
                    }
                    break;
                }
            }
        }
        let refusal = failures.refusal.take();
        Err(refusal.unwrap_or_else(|| ClientError::Unreachable {
            server: self.server.clone(),
            cause: failures.text(),
        }))
    }
}

fn no_answer(waited: Duration) -> String {
    format!("no answer in {waited:?}")
}

impl<'a> Failures<'a> {
    fn new(servers: &'a [ServerAddress]) -> Self {
        Self { servers, causes: vec![Vec::new(); servers.len()], here: Vec::new(), refusal: None }
    }

    /// Notes a name that leads to this host.
    fn resolved(&mut self, place: usize, addresses: &[SocketAddr]) {
        let Some(ServerAddress { host, .. }) = self.servers.get(place) else { return };
        if names_this_host(host, addresses) {
            self.here.push(place);
        }
    }

    fn add(&mut self, place: usize, address: Option<SocketAddr>, cause: String) {
        let (Some(server), Some(causes)) = (self.servers.get(place), self.causes.get_mut(place))
        else {
            return;
        };
        // The message contains the address already if the user gave it.
        let given = server.to_string();
        causes.push(match address.map(|address| address.to_string()) {
            Some(address) if address != given => format!("{address}: {cause}"),
            _ => cause,
        });
    }

    /// Notes why an attempt failed. Whether the server at this place is not to be asked again.
    fn count(&mut self, place: usize, address: SocketAddr, failure: ConnectFailure) -> bool {
        let Some(server) = self.servers.get(place).cloned() else { return true };
        let refusal = match failure {
            ConnectFailure::Unreachable(cause) => {
                self.add(place, Some(address), cause);
                return false;
            }
            ConnectFailure::Auth(cause) => ClientError::Auth { server, cause },
            ConnectFailure::TooMany(cause) => ClientError::TooManySessions { server, cause },
            ConnectFailure::NotPaired(cause) => ClientError::NotPaired { server, cause },
        };
        self.refusal.get_or_insert(refusal);
        true
    }

    /// Why no entry could be reached.
    fn text(&self) -> String {
        let is_one = self.servers.len() == 1;
        let of_each = self.servers.iter().zip(&self.causes).enumerate();
        let texts = of_each.filter(|(_, (_, causes))| !causes.is_empty()).map(
            |(place, (server, causes))| {
                let server = if is_one { String::new() } else { format!("{server}: ") };
                let here = self.here.contains(&place);
                let of_name = if here { "the name resolves to this host: " } else { "" };
                format!("{server}{of_name}{}", causes.join("; "))
            },
        );
        texts.collect::<Vec<_>>().join("; ")
    }
}
