#!/bin/sh
# Fifteen questions of one user at once: ten are answered, five are told when to come again.
set -eu
cd "$(dirname "$0")/../.."
cargo build --quiet --package sluicegate --package assistant-api
programs=${CARGO_TARGET_DIR:-target}/debug
export STORE="${STORE:-memory}" LIMITER_PORT="${LIMITER_PORT:-8080}"
export LIMITER_URL="http://127.0.0.1:$LIMITER_PORT" ASSISTANT_LISTEN="${ASSISTANT_LISTEN:-127.0.0.1:8000}"

"$programs/sluicegate" serve --config examples/assistant-api/sluicegate.yaml >/dev/null 2>&1 &
limiter=$!
"$programs/assistant-api" &
service=$!
trap 'kill $limiter $service' EXIT
until curl -s "$LIMITER_URL/ready" | grep -q '"ready"' &&
    curl -s -o /dev/null "http://$ASSISTANT_LISTEN/"; do sleep 0.1; done

ask() {
    curl -s -o /dev/null -w '%{http_code} retry-after=%header{retry-after}\n' \
        -H 'x-user-id: ann' -H 'content-type: application/json' \
        -d '{"question": "How exactly does a limiter decide when two callers come at once?"}' \
        "http://$ASSISTANT_LISTEN/ask"
}
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
    ask &
done | sort | uniq -c
curl -s "http://$ASSISTANT_LISTEN/users/ann/usage"
echo
