#!/bin/sh
# 600 repositories of a simulated GitHub, crawled by workers of which one is killed (-9) every two seconds. Everything
# listens on this machine only and ends with the script.
set -eu
cd "$(dirname "$0")/../.."
cargo build --quiet --package sluicegate --package simulators
programs=${CARGO_TARGET_DIR:-target}/debug
folder=$(mktemp -d)
github= worker=
trap 'kill $github $worker 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"' EXIT INT TERM

export HTTP_PORT=18280 GRPC_PORT=18281 ADMIN_PORT=18290 GITHUB_URL=http://127.0.0.1:18289 QUEUE_FILE="$folder/crawler.db"
config=examples/crawler-queue/sluicegate.yaml
"$programs/simulators" --port 18289 github --repositories 600 --limit 400 --window 10 >/dev/null & github=$!
"$programs/sluicegate" queue send crawl-org '{"type": "crawl_org", "org": "acme"}' --create --config $config >/dev/null
kills=0
documents=0
while [ "$documents" -lt 600 ]; do
    if [ -z "$worker" ]; then
        "$programs/sluicegate" serve --config $config --only worker --progress never >/dev/null 2>>"$folder/log" & worker=$!
    fi
    sleep 2
    row=$("$programs/sluicegate" queue depth documents --config $config | tail -1)
    echo "$row"
    documents=$(echo "$row" | awk '{print $2}')
    if [ $kills -lt 5 ]; then
        kill -9 $worker
        wait $worker 2>/dev/null || true
        worker=
        kills=$((kills + 1))
    fi
done
echo "killed $kills times; GitHub saw $(curl -s http://127.0.0.1:18289/report)"
