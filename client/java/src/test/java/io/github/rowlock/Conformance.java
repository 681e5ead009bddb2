package io.github.rowlock;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Runs conformance.json, several locks, elections, watching and the README's example: Conformance URL[,URL..] FOLDER. */
public final class Conformance {
    /** Of a lease: short, but longer than the pauses of a busy machine. */
    private static final Duration TTL = Duration.ofSeconds(6);
    /** Seconds for a step that must come true. */
    private static final long PATIENCE = 60;
    private static final long VERSION = 5;

    /** Where a gateway answers as the first level of the path says; null: the scenarios that need it are left out. */
    private static final String GATEWAY = System.getenv("ROWLOCK_GATEWAY");

    private final String urls;
    private final String prefix = "conformance/" + UUID.randomUUID().toString().substring(0, 8);

    private Conformance(String urls) {
        this.urls = urls;
    }

    private Rowlock client() {
        return client(Map.of(), null);
    }

    private Rowlock client(Map<?, ?> step, LockObserver observer) {
        var its = urls;
        if (step.get("through") != null) {
            its = GATEWAY + "/" + step.get("through");
        } else if (step.get("before") != null) {
            its = GATEWAY + "/" + step.get("before") + "," + urls;
        }
        return Rowlock.builder(its).ttl(TTL).observer(observer).build();
    }

    private static final class Thrown extends Error {
        private static final long serialVersionUID = 1L;
    }

    private String name(Map<?, ?> step) {
        if (step.get("units") instanceof List<?> units) {
            var text = new StringBuilder(prefix + "/");
            units.forEach(unit -> text.append((char) ((Long) unit).intValue()));
            return text.toString();
        }
        return step.containsKey("lock") ? prefix + "/" + step.get("lock") : "/locks/" + prefix + "/" + step.get("path");
    }

    static void check(boolean is, Object what) {
        if (!is) {
            throw new AssertionError(what);
        }
    }

    static <T> T soon(CompletableFuture<T> future, Object what) throws InterruptedException, ExecutionException {
        try {
            return future.get(PATIENCE, TimeUnit.SECONDS);
        } catch (TimeoutException late) {
            throw new AssertionError("not in time: " + what);
        }
    }

    /** What an observer has got. */
    private static final class Seen implements LockObserver {
        private final Map<String, Object> found = new HashMap<>(Map.of("waiting", 0L));

        @Override
        public synchronized void waiting(String name, String lock) {
            found.merge("waiting", 1L, (one, other) -> (Long) one + (Long) other);
        }

        @Override
        public synchronized void waited(Wait wait) {
            found.merge("waiting", -1L, (one, other) -> (Long) one + (Long) other);
            found.put("wait", wait.outcome().text());
            found.put("contended", wait.contended());
            found.put("waited_ms", wait.waited().toMillis());
        }

        @Override
        public synchronized void held(Hold hold) {
            found.put("hold", hold.outcome().text());
            found.put("held_ms", hold.held().toMillis());
        }

        synchronized void check(Map<?, ?> expected, long mostMs) {
            expected.forEach((field, value) -> Conformance.check(field.toString().endsWith("_ms")
                ? (Long) value <= (Long) found.get(field) && (Long) found.get(field) <= mostMs
                : value.equals(found.get(field)), found));
        }

        synchronized boolean has(String field) {
            return found.containsKey(field);
        }
    }

    private final class Attempt {
        final Seen seen = new Seen();
        final CompletableFuture<Void> waits = new CompletableFuture<>();
        final CompletableFuture<Guard> taken;
        final long began = Clock.now();
        volatile long took;
        final Rowlock client;
        private volatile Throwable error;

        /** By the client of the attempt before, if there is one. */
        Attempt(Map<?, ?> step, Attempt before) {
            client = before != null ? before.client : client(step, seen);
            CompletableFuture<Guard> begun;
            try {
                var request = client.lock(name(step)).timeout(Duration.ofMillis((Long) step.get("timeout_ms")))
                    .onWaiting(position -> {
                        waits.complete(null);
                        if (step.containsKey("throws")) {
                            throw new Thrown();
                        }
                    });
                if ("permits".equals(step.get("mode"))) {
                    request = request.permits(number(step, "permits"), number(step, "limit"));
                } else if ("shared".equals(step.get("mode"))) {
                    request = request.mode(Mode.SHARED);
                }
                begun = request.acquireAsync();
            } catch (IllegalArgumentException invalid) {
                begun = CompletableFuture.failedFuture(invalid);
            }
            taken = begun;
            taken.whenComplete((guard, thrown) -> took = Clock.now() - began);
            if (step.get("outside_ms") instanceof Long outside) {
                taken.orTimeout(outside, TimeUnit.MILLISECONDS);
            }
        }

