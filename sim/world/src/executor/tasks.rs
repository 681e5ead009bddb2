//! The tasks of all hosts, and the wakers that make them runnable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use parking_lot::Mutex;
use rowlock_env::world::{Boxed, TaskId};

use crate::time::HostId;

/// The tasks that were woken since the executor looked last.
pub(super) type Woken = Arc<Mutex<Vec<TaskId>>>;

struct Bell {
    task: TaskId,
    /// It is among the woken, or runnable.
    is_rung: AtomicBool,
    woken: Woken,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_rung.swap(true, Ordering::Relaxed) {
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
    bell: Arc<Bell>,
    waker: Waker,
    /// Not there while it is polled.
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

/// All tasks. Ids are reused with another generation, so a late waker of a task that has ended wakes no other
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
        let bell = Arc::new(Bell { task, is_rung: AtomicBool::new(true), woken: woken.clone() });
        let waker = Waker::from(bell.clone());
        slot.task = Some(Entry { host, name, bell, waker, future: Some(future), is_aborted: false });
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

    /// Whose task it is, if it has not ended.
    pub(super) fn host(&self, task: TaskId) -> Option<HostId> {
        self.entry(task).map(|entry| entry.host)
    }

    pub(super) fn name(&self, task: TaskId) -> &'static str {
        self.entry(task).map_or("a task that has ended", |entry| entry.name)
    }

    /// Takes a task out to poll it.
    pub(super) fn begin(&mut self, task: TaskId) -> Option<Turn> {
        let entry = self.entry_mut(task)?;
        let future = entry.future.take()?;
        entry.bell.is_rung.store(false, Ordering::Relaxed);
        Some(Turn { task, host: entry.host, waker: entry.waker.clone(), future })
    }

    /// It was polled and waits. Gives back what is to be dropped: it was aborted, or its host died in the
    /// meantime.
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

    /// Gives back what is to be dropped; a task that is being polled is dropped when it waits.
    pub(super) fn abort(&mut self, task: TaskId) -> Option<Boxed<()>> {
        let entry = self.entry_mut(task)?;
        if entry.future.is_none() {
            entry.is_aborted = true;
            return None;
        }
        self.remove(task).and_then(|entry| entry.future)
    }

    /// Takes all tasks of a host out, in the order of their places.
    pub(super) fn take_all_of(&mut self, host: HostId) -> Vec<Boxed<()>> {
        self.take(|entry| entry.host == host)
    }

    /// Takes the tasks of this name out.
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
