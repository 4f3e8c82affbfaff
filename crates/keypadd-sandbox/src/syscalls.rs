//! Filters system calls (seccomp(2)): those listed are allowed, all others fail with EPERM.
//!
//! The list is what the daemon, tokio, the C library and its lookup modules use: found with
//! strace(1) while both ends forwarded, reloaded and answered and, for rare paths, by reading their
//! source. A library that makes any other call gets an error, as from a kernel that forbids it, and
//! the process continues.

use std::collections::BTreeMap;
use std::process;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};

#[cfg(target_arch = "x86_64")]
const ARCH: Option<TargetArch> = Some(TargetArch::x86_64);
#[cfg(target_arch = "aarch64")]
const ARCH: Option<TargetArch> = Some(TargetArch::aarch64);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCH: Option<TargetArch> = None;

/// Allowed whatever the arguments: on descriptors, on the process's own memory, threads and time.
const ALLOWED: &[c_long] = &[
    // Sockets
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_socketpair,
    // Descriptors
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_lseek,
    libc::SYS_pipe2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_splice,
    libc::SYS_write,
    libc::SYS_writev,
    // Waiting
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    // Files: Landlock says which. Not chmod, which it does not restrict: root could change what it
    // may only read.
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_readlinkat,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    // Memory, without execution
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mremap,
    libc::SYS_munlock,
    libc::SYS_munmap,
    // Threads and their class
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_getpriority,
    libc::SYS_gettid,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getattr,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    // Signals to oneself
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    // Time, identity, limits, randomness
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getpgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_getrusage,
    libc::SYS_getsid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_nanosleep,
    libc::SYS_sysinfo,
    libc::SYS_times,
    libc::SYS_umask,
    libc::SYS_uname,
];

/// Calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[c_long] = &[
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_dup2,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_getdents,
    libc::SYS_getpgrp,
    libc::SYS_getrlimit,
    libc::SYS_lstat,
    libc::SYS_open,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_select,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[c_long] = &[];

/// What it takes to write a temporary file and rename it into place; Landlock limits where.
const REPLACING: &[c_long] = &[
    libc::SYS_fchown,
    libc::SYS_fsync,
    libc::SYS_linkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    libc::SYS_renameat,
    libc::SYS_renameat2,
];

/// Terminal and socket requests (ioctl(2)), and the number of an interface that is named in an
/// address such as fe80::1%eth0.
#[allow(clippy::unnecessary_cast)] // musl counts them in another type
const IOCTLS: &[u64] = &[
    libc::FIONBIO as u64,
    libc::FIONREAD as u64,
    libc::FIOCLEX as u64,
    libc::SIOCGIFINDEX as u64,
    libc::TCGETS as u64,
    libc::TIOCGWINSZ as u64,
    libc::TIOCOUTQ as u64,
];

/// Properties of the calling thread or of memory names (prctl(2)).
const PRCTLS: &[u64] = &[
    libc::PR_GET_DUMPABLE as u64,
    libc::PR_GET_NAME as u64,
    libc::PR_SET_NAME as u64,
    libc::PR_SET_TIMERSLACK as u64,
    libc::PR_SET_VMA as u64,
];

/// Commands on descriptors (fcntl(2)). Not F_SETOWN, by which the kernel signals any process.
const FCNTLS: &[u64] = &[
    libc::F_DUPFD as u64,
    libc::F_DUPFD_CLOEXEC as u64,
    libc::F_GETFD as u64,
    libc::F_SETFD as u64,
    libc::F_GETFL as u64,
    libc::F_SETFL as u64,
    libc::F_GETLK as u64,
    libc::F_SETLK as u64,
    libc::F_SETLKW as u64,
];

/// Types and protocols of internet sockets (socket(2)). Landlock's ports are those of plain TCP:
/// not of MPTCP or SCTP.
const PROTOCOLS: &[(i32, &[i32])] =
    &[(libc::SOCK_STREAM, &[0, libc::IPPROTO_TCP]), (libc::SOCK_DGRAM, &[0, libc::IPPROTO_UDP])];

/// The bits of a socket's type that are no flags (net.h of Linux).
const TYPE_MASK: u64 = 0xf;

/// Calls that send with flags, and which argument has them. MSG_FASTOPEN connects, past Landlock's
/// ports.
const SENDS: &[(c_long, u8)] =
    &[(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)];

