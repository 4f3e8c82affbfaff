//! Keeps the sockets of forwards that are about to close, so that forwards with the same listen
//! address can reuse them. No other program can take the address in between.

use std::{io, os::fd::AsFd, sync::Arc};

use socket2::SockRef;

use crate::{
    addresses::forward::Forward,
    forwards::listener_group::{Bound, Listener, ListenerGroup},
};

/// The sockets of forwards that are about to close, of one or several clients.
#[derive(Debug, Default)]
pub struct SpareSockets {
    groups: Vec<Spare>,
    /// The addresses of sockets that were taken one by one.
    taken: Vec<Bound>,
}

#[derive(Debug)]
struct Spare {
    /// The client's name.
    owner: String,
    forward: Forward,
    listeners: Arc<ListenerGroup>,
    /// Whether it may no longer be taken as a whole: one of its sockets was taken, or another was
    /// bound beside it.
    is_split: bool,
}

impl SpareSockets {
    pub(crate) fn add(&mut self, owner: &str, forward: Forward, listeners: Arc<ListenerGroup>) {
        self.groups.push(Spare { owner: owner.into(), forward, listeners, is_split: false });
    }

    /// Takes the sockets of this forward: those of this owner, or else of any if they have the same
    /// addresses.
    pub(crate) fn take(&mut self, owner: &str, forward: &Forward) -> Option<Arc<ListenerGroup>> {
        let own = self.take_first(|one| one.owner == owner && one.forward == *forward);
        own.or_else(|| match forward.listens_here() {
            // Each has a port of its own, or its sockets at its own server.
            Some(listen) if !listen.is_any_port() => self.take_first(|one| one.forward == *forward),
            _ => None,
        })
    }

    /// Takes the sockets of this forward, or of one with the same listen address.
    pub(crate) fn take_for(
        &mut self,
        owner: &str,
        forward: &Forward,
    ) -> Option<Arc<ListenerGroup>> {
        let listen = forward.listens_here()?;
        self.take(owner, forward).or_else(|| match listen.is_any_port() {
            true => None,
            false => self.take_first(|one| one.forward.listens_here().as_ref() == Some(&listen)),
        })
    }

    fn take_first(&mut self, is_wanted: impl Fn(&Spare) -> bool) -> Option<Arc<ListenerGroup>> {
        let found = self.groups.iter().position(|one| !one.is_split && is_wanted(one))?;
        Some(self.groups.remove(found).listeners)
    }

    /// Takes the socket that is bound to this address, whatever the forward's listen address is
    /// called.
    fn take_socket(&mut self, wanted: &Bound) -> Option<Arc<Listener>> {
        if self.taken.contains(wanted) {
            return None;
        }
        let (listener, from) = self
            .groups
            .iter_mut()
            .find_map(|one| Some((one.listeners.listener_at(wanted)?, one)))?;
        from.is_split = true;
        self.taken.push(wanted.clone());
        Some(listener)
    }

    /// Returns the listener for this address: a spare one, or one that is bound now.
    pub(crate) fn listener<S: AsFd>(
        &mut self,
        wanted: &Bound,
        bind: impl Fn(bool) -> io::Result<S>,
        listener: impl Fn(S) -> Listener,
    ) -> io::Result<Arc<Listener>> {
        match self.take_socket(wanted) {
            Some(taken) => Ok(taken),
            None => self.bind_beside(wanted, bind).map(|socket| Arc::new(listener(socket))),
        }
    }

    /// Binds a socket. Where only spare ones are in its way, it is bound beside them (SO_REUSEPORT
    /// in socket(7)): `bind` is told whether.
    fn bind_beside<S: AsFd>(
        &mut self,
        wanted: &Bound,
        bind: impl Fn(bool) -> io::Result<S>,
    ) -> io::Result<S> {
        let in_use = match bind(false) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
            other => return other,
        };
        let overlaps = |one: &&mut Spare| one.listeners.overlaps(wanted);
        let mut in_the_way: Vec<_> = self.groups.iter_mut().filter(overlaps).collect();
        if in_the_way.is_empty() || self.taken.iter().any(|one| one.overlaps(wanted)) {
            return Err(in_use);
        }
        let share = |spare: &[&mut Spare], shared| {
            spare.iter().try_for_each(|one| one.listeners.share_ports(shared))
        };
        let bound = share(&in_the_way, true).and_then(|()| bind(true));
        share(&in_the_way, false)?;
        let bound = bound?;
        SockRef::from(&bound).set_reuse_port(false)?;
        in_the_way.iter_mut().for_each(|one| one.is_split = true);
        Ok(bound)
    }
}
