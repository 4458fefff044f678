#!/bin/sh
# Crawls the organisation ORG: sends its message, runs the workers, and stops when all queues are empty. The variables in
# README.md select the broker and the GitHub. Without GITHUB_URL it uses the simulator's address.
#
# To use an existing binary, set SLUICEGATE.
set -eu
cd "$(dirname "$0")/../.."
: "${ORG:?set ORG to the name of the organisation, for instance ORG=rust-lang}"
if [ -z "${SLUICEGATE:-}" ]; then
    cargo build --quiet --package sluicegate-cli
    SLUICEGATE=${CARGO_TARGET_DIR:-target}/debug/sluicegate
fi
config=examples/crawler-queue/sluicegate.yaml
org=${CRAWL_ORG_QUEUE:-crawl-org} repo=${CRAWL_REPO_QUEUE:-crawl-repo} doc=${GENERATE_DOC_QUEUE:-generate-doc}
documents=${DOCUMENTS_QUEUE:-documents}
admin=http://127.0.0.1:${ADMIN_PORT:-9090}
worker=
trap 'kill $worker 2>/dev/null || true; wait 2>/dev/null || true' EXIT INT TERM
"$SLUICEGATE" queue send "$org" "{\"type\": \"crawl_org\", \"org\": \"$ORG\"}" --create --config $config >/dev/null
"$SLUICEGATE" serve --config $config --only worker --create --progress never >/dev/null & worker=$!

# Jobs that are done, by the counters of the workers; the same for IDLE seconds with no waiting message is the end. Pub/Sub does
# not tell how many messages wait.
same=0 before=
while [ $((same * 2)) -lt "${IDLE:-6}" ]; do
    sleep 2
    kill -0 $worker 2>/dev/null || { echo "the worker has stopped: see its log above" >&2; exit 1; }
    metrics=$(curl -sf "$admin/metrics") || continue
    count() { echo "$metrics" | awk -v name="$1" 'index($1, name) == 1 {sum += $2} END {print sum + 0}'; }
    depth=$(echo "$metrics" | awk '/^sluicegate_queue_depth/ && !/state="dead"/ && !/queue="'"$documents"'"/ {sum += $2} END {print sum + 0}')
    now="$(count sluicegate_worker_done_total) jobs done, $(count sluicegate_worker_dead_total) dead letters, $depth waiting"
    [ "$now" = "$before" ] || echo "$now"
    if [ "$now" = "$before" ] && [ "$depth" = 0 ] && [ "$(count sluicegate_worker_done_total)" != 0 ]; then
        same=$((same + 1))
    else
        same=0
    fi
    before=$now
done
if [ "${QUEUE:-}" = pubsub ]; then
    echo "the documents are in $documents: sluicegate queue peek $documents --config $config"
else
    "$SLUICEGATE" queue depth "$org" "$repo" "$doc" "$documents" --config $config
fi
