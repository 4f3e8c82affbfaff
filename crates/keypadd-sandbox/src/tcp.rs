//! Restricts which TCP ports can be connected to (landlock(7), since Linux 6.7). Listening is not
//! restricted.

use std::collections::BTreeSet;

use landlock::{
    AccessNet, CompatLevel, Compatible, LandlockStatus, NetPort, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus,
};

/// The DNS port, for answers too long for UDP.
const DNS: u16 = 53;

/// Restricts the calling thread, and all that it starts, to these ports and DNS.
pub(crate) fn restrict(ports: &BTreeSet<u16>) -> Result<String, String> {
    let status = restricted(ports).map_err(|error| error.to_string())?;
    match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, LandlockStatus::Available { .. }) => {
            Err("Landlock has no TCP ports before Linux 6.7".into())
        }
        (RulesetStatus::NotEnforced, _) => Err("no Landlock".into()),
        _ => Ok(format!("TCP connections to ports {} by Landlock", listed(ports))),
    }
}

fn restricted(ports: &BTreeSet<u16>) -> Result<landlock::RestrictionStatus, RulesetError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessNet::ConnectTcp)?
        .create()?;
    for port in ports.iter().chain([&DNS]) {
        rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
    }
    rules.restrict_self()
}

/// The ports that are allowed, in a line of bounded length.
fn listed(ports: &BTreeSet<u16>) -> String {
    const SHOWN: usize = 8;
    let mut all = ports.clone();
    all.insert(DNS);
    let shown: Vec<String> = all.iter().take(SHOWN).map(u16::to_string).collect();
    match all.len().saturating_sub(SHOWN) {
        0 => shown.join(" "),
        more => format!("{} and {more} more", shown.join(" ")),
    }
}
