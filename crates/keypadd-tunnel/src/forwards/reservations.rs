//! Which session of a server holds which address for a remote forward, and who may take it over.
//!
//! An address belongs to the session that asked first. Another session of the same key gets it when
//! the holder is an older connection of the same run, or has been silent for three seconds after a
//! question; a session of another key never does. Knows sessions and addresses, and binds nothing.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep},
};

use crate::{
    sessions::session::LiveSession,
    spec::socket_path::SocketPath,
    wire::{Frame, ListenCode},
};

/// A holder that sends nothing for this long after a ping has lost its addresses.
const SILENCE: Duration = Duration::from_secs(3);

/// How often its packets are counted meanwhile.
const GLANCE: Duration = Duration::from_millis(50);

/// What can be held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Tcp(SocketAddr),
    Unix(SocketPath),
}

impl Place {
    /// Whether both cannot be bound at once.
    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unix(one), Self::Unix(other)) => one == other,
            (Self::Tcp(one), Self::Tcp(other)) => {
                let every = |ip: IpAddr| ip.is_unspecified();
                one.port() == other.port()
                    && (one.ip() == other.ip() || every(one.ip()) || every(other.ip()))
            }
            _ => false,
        }
    }
}

/// All addresses that are held; clones share one list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published(Arc<Mutex<Holds>>);

#[derive(Debug, Default)]
struct Holds {
    next: u64,
    held: HashMap<u64, Hold>,
}

#[derive(Clone, Debug)]
struct Hold {
    session: Arc<LiveSession>,
    places: Vec<Place>,
    stop: Arc<Notify>,
    /// Closed when the holder is gone.
    gone: watch::Receiver<()>,
}

/// Addresses held; dropped, they are free. The sockets must be closed before.
#[derive(Debug)]
pub(crate) struct Held {
    published: Published,
    number: u64,
    stop: Arc<Notify>,
    _here: watch::Sender<()>,
}

impl Held {
    /// Completes when another session takes the addresses over.
    pub(crate) async fn taken(&self) {
        self.stop.notified().await;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.published.holds().held.remove(&self.number);
    }
}

impl Published {
    /// Holds these addresses for `session`, once whoever holds one of them now has let go of it.
    ///
    /// # Errors
    /// [`ListenCode::InUse`]: a holder has a better right.
    pub(crate) async fn hold(
        &self,
        session: &Arc<LiveSession>,
        places: Vec<Place>,
    ) -> Result<Held, ListenCode> {
        loop {
            let mut rival = match self.hold_if_free(session, &places) {
                Ok(held) => return Ok(held),
                Err(rival) => rival,
            };
            if !may_take(session, &rival.session).await {
                return Err(ListenCode::InUse);
            }
            rival.stop.notify_one();
            while rival.gone.changed().await.is_ok() {}
        }
    }

    fn hold_if_free(
        &self,
        session: &Arc<LiveSession>,
        places: &[Place],
    ) -> Result<Held, Box<Hold>> {
        let mut holds = self.holds();
        let overlaps = |hold: &&Hold| {
            hold.places.iter().any(|held| places.iter().any(|place| held.overlaps(place)))
        };
        if let Some(rival) = holds.held.values().find(overlaps) {
            return Err(Box::new(rival.clone()));
        }
        let number = holds.next;
        holds.next += 1;
        let (here, gone) = watch::channel(());
        let stop = Arc::new(Notify::new());
        let (session, places) = (Arc::clone(session), places.to_vec());
        holds.held.insert(number, Hold { session, places, stop: Arc::clone(&stop), gone });
        Ok(Held { published: self.clone(), number, stop, _here: here })
    }

    /// A panic cannot leave the list half changed.
    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a session may have what another one holds.
async fn may_take(newcomer: &LiveSession, holder: &LiveSession) -> bool {
    if newcomer.key() != holder.key() || newcomer.id <= holder.id {
        return false;
    }
    newcomer.instance() == holder.instance() || is_silent(holder).await
}

/// Asks a session for a sign of life, and whether none comes in time. Any packet is one.
async fn is_silent(session: &LiveSession) -> bool {
    let datagrams = || session.connection.stats().udp_rx.datagrams;
    let before = datagrams();
    // Where many frames wait to be sent already, they ask as well as this one.
    session.say_if_room(Frame::Ping);
    let deadline = Instant::now() + SILENCE;
    while !session.has_ended() {
        if datagrams() != before {
            return false;
        }
        if Instant::now() >= deadline {
            return true;
        }
        sleep(GLANCE).await;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_overlaps_each_of_the_same_port() {
        let tcp = |text: &str| Place::Tcp(text.parse().unwrap());
        let unix = |text: &str| Place::Unix(text.parse().unwrap());
        for (one, other, overlap) in [
            (tcp("127.0.0.1:80"), tcp("127.0.0.1:80"), true),
            (tcp("127.0.0.1:80"), tcp("127.0.0.1:81"), false),
            (tcp("127.0.0.1:80"), tcp("[::1]:80"), false),
            (tcp("[::]:80"), tcp("127.0.0.1:80"), true),
            (tcp("10.0.0.1:80"), tcp("0.0.0.0:80"), true),
            (unix("/a"), unix("/a"), true),
            (unix("/a"), unix("/b"), false),
            (unix("/a"), tcp("127.0.0.1:80"), false),
        ] {
            assert_eq!(one.overlaps(&other), overlap, "{one:?} {other:?}");
            assert_eq!(other.overlaps(&one), overlap);
        }
    }
}
