//! Opens the devices of peers' networks, and lets packets pass by the rules of the file.
//!
//! Devices are opened, and addresses and routes made, before the sandbox closes: it forbids both
//! afterwards, and needs no exception.

mod addresses;
mod overlaps;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use keypadd_cli::error::{Error, Exit, one_line, system};
use keypadd_config::values::RouteMode;
use keypadd_config::{Config, Networks, Peer};
use keypadd_tunnel::handover::{DeviceRecord, Handover};
use keypadd_tunnel::{Network, NetworkRules, NetworkStatus, PeerRoutes, attach_device};
use tokio::time::interval;

pub(crate) use self::addresses::Addresses;
pub(crate) use self::overlaps::{OVERLAP_HINT, overlaps};

/// The MTU of a device that the daemon makes. A full packet, and the acknowledgments that go with
/// it, fit into the 1,452 bytes of a datagram over IPv6 and Ethernet.
const MTU: u16 = 1_400;

/// How often to look for new addresses of this host, and for packets that were dropped.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// The networks of peers, by the peers' names.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerNetworks(BTreeMap<String, Arc<Network>>);

impl PeerNetworks {
    /// Opens the devices of a file's peers.
    ///
    /// # Errors
    /// Exit 6: a device cannot be used.
    pub(crate) fn open(config: &Config) -> Result<Self, Error> {
        let with_networks =
            config.peers.iter().filter_map(|peer| Some((&peer.name, peer.networks.as_ref()?)));
        let open = |(name, settings): (&String, &Networks)| {
            let failed = |cause: &str| format!("peer {name}: device {}: {cause}", settings.device);
            let (device, record) = open(settings, failed)?;
            Ok((name.clone(), Arc::new(Network::new(name, record, device))))
        };
        with_networks.map(open).collect::<Result<_, _>>().map(Self)
    }

    /// Takes the devices of a file's peers from the process that this one replaces. Warns about
    /// those that it did not have or had set up in another way: the sandbox, which is closed,
    /// forbids to open them and to set them up.
    pub(crate) fn inherit(config: &Config, handover: &Handover) -> Self {
        let inherit = |peer: &Peer| {
            let (name, settings) = (&peer.name, peer.networks.as_ref()?);
            let device = &settings.device;
            let Some((inherited, record)) = handover.take_device(device) else {
                tracing::warn!(
                    "the old process did not have device {device} of peer {name}; restart to \
                        open it"
                );
                return None;
            };
            let network = Network::new(name, record, inherited);
            if !is_set_up(&network, settings) {
                tracing::warn!(
                    "the old process set up device {device} of peer {name} differently; restart to \
                     apply `address`, `mtu` and `routes`"
                );
            }
            Some((name.clone(), Arc::new(network)))
        };
        Self(config.peers.iter().filter_map(inherit).collect())
    }

    /// The networks of all peers.
    pub(crate) fn all(&self) -> Vec<Arc<Network>> {
        self.0.values().cloned().collect()
    }

    /// The network of a peer.
    pub(crate) fn of(&self, peer: &str) -> Option<Arc<Network>> {
        self.0.get(peer).cloned()
    }

    /// Lets pass what a file says from now on.
    pub(crate) fn apply(&self, config: &Config) {
        self.set_addresses();
        let routes = Arc::new(peer_routes(config));
        for (name, network) in &self.0 {
            let peer = config.peers.iter().find(|peer| peer.name == *name);
            let networks = peer.and_then(|peer| peer.networks.as_ref());
            network.set_rules(networks.map(|networks| NetworkRules {
                networks: networks.prefixes.clone(),
                permits: networks.permits.clone(),
                routes: Arc::clone(&routes),
            }));
        }
    }

    /// Keeps to what the addresses of this host are, and logs which packets were dropped. Never
    /// returns.
    pub(crate) async fn watch(self) {
        let mut ticks = interval(CHECK_EVERY);
        loop {
            ticks.tick().await;
            self.set_addresses();
            self.0.values().for_each(|network| network.log_dropped(Instant::now()));
        }
    }

