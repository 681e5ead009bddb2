package io.github.rowlock;

import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * What the tests in Rust watch: {@code hold URL LOCK} holds, and says a line with the time as long as the lock is held;
 * {@code threads URL LOCK COUNT} takes one lock in so many threads.
 */
public final class Drills {
    private Drills() {
    }

    /**
     * Runs one of them.
     *
     * @param args see above
     */
    public static void main(String[] args) throws Exception {
        if (args[0].equals("hold")) {
            hold(args[1], args[2]);
        } else {
            threads(args[1], args[2], Integer.parseInt(args[3]));
        }
    }

    private static void hold(String urls, String lock) throws InterruptedException {
        var guard = Rowlock.builder(urls).ttl(Duration.ofSeconds(6)).build().lock(lock).acquire();
        guard.lost().thenRun(() -> System.out.println("told " + System.currentTimeMillis()));
        System.out.println("held " + guard.token());
        while (true) {
            // The time is not later than the look.
            long now = System.currentTimeMillis();
            if (guard.isLost()) {
                break;
            }
            System.out.println("works " + now);
            Thread.sleep(2);
        }
        System.out.println("lost " + System.currentTimeMillis());
        Thread.sleep(1_500);
    }

    /** Virtual ones, if this JDK has them. */
    private static ExecutorService threads(int count) {
        try {
            return (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
        } catch (ReflectiveOperationException older) {
            return Executors.newFixedThreadPool(count);
        }
    }

    private static void threads(String urls, String lock, int count) throws Exception {
        var cluster = Rowlock.builder(urls).ttl(Duration.ofSeconds(40)).build();
        var inside = new AtomicInteger();
        var last = new long[1];
        var wrong = new AtomicInteger();
        var done = new CountDownLatch(count);
        var threads = threads(count);
        for (int n = 0; n < count; n++) {
            threads.submit(() -> {
                try (var guard = cluster.lock(lock).acquire()) {
                    // Without a mutex of the JVM: the lock is one.
                    boolean isAlone = inside.incrementAndGet() == 1 && guard.token() > last[0];
                    last[0] = guard.token();
                    if (!isAlone || guard.isLost()) {
                        wrong.incrementAndGet();
                    }
                    inside.decrementAndGet();
                } catch (Exception error) {
                    wrong.incrementAndGet();
                    System.out.println(error);
                }
                done.countDown();
            });
        }
        done.await();
        threads.shutdown();
        var kind = threads.getClass().getSimpleName().contains("PerTask") ? "virtual" : "platform";
        System.out.println(count + " " + kind + " threads in order, " + wrong + " wrong");
        System.exit(wrong.get() == 0 ? 0 : 1);
    }
}
