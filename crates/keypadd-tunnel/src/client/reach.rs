//! Reaches a server at one of its addresses: resolves them all, starts handshakes one after the
//! other, and uses the first that completes (RFC 8305). A service is replaced by its targets (RFC
//! 2782). Knows nothing of what follows a handshake.

use std::{
    future::poll_fn, io, net::SocketAddr, ops::Range, sync::Arc, task::Poll, time::Duration,
};

use futures_util::future::BoxFuture;
use keypadd_transport::{Connection, ServerId};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Client, attempts::Attempts};
use crate::{
    addresses::{servers::ServerEntry, target::ServerAddress},
    error::{
        AuthError, ClientError, ConnectFailure,
        unreachable::{Cause, Failure, Tried},
    },
    net::{
        dns::{SrvError, targets::SrvTarget},
        lookup::{Lookups, names_this_host, resolve, resolve_service},
        source::plain,
    },
};

/// Time from one attempt to the next (RFC 8305, section 5: Connection Attempt Delay), and how long
/// a later candidate waits for the names of those before it.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// How long a server may take for its hello while other addresses wait: longer than a busy server
/// takes. At most half of the time that is left.
const HELLO_TIMEOUT: Duration = Duration::from_secs(3);

/// Where to look for a server.
#[derive(Clone, Debug)]
pub(super) struct Search {
    /// For all attempts together.
    pub(super) timeout: Duration,
    /// If given, tries only entries preferred to this place.
    pub(super) before: Option<ListPlace>,
    /// The address to try first, with its place.
    pub(super) begin_at: Option<(ListPlace, SocketAddr)>,
    /// An address not to try.
    pub(super) avoid: Option<SocketAddr>,
}

/// Where in the server's list an address was found.
#[derive(Clone, Debug)]
pub(super) struct ListPlace {
    /// The entry.
    entry: usize,
    /// How many lower priorities the entry's service has, if it is one.
    rank: usize,
    /// The target of the service.
    pub(super) target: Option<Arc<ServerAddress>>,
    /// Which of the servers it is that share the address, if a balancer is there.
    pub(super) home: Option<ServerId>,
}

impl ListPlace {
    /// A place to which everything in the list is preferred.
    pub(super) const UNKNOWN: Self = Self { entry: usize::MAX, rank: 0, target: None, home: None };

    fn of_entry(entry: usize) -> Self {
        Self { entry, rank: 0, target: None, home: None }
    }

    /// Whether nothing is preferred to it.
    pub(super) fn is_first(&self) -> bool {
        (self.entry, self.rank) == (0, 0)
    }

    fn is_preferred_to(&self, other: &Self) -> bool {
        (self.entry, self.rank) < (other.entry, other.rank)
    }
}

/// A handshake that has completed.
#[derive(Clone, Debug)]
pub(super) struct Reached {
    pub(super) connection: Connection,
    pub(super) place: ListPlace,
    /// Timeout of its hello, if other addresses wait.
    pub(super) hello_timeout: Option<Duration>,
}

/// What a lookup has found.
enum Found {
    Addresses(io::Result<Vec<SocketAddr>>),
    Targets(Result<Vec<SrvTarget>, SrvError>),
}

/// An entry of the list, or a target of a service there.
struct Candidate {
    server: ServerEntry,
    place: ListPlace,
    /// Why it could not be reached.
    failures: Vec<Failure>,
    /// Its name leads to this host.
    is_here: bool,
}

/// Operations in progress, each with a name; all are dropped together.
struct Running<'a, K, T>(Vec<(K, BoxFuture<'a, T>)>);

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

/// What is left to try, by candidate of [`Attempts`], and what has failed.
struct Candidates {
    all: Vec<Candidate>,
    /// The first mutual rejection.
    refusal: Option<ClientError>,
}

impl Client {
    /// All entries of the server's list.
    pub(super) fn everywhere(&self, timeout: Duration) -> Search {
        Search { timeout, before: None, begin_at: None, avoid: None }
    }

