package io.github.rowlock;

import io.github.rowlock.LockObserver.Hold;
import io.github.rowlock.LockObserver.Outcome;
import io.github.rowlock.LockObserver.Wait;
import java.time.Duration;
import java.util.HashSet;
import java.util.Set;
import java.util.function.Consumer;

/** The observer of a client and its metrics names. */
final class Metering {
    /** Metrics names of one client; {@link #OTHER} stands for those beyond. */
    static final int NAMES_MAX = 100;
    private static final String DEFAULT = "default";
    private static final String OTHER = "other";

    private final LockObserver observer;
    private final Set<String> names = new HashSet<>(Set.of(DEFAULT, OTHER));

    /** Without an observer nothing is measured. */
    Metering(LockObserver observer) {
        this.observer = observer == null ? new LockObserver() { } : observer;
    }

    private synchronized String bound(String name) {
        if (!names.contains(name) && names.size() >= NAMES_MAX + 2) {
            return OTHER;
        }
        names.add(name);
        return name;
    }

    Measure begin(String name, String lock) {
        return new Measure(name == null ? DEFAULT : bound(name), lock);
    }

    static Outcome outcome(Throwable error) {
        return error instanceof BusyException ? Outcome.BUSY
            : error instanceof TimedOutException ? Outcome.TIMED_OUT
            : error instanceof LeaseOverException ? Outcome.LOST
            : error instanceof RefusedException ? Outcome.REFUSED
            : Outcome.FAILED;
    }

    /** The wait and the hold of one attempt. Each ends once. */
    final class Measure {
        private final String name;
        private final String lock;
        private final long began = Clock.now();
        private boolean isContended;
        private boolean hasWaited;
        /** Of a hold that has not ended. */
        private boolean isHeld;
        private long since;

        private Measure(String name, String lock) {
            this.name = name;
            this.lock = lock;
            call(to -> to.waiting(name, lock));
        }

        /** Takes an answer to a request for the lock. */
        synchronized void answered(Answer answer) {
            var contended = answer.document().get("contended");
            isContended |= "waiting".equals(answer.text("state")) || Boolean.TRUE.equals(contended);
        }

        /** Ends the wait; a hold begins at the same moment. */
        void endWait(Outcome outcome) {
            Wait wait;
            synchronized (this) {
                if (hasWaited) {
                    return;
                }
                hasWaited = true;
                since = Clock.now();
                isHeld = outcome == Outcome.GRANTED;
                var contended = isContended || outcome == Outcome.BUSY;
                wait = new Wait(name, lock, contended, outcome, Duration.ofNanos(since - began));
            }
            call(to -> to.waited(wait));
        }

        /** Ends the hold at a moment of {@link Clock#now}. */
        void endHold(Outcome outcome, long at) {
            Hold hold;
            synchronized (this) {
                if (!isHeld) {
                    return;
                }
                isHeld = false;
                hold = new Hold(name, lock, outcome, Duration.ofNanos(Math.max(0, at - since)));
            }
            call(to -> to.held(hold));
        }

        /** An observer that throws takes no lock away. */
        private void call(Consumer<LockObserver> event) {
            try {
                event.accept(observer);
            } catch (RuntimeException failed) {
                System.getLogger("io.github.rowlock")
                    .log(System.Logger.Level.WARNING, "the observer of " + lock + " has failed", failed);
            }
        }
    }
}
