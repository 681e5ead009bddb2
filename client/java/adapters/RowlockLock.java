package io.github.rowlock.adapters;

import io.github.rowlock.Guard;
import io.github.rowlock.LockRequest;
import io.github.rowlock.TimedOutException;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A {@link Lock} of the JDK that is a lock of a cluster. It belongs to the thread that took it, which may take it again.
 * Give {@link #token} to what you write to. A lock that was lost throws at the next call of that thread, its
 * {@link #unlock} too.
 */
public final class RowlockLock implements Lock {
    /** What each thread holds, by the key of the lock. */
    private static final ThreadLocal<Map<Object, Hold>> HOLDS = ThreadLocal.withInitial(HashMap::new);

    static final class Hold {
        final Guard guard;
        int count = 1;

        Hold(Guard guard) {
            this.guard = guard;
        }
    }

    private final LockRequest request;
    private final Object key;

    /**
     * Another lock for each call.
     *
     * @param request what is taken
     */
    public RowlockLock(LockRequest request) {
        this(request, new Object());
    }

    /** Locks with equal keys are one lock for a thread. */
    RowlockLock(LockRequest request, Object key) {
        this.request = request;
        this.key = key;
    }

    /** {@return the fencing token of this thread's hold} */
    public long token() {
        return hold().guard.token();
    }

    /** {@return whether another client may have it: stop then} */
    public boolean isLost() {
        return hold().guard.isLost();
    }

    /** {@return what this thread holds} */
    Hold hold() {
        var hold = HOLDS.get().get(key);
        if (hold == null) {
            throw new IllegalMonitorStateException("this thread does not hold the lock");
        }
        return hold;
    }

    /** Takes it again if this thread has it. */
    private boolean again() {
        var hold = HOLDS.get().get(key);
        if (hold == null) {
            return false;
        }
        if (hold.guard.isLost()) {
            throw new IllegalMonitorStateException("this thread has lost the lock: unlock it first");
        }
        hold.count++;
        return true;
    }

    private void keep(Guard guard) {
        HOLDS.get().put(key, new Hold(guard));
    }

    @Override
    public void lock() {
        boolean isInterrupted = false;
        try {
            while (true) {
                try {
                    lockInterruptibly();
                    return;
                } catch (InterruptedException interrupt) {
                    // The place in the queue is lost with it.
                    isInterrupted = true;
                }
            }
        } finally {
            if (isInterrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        if (!again()) {
            keep(request.acquire());
        }
    }

    @Override
    public boolean tryLock() {
        try {
            if (again()) {
                return true;
            }
            var guard = request.tryAcquire();
            guard.ifPresent(this::keep);
            return guard.isPresent();
        } catch (InterruptedException interrupt) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        if (time <= 0) {
            return tryLock();
        }
        try {
            if (!again()) {
                keep(request.timeout(Duration.ofNanos(unit.toNanos(time))).acquire());
            }
            return true;
        } catch (TimedOutException late) {
            return false;
        }
    }

    @Override
    public void unlock() {
        var hold = hold();
        if (--hold.count > 0) {
            return;
        }
        var holds = HOLDS.get();
        holds.remove(key);
        if (holds.isEmpty()) {
            HOLDS.remove();
        }
        if (!hold.guard.release()) {
            throw new IllegalMonitorStateException("the lock was lost, or no node has answered to its release");
        }
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock of a cluster has no conditions");
    }
}