        Object finish(Map<?, ?> step) throws InterruptedException {
            var found = outcome();
            check(!(step.get("says") instanceof String says) || String.valueOf(error).contains(says), error);
            check(!(step.get("within_ms") instanceof Long most) || took < most * Transport.MILLISECOND, took);
            return found;
        }

        private static int number(Map<?, ?> step, String name) {
            return ((Long) step.get(name)).intValue();
        }

        Guard guard() {
            return taken.join();
        }

        String outcome() throws InterruptedException {
            try {
                soon(taken, "the end of an attempt");
                return "held";
            } catch (CancellationException aborted) {
                return "aborted";
            } catch (ExecutionException failed) {
                error = failed.getCause();
                if (error instanceof Thrown) {
                    return "thrown";
                } else if (error instanceof TimeoutException) {
                    return "aborted";
                } else if (error instanceof BusyException) {
                    return "busy";
                } else if (error instanceof TimedOutException) {
                    return "timeout";
                } else if (error instanceof RefusedException refused && refused.status() == 422) {
                    return "refused";
                } else if (error instanceof RefusedException refused && refused.status() == 400
                    || error instanceof IllegalArgumentException) {
                    return "invalid";
                } else if (error instanceof RefusedException refused) {
                    return "refused " + refused.status();
                }
                return error.toString();
            }
        }
    }

    private void run(String name, List<?> steps) throws Exception {
        var attempts = new HashMap<String, Attempt>();
        var fences = new HashMap<String, Fence>();
        for (var item : steps) {
            var step = (Map<?, ?>) item;
            var verb = (String) step.get("do");
            var as = (String) step.get("as");
            if (Set.of("acquire", "start").contains(verb)) {
                attempts.put(as, new Attempt(step, attempts.get((String) step.get("client"))));
            }
            try {
                Object found = perform(verb, step, attempts.get(as), attempts, fences);
                check(step.get("expect") == null || step.get("expect").equals(found), found);
            } catch (Exception | AssertionError error) {
                throw new AssertionError(name + ": " + step + ": " + error, error);
            }
        }
    }

    private Object perform(
        String verb, Map<?, ?> step, Attempt one, Map<String, Attempt> all, Map<String, Fence> fences
    ) throws Exception {
        switch (verb) {
            case "start":
                return null;
            case "acquire", "finish":
                return one.finish(step);
            case "waiting":
                return soon(one.waits, "a place in the queue");
            case "pending":
                check(!one.taken.isDone(), "it has ended");
                return null;
            case "abort":
                return one.taken.cancel(true);
            case "verify":
                return one.guard().verify();
            case "release":
                return one.guard().release();
            case "post":
                one.guard().close();
                return null;
            case "silence":
                one.guard().silence();
                return null;
            case "lost":
                soon(one.guard().lost(), "the loss");
                check(one.guard().isLost(), "not lost");
                return null;
            case "pause":
                Thread.sleep(step.get("ms") instanceof Long ms ? ms : (Long) step.get("leases") * TTL.toMillis());
                return null;
            case "observed":
                var expected = (Map<?, ?>) step.get("observed");
                // The loss of a lock is told in another thread.
                ClientTest.waitFor(() -> !expected.containsKey("hold") || one.seen.has("hold"), step);
                one.seen.check(expected, TimeUnit.NANOSECONDS.toMillis(Clock.now() - one.began));
                return null;
            case "fence":
                long token = step.get("token") instanceof String text ? Long.parseLong(text) : one.guard().token();
                return fences.computeIfAbsent((String) step.get("resource"), key -> new Fence()).check(token);
            case "write":
                return write(one.guard(), "/" + prefix.replace('/', '-'));
            case "ask":
                var within = step.get("within_ms") instanceof Long ms ? Duration.ofMillis(ms) : null;
                long asked = client().ask(prefix + "/" + step.get("lock"), (String) step.get("reason"), within, null);
                return asked;
            case "asked":
                var question = soon(one.guard().asked(), "a question");
                check(question.token() == one.guard().token(), question);
                return question.reason();
            case "unasked":
                check(one.guard().question().isEmpty(), one.guard().question());
                return null;
            case "tokens_rise":
                var tokens = ((List<?>) step.get("of")).stream().map(name -> all.get(name).guard().token()).toList();
                check(tokens.equals(tokens.stream().distinct().sorted().toList()), tokens);
                return null;
            default:
                throw new AssertionError("unknown step: this runner is older than the scenarios");
        }
    }

