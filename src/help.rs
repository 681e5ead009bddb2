//! The ends of the commands' help: examples, and what the exit codes mean. docs/cli.md has the rest.

/// Of `rowlock` itself.
pub const ALL: &str = "\
First steps:
  rowlock up                               A cluster on this machine, and a demonstration
  rowlock lock nightly -- ./backup.sh      Run a command under a lock
  rowlock queue nightly                    Who holds it, and who waits
  rowlock doctor                           Why does no server answer?

Exit codes: 0; 1 the cluster refused, or the lock was busy; 64 usage; 69 no server could be reached; 70 a bug; \
73 a folder or a file that is there cannot be used; 74 a disk or a file; 75 the lock was lost, or the outcome \
is unknown; 78 a wrong cluster.toml or certificate; 79 waiting would never end. `lock`, `sem` and `elect` exit \
with the code of their command.";

/// Of `up`.
pub const UP: &str = "\
Examples:
  rowlock up                               Three nodes, a demonstration, then stay until Ctrl-C
  rowlock up --no-demo --keep              Go on with the data of the last run
  rowlock up --demo-only; echo $?          0 if every promise was kept
  rowlock up --nodes 5 --base-port 4000    Beside another cluster

The data stays in the folder after Ctrl-C; the next `rowlock up` without --keep deletes it.";

/// Of `serve`.
pub const SERVE: &str = "\
Examples:
  rowlock serve --config cluster.toml --node 2
  rowlock serve --node from-hostname --log debug --log-format json

Exit codes: 0 a signal stopped it; 64 usage; 69 a port is taken; 70 a bug, or it differs from the others; 73 the \
data folder cannot be used; 74 a disk failed; 78 a wrong cluster.toml or certificate.";

/// Of `lock`.
pub const LOCK: &str = "\
Examples:
  rowlock lock nightly -- ./backup.sh      Wait for our turn, then exit with the code of backup.sh
  rowlock lock -n nightly ./backup.sh      Do not wait: exit code 1 if it is busy
  rowlock lock -w 2.5 nightly -c 'echo $ROWLOCK_LOCK_TOKEN'
  rowlock lock nightly                     Hold it until Ctrl-C

Exit codes: the command's; 1 busy (see -E), or refused; 64 usage; 69 no server could be reached; 75 the lock was \
lost; 79 a deadlock; 126, 127 the command cannot be executed, there is none.";

/// Of `sem`.
pub const SEM: &str = "\
Examples:
  rowlock sem -n 3 uploads -- ./upload.sh  At most three at once, on all machines together
  rowlock sem uploads --permits 2 ./big.sh Two of the permits that it has

Exit codes: as those of `rowlock lock`.";

/// Of `elect`.
pub const ELECT: &str = "\
Examples:
  rowlock elect scheduler host-7 -- ./run.sh   Run it while we lead; host-7 is what others read
  rowlock elect --listen scheduler             Print who leads, a line for each change
  rowlock elect --http :4040 scheduler host-7  curl -f localhost:4040 says whether we lead

Exit codes: as those of `rowlock lock`.";

/// Of `top`.
pub const TOP: &str = "\
Examples:
  rowlock top                              Every two seconds, until Ctrl-C
  rowlock top --once -o json | jq '.nodes[].requests_per_second'

Exit codes: 0; 69 with --once, if a node does not answer or serve.";

/// Of `debug bundle`.
pub const BUNDLE: &str = "\
Examples:
  rowlock debug bundle cluster.tar.gz
  rowlock debug bundle node2.tar.gz --log-file /var/log/rowlock.log

Passwords, tokens, digests and the data of znodes are left out: paths, names and addresses are not. \
about.json in it says what could not be had.

Exit codes: 0 also if some of it could not be had; 73 the file exists, or cannot be made; 74 it cannot be written.";

/// Of `queue`.
pub const QUEUE: &str = "\
Examples:
  rowlock queue nightly
  rowlock queue /locks/nightly -o json

At a terminal that is too narrow some columns are left out. -o simple has them all.";

/// Of `history`.
pub const HISTORY: &str = "\
Examples:
  rowlock history nightly --since 1h
  rowlock history --follow -o json             Of all locks, a line for each entry as it happens

At a terminal that is too narrow some columns are left out. -o simple has them all.";

/// Of `release`.
pub const RELEASE: &str = "\
Examples:
  rowlock queue nightly                        The token of the holder
  rowlock release --force --token 42 nightly   Take the lock away from the one with this token";

/// Of `create`.
pub const CREATE: &str = "\
Examples:
  rowlock create /config v1
  rowlock create -p /app/config/limits - < limits.json
  rowlock create -e -s /app/worker-        As long as this command lives, with a number

Exit codes: 0; 1 refused (it exists, its parent does not); 64 no path; 69 no server could be reached; 75 the \
outcome is unknown.";

/// Of `doctor`.
pub const DOCTOR: &str = "\
Examples:
  rowlock doctor                           The endpoints that all commands here use
  rowlock doctor --endpoints a:2181,b:2181

Exit codes: 0 nothing is wrong; 69 something is.";
