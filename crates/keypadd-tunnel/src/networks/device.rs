//! Attaches to TUN devices.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use tun_rs::DeviceBuilder;

/// Attaches to a TUN device. Creates it if there is none of this name; then it disappears with its
/// last descriptor.
///
/// # Errors
/// The system has no TUN devices, or this one belongs to somebody else, is in use, or is not a TUN
/// device.
pub fn attach_device(name: &str) -> io::Result<OwnedFd> {
    let device =
        DeviceBuilder::new().name(name).offload(true).inherit_enable_state().build_sync()?;
    let device = device.as_fd().try_clone_to_owned()?;
    rustix::io::ioctl_fionbio(&device, true)?;
    Ok(device)
}
