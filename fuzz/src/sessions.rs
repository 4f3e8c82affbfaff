//! Provides the two sessions of a connection, whose messages a target passes on, to those that need keys.

use std::io::Cursor;
use std::sync::{Arc, LazyLock};

use keypadd_keystream::Protection;
use keypadd_provider::{
    CryptoSettings, Group, Meters, PoolSwitch, PrivateKey, client_config, server_config,
};
use quinn_proto::Side;
use quinn_proto::crypto::{Keys, Session};
use quinn_proto::transport_parameters::TransportParameters;

/// Both ends' key: making one for each input would take longer than the handshake.
static KEY: LazyLock<Arc<PrivateKey>> =
    LazyLock::new(|| Arc::new(PrivateKey::generate().expect("randomness")));

/// A client, whose keys take pads from `pool`, and a server, whose keys never do.
pub(crate) fn sessions(
    suite: Protection,
    kex: Group,
    pool: PoolSwitch,
    meters: &Arc<Meters>,
) -> [Box<dyn Session>; 2] {
    let settings = |pool, meters| CryptoSettings {
        kex: vec![kex],
        pool,
        meters,
        ..CryptoSettings::plain(Arc::clone(&KEY), suite)
    };
    let client = settings(pool, Arc::clone(meters));
    let server = settings(PoolSwitch::default(), Arc::default());
    let connecting = client_config(&client, KEY.public()).expect("a client");
    let accepting = server_config(&server, Arc::new(KEY.public())).expect("a server");
    // Parameters in their encoded form are all that TLS carries; an empty list is valid.
    let parameters = TransportParameters::read(Side::Server, &mut Cursor::new(&[][..]));
    let parameters = parameters.expect("no parameter is required");
    let client = connecting.start_session(1, "keypadd", &parameters).expect("a session");
    [client, accepting.start_session(1, &parameters)]
}

/// Completes the handshake; the keys of 1-RTT packets of both ends.
pub(crate) fn shake_hands([client, server]: &mut [Box<dyn Session>; 2]) -> [Keys; 2] {
    let mut keys = [None, None];
    while client.peer_identity().is_none() || server.peer_identity().is_none() {
        keys[0] = pass(&mut **client, &mut **server).or_else(|| keys[0].take());
        keys[1] = pass(&mut **server, &mut **client).or_else(|| keys[1].take());
    }
    keys.map(|keys| keys.expect("a handshake gives keys"))
}

/// Passes on what one end has to say; the last keys that it derived.
fn pass(from: &mut dyn Session, to: &mut dyn Session) -> Option<Keys> {
    let mut last = None;
    loop {
        let mut message = Vec::new();
        let keys = from.write_handshake(&mut message);
        if message.is_empty() && keys.is_none() {
            return last;
        }
        last = keys.or(last);
        if !message.is_empty() {
            to.read_handshake(&message).expect("it reads what the other end wrote");
        }
    }
}
