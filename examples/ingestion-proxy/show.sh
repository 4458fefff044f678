#!/bin/sh
# Demo: a vendor API, three proxy replicas that share a Redis (one replica in memory if redis-server is missing), and
# 100 concurrent requests. Everything listens on loopback only and stops with the script.
#
#   SLUICEGATE=path/to/sluicegate ./show.sh
#
# To use other ports, set PORTS (of the replicas), VENDOR_PORT and REDIS_PORT.
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
if command -v redis-server >/dev/null; then
    redis=${REDIS_PORT:-3998}
    redis-server --port "$redis" --bind 127.0.0.1 --save '' --loglevel warning >/dev/null & started="$started $!"
    export REDIS_CONNECTION_STRING="127.0.0.1:$redis,ssl=False"
else
    ports=${ports%% *}
fi
for port in $ports; do
    # Each replica serves its metrics on a free port.
    sed "s/0\.0\.0\.0/127.0.0.1/" sluicegate.yaml > "$folder/$port.yaml"
    echo "listen: {admin: '127.0.0.1:0'}" >> "$folder/$port.yaml"
    PORT=$port "$sluicegate" serve --only gateway --config "$folder/$port.yaml" \
        >/dev/null 2>"$folder/$port.log" & started="$started $!"
done
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
for port in $ports; do wait_for "http://127.0.0.1:$port/ready"; done

echo "100 requests at once, through ports $ports:"
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
# A new connection takes a few milliseconds, so arrivals may be closer together than departures.
most = max(bisect.bisect_left(times, t + 980) - i for i, t in enumerate(times))
print(f"the vendor saw {len(times)} in {(times[-1] - times[0]) / 1000:.1f} s, at most {most} in any 980 ms")
'
echo "the last line of a replica's log:"
grep ingestion_proxy_request "$folder/${ports%% *}.log" | tail -1