    fn set_addresses(&self) {
        if self.0.is_empty() {
            return;
        }
        match Addresses::of_this_host() {
            Ok(addresses) => {
                for network in self.0.values() {
                    let own = addresses.of_device(network.device_name());
                    network.set_host(Arc::clone(&addresses.host), own);
                }
            }
            // Rules without them would let a permit for a prefix reach this host itself.
            Err(error) => tracing::warn!(
                "cannot list the addresses of this host ({error}): networks use those known \
                 before, and carry nothing if there are none"
            ),
        }
    }

    /// Whether a file needs devices, addresses or routes that only a start makes.
    pub(crate) fn needs_restart(&self, config: &Config) -> bool {
        config.peers.iter().any(|peer| {
            let Some(networks) = &peer.networks else { return false };
            !self.0.get(&peer.name).is_some_and(|network| is_set_up(network, networks))
        })
    }

    /// The status of each network.
    pub(crate) fn status(&self) -> Vec<NetworkStatus> {
        self.0.values().map(|network| network.status()).collect()
    }
}

/// Which peer of a file an address is behind.
pub(crate) fn peer_routes(config: &Config) -> PeerRoutes {
    let all = config.peers.iter().flat_map(|peer| {
        let name: Arc<str> = peer.name.as_str().into();
        let prefixes = peer.networks.iter().flat_map(|networks| &networks.prefixes);
        prefixes.map(move |prefix| (Arc::clone(&name), *prefix))
    });
    // A valid file has no overlaps.
    PeerRoutes::new(all).unwrap_or_default()
}

/// Whether the device of a network is the one of these settings, set up by them. One that an older
/// version has set up counts as such.
fn is_set_up(network: &Network, settings: &Networks) -> bool {
    let setup = network.device_setup();
    network.device_name() == settings.device && setup.is_none_or(|setup| setup == asked(settings))
}

/// How settings ask for a device to be set up, whether or not it existed.
fn asked(settings: &Networks) -> String {
    commands(settings, true).all
}

/// Opens a device and sets it up.
fn open(
    settings: &Networks,
    failed: impl Fn(&str) -> String,
) -> Result<(OwnedFd, DeviceRecord), Error> {
    let name = &settings.device;
    let existed = in_sysfs(name).exists();
    let device = attach_device(name).map_err(|error| {
        let error_line = Error::new(Exit::BindFailed, failed(&system(&error)));
        match hint(&error, name) {
            Some(hint) => error_line.hint(hint),
            None => error_line,
        }
    })?;
    let Commands { old_routes, all } = commands(settings, existed);
    if !all.is_empty() {
        // Fails where there are none.
        let _ = ip(&["-force", "-batch", "-"], &old_routes);
        ip(&["-batch", "-"], &all).map_err(|cause| {
            Error::new(Exit::BindFailed, failed(&cause)).hint(
                "give the daemon CAP_NET_ADMIN, or create the device, its addresses and its routes \
                 yourself and leave `address`, `mtu` and `routes` out",
            )
        })?;
    }
    let mtu = std::fs::read_to_string(in_sysfs(name).join("mtu"));
    let mtu = mtu.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(MTU);
    Ok((device, DeviceRecord { name: name.clone(), mtu, setup: Some(asked(settings)) }))
}

pub(crate) fn in_sysfs(device: &str) -> std::path::PathBuf {
    Path::new("/sys/class/net").join(device)
}

/// What to do about a device that cannot be attached to.
pub(crate) fn hint(error: &io::Error, name: &str) -> Option<String> {
    match error.kind() {
        io::ErrorKind::NotFound => Some(
            "there is no /dev/net/tun: load the module `tun`; a container needs --device \
                /dev/net/tun"
                .into(),
        ),
        io::ErrorKind::PermissionDenied => Some(format!(
            "create it beforehand for the daemon's user, as with `ip tuntap add dev {name} mode \
                tun user keypadd`, or give the daemon CAP_NET_ADMIN"
        )),
        io::ErrorKind::ResourceBusy => {
            Some("another program uses it; choose another one with `device`".into())
        }
        io::ErrorKind::InvalidInput => Some(
            "it is not a TUN device with one queue, as `ip tuntap add mode tun` creates; choose \
             another one with `device`"
                .into(),
        ),
        _ => None,
    }
}

