package auth

import (
	"context"
	"time"
)

// Internals for the external tests, which import sqlstore.
var (
	Unauthorized   = unauthorized
	NewSecret      = newSecret
	SplitSecret    = splitSecret
	SameDigest     = sameDigest
	TeamPattern    = teamPattern
	SubjectPattern = subjectPattern
)

const (
	FlushInterval = flushInterval
	TopicPrefix   = topicPrefix
	MaxTokenBytes = maxTokenBytes
)

func (a *Authenticator) Flush(ctx context.Context)       { a.flush(ctx) }
func (a *Authenticator) RecordUse(id string, at time.Time) { a.uses.Record(id, at) }
