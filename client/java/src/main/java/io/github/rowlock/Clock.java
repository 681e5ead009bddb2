package io.github.rowlock;

import java.util.concurrent.TimeUnit;

/** Nanoseconds that never go back. */
final class Clock {
    private static long lastNanos = System.nanoTime();
    private static long lastWall = System.currentTimeMillis();
    private static long sum;

    private Clock() {
    }

    /**
     * The JDK's clock stands still while the machine sleeps, and leases do not: the wall clock has made the longer
     * step of the two then, and counts. One that is put forward makes leases end early, never late.
     */
    static synchronized long now() {
        long nanos = System.nanoTime();
        long wall = System.currentTimeMillis();
        long step = Math.max(0, nanos - lastNanos);
        long wallStep = wall - lastWall;
        // Half a second: the two clocks are not read at one moment, and one of them is in milliseconds.
        if (wallStep - TimeUnit.NANOSECONDS.toMillis(step) > 500) {
            step = TimeUnit.MILLISECONDS.toNanos(wallStep);
        }
        lastNanos = nanos;
        lastWall = wall;
        sum += step;
        return sum;
    }
}
