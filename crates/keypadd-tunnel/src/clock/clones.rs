//! Reads what a hypervisor says about this machine: that it was restored from a snapshot, cloned,
//! or moved to another host.
//!
//! There are two sources, and a machine may have both, one or neither. A VM clock device
//! (linux/vmclock-abi.h) changes its disruption marker before the copy runs; it is read before each
//! send, so no packet leaves in between. A new VM generation ID is visible only to the kernel,
//! which announces it a moment after the copy has resumed (linux drivers/virt/vmgenid.c). Both are
//! opened before the sandbox closes files. Knows no connections.

use std::{
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::fs::FileExt},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SocketFlags, SocketType, bind,
        netlink::{KOBJECT_UEVENT, SocketAddrNetlink},
        recv, socket_with, sockopt,
    },
};
use tracing::debug;

use crate::clock::jump::{Clocks, Readings, SystemClocks};

/// The VM clock device of Linux 6.13 and newer.
const VM_CLOCK: &str = "/dev/vmclock0";

/// The first bytes of a VM clock: 0x4b4c4356, little-endian.
const VM_CLOCK_MAGIC: &[u8] = b"VCLK";
/// The part to read: from the magic number to the end of the disruption marker.
const VM_CLOCK_BYTES: usize = 24;

/// Where the kernel lists the device that has the generation ID: a platform device since Linux
/// 6.10, an ACPI device before.
const GENERATION_DRIVERS: [&str; 2] =
    ["/sys/bus/platform/drivers/vmgenid", "/sys/bus/acpi/drivers/vmgenid"];

/// The multicast group of the kernel's own announcements (lib/kobject_uevent.c).
const KERNEL_GROUP: u32 = 1;
/// The line of an announcement that says that the machine is a new one.
const NEW_GENERATION: &[u8] = b"NEW_VMGENID=1";
/// Longest announcement: 2 KiB of lines after a path (linux/kobject.h, UEVENT_BUFFER_SIZE).
const ANNOUNCEMENT_BYTES: usize = 8192;
/// Room for announcements of other devices, of which a machine that starts containers has many.
const RECEIVE_BUFFER_BYTES: usize = 1 << 20;

/// What a hypervisor offers, opened but not yet watched.
#[derive(Debug, Default)]
pub struct Hypervisor {
    vm_clock: Option<VmClock>,
    announcements: Option<OwnedFd>,
}

impl Hypervisor {
    /// Opens the sources that this machine has. Omits those that it lacks or this user may not
    /// read.
    pub fn open() -> Self {
        let has_generations = GENERATION_DRIVERS.iter().any(|driver| has_device(Path::new(driver)));
        let announcements = has_generations.then(announcements).and_then(|opened| {
            opened.inspect_err(|error| debug!(%error, "cannot monitor VM generation IDs")).ok()
        });
        Self { announcements, ..Self::with_vm_clock(Path::new(VM_CLOCK)) }
    }

    /// Opens only the VM clock at this path, if there is one.
    pub fn with_vm_clock(path: &Path) -> Self {
        let opened = VmClock::open(path);
        let vm_clock =
            opened.inspect_err(|error| debug!(%error, "cannot read the VM clock device")).ok();
        Self { vm_clock, announcements: None }
    }

    /// The system's clocks together with the hypervisor's signals. Starts a thread that waits for
    /// announcements, if there can be any.
    pub fn clocks(self) -> HostClocks {
        let Self { vm_clock, announcements } = self;
        let generations = Arc::new(AtomicU64::new(0));
        if let Some(socket) = announcements {
            let counted = Arc::clone(&generations);
            let watch = move || count_generations(&socket, &counted);
            if let Err(error) = thread::Builder::new().name("keypadd-vmgenid".into()).spawn(watch) {
                debug!(%error, "cannot monitor VM generation IDs");
            }
        }
        HostClocks { vm_clock, generations }
    }
}

/// The system's clocks, and the counters by which a copy of this machine differs from the original.
#[derive(Debug)]
pub struct HostClocks {
    vm_clock: Option<VmClock>,
    /// New generations announced so far.
    generations: Arc<AtomicU64>,
}

impl Clocks for HostClocks {
    fn read(&self) -> Readings {
        Readings {
            vm_disruption: self.vm_clock.as_ref().and_then(VmClock::disruption_marker),
            vm_generations: self.generations.load(Ordering::Acquire),
            ..SystemClocks.read()
        }
    }
}

/// An open VM clock device.
#[derive(Debug)]
struct VmClock(File);

