//! Drops capabilities of the calling thread, and so of every thread that it starts
//! (capabilities(7)).

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use crate::Needs;

/// Capabilities that the daemon still needs. Switching users drops these, too.
pub(crate) fn kept(needs: &Needs, locks_freely: bool) -> CapabilitySet {
    let mut kept = CapabilitySet::empty();
    if !locks_freely {
        kept |= CapabilitySet::IPC_LOCK;
    }
    if needs.low_ports {
        kept |= CapabilitySet::NET_BIND_SERVICE;
    }
    if needs.changes_owner {
        kept |= CapabilitySet::CHOWN;
    }
    if needs.account.is_some() {
        kept |= CapabilitySet::SETUID | CapabilitySet::SETGID;
    }
    kept
}

/// Drops all capabilities of the calling thread but these, given as bits (capget(2)).
///
/// # Errors
/// The system refuses it.
pub fn limit_capabilities(kept: u64) -> Result<(), String> {
    drop_all_but(CapabilitySet::from_bits_retain(kept)).map(drop)
}

/// Drops all others from every set.
pub(crate) fn drop_all_but(kept: CapabilitySet) -> Result<String, String> {
    let text = |error: Errno| error.to_string();
    let held = capabilities(None).map_err(text)?;
    let _ = clear_ambient_capability_set();
    if held.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().iter().filter(|one| !kept.contains(*one)) {
            // Fails for those that a kernel does not know.
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    let left = held.permitted & kept;
    let sets =
        CapabilitySets { effective: left, permitted: left, inheritable: CapabilitySet::empty() };
    if sets != held {
        set_capabilities(None, sets).map_err(text)?;
    }
    let lasting = [
        (CapabilitySet::NET_BIND_SERVICE, "binding ports below 1024"),
        (CapabilitySet::IPC_LOCK, "locking memory"),
    ];
    let lasting = lasting.into_iter().filter(|(capability, _)| left.contains(*capability));
    let lasting = lasting.map(|(_, text)| text).collect::<Vec<_>>();
    Ok(match lasting.is_empty() {
        true => "no capabilities".into(),
        false => format!("no capabilities but {}", lasting.join(" and ")),
    })
}
