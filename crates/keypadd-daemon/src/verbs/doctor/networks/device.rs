//! Checks the device of a peer's networks: whether this user may use it, and whether it is as the
//! file says.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use keypadd_config::Networks;
use keypadd_config::values::RouteMode;
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};

use crate::daemon::networks::{Addresses, hint, in_sysfs};
use crate::verbs::doctor::finding::Finding;

/// Flags of the TUN driver (linux/if_tun.h).
const IFF_TUN: u32 = 0x0001;
const IFF_MULTI_QUEUE: u32 = 0x0100;

/// The flag of a device that is up (linux/if.h).
const IFF_UP: u32 = 0x0001;

/// What this user may do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rights {
    user: u32,
    /// Whether it may make and change devices: CAP_NET_ADMIN.
    manages_devices: bool,
}

impl Rights {
    pub(super) fn of_this_user() -> Self {
        let manages_devices =
            capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN));
        Self { user: geteuid().as_raw(), manages_devices }
    }
}

/// A device, as the kernel shows it.
#[derive(Clone, Debug)]
pub(super) struct Device {
    /// The flags of the TUN driver, if it is that driver's.
    tun_flags: Option<u32>,
    /// The user who alone may attach to it without CAP_NET_ADMIN, if there is one.
    owner: Option<u32>,
    mtu: Option<u16>,
    is_up: bool,
    /// The addresses of the file that it does not have.
    lacks: Vec<String>,
}

impl Device {
    /// The device of a peer's networks; `None` if there is none of that name.
    pub(super) fn read(networks: &Networks) -> Option<Self> {
        let name = &networks.device;
        let mut device = Self::in_directory(&in_sysfs(name))?;
        if let Ok(here) = Addresses::of_this_host() {
            let lacks = networks.addresses.iter();
            let lacks = lacks.filter(|one| !here.device_has(name, one.address));
            device.lacks = lacks.map(ToString::to_string).collect();
        }
        Some(device)
    }

    fn in_directory(directory: &Path) -> Option<Self> {
        let text = |name: &str| {
            let text = fs::read_to_string(directory.join(name)).ok()?;
            Some(text.trim().to_owned())
        };
        let flags = |name: &str| u32::from_str_radix(text(name)?.trim_start_matches("0x"), 16).ok();
        directory.exists().then(|| Self {
            tun_flags: flags("tun_flags"),
            // -1 if it has no owner.
            owner: text("owner").and_then(|owner| owner.parse().ok()),
            mtu: text("mtu").and_then(|mtu| mtu.parse().ok()),
            is_up: flags("flags").is_some_and(|flags| flags & IFF_UP != 0),
            lacks: Vec::new(),
        })
    }
}

