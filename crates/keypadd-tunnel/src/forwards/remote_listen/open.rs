//! Binds what a session listens on for its client, if it may, or takes it over from the session
//! before.

use std::{io, net::IpAddr, os::unix::net::UnixListener, sync::Arc, time::Duration};

use tokio::time::timeout;
use tracing::info;

use super::RemoteListeners;
use crate::{
    addresses::{forward::Listen, target::Protocol},
    error::BindError,
    forwards::{
        listen::{addresses_of, bind_tcp, bind_udp, bind_unix},
        listener_group::Bound,
        open_listener::OpenListener,
        reservations::Reservation,
        spare_sockets::SpareSockets,
    },
    handover::{RemoteBound, RemoteRecord, SocketFile},
    limits::descriptors::{OF_UDP_SOCKET, OF_WAITING},
    wire::{Instance, ListenCode},
};

/// Addresses that one remote forward may bind: each is compared with all that are reserved.
const ADDRESSES_MAX: usize = 8;

/// Timeout for resolving a name to bind.
const NAME_TIMEOUT: Duration = Duration::from_secs(3);

/// What this session listens on. Fields drop in order: the sockets are closed before the
/// reservation is released.
pub(super) struct OwnListener {
    pub(super) open: Arc<OpenListener>,
    pub(super) reservation: Reservation,
}

impl RemoteListeners {
    /// Takes over the sockets of the session that this one goes on with, if they are still
    /// permitted.
    pub(super) fn take_over(
        &self,
        id: u16,
        listen: &Listen,
    ) -> Result<Option<OwnListener>, ListenCode> {
        let Some((open, reservation)) = self.reservations.take_over(&self.session, id, listen)
        else {
            return Ok(None);
        };
        let own = OwnListener { open, reservation };
        if self.permits(listen, &own.open) { Ok(Some(own)) } else { Err(ListenCode::NotPermitted) }
    }

    /// Whether the bound addresses are still permitted.
    pub(super) fn permits(&self, listen: &Listen, open: &OpenListener) -> bool {
        let Some(peer) = self.peers.find(&self.session.key()) else { return false };
        let all = |protocol, bind, port| {
            let admits = |&address| peer.listen_permits.admits(protocol, bind, address, port);
            open.addresses.iter().all(admits)
        };
        match listen {
            Listen::Unix(path) => peer.listen_permits.admits_socket(path),
            Listen::Tcp { bind, port } => all(Protocol::Tcp, bind, *port),
            Listen::Udp { bind, port } => all(Protocol::Udp, bind, *port),
        }
    }

