//! Decides whether a daemon has a pool, for which suites and how large. `auto` (`choice.rs`)
//! follows the suites and the packet lengths in use. A reload may change all of it.

mod choice;
#[cfg(test)]
mod following;

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keypadd_cli::error::{Error, Exit, system};
use keypadd_config::values::PoolMode;
use keypadd_config::{Config, Settings};
use keypadd_keystream::{CipherEngine, Protection, Suite};
use keypadd_pool::{FillerFault, NotLocked, Pool, PoolSettings};
use keypadd_provider::PoolSwitch;
use keypadd_tunnel::on_own_thread;
use tokio::sync::OwnedMutexGuard;

use crate::status::text::locked_of;

use choice::choose;
pub(crate) use choice::{Choice, timed};

/// A pool takes at most one in this many bytes of the memory that the process may use, and half of
/// that by default.
pub(crate) const BUDGET_ONE_IN: u64 = 8;
/// The smallest budget in bytes: the chunks of a single connection.
const BUDGET_MIN: usize = 1 << 20;

/// The largest budget in this much memory.
pub(crate) fn budget_max(memory_bytes: u64) -> usize {
    usize::try_from(memory_bytes / BUDGET_ONE_IN).unwrap_or(usize::MAX).max(BUDGET_MIN)
}

/// Says that a budget that somebody set is cut, if it is.
pub(crate) fn budget_cut(settings: &Settings, memory_bytes: u64) -> Option<String> {
    let asked = &settings.pool_budget;
    let PoolOptions { mode, budget_bytes, .. } = PoolOptions::of(settings, memory_bytes);
    let is_cut = asked.at.is_some() && budget_bytes < asked.value && mode != PoolMode::Off;
    let size = |bytes: u64| bytesize::ByteSize::b(bytes).display().iec();
    is_cut.then(|| {
        format!(
            "pool-budget {} is reduced to {}, 1/{BUDGET_ONE_IN} of the memory of {}: more could \
             get the daemon killed",
            size(asked.value as u64),
            size(budget_bytes as u64),
            size(memory_bytes)
        )
    })
}

/// The pool settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolOptions {
    pub(crate) mode: PoolMode,
    pub(crate) budget_bytes: usize,
    /// CPU limit of the filler, in percent of one core.
    pub(crate) max_fill_cpu_percent: u8,
    /// Whether the pool's memory must be locked.
    pub(crate) require_locked: bool,
}

impl PoolOptions {
    /// The pool settings of a daemon that may use this much memory.
    pub(crate) fn of(settings: &Settings, memory_bytes: u64) -> Self {
        let (budget, most) = (&settings.pool_budget, budget_max(memory_bytes));
        let budget_bytes = match budget.at {
            Some(_) => budget.value.min(most),
            None => budget.value.min((most / 2).max(BUDGET_MIN)),
        };
        Self {
            mode: settings.pool.value,
            budget_bytes,
            max_fill_cpu_percent: settings.max_fill_cpu.value,
            require_locked: settings.require_locked.value,
        }
    }
}

/// Suites that sessions may use: those accepted, if the file has a `listen`, and those offered.
pub(crate) fn pool_suites(config: &Config) -> Vec<Suite> {
    let mut suites =
        if config.settings.listen.is_some() { config.settings.suites() } else { Vec::new() };
    for outgoing in config.peers.iter().filter_map(|peer| peer.outgoing.as_ref()) {
        for suite in &outgoing.suites {
            if !suites.contains(suite) {
                suites.push(*suite);
            }
        }
    }
    suites
}

/// The pool in use; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Pooling {
    /// Locked for a moment only: the memory of a large pool takes seconds to prepare, while
    /// sessions go on with what they have.
    state: Arc<Mutex<State>>,
    /// Held from the preparation of a change to its end.
    changing: Arc<tokio::sync::Mutex<()>>,
    /// Holds a pool handle limited to the suites that use it. Replaced under the lock of `state`,
    /// so that readers of both see a consistent pair.
    switch: PoolSwitch,
}

