//! Registers the sockets of connections with their loop, and says what each socket serves.

use std::{io, sync::Arc};

use mio::{Interest, Registry, Token};
use quinn_proto::StreamId;
use rustc_hash::FxHashMap;

use crate::socket::Socket;

/// A socket registered with a loop; dropping this deregisters it.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) socket: Socket,
    pub(crate) token: Token,
    registry: Arc<Registry>,
}

impl Registered {
    pub(crate) fn new(
        socket: Socket,
        token: Token,
        interest: Interest,
        registry: &Arc<Registry>,
    ) -> io::Result<Self> {
        socket.register(registry, token, interest)?;
        Ok(Self { socket, token, registry: Arc::clone(registry) })
    }

    /// Changes which events are reported. After an error, a few useless events arrive.
    pub(crate) fn set_interest(&self, interest: Interest) {
        let _ = self.socket.reregister(&self.registry, self.token, interest);
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Another descriptor of the same socket would stay registered.
        let _ = self.socket.deregister(&self.registry);
    }
}

/// One connection, for as long as its loop lives; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// `quinn-proto`'s handle, which is reused.
    pub(crate) handle: usize,
    pub(crate) serial: u64,
}

/// What a socket of a connection serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// A socket that is spliced to this stream.
    Stream(StreamId),
    /// A socket with the datagrams of this stream's flow.
    Flow(StreamId),
    /// A socket that receives the datagrams of many flows.
    Listener(u64),
}

/// The sockets of a loop's connections.
pub(crate) struct Sockets {
    /// Shared by all of them: a clone would cost a descriptor.
    registry: Arc<Registry>,
    owners: FxHashMap<Token, (Key, Owner)>,
    /// Tokens are never reused.
    next_token: usize,
}

impl Sockets {
    pub(crate) fn new(registry: Arc<Registry>, first_token: usize) -> Self {
        Self { registry, owners: FxHashMap::default(), next_token: first_token }
    }

    pub(crate) fn registrar(&mut self, key: Key) -> Registrar<'_> {
        Registrar { key, sockets: self }
    }

    pub(crate) fn owner(&self, token: Token) -> Option<(Key, Owner)> {
        self.owners.get(&token).copied()
    }

    pub(crate) fn forget(&mut self, closed: impl Iterator<Item = Token>) {
        for token in closed {
            self.owners.remove(&token);
        }
    }

    /// Forgets the sockets of a connection.
    pub(crate) fn forget_all(&mut self, of: Key) {
        self.owners.retain(|_, (key, _)| *key != of);
    }
}

/// Registers the sockets of one connection with a loop.
pub(crate) struct Registrar<'a> {
    key: Key,
    sockets: &'a mut Sockets,
}

impl Registrar<'_> {
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.sockets.registry
    }

    /// Allocates a token for a socket.
    pub(crate) fn token(&mut self, owner: Owner) -> Token {
        let token = Token(self.sockets.next_token);
        self.sockets.next_token += 1;
        self.sockets.owners.insert(token, (self.key, owner));
        token
    }

    /// Registers the socket of a stream.
    pub(crate) fn register(
        &mut self,
        id: StreamId,
        socket: Socket,
        interest: Interest,
    ) -> io::Result<Arc<Registered>> {
        let token = self.token(Owner::Stream(id));
        match Registered::new(socket, token, interest, self.registry()) {
            Ok(registered) => Ok(Arc::new(registered)),
            Err(error) => {
                self.sockets.owners.remove(&token);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_never_reused_and_lead_to_their_owners_until_these_are_forgotten() {
        let registry = mio::Poll::new().unwrap().registry().try_clone().unwrap();
        let mut sockets = Sockets::new(Arc::new(registry), 2);
        let [one, other] = [0, 1].map(|handle| Key { handle, serial: 0 });
        let owners = [0, 1, 2].map(Owner::Listener);
        let tokens = owners.map(|owner| sockets.registrar(one).token(owner));
        assert_eq!(tokens, [2, 3, 4].map(Token));
        let kept = sockets.registrar(other).token(owners[0]);
        sockets.forget(tokens[..1].iter().copied());
        assert_eq!(sockets.owner(tokens[0]), None);
        assert_eq!(sockets.owner(tokens[1]), Some((one, owners[1])));
        sockets.forget_all(one);
        assert_eq!(tokens.map(|token| sockets.owner(token)), [None; 3]);
        assert_eq!(sockets.owner(kept), Some((other, owners[0])));
        assert_eq!(sockets.registrar(one).token(owners[0]), Token(6));
    }
}
