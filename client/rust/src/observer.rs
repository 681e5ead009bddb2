//! [`Observer`]: how long a client's acquires wait, and how long it holds the locks.
//!
//! [`Metering`] is the observer of a session, [`WaitMeasure`] an acquire, [`HoldMeasure`] what it has got.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rowlock_env::task::{self, Task};
use rowlock_env::time::{self, Instant};

use crate::error::{Error, LostReason};
use crate::limits::METRICS_NAMES;
use crate::recipes::loss::Loss;

const DEFAULT: &str = "default";
/// Stands for the names beyond [`METRICS_NAMES`].
const OTHER: &str = "other";

/// Gets the waits and holds of a client ([`crate::ClientBuilder::observer`]), for a program's metrics. The
/// calls come from whatever task or thread ends the wait or hold, and must not block or panic.
///
/// ```
/// use rowlock_client::{Hold, Observer, Wait};
/// struct Log;
/// impl Observer for Log {
///     fn waited(&self, wait: &Wait<'_>) {
///         println!("{} {} {:?}", wait.name, wait.outcome.as_str(), wait.waited);
///     }
///     fn held(&self, hold: &Hold<'_>) {
///         println!("{} {} {:?}", hold.name, hold.outcome.as_str(), hold.held);
///     }
/// }
/// let builder = rowlock_client::Client::builder().observer(std::sync::Arc::new(Log));
/// ```
pub trait Observer: Send + Sync {
    /// An acquire begins; [`Observer::waited`] follows in any case.
    fn waiting(&self, name: &str, lock: &str) {
        let _ = (name, lock);
    }

    /// An acquire has ended.
    fn waited(&self, wait: &Wait<'_>) {
        let _ = wait;
    }

    /// A hold has ended.
    fn held(&self, hold: &Hold<'_>) {
        let _ = hold;
    }
}

/// An acquire that has ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Wait<'a> {
    /// Name for metrics: [`crate::LockRequest::metrics_name`], or `default`.
    pub name: &'a str,
    /// Path of the lock, or of several locks, separated by commas: for spans, not for metrics.
    pub lock: &'a str,
    /// Whether the lock was found taken. `false` also if no server has said so.
    pub contended: bool,
    /// How the acquire ended.
    pub outcome: WaitOutcome,
    /// Time from the call to its end.
    pub waited: Duration,
}

/// The ways in which an acquire ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitOutcome {
    /// The lock is held now.
    Granted,
    /// The lock was taken, and the call did not wait.
    Busy,
    /// The timeout is over.
    TimedOut,
    /// The queue position was lost, or the session has ended.
    Lost,
    /// The future was dropped.
    Canceled,
    /// The servers refused the request.
    Refused,
    /// Any error that is none of these.
    Failed,
}

impl WaitOutcome {
    /// The value of a metric's attribute.
    pub fn as_str(self) -> &'static str {
        match self {
            WaitOutcome::Granted => "granted",
            WaitOutcome::Busy => "busy",
            WaitOutcome::TimedOut => "timed_out",
            WaitOutcome::Lost => "lost",
            WaitOutcome::Canceled => "canceled",
            WaitOutcome::Refused => "refused",
            WaitOutcome::Failed => "failed",
        }
    }

    pub(crate) fn of(error: &Error) -> WaitOutcome {
        match error {
            Error::Timeout { .. } => WaitOutcome::TimedOut,
            Error::PlaceLost => WaitOutcome::Lost,
            error if error.is_session_end() => WaitOutcome::Lost,
            Error::Rejected(_) | Error::Deadlock { .. } | Error::LimitConflict { .. } => WaitOutcome::Refused,
            _ => WaitOutcome::Failed,
        }
    }
}

/// A hold that has ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Hold<'a> {
    /// Name for metrics, as in [`Wait::name`].
    pub name: &'a str,
    /// Path of the lock, as in [`Wait::lock`].
    pub lock: &'a str,
    /// How the hold ended.
    pub outcome: HoldOutcome,
    /// Time from the grant to the release or the loss.
    pub held: Duration,
}

/// The ways in which a hold ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldOutcome {
    /// By the program, which dropped or released the guard.
    Released,
    /// The guard was lost before its release.
    Lost,
}

impl HoldOutcome {
    /// The value of a metric's attribute.
    pub fn as_str(self) -> &'static str {
        match self {
            HoldOutcome::Released => "released",
            HoldOutcome::Lost => "lost",
        }
    }
}

/// Setting of [`crate::ClientBuilder`]: two are equal if they are the same observer, or both none.
#[derive(Clone, Default)]
pub(crate) struct Observed(pub(crate) Option<Arc<dyn Observer>>);

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observed").field(&self.0.is_some()).finish()
    }
}

impl PartialEq for Observed {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            (one, two) => one.is_none() && two.is_none(),
        }
    }
}

impl Eq for Observed {}

