package simulation

// exact reports whether a seed replays exactly. The build overlay changes it to
// true, together with the Go runtime.
const exact = false
