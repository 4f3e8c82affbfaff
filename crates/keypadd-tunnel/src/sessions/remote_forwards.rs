//! The client's end of remote forwards: what one session has asked its server to listen for, under
//! which numbers, and what became of it. A stream of the server's is connected to the goal that was
//! registered under its number here, or to nothing (invariant I10).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::sync::watch;
use tracing::{info, warn};

use crate::{
    permits::listen::ListenPermit,
    spec::forward::{Forward, RemoteForward},
    wire::{Frame, ListenCode},
};

/// How often the server is asked again for what it has refused: its permits may change, and so may who
/// else listens there.
pub(crate) const ASK_AGAIN: Duration = Duration::from_secs(10);

/// The remote forwards of one session.
#[derive(Debug, Default)]
pub(crate) struct Remotes(watch::Sender<Book>);

#[derive(Debug, Default)]
struct Book {
    next: u16,
    asked: BTreeMap<u16, Asked>,
    /// Answers are logged, since nobody waits for them.
    loud: bool,
}

#[derive(Debug)]
struct Asked {
    forward: Arc<RemoteForward>,
    /// The last answer.
    outcome: Option<Outcome>,
    /// Whether another one is to come.
    pending: bool,
}

/// The TCP port that the server listens on (0 for a unix socket), or why it does not.
pub(crate) type Outcome = Result<u16, ListenCode>;

impl Book {
    /// A number that stands for nothing.
    fn draw(&mut self) -> u16 {
        while self.asked.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let id = self.next;
        self.next = id.wrapping_add(1);
        id
    }
}

impl Remotes {
    /// Makes these the remote forwards of the session: the frames that tell the server.
    pub(crate) fn set(&self, wanted: &[RemoteForward]) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.0.send_modify(|book| {
            let mut new: Vec<_> = wanted.iter().collect();
            book.asked.retain(|&id, asked| {
                let kept = new.iter().position(|&forward| *forward == *asked.forward);
                match kept {
                    Some(kept) => drop(new.remove(kept)),
                    None => frames.push(Frame::Unlisten { id }),
                }
                kept.is_some()
            });
            for forward in new {
                let id = book.draw();
                frames.push(Frame::Listen { id, listen: forward.listen.clone() });
                let forward = Arc::new(forward.clone());
                book.asked.insert(id, Asked { forward, outcome: None, pending: true });
            }
        });
        frames
    }

    /// The frames that ask again for what was refused, under another number: the server may not have
    /// done with the old one.
    pub(crate) fn ask_again(&self) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.0.send_modify(|book| {
            let refused = |asked: &Asked| !asked.pending && matches!(asked.outcome, Some(Err(_)));
            let asked = book.asked.iter().filter(|(_, asked)| refused(asked));
            let ids: Vec<u16> = asked.map(|(&id, _)| id).collect();
            for old in ids {
                let id = book.draw();
                let Some(mut asked) = book.asked.remove(&old) else { continue };
                asked.pending = true;
                frames.push(Frame::Listen { id, listen: asked.forward.listen.clone() });
                book.asked.insert(id, asked);
            }
        });
        frames
    }

    /// The forward with this number.
    pub(crate) fn find(&self, id: u16) -> Option<Arc<RemoteForward>> {
        self.0.borrow().asked.get(&id).map(|asked| Arc::clone(&asked.forward))
    }

    /// Completes when the server has answered for each of them.
    pub(crate) async fn settled(&self) {
        let answered = |book: &Book| book.asked.values().all(|asked| asked.outcome.is_some());
        // The sender is ours: it lives.
        let _ = self.0.subscribe().wait_for(answered).await;
    }

    /// What the server has answered, in the order in which it was asked.
    pub(crate) fn outcomes(&self) -> Vec<(RemoteForward, Outcome)> {
        let book = self.0.borrow();
        let answered = book.asked.values().filter_map(|Asked { forward, outcome, .. }| {
            outcome.map(|outcome| (RemoteForward::clone(forward), outcome))
        });
        answered.collect()
    }

    /// The forwards that the server does not listen for, as figures name them, and why.
    pub(crate) fn refused(&self) -> BTreeMap<String, ListenCode> {
        let refused = self.outcomes().into_iter().filter_map(|(forward, outcome)| {
            Some((Forward::Remote(forward).to_string(), outcome.err()?))
        });
        refused.collect()
    }

    /// Logs what was refused so far, and from now on every answer that is another than the one before.
    pub(crate) fn announce(&self) {
        self.0.send_modify(|book| book.loud = true);
        for (forward, outcome) in self.outcomes() {
            if outcome.is_err() {
                log(&forward, outcome);
            }
        }
    }

    /// Takes in an answer of the server's.
    pub(crate) fn heard(&self, id: u16, outcome: Outcome) {
        let mut to_log = None;
        self.0.send_modify(|book| {
            // An answer to what was taken back meanwhile is of no use.
            if let Some(asked) = book.asked.get_mut(&id) {
                let news = asked.outcome.replace(outcome) != Some(outcome);
                asked.pending = false;
                to_log = (news && book.loud).then(|| Arc::clone(&asked.forward));
            }
        });
        if let Some(forward) = to_log {
            log(&forward, outcome);
        }
    }
}

fn log(forward: &RemoteForward, outcome: Outcome) {
    let name = Forward::Remote(forward.clone());
    match outcome {
        Ok(port) => info!(forward = %name, port, "the server listens"),
        Err(code @ ListenCode::NotPermitted) => {
            let permit = ListenPermit::for_listen(&forward.listen);
            warn!(forward = %name, %code, "the server does not listen; there: --permit-listen {permit}");
        }
        Err(code) => warn!(
            forward = %name, %code,
            "the server does not listen; it is asked again every {} s", ASK_AGAIN.as_secs()
        ),
    }
}