impl VmClock {
    fn open(path: &Path) -> io::Result<Self> {
        let clock = Self(File::open(path)?);
        match clock.head()?.starts_with(VM_CLOCK_MAGIC) {
            true => Ok(clock),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The kernel never copies half of an update (drivers/ptp/ptp_vmclock.c).
    fn head(&self) -> io::Result<[u8; VM_CLOCK_BYTES]> {
        let mut head = [0; VM_CLOCK_BYTES];
        self.0.read_exact_at(&mut head, 0)?;
        Ok(head)
    }

    /// Changes whenever the machine was restored or moved; `None` if the device no longer answers,
    /// which is a change, too.
    fn disruption_marker(&self) -> Option<u64> {
        let head = self.head().ok()?;
        head.last_chunk().map(|marker| u64::from_le_bytes(*marker))
    }
}

/// Whether a driver has a device: the links in its directory are its devices and its module.
fn has_device(driver: &Path) -> bool {
    let Ok(entries) = fs::read_dir(driver) else { return false };
    entries.flatten().any(|entry| entry.path().is_symlink() && entry.file_name() != *"module")
}

/// A socket that receives the kernel's announcements (netlink(7), NETLINK_KOBJECT_UEVENT). Besides
/// the kernel, only root can send to it.
fn announcements() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(KOBJECT_UEVENT))?;
    sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES)?;
    bind(&socket, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
    Ok(socket)
}

/// Counts announced generations until the socket fails.
fn count_generations(socket: &OwnedFd, generations: &AtomicU64) {
    let mut announcement = [0; ANNOUNCEMENT_BYTES];
    loop {
        match recv(socket, &mut announcement[..], RecvFlags::empty()) {
            Ok((_, 0)) => return,
            Ok((_, bytes)) if !names_new_generation(&announcement[..bytes]) => {}
            // On ENOBUFS the kernel dropped announcements, and one of them may have been a new
            // generation.
            Ok(_) | Err(Errno::NOBUFS) => {
                generations.fetch_add(1, Ordering::Release);
            }
            Err(Errno::INTR) => {}
            Err(error) => return debug!(%error, "stopped monitoring VM generation IDs"),
        }
    }
}

/// Whether an announcement, a list of lines ending in NUL, is that of a new generation.
fn names_new_generation(announcement: &[u8]) -> bool {
    announcement.split(|byte| *byte == 0).any(|line| line == NEW_GENERATION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    const OF_A_CABLE: &[u8] = b"change@/devices/eth0\0ACTION=change\0CARRIER=1\0SEQNUM=41\0";
    const OF_A_CLONE: &[u8] =
        b"change@/devices/platform/VMGENCTR:00\0ACTION=change\0NEW_VMGENID=1\0SEQNUM=42\0";

    fn vm_clock(directory: &Path, magic: &[u8], marker: u64) -> std::path::PathBuf {
        let path = directory.join("vmclock");
        let rest = [0; VM_CLOCK_BYTES - 12];
        fs::write(&path, [magic, &rest, &marker.to_le_bytes(), &[0; 80]].concat()).unwrap();
        path
    }

    #[test]
    fn a_vm_clock_tells_its_disruption_marker_and_then_that_it_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = vm_clock(directory.path(), VM_CLOCK_MAGIC, 7);
        let clocks = Hypervisor::with_vm_clock(&path).clocks();
        assert_eq!(clocks.read().vm_disruption, Some(7));
        vm_clock(directory.path(), VM_CLOCK_MAGIC, 1 << 40);
        assert_eq!(clocks.read().vm_disruption, Some(1 << 40));
        File::options().write(true).truncate(true).open(&path).unwrap();
        assert_eq!(clocks.read().vm_disruption, None);
    }

    #[test]
    fn neither_a_missing_nor_another_file_is_taken_for_a_vm_clock() {
        let directory = tempfile::tempdir().unwrap();
        let other = vm_clock(directory.path(), b"VCLX", 7);
        for path in [other, directory.path().join("absent"), "/dev/null".into()] {
            let clocks = Hypervisor::with_vm_clock(&path).clocks();
            assert_eq!(clocks.read().vm_disruption, None, "{path:?}");
        }
    }

    #[test]
    fn an_announced_generation_is_counted_and_other_announcements_are_not() {
        let (kernel, socket) = UnixDatagram::pair().unwrap();
        let announcements = Some(OwnedFd::from(socket));
        let clocks = Hypervisor { announcements, vm_clock: None }.clocks();
        assert_eq!(clocks.read().vm_generations, 0);
        // The last one ends the thread, and with it the other handle.
        for announcement in [OF_A_CABLE, OF_A_CLONE, OF_A_CABLE, OF_A_CLONE, b""] {
            kernel.send(announcement).unwrap();
        }
        while Arc::strong_count(&clocks.generations) > 1 {
            thread::yield_now();
        }
        assert_eq!(clocks.read().vm_generations, 2);
    }

    #[test]
    fn a_driver_without_a_device_is_no_source() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("bind"), "").unwrap();
        std::os::unix::fs::symlink("/", directory.path().join("module")).unwrap();
        assert!(!has_device(directory.path()));
        assert!(!has_device(&directory.path().join("absent")));
        std::os::unix::fs::symlink("/", directory.path().join("VMGENCTR:00")).unwrap();
        assert!(has_device(directory.path()));
    }
}
