#!/bin/sh
# Makes the certificates and tokens of kustomization.yaml, once: ./secrets.sh [NAMESPACE]. Needs `rowlock` here, on the
# machine of an operator. Keep `secrets`: the keys of the authorities sign the certificates of clients and later nodes.
set -eu
cd "$(dirname "$0")"
[ ! -e secrets ] || { echo "secrets are there already: rowlock tls renew makes new certificates"; exit 0; }
export ROWLOCK_CONFIG="$PWD/cluster.toml"
umask 077
made=$PWD/secrets
mkdir "$made"
# Half of the files would look like all of them.
trap 'rm -rf "$made"' EXIT
cd "$made"
services="rowlock+rowlock.${1:-default}+rowlock.${1:-default}.svc+localhost"
pod() { echo "rowlock-$1.rowlock-nodes+rowlock-$1+$services"; }
rowlock tls init --dir . --hosts "$(pod 0),$(pod 1),$(pod 2)" > /dev/null
rowlock tls client --dir . operator > /dev/null
rowlock token new operator --role operator > operator.token
rowlock token new prometheus --role read > prometheus.token
trap - EXIT
echo "made: secrets/ (next: kubectl apply -k .)"