/// What a new thread may share or own: no namespaces (clone(2)).
const NAMESPACES: u64 = (libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS) as u64;

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// Filters the system calls of all threads, and of those they start. `replaces`: whether files are
/// replaced.
pub(crate) fn filter_all_threads(replaces: bool) -> Result<String, String> {
    let Some(arch) = ARCH else { return Err("no system call list for this architecture".into()) };
    let programs = programs(arch, replaces).map_err(|error| error.to_string())?;
    for program in &programs {
        apply_filter_all_threads(program).map_err(|error| error.to_string())?;
    }
    Ok("system calls by seccomp".into())
}

/// The filters, in the order of installation: the kernel uses the strictest answer, and among
/// errors that of the filter installed last.
fn programs(
    arch: TargetArch,
    replaces: bool,
) -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    // Its arguments are in memory, where no filter can read them: libraries fall back to clone.
    let absent = Rules::from([(libc::SYS_clone3, Vec::new())]);
    let errno = |errno: i32| SeccompAction::Errno(errno.unsigned_abs());
    let absent = SeccompFilter::new(absent, SeccompAction::Allow, errno(libc::ENOSYS), arch)?;
    let allowed =
        SeccompFilter::new(allowed(replaces)?, errno(libc::EPERM), SeccompAction::Allow, arch)?;
    Ok([absent.try_into()?, allowed.try_into()?])
}

fn allowed(replaces: bool) -> Result<Rules, seccompiler::BackendError> {
    let replacing = REPLACING.iter().filter(|_| replaces);
    let mut rules: Rules = ALLOWED
        .iter()
        .chain(ALLOWED_HERE)
        .chain(replacing)
        .map(|call| (*call, Vec::new()))
        .collect();
    // Refused by the other filter.
    rules.insert(libc::SYS_clone3, Vec::new());
    let thread = libc::CLONE_THREAD as u64;
    let new_thread = vec![masked(0, thread, thread)?, masked(0, NAMESPACES, 0)?];
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(new_thread)?]);
    rules.insert(libc::SYS_socket, sockets()?);
    for (call, flags) in SENDS {
        let connects = libc::MSG_FASTOPEN as u64;
        rules.insert(*call, vec![SeccompRule::new(vec![masked(*flags, connects, 0)?])?]);
    }
    rules.insert(libc::SYS_fcntl, one_of(1, FCNTLS)?);
    rules.insert(libc::SYS_ioctl, one_of(1, IOCTLS)?);
    rules.insert(libc::SYS_prctl, one_of(0, PRCTLS)?);
    // Whether a process exists, and abort(3).
    rules.insert(libc::SYS_kill, one_of(1, &[0])?);
    rules.insert(libc::SYS_tgkill, one_of(0, &[u64::from(process::id())])?);
    // A thread's own niceness, nobody else's.
    let own = vec![equal(0, libc::PRIO_PROCESS as u64)?, equal(1, 0)?];
    rules.insert(libc::SYS_setpriority, vec![SeccompRule::new(own)?]);
    // A limit can be read, not set: the new one is a null pointer.
    let read_only = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![read_only])?]);
    // Code comes from files, never from writable memory (mmap(2), mprotect(2)).
    let (exec, write) = (libc::PROT_EXEC as u64, libc::PROT_WRITE as u64);
    let anonymous = libc::MAP_ANONYMOUS as u64;
    let data = SeccompRule::new(vec![masked(2, exec, 0)?])?;
    let library = SeccompRule::new(vec![masked(2, exec | write, exec)?, masked(3, anonymous, 0)?])?;
    rules.insert(libc::SYS_mmap, vec![data, library]);
    rules.insert(libc::SYS_mprotect, vec![SeccompRule::new(vec![masked(2, exec, 0)?])?]);
    Ok(rules)
}

/// Unix sockets, TCP and UDP, and routes and this host's addresses (AF_NETLINK).
fn sockets() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let mut rules = one_of(0, &[libc::AF_UNIX as u64])?;
    for family in [libc::AF_INET, libc::AF_INET6] {
        for (kind, protocols) in PROTOCOLS {
            for protocol in *protocols {
                rules.push(SeccompRule::new(vec![
                    equal(0, family as u64)?,
                    masked(1, TYPE_MASK, *kind as u64)?,
                    equal(2, *protocol as u64)?,
                ])?);
            }
        }
    }
    let route = vec![equal(0, libc::AF_NETLINK as u64)?, equal(2, libc::NETLINK_ROUTE as u64)?];
    rules.push(SeccompRule::new(route)?);
    Ok(rules)
}

/// One rule for each value that an argument may have.
fn one_of(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    values.iter().map(|value| SeccompRule::new(vec![equal(argument, *value)?])).collect()
}

fn equal(argument: u8, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// The argument's bits in `mask` are those of `value`.
fn masked(
    argument: u8,
    mask: u64,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    let operator = SeccompCmpOp::MaskedEq(mask);
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}
