//! Forwards TCP connections, unix sockets, UDP and the packets of networks over QUIC.
//!
//! A [`Server`] accepts listed peers and connects their streams to permitted targets. A [`Client`]
//! binds local listeners, connects to a server and forwards each accepted connection over its own
//! stream. Packet protection is passed in as `quinn-proto` crypto configurations: this crate never
//! sees a secret key or a pad, only the public key that a handshake has proved.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod addresses;
mod client;
mod clock;
mod error;
mod forwards;
pub mod handover;
#[cfg(test)]
mod limit_table;
mod limits;
mod net;
mod networks;
mod own_thread;
mod pairing;
mod permits;
mod server;
mod sessions;
mod suspension;
mod transport;
pub mod wire;

pub use addresses::{
    forward::{
        BenchForward, Bind, Destination, DynamicForward, Forward, ForwardError, ForwardFault,
        Listen, LocalForward, ProxyHeaders, RemoteForward,
    },
    servers::{Family, SERVER_ADDRESSES_MAX, ServerAddresses, ServerEntry},
    service::ServiceName,
    socket_path::{SocketPath, SocketPathError},
    target::{AddressError, DEFAULT_PORT, Host, Protocol, ServerAddress, Target},
};
pub use client::{
    Client, ClientSession, ClientSettings,
    join::{Joined, NotConfirmed},
};
pub use clock::{
    clones::{HostClocks, Hypervisor},
    jump::{Clocks, Jump, Readings, SystemClocks},
    unix_seconds,
};
pub use error::{
    AuthError, BindAddress, BindError, ClientError,
    unreachable::{Cause, Failure, Tried},
};
pub use forwards::{
    carrier::{AdoptedConnection, Carrier, CarrierSlot, ConnectedTarget},
    listener_group::Bound,
    listeners::BoundForwards,
    proxy_protocol, socks,
    spare_sockets::SpareSockets,
};
pub use keypadd_transport::{
    LOOPS_MAX, LoopMeter, RateCap, ServerId, SpinShare, congestion::Congestion,
};
pub use limits::{
    LimitCounts, SharedLimits,
    memory::{FORWARD_BYTES_MIN, FORWARDS_ONE_IN, MemoryShares},
    open_connections::{ConnectionState, ConnectionStatus},
    traffic::{ConnectionEnd, DatagramTotals, ForwardTotals},
};
pub use net::{
    dns::{
        SrvError,
        message::{SrvQuestion, SrvRecord, SrvReply},
    },
    host_ports::{HostPorts, PortReuse},
};
pub use networks::{
    Network, NetworkCounts, NetworkPhase, NetworkRules, NetworkStatus, PeerRoutes, attach_device,
};
pub use own_thread::on_own_thread;
pub use pairing::{
    Invitation, InvitationError, InviteError, Inviter, InviterSettings, Joiner, suggested,
};
pub use permits::{
    listen::{ListenPermit, ListenPermits},
    open::{Permit, Permits},
    pattern::{PermitError, PermitFault},
    peers::{AllowedPeer, DuplicateKey, Peers},
};
pub use server::{Server, ServerHandle, ServerSettings};
pub use sessions::{
    control::{ControlError, read_frame},
    draining::Draining,
    hold::{
        HoldSettings,
        held_list::{HeldCounts, HeldList, HeldStatus},
    },
    lifetime::{KeyLifetime, KeyLifetimes},
    reconnect_reason::ReconnectReason,
    registry::Sessions,
    server_link::ServerLink,
    session::LiveSession,
    session_end::{SessionEnd, is_printable, printable},
    status::{
        ForwardStatus, KeyRenewal, LinkState, LinkStatus, Role, SessionCounts, SessionStatus,
    },
};
pub use transport::{PEER_TIMEOUT_MAX, PEER_TIMEOUT_MIN, TransportSettings};
