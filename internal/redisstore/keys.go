package redisstore

// Every key and channel that this package uses. Authors of consoles and
// runtimes rely on them: a name never changes its meaning.
const (
	// limitsKey holds the rate limits, one JSON value. Whoever sets it
	// publishes ratelimit.Topic on announceChannel.
	limitsKey = "telapi:limits"

	// ratePrefix is followed by ip:<tier>:<address> or team:<id>:<day>. The
	// value is the number of permits handed out in the window, which ends with
	// the key's TTL.
	ratePrefix = "telapi:rate:"

	// leasePrefix is followed by what one instance at a time may do. The value
	// names the holder, which renews the key's TTL.
	leasePrefix = "telapi:lease:"

	// probeKey is written now and then to see whether writes are taken.
	probeKey = "telapi:probe"

	// announceChannel carries one topic per message to every instance.
	announceChannel = "telapi:announce"
)