    /// Resolves the server's names and runs `attempt` at their addresses, in the order of
    /// [`Attempts`], until one succeeds. Handshakes may overlap, but only one of them at a time is
    /// finished: the others are then given up. Returns the result immediately. If one end rejects
    /// the other, its other addresses are not tried, unless a server did not prove what it resumes.
    /// A server that has forgotten a handshake is asked again once all others have failed.
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
        let is_wanted = |place: &ListPlace| {
            search.before.as_ref().is_none_or(|before| place.is_preferred_to(before))
        };
        let mut candidates = Candidates { all: Vec::new(), refusal: None };
        let mut lookups = Running(Vec::new());
        for (entry, server) in self.server.all().iter().enumerate() {
            let place = ListPlace::of_entry(entry);
            if is_wanted(&place) {
                lookups.start(
                    candidates.add(server.clone(), place),
                    look_up(server.clone(), &self.lookups),
                );
            }
        }
        let mut attempts = Attempts::new(candidates.all.len(), search.avoid);
        if let Some((place, address)) = &search.begin_at {
            attempts.begin_at(place.entry, *address);
        }
        let mut dialing = Running(Vec::new());
        let mut forgotten = Vec::new();
        let mut due = began;
        // When a candidate no longer waits for the names of those before it.
        let mut skip_at = began + ATTEMPT_DELAY;
        loop {
            let now = Instant::now();
            if now >= due
                && let Some((nth, address)) = attempts.next(now < skip_at)
            {
                dialing.start((nth, address), open(address));
                due = now + ATTEMPT_DELAY;
                continue;
            }
            if attempts.is_empty() && dialing.0.is_empty() && lookups.0.is_empty() {
                if forgotten.is_empty() || candidates.refusal.is_some() {
                    break;
                }
                for (nth, address) in forgotten.drain(..) {
                    attempts.put_back(nth, address);
                }
                due = now + ATTEMPT_DELAY;
            }
            let wake = if now >= due { skip_at } else { due };
            tokio::select! {
                biased;
                (nth, found) = lookups.next() => match found {
                    Found::Addresses(Ok(mut addresses)) => {
                        let any = addresses.first().copied();
                        addresses.retain(|address| self.server.uses(address));
                        if addresses.is_empty() && any.is_some() {
                            candidates.failed(nth, any, Cause::OtherFamily);
                        }
                        candidates.resolved(nth, &addresses);
                        attempts.found(nth, addresses);
                    }
                    Found::Addresses(Err(error)) => {
                        candidates.failed(nth, None, Cause::NoSuchHost(error.to_string()));
                        attempts.found(nth, Vec::new());
                    }
                    Found::Targets(Ok(targets)) => {
                        let added = candidates.expand(nth, targets, is_wanted);
                        attempts.expand(nth, added.len());
                        for nth in added {
                            if let Some(Candidate { server, .. }) = candidates.all.get(nth) {
                                lookups.start(nth, look_up(server.clone(), &self.lookups));
                            }
                        }
                        skip_at = Instant::now() + ATTEMPT_DELAY;
                    }
                    Found::Targets(Err(error)) => {
                        candidates.failed(nth, None, Cause::Srv(error));
                        attempts.found(nth, Vec::new());
                    }
                },
                ((nth, address), opened) = dialing.next() => {
                    let failure = match opened {
                        Ok(connection) => {
                            for ((nth, address), _) in dialing.0.drain(..).rev() {
                                attempts.put_back(nth, address);
                            }
                            let place = match &search.begin_at {
                                Some((place, first)) if plain(*first) == address => place.clone(),
                                _ => candidates.place(nth),
                            };
                            let others = !(attempts.is_empty() && lookups.0.is_empty());
                            let left = deadline.saturating_duration_since(Instant::now());
                            let hello_timeout = others.then(|| HELLO_TIMEOUT.min(left / 2));
                            let reached = Reached { connection, place, hello_timeout };
                            match timeout_at(deadline, finish(reached)).await {
                                Ok(Ok(made)) => return Ok(made),
                                Ok(Err(failure)) => failure,
                                Err(_) => {
                                    ConnectFailure::Unreachable(Cause::Silent(search.timeout))
                                }
                            }
                        }
                        Err(failure) => failure,
                    };
                    if matches!(failure, ConnectFailure::Unreachable(Cause::Forgotten)) {
                        forgotten.push((nth, address));
                    }
                    if candidates.count(nth, address, failure) {
                        attempts.give_up(nth);
                        dialing.0.retain(|((other, _), _)| *other != nth);
                    }
                    due = Instant::now();
                }
                () = sleep_until(wake), if !attempts.is_empty() => {}
                () = sleep_until(deadline) => {
                    for ((nth, address), _) in &dialing.0 {
                        candidates.failed(*nth, Some(*address), Cause::Silent(search.timeout));
                    }
                    for (nth, _) in &lookups.0 {
                        candidates.failed(*nth, None, Cause::SlowLookup);
                    }
                    break;
                }
            }
        }
        let refusal = candidates.refusal.take();
        Err(refusal.unwrap_or_else(|| ClientError::Unreachable {
            server: self.server.clone(),
            tried: candidates.tried(),
        }))
    }
}

