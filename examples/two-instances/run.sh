#!/usr/bin/env bash
# Runs two instances, the media service, PostgreSQL, Redis and HAProxy on this machine,
# without containers, until you press Ctrl-C. Data is in ./two-instances.
#
#   apt-get install postgresql redis-server haproxy openssl curl
#   make build && PATH=$PWD/bin:$PATH examples/two-instances/run.sh
#
# PORT is the port of the load balancer (8443). PORT_1, PORT_2, PORT_MEDIA, PORT_REDIS
# and PORT_POSTGRES are the next ones, unless they are set. DATA is the directory.
set -euo pipefail

deploy=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../deploy" && pwd)
PORT=${PORT:-8443} DATA=${DATA:-$PWD/two-instances}
one=${PORT_1:-$((PORT + 1))} two=${PORT_2:-$((PORT + 2))} media=${PORT_MEDIA:-$((PORT + 3))}
kv=${PORT_REDIS:-$((PORT + 4))} db=${PORT_POSTGRES:-$((PORT + 5))}
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)
export PATH=$PATH:$bin:/usr/sbin
for program in telapi redis-server initdb haproxy openssl curl; do
	command -v "$program" >/dev/null || { echo "$program is not on PATH: see the first lines of $0" >&2; exit 1; }
done

# PostgreSQL refuses to run as root.
as_postgres() { if [ "$(id -u)" -eq 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi; }

# Ends all servers in the reverse order.
stop() {
	trap - EXIT INT TERM
	for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null && wait "$pid" || true; done
	[ ! -e "$DATA/postgres/postmaster.pid" ] || as_postgres pg_ctl --pgdata "$DATA/postgres" --mode fast stop >/dev/null
}
pids=()
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# start NAME COMMAND…: a server in the background, with a log file.
start() {
	local name=$1
	shift
	"$@" >"$DATA/$name.log" 2>&1 &
	pids=($! "${pids[@]}")
}

mkdir -p "$DATA"
cp -n "$deploy/docker/make-secrets.sh" "$DATA"
"$DATA/make-secrets.sh" localhost
set -a
# shellcheck disable=SC1091 # created by make-secrets.sh
. "$DATA/.env"
set +a

if [ ! -e "$DATA/postgres" ]; then
	mkdir "$DATA/postgres"
	[ "$(id -u)" -ne 0 ] || chown postgres "$DATA/postgres"
	as_postgres initdb --pgdata "$DATA/postgres" --username telapi --auth trust >/dev/null
fi
as_postgres pg_ctl --pgdata "$DATA/postgres" --log "$DATA/postgres/log" --wait \
	--options "-c listen_addresses=127.0.0.1 -c port=$db -c unix_socket_directories=''" start >/dev/null
start redis redis-server --port "$kv" --bind 127.0.0.1 --dir "$DATA" --appendonly yes --maxmemory 1gb --maxmemory-policy noeviction

export DATABASE_URL=postgres://telapi@127.0.0.1:$db/postgres REDIS_URL=redis://127.0.0.1:$kv
export PUBLIC_URL=https://localhost:$PORT TRUSTED_PROXIES=127.0.0.1 PLAYGROUND_ENABLED=true SPEECH_PROVIDERS=tone
start media env MEDIA_PORT="$media" MEDIA_ROOT="$DATA/media" MEDIA_TLS_CERT_FILE="$DATA/tls/media.pem" MEDIA_TLS_KEY_FILE="$DATA/tls/media.key" telapi media
export TTS_MEDIA_CACHE_BASE_URL=https://127.0.0.1:$media TTS_MEDIA_CACHE_UPLOAD_TOKEN=$MEDIA_UPLOAD_TOKEN TTS_MEDIA_CACHE_CA_BUNDLE=$MEDIA_CA_BUNDLE
for port in $one $two; do
	start "telapi-$port" env TELAPI_PORT="$port" DATA_DIR="$DATA/$port" telapi serve
done
start haproxy env HAPROXY_BIND=127.0.0.1:"$PORT" HAPROXY_CERT="$DATA/tls/edge.pem" TELAPI_1=127.0.0.1:"$one" TELAPI_2=127.0.0.1:"$two" \
	haproxy -db -f "$deploy/haproxy/haproxy.cfg"
for url in "http://127.0.0.1:$one" "http://127.0.0.1:$two" "https://localhost:$PORT"; do
	curl --silent --output /dev/null --fail --retry 60 --retry-delay 1 --retry-all-errors --cacert "$DATA/tls/edge.pem" "$url/health" ||
		{ echo "$url does not answer: see the logs in $DATA" >&2; exit 1; }
done

if [ ! -e "$DATA/key" ]; then
	field() { sed 's/.*"'"$1"'":"\([^"]*\)".*/\1/'; }
	team=$(telapi team create "Two instances" --json | field id)
	telapi endpoint create --team "$team" --name Chat --mode chat --json | field id >"$DATA/endpoint"
	telapi key create --team "$team" --scope CREATE_CALL_TOKEN --scope READ_TEAM_APPS --scope RUN_CALLS --json | field key >"$DATA/key"
fi
cat <<TEXT
Two instances are running behind HAProxy. Press Ctrl-C to stop.

  Load balancer  https://localhost:$PORT
  Playground     https://localhost:$PORT/playground (the browser warns about the certificate)
  Instances      http://127.0.0.1:$one http://127.0.0.1:$two
  Key            $(cat "$DATA/key")
  Endpoint       $(cat "$DATA/endpoint")
  Redis          $REDIS_URL
  Logs           $DATA/*.log

  Runtime        TELAPI_URL=https://localhost:$PORT TELAPI_KEY=$(cat "$DATA/key") SSL_CERT_FILE=$DATA/tls/edge.pem PYTHONPATH=sdk/python python3 examples/runtime-python/echo.py
  Try            curl --cacert $DATA/tls/edge.pem -H "X-API-Key: $(cat "$DATA/key")" https://localhost:$PORT/api/v1/endpoints
TEXT
wait -n "${pids[@]}"
echo "A server ended: see the logs in $DATA" >&2
exit 1
