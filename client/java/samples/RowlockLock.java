import io.github.rowlock.Guard;
import io.github.rowlock.LockRequest;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A {@link Lock} of the JDK that is a lock of a cluster. It belongs to the thread that took it, and is not reentrant.
 * Give {@link #token} to what you write to.
 */
public final class RowlockLock implements Lock {
    private final LockRequest request;
    private final ThreadLocal<Guard> held = new ThreadLocal<>();

    public RowlockLock(LockRequest request) {
        this.request = request;
    }

    /** The fencing token of this thread's hold. */
    public long token() {
        return guard().token();
    }

    /** Whether another client may have it: stop then. */
    public boolean isLost() {
        return guard().isLost();
    }

    private Guard guard() {
        var guard = held.get();
        if (guard == null) {
            throw new IllegalMonitorStateException("this thread does not hold the lock");
        }
        return guard;
    }

    private LockRequest request() {
        if (held.get() != null && !held.get().isLost()) {
            throw new IllegalStateException("this thread holds the lock already");
        }
        return request;
    }

    @Override
    public void lock() {
        boolean isInterrupted = false;
        try {
            while (true) {
                try {
                    held.set(request().acquire());
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
        held.set(request().acquire());
    }

    @Override
    public boolean tryLock() {
        try {
            var guard = request().tryAcquire();
            guard.ifPresent(held::set);
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
            held.set(request().timeout(Duration.ofNanos(unit.toNanos(time))).acquire());
            return true;
        } catch (io.github.rowlock.TimedOutException late) {
            return false;
        }
    }

    @Override
    public void unlock() {
        var guard = guard();
        held.remove();
        guard.release();
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock of a cluster has no conditions");
    }
}