#[derive(Debug)]
struct State {
    options: PoolOptions,
    /// What `auto` chose, kept in other modes too.
    choices: Vec<Choice>,
    /// Packets of each length when `auto` last looked.
    lengths: [u64; 3],
}

/// A prepared change.
pub(crate) struct Change {
    options: PoolOptions,
    /// The pool from now on.
    pool: Option<Pool>,
    /// Suites that do not use it.
    excluded: Vec<Protection>,
    choices: Vec<Choice>,
    /// Its former budget, if that has changed.
    former_budget_bytes: Option<usize>,
    /// No other change is prepared meanwhile.
    _lock: ChangeLock,
}

/// The right to change the pool.
type ChangeLock = OwnedMutexGuard<()>;

impl Pooling {
    /// Creates the pool for these options and suites.
    ///
    /// # Errors
    /// Exit 1: there is not enough memory, or it must be locked and cannot be.
    pub(crate) fn start(
        options: PoolOptions,
        suites: &[Suite],
        engine: CipherEngine,
    ) -> Result<Self, Error> {
        let state = Arc::new(Mutex::new(State { options, choices: Vec::new(), lengths: [0; 3] }));
        let changing = Arc::new(tokio::sync::Mutex::new(()));
        let lock = Arc::clone(&changing).try_lock_owned().expect("nobody else has it yet");
        let pooling = Self { state, changing, switch: PoolSwitch::default() };
        let change = pooling.prepare_here(options, suites, engine, lock)?;
        pooling.apply(change);
        Ok(pooling)
    }

    /// The pool switch of sessions, current after every change.
    pub(crate) fn switch(&self) -> PoolSwitch {
        self.switch.clone()
    }

    /// The pool in use now.
    pub(crate) fn pool(&self) -> Option<Pool> {
        self.switch.pool()
    }

    /// The mode, what `auto` chose if that is the mode, and the pool.
    pub(crate) fn in_force(&self) -> (PoolMode, Vec<Choice>, Option<Pool>) {
        let state = self.locked();
        let mode = state.options.mode;
        let choices = if mode == PoolMode::Auto { state.choices.clone() } else { Vec::new() };
        (mode, choices, self.switch.pool())
    }

    /// Why the filler has stopped, in one line; `None` while it runs.
    pub(crate) fn fault(&self) -> Option<String> {
        let snapshot = self.pool()?.snapshot();
        if snapshot.filler_alive {
            return None;
        }
        let reason = snapshot.filler_fault.map_or("the filler has exited", FillerFault::reason);
        Some(format!(
            "the pool filler stopped: {reason}; set the pool to off and on again to restart it"
        ))
    }