/// What is wrong with a device and how to mend it; or that nothing is.
pub(super) fn findings(
    check: &str,
    networks: &Networks,
    device: Option<Device>,
    rights: Rights,
) -> Vec<Finding> {
    let Networks { device: name, addresses, mtu, routes, .. } = networks;
    let fix = |kind: ErrorKind| hint(&kind.into(), name).unwrap_or_default();
    let Rights { user, manages_devices } = rights;
    let Some(Device { tun_flags, owner, mtu: has_mtu, is_up, lacks }) = device else {
        return vec![match manages_devices {
            true => Finding::ok(check, format!("no device {name} yet: the daemon creates it")),
            false => Finding::fail(
                check,
                format!("no device {name}, and this user cannot create it"),
                fix(ErrorKind::PermissionDenied),
            ),
        }];
    };
    if tun_flags.is_none_or(|flags| flags & (IFF_TUN | IFF_MULTI_QUEUE) != IFF_TUN) {
        let found = format!("the device {name} cannot be used");
        return vec![Finding::fail(check, found, fix(ErrorKind::InvalidInput))];
    }
    let mut findings = Vec::new();
    if let Some(owner) = owner.filter(|owner| *owner != user && !manages_devices) {
        let found = format!("the device {name} belongs to user {owner}, not to user {user}");
        findings.push(Finding::fail(check, found, fix(ErrorKind::PermissionDenied)));
    }
    let is_set_up = mtu.is_some() || !addresses.is_empty() || *routes == RouteMode::Install;
    if is_set_up && !manages_devices {
        findings.push(Finding::fail(
            check,
            "this user cannot apply `address`, `mtu` and `routes` of the file",
            format!("leave them out and set up {name} yourself, or give the daemon CAP_NET_ADMIN"),
        ));
    }
    let restart = "restart the daemon, which does so at startup, or";
    if let Some(mtu) = mtu.filter(|mtu| has_mtu != Some(*mtu)) {
        let has = has_mtu.map_or_else(|| "another".into(), |mtu| mtu.to_string());
        findings.push(Finding::warn(
            check,
            format!("the MTU of {name} is {has}, {mtu} in the file"),
            format!("{restart} `ip link set dev {name} mtu {mtu}`"),
        ));
    }
    for address in lacks {
        findings.push(Finding::warn(
            check,
            format!("the device {name} does not have the address {address}"),
            format!("{restart} `ip address add {address} dev {name}`"),
        ));
    }
    if !is_up {
        let found = format!("the device {name} is down, so no packet passes");
        findings.push(Finding::warn(check, found, format!("ip link set dev {name} up")));
    }
    if findings.is_empty() {
        let mtu = has_mtu.map_or_else(String::new, |mtu| format!(", MTU {mtu}"));
        findings.push(Finding::ok(check, format!("the device {name} is up{mtu}")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use keypadd_config::Config;

    use super::*;

    const ROOT: Rights = Rights { user: 0, manages_devices: true };
    const USER: Rights = Rights { user: 1000, manages_devices: false };

    /// What is found of a device of these sysfs files.
    fn told(keys: &str, files: Option<[&str; 4]>, rights: Rights) -> Vec<String> {
        let file = format!(
            "[peer.b]\npublic-key = \"11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\"\n\
             endpoint = \"b.example\"\nnetworks = [\"10.2.0.0/16\"]\n{keys}"
        );
        let networks = Config::read(&file, u64::MAX).unwrap().peers.remove(0).networks.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let device = files.and_then(|files| {
            for (name, text) in ["tun_flags", "owner", "mtu", "flags"].into_iter().zip(files) {
                if !text.is_empty() {
                    fs::write(directory.path().join(name), format!("{text}\n")).unwrap();
                }
            }
            Device::in_directory(directory.path())
        });
        let findings = findings("b", &networks, device, rights).into_iter().map(|finding| {
            let value = serde_json::to_value(finding).unwrap();
            let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
            format!("{} {} | {}", text("verdict"), text("found"), text("fix"))
        });
        findings.collect()
    }

    #[test]
    fn a_device_that_this_user_may_use_and_is_as_the_file_says_is_fine() {
        let fine = ["ok the device kp-b is up, MTU 1400 | "];
        for (keys, owner, rights) in [
            ("", "1000", USER),
            ("", "-1", USER),
            ("", "1000", ROOT),
            ("mtu = 1400\nroutes = \"install\"", "0", ROOT),
        ] {
            assert_eq!(told(keys, Some(["0x1801", owner, "1400", "0x1091"]), rights), fine);
        }
        let missing = told("", None, ROOT);
        assert_eq!(missing, ["ok no device kp-b yet: the daemon creates it | "]);
    }

    #[test]
    fn what_keeps_a_device_from_being_used_fails_with_a_way_out() {
        const UP: &str = "0x1091";
        for (keys, device, rights, found) in [
            ("", None, USER, "fail no device kp-b, and this user cannot create it | create"),
            // An Ethernet device, a TAP device, one of several queues.
            ("", Some(["", "", "1500", UP]), ROOT, "fail the device kp-b cannot be used | it is"),
            ("", Some(["0x1802", "0", "1500", UP]), ROOT, "fail the device kp-b cannot be used |"),
            ("", Some(["0x1901", "0", "1500", UP]), ROOT, "fail the device kp-b cannot be used |"),
            (
                "",
                Some(["0x1801", "7", "1400", UP]),
                USER,
                "fail the device kp-b belongs to user 7, not to user 1000 | create it before",
            ),
            (
                "routes = \"install\"",
                Some(["0x1801", "1000", "1400", UP]),
                USER,
                "fail this user cannot apply `address`, `mtu` and `routes` of the file | leave",
            ),
        ] {
            let told = told(keys, device, rights);
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(told[0].starts_with(found), "{told:?}");
        }
    }

    #[test]
    fn what_differs_from_the_file_is_told_with_the_command_that_changes_it() {
        let told = told("mtu = 1300", Some(["0x1801", "0", "1500", "0x1090"]), ROOT);
        assert_eq!(
            told,
            [
                "warn the MTU of kp-b is 1500, 1300 in the file | restart the daemon, which does \
                 so at startup, or `ip link set dev kp-b mtu 1300`",
                "warn the device kp-b is down, so no packet passes | ip link set dev kp-b up",
            ]
        );
    }
}
