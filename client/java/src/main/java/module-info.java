/** Locks of a Rowlock cluster by HTTP. */
module io.github.rowlock {
    requires transitive java.net.http;
    exports io.github.rowlock;
}
