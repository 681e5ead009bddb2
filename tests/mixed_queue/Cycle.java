// As cycle.py, with Curator: `java Cycle.java HOSTS LOCK FILE STOP`.

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryNTimes;

public class Cycle {
    public static void main(String[] args) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], 30_000, 30_000, new RetryNTimes(600, 100));
        AtomicInteger lost = new AtomicInteger();
        client.getConnectionStateListenable().addListener((unused, state) -> {
            if (state == ConnectionState.LOST) lost.incrementAndGet();
        });
        client.start();
        client.blockUntilConnected();
        long session = client.getZookeeperClient().getZooKeeper().getSessionId();
        Path file = Path.of(args[2]);
        int cycles = 0;
        while (!Files.exists(Path.of(args[3]))) {
            InterProcessMutex lock = new InterProcessMutex(client, args[1]);
            lock.acquire();
            try {
                long number = Long.parseLong(Files.readString(file));
                Files.writeString(file, Long.toString(number + 1));
            } finally {
                lock.release();
            }
            cycles++;
        }
        if (client.getZookeeperClient().getZooKeeper().getSessionId() != session) throw new Error("another session");
        System.out.println("cycles " + cycles + " lost " + lost.get());
        client.close();
    }
}
