package fastlane

// Connections returns the number of open connections.
func (f *FastPath) Connections() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.conns)
}
