//! Checks what peers' networks need and what no two of them may share.

use std::collections::HashMap;

use keypadd_network::{Permit, Prefix};
use keypadd_tunnel::wire::NETWORKS_MAX;
use keypadd_tunnel::{Host, ServerEntry};

use crate::fault::Faults;
use crate::quote::shown;
use crate::settings::{PeerSettings, Setting, values_of};
use crate::values::{DEVICE_CHARS_MAX, DeviceAddress, RouteMode};

/// The networks behind a peer, and the device that leads to them.
#[derive(Clone, Debug, PartialEq)]
pub struct Networks {
    /// What is behind the peer.
    pub prefixes: Vec<Prefix>,
    /// What the peer may begin here; beyond that, it may answer.
    pub permits: Vec<Permit>,
    /// The device's name.
    pub device: String,
    /// The device's addresses.
    pub addresses: Vec<DeviceAddress>,
    /// The device's MTU, if it is set.
    pub mtu: Option<u16>,
    /// Who makes the routes to the networks.
    pub routes: RouteMode,
}

/// The keys that say something about networks.
const OF_NETWORKS: [&str; 5] = ["permit-networks", "device", "address", "mtu", "routes"];

impl Networks {
    /// The networks of a peer of this name; `None` if it has none. `value_at` finds a key's value.
    pub(crate) fn of(
        peer: &str,
        own: &PeerSettings,
        value_at: impl Fn(&str) -> Option<usize>,
        faults: &mut Faults<'_>,
    ) -> Option<Self> {
        let called = shown(peer);
        let Some(networks) = own.networks.as_ref().filter(|networks| !networks.is_empty()) else {
            for key in OF_NETWORKS {
                if let Some(at) = value_at(key) {
                    let cause = format!("{key}: peer {called} has no networks");
                    let hint = "add those behind it, as in networks = [\"10.2.0.0/16\"]";
                    faults.add(at, cause, Some(hint.into()));
                }
            }
            return None;
        };
        if let Some(one) = networks.get(NETWORKS_MAX) {
            let hint = format!("at most {NETWORKS_MAX}; merge some into larger ones");
            faults.add(one.at.unwrap_or_default(), "networks: too many", Some(hint));
        }
        refuse_endpoints(networks, own, faults);
        let routes = own.routes.value;
        if let Some(all) = networks.iter().find(|one| one.value.bits() == 0)
            && routes == RouteMode::Install
        {
            let cause = format!("routes: cannot install a route to {}", all.value);
            let hint = "the tunnel's own packets would take it; leave `routes` out, and add it \
                yourself beside a route to the endpoint";
            faults.add(own.routes.at.unwrap_or_default(), cause, Some(hint.into()));
        }
        let device = match &own.device {
            Some(device) => device.value.clone(),
            None => {
                let name = format!("kp-{peer}");
                name.get(..DEVICE_CHARS_MAX).unwrap_or(&name).to_owned()
            }
        };
        let list = |permits: &Option<Vec<Setting<Permit>>>| {
            permits.as_ref().map_or_else(Vec::new, |permits| values_of(permits))
        };
        Some(Self {
            prefixes: values_of(networks),
            permits: list(&own.permit_networks),
            device,
            addresses: own.address.as_ref().map_or_else(Vec::new, |all| values_of(all)),
            mtu: own.mtu.as_ref().map(|mtu| mtu.value),
            routes,
        })
    }
}

/// Refuses networks that cover the peer's own address: the tunnel would lead through itself.
fn refuse_endpoints(networks: &[Setting<Prefix>], own: &PeerSettings, faults: &mut Faults<'_>) {
    for endpoint in own.endpoint.iter().flatten() {
        let ServerEntry::Address(address) = &endpoint.value else { continue };
        let Host::Address(address) = &address.host else { continue };
        for Setting { value: prefix, at, .. } in networks {
            if prefix.contains(*address) && prefix.bits() > 0 {
                let cause = format!("networks: {prefix} covers the peer's own endpoint {address}");
                let hint = "the tunnel's packets would go through the tunnel; use smaller networks";
                faults.add(at.unwrap_or_default(), cause, Some(hint.into()));
            }
        }
    }
}

/// What no two peers may share.
#[derive(Default)]
pub(crate) struct Shared {
    prefixes: HashMap<Prefix, String>,
    devices: HashMap<String, String>,
}

impl Shared {
    /// Adds a peer, whose table is there, and refuses what an earlier one has.
    pub(crate) fn add(
        &mut self,
        (peer, at): (&str, usize),
        networks: &Networks,
        prefixes: &[Setting<Prefix>],
        faults: &mut Faults<'_>,
    ) {
        if let Some(other) = self.devices.insert(networks.device.clone(), peer.into()) {
            let cause = format!("device: peer {} also has `{}`", shown(other), networks.device);
            let hint = "choose another one, as in device = \"kp-site2\"";
            faults.add(at, cause, Some(hint.into()));
        }
        for Setting { value: prefix, at, .. } in prefixes {
            let Some(other) = self.prefixes.insert(*prefix, peer.into()) else { continue };
            let cause = format!("networks: {prefix} is also behind peer {}", shown(&other));
            let hint = "list it once; a smaller network of one peer may lie in a larger one of \
                another";
            faults.add(at.unwrap_or_default(), cause, Some(hint.into()));
        }
    }
}
