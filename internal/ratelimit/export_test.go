package ratelimit

// The fakes, for conformance tests.
func NewFakeCounter() Counter         { return newFakeCounter() }
func NewFakeLimitsStore() LimitsStore { return &fakeStore{} }
func NewFakeMirror() Mirror           { return &fakeMirror{} }
