//! The pool's handle: settings, start-up, new lanes, figures.
//!
//! A pool is one arena and one filler. Dropping the last handle stops the filler; lanes that are
//! still in use run dry and their owners go inline.

use std::sync::{Arc, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use keypadd_keystream::{KeystreamKey, PacketNumber, Protection};

use crate::arena::{self, UNIT_BYTES, Unit};
use crate::chunk::{KeyId, Part};
use crate::demand::{Allowance, Direction, Traffic};
use crate::filler::{Feed, FeedEnd, Filler, Order};
use crate::lane::{Hand, Lane, Shared};
use crate::plan::{MAX_BODIES, MAX_HEADS, Stage};
use crate::shared::{FillerShared, Wake};
use crate::sync::{
    AtomicBool, AtomicU64, Mutex, MutexGuard,
    Ordering::{Acquire, Relaxed},
    RingBuffer, mpsc, thread,
};
use crate::thread::{Alive, FillerFault, FillerHost, Kernel};

/// How a pool is made.
#[derive(Clone, Copy, Debug)]
pub struct PoolSettings {
    /// Bytes of keystream memory: chunks in queues, chunks in use and free memory together. The
    /// queues' own slots, some tens of KiB a lane, come on top.
    pub budget_bytes: usize,
}

/// A keystream pool. Clones are handles to the same pool.
#[derive(Clone, Debug)]
pub struct Pool {
    handle: Arc<Handle>,
    /// Whose lanes this handle opens, where their memory is limited.
    allowance: Option<Allowance>,
    /// Protections that this handle is not to be used for.
    except: Arc<[Protection]>,
}

struct Handle {
    filler: Arc<FillerShared>,
    orders: mpsc::Sender<Order>,
    next_key: AtomicU64,
    require_locked: AtomicBool,
    /// The budget. Held while it is changed; fillers and lanes never look at it.
    budget_units: Mutex<usize>,
}

/// Figures of a pool at one moment. The counters only grow.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSnapshot {
    /// The budget, rounded down to whole units.
    pub budget_bytes: u64,
    /// Memory that holds keystream now: in queues and in use. Above the budget for as long as a
    /// budget that was lowered is still in use.
    pub filled_bytes: u64,
    /// Memory that the kernel keeps out of swap.
    pub locked_bytes: u64,
    /// Keystream generated ahead of need.
    pub fill_bytes_total: u64,
    /// CPU time that the filler spent.
    pub fill_cpu: Duration,
    /// Pads generated and never used.
    pub pads_wasted_total: u64,
    /// The kernel's id of the filler's thread.
    pub filler_thread_id: i32,
    /// False before the filler first ran and after it died: every packet is then made inline.
    pub filler_alive: bool,
    /// Whether the kernel accepted class SCHED_IDLE.
    pub filler_idle_class: bool,
    /// Why the filler has ended, if it has and was not told to.
    pub filler_fault: Option<FillerFault>,
    /// How much of one core the filler may take, in percent.
    pub max_fill_cpu_percent: u8,
}

/// The kernel did not lock all of a pool's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotLocked {
    /// What it locked.
    pub locked_bytes: u64,
    /// What there is.
    pub budget_bytes: u64,
}

impl Pool {
    /// Maps the arena and starts the filler.
    ///
    /// # Errors
    /// When the memory or the thread is refused, or the budget is smaller than one body chunk. (Below
    /// about 300 KiB there is no room for bodies beside the heads.)
    pub fn new(settings: PoolSettings) -> io::Result<Self> {
        Self::with_host(settings, Kernel::default())
    }

    /// As [`Pool::new`], with a host that may refuse or fail.
    ///
    /// # Errors
    /// As for [`Pool::new`].
    pub fn with_host(settings: PoolSettings, host: impl FillerHost) -> io::Result<Self> {
        let (pool, filler) = Self::with_filler(settings)?;
        // Alive from now on: a thread of an idle class may begin late, and a filler that has not begun
        // is none that has failed.
        let alive = Alive::new(Arc::clone(&pool.handle.filler));
        let work = || crate::thread::run(alive, filler, host);
        thread::Builder::new().name("keypadd-fill".into()).spawn(work)?;
        Ok(pool)
    }

    /// Maps the arena and hands the filler out instead of giving it a thread: whoever holds it
    /// steps it, and the order of all that happens is theirs. Nothing is filled in between.
    ///
    /// # Errors
    /// As for [`Pool::new`], without the thread's.
    pub fn with_filler(settings: PoolSettings) -> io::Result<(Self, Filler)> {
        let budget_units = units_of(settings.budget_bytes)?;
        let units = arena::map(budget_units)?;
        let (orders, received) = mpsc::channel();
        let filler = Arc::new(FillerShared::default());
        let worker = Filler::new(Arc::clone(&filler), received, units, arena::releaser()?);
        let handle = Handle {
            filler,
            orders,
            next_key: AtomicU64::new(0),
            require_locked: AtomicBool::new(false),
            budget_units: Mutex::new(budget_units),
        };
        let handle = Arc::new(handle);
        Ok((Self { handle, allowance: None, except: Arc::default() }, worker))
    }

