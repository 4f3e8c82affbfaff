//! Tracks the remote forwards (`-R`) that a client has asked its server for, by number.
//!
//! A stream from the server is connected to the target registered here under the number that it
//! names, or refused (invariant I10).

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::sync::watch;
use tracing::{info, warn};

use crate::{
    addresses::forward::{Forward, ProxyHeaders, RemoteForward},
    permits::listen::ListenPermit,
    wire::{Frame, ListenCode},
};

/// How often a refused remote forward is requested again: the server's permits may change, and the
/// address may become free.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The remote forwards of one session.
#[derive(Debug, Default)]
pub(crate) struct RemoteForwards(watch::Sender<Requests>);

#[derive(Debug, Default)]
struct Requests {
    /// How many numbers were drawn for each forward, by its text.
    drawn: BTreeMap<String, u32>,
    by_id: BTreeMap<u16, Request>,
    /// Frames for the server, which may be slow to take them.
    unsent: VecDeque<Frame>,
    /// Whether answers are logged. The first answers are not: `connect` reports them.
    log_answers: bool,
}

#[derive(Clone, Debug)]
struct Request {
    /// Its place in lists.
    order: usize,
    forward: Arc<RemoteForward>,
    headers: ProxyHeaders,
    /// The last answer.
    outcome: Option<Outcome>,
    /// Whether an answer is outstanding.
    pending: bool,
}

/// The TCP port that the server listens on (0 for a unix socket), or why it does not listen.
pub(crate) type Outcome = Result<u16, ListenCode>;

impl Request {
    fn frame(&self, id: u16) -> Frame {
        Frame::Listen { id, listen: self.forward.listen.clone(), headers: self.headers }
    }
}

impl Requests {
    /// Draws a number for a forward that is not in use. The first in a session is the same in every
    /// session and process, because a server that goes on with a listener knows it by its number.
    /// Each further one differs.
    fn draw_id(&mut self, forward: &RemoteForward) -> u16 {
        let text = forward.to_string();
        let drawn = self.drawn.entry(text.clone()).or_default();
        loop {
            let id = number_of(&text, *drawn);
            *drawn = drawn.wrapping_add(1);
            if !self.by_id.contains_key(&id) {
                return id;
            }
        }
    }

    fn next_order(&self) -> usize {
        self.by_id.values().map(|request| request.order + 1).max().unwrap_or(0)
    }

    fn request(&mut self, id: u16, request: Request) {
        self.unsent.push_back(request.frame(id));
        self.by_id.insert(id, request);
    }
}

/// The number that is drawn `nth` for a forward with this text (FNV-1a, folded).
fn number_of(text: &str, nth: u32) -> u16 {
    let bytes = text.bytes().chain(nth.to_be_bytes());
    let hash = bytes
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash >> 16) as u16 ^ hash as u16
}

impl RemoteForwards {
    /// Sets the remote forwards of the session, and requests what is new. Those that had other
    /// headers are requested anew.
    pub(crate) fn set(&self, wanted: &[RemoteForward], headers: ProxyHeaders) {
        self.0.send_modify(|requests| {
            let mut new: Vec<_> = wanted.iter().collect();
            let Requests { by_id, unsent, .. } = requests;
            by_id.retain(|&id, request| {
                let same = |&forward: &&RemoteForward| *forward == *request.forward;
                let kept = new.iter().position(same).filter(|_| headers == request.headers);
                match kept {
                    Some(kept) => drop(new.remove(kept)),
                    None => unsent.push_back(Frame::Unlisten { id }),
                }
                kept.is_some()
            });
            for forward in new {
                let id = requests.draw_id(forward);
                let request = Request {
                    order: requests.next_order(),
                    forward: Arc::new(forward.clone()),
                    headers,
                    outcome: None,
                    pending: true,
                };
                requests.request(id, request);
            }
        });
    }

    /// Goes on with those of another session, under their numbers.
    pub(crate) fn continue_from(&self, other: &Self) {
        let other = other.0.borrow();
        self.0.send_modify(|requests| {
            (requests.drawn, requests.log_answers) = (other.drawn.clone(), other.log_answers);
            for (&id, request) in &other.by_id {
                requests.request(id, Request { pending: true, ..request.clone() });
            }
        });
    }

    /// Requests refused forwards again. Each gets a new number, because the server may still be
    /// cleaning up the old one.
    pub(crate) fn retry_refused(&self) {
        self.0.send_modify(|requests| {
            let refused =
                |request: &Request| !request.pending && matches!(request.outcome, Some(Err(_)));
            let to_retry = requests.by_id.iter().filter(|(_, request)| refused(request));
            let ids: Vec<u16> = to_retry.map(|(&id, _)| id).collect();
            for old in ids {
                let Some(mut request) = requests.by_id.remove(&old) else { continue };
                let id = requests.draw_id(&request.forward);
                request.pending = true;
                requests.request(id, request);
            }
        });
    }

    /// Waits for the next frame to send to the server.
    pub(crate) async fn unsent(&self) -> Frame {
        let mut requests = self.0.subscribe();
        loop {
            let unsent = requests.borrow_and_update().unsent.front().cloned();
            match unsent {
                Some(frame) => return frame,
                // Cannot fail: the sender is this one.
                None => drop(requests.changed().await),
            }
        }
    }