/// What `ip` is to do, one command a line.
struct Commands {
    /// Removes routes that an earlier run has left.
    old_routes: String,
    all: String,
}

/// How to set up a device: nothing, if it existed and the file does not ask for anything.
fn commands(settings: &Networks, existed: bool) -> Commands {
    let Networks { prefixes, device, addresses, mtu, routes, .. } = settings;
    let mut all = String::new();
    let mtu = mtu.or((!existed).then_some(MTU));
    if let Some(mtu) = mtu {
        all += &format!("link set dev {device} mtu {mtu}\n");
    }
    let installs = *routes == RouteMode::Install;
    if !existed || !addresses.is_empty() || installs {
        all += &format!("link set dev {device} up\n");
    }
    for address in addresses {
        all += &format!("address replace {address} dev {device}\n");
    }
    let mut old_routes = String::new();
    for prefix in prefixes.iter().filter(|_| installs) {
        old_routes += &format!("route del {prefix} dev {device}\n");
        all += &format!("route add {prefix} dev {device}\n");
    }
    Commands { old_routes, all }
}

/// Runs ip(8) on these lines.
fn ip(arguments: &[&str], lines: &str) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot run `ip`: {}", system(&error));
    let mut child = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // Fails if it has ended, which its exit code explains.
        let _ = stdin.write_all(lines.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let errors = String::from_utf8_lossy(&output.stderr);
            Err(format!("`ip`: {}", one_line(errors.lines().next().unwrap_or("failed"))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(keys: &str) -> Networks {
        let file = format!(
            "[peer.b]\npublic-key = \"11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\"\n\
             endpoint = \"b.example\"\nnetworks = [\"10.2.0.0/16\", \"fd02::/48\"]\n{keys}"
        );
        Config::read(file.as_str(), u64::MAX).unwrap().peers.remove(0).networks.unwrap()
    }

    fn all(keys: &str, existed: bool) -> String {
        commands(&networks(keys), existed).all
    }

    #[test]
    fn a_device_that_exists_is_left_alone_unless_the_file_says_more() {
        assert_eq!(all("", true), "");
        assert_eq!(all("mtu = 1300", true), "link set dev kp-b mtu 1300\n");
        assert_eq!(
            all("address = \"10.255.0.1/31\"", true),
            "link set dev kp-b up\naddress replace 10.255.0.1/31 dev kp-b\n"
        );
    }

    #[test]
    fn a_device_that_was_set_up_by_other_settings_needs_a_restart() {
        let before = "address = \"10.255.0.1/31\"\nmtu = 1300\nroutes = \"install\"";
        let setup = Some(asked(&networks(before)));
        let (device, _) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let record = DeviceRecord { name: "kp-b".into(), mtu: 1_300, setup };
        let network = Network::new("b", record, device.into());
        assert!(is_set_up(&network, &networks(before)));
        let permits = "permit-networks = [\"10.9.0.0/16\"]";
        assert!(is_set_up(&network, &networks(&format!("{before}\n{permits}"))));
        for (changed, to) in [
            ("10.255.0.1/31", "10.255.0.3/31"),
            ("1300", "1400"),
            ("install", "none"),
            ("mtu", "device = \"kp-c\"\nmtu"),
        ] {
            let after = before.replace(changed, to);
            assert!(!is_set_up(&network, &networks(&after)), "{after}");
        }
    }

    #[test]
    fn a_new_device_gets_its_mtu_addresses_and_routes() {
        assert_eq!(all("", false), "link set dev kp-b mtu 1400\nlink set dev kp-b up\n");
        let keys = "device = \"t\"\naddress = [\"fd00::1/64\"]\nroutes = \"install\"";
        let Commands { old_routes, all } = commands(&networks(keys), false);
        assert_eq!(
            all,
            "link set dev t mtu 1400\nlink set dev t up\naddress replace fd00::1/64 dev t\n\
             route add 10.2.0.0/16 dev t\nroute add fd02::/48 dev t\n"
        );
        assert_eq!(old_routes, "route del 10.2.0.0/16 dev t\nroute del fd02::/48 dev t\n");
    }
}