    /// Changes the budget. Lanes keep what they hold: a larger budget is filled at once, memory above
    /// a smaller one goes back to the kernel as packets use it up and lanes close.
    ///
    /// # Errors
    /// As for [`Pool::new`]; [`io::ErrorKind::BrokenPipe`] when the filler has died; and when memory must be
    /// locked and cannot be. The budget then stays as it was.
    pub fn set_budget(&self, budget_bytes: usize) -> io::Result<()> {
        let wanted = units_of(budget_bytes)?;
        let mut budget = self.handle.budget_units();
        let new = arena::map(wanted.saturating_sub(*budget))?;
        if self.handle.require_locked.load(Relaxed) && !new.iter().all(Unit::is_locked) {
            return Err(io::Error::other("the memory cannot be locked"));
        }
        if self.handle.orders.send(Order::Budget { units: wanted, new }).is_err() {
            let ended = io::ErrorKind::BrokenPipe;
            return Err(io::Error::new(ended, "the pool has stopped filling"));
        }
        *budget = wanted;
        Wake(Arc::clone(&self.handle.filler)).filler();
        Ok(())
    }

    /// Whether this is a handle to the same pool.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    /// A handle whose lanes belong to the peer that has this allowance.
    pub fn for_peer(&self, allowance: Allowance) -> Self {
        Self { allowance: Some(allowance), ..self.clone() }
    }

    /// A handle that is not to be used for these protections: it does not pay for them.
    pub fn except(&self, protections: &[Protection]) -> Self {
        Self { except: protections.into(), ..self.clone() }
    }

    /// Whether lanes are to be opened through this handle for keys of a protection.
    pub fn serves(&self, protection: Protection) -> bool {
        !self.except.contains(&protection)
    }

    /// Limits the filler to so many percent of one core; 100 is no limit.
    pub fn set_max_fill_cpu(&self, percent: u8) {
        self.handle.filler.max_cpu_percent.store(u64::from(percent), Relaxed);
        Wake(Arc::clone(&self.handle.filler)).filler();
    }

    /// From now on a budget whose memory cannot be locked is refused.
    ///
    /// # Errors
    /// When that is so already.
    pub fn require_locked(&self) -> Result<(), NotLocked> {
        let PoolSnapshot { locked_bytes, budget_bytes, .. } = self.snapshot();
        if locked_bytes < budget_bytes {
            return Err(NotLocked { locked_bytes, budget_bytes });
        }
        self.handle.require_locked.store(true, Relaxed);
        Ok(())
    }

    /// Opens the lane of one key of `traffic`, to be filled from `next` on.
    ///
    /// The filler starts on it at once, as far as `stage` allows. If the filler has died the lane
    /// stays empty and every packet misses.
    pub fn open_lane(
        &self,
        keystream: Arc<KeystreamKey>,
        traffic: &Traffic,
        next: PacketNumber,
        stage: Stage,
    ) -> Lane {
        let key = KeyId(self.handle.next_key.fetch_add(1, Relaxed));
        let shared = Arc::new(Shared::new(stage, next.segment()));
        let keeps_recent = traffic.direction == Direction::Receive;
        let [heads, bodies] = Part::ALL.map(|part| {
            let most = match part {
                Part::Head => MAX_HEADS,
                Part::Body => MAX_BODIES,
            } as usize;
            let (ready_in, ready_out) = RingBuffer::new(most);
            let (spent_in, spent_out) = RingBuffer::new(most + Hand::held_chunks());
            let hand = Hand::new(ready_out, spent_in, keeps_recent);
            (hand, FeedEnd::new(ready_in, spent_out, next.segment()))
        });
        let wake = Wake(Arc::clone(&self.handle.filler));
        let ends = [heads.1, bodies.1];
        let owner = self.allowance.clone();
        let feed = Feed::new(key, keystream, Arc::clone(&shared), (traffic.clone(), owner), ends);
        // A dead filler no longer listens; the lane then stays dry.
        let _ = self.handle.orders.send(Order::Lane(Box::new(feed)));
        wake.filler();
        Lane::new(key, shared, traffic.clone(), [heads.0, bodies.0], wake)
    }

    /// The pool's figures now.
    pub fn snapshot(&self) -> PoolSnapshot {
        let filler = &self.handle.filler;
        let bytes = |units: u64| units * UNIT_BYTES as u64;
        PoolSnapshot {
            budget_bytes: bytes(*self.handle.budget_units() as u64),
            filled_bytes: bytes(filler.filled_units.load(Relaxed)),
            locked_bytes: bytes(filler.locked_units.load(Relaxed)),
            fill_bytes_total: filler.fill_bytes.load(Relaxed),
            fill_cpu: Duration::from_nanos(filler.fill_cpu_nanos.load(Relaxed)),
            pads_wasted_total: filler.pads_wasted.load(Relaxed),
            filler_thread_id: filler.thread_id.load(Relaxed),
            filler_alive: filler.alive.load(Acquire),
            filler_idle_class: filler.idle_class.load(Relaxed),
            filler_fault: FillerFault::from_code(filler.fault.load(Relaxed)),
            max_fill_cpu_percent: filler.max_cpu_percent.load(Relaxed) as u8,
        }
    }
}

/// Whole units of a budget.
fn units_of(budget_bytes: usize) -> io::Result<usize> {
    let units = budget_bytes / UNIT_BYTES;
    if units < Part::Body.units() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a pool of {budget_bytes} bytes holds no chunk"),
        ));
    }
    Ok(units)
}

/// A pool is told by its figures.
impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// The mutex guards one number, which no panic can leave half changed.
    fn budget_units(&self) -> MutexGuard<'_, usize> {
        self.budget_units.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.filler.stop.store(true, Relaxed);
        Wake(Arc::clone(&self.filler)).filler();
    }
}
