//! Requests QUIC key updates of a connection by bytes protected and by age; `client/renewal.rs`
//! makes another connection instead. The provider decides when; the transport performs the update.

use std::time::Instant;

use keypadd_provider::{KeyFault, Renew, Renewal};
use keypadd_transport::Connection;
use tokio::time::sleep_until;

/// Requests key updates until the connection ends. Returns a fault if the peer does not follow
/// them.
pub(crate) async fn renew(connection: &Connection, mut renewal: Renewal) -> KeyFault {
    loop {
        let again = match renewal.step(Instant::now()) {
            Renew::Wait(until) => until,
            Renew::Update(again) => {
                connection.force_key_update();
                again
            }
            Renew::End => return KeyFault::LimitReached,
        };
        tokio::select! {
            () = sleep_until(again.into()) => {}
            () = renewal.usage_limit_reached() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::time::Duration;

    use keypadd_keystream::Suite;
    use keypadd_pool::Direction;
    use keypadd_provider::{CryptoSettings, PrivateKey, client_config, server_config};
    use keypadd_transport::{Accepted, ClientConfig, Dial, Endpoint, Purpose, ServerConfig};
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::clock::egress_gate::EgressGate;
    use crate::clock::jump::SystemClocks;
    use crate::net::bind::bind_udp;
    use crate::sessions::proof::proof_of;
    use crate::transport::{End, TransportSettings};

    /// Both ends of a connection, and the endpoints that they need to stay open.
    async fn connection() -> ([Connection; 2], [Endpoint; 2]) {
        let key = || Arc::new(PrivateKey::generate().expect("randomness"));
        let (ours, theirs) = (key(), key());
        let settings = |key: &Arc<PrivateKey>| {
            CryptoSettings::plain(Arc::clone(key), Suite::TRIPLE_DES_CTR_HMAC_SHA1)
        };
        let server = server_config(&settings(&theirs), Arc::new(ours.public())).expect("settings");
        let client = client_config(&settings(&ours), theirs.public()).expect("settings");
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let endpoint = |end, server| {
            let socket = bind_udp(loopback, 1 << 20).expect("a socket");
            let gate = EgressGate::new(Arc::new(SystemClocks));
            let settings = TransportSettings::default();
            settings.endpoint(end, vec![socket], server, None, 2, gate).expect("an endpoint")
        };
        let listening = endpoint(End::Server, Some(ServerConfig::with_crypto(server)));
        let connecting = endpoint(End::Client, None);
        let accept = async {
            match listening.accept().await {
                Some(Accepted::Connection(connection)) => connection,
                other => panic!("{other:?}"),
            }
        };
        let connect = async {
            let dial = Dial {
                config: ClientConfig::new(client),
                address: listening.local_addr(),
                server_name: "x",
                purpose: Purpose::Sparse,
                home: None,
                rtt: None,
            };
            connecting.connect(dial).await.expect("connected")
        };
        let (accepted, connected) = tokio::join!(accept, connect);
        ([connected, accepted], [connecting, listening])
    }

    #[tokio::test]
    async fn keys_that_are_old_are_replaced_at_both_ends() {
        let (ends, _endpoints) = connection().await;
        let keys =
            ends.each_ref().map(|end| proof_of(end).expect("our keys").handshake.keys.clone());
        // The first phase ends by itself. The second would end after 2^16 packets, more than are
        // sent here.
        let renewal = keys[0].renewal(Duration::from_secs(6), Instant::now());
        let phases = || keys.each_ref().map(|keys| keys.status(Direction::Send).key_phase);
        let talk = async {
            // Not read: a stream's window holds more than the test sends.
            let streams = [ends[0].open_bi().await, ends[1].open_bi().await]
                .map(|opened| opened.expect("a stream"));
            while phases().iter().any(|phase| *phase < 2) {
                for stream in &streams {
                    stream.send.write_all(b"a keystroke").await.expect("written");
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        let fault = tokio::select! {
            fault = renew(&ends[0], renewal) => Some(fault),
            done = timeout(Duration::from_secs(120), talk) => {
                done.unwrap_or_else(|_| panic!("{:?}", phases()));
                None
            }
        };
        assert_eq!(fault, None);
    }
}
