#!/bin/sh
# Demo: a vendor API, three proxy replicas that share a Redis (one replica in memory if redis-server is missing), and
# 100 concurrent requests, once with Redis on loopback and once with Redis 10 ms away. Everything listens on loopback
# only and stops with the script.
#
#   SLUICEGATE=path/to/sluicegate ./show.sh
#
# To use other ports, set PORTS (of the replicas), VENDOR_PORT, REDIS_PORT and DISTANT_PORT.
set -eu
cd "$(dirname "$0")"
sluicegate=${SLUICEGATE:-sluicegate}
folder=$(mktemp -d)
started=
stop() {
    for pid in $started; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$folder"
}
trap stop EXIT INT TERM

vendor=127.0.0.1:${VENDOR_PORT:-3999}
export NIVODA_ENDPOINT="http://$vendor/graphql" NIVODA_USERNAME=demo NIVODA_PASSWORD=demo
export INTERNAL_SERVICE_TOKEN=an-internal-token-for-the-demo

python3 upstream.py "${vendor#*:}" & started="$started $!"
ports=${PORTS:-3001 3002 3003}
redis=${REDIS_PORT:-3998}
distant=${DISTANT_PORT:-3997}
if command -v redis-server >/dev/null; then
    redis-server --port "$redis" --bind 127.0.0.1 --save '' --loglevel warning >/dev/null & started="$started $!"
    python3 distance.py "$distant" "$redis" 10 & started="$started $!"
else
    redis= distant=
    ports=${ports%% *}
fi
wait_for() {
    tries=0
    until curl -sf "$1" >/dev/null; do
        tries=$((tries + 1))
        if [ $tries -gt 300 ]; then
            echo "$1 does not answer:" >&2
            cat "$folder"/*.log >&2
            exit 1
        fi
        sleep 0.1
    done
}
wait_for "http://$vendor/arrivals"

# Sends 100 requests at once through replicas that use the Redis on this port, and prints the result.
show() {
    if [ -n "$1" ]; then export REDIS_CONNECTION_STRING="127.0.0.1:$1,ssl=False"; fi
    replicas=
    for port in $ports; do
        # Each replica serves its metrics on a free port.
        sed "s/0\.0\.0\.0/127.0.0.1/" sluicegate.yaml > "$folder/$port.yaml"
        echo "listen: {admin: '127.0.0.1:0'}" >> "$folder/$port.yaml"
        PORT=$port "$sluicegate" serve --only gateway --config "$folder/$port.yaml" \
            >/dev/null 2>"$folder/$port.log" & replicas="$replicas $!"
        started="$started $!"
    done
    for port in $ports; do wait_for "http://127.0.0.1:$port/ready"; done
    curl -s -o /dev/null -X DELETE "http://$vendor/arrivals"
    rm -f "$folder/codes"
    requests=
    number=0
    while [ $number -lt 100 ]; do
        for port in $ports; do
            number=$((number + 1))
            [ $number -le 100 ] || break
            curl -s -o /dev/null -w '%{http_code}\n' -X POST "http://127.0.0.1:$port/graphql" \
                -H "x-internal-token: $INTERNAL_SERVICE_TOKEN" -H 'content-type: application/json' \
                -d '{"query":"query Diamonds { items }"}' >> "$folder/codes" & requests="$requests $!"
        done
    done
    for pid in $requests; do wait "$pid"; done
    sort "$folder/codes" | uniq -c
    curl -s "http://$vendor/arrivals" | python3 -c '
import bisect, json, sys
times = sorted(json.load(sys.stdin))
most = max(bisect.bisect_left(times, t + 1000) - i for i, t in enumerate(times))
print(f"the vendor received {len(times)} in {(times[-1] - times[0]) / 1000:.2f} s, at most {most} in any 1.000 s")
'
    kill $replicas
    for pid in $replicas; do wait "$pid" || true; done
}

echo "100 requests at once, through ports $ports:"
show "$redis"
if [ -n "$redis" ]; then
    echo "the same with Redis 10 ms away:"
    show "$distant"
fi
echo "the last line of a replica's log:"
grep ingestion_proxy_request "$folder/${ports%% *}.log" | tail -1