    /// Reserves and binds the permitted addresses of a listen address.
    pub(super) async fn open(&self, id: u16, listen: &Listen) -> Result<OwnListener, ListenCode> {
        let opened = |listeners, addresses, descriptors, reservation: Reservation| {
            let open = OpenListener::new(listeners, addresses, descriptors);
            reservation.bound(id, listen, &open);
            if self.session.may_log() {
                let bound: Vec<_> = open.bound.iter().map(Bound::to_string).collect();
                let peer = self.session.peer();
                info!(peer, listen = bound.join(", "), "remote forward opened");
            }
            OwnListener { open, reservation }
        };
        let peer = self.peers.find(&self.session.key()).ok_or(ListenCode::NotPermitted)?;
        let permits = &peer.listen_permits;
        let descriptors = async |sockets| {
            let count = descriptors_of(listen, sockets);
            self.session.descriptors(count).await.ok_or(ListenCode::OpenFiles)
        };
        let inherited = |bound| {
            let (key, Instance(instance)) =
                (self.session.identity().to_string(), self.session.instance());
            self.handover.take_remote(&RemoteRecord { key, instance, number: id, bound })
        };
        let (protocol, bind, port) = match listen {
            Listen::Tcp { bind, port } => (Protocol::Tcp, bind, *port),
            Listen::Udp { .. } if !self.session.connection.carries_datagrams() => {
                return Err(ListenCode::NoDatagrams);
            }
            Listen::Udp { bind, port } => (Protocol::Udp, bind, *port),
            Listen::Unix(path) => {
                if !permits.admits_socket(path) {
                    return Err(ListenCode::NotPermitted);
                }
                let descriptors = descriptors(1).await?;
                let places = vec![Bound::Unix(path.clone())];
                let reservation = self.reservations.reserve(&self.session, places).await?;
                let file = SocketFile::at(path).ok();
                let inherited = file.and_then(|file| inherited(RemoteBound::Unix(file)));
                let bound = bind_unix(path, &self.handover, inherited.map(UnixListener::from));
                let listeners = bound.map_err(|error| code_of(&error))?;
                return Ok(opened(listeners, Vec::new(), descriptors, reservation));
            }
        };
        // Without a lookup, if no permit covers the port.
        if !permits.may_admit_port(protocol, port) {
            return Err(ListenCode::NotPermitted);
        }
        let found = timeout(NAME_TIMEOUT, addresses_of(bind, port, &self.lookups)).await;
        let found = found.ok().and_then(Result::ok).ok_or(ListenCode::NoAddress)?;
        let admits = |address| permits.admits(protocol, bind, address, port);
        let addresses = permitted(found, admits)?;
        let descriptors = descriptors(addresses.len()).await?;
        let inherited =
            |address| inherited(RemoteBound::Tcp(address)).map(std::net::TcpListener::from);
        let bind = async || {
            let mut none = SpareSockets::default();
            let bound = match protocol {
                Protocol::Tcp => bind_tcp(&addresses, port, &inherited, &mut none),
                Protocol::Udp => bind_udp(&addresses, port, &|_| None, &mut none).await,
            };
            bound.map_err(|error| code_of(&error))
        };
        let place = |address| match protocol {
            Protocol::Tcp => Bound::Tcp(address),
            Protocol::Udp => Bound::Udp(address),
        };
        if port != 0 {
            let places = addresses.iter().map(|&ip| place((ip, port).into())).collect();
            let reservation = self.reservations.reserve(&self.session, places).await?;
            let listeners = bind().await?;
            return Ok(opened(listeners, addresses, descriptors, reservation));
        }
        // Any free port: it is known once bound, and nobody can have reserved it.
        let listeners = bind().await?;
        let reservation = self.reservations.reserve(&self.session, listeners.bound()).await?;
        Ok(opened(listeners, addresses, descriptors, reservation))
    }
}

/// The permitted addresses among those of a listen address, if they are not too many.
fn permitted(
    mut addresses: Vec<IpAddr>,
    admits: impl Fn(IpAddr) -> bool,
) -> Result<Vec<IpAddr>, ListenCode> {
    addresses.retain(|&address| admits(address));
    match addresses.len() {
        0 => Err(ListenCode::NotPermitted),
        1..=ADDRESSES_MAX => Ok(addresses),
        _ => Err(ListenCode::Failed),
    }
}

/// Descriptors of a remote forward with so many sockets.
fn descriptors_of(listen: &Listen, sockets: usize) -> usize {
    match listen {
        Listen::Udp { .. } => sockets * OF_UDP_SOCKET,
        Listen::Tcp { .. } | Listen::Unix(_) => sockets + OF_WAITING,
    }
}

/// The code that tells the client why bind failed.
fn code_of(error: &BindError) -> ListenCode {
    match error.source.kind() {
        io::ErrorKind::AddrInUse | io::ErrorKind::AlreadyExists => ListenCode::InUse,
        io::ErrorKind::PermissionDenied => ListenCode::Denied,
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::NotFound => ListenCode::NoAddress,
        _ => ListenCode::Failed,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::addresses::forward::Bind;

    #[test]
    fn a_remote_forward_binds_the_permitted_addresses_of_a_name_but_not_very_many() {
        let addresses: Vec<IpAddr> = (1..20_u32).map(|nth| Ipv4Addr::from(nth).into()).collect();
        let first = |count: usize| {
            let admitted = &addresses[..count];
            permitted(addresses.clone(), |address| admitted.contains(&address))
        };
        assert_eq!(first(0), Err(ListenCode::NotPermitted));
        assert_eq!(first(ADDRESSES_MAX).as_deref(), Ok(&addresses[..ADDRESSES_MAX]));
        assert_eq!(first(ADDRESSES_MAX + 1), Err(ListenCode::Failed));
    }

    #[test]
    fn each_address_of_a_remote_forward_costs_its_sockets_descriptors() {
        let costs = |listen: Listen| [1, 2, 64].map(|sockets| descriptors_of(&listen, sockets));
        let (bind, port) = (Bind::Host("many.example".parse().unwrap()), 80);
        assert_eq!(costs(Listen::Tcp { bind: bind.clone(), port }), [2, 3, 65]);
        assert_eq!(costs(Listen::Udp { bind, port }), [2, 4, 128]);
    }
}
