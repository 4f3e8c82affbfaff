//! Declares every key of a `[peer.NAME]`, as `settings.rs` does the global ones.

use std::time::{Duration, SystemTime};

use keypadd_keystream::Suite;
use keypadd_network::{Permit as NetworkPermit, Prefix};
use keypadd_provider::{KeyExchange, PublicKey};
use keypadd_tunnel::{
    DynamicForward, Forward, ListenPermit, LocalForward, Permit, ProxyHeaders, RemoteForward,
    ServerEntry,
};

use super::declare::settings;
use super::setting::Setting;
use super::suites::SUITES;
use crate::key::{Flag, Kind, Reload};
use crate::values::{DeviceAddress, RouteMode};

settings! {
    /// The keys of a `[peer.NAME]`; `keypadd connect` takes some of them as flags.
    PeerSettings in Peer;

    "public-key" => public_key: many PublicKey = public_key {
        kind: Kind::List,
        form: "PUBKEY",
        example: "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",
        unset: "required",
        help: "The peer's public key, as `keypadd pubkey` prints it there",
        detail: "Two while it replaces its key. With an `endpoint`, up to 64: one for each server \
            that may answer there.",
    }
    "endpoint" => endpoint: many ServerEntry = server_entry {
        kind: Kind::List,
        form: "HOST[:PORT]",
        example: "lab.example:4433",
        unset: "none: the peer connects to this host",
        help: "Where to connect to the peer",
        detail: "The default port is 4433. Up to 8, in order of preference. A name such as \
            _keypadd._udp.example.com, without a port, is looked up as SRV.",
    }
    "valid-until" => valid_until: maybe SystemTime = valid_until {
        form: "DATE",
        example: "2027-01-31",
        unset: "no limit",
        help: "Last day (UTC) of the peer, or a time such as 2027-01-31T12:00:00Z",
        detail: "Afterwards it is refused and its sessions end within a minute, by this host's \
            clock.",
    }
    "permit-open" => permit_open: many Permit = permit {
        kind: Kind::List,
        form: "PATTERN",
        example: "localhost:22",
        unset: "the global one",
        help: "Targets that the peer may connect to",
    }
    "permit-listen" => permit_listen: many ListenPermit = listen_permit {
        kind: Kind::List,
        form: "PATTERN",
        example: "8080",
        unset: "the global one",
        help: "Where the peer may listen on this host",
    }
    "pool-budget" => pool_budget: maybe usize = pool_budget {
        form: "SIZE",
        example: "8MiB",
        unset: "no limit of its own",
        help: "Share of the global `pool-budget` that all sessions of this peer may hold together",
    }
    "max-rate" => max_rate: maybe u64 = max_rate {
        form: "SIZE/s",
        example: "2MiB/s",
        unset: "no limit",
        help: "Maximum bytes per second that this host sends to all sessions of this peer \
            together, at least 16KiB/s",
        detail: "The peer's own setting limits the other direction.",
    }
    "hold" => hold: maybe Duration = duration_or_zero {
        form: "DURATION",
        example: "1h",
        unset: "the global one",
        help: "How long connections wait for this peer while it is away",
    }
    "local" => local: ranged LocalForward = local_forwards {
        kind: Kind::List,
        form: "[BIND:]PORT:HOST:HOSTPORT",
        example: "2222:localhost:22",
        flag: Flag::Connect,
        short: Some('L'),
        help: "Listen here and connect to HOST:HOSTPORT from the server",
        detail: "BIND is loopback by default; `*` is every address; IPv6 addresses go in \
            brackets. Port 0 picks a free port. A unix socket's /PATH can replace [BIND:]PORT, \
            HOST:HOSTPORT or both. [BIND:]PORT:udp:HOST:HOSTPORT forwards UDP. \
            8000-8010:HOST:8000-8010 is a forward for each of these ports.",
    }
    "remote" => remote: ranged RemoteForward = remote_forwards {
        kind: Kind::List,
        form: "[BIND:]PORT:HOST:HOSTPORT",
        example: "8080:localhost:80",
        flag: Flag::Connect,
        short: Some('R'),
        help: "Listen on the server and connect to HOST:HOSTPORT from here",
        detail: "Like `local`, in the other direction. The server's `permit-listen` must allow \
            it. The server never learns the target.",
    }
    "dynamic" => dynamic: many DynamicForward = dynamic_forward {
        kind: Kind::List,
        form: "[BIND:]PORT",
        example: "1080",
        flag: Flag::Connect,
        short: Some('D'),
        help: "Listen here as a SOCKS5 proxy and connect to the requested targets from the server",
        detail: "The server resolves names, and its `permit-open` applies. BIND is loopback by \
            default. There is no password: anyone who can reach the port can use it.",
    }
    "networks" => networks: many Prefix = network {
        kind: Kind::List,
        form: "ADDRESS/BITS",
        example: "10.2.0.0/16",
        help: "Networks behind the peer: packets from there are accepted from it, and packets to \
            there go to it",
        detail: "They go through a TUN device, `device`. Both ends need `networks`, and the peer's \
            must list what is behind this host.",
    }
    "permit-networks" => permit_networks: many NetworkPermit = network_permit {
        kind: Kind::List,
        form: "ADDRESS/BITS[:[PROTOCOL:]PORT]",
        example: "10.1.0.0/16:443",
        unset: "none: the peer may only reply",
        help: "Flows that the peer may open into the networks of this host",
        detail: "PROTOCOL is `tcp` by default, or `udp`; PORT may be `*` or a range such as \
            8000-8010; `10.1.0.0/16:icmp` is ICMP, `10.1.0.0/16` everything. An IPv6 network \
            before a port or protocol goes in brackets, as in [fd00::/8]:443. This host's own \
            addresses must be listed one by one, as in 10.1.0.1/32.",
    }
    "device" => device: maybe String = device_name {
        form: "NAME",
        example: "kp-berlin",
        unset: "`kp-NAME`, cut to 15 characters",
        reload: Reload::Restart,
        help: "The TUN device that leads to the peer's networks",
        detail: "Created at startup if it does not exist, which needs CAP_NET_ADMIN. An existing \
            one that belongs to the daemon's user needs no privilege.",
    }
    "address" => address: many DeviceAddress = device_address {
        kind: Kind::List,
        form: "ADDRESS/BITS",
        example: "10.255.0.1/31",
        reload: Reload::Restart,
        help: "Addresses to assign to the device at startup",
    }
    "mtu" => mtu: maybe u16 = device_mtu {
        kind: Kind::Number,
        example: "1400",
        unset: "1400, or that of an existing device",
        reload: Reload::Restart,
        help: "MTU of the device, from 1280 to 9200",
        detail: "Packets that are too large for the path are sent in fragments, and their senders \
            are told the largest size that fits.",
    }
    "routes" => routes: one RouteMode = route_mode {
        choices: &["install", "none"],
        example: "install",
        default: "none",
        reload: Reload::Restart,
        help: "Whether to install routes to `networks` through the device at startup",
    }
    "send-proxy" => send_proxy: one bool = switch {
        kind: Kind::Switch,
        example: "true",
        default: "false",
        flag: Flag::Connect,
        help: "Send targets of -L and -R a PROXY protocol header (version 2) with each \
            connection's origin",
        detail: "The targets must expect it (nginx: `proxy_protocol`). Connections from unix \
            sockets and -W get a LOCAL header, those from -D none.",
    }
    "accept-proxy" => accept_proxy: one bool = switch {
        kind: Kind::Switch,
        example: "true",
        default: "false",
        flag: Flag::Connect,
        help: "Expect a PROXY protocol header (version 1 or 2) on connections to listeners of -L \
            and -R",
        detail: "For listeners behind a load balancer; logs and `send-proxy` use the address. \
            Whoever can reach the listener can claim any address. Connections without a valid \
            header within 3s are closed.",
    }
    "suite" => suite: maybe Suite = suite {
        form: "NAME",
        example: "aes-256-gcm",
        unset: "aes-256-gcm and chacha20-poly1305, the faster first, unless the global `suite` \
            names one",
        flag: Flag::Connect,
        help: "Suite to offer",
        detail: SUITES,
    }
    "kex" => kex: maybe KeyExchange = kex {
        form: "NAME",
        example: "x25519mlkem768",
        unset: "the first of the global `kex`, else `\"x25519mlkem768\"`",
        flag_default: "x25519mlkem768",
        flag: Flag::Connect,
        help: "Key exchange to offer: x25519, x25519mlkem768 or secp384r1",
    }
}

impl PeerSettings {
    /// Which connections begin with a PROXY header.
    pub fn proxy_headers(&self) -> ProxyHeaders {
        ProxyHeaders { send: self.send_proxy.value, accept: self.accept_proxy.value }
    }

    /// The forwards of all kinds: local, remote, dynamic.
    pub fn forwards(&self) -> Vec<Setting<Forward>> {
        fn each<T: Clone>(
            list: &Option<Vec<Setting<T>>>,
            kind: fn(T) -> Forward,
        ) -> impl Iterator<Item = Setting<Forward>> {
            list.iter().flatten().map(move |Setting { value, text, at }| Setting {
                value: kind(value.clone()),
                text: text.clone(),
                at: *at,
            })
        }
        each(&self.local, Forward::Local)
            .chain(each(&self.remote, Forward::Remote))
            .chain(each(&self.dynamic, Forward::Dynamic))
            .collect()
    }
}
