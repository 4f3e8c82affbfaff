//! Devices of two gateways, each of which leads to the network behind the other one.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use keypadd_network::{HostAddresses, Permit, Prefix};
use keypadd_tunnel::handover::DeviceRecord;
use keypadd_tunnel::{Network, NetworkPhase, NetworkRules, PeerRoutes, attach_device};
use testbed::{FourHosts, Namespace};
use tokio::time::sleep;

/// Name of a gateway's device.
const DEVICE: &str = "tunnel";

/// Its MTU, as a daemon sets it.
const MTU: u16 = 1_400;

/// The other gateway's name.
const PEER: &str = "bench";

/// How long a tunnel may take to carry packets once it is up, and one before to let its device go.
const TIME_MAX: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The networks that the near gateway reaches, and those that the far one reaches. They are routed
/// there for as long as these live.
pub(super) fn networks(hosts: &FourHosts, ipv6: bool) -> Result<[Arc<Network>; 2], String> {
    let [of_client, of_server] = if ipv6 { FourHosts::NETWORKS_V6 } else { FourHosts::NETWORKS };
    let [near, far] =
        [FourHosts::NEAR, FourHosts::FAR].map(|address| FourHosts::in_family(address, ipv6));
    Ok([
        network(&hosts.near, [of_client, of_server], near)?,
        network(&hosts.far, [of_server, of_client], far)?,
    ])
}

/// Opens a gateway's device and routes the network behind the other gateway there. Whoever is in
/// that network may begin anything in the gateway's own.
fn network(
    gateway: &Namespace,
    [own, behind]: [&str; 2],
    address: IpAddr,
) -> Result<Arc<Network>, String> {
    let device = gateway.inside(|| attach().map_err(|error| format!("a TUN device: {error}")))?;
    // Longer prefixes go before the gateway's routes, which serve again once the device is gone.
    let routes = halves(behind).map(|half| format!("route add {half} dev {DEVICE}\n")).concat();
    gateway.ip(&format!("link set dev {DEVICE} mtu {MTU} up\n{routes}"))?;
    let record = DeviceRecord { name: DEVICE.into(), mtu: MTU, setup: None };
    let network = Network::new(PEER, record, device).for_measurements();
    let permit: Permit = own.parse().expect("a prefix");
    let behind: Prefix = behind.parse().expect("a prefix");
    network.set_host(Arc::new(HostAddresses::new([(address, permit.prefix())])), Vec::new());
    network.set_rules(Some(NetworkRules {
        networks: vec![behind],
        permits: vec![permit],
        routes: Arc::new(PeerRoutes::new([(PEER.into(), behind)]).expect("one network")),
    }));
    Ok(Arc::new(network))
}

/// Attaches to a device, once the threads of the tunnel before have let it go.
fn attach() -> io::Result<OwnedFd> {
    let deadline = Instant::now() + TIME_MAX;
    loop {
        match attach_device(DEVICE) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                if Instant::now() > deadline {
                    return Err(error);
                }
                thread::sleep(LOOK_EVERY);
            }
            attached => return attached,
        }
    }
}

/// Waits until the gateways have no device of a tunnel before: the routes to it go before others.
pub(super) fn wait_for_none(hosts: &FourHosts) -> Result<(), String> {
    let deadline = Instant::now() + TIME_MAX;
    for gateway in [&hosts.near, &hosts.far] {
        // What is not there cannot be shown.
        while gateway.ip(&format!("link show {DEVICE}\n")).is_ok() {
            if Instant::now() > deadline {
                return Err("the tunnel before does not end".into());
            }
            thread::sleep(LOOK_EVERY);
        }
    }
    Ok(())
}

/// Both halves of a network.
fn halves(network: &str) -> [String; 2] {
    match network.strip_suffix("::/64") {
        Some(start) => [format!("{start}::/65"), format!("{start}:0:0:8000::/65")],
        None => {
            let start = network.trim_end_matches("0/24");
            [format!("{start}0/25"), format!("{start}128/25")]
        }
    }
}

/// Waits until both ends of a tunnel carry packets.
pub(super) async fn carried(networks: &[Arc<Network>]) -> Result<(), String> {
    let is_up = |network: &Arc<Network>| network.status().phase == NetworkPhase::Up;
    let deadline = Instant::now() + TIME_MAX;
    while !networks.iter().all(is_up) {
        if Instant::now() > deadline {
            let phases: Vec<_> = networks.iter().map(|network| network.status().phase).collect();
            return Err(format!("the tunnel carries no packets: {phases:?}"));
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}
