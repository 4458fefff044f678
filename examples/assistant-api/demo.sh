#!/bin/sh
# Demo: one user sends fifteen questions at once. Ten are answered, five get a 429 with Retry-After.
#
# To use existing binaries, set SLUICEGATE and ASSISTANT. To use other ports, set LIMITER_PORT, LIMITER_GRPC_PORT,
# LIMITER_ADMIN_PORT and ASSISTANT_LISTEN.
set -eu
cd "$(dirname "$0")/../.."
if [ -z "${SLUICEGATE:-}" ] || [ -z "${ASSISTANT:-}" ]; then
    cargo build --quiet --package sluicegate-cli --package assistant-api
    programs=${CARGO_TARGET_DIR:-target}/debug
    SLUICEGATE=$programs/sluicegate ASSISTANT=$programs/assistant-api
fi
export STORE="${STORE:-memory}" LIMITER_PORT="${LIMITER_PORT:-8080}"
export LIMITER_URL="http://127.0.0.1:$LIMITER_PORT" ASSISTANT_LISTEN="${ASSISTANT_LISTEN:-127.0.0.1:8000}"

"$SLUICEGATE" serve --config examples/assistant-api/sluicegate.yaml >/dev/null 2>&1 &
limiter=$!
"$ASSISTANT" &
service=$!
trap 'kill $limiter $service' EXIT
tries=0
until curl -s "$LIMITER_URL/ready" | grep -q '"ready"' && curl -s -o /dev/null "http://$ASSISTANT_LISTEN/"; do
    tries=$((tries + 1))
    if [ $tries -gt 300 ]; then
        echo "no response on $LIMITER_URL or $ASSISTANT_LISTEN: is a port taken?" >&2
        exit 1
    fi
    sleep 0.1
done

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
