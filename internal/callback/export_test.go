package callback

// ParkedBatch is the number of parked items per store query.
const ParkedBatch = parkedBatch

// PolicyShare is the memory for the policies of a team, if it is a quarter.
const PolicyShare = policyBytes / 4

// ParkedShare returns how many bytes a team may have parked.
func (s *Service) ParkedShare() int64 { return s.parked.budget.Share() }

// TakeParked takes bytes from a team's share, as parked callbacks do.
func (s *Service) TakeParked(teamID string, n int64) error { return s.parked.budget.Take(teamID, n) }

// StreamChannels returns the number of channels with open streams.
func (s *Service) StreamChannels() int { return len(s.streams.open) }
