#!/usr/bin/env bash
# Runs telapi dev and examples/phone, a call runtime that speaks SIP. Both end together.
#
#   scripts/phone.sh [ARGUMENT OF telapi dev…]
#
# The settings of the phone are in docs/phone.md.
set -euo pipefail

export TELAPI_URL=${TELAPI_URL:-http://localhost:${TELAPI_PORT:-3001}}
bin/telapi dev "$@" &
service=$!
trap 'kill $service 2>/dev/null; wait' EXIT

# member NAME: print a member of the demo's configuration.
member() { sed -n 's/.*"'"$1"'":"\([^"]*\)".*/\1/p' <<<"$config"; }

until config=$(curl --silent --fail "$TELAPI_URL/playground/config.json") && [ -n "$(member apiKey)" ]; do
	kill -0 $service 2>/dev/null || exit 1
	sleep 0.2
done
[ -n "$(member botUrl)" ] || {
	echo 'phone: telapi dev has no bot: run it without --no-demo' >&2
	exit 1
}
echo "phone: see a call at $TELAPI_URL/playground/?channel=CHANNEL, with the channel that the log names" >&2
TELAPI_KEY=$(member apiKey) PHONE_BOT_URL=${PHONE_BOT_URL:-$(member botUrl)} \
	PHONE_ENDPOINT=$(sed -n 's/.*"endpoints":\[{"id":"\([^"]*\)".*/\1/p' <<<"$config") \
	PHONE_STATE=${PHONE_STATE:-data/phone-calls} bin/phone
