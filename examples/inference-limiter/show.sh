#!/bin/sh
# Demo: one user sends requests to one model until one is denied. Prints every answer, with the reason of the denial.
# Everything listens on loopback only and stops with the script.
#
# Counters are in memory. With STORE=redis they are in Redis (REDIS_URL), under keys that begin with demo-inference-limiter;
# the counters expire, and a few other keys stay. Each run has a user of its own, so that it can be repeated.
#
# To use an existing binary, set SLUICEGATE. To use other ports, set HTTP_PORT, GRPC_PORT, ADMIN_PORT.
set -eu
cd "$(dirname "$0")/../.."
if [ -z "${SLUICEGATE:-}" ]; then
    cargo build --quiet --package sluicegate-cli
    SLUICEGATE=${CARGO_TARGET_DIR:-target}/debug/sluicegate
fi
folder=$(mktemp -d)
service=
stop() {
    if [ -n "$service" ]; then kill "$service" 2>/dev/null || true; fi
    wait 2>/dev/null || true
    rm -rf "$folder"
}
trap stop EXIT
trap 'exit 1' INT TERM

url=http://127.0.0.1:${HTTP_PORT:-18380}
config=$folder/sluicegate.yaml
cp examples/inference-limiter/sluicegate.yaml "$config"
case ${STORE:-memory} in
memory) unset REDIS_URL REDIS_CLUSTER_MODE ;;
redis)
    export REDIS_URL="${REDIS_URL:-redis://127.0.0.1:6379}"
    # The timeouts are long, so that a busy machine does not miss them.
    sed -i "s/^store:/&\n  key_prefix: 'demo-inference-limiter:'\n  timeout: 2s\n  deadline: 5s/" "$config"
    ;;
*)
    echo "STORE=$STORE: use memory or redis" >&2
    exit 2
    ;;
esac
cat >> "$config" <<END
listen:
  http: ${url#http://}
  grpc: 127.0.0.1:${GRPC_PORT:-18381}
  admin: 127.0.0.1:${ADMIN_PORT:-18390}
END
"$SLUICEGATE" serve --config "$config" >/dev/null 2>"$folder/log" & service=$!
tries=0
until curl -s "$url/ready" | grep -q '"ready"'; do
    tries=$((tries + 1))
    if [ $tries -gt 300 ] || ! kill -0 $service 2>/dev/null; then
        echo "no response on $url:" >&2
        cat "$folder/log" >&2
        exit 1
    fi
    sleep 0.1
done

# Prints the value of a field of the answer.
field() {
    echo "$answer" | sed -n "s/^[^[]*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"
}

echo "counters: ${STORE:-memory}"
user=u-$(date +%s)-$$
number=0
while :; do
    number=$((number + 1))
    answer=$(curl -sf "$url/rate-limit/allow" -H 'content-type: application/json' \
        -d '{"userId": "'"$user"'", "modelId": "gpt4", "tenantId": "t1", "modelTier": "PREMIUM"}')
    if [ "$(field allowed)" != true ]; then break; fi
    echo "request $number: allowed, $(field remaining) more fit now"
done
echo "request $number: denied by $(field scopeHit), reason $(field reason), retry after $(field retryAfterMs) ms"
