//! The tasks of all hosts, and the wakers that make them runnable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use parking_lot::Mutex;
use rowlock_env::world::{Boxed, TaskId};

use crate::time::HostId;

/// Tasks woken since the executor's last check.
pub(super) type Woken = Arc<Mutex<Vec<TaskId>>>;

struct TaskWaker {
    task: TaskId,
    /// The task is in `woken`, or runnable.
    is_woken: AtomicBool,
    woken: Woken,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::Relaxed) {
            self.woken.lock().push(self.task);
        }
    }
}

struct Slot {
    generation: u32,
    task: Option<Entry>,
}

struct Entry {
    host: HostId,
    name: &'static str,
    task_waker: Arc<TaskWaker>,
    waker: Waker,
    /// `None` during a poll.
    future: Option<Boxed<()>>,
    is_aborted: bool,
}

/// A task that is about to be polled.
pub(super) struct Turn {
    pub(super) task: TaskId,
    pub(super) host: HostId,
    pub(super) waker: Waker,
    pub(super) future: Boxed<()>,
}

/// All tasks. A slot is reused with another generation, so a late waker of a finished task wakes no other
/// task.
#[derive(Default)]
pub(super) struct Tasks {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

fn place(task: TaskId) -> (usize, u32) {
    let index = usize::try_from(task.0 & 0xffff_ffff).expect("Invariant: 32 bits are an index");
    let generation = u32::try_from(task.0 >> 32).expect("Invariant: 32 bits are left");
    (index, generation)
}

impl Tasks {
    pub(super) fn add(
        &mut self,
        host: HostId,
        name: &'static str,
        future: Boxed<()>,
        woken: &Woken,
    ) -> TaskId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, task: None });
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        slot.generation += 1;
        let task = TaskId(u64::from(slot.generation) << 32 | index as u64);
        let task_waker = Arc::new(TaskWaker { task, is_woken: AtomicBool::new(true), woken: woken.clone() });
        let waker = Waker::from(task_waker.clone());
        slot.task = Some(Entry { host, name, task_waker, waker, future: Some(future), is_aborted: false });
        woken.lock().push(task);
        task
    }

    fn entry(&self, task: TaskId) -> Option<&Entry> {
        let (index, generation) = place(task);
        self.slots.get(index).filter(|slot| slot.generation == generation)?.task.as_ref()
    }

    fn entry_mut(&mut self, task: TaskId) -> Option<&mut Entry> {
        let (index, generation) = place(task);
        self.slots.get_mut(index).filter(|slot| slot.generation == generation)?.task.as_mut()
    }

    fn remove(&mut self, task: TaskId) -> Option<Entry> {
        let (index, generation) = place(task);
        let slot = self.slots.get_mut(index).filter(|slot| slot.generation == generation)?;
        let entry = slot.task.take()?;
        self.free.push(index);
        Some(entry)
    }

    /// Returns the host of an unfinished task.
    pub(super) fn host(&self, task: TaskId) -> Option<HostId> {
        self.entry(task).map(|entry| entry.host)
    }

    pub(super) fn name(&self, task: TaskId) -> &'static str {
        self.entry(task).map_or("a task that has ended", |entry| entry.name)
    }

    /// Removes a task's future for a poll.
    pub(super) fn begin(&mut self, task: TaskId) -> Option<Turn> {
        let entry = self.entry_mut(task)?;
        let future = entry.future.take()?;
        entry.task_waker.is_woken.store(false, Ordering::Relaxed);
        Some(Turn { task, host: entry.host, waker: entry.waker.clone(), future })
    }

    /// Stores the future of a pending task. Returns the future for dropping if the task was aborted, or if
    /// its host died during the poll.
    pub(super) fn wait(&mut self, task: TaskId, future: Boxed<()>) -> Option<Boxed<()>> {
        match self.entry_mut(task) {
            Some(entry) if !entry.is_aborted => {
                entry.future = Some(future);
                None
            }
            Some(_) => {
                self.remove(task);
                Some(future)
            }
            None => Some(future),
        }
    }

    pub(super) fn end(&mut self, task: TaskId) {
        self.remove(task);
    }

    /// Aborts a task and returns its future for dropping; the future of a task inside a poll is dropped after
    /// the poll.
    pub(super) fn abort(&mut self, task: TaskId) -> Option<Boxed<()>> {
        let entry = self.entry_mut(task)?;
        if entry.future.is_none() {
            entry.is_aborted = true;
            return None;
        }
        self.remove(task).and_then(|entry| entry.future)
    }

    /// Removes all tasks of a host, in the order of their slots.
    pub(super) fn take_all_of(&mut self, host: HostId) -> Vec<Boxed<()>> {
        self.take(|entry| entry.host == host)
    }

    /// Removes the tasks with this name.
    pub(super) fn take_named(&mut self, host: HostId, name: &str) -> Vec<Boxed<()>> {
        self.take(|entry| entry.host == host && entry.name == name)
    }

    fn take(&mut self, is_meant: impl Fn(&Entry) -> bool) -> Vec<Boxed<()>> {
        let mut futures = Vec::new();
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.task.as_ref().is_some_and(&is_meant) {
                futures.extend(slot.task.take().and_then(|entry| entry.future));
                self.free.push(index);
            }
        }
        futures
    }

    pub(super) fn names_of(&self, host: HostId) -> Vec<&'static str> {
        let all = self.slots.iter().filter_map(|slot| slot.task.as_ref());
        all.filter(|entry| entry.host == host).map(|entry| entry.name).collect()
    }
}
