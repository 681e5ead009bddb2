// One process of the mixed queue: `java Contender.java HOSTS LOCK WITNESS CLIENTS ROUNDS`, with Curator.
// Each client takes the lock so many times, and says on stdout which place it had and which one wrote before it.

import java.util.ArrayList;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;
import org.apache.zookeeper.data.Stat;

public class Contender {
    /** Lets us know which znode it took. */
    static class Mutex extends InterProcessMutex {
        Mutex(CuratorFramework client, String path) {
            super(client, path);
        }

        String znode() {
            return getLockPath();
        }
    }

    static void contend(String name, String hosts, String path, String witness, int rounds) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(hosts, 120_000, 120_000, new RetryOneTime(1000));
        client.start();
        for (int round = 0; round < rounds; round++) {
            Mutex lock = new Mutex(client, path);
            lock.acquire();
            try {
                long token = client.checkExists().forPath(lock.znode()).getCzxid();
                Stat stat = new Stat();
                String before = new String(client.getData().storingStatIn(stat).forPath(witness));
                client.setData().withVersion(stat.getVersion()).forPath(witness, Long.toString(token).getBytes());
                System.out.println("grant " + name + " " + token + " " + before);
            } finally {
                lock.release();
            }
        }
        client.close();
    }

    public static void main(String[] args) throws Exception {
        ArrayList<Thread> threads = new ArrayList<>();
        for (int n = 0; n < Integer.parseInt(args[3]); n++) {
            String name = "curator-" + n;
            Thread thread = new Thread(() -> {
                try {
                    contend(name, args[0], args[1], args[2], Integer.parseInt(args[4]));
                } catch (Throwable error) {
                    error.printStackTrace();
                    System.exit(1);
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }
}
