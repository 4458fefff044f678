#!/bin/sh
# Demo: 300 analyses for a provider with a limit of 100 in 10 s, first with a fixed delay, then booked. Prints what the
# provider received. Everything listens on loopback only and stops with the script.
#
# The queue is a file and counters are in memory. With QUEUE=rabbitmq STORE=redis they are in RabbitMQ and Redis (RABBITMQ_URL,
# REDIS_URL), in queues and under keys that begin with demo-; the script leaves these queues behind, empty.
#
# To use existing binaries, set SLUICEGATE and SIMULATORS. To use other ports, set PROVIDER_PORT, HTTP_PORT, GRPC_PORT, ADMIN_PORT.
set -eu
cd "$(dirname "$0")/../.."
if [ -z "${SLUICEGATE:-}" ] || [ -z "${SIMULATORS:-}" ]; then
    cargo build --quiet --package sluicegate-cli --package simulators
    SLUICEGATE=${CARGO_TARGET_DIR:-target}/debug/sluicegate SIMULATORS=${CARGO_TARGET_DIR:-target}/debug/simulators
fi
folder=$(mktemp -d)
started=
stop() {
    for pid in $started; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    started=
}
trap 'stop; rm -rf "$folder"' EXIT INT TERM

export HTTP_PORT="${HTTP_PORT:-18180}" GRPC_PORT="${GRPC_PORT:-18181}" ADMIN_PORT="${ADMIN_PORT:-18190}" CONCURRENCY=20
port=${PROVIDER_PORT:-18189}
export PROVIDER_URL=http://127.0.0.1:$port
for delay in 5000ms booked; do
    name=demo-$$-$delay
    # Bookings are valid for 2 s, so that a busy machine does not miss them.
    sed -e '1i booking: {slack: 2s}' -e "s/^  delay: .*/  delay: $delay/" -e 's#}/min#}/10s#' -e 's#:-5000}#:-100}#' \
        -e "s/results: analysis-results/results: $name-results/" examples/two-tier-dispatch/sluicegate.yaml > "$folder/$delay.yaml"
    export QUEUE_FILE="$folder/$delay.db"
    export RAW_ANALYSIS_QUEUE="$name-raw" OPENAI_QUEUE="$name-openai" GEMINI_QUEUE="$name-gemini" ANTHROPIC_QUEUE="$name-anthropic"
    export DLQ_QUEUE="$name-dlq" REDIS_KEY_PREFIX="$name:dispatcher:" WORKER_KEY_PREFIX="$name:worker:"
    $SIMULATORS --port "$port" provider --limit 100 --window 10 >/dev/null & started="$started $!"
    "$SLUICEGATE" serve --config "$folder/$delay.yaml" --create --progress never >/dev/null 2>"$folder/$delay.log" & started="$started $!"
    seq 300 | sed 's/.*/{"AnalysisId": "a-&", "ImageUrls": ["http:\/\/x\/&.jpg"]}/' |
        "$SLUICEGATE" queue send "$RAW_ANALYSIS_QUEUE" --lines - --create --config "$folder/$delay.yaml"
    while :; do
        row=$("$SLUICEGATE" queue depth "$name-results" --create --config "$folder/$delay.yaml" | tail -1)
        case $row in *" 300 "*) break ;; esac
        sleep 1
    done
    printf 'delay: %-7s provider: %s\n' "$delay" "$(curl -s $PROVIDER_URL/report)"
    printf '%16s worker:   %s went back\n' '' "$(curl -s "http://127.0.0.1:$ADMIN_PORT/metrics" |
        sed -n 's/^sluicegate_worker_requeued_total{provider="openai"} //p' | grep . || echo 0)"
    stop
    "$SLUICEGATE" queue purge "$name-results" --yes --config "$folder/$delay.yaml" > /dev/null
done