    /// The frame that [`Self::unsent`] returned has been sent.
    pub(crate) fn sent(&self) {
        self.0.send_modify(|requests| drop(requests.unsent.pop_front()));
    }

    /// Waits until all frames are sent.
    pub(crate) async fn all_sent(&self) {
        let _ = self.0.subscribe().wait_for(|requests| requests.unsent.is_empty()).await;
    }

    /// Finds the forward with this number.
    pub(crate) fn find(&self, id: u16) -> Option<Arc<RemoteForward>> {
        self.0.borrow().by_id.get(&id).map(|request| Arc::clone(&request.forward))
    }

    /// Waits until the server has answered every request once.
    pub(crate) async fn settled(&self) {
        let answered =
            |requests: &Requests| requests.by_id.values().all(|request| request.outcome.is_some());
        // Cannot fail: the sender is this one.
        let _ = self.0.subscribe().wait_for(answered).await;
    }

    /// Waits for the server's next answer to this forward; `None` if it is withdrawn.
    pub(crate) async fn answer(&self, forward: &RemoteForward) -> Option<Outcome> {
        let mut requests = self.0.subscribe();
        let is_known = |requests: &Requests| {
            let request = requests.by_id.values().find(|request| *request.forward == *forward);
            request.is_none_or(|request| !request.pending)
        };
        // Cannot fail: the sender is this one.
        let requests = requests.wait_for(is_known).await.ok()?;
        requests.by_id.values().find(|request| *request.forward == *forward)?.outcome
    }

    /// The answers of the server, by number.
    pub(crate) fn outcomes(&self) -> Vec<(RemoteForward, Outcome)> {
        let requests = self.0.borrow();
        let mut requests: Vec<_> = requests.by_id.values().collect();
        requests.sort_unstable_by_key(|request| request.order);
        let answered = requests.into_iter().filter_map(|Request { forward, outcome, .. }| {
            outcome.map(|outcome| (RemoteForward::clone(forward), outcome))
        });
        answered.collect()
    }

    /// The refused forwards, named as in the status, and why each was refused.
    pub(crate) fn refused(&self) -> BTreeMap<String, ListenCode> {
        let refused = self.outcomes().into_iter().filter_map(|(forward, outcome)| {
            Some((Forward::Remote(forward).to_string(), outcome.err()?))
        });
        refused.collect()
    }

    /// Logs the refusals so far, and from now on every answer that differs from the one before;
    /// each if `may_log`.
    pub(crate) fn start_logging(&self, may_log: impl Fn() -> bool) {
        self.0.send_modify(|requests| requests.log_answers = true);
        for (forward, outcome) in self.outcomes() {
            if outcome.is_err() && may_log() {
                log(&forward, outcome);
            }
        }
    }

    /// Records an answer of the server. Logs one that differs from the last, if `may_log`.
    pub(crate) fn answered(&self, id: u16, outcome: Outcome, may_log: impl FnOnce() -> bool) {
        let mut to_log = None;
        self.0.send_modify(|requests| {
            // The request may have been withdrawn meanwhile.
            if let Some(request) = requests.by_id.get_mut(&id) {
                let changed = request.outcome.replace(outcome) != Some(outcome);
                request.pending = false;
                to_log = (changed && requests.log_answers).then(|| Arc::clone(&request.forward));
            }
        });
        if let Some(forward) = to_log.filter(|_| may_log()) {
            log(&forward, outcome);
        }
    }
}

fn log(forward: &RemoteForward, outcome: Outcome) {
    let name = Forward::Remote(forward.clone());
    match outcome {
        Ok(port) => info!(forward = %name, port, "remote forward established"),
        Err(code @ ListenCode::NotPermitted) => {
            let permit = ListenPermit::for_listen(&forward.listen);
            warn!(
                forward = %name, %code,
                "remote forward failed; to permit it on the server: --permit-listen {permit}"
            );
        }
        Err(code) => warn!(
            forward = %name, %code,
            "remote forward failed; retrying every {} s", RETRY_INTERVAL.as_secs()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forward_has_its_number_whatever_was_there_before_it_and_never_twice() {
        let forward = |text: &str| text.parse::<RemoteForward>().unwrap();
        let (a, b) = (forward("0:localhost:22"), forward("0:localhost:80"));
        let number = |forwards: &RemoteForwards, wanted: &RemoteForward| {
            let requests = forwards.0.borrow();
            *requests.by_id.iter().find(|(_, request)| *request.forward == *wanted).unwrap().0
        };
        let (one, other) = (RemoteForwards::default(), RemoteForwards::default());
        one.set(&[a, b.clone()], ProxyHeaders::default());
        other.set(std::slice::from_ref(&b), ProxyHeaders::default());
        assert_eq!(number(&one, &b), number(&other, &b));
        let first = number(&other, &b);
        other.set(&[], ProxyHeaders::default());
        other.set(std::slice::from_ref(&b), ProxyHeaders::default());
        assert_ne!(number(&other, &b), first, "the server may still be closing the first");
    }
}