    /// Does the part of a change that can fail, on a thread of its own. A pool that stays gets its
    /// new budget immediately; [`Self::undo`] restores the old one. A pool whose filler has exited
    /// is kept and does not block the rest of the change; [`Self::fault`] reports it.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub(crate) async fn prepare(
        &self,
        options: PoolOptions,
        suites: Vec<Suite>,
        engine: CipherEngine,
    ) -> Result<Change, Error> {
        let lock = Arc::clone(&self.changing).lock_owned().await;
        let this = self.clone();
        elsewhere(move || this.prepare_here(options, &suites, engine, lock)).await
    }

    fn prepare_here(
        &self,
        options: PoolOptions,
        suites: &[Suite],
        engine: CipherEngine,
        lock: ChangeLock,
    ) -> Result<Change, Error> {
        let before = self.locked().choices.clone();
        let choices = match options.mode {
            PoolMode::Auto => choose(suites, engine, &before),
            PoolMode::On | PoolMode::Off => before,
        };
        self.prepare_with(options, choices, lock)
    }

    fn prepare_with(
        &self,
        options: PoolOptions,
        choices: Vec<Choice>,
        lock: ChangeLock,
    ) -> Result<Change, Error> {
        let is_wanted = match options.mode {
            PoolMode::On => true,
            PoolMode::Off => false,
            PoolMode::Auto => choices.iter().any(Choice::wants_pool),
        };
        let former = self.locked().options.budget_bytes;
        let mut former_budget_bytes = None;
        let pool = match self.pool().filter(|_| is_wanted) {
            Some(pool) => {
                if options.budget_bytes != former && resize(&pool, options.budget_bytes)? {
                    former_budget_bytes = Some(former);
                }
                Some(pool)
            }
            None if is_wanted => Some(new_pool(options)?),
            None => None,
        };
        let is_left_out =
            |choice: &&Choice| options.mode == PoolMode::Auto && !choice.is_worthwhile();
        let excluded = choices.iter().filter(is_left_out).map(Choice::protection).collect();
        Ok(Change { options, pool, excluded, choices, former_budget_bytes, _lock: lock })
    }

    /// Applies a change to current and future sessions.
    pub(crate) fn apply(&self, change: Change) {
        let mut state = self.locked();
        let Change { options, pool, excluded, choices, .. } = change;
        if let Some(pool) = &pool {
            pool.set_max_fill_cpu(options.max_fill_cpu_percent);
        }
        self.switch.set_excluding(pool, &excluded);
        *state = State { options, choices, ..*state };
    }

    /// Lets `auto` follow the sessions: called every second with the packets of each length so far.
    /// Does nothing while another change is prepared. Needs a tokio runtime.
    pub(crate) fn follow(&self, lengths: [u64; 3]) {
        let Ok(lock) = Arc::clone(&self.changing).try_lock_owned() else { return };
        let mut state = self.locked();
        if state.options.mode != PoolMode::Auto {
            return;
        }
        let packets =
            std::array::from_fn(|class| lengths[class].wrapping_sub(state.lengths[class]));
        let packets = (packets.iter().sum::<u64>() >= FOLLOWED_PACKETS).then_some(packets);
        if packets.is_some() {
            state.lengths = lengths;
        }
        let mut changed = false;
        for choice in &mut state.choices {
            changed |= choice.follow(self.switch.has_connection(choice.protection()), packets);
        }
        if !changed {
            return;
        }
        let (options, choices) = (state.options, state.choices.clone());
        drop(state);
        let this = self.clone();
        tokio::spawn(async move {
            let preparing = this.clone();
            match elsewhere(move || preparing.prepare_with(options, choices, lock)).await {
                Ok(change) => this.apply(change),
                Err(error) => tracing::warn!("pool unchanged: {error}"),
            }
        });
    }

    /// Reverts a change that was prepared but not applied.
    pub(crate) async fn undo(&self, change: Change) {
        if let (Some(pool), Some(bytes)) = (change.pool, change.former_budget_bytes) {
            let _ = elsewhere(move || Ok(pool.set_budget(bytes))).await;
        }
    }

    /// The state is always replaced as a whole, so it is consistent after a panic.
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs work that takes a while on a thread of its own.
///
/// # Errors
/// What the work returns; exit 1 if no thread can be started.
async fn elsewhere<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    on_own_thread(work).await.map_err(|error| {
        Error::new(Exit::Runtime, format!("cannot start a thread: {}", system(&error)))
            .hint("raise `ulimit -u`, or TasksMax= in the systemd unit")
    })?
}

/// Packets after which `auto` judges by their lengths: a second of moderate traffic, more than the
/// handshakes of a few sessions.
const FOLLOWED_PACKETS: u64 = 1_000;

/// How to lock more memory.
const LOCK_HINT: &str = "raise `ulimit -l`, or LimitMEMLOCK= in the systemd unit";

/// Changes a pool's budget; returns false if its filler has exited, which would apply it.
fn resize(pool: &Pool, budget_bytes: usize) -> Result<bool, Error> {
    if !pool.snapshot().filler_alive {
        return Ok(false);
    }
    match pool.set_budget(budget_bytes) {
        Ok(()) => Ok(true),
        // It has just exited.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(no_pool(budget_bytes, &error)),
    }
}

