import java.io.StringReader;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.RetryForever;
import org.apache.zookeeper.server.quorum.QuorumPeer.LearnerType;
import org.apache.zookeeper.server.quorum.flexible.QuorumMaj;
import org.apache.zookeeper.server.quorum.flexible.QuorumVerifier;

/**
 * Curator's EnsembleTracker against a cluster of three, whose members change: {@code Ensemble HOSTS}. The tracker
 * parses {@code /zookeeper/config} with ZooKeeper's own parser, and a client goes to the addresses that it finds there.
 * Each error that Curator does not handle is a failure.
 */
public final class Ensemble {
    private static final ConcurrentLinkedQueue<String> ERRORS = new ConcurrentLinkedQueue<>();
    private static final long PATIENCE_MS = 60_000;
    private static int passed;
    private static int failed;

    private interface Step {
        void run() throws Exception;
    }

    private static void step(String name, Step step) {
        try {
            step.run();
            passed++;
            System.out.println("ok " + name);
        } catch (Throwable error) {
            failed++;
            System.out.println("FAILED " + name + ": " + error);
        }
    }

    private static void check(boolean is, Object what) {
        if (!is) {
            throw new AssertionError(what);
        }
    }

    private static void until(Callable<Boolean> is, Callable<Object> what) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (!is.call()) {
            check(System.currentTimeMillis() < end, what.call());
            Thread.sleep(50);
        }
    }

    private static QuorumMaj parsed(String config) throws Exception {
        var properties = new Properties();
        properties.load(new StringReader(config));
        return new QuorumMaj(properties);
    }

    private static void theParserTakesWhatWeWrite() throws Exception {
        var members = parsed("server.1=10.0.0.1:65535:65534:participant;10.0.0.1:2181\n"
            + "server.2=[::1]:2282:2283:observer;[::1]:2182\nversion=1f").getAllMembers();
        check(members.size() == 2 && members.get(2L).type == LearnerType.OBSERVER, members);
        check(members.get(2L).clientAddr.getPort() == 2182, members.get(2L).clientAddr);
        try {
            throw new AssertionError(parsed("server.1=10.0.0.1:2281:2281:participant;10.0.0.1:2181\nversion=0"));
        } catch (Exception refused) {
            check(refused.getMessage().contains("different"), refused);
        }
    }

    private static TreeSet<String> known(CuratorFramework client) {
        var text = client.getZookeeperClient().getCurrentConnectionString();
        return new TreeSet<>(java.util.List.of(text.split(",")));
    }

    private static QuorumVerifier config(CuratorFramework client) {
        return client.getCurrentConfig();
    }

    private static boolean has(CuratorFramework client, int voters, int observers) {
        var config = config(client);
        return config != null && config.getVotingMembers().size() == voters
            && config.getObservingMembers().size() == observers;
    }

    private static CuratorFramework client(String hosts) {
        var client = CuratorFrameworkFactory.builder().connectString(hosts).retryPolicy(new RetryForever(200))
            .authorization("digest", System.getenv().getOrDefault("ROWLOCK_SUPER", "super:test").getBytes()).build();
        client.getUnhandledErrorListenable().addListener((message, error) -> ERRORS.add(message + ": " + error));
        client.start();
        return client;
    }

    public static void main(String[] args) throws Exception {
        var all = new TreeSet<>(java.util.List.of(args[0].split(",")));
        step("zookeeper's parser takes the lines of our members", Ensemble::theParserTakesWhatWeWrite);
        // It is given one node, and must learn the others.
        var client = client(all.first());
        var watching = client(all.last());
        step("the tracker learns all nodes", () ->
            until(() -> known(client).equals(all) && known(watching).equals(all), () -> known(client) + " " + ERRORS));
        step("the tracker knows three voters", () -> until(() -> has(client, 3, 0), () -> config(client)));
        step("members change and the tracker follows", () -> {
            var text = new String(client.getConfig().forEnsemble());
            var last = text.lines().filter(line -> line.startsWith("server.3=")).findFirst().orElseThrow();
            client.reconfig().joining(last.replace(":participant;", ":observer;")).forEnsemble();
            until(() -> has(client, 2, 1) && has(watching, 2, 1), () -> config(watching));
            client.reconfig().joining(last).forEnsemble();
            until(() -> has(client, 3, 0) && has(watching, 3, 0), () -> config(watching));
            check(known(watching).equals(all), known(watching));
        });
        step("no error is left unhandled", () -> check(ERRORS.isEmpty(), ERRORS));
        System.out.println(passed + " passed, " + failed + " failed");
        System.exit(failed == 0 ? 0 : 1);
    }
}
