package team

import (
	"context"
	"sync"

	"telapi/internal/fault"
)

// memory keeps teams and announcements for a test, and the order in which they came.
type memory struct {
	mu      sync.Mutex
	teams   map[string]Team
	events  []string
	lookups int
	away    error // every call to the store fails with it
	mute    error // announcing fails with it
}

func newMemory(teams ...Team) *memory {
	m := &memory{teams: map[string]Team{}}
	for _, t := range teams {
		m.teams[t.ID] = t
	}
	return m
}

func (m *memory) CreateTeam(_ context.Context, t Team) error { return m.put("created ", t) }

func (m *memory) UpdateTeam(ctx context.Context, id string, change func(*Team)) (Team, error) {
	t, err := m.Team(ctx, id)
	if err != nil {
		return Team{}, err
	}
	change(&t)
	return t, m.put("committed ", t)
}

func (m *memory) put(event string, t Team) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away != nil {
		return m.away
	}
	m.teams[t.ID] = t
	m.events = append(m.events, event+t.ID)
	return nil
}

func (m *memory) Team(_ context.Context, id string) (Team, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lookups++
	if m.away != nil {
		return Team{}, m.away
	}
	t, ok := m.teams[id]
	if !ok {
		return Team{}, fault.New(fault.NotFound, "No such team.")
	}
	return t, nil
}

func (m *memory) Teams(context.Context) ([]Team, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []Team
	for _, t := range m.teams {
		list = append(list, t)
	}
	return list, m.away
}

func (m *memory) Announce(_ context.Context, topic string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mute != nil {
		return m.mute
	}
	m.events = append(m.events, "announced "+topic)
	return nil
}

func (m *memory) lookedUp() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lookups
}