/// Resolves the names of an entry.
async fn look_up(server: ServerEntry, lookups: &Lookups) -> Found {
    match server {
        ServerEntry::Address(ServerAddress { host, port }) => {
            Found::Addresses(resolve(&host, port, lookups).await)
        }
        ServerEntry::Service(name) => Found::Targets(resolve_service(&name, lookups).await),
    }
}

impl Candidates {
    /// Numbers candidates as [`Attempts`] does.
    fn add(&mut self, server: ServerEntry, place: ListPlace) -> usize {
        self.all.push(Candidate { server, place, failures: Vec::new(), is_here: false });
        self.all.len() - 1
    }

    /// Adds those targets of a service that are wanted.
    fn expand(
        &mut self,
        nth: usize,
        targets: Vec<SrvTarget>,
        is_wanted: impl Fn(&ListPlace) -> bool,
    ) -> Range<usize> {
        let (ListPlace { entry, .. }, before) = (self.place(nth), self.all.len());
        for SrvTarget { address, rank } in targets {
            let target = Some(Arc::new(address.clone()));
            let place = ListPlace { rank, target, ..ListPlace::of_entry(entry) };
            if is_wanted(&place) {
                self.add(ServerEntry::Address(address), place);
            }
        }
        before..self.all.len()
    }

    fn place(&self, nth: usize) -> ListPlace {
        self.all.get(nth).map_or(ListPlace::UNKNOWN, |candidate| candidate.place.clone())
    }

    /// Records whether a name leads to this host.
    fn resolved(&mut self, nth: usize, addresses: &[SocketAddr]) {
        if let Some(candidate) = self.all.get_mut(nth)
            && let ServerEntry::Address(ServerAddress { host, .. }) = &candidate.server
        {
            candidate.is_here = names_this_host(host, addresses);
        }
    }

    fn failed(&mut self, nth: usize, address: Option<SocketAddr>, cause: Cause) {
        let Some(Candidate { server, failures, .. }) = self.all.get_mut(nth) else { return };
        // The message already contains the address if the user gave it.
        let given = server.to_string();
        let failure = Failure { at: address.filter(|it| it.to_string() != given), cause };
        // Of an address that is tried again.
        if !failures.contains(&failure) {
            failures.push(failure);
        }
    }

    /// Records why an attempt failed. Returns whether to give up on this candidate.
    fn count(&mut self, nth: usize, address: SocketAddr, failure: ConnectFailure) -> bool {
        let server = match self.all.get(nth).map(|candidate| &candidate.server) {
            Some(ServerEntry::Address(server)) => server.clone(),
            _ => address.into(),
        };
        match failure.refusal(server) {
            Ok(refusal) => {
                // Somebody may answer at this address alone.
                let is_here =
                    matches!(refusal, ClientError::Auth { cause: AuthError::NotResumed, .. });
                self.refusal.get_or_insert(refusal);
                !is_here
            }
            Err(cause) => {
                self.failed(nth, Some(address), cause);
                false
            }
        }
    }