fn new_pool(options: PoolOptions) -> Result<Pool, Error> {
    let budget_bytes = options.budget_bytes;
    let pool =
        Pool::new(PoolSettings { budget_bytes }).map_err(|error| no_pool(budget_bytes, &error))?;
    let snapshot = pool.snapshot();
    let locked = locked_of(snapshot.locked_bytes, snapshot.budget_bytes);
    if options.require_locked
        && let Err(NotLocked { .. }) = pool.require_locked()
    {
        let cause =
            format!("cannot create the pool: the kernel {locked}, and require-locked is set");
        return Err(Error::new(Exit::Runtime, cause).hint(LOCK_HINT));
    }
    if snapshot.locked_bytes < snapshot.budget_bytes {
        tracing::warn!("the kernel {locked}; the rest may be swapped out; {LOCK_HINT}");
    }
    Ok(pool)
}

fn no_pool(budget_bytes: usize, error: &std::io::Error) -> Error {
    let size = bytesize::ByteSize::b(budget_bytes as u64).display().iec();
    Error::new(Exit::Runtime, format!("cannot create a pool of {size}: {}", system(error)))
        .hint("use a smaller pool-budget, or turn the pool off")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use keypadd_pool::{FillerHost, Priority};

    use super::*;

    /// A host that refuses to run a filler.
    struct RefusingHost;

    impl FillerHost for RefusingHost {
        fn lower_priority(&mut self) -> Priority {
            Priority::Ordinary
        }

        fn cpu_time(&mut self) -> Duration {
            Duration::ZERO
        }

        fn now(&mut self) -> Duration {
            Duration::ZERO
        }
    }

    /// A host on which a filler fails as soon as it asks for its CPU time.
    struct FailingHost;

    impl FillerHost for FailingHost {
        fn lower_priority(&mut self) -> Priority {
            Priority::Idle
        }

        fn cpu_time(&mut self) -> Duration {
            panic!("this filler fails, as the test wants it")
        }

        fn now(&mut self) -> Duration {
            Duration::ZERO
        }
    }

    const SUITES: [Suite; 1] = [Suite::AES_256_GCM];

    #[test]
    fn a_budget_is_at_most_an_eighth_of_the_memory_and_by_default_a_sixteenth() {
        const MIB: u64 = 1 << 20;
        for (file, memory, budget, is_cut) in [
            ("", u64::MAX, 64, false),
            ("", 128, 8, false),
            ("", 16, 1, false),
            ("pool-budget = \"64MiB\"", u64::MAX, 64, false),
            ("pool-budget = \"64MiB\"", 512, 64, false),
            ("pool-budget = \"64MiB\"", 256, 32, true),
            ("pool-budget = \"64MiB\"", 128, 16, true),
            ("pool-budget = \"64MiB\"", 0, 1, true),
            ("pool-budget = \"64MiB\"\npool = \"off\"", 128, 16, false),
        ] {
            let settings = Config::read_to_extend(file, u64::MAX).expect("valid").settings;
            let memory = memory.saturating_mul(MIB);
            let options = PoolOptions::of(&settings, memory);
            assert_eq!(options.budget_bytes as u64, budget * MIB, "{file} in {memory}");
            assert_eq!(budget_cut(&settings, memory).is_some(), is_cut, "{file} in {memory}");
        }
    }

    fn options(mode: PoolMode, budget_bytes: usize) -> PoolOptions {
        PoolOptions { mode, budget_bytes, max_fill_cpu_percent: 100, require_locked: false }
    }

    /// A daemon's pooling whose filler has exited.
    fn ended(host: impl FillerHost) -> Pooling {
        let pooling =
            Pooling::start(options(PoolMode::On, 1 << 20), &SUITES, CipherEngine::default())
                .expect("a pool");
        let pool = Pool::with_host(PoolSettings { budget_bytes: 1 << 20 }, host).expect("a pool");
        let deadline = Instant::now() + Duration::from_secs(60);
        while pool.snapshot().filler_alive {
            assert!(Instant::now() < deadline, "the filler goes on");
            std::thread::yield_now();
        }
        pooling.switch.set(Some(pool));
        pooling
    }

    async fn change(pooling: &Pooling, options: PoolOptions) {
        let change = pooling.prepare(options, SUITES.to_vec(), CipherEngine::default());
        pooling.apply(change.await.expect("a change"));
    }

    #[tokio::test]
    async fn tasks_go_on_while_the_memory_of_a_pool_is_prepared() {
        let start = options(PoolMode::Off, 1 << 20);
        let pooling = Pooling::start(start, &SUITES, CipherEngine::default()).expect("none");
        let (held, is_held) = mpsc::channel();
        let (ran, has_run) = mpsc::channel();
        let state = Arc::clone(&pooling.state);
        // Keeps the preparation from its end until another task has run.
        let holding = thread::spawn(move || {
            let _state = state.lock().unwrap();
            held.send(()).unwrap();
            has_run.recv_timeout(Duration::from_secs(5))
        });
        is_held.recv().unwrap();
        let other = tokio::spawn(async move { ran.send(()) });
        change(&pooling, options(PoolMode::On, 1 << 20)).await;
        holding.join().unwrap().expect("no other task ran");
        assert!(other.await.unwrap().is_ok() && pooling.pool().is_some());
    }

    #[tokio::test]
    async fn a_dead_filler_blocks_no_change_and_is_reported_until_it_is_replaced() {
        for (pooling, reason) in [
            (ended(RefusingHost), "the kernel refused"),
            (ended(FailingHost), "the filler has failed"),
        ] {
            for budget_bytes in [1 << 20, 2 << 20, 1 << 19] {
                change(&pooling, options(PoolMode::On, budget_bytes)).await;
                let fault = pooling.fault().expect("a fault");
                let begin = format!("the pool filler stopped: {reason}");
                assert!(fault.starts_with(&begin) && !fault.contains('\n'), "{fault}");
            }
            change(&pooling, options(PoolMode::Off, 1 << 20)).await;
            assert_eq!(pooling.fault(), None);
            change(&pooling, options(PoolMode::On, 1 << 20)).await;
            assert_eq!(pooling.fault(), None);
            assert!(pooling.pool().expect("a pool").snapshot().filler_alive);
        }
    }

    #[tokio::test]
    async fn an_undone_change_leaves_the_budget_as_it_was() {
        let start = options(PoolMode::On, 1 << 20);
        let pooling = Pooling::start(start, &SUITES, CipherEngine::default()).expect("a pool");
        let budget = || pooling.pool().expect("a pool").snapshot().budget_bytes;
        for budget_bytes in [1 << 20, 2 << 20, 1 << 19] {
            let options = options(PoolMode::On, budget_bytes);
            let change = pooling.prepare(options, SUITES.to_vec(), CipherEngine::default());
            let change = change.await.expect("a change");
            assert_eq!(budget(), budget_bytes as u64);
            pooling.undo(change).await;
            assert_eq!(budget(), 1 << 20);
        }
    }

    /// A synthetic choice of `auto`.
    fn found(pays: bool) -> Choice {
        let [suite] = SUITES;
        Choice::untimed(suite.into(), pays)
    }

    #[tokio::test]
    async fn modes_change_in_any_order_and_auto_follows_its_measurements() {
        use PoolMode::{Auto, Off, On};
        for pays in [true, false] {
            let start = options(Off, 1 << 20);
            let pooling = Pooling::start(start, &SUITES, CipherEngine::default()).expect("none");
            pooling.locked().choices = vec![found(pays)];
            // Every mode after every other one.
            for mode in [Auto, On, Off, On, Auto, Off, Auto, Auto] {
                change(&pooling, options(mode, 1 << 20)).await;
                let (shown, choices, pool) = pooling.in_force();
                let is_served = pooling.switch.serves(SUITES[0].into());
                let expected = mode == On || mode == Auto && pays;
                assert_eq!((shown, pool.is_some(), is_served), (mode, expected, expected));
                // Timed, it would have figures.
                let found: Vec<_> =
                    choices.iter().map(|one| (one.report.pays, one.report.seals.len())).collect();
                assert_eq!(found, if mode == Auto { vec![(pays, 0)] } else { Vec::new() });
            }
        }
    }
}
