#!/bin/sh
# Demo: crawls 600 repositories of a simulated GitHub while workers are killed (-9). Everything listens on loopback only
# and stops with the script.
#
# To use existing binaries, set SLUICEGATE and SIMULATORS. To use other ports, set GITHUB_PORT, ADMIN_PORT.
set -eu
cd "$(dirname "$0")/../.."
if [ -z "${SLUICEGATE:-}" ] || [ -z "${SIMULATORS:-}" ]; then
    cargo build --quiet --package sluicegate-cli --package simulators
    SLUICEGATE=${CARGO_TARGET_DIR:-target}/debug/sluicegate SIMULATORS=${CARGO_TARGET_DIR:-target}/debug/simulators
fi
folder=$(mktemp -d)
github= worker=
trap 'kill $github $worker 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"' EXIT INT TERM

port=${GITHUB_PORT:-18289}
export VISIBILITY=3s ADMIN_PORT="${ADMIN_PORT:-18290}" GITHUB_URL=http://127.0.0.1:$port QUEUE_FILE="$folder/crawler.db"
config=examples/crawler-queue/sluicegate.yaml
$SIMULATORS --port "$port" github --repositories 600 --limit 400 --window 10 >/dev/null & github=$!
"$SLUICEGATE" queue send crawl-org '{"type": "crawl_org", "org": "acme"}' --create --config $config >/dev/null
kills=0
documents=0
while [ "$documents" -lt 600 ]; do
    if [ -z "$worker" ]; then
        "$SLUICEGATE" serve --config $config --only worker --create --progress never >/dev/null 2>>"$folder/log" & worker=$!
    fi
    sleep 2
    row=$("$SLUICEGATE" queue depth documents --create --config $config | tail -1)
    echo "$row"
    documents=$(echo "$row" | awk '{print $2}')
    if [ $kills -lt 5 ]; then
        kill -9 $worker
        wait $worker 2>/dev/null || true
        worker=
        kills=$((kills + 1))
    fi
done
echo "killed $kills times; GitHub saw $(curl -s $GITHUB_URL/report)"
