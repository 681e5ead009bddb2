package io.github.rowlock.adapters;

import io.github.rowlock.Rowlock;
import java.time.Duration;
import java.time.Instant;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.springframework.integration.support.locks.LockRegistry;

/** The adapters, used as their libraries use them, against the cluster of the first argument. */
public final class AdaptersTest {
    private static final Duration LONG = Duration.ofMinutes(5);
    /** Another program of the same cluster has another thread and another client. */
    private static final ExecutorService OTHER = Executors.newSingleThreadExecutor(work -> {
        var thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    });

    private static int checks;

    private AdaptersTest() {
    }

    /**
     * Runs all of them.
     *
     * @param args the URL of a node
     */
    public static void main(String[] args) throws Exception {
        var here = Rowlock.builder(args[0]).ttl(Duration.ofSeconds(3)).build();
        var there = Rowlock.connect(args[0]);
        registry(new RowlockLockRegistry(here), new RowlockLockRegistry(there));
        losses(here);
        provider(new RowlockLockProvider(here), new RowlockLockProvider(there));
        System.out.println(checks + " checks");
    }

    private static void check(boolean isRight, String what) {
        if (!isRight) {
            throw new AssertionError(what);
        }
        checks++;
    }

    private static boolean isFree(LockRegistry<?> there, String key) throws Exception {
        Callable<Boolean> attempt = () -> {
            Lock lock = there.obtain(key);
            boolean isTaken = lock.tryLock();
            if (isTaken) {
                lock.unlock();
            }
            return isTaken;
        };
        return OTHER.submit(attempt).get();
    }

    private static void registry(LockRegistry<?> here, LockRegistry<?> there) throws Exception {
        for (var key : new String[] {"/var/spool/a b", "be7ebad2-cb22-488f-ac62-f04468770944", "..", "e-mail"}) {
            // An aggregator without a group timeout takes the lock of its group within itself.
            Lock outer = here.obtain(key);
            outer.lockInterruptibly();
            Lock inner = here.obtain(key);
            check(inner.tryLock() && inner.tryLock(1, TimeUnit.SECONDS), key + " is taken again by its thread");
            inner.unlock();
            inner.unlock();
            check(!isFree(there, key), key + " is held to its last unlock");
            check(!OTHER.submit(() -> here.obtain(key).tryLock(1, TimeUnit.MILLISECONDS)).get(), key + " has one thread");
            outer.unlock();
            check(isFree(there, key), key + " is free after its last unlock");
            check(throwsState(outer::unlock), key + " is unlocked as often as locked");
        }
    }

    private static void losses(Rowlock cluster) throws Exception {
        var lock = new RowlockLock(cluster.lock("losses"));
        lock.lock();
        long token = lock.token();
        lock.hold().guard.silence();
        while (!lock.isLost()) {
            Thread.sleep(10);
        }
        // A leader of Spring Integration learns by these two that it leads no more.
        check(throwsState(() -> lock.tryLock()), "a lost lock is not taken again");
        check(throwsState(lock::unlock), "the unlock of a lost lock throws");
        lock.lock();
        check(lock.token() > token && !lock.isLost(), "it can be taken after its unlock");
        lock.unlock();
    }

    private static boolean throwsState(Runnable work) {
        try {
            work.run();
            return false;
        } catch (IllegalMonitorStateException expected) {
            return true;
        }
    }

    private static LockConfiguration task(String name, Duration atMost, Duration atLeast) {
        return new LockConfiguration(Instant.now(), name, atMost, atLeast);
    }

    private static boolean isFree(RowlockLockProvider there, String name) {
        var lock = there.lock(task(name, LONG, Duration.ZERO));
        lock.ifPresent(SimpleLock::unlock);
        return lock.isPresent();
    }

    private static long msUntilFree(RowlockLockProvider there, String name, long since) throws InterruptedException {
        while (!isFree(there, name)) {
            Thread.sleep(20);
        }
        return TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - since);
    }

    private static void provider(RowlockLockProvider here, RowlockLockProvider there) throws Exception {
        var lock = here.lock(task("plain", LONG, Duration.ZERO)).orElseThrow();
        check(!isFree(there, "plain"), "one host runs the task");
        lock.unlock();
        check(isFree(there, "plain"), "the next run may be on another host");

        long since = System.nanoTime();
        here.lock(task("least", LONG, Duration.ofMillis(700))).orElseThrow().unlock();
        check(msUntilFree(there, "least", since) >= 700, "lockAtLeastFor is kept after the unlock");

        since = System.nanoTime();
        lock = here.lock(task("most", Duration.ofMillis(300), Duration.ZERO)).orElseThrow();
        check(msUntilFree(there, "most", since) >= 300, "lockAtMostFor ends the lock");
        check(lock.extend(LONG, Duration.ZERO).isEmpty(), "a lock that has ended is not extended");

        since = System.nanoTime();
        lock = here.lock(task("extended", Duration.ofMillis(300), Duration.ZERO)).orElseThrow();
        lock = lock.extend(LONG, Duration.ofMillis(900)).orElseThrow();
        Thread.sleep(400);
        check(!isFree(there, "extended"), "an extended lock outlives its first lockAtMostFor");
        lock.unlock();
        check(msUntilFree(there, "extended", since) >= 900, "lockAtLeastFor of an extension is kept");
    }
}
