//! Tests connections and listeners that go on in a process that replaces the one of either end.

use std::time::Duration;

use keypadd_tunnel::{TransportSettings, handover::HandedSocket};
use testbed::LineSettings;
use tokio::net::TcpStream;

use crate::{
    hold::{Site, holding},
    support::*,
};

/// One way, so that an answer is in flight for a while.
const FAR: Duration = Duration::from_millis(200);

/// Ends with a handover each, and a long path.
async fn far_site(permits: &[&str], forwards: &[&str]) -> Site {
    let patient = || TransportSettings { peer_timeout: Duration::from_secs(60), ..holding() };
    let site = Site::start_with([patient(), patient()], permits, forwards).await;
    site.relay.set_both(LineSettings { delay: FAR, ..<_>::default() });
    site
}

#[tokio::test]
async fn a_connection_that_is_being_opened_goes_on_in_the_process_that_replaces_its_client() {
    let site = far_site(&["localhost:*"], &[]).await;
    let _here = TcpStream::connect(site.client.listeners[0]).await.unwrap();
    let _there = accept(&site.target).await;
    site.transports[0].handover.suspend();
    within(site.transports[0].limits.settled()).await;
    assert_eq!(site.client.hand_over().await, 1);
}

#[tokio::test]
async fn a_connection_that_is_being_opened_goes_on_in_the_process_that_replaces_its_server() {
    let target = listener().await;
    let forward = format!("-R 0:{}", target.local_addr().unwrap());
    let site = far_site(&["listen localhost:*"], &[&forward]).await;
    let _here = TcpStream::connect(("127.0.0.1", site.client.remote_port())).await.unwrap();
    let _there = accept(&target).await;
    site.transports[1].handover.suspend();
    within(site.transports[1].limits.settled()).await;
    let (chains, _) = within(site.server.handle.hand_over()).await.unwrap();
    assert_eq!(chains.iter().map(|chain| chain.streams.len()).sum::<usize>(), 1);
}

#[tokio::test]
async fn a_remote_listener_stays_open_while_a_new_process_replaces_its_client() {
    let (target, key) = (listener().await, new_key());
    let permits = ["listen localhost:*"];
    let server = RunningServer::start_with(key.public(), &permits, |settings| {
        settings.transport = holding();
    });
    let forward = format!("-R 0:{}", target.local_addr().unwrap());
    let process = async || {
        let mut settings = client_settings(&server, &key, &[&forward]);
        settings.transport = holding();
        let handover = settings.transport.handover.clone();
        (RunningClient::start(settings).await, handover)
    };
    let (old, handover) = process().await;
    let port = old.remote_port();
    handover.suspend();
    old.hand_over().await;
    until("the server notices", || server.sessions.live().is_empty()).await;

    let here = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (new, _) = process().await;
    assert_eq!(new.remote_port(), port);
    exchange(here, accept(&target).await).await;
}

/// A site with a remote forward, whose server is being replaced.
async fn site_being_replaced() -> Site {
    let site =
        Site::start_with([holding(), holding()], &["listen localhost:*"], &["-R 0:localhost:9"])
            .await;
    site.transports[1].handover.suspend();
    site
}

#[tokio::test]
async fn a_server_that_is_being_replaced_leaves_new_connections_to_the_next_process() {
    let site = site_being_replaced().await;
    let _here = TcpStream::connect(("127.0.0.1", site.client.remote_port())).await.unwrap();
    let (_, listeners) = within(site.server.handle.hand_over()).await.unwrap();
    let listeners = listeners.into_iter().map(|it| std::net::TcpListener::from(it.socket));
    let queued = listeners.filter(|listener| listener.accept().is_ok());
    assert_eq!(queued.count(), 1, "the old process has accepted it");
}

#[tokio::test]
async fn a_remote_listener_goes_on_to_the_next_process_if_its_client_is_not_back_yet() {
    let site = site_being_replaced().await;
    let (_, listeners) = within(site.server.handle.hand_over()).await.unwrap();
    let records = |of: &[HandedSocket]| of.iter().map(|it| it.record.clone()).collect::<Vec<_>>();
    let first = records(&listeners);
    assert!(!first.is_empty());

    let transport = holding();
    let handover = transport.handover.clone();
    listeners.into_iter().for_each(|listener| handover.inherit_remote(listener));
    let next = RunningServer::start_with(new_key().public(), &[], |settings| {
        settings.transport = transport;
    });
    handover.suspend();
    let (_, listeners) = within(next.handle.hand_over()).await.unwrap();
    assert_eq!(records(&listeners), first);
}
