package session

// Exported for the tests that run on real stores.
const (
	ActionBatchSize  = actionBatchSize
	ActionQueueBytes = actionQueueBytes
	MinActionBytes   = minActionBytes
	SettleDelay      = settleDelay
	SweepInterval    = sweepInterval
	SweepPage        = sweepPage
)
