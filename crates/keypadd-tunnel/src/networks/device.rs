//! Attaches to TUN devices.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use tun_rs::DeviceBuilder;

/// Attaches to a TUN device, which is made if it does not exist, and is gone with the last
/// descriptor unless it was made to stay.
///
/// # Errors
/// Those of the system: there are no TUN devices, it belongs to somebody else, it is in use, or it
/// is none.
pub fn attach_device(name: &str) -> io::Result<OwnedFd> {
    let device =
        DeviceBuilder::new().name(name).offload(true).inherit_enable_state().build_sync()?;
    let device = device.as_fd().try_clone_to_owned()?;
    rustix::io::ioctl_fionbio(&device, true)?;
    Ok(device)
}