    /** Makes the znode, or sets it where there is one. */
    private static String write(Guard guard, String path) {
        try {
            try {
                guard.create(path, new byte[] {1});
            } catch (RefusedException refused) {
                check(refused.status() == 409, refused);
                guard.set(path, new byte[] {2}, Guard.ANY_VERSION);
            }
            return "written";
        } catch (StaleTokenException stale) {
            return "stale";
        }
    }

    private void severalAreTakenTogether() throws Exception {
        var cluster = client();
        var second = cluster.lock(prefix + "/second").tryAcquire().orElseThrow();
        var both = cluster.locks(List.of(Part.exclusive(prefix + "/first"), Part.exclusive(prefix + "/second")));
        check(both.tryAcquire().isEmpty(), "the second is held");
        check(second.release(), "it was held");
        var guard = both.acquire();
        check(guard.tokens().size() == 2 && guard.tokens().get(1) > second.token(), guard);
        check(guard.verify() && guard.release() && guard.isLost() && !guard.verify(), guard);
    }

    private void leadersFollowEachOther() throws Exception {
        var election = client().election("election-" + prefix.substring(12) + "/b");
        check(election.leader().isEmpty(), "nothing leads");
        var first = election.candidate("first").acquire();
        check(first.verify(), first);
        var waiting = new CompletableFuture<Integer>();
        var second = election.candidate("second").onWaiting(waiting::complete).acquireAsync();
        soon(waiting, "a candidate");
        var seen = new ArrayList<String>();
        election.observe(leader -> {
            leader.map(Leader::value).ifPresent(seen::add);
            if (leader.map(Leader::value).equals(Optional.of("first"))) {
                check(first.release(), "the first leads");
            }
            return !leader.map(Leader::value).equals(Optional.of("second"));
        });
        var guard = soon(second, "the lead");
        check(seen.equals(List.of("first", "second")), seen);
        check(election.leader().orElseThrow().token() == guard.token() && guard.release(), guard);
    }

    private void aWatchGoesOnWhereItEnded() throws Exception {
        var cluster = client();
        var name = prefix + "/watched";
        var after = new String[] {"0"};
        for (int round = 0; round < 2; round++) {
            long token;
            try (var guard = cluster.lock(name).acquire()) {
                token = guard.token();
            }
            var isGranted = new boolean[1];
            cluster.watchLock("/locks/" + name).after(after[0]).run(event -> {
                after[0] = event.id() == null ? after[0] : event.id();
                isGranted[0] |= event.event().equals("granted") && event.data().get("token").equals(Long.toString(token));
                return !(isGranted[0] && event.event().equals("released"));
            });
        }
    }

    /** As a program that has the jar on its path. */
    private void theReadmesExampleRuns(Path folder) throws IOException, InterruptedException {
        var readme = Files.readString(folder.resolve("README.md"));
        var example = readme.split("```java\n")[1].split("```")[0];
        var place = Files.createTempDirectory("rowlock-example");
        try {
            var file = place.resolve("Nightly.java");
            Files.writeString(file, example);
            var classes = Path.of(Rowlock.class.getProtectionDomain().getCodeSource().getLocation().getPath());
            var java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
            var command = new ProcessBuilder(java, "-cp", classes.toString(), file.toString());
            command.environment().put("ROWLOCK_API", urls);
            var process = command.redirectErrorStream(true).start();
            var said = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            check(process.waitFor() == 0 && said.matches("token \\d+\n(read|held by .*)\n"), said);
        } finally {
            try (var files = Files.walk(place)) {
                files.sorted(Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
            }
        }
    }

    /**
     * Ends with 1 and the scenario that has failed.
     *
     * @param args URLs, and the folder of this client
     */
    public static void main(String[] args) throws Exception {
        var it = new Conformance(args[0]);
        var folder = Path.of(args.length > 1 ? args[1] : ".").toAbsolutePath();
        var document = (Map<?, ?>) Json.parse(Files.readString(folder.resolve("../conformance.json")));
        check(document.get("version").equals(VERSION), "the scenarios are of another version");
        var scenarios = (List<?>) document.get("scenarios");
        for (var item : scenarios) {
            var scenario = (Map<?, ?>) item;
            if (GATEWAY == null && scenario.toString().matches("(?s).*(through|before)=.*")) {
                System.out.println("left out " + scenario.get("name"));
                continue;
            }
            it.run((String) scenario.get("name"), (List<?>) scenario.get("steps"));
            System.out.println("ok " + scenario.get("name"));
        }
        it.severalAreTakenTogether();
        it.leadersFollowEachOther();
        it.aWatchGoesOnWhereItEnded();
        it.theReadmesExampleRuns(folder);
        System.out.println(scenarios.size() + " scenarios");
    }
}
