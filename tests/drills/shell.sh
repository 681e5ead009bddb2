#!/bin/bash
# A client of locks by HTTP that is nothing but bash and curl. It sends each request on a lock three times, to one
# node after another.
#
#   shell.sh cycle NODES LOCK CYCLES FOLDER   adds one to FOLDER/number under the lock, again and again
#   shell.sh hold NODES LOCK TTL_MS           says "held TOKEN", and keeps the lock until it is killed
#
# NODES are host:port,host:port. Any wrong answer ends it with code 1.
set -u
IFS=, read -ra nodes <<<"$2"
lock=/v1/locks/$3
at=$((RANDOM % ${#nodes[@]}))

fail() {
    echo "$$: $*; the last answer: ${answer-}" >&2
    exit 1
}

# Asks one node after another until one answers: POST $1 with the document $2. Sets answer.
post() {
    local tried said
    for ((tried = 0; tried < 300; tried++)); do
        at=$(((at + 1) % ${#nodes[@]}))
        if said=$(curl -s --max-time 5 -w '\n%{http_code}' -d "$2" "http://${nodes[at]}$1"); then
            answer=${said%$'\n'*}
            [[ ${said##*$'\n'} == [24]* ]] && return
        fi
        sleep 0.1
    done
    fail "no node answers $1"
}

# Sets value to a text of the answer.
field() {
    [[ $answer =~ \"$1\":\"([^\"]*)\" ]] || fail "no $1"
    value=${BASH_REMATCH[1]}
}

new_lease() {
    post /v1/leases "{\"ttl_ms\":$1}"
    field secret
    secret=$value
}

# Waits for the lock as the attempt $1. Sets token. All copies of a request say the same of a lock that is held.
acquire() {
    local copy
    token=
    while [[ -z $token ]]; do
        for copy in 1 2 3; do
            post "$lock/acquire" "{\"secret\":\"$secret\",\"request_id\":\"$1\",\"wait_ms\":1000}"
            field state
            case $value in
            waiting) [[ -z $token ]] || fail "copy $copy waits for what is held" ;;
            held)
                field token
                [[ -z $token || $token == "$value" ]] || fail "a second token after $token"
                token=$value
                ;;
            *) fail "not a state of an attempt that waits" ;;
            esac
        done
    done
}

# All copies of a request say the same.
release() {
    local copy
    for copy in 1 2 3; do
        post "$lock/release" "{\"secret\":\"$secret\",\"token\":\"$token\"}"
        [[ $answer == *'"released":true'* ]] || fail "copy $copy has not released it"
    done
}

case $1 in
cycle)
    new_lease 30000
    for ((cycle = 0; cycle < $4; cycle++)); do
        acquire "$cycle"
        read -r number <"$5/number"
        echo "$token" >>"$5/tokens"
        echo $((number + 1)) >"$5/number"
        release
    done
    ;;
hold)
    new_lease "$4"
    acquire only
    echo "held $token"
    # A third of the lease's time, in seconds.
    third=$(printf '%d.%03d' $(($4 / 3000)) $(($4 / 3 % 1000)))
    id=${answer#*\"lease\":\"}
    while sleep "$third"; do
        post "/v1/leases/${id%%\"*}/keepalive" "{\"secret\":\"$secret\"}"
    done
    ;;
esac
