package auth

import (
	"context"
	"time"
)

// Internals for the external tests, which import sqlstore.
var (
	Unauthorized   = unauthorized
	GenerateKey    = generateKey
	ParseKey       = parseKey
	DigestsEqual   = digestsEqual
	TeamPattern    = teamPattern
	SubjectPattern = subjectPattern
)

const (
	FlushInterval = flushInterval
	TopicPrefix   = topicPrefix
	MaxTokenBytes = maxTokenBytes
)

func (a *Authenticator) Flush(ctx context.Context)         { a.flush(ctx) }
func (a *Authenticator) RecordUse(id string, at time.Time) { a.lastUsed.Record(id, at) }
