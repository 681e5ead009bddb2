# Functions of the stories in this folder.

# eventually COMMAND...: repeats a command until it succeeds, for 30 seconds at most.
eventually() {
    tries=0
    until "$@" >"$T/tried" 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -gt 600 ]; then
            echo "never succeeded: $*" >&2
            cat "$T/tried" >&2
            return 1
        fi
        sleep 0.05
    done
}

# begin WHO COMMAND...: starts a command in the background. $WHO is its process, WHO.out and WHO.err its output.
begin() {
    who=$1
    shift
    : >"$who.out"
    "$@" >"$who.out" 2>"$who.err" &
    eval "$who=\$!"
}

# hold WHO COMMAND...: the same, and waits for its first line of stdout.
hold() {
    begin "$@"
    eventually test -s "$1.out"
}

# finish WHO: waits for its end, then repeats its output and its exit code.
finish() {
    eval "process=\$$1"
    wait "$process"
    code=$?
    cat "$1.out"
    cat "$1.err" >&2
    return $code
}

# stop WHO: SIGTERM, and its exit code.
stop() {
    eval "kill -TERM \$$1; wait \$$1"
}

# has_queue LOCK COUNT: succeeds if this number of clients hold the lock or wait for it.
has_queue() {
    [ "$(rowlock ls "/locks/$1" | wc -l)" -eq "$2" ]
}

# now: milliseconds of this machine's clock.
now() {
    date +%s%3N
}