    /// What was tried and failed.
    fn tried(self) -> Vec<Tried> {
        let is_one = self.all.len() == 1;
        let failed = self.all.into_iter().filter(|candidate| !candidate.failures.is_empty());
        failed
            .map(|Candidate { server, failures, is_here, .. }| Tried {
                server: (!is_one).then_some(server),
                is_here,
                failures,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use keypadd_transport::ConnectionError;

    use super::*;
    use crate::addresses::servers::ServerAddresses;

    /// What a user reads when these entries could not be reached.
    fn shown(servers: &str, fail: impl FnOnce(&mut Candidates)) -> String {
        let mut candidates = Candidates { all: Vec::new(), refusal: None };
        let server: ServerAddresses = servers.parse().unwrap();
        for (entry, server) in server.all().iter().enumerate() {
            candidates.add(server.clone(), ListPlace::of_entry(entry));
        }
        fail(&mut candidates);
        ClientError::Unreachable { server, tried: candidates.tried() }.to_string()
    }

    const TIMEOUT: Cause = Cause::Connection(ConnectionError::TimedOut);

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    fn unreachable(candidates: &mut Candidates, nth: usize, address: &str, cause: Cause) {
        let failure = ConnectFailure::Unreachable(cause);
        assert!(!candidates.count(nth, at(address), failure));
    }

    #[test]
    fn what_a_user_reads_of_one_server_that_cannot_be_reached_is_as_recorded() {
        let text = shown("192.0.2.1", |candidates| {
            unreachable(candidates, 0, "192.0.2.1:4433", Cause::Silent(Duration::from_secs(2)));
        });
        assert_eq!(text, "cannot reach 192.0.2.1:4433: no answer in 2s");
        let text = shown("a.example", |candidates| {
            unreachable(candidates, 0, "192.0.2.1:4433", Cause::Silent(Duration::from_secs(2)));
            unreachable(candidates, 0, "192.0.2.2:4433", TIMEOUT);
            // Of an address that is tried again.
            unreachable(candidates, 0, "192.0.2.1:4433", Cause::Silent(Duration::from_secs(2)));
        });
        let expected = "192.0.2.1:4433: no answer in 2s; 192.0.2.2:4433: timeout";
        assert_eq!(text, format!("cannot reach a.example:4433: {expected}"));
        let text = shown("a.example", |candidates| {
            candidates.resolved(0, &[at("127.0.1.1:4433")]);
            unreachable(candidates, 0, "127.0.1.1:4433", TIMEOUT);
        });
        let expected = "the name resolves to this host: 127.0.1.1:4433: timeout";
        assert_eq!(text, format!("cannot reach a.example:4433: {expected}"));
        assert_eq!(shown("a.example", |_| ()), "cannot reach a.example:4433: ");
    }

    #[test]
    fn what_a_user_reads_of_several_that_cannot_be_reached_is_as_recorded() {
        let text = shown("a.example,b.example,192.0.2.1", |candidates| {
            candidates.resolved(1, &[at("127.0.1.1:4433")]);
            unreachable(candidates, 2, "192.0.2.1:4433", TIMEOUT);
            unreachable(candidates, 1, "127.0.1.1:4433", TIMEOUT);
            candidates.failed(0, None, Cause::SlowLookup);
        });
        let expected = "cannot reach a.example:4433, b.example:4433, 192.0.2.1:4433: \
                        a.example:4433: timed out resolving the name; \
                        b.example:4433: the name resolves to this host: 127.0.1.1:4433: timeout; \
                        192.0.2.1:4433: timeout";
        assert_eq!(text, expected);
        let text = shown("_keypadd._udp.example.com", |candidates| {
            let target = SrvTarget { address: "a.example".parse().unwrap(), rank: 0 };
            candidates.expand(0, vec![target], |_| true);
            unreachable(candidates, 1, "192.0.2.1:4433", TIMEOUT);
        });
        let expected = "a.example:4433: 192.0.2.1:4433: timeout";
        assert_eq!(text, format!("cannot reach _keypadd._udp.example.com: {expected}"));
    }
}
