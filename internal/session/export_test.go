package session

// Exported for the tests that run on real stores.
const (
	SettleDelay   = settleDelay
	SweepInterval = sweepInterval
	SweepPage     = sweepPage
)
