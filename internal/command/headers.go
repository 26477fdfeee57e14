package command

// Bounds of a list of SIP headers: so many items at the most, and names and
// values together below so many characters.
const (
	MaxSIPHeaders       = 100
	SIPHeaderCharacters = 12000
)
