//! Keeps the sockets of forwards that are about to be closed, so that forwards with the same listen address go
//! on with them: in between nobody else can have it.

use std::{io, os::fd::AsFd, sync::Arc};

use socket2::SockRef;

use crate::{
    addresses::forward::{Forward, Listen},
    forwards::listen::{Bound, ListenerGroup},
};

/// The sockets of forwards that are about to be closed, of one or several clients.
#[derive(Debug, Default)]
pub struct SpareSockets(Vec<Spare>);

#[derive(Debug)]
struct Spare {
    forward: Forward,
    listeners: Arc<ListenerGroup>,
    /// Whether another socket is bound beside these: nobody else may go on with them.
    closes: bool,
}

impl SpareSockets {
    pub(crate) fn add(&mut self, forward: Forward, listeners: Arc<ListenerGroup>) {
        self.0.push(Spare { forward, listeners, closes: false });
    }

    /// Takes the sockets of this forward.
    pub(crate) fn take(&mut self, forward: &Forward) -> Option<Arc<ListenerGroup>> {
        self.take_first(|one| one == forward)
    }

    /// Takes the sockets of this forward, or of one with the same listen address.
    pub(crate) fn take_for(&mut self, forward: &Forward) -> Option<Arc<ListenerGroup>> {
        let listen = forward.listens_here()?;
        self.take(forward).or_else(|| match listen {
            // Each may have a port of its own.
            Listen::Tcp { port: 0, .. } | Listen::Udp { port: 0, .. } => None,
            listen => self.take_first(|one| one.listens_here().as_ref() == Some(&listen)),
        })
    }

    fn take_first(&mut self, is_wanted: impl Fn(&Forward) -> bool) -> Option<Arc<ListenerGroup>> {
        let found = self.0.iter().position(|one| !one.closes && is_wanted(&one.forward))?;
        Some(self.0.remove(found).listeners)
    }

    /// Binds a socket. Where only spare ones are in its way, it is bound beside them (SO_REUSEPORT in
    /// socket(7)): `bind` is told whether.
    pub(crate) fn bind_beside<S: AsFd>(
        &mut self,
        wanted: &Bound,
        bind: impl Fn(bool) -> io::Result<S>,
    ) -> io::Result<S> {
        let in_use = match bind(false) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
            other => return other,
        };
        let overlaps = |one: &&mut Spare| one.listeners.overlaps(wanted);
        let mut in_the_way: Vec<_> = self.0.iter_mut().filter(overlaps).collect();
        if in_the_way.is_empty() {
            return Err(in_use);
        }
        let share = |spare: &[&mut Spare], shared| {
            spare.iter().try_for_each(|one| one.listeners.share_ports(shared))
        };
        let bound = share(&in_the_way, true).and_then(|()| bind(true));
        share(&in_the_way, false)?;
        let bound = bound?;
        SockRef::from(&bound).set_reuse_port(false)?;
        in_the_way.iter_mut().for_each(|one| one.closes = true);
        Ok(bound)
    }
}