/// The observer of a session and its names for metrics.
pub(crate) struct Metering {
    observer: Observed,
    names: Mutex<BTreeSet<String>>,
}

impl Metering {
    pub(crate) fn new(observer: &Observed) -> Self {
        Metering { observer: observer.clone(), names: Mutex::default() }
    }

    fn bound(&self, name: &str) -> String {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let is_counted = name != DEFAULT && name != OTHER && !names.contains(name);
        if is_counted && names.len() >= METRICS_NAMES {
            return OTHER.to_owned();
        }
        if is_counted {
            names.insert(name.to_owned());
        }
        name.to_owned()
    }

    /// Begins to measure an acquire. `None`: the client has no observer.
    pub(crate) fn begin(&self, name: Option<&str>, lock: impl FnOnce() -> String) -> Option<WaitMeasure> {
        let observer = self.observer.0.clone()?;
        let name = name.map_or_else(|| DEFAULT.to_owned(), |name| self.bound(name));
        let lock = lock();
        observer.waiting(&name, &lock);
        let subject = Subject { observer, name, lock };
        Some(WaitMeasure { subject: Arc::new(subject), began: time::now(), contended: false, is_over: false })
    }
}

/// What is observed, by which observer.
struct Subject {
    observer: Arc<dyn Observer>,
    name: String,
    lock: String,
}

/// Measure of an acquire. A drop before the end means that the future was dropped.
pub(crate) struct WaitMeasure {
    subject: Arc<Subject>,
    began: Instant,
    contended: bool,
    is_over: bool,
}

impl fmt::Debug for WaitMeasure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitMeasure").field("lock", &self.subject.lock).finish_non_exhaustive()
    }
}

impl WaitMeasure {
    pub(crate) fn contend(&mut self) {
        self.contended = true;
    }

    /// Ends the wait. Returns the measure of the hold that begins at the same moment.
    pub(crate) fn end(&mut self, outcome: WaitOutcome) -> Arc<HoldMeasure> {
        let now = time::now();
        self.is_over = true;
        let Subject { observer, name, lock } = &*self.subject;
        let contended = self.contended || outcome == WaitOutcome::Busy;
        observer.waited(&Wait { name, lock, contended, outcome, waited: now - self.began });
        let is_over = outcome != WaitOutcome::Granted;
        let state = HoldState { is_over, certain_until: None };
        Arc::new(HoldMeasure { subject: self.subject.clone(), since: now, state: Mutex::new(state) })
    }
}

impl Drop for WaitMeasure {
    fn drop(&mut self) {
        if !self.is_over {
            self.end(WaitOutcome::Canceled);
        }
    }
}

/// Measure of a hold; all guards of one acquire share it, and the first end counts.
pub(crate) struct HoldMeasure {
    subject: Arc<Subject>,
    since: Instant,
    state: Mutex<HoldState>,
}

struct HoldState {
    is_over: bool,
    /// Where a loss counts from that the program notices late.
    certain_until: Option<Instant>,
}

impl HoldMeasure {
    fn end(&self, outcome: HoldOutcome) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut state.is_over, true) {
            return;
        }
        let (now, until) = (time::now(), state.certain_until);
        drop(state);
        let end = if outcome == HoldOutcome::Lost { until.map_or(now, |until| until.min(now)) } else { now };
        let Subject { observer, name, lock } = &*self.subject;
        observer.held(&Hold { name, lock, outcome, held: end.saturating_since(self.since) });
    }

    /// Ends the hold at its loss, and follows its deadline until then.
    async fn follow(self: Arc<Self>, loss: Loss) {
        loop {
            let until = loss.valid_until();
            if let Some(reason) = loss.reason() {
                let is_released = reason == LostReason::Released;
                return self.end(if is_released { HoldOutcome::Released } else { HoldOutcome::Lost });
            }
            self.state.lock().unwrap_or_else(PoisonError::into_inner).certain_until = until;
            loss.wait_for_news(until).await;
        }
    }
}

impl Drop for HoldMeasure {
    fn drop(&mut self) {
        self.end(HoldOutcome::Lost);
    }
}

/// Part of a guard: its hold, and the task that ends the hold at the loss.
pub(crate) struct ObservedHold {
    measure: Arc<HoldMeasure>,
    follows: Task<()>,
}

impl ObservedHold {
    pub(crate) fn new(measure: Arc<HoldMeasure>, loss: Loss) -> Self {
        let follows = task::spawn("rowlock-hold", measure.clone().follow(loss));
        ObservedHold { measure, follows }
    }

    /// Stops to follow the guard: the hold goes on at another one.
    pub(crate) fn detach(self) -> Arc<HoldMeasure> {
        self.follows.abort();
        self.measure
    }

    /// Ends the hold by the program, unless it has ended by a loss.
    pub(crate) fn end(self, is_held: bool) {
        self.follows.abort();
        self.measure.end(if is_held { HoldOutcome::Released } else { HoldOutcome::Lost });
    }
}
